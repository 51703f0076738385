"""How long a plan would take: floating-point operations over a quickly measured rate."""

from __future__ import annotations

from collections.abc import Sequence

from icl_bench.models.architecture import Architecture
from icl_bench.sweep.compute_cost import flops, work_of
from icl_bench.sweep.plan import CellPlan

EFFICIENCY = 0.6
"""Share of a plain matrix product's rate that a whole model reaches (measured: 0.5 to 0.7)."""


def seconds(shape: Architecture, rate: float, cells: Sequence[CellPlan]) -> list[float]:
    """Estimated seconds of each cell, given what its group has cached: ``(cells,)``."""
    return [_operations(shape, cell) / (rate * EFFICIENCY) for cell in cells]


def _operations(shape: Architecture, cell: CellPlan) -> float:
    """What is left to compute of a cell; answers take half of their longest."""
    if cell.problem:
        return 0.0
    reading = cell.reading
    work = work_of(reading, shape, cell.answer_tokens / 2, "float32")
    total = work.prefix_flops + cell.queries * work.query_flops
    if not reading.pattern.reuses:
        cached = cell.prefix_tokens - (cell.new_tokens - sum(reading.own_tokens))
        total -= flops(shape, reading.pattern, reading.layout(0), 0, max(0, cached))
    return total
