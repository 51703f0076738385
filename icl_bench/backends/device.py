"""Devices and number formats, and how fast a device multiplies."""

from __future__ import annotations

import time

import torch

from icl_bench.errors import UserError


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


def choose_device(asked: str | None) -> torch.device:
    """The device that was asked for, else CUDA where there is one, else the CPU."""
    if asked is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {asked}: not usable here ({reason})") from None
    return device


def choose_dtype(asked: str, device: torch.device) -> torch.dtype:
    """``auto`` is bfloat16, but float32 on a CPU that has no bfloat16 arithmetic.

    There bfloat16 products are emulated and take several times as long.
    """
    if asked != "auto":
        return {
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
            "float16": torch.float16,
        }[asked]
    if device.type != "cpu":
        return torch.bfloat16
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else torch.float32
