"""What adaptation brought back: shares of added losses by hand, and who is compared with whom."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats
from support.predictions import cell, frame
from support.stored import meta

from icl_bench.analysis.all_findings import find, read_findings
from icl_bench.analysis.findings.adaptation import COURSE, LOSSES, POINTS, adaptation_losses
from icl_bench.cli.output.findings import print_findings
from icl_bench.results.perplexity_losses import losses_name, write_losses
from icl_bench.results.reading import Stored
from icl_bench.results.storage import storage_at
from icl_bench.results.stored_meta import LossesMeta, TrainingMeta
from icl_bench.results.trained_methods import BASELINES

WINDOWS = 6


def stored(
    results: Path,
    model: str,
    attention: str,
    mean: float,
    training: dict[str, Any] | None = None,
    fingerprint: str | None = None,
    text: str = "a",
    windows: int = WINDOWS,
    seed: int = 0,
    length: int = 8,
    first: int = 4,
    file: str = "",
) -> None:
    """Losses of seven tokens a window about a mean: the windows differ, each model's by as much."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(0, 0.5, (windows, 1))
    found = mean + hard + np.linspace(-0.1, 0.1, length - 1)
    costs = {
        str(first): {"prefill_flops": 1.0, "cache_bytes": 2.0},
        str(length): {"prefill_flops": 3.0, "cache_bytes": 4.0},
    }
    meta = LossesMeta(
        model=model,
        fingerprint=fingerprint or model,
        dtype="float32",
        attention=attention,
        sha256=text,
        length=length,
        training=TrainingMeta(**training) if training else None,
        by_length=costs,
    )
    storage = storage_at(results)
    storage.prepare()
    name = losses_name(model, f"{attention}-{text}{file}".replace(":", "_"))
    write_losses(storage, name, list(found), meta)


def adapted(attention: str, tokens: int = 1000, base: str = "m") -> dict[str, Any]:
    return {
        "method": "adaptation",
        "base": base,
        "base_fingerprint": base,
        "attention": attention,
        "tokens": tokens,
        "seconds": 1.0,
        "flops": 1.0,
        "trainable_parameters": 1,
    }


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
        ("full", "before", "m"),
        ("grouped:4,2", "before", "m"),
        ("full", "after", "m-full"),
        ("grouped:4,2", "after", "m-grouped"),
    ]
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


def test_limits_widen_where_windows_differ(tmp_path: Path):
    """Where windows are brought back unequally, the share is as uncertain."""
    for name, attention, mean, training in (
        ("m", "full", 3.0, None),
        ("m", "grouped:4,2", 3.9, None),
        ("m-grouped", "grouped:4,2", 3.3, adapted("grouped:4,2")),
    ):
        seed = 1 if training else 0
        stored(tmp_path, name, attention, mean, training, seed=seed, windows=40)
    last = adaptation_losses(tmp_path).iloc[-1]
    assert last["won_back_low"] < last["won_back"] < last["won_back_high"]
    assert last["won_back_high"] - last["won_back_low"] > 0.1


@pytest.mark.parametrize("counts", [(3, WINDOWS), (WINDOWS, 3)])
def test_of_two_files_of_a_text_the_one_with_more_windows_counts(tmp_path: Path, counts: tuple[int, int]):
    four(tmp_path)
    for (place, count), first in zip(enumerate(counts), (4, 6), strict=True):
        stored(tmp_path, "m", "full", 3.0, windows=count, first=first, file=str(place))
    found = adaptation_losses(tmp_path)
    assert found["windows"].tolist() == [WINDOWS] * 8
    assert set(found["length"]) == {4, 8}


def test_windows_of_other_lengths_have_lengths_of_their_own(tmp_path: Path):
    expected = four(tmp_path)
    for name, attention, training in (
        ("m", "full", None),
        ("m", "grouped:4,2", None),
        ("m-full", "full", adapted("full")),
        ("m-grouped", "grouped:4,2", adapted("grouped:4,2")),
    ):
        stored(tmp_path, name, attention, 3.0, training, length=16, first=12, file="-16")
    found = adaptation_losses(tmp_path)
    pd.testing.assert_frame_equal(found[found["window_tokens"] == 8].reset_index(drop=True), expected)
    assert set(found[found["window_tokens"] == 16]["length"]) == {12, 16}


def test_only_windows_that_all_have_read_are_taken(tmp_path: Path):
    four(tmp_path)
    stored(tmp_path, "m", "full", 9.0, text="b")
    stored(tmp_path, "m", "grouped:4,2", 9.0, text="c", windows=3)
    assert adaptation_losses(tmp_path)["windows"].tolist() == [WINDOWS] * 8


def test_a_training_in_full_that_read_other_texts_alone_takes_no_row_away(tmp_path: Path):
    found = four(tmp_path)
    stored(tmp_path, "a-full", "full", 2.8, adapted("full", tokens=1000), text="b")
    pd.testing.assert_frame_equal(adaptation_losses(tmp_path), found)


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
    looks = [
        {"step": 0, "validation": 3.5, "tokens": 0},
        {"step": 5, "validation": 3.3},
        {"step": 10, "validation": 3.25, "tokens": 250},
    ]
    stored(tmp_path, "m", "grouped:4,2", 3.9)
    training = adapted("grouped:4,2") | {"losses": looks}
    stored(tmp_path, "m-grouped", "grouped:4,2", 3.1, training)
    # read otherwise than it was adapted: told of once
    stored(tmp_path, "m-grouped", "full", 3.1, training)
    found = read_findings(tmp_path).adaptation_course
    assert found.drop(columns="training_flops").to_dict("records") == [
        {"base": "m", "pattern": "grouped:4,2", "model": "m-grouped", **look, "tokens": 1000.0} for look in looks
    ]
    # of all operations (1.0) the share of the tokens up to there; trainings of before did not count them
    assert found["training_flops"].fillna(-1).tolist() == [0, -1, 0.25]


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


def in_cells(*models: tuple[str, str, dict[str, Any] | None], k: int = 5) -> Stored:
    """A cell of each model at two ks, the later one's answers the better."""
    cells, rows = {}, []
    for i, (model, attention, training) in enumerate(models):
        method = (training or {}).get("method")
        select = method if method in BASELINES else "random"
        for shots, said in ((k, "ab" * i + "aa" * (4 - i)), (2 * k, "ab" * 4)):
            name = f"{model} {select} {attention} {shots}"
            cells[name] = meta(
                select=select,
                model=model,
                attention=attention,
                facts={"fingerprint": model},
                training=training,
                compute={"query_flops": 10.0 * shots, "cache_bytes": 1.0 * i},
            )
            axes = {"model": model, "select": select, "attention": attention, "k": shots, "cell": name}
            rows.append(cell(said, "ab" * 4, **axes))
    return Stored(frame(*rows), cells, {}, ())


FOUR = [
    ("m", "full", None),
    ("m", "grouped:4,2", None),
    ("a-full", "full", adapted("full")),
    ("z-grouped", "grouped:4,2", adapted("grouped:4,2")),
]


def test_points_are_those_of_the_curves_before_and_after():
    found = find(in_cells(*FOUR))
    table = found.adaptation_points
    assert list(table.columns) == POINTS
    names = ["k", "trained", "attention", "model", "score", "query_flops", "cache_bytes"]
    assert table[names].to_numpy().tolist() == [
        [5, "before", "full", "m", 4 / 8, 50, 0],
        [5, "before", "grouped:4,2", "m", 5 / 8, 50, 1],
        [5, "after", "full", "a-full", 6 / 8, 50, 2],
        [5, "after", "grouped:4,2", "z-grouped", 7 / 8, 50, 3],
        [10, "before", "full", "m", 1, 100, 0],
        [10, "before", "grouped:4,2", "m", 1, 100, 1],
        [10, "after", "full", "a-full", 1, 100, 2],
        [10, "after", "grouped:4,2", "z-grouped", 1, 100, 3],
    ]
    assert set(table["base"]) == {"m"}
    assert set(table["pattern"]) == {"grouped:4,2"}
    assert set(table["adapted"]) == {"z-grouped"}
    assert table.index.tolist() == list(range(8))


def test_without_an_adapted_model_there_is_no_point():
    for models in (FOUR[:2], FOUR[:3]):
        table = find(in_cells(*models)).adaptation_points
        assert table.empty
        assert list(table.columns) == POINTS


def test_a_model_read_otherwise_than_it_was_adapted_is_compared_with_nothing():
    other = ("z-grouped", "grouped:8,2", adapted("grouped:4,2"))
    in_full = ("z-grouped", "full", adapted("grouped:4,2"))
    assert find(in_cells(*FOUR[:2], other, in_full)).adaptation_points.empty
    whole = find(in_cells(*FOUR[:2], other, FOUR[3])).adaptation_points
    assert set(whole["adapted"]) == {"z-grouped"}
    assert set(whole["attention"]) == {"full", "grouped:4,2"}


def test_of_full_ones_as_like_the_first_by_name_is_taken():
    more = [("b-full", "full", adapted("full", tokens=tokens)) for tokens in (800, 1200, 1000)]
    for one in more:
        table = find(in_cells(*FOUR, one)).adaptation_points
        assert "a-full" in set(table["model"])
        assert "b-full" not in set(table["model"])
    near = [
        *FOUR[:2],
        ("a-full", "full", adapted("full", tokens=700)),
        FOUR[3],
        ("b-full", "full", adapted("full", tokens=1299)),
    ]
    assert "b-full" in set(find(in_cells(*near)).adaptation_points["model"])


@pytest.mark.parametrize("missing", ["base", "attention", "tokens", "method"])
def test_a_training_that_does_not_say_what_it_was_is_no_adaptation(missing: str):
    training = adapted("grouped:4,2")
    del training[missing]
    models = [*FOUR[:2], ("z-grouped", "grouped:4,2", training)]
    assert find(in_cells(*models)).adaptation_points.empty
    assert find(in_cells(*models)).adaptation_course.empty


def test_ranges_begin_behind_the_first_token_and_end_at_the_length(tmp_path: Path):
    found = four(tmp_path)
    assert list(found.columns) == LOSSES
    assert found["after"].tolist() == [1] * 4 + [4] * 4
    first = found[found["trained"] == "before"].iloc[0]
    hard = np.random.default_rng(0).normal(0, 0.5, (WINDOWS, 1)).mean()
    place = np.linspace(-0.1, 0.1, 7)
    assert first["loss"] == pytest.approx(3.0 + hard + place[:3].mean(), abs=1e-6)
    last = found[found["length"] == 8].iloc[0]
    assert last["loss"] == pytest.approx(3.0 + hard + place[3:].mean(), abs=1e-6)
    assert found["prefill_flops"].tolist() == [1.0] * 4 + [3.0] * 4
    assert found["tokens"].tolist() == [0, 0, 1000, 1000] * 2
    assert set(found["base"]) == {"m"}
    assert set(found["pattern"]) == {"grouped:4,2"}
    assert set(found["adapted"]) == {"m-grouped"}
    assert found["against"].isna().tolist() == [True, True, True, False] * 2


def test_losses_can_be_of_one_model_or_of_what_was_adapted_from_it(tmp_path: Path):
    four(tmp_path)
    stored(tmp_path, "n", "full", 3.0)
    stored(tmp_path, "n-grouped", "grouped:4,2", 3.1, adapted("grouped:4,2", base="n"))
    assert set(adaptation_losses(tmp_path, "m")["base"]) == {"m"}
    assert len(adaptation_losses(tmp_path, "m")) == 8
    assert set(adaptation_losses(tmp_path, "m-full")["model"]) == {"m-full"}
    assert set(adaptation_losses(tmp_path, "n-grouped")["model"]) == {"n-grouped"}
    assert len(adaptation_losses(tmp_path)) == 12
    assert adaptation_losses(tmp_path, "x").empty


def test_losses_and_points_name_what_makes_them_incomparable(tmp_path: Path):
    assert four(tmp_path)[["dtype", "window_tokens"]].drop_duplicates().to_numpy().tolist() == [["float32", 8]]
    read = in_cells(*FOUR)
    variants = find(read).adaptation_points["variant"]
    assert set(variants) == set(read.predictions["variant"])


def test_limits_are_students_over_the_windows_of_one_text(tmp_path: Path):
    shares = _won_back(tmp_path, {"a": 4})
    assert shares["interval_over"] == "windows of one text"
    hard = [np.random.default_rng(seed).normal(0, 0.5, 4) for seed in (0, 1)]
    won = 1 - (0.3 + hard[1] - hard[0]) / 0.9  # the same was added to all windows
    low, high = stats.t.interval(0.95, 3, won.mean(), stats.sem(won))
    assert (shares["won_back_low"], shares["won_back_high"]) == pytest.approx((low, high), abs=1e-6)


def test_limits_are_over_texts_where_there_are_several(tmp_path: Path):
    shares = _won_back(tmp_path, {"a": 4, "b": 4, "c": 4})
    assert (shares["interval_over"], shares["windows"]) == ("texts", 12)
    # the windows of each text are the same, so that they are no sample of their own
    of_one = _won_back(tmp_path / "one", {"a": 4})
    assert shares["won_back"] == pytest.approx(of_one["won_back"])
    assert (shares["won_back_low"], shares["won_back_high"]) == pytest.approx((of_one["won_back"],) * 2, abs=1e-5)


def _won_back(results: Path, windows: dict[str, int]) -> dict[str, Any]:
    """What was won back of texts with so many windows."""
    for text, count in windows.items():
        stored(results, "m", "full", 3.0, text=text, windows=count)
        stored(results, "m", "grouped:4,2", 3.9, text=text, windows=count)
        stored(results, "m-grouped", "grouped:4,2", 3.3, adapted("grouped:4,2"), seed=1, text=text, windows=count)
    return adaptation_losses(results).iloc[-1].to_dict()


def test_one_window_has_no_limits_and_where_nothing_was_added_nothing_is_won(tmp_path: Path):
    one, none = tmp_path / "one", tmp_path / "none"
    for folder, added, windows in ((one, 0.9, 1), (none, 0.0, WINDOWS)):
        stored(folder, "m", "full", 3.0, windows=windows)
        stored(folder, "m", "grouped:4,2", 3.0 + added, windows=windows)
        stored(folder, "m-grouped", "grouped:4,2", 3.1, adapted("grouped:4,2"), windows=windows)
    last = adaptation_losses(one).iloc[-1]
    assert last["won_back"] == pytest.approx(1 - 0.1 / 0.9, abs=1e-6)
    assert np.isnan(last["won_back_low"])
    last = adaptation_losses(none).iloc[-1]
    assert last["added"] == pytest.approx(0.1, abs=1e-6)
    assert np.isnan(last["won_back"])
    assert np.isnan(last["won_back_low"])


def test_without_a_common_text_there_is_no_row(tmp_path: Path):
    stored(tmp_path, "m", "full", 3.0, text="a")
    stored(tmp_path, "m-grouped", "grouped:4,2", 3.1, adapted("grouped:4,2"), text="b")
    assert adaptation_losses(tmp_path).empty


def test_courses_are_told_of_cells_and_of_losses_by_base_and_name(tmp_path: Path):
    looks = [{"step": 0, "validation": 3.5}]
    full = adapted("full") | {"losses": looks}
    stored(tmp_path, "b-full", "full", 3.1, full)
    pattern = adapted("grouped:4,2") | {"losses": looks}
    models = [
        ("m", "full", None),
        ("a-full", "full", full),
        ("z", "grouped:4,2", pattern),
        ("c", "full", adapted("full", base="k") | {"losses": looks}),
    ]
    read = in_cells(*models)
    for place, model, names in [
        (tmp_path, None, ["c", "a-full", "b-full", "z"]),
        (None, None, ["c", "a-full", "z"]),
        (tmp_path, "m", ["a-full", "b-full", "z"]),
        (tmp_path, "z", ["z"]),
        (None, "x", []),
    ]:
        table = find(read, results=place, model=model).adaptation_course
        assert table["model"].tolist() == names
        assert list(table.columns) == COURSE
    table = find(read).adaptation_course
    assert table["pattern"].tolist() == ["full", "full", "grouped:4,2"]
    assert table["base"].tolist() == ["k", "m", "m"]


def test_a_course_is_told_of_a_model_that_classifiers_were_trained_on_too():
    """Their cells have the training of the classifier, and may be read first."""
    training = adapted("grouped:4,2") | {"losses": [{"step": 0, "validation": 3.5}]}
    of_model, of_probe = (("z", "grouped:4,2", made) for made in (training, {"method": "probe", "seconds": 1.0}))
    for models in ((of_model, of_probe), (of_probe, of_model)):
        found = find(in_cells(*models)).adaptation_course
        assert found[["model", "step", "validation"]].to_numpy().tolist() == [["z", 0, 3.5]]


def test_without_a_folder_there_are_no_losses():
    table = find(in_cells(*FOUR)).adaptation_losses
    assert table.empty
    assert list(table.columns) == LOSSES


def test_a_base_is_known_by_its_fingerprint_and_told_by_its_name(tmp_path: Path):
    stored(tmp_path, "m", "full", 3.0, fingerprint="f")
    training = adapted("grouped:4,2") | {"base_fingerprint": "f"}
    stored(tmp_path, "m-grouped", "grouped:4,2", 3.1, training)
    found = adaptation_losses(tmp_path)
    assert set(found["base"]) == {"m"}
    assert found["model"].tolist() == ["m", "m-grouped"] * 2


def test_the_findings_losses_are_those_of_its_folder_and_model(tmp_path: Path):
    expected = four(tmp_path)
    read = in_cells(*FOUR)
    pd.testing.assert_frame_equal(find(read, results=tmp_path).adaptation_losses, expected)
    of_one = find(read, results=tmp_path, model="m-full").adaptation_losses
    assert set(of_one["model"]) == {"m-full"}
