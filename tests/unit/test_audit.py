"""What ``make audit`` says of packages that are well, vulnerable, or could not be checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import audit
from audit import pinned, report

WELL: dict[str, Any] = {"name": "six", "version": "1.17.0", "vulns": []}
FLAW: dict[str, Any] = {"id": "PYSEC-1", "fix_versions": ["3.1.6"], "aliases": [], "description": "…"}
OLD: dict[str, Any] = {"name": "jinja2", "version": "2.4.1", "vulns": [FLAW]}
UNKNOWN: dict[str, Any] = {"name": "torch", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([WELL], 0, ["1 of 1 packages checked, 0 known vulnerabilities"]),
        ([WELL, OLD], 1, ["jinja2 2.4.1: PYSEC-1 (fixed in 3.1.6)", "2 of 2 packages checked, 1 known"]),
        ([WELL, UNKNOWN], 0, ["not checked, unknown to the source of vulnerabilities: torch", "1 of 2 packages"]),
        ([UNKNOWN], 2, ["torch", "0 of 1 packages checked", "nothing could be checked"]),
        ([], 2, ["0 of 0 packages checked", "nothing could be checked"]),
    ],
    ids=["well", "vulnerable", "one unknown", "all unknown", "none"],
)
def test_what_was_checked_is_said_and_nothing_else_is_well(packages: list[dict[str, Any]], code: int, said: list[str]):
    lines, found = report({"dependencies": packages})
    assert found == code
    assert len(lines) == len(said)
    assert all(part in line for part, line in zip(said, lines, strict=True))


@pytest.mark.parametrize("answer", ["", "no json", "[]", '{"other": 1}'])
def test_a_pip_audit_that_ends_without_a_result_is_no_good_news(tmp_path: Path, answer: str):
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\nprintf '%s' '{answer}'\necho no network >&2\nexit 1\n")
    program.chmod(0o755)
    words = [sys.executable, audit.__file__, program]
    done = subprocess.run(words, input="six==1.17.0\n", capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == "nothing could be checked: pip-audit ended with 1: no network\n"


def test_packages_from_files_are_counted_as_not_checked():
    frozen = ["six==1.17.0", "torch==2.13.0+cpu", "mine @ file:///wheels/mine.whl", "# a comment", ""]
    assert pinned(frozen) == (["six==1.17.0", "torch==2.13.0"], ["mine"])
    lines, code = report({"dependencies": [WELL]}, ["mine"])
    assert (lines[-1], code) == ("1 of 2 packages checked, 0 known vulnerabilities", 0)
    assert "mine" in lines[0]
