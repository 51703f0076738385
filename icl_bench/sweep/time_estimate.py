"""Time estimate of a plan: floating-point operations over a briefly measured rate."""

from __future__ import annotations

from collections.abc import Sequence

from icl_bench.models.architecture import Architecture
from icl_bench.sweep.compute_cost import ComputeCost, flops
from icl_bench.sweep.plan import CellPlan

EFFICIENCY = 0.6
"""Share of a plain matrix product's rate that a whole model reaches (measured: 0.5 to 0.7)."""


def seconds(
    architecture: Architecture, rate: float, cells: Sequence[CellPlan], costs: Sequence[ComputeCost | None]
) -> list[float]:
    """Estimated seconds of each cell, given its group's cache: ``(cells,)``.

    ``costs`` by formula, ``(cells,)``; None for a cell that cannot run.
    """
    return [
        _operations(architecture, cell, cost) / (rate * EFFICIENCY) for cell, cost in zip(cells, costs, strict=True)
    ]


def _operations(architecture: Architecture, cell: CellPlan, cost: ComputeCost | None) -> float:
    """Operations of a cell beyond its group's cache."""
    if cost is None:
        return 0.0
    layout = cell.prompt_layout
    total = cost.prefix_flops + cell.queries * cost.query_flops
    if not layout.pattern.reuses:
        cached = cell.prefix_tokens - (cell.new_tokens - cell.samples * sum(layout.own_tokens))
        total -= flops(architecture, layout.pattern, layout.layout(0), 0, max(0, cached), read=0)
    return total
