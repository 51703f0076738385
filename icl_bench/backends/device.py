"""Devices and number formats by name and in PyTorch, and the speed of a device.

A plan needs the device, the dtype and the speed. If possible, they are determined without PyTorch,
because importing it takes longer than the plan.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from icl_bench.errors import UserError
from icl_bench.models.cache_folder import cache_dir
from icl_bench.text_files import json_file, write_whole

if TYPE_CHECKING:
    import torch

_CPU_INFO = Path("/proc/cpuinfo")


# -- names --------------------------------------------------------------------------------------


def device_name(requested: str | None) -> str:
    """The name of the device that :func:`choose_device` chooses. Raises ``UserError``."""
    if requested == "cpu" or (requested is None and not may_have_cuda()):
        return "cpu"
    return str(choose_device(requested))


def dtype_name(requested: str, device: str) -> str:
    """Resolve ``auto``: float32 on a CPU without bfloat16 arithmetic, else bfloat16.

    Such a CPU emulates bfloat16 products, which takes several times as long.
    """
    if requested != "auto":
        return requested
    on_cpu = device.partition(":")[0] == "cpu"
    return "float32" if on_cpu and not cpu_has_bfloat16() else "bfloat16"


def may_have_cuda() -> bool:
    """Whether PyTorch could find a CUDA (or ROCm) device. False only if it cannot.

    Asks the driver's library for the number of devices, like PyTorch.
    """
    if sys.platform == "darwin":
        return False
    if sys.platform != "linux" or Path("/dev/kfd").exists():  # ROCm's device file
        return True
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int()
        failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    except (OSError, AttributeError):
        return False
    return not failed and count.value > 0


@cache
def cpu_has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 itself, by AVX-512 or AMX, by PyTorch's criteria."""
    if sys.platform == "linux" and platform.machine() == "x86_64":
        with suppress(OSError):
            for line in _CPU_INFO.read_text().splitlines():
                if line.startswith("flags"):
                    return not {"avx512_bf16", "amx_tile"}.isdisjoint(line.split())
    import torch

    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


# -- PyTorch's own ------------------------------------------------------------------------------


def choose_device(requested: str | None) -> torch.device:
    """The requested device, else CUDA if available, else the CPU.

    Raises ``UserError`` for a device that cannot be used on this machine.
    """
    import torch

    if requested is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(requested)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {requested}: not usable here ({reason})") from None
    return device


# -- speed -----------------------------------------------------------------------------------


def device_rate(device: str, dtype: str) -> float:
    """Operations per second of a plain matrix product on a device.

    Each process that has loaded PyTorch measures it once. The fastest measurement is kept in the cache folder, because
    other programs only slow it down; processes without PyTorch, like plans, read it. On a CPU without a measurement,
    if PyTorch is not loaded, numpy's float32 product is measured instead. In bfloat16, a CPU with
    bfloat16 arithmetic is several times faster than this, and one without is several times slower.
    """
    file = cache_dir() / "rates.json"
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    key = f"{platform.node()} {platform.machine()} {os.cpu_count()} {threads} {device} {dtype}"
    known = _cached_rates(file).get(key)
    if "torch" in sys.modules or (device != "cpu" and known is None):
        return _fastest(file, key, device, dtype)
    return numpy_rate() if known is None else known


@cache
def _fastest(file: Path, key: str, device: str, dtype: str) -> float:
    """The fastest rate of all processes so far and of this one."""
    rate, rates = torch_rate(device, dtype), _cached_rates(file)
    if rate <= rates.get(key, 0.0):
        return rates[key]
    # if it cannot be written, plans do not know it
    with suppress(OSError):
        write_whole(file, json.dumps({**rates, key: rate}, indent=1).encode())
    return rate


def numpy_rate() -> float:
    """Operations per second of numpy's matrix product in float32."""
    import numpy as np

    size = 1024
    a = np.ones((size, size), np.float32)
    return _rate(lambda: a @ a, size, 0.1)


@cache
def torch_rate(device: str, dtype: str) -> float:
    """Operations per second of PyTorch's matrix product, measured once in a process."""
    import torch

    kind = getattr(torch, dtype)
    size = 1024 if device == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))

    def multiply() -> None:
        torch.matmul(a, b)
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    return _rate(multiply, size, 0.2)


def _rate(multiply: Callable[[], object], size: int, seconds: float) -> float:
    multiply()
    took, start = list[float](), time.perf_counter()
    while len(took) < FEWEST or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        multiply()
        took.append(time.perf_counter() - before)
    return 2.0 * size**3 / min(took)


FEWEST = 5
"""Products, of which the fastest counts: on a busy machine, others may take ten times as long."""


def _cached_rates(file: Path) -> dict[str, float]:
    try:
        rates = json_file(file)
        return {str(key): float(rate) for key, rate in rates.items() if rate > 0}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
