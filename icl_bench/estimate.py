"""How long a plan would take: floating-point operations over a quickly measured rate."""

from __future__ import annotations

import time
from collections.abc import Sequence

from icl_bench.plan import CellPlan
from icl_bench.shape import Shape
from icl_bench.work import flops, work_of

EFFICIENCY = 0.6
"""Share of a plain matrix product's rate that a whole model reaches (measured: 0.5 to 0.7)."""


def device_rate(device: str, dtype: str, seconds: float = 0.2) -> float:
    """Operations a second of a plain matrix product on a device."""
    import torch

    kind = getattr(torch, dtype)
    size = 1024 if device == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))

    def multiply() -> None:
        torch.matmul(a, b)
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    multiply()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        multiply()
        count += 1
    return count * 2.0 * size**3 / (time.perf_counter() - start)


def seconds(shape: Shape, rate: float, cells: Sequence[CellPlan]) -> list[float]:
    """Estimated seconds of each cell, given what its group has cached: ``(cells,)``."""
    return [_operations(shape, cell) / (rate * EFFICIENCY) for cell in cells]


def _operations(shape: Shape, cell: CellPlan) -> float:
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
