"""What files of cells say, and the facts of variants, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icl_bench.results.facts import Facts
from icl_bench.results.stored_meta import CellMeta, SpecMeta

SPEC: Mapping[str, Any] = {
    "task": "t",
    "model": "m",
    "select": "random",
    "order": "drawn",
    "attention": "full",
    "k": 5,
    "draw": 0,
}


def facts_of(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Facts]:
    """Variant -> its facts."""
    return {variant: Facts(**facts) for variant, facts in given.items()}


def meta(variant: str = "v", *, facts: Mapping[str, Any] | None = None, **said: Any) -> CellMeta:
    """What the file of a cell says; axes among what is ``said`` are those of the cell."""
    axes = {name: said.pop(name, value) for name, value in SPEC.items() if name != "task"}
    spec = SpecMeta(**axes, task=said.pop("of_task", SPEC["task"]))
    return CellMeta(spec=spec, facts=Facts(**(facts or {})), variant=variant, **said)
