"""``requirements-hashed.txt`` has the versions of ``constraints.txt``, each with the hashes of its files."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HASHED = (ROOT / "requirements-hashed.txt").read_text(encoding="utf-8")
PINNED = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[\w.+!-]+)(?P<hashes>( --hash=sha256:[0-9a-f]{64})*)")


def pinned(text: str) -> dict[str, re.Match[str]]:
    """The lines of a file of requirements by name, in the spelling of the package index."""
    lines = [line for line in text.replace("\\\n", "").splitlines() if line and not line.startswith("#")]
    found = [PINNED.fullmatch(re.sub(r"\s+", " ", line)) for line in lines]
    assert all(found), "each line is one version and hashes, without an address of an index or a file"
    return {re.sub(r"[-_.]+", "-", line["name"]).lower(): line for line in found if line}


def test_it_has_the_versions_of_the_constraints_except_torch():
    versions = {name: line["version"] for name, line in pinned(HASHED).items()}
    constraints = {name: line["version"] for name, line in pinned((ROOT / "constraints.txt").read_text()).items()}
    assert constraints.pop("torch")
    assert versions == constraints, "run make hashes"


def test_each_version_has_a_hash():
    assert [name for name, line in pinned(HASHED).items() if not line["hashes"]] == []
