"""How long a plan would take: floating-point operations over a quickly measured rate."""

from __future__ import annotations

import time
from collections.abc import Sequence

from icl_bench.plan import CellPlan
from icl_bench.shape import Shape

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
    result = []
    for cell in cells:
        if cell.problem:
            result.append(0.0)
            continue
        rows = cell.queries
        own = cell.prompt_tokens - cell.prefix_tokens * rows
        extends = max(0, cell.new_tokens - own)
        work = shape.flops(extends, cell.prefix_tokens - extends / 2)
        work += shape.flops(own, cell.prefix_tokens + own / rows / 2)
        work += shape.flops(rows * cell.answer_tokens // 2, cell.longest_prompt)
        result.append(work / (rate * EFFICIENCY))
    return result
