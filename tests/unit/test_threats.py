"""The threat table of docs/security.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "docs" / "security.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ")
][2:]


def test_the_table_has_a_row_for_each_threat_with_three_columns():
    assert len(ROWS) > 20
    assert {len(row) for row in ROWS} == {3}
    assert len({row[0] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_test_that_holds_a_threat_exists(row: list[str]):
    named = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", row[-1])
    assert named is not None
    tree = ast.parse((ROOT / named[1]).read_text(encoding="utf-8"))
    assert named[2] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
