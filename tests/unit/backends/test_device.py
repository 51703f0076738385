"""Devices and dtypes by name are those that PyTorch chooses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from icl_bench.backends import device
from icl_bench.backends.device import (
    choose_device,
    cpu_has_bfloat16,
    device_name,
    device_rate,
    dtype_name,
    may_have_cuda,
    numpy_rate,
    torch_rate,
)
from icl_bench.errors import UserError


def test_a_cpu_has_bfloat16_where_pytorch_says_so():
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    assert cpu_has_bfloat16() == native


def test_there_may_be_cuda_wherever_pytorch_finds_it():
    assert may_have_cuda() or not torch.cuda.is_available()


@pytest.mark.parametrize("asked", [None, "cpu", "cpu:0"])
@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16", "float16"])
def test_names_are_those_of_pytorchs_own(asked: str | None, dtype: str):
    own = choose_device(asked)
    assert device_name(asked) == str(own)
    assert isinstance(getattr(torch, dtype_name(dtype, str(own))), torch.dtype)


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_a_device_that_is_no_cpu_has_bfloat16(dtype: str):
    wanted = "bfloat16" if dtype == "auto" else dtype
    assert dtype_name(dtype, "cuda:1") == wanted


@pytest.mark.parametrize("asked", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_refused_in_one_line(asked: str):
    with pytest.raises(UserError, match=f"--device {asked}: not usable here") as refused:
        device_name(asked)
    assert "\n" not in str(refused.value)


def test_a_rate_is_measured_by_pytorch_once_and_then_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(device, "torch_rate", lambda *_: 7e9)
    assert device_rate("cpu", "float32") == 7e9
    assert list(json.loads((tmp_path / "rates.json").read_text()).values()) == [7e9]
    monkeypatch.setattr(device, "torch_rate", lambda *_: 8e9)
    assert device_rate("cpu", "float32") == 7e9
    assert device_rate("cpu", "bfloat16") == 8e9


def test_of_several_processes_the_fastest_measurement_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path))
    for measured, kept in ((7e9, 7e9), (8e9, 8e9), (1e9, 8e9)):  # a busy machine is slower, for a while
        device._fastest.cache_clear()
        monkeypatch.setattr(device, "torch_rate", lambda *_, rate=measured: rate)
        assert device_rate("cpu", "float32") == kept
    monkeypatch.delitem(sys.modules, "torch")
    assert device_rate("cpu", "float32") == 8e9


def test_a_slow_product_among_fast_ones_does_not_count(monkeypatch: pytest.MonkeyPatch):
    now, took = [0.0], iter([1.0, 0.5, 0.01, 0.5, 0.3, 0.4])

    def multiply() -> None:
        now[0] += next(took)

    monkeypatch.setattr("icl_bench.backends.device.time.perf_counter", lambda: now[0])
    assert device._rate(multiply, 10, 0.2) == pytest.approx(2000 / 0.01)


def test_without_pytorch_an_unknown_rate_is_numpys_and_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(device, "numpy_rate", lambda: 5e9)
    assert device_rate("cpu", "bfloat16") == 5e9
    assert not (tmp_path / "rates.json").exists()


@pytest.mark.parametrize("content", ["", "[]", '{"a": "b"}', '{"a": -1}'])
def test_a_damaged_file_of_rates_is_written_anew(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(device, "torch_rate", lambda *_: 7e9)
    (tmp_path / "rates.json").write_text(content)
    assert device_rate("cpu", "float32") == 7e9
    assert list(json.loads((tmp_path / "rates.json").read_text()).values()) == [7e9]


def test_both_libraries_multiply_at_a_rate_of_one_kind():
    assert 1 / 20 < numpy_rate() / torch_rate("cpu", "float32") < 20
