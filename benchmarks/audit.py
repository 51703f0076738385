"""Known vulnerabilities of pinned packages, and which of them could not be checked.

``pip freeze | python benchmarks/audit.py PIP_AUDIT`` runs pip-audit. Alone it says "No known vulnerabilities found"
also of packages that its source does not know, or stops at the first of them (``--strict``). Ends with 1 for a known
vulnerability, with 2 if nothing could be checked, else with 0.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

FOUND, NOTHING_CHECKED = 1, 2


PINNED = re.compile(r"([\w.-]+)==([^+;\s]+)")
"""A pinned package, without the local part of its version (``+cpu``), which no source of vulnerabilities has."""


def pinned(frozen: Sequence[str]) -> tuple[list[str], list[str]]:
    """The pinned packages in the lines of ``pip freeze``, and the other lines: packages from files and addresses."""
    lines = [line.strip() for line in frozen if line.strip() and not line.startswith("#")]
    known = [found[0] for line in lines if (found := PINNED.match(line))]
    return known, [line.partition(" @ ")[0] for line in lines if not PINNED.match(line)]


def report(found: Mapping[str, Any], others: Sequence[str] = ()) -> tuple[list[str], int]:
    """The lines to print for pip-audit's JSON, and the exit code. ``others`` are packages that it was not given."""
    packages: Sequence[Mapping[str, Any]] = found["dependencies"]
    unchecked = [*others, *(one["name"] for one in packages if "skip_reason" in one)]
    checked = [one for one in packages if "skip_reason" not in one]
    known = [(one, flaw) for one in checked for flaw in one["vulns"]]
    lines = []
    for one, flaw in known:
        fixed = ", ".join(flaw["fix_versions"]) or "no version"
        lines.append(f"{one['name']} {one['version']}: {flaw['id']} (fixed in {fixed})")
    if unchecked:
        lines.append(f"not checked, unknown to the source of vulnerabilities: {', '.join(sorted(unchecked))}")
    lines.append(
        f"{len(checked):,} of {len(packages) + len(others):,} packages checked, {len(known):,} known vulnerabilities"
    )
    if not checked:
        lines.append("nothing could be checked: run it where https://pypi.org answers")
    return lines, FOUND if known else 0 if checked else NOTHING_CHECKED


def main() -> None:
    """Run pip-audit and print what it found."""
    known, others = pinned(sys.stdin.read().splitlines())
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("".join(f"{line}\n" for line in known))
        requirements.flush()
        words = [sys.argv[1], "--no-deps", "--disable-pip", "--requirement", requirements.name]
        done = subprocess.run(
            [*words, "--format", "json", "--progress-spinner", "off"], capture_output=True, text=True, check=False
        )
    try:
        lines, code = report(json.loads(done.stdout), others)
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        lines, code = [f"nothing could be checked: pip-audit ended with {done.returncode}: {last}"], NOTHING_CHECKED
    print("\n".join(lines))
    sys.exit(code)


if __name__ == "__main__":
    main()
