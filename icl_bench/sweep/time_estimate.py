"""How long a plan would take: floating-point operations over a quickly measured rate."""

from __future__ import annotations

from collections.abc import Sequence

from icl_bench.models.architecture import Architecture
from icl_bench.sweep.compute_cost import cost_of, flops
from icl_bench.sweep.plan import CellPlan

EFFICIENCY = 0.6
"""Share of a plain matrix product's rate that a whole model reaches (measured: 0.5 to 0.7)."""


def seconds(architecture: Architecture, rate: float, cells: Sequence[CellPlan]) -> list[float]:
    """Estimated seconds of each cell, given what its group has cached: ``(cells,)``."""
    return [_operations(architecture, cell) / (rate * EFFICIENCY) for cell in cells]


def _operations(architecture: Architecture, cell: CellPlan) -> float:
    """What is left to compute of a cell; answers take half of their longest."""
    if cell.problem:
        return 0.0
    layout = cell.prompt_layout
    cost = cost_of(layout, architecture, cell.answer_tokens / 2, "float32")
    total = cost.prefix_flops + cell.queries * cost.query_flops
    if not layout.pattern.reuses:
        cached = cell.prefix_tokens - (cell.new_tokens - sum(layout.own_tokens))
        total -= flops(architecture, layout.pattern, layout.layout(0), 0, max(0, cached))
    return total
