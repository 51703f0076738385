"""What adaptation brought back: shares of added losses by hand, and who is compared with whom."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from icl_bench import read_findings
from icl_bench.analysis.adaptation import adaptation_losses
from icl_bench.cli.output.findings import print_findings
from icl_bench.results.perplexity_losses import losses_name, write_losses
from icl_bench.results.storage import storage_at

WINDOWS = 6


def stored(
    results: Path, model: str, attention: str, mean: float, training: dict[str, Any] | None = None,
    fingerprint: str | None = None, text: str = "a", windows: int = WINDOWS, seed: int = 0,
) -> None:  # fmt: skip
    """Losses of seven tokens a window about a mean: the windows differ, each model's by as much."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(0, 0.5, (windows, 1))
    found = mean + hard + np.linspace(-0.1, 0.1, 7)
    meta = {"model": model, "fingerprint": fingerprint or model, "dtype": "float32", "attention": attention,
            "sha256": text, "length": 8, "training": training,
            "by_length": {"4": {"prefill_flops": 1.0, "cache_bytes": 2.0},
                          "8": {"prefill_flops": 3.0, "cache_bytes": 4.0}}}  # fmt: skip
    storage = storage_at(results)
    storage.prepare()
    name = losses_name(model, f"{attention}-{text}".replace(":", "_"))
    write_losses(storage, name, list(found), meta)


def adapted(attention: str, tokens: int = 1000, base: str = "m") -> dict[str, Any]:
    return {"method": "adaptation", "base": base, "base_fingerprint": base, "attention": attention,
            "tokens": tokens, "seconds": 1.0, "flops": 1.0, "trainable_parameters": 1}  # fmt: skip


def four(results: Path) -> pd.DataFrame:
    stored(results, "m", "full", 3.0)
    stored(results, "m", "grouped:4,2", 3.9)
    stored(results, "m-full", "full", 2.8, adapted("full"))
    stored(results, "m-grouped", "grouped:4,2", 3.1, adapted("grouped:4,2"))
    return adaptation_losses(results)


def test_the_share_won_back_is_beside_full_attention_that_was_trained_too(tmp_path: Path):
    found = four(tmp_path)
    assert found["length"].tolist() == [4] * 4 + [8] * 4
    first = found[found["length"] == 8]
    assert list(zip(first["attention"], first["trained"], first["model"], strict=True)) == [
        ("full", "before", "m"), ("grouped:4,2", "before", "m"),
        ("full", "after", "m-full"), ("grouped:4,2", "after", "m-grouped"),
    ]  # fmt: skip
    assert first["windows"].tolist() == [WINDOWS] * 4
    np.testing.assert_allclose(first["added"].astype(float), [np.nan, 0.9, np.nan, 0.3], atol=1e-6)
    last = first.iloc[-1]
    # 0.9 was added, 0.3 is
    assert last["won_back"] == pytest.approx(2 / 3, abs=1e-6)
    assert last["against"] == "trained too"
    assert (last["won_back_low"], last["won_back_high"]) == pytest.approx((2 / 3, 2 / 3), abs=1e-6)
    np.testing.assert_allclose(first["perplexity"], np.exp(first["loss"]))
    differences = first["loss"].to_numpy() - first["loss"].iloc[0]
    np.testing.assert_allclose(differences, [0, 0.9, -0.2, 0.1], atol=1e-6)
    assert first["cache_bytes"].tolist() == [4.0] * 4


def test_without_a_full_one_it_is_beside_the_base_as_it_was(tmp_path: Path):
    stored(tmp_path, "m", "full", 3.0)
    stored(tmp_path, "m", "grouped:4,2", 3.9)
    stored(tmp_path, "m-grouped", "grouped:4,2", 3.1, adapted("grouped:4,2"))
    last = adaptation_losses(tmp_path).iloc[-1]
    assert last["won_back"] == pytest.approx(1 - 0.1 / 0.9, abs=1e-6)
    assert last["against"] == "as it was"


def test_limits_are_of_windows_drawn_again(tmp_path: Path):
    """Where windows are brought back unequally, the share is as uncertain."""
    for name, attention, mean, training in (
        ("m", "full", 3.0, None), ("m", "grouped:4,2", 3.9, None),
        ("m-grouped", "grouped:4,2", 3.3, adapted("grouped:4,2")),
    ):  # fmt: skip
        seed = 1 if training else 0
        stored(tmp_path, name, attention, mean, training, seed=seed, windows=40)
    last = adaptation_losses(tmp_path).iloc[-1]
    assert last["won_back_low"] < last["won_back"] < last["won_back_high"]
    assert last["won_back_high"] - last["won_back_low"] > 0.1


def test_only_windows_that_all_have_read_are_taken(tmp_path: Path):
    four(tmp_path)
    stored(tmp_path, "m", "full", 9.0, text="b")
    stored(tmp_path, "m", "grouped:4,2", 9.0, text="c", windows=3)
    assert adaptation_losses(tmp_path)["windows"].tolist() == [WINDOWS] * 8


def test_another_base_of_the_same_name_is_not_compared_with(tmp_path: Path):
    stored(tmp_path, "m", "full", 3.0, fingerprint="other")
    stored(tmp_path, "m-grouped", "grouped:4,2", 3.1, adapted("grouped:4,2"))
    found = adaptation_losses(tmp_path)
    assert set(found["model"]) == {"m-grouped"}
    assert found["won_back"].isna().all()


def test_of_several_full_ones_that_of_as_many_tokens_is_taken(tmp_path: Path):
    four(tmp_path)
    stored(tmp_path, "m-fuller", "full", 2.0, adapted("full", tokens=5000))
    found = adaptation_losses(tmp_path)
    assert "m-fuller" not in set(found["model"])


def test_nothing_adapted_is_nothing_to_tell(tmp_path: Path):
    stored(tmp_path, "m", "full", 3.0)
    stored(tmp_path, "m", "grouped:4,2", 3.9)
    assert adaptation_losses(tmp_path).empty
    stored(tmp_path, "v", "full", 3.0, {"method": "vectors", "tokens": 5})
    assert adaptation_losses(tmp_path).empty


def test_losses_while_training_are_told_from_the_results_alone(tmp_path: Path):
    looks = [{"step": 0, "validation": 3.5}, {"step": 10, "validation": 3.25}]
    stored(tmp_path, "m", "grouped:4,2", 3.9)
    training = adapted("grouped:4,2") | {"losses": looks}
    stored(tmp_path, "m-grouped", "grouped:4,2", 3.1, training)
    # read otherwise than it was adapted: told of once
    stored(tmp_path, "m-grouped", "full", 3.1, training)
    found = read_findings(tmp_path).adaptation_course
    assert found.to_dict("records") == [
        {"base": "m", "pattern": "grouped:4,2", "model": "m-grouped", "tokens": 1000.0, **look}
        for look in looks
    ]


def test_two_adapted_alike_are_told_apart(tmp_path: Path):
    four(tmp_path)
    stored(tmp_path, "m-more", "grouped:4,2", 3.0, adapted("grouped:4,2", tokens=9000))
    found = adaptation_losses(tmp_path)
    won = found[found["won_back"].notna() & (found["length"] == 8)].set_index("adapted")["won_back"]
    assert won.to_dict() == pytest.approx({"m-grouped": 2 / 3, "m-more": 1 - 0.2 / 0.9}, abs=1e-6)


def test_a_folder_of_losses_alone_can_be_reported_and_says_so_in_the_terminal(tmp_path: Path):
    four(tmp_path)
    said = io.StringIO()
    print_findings(read_findings(tmp_path), Console(file=said, width=100))
    told = "no predictions; losses of long texts: icl-bench report"
    assert " ".join(said.getvalue().split()) == told
