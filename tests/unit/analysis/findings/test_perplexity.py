"""Perplexity by length, worked out by hand and by SciPy from losses of a few windows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from support.predictions import cell

from icl_bench.analysis.context import Context
from icl_bench.analysis.findings.perplexity import PERPLEXITY, PERPLEXITY_COLUMNS, perplexities
from icl_bench.analysis.statistics.paired import holm, holm_steps
from icl_bench.report.naming import Naming
from icl_bench.report.sections.perplexity import perplexity
from icl_bench.results.perplexity_losses import losses_name, write_losses
from icl_bench.results.reading import Stored
from icl_bench.results.storage import storage_at
from icl_bench.results.stored_meta import LossesMeta

LENGTHS = (3, 5)


def stored(results: Path, attention: str, losses: Any, text: str = "a", **more: Any) -> None:
    """Losses of four tokens a window: two behind the first up to the third, two up to the fifth."""
    meta = {
        "model": "m",
        "fingerprint": "f",
        "dtype": "float32",
        "attention": attention,
        "sha256": text,
        "length": 5,
        "by_length": {str(n): {"prefill_flops": 1.0 * n, "cache_bytes": 2.0 * n} for n in LENGTHS},
        **more,
    }
    name = losses_name(str(meta["model"]), "-".join(map(str, meta.values())).replace(":", "_")[:90])
    write_losses(storage_at(results), name, list(np.array(losses, float)), LossesMeta(**meta))


def limits(means: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    low, high = stats.t.interval(level, len(means) - 1, np.mean(means), stats.sem(means))
    return float(np.exp(low)), float(np.exp(high))


FULL = [[1, 2, 3, 4], [2, 2, 1, 1], [0, 1, 5, 5]]
OTHER = [[1, 3, 4, 6], [2, 3, 1, 2], [1, 3, 6, 8]]


def test_windows_of_other_lengths_are_lines_of_their_own(tmp_path: Path):
    stored(tmp_path, "full", FULL)
    stored(tmp_path, "full", np.array(FULL)[:, :2], length=3, by_length={"3": {}})
    table = perplexities(tmp_path)
    assert sorted(zip(table["window_tokens"], table["length"], strict=True)) == [(3, 3), (5, 3), (5, 5)]
    drawn = perplexity(PERPLEXITY, SimpleNamespace(perplexity=table), Naming({}, attentions=False))  # type: ignore[arg-type]
    assert drawn is not None
    lines = {(row["series"], row["length"]) for row in drawn.panels[0].rows}
    assert {series for series, _ in lines} == {
        "full attention, windows of 3 tokens",
        "full attention, windows of 5 tokens",
    }


@pytest.mark.parametrize("names", [("1", "2"), ("2", "1")])
def test_of_two_files_of_a_text_the_one_with_more_windows_counts(tmp_path: Path, names: tuple[str, str]):
    for (losses, length), fingerprint in zip([(FULL[:2], 3), (FULL, 4)], names, strict=True):
        costs = {str(n): {"prefill_flops": 1.0 * n, "cache_bytes": 2.0 * n} for n in (length, 5)}
        stored(tmp_path / fingerprint, "full", losses, by_length=costs)
        (file,) = (tmp_path / fingerprint).rglob("*.parquet")
        name = losses_name("m", f"full-{fingerprint}")
        storage_at(tmp_path / "both").put(name, file.read_bytes())
    table = perplexities(tmp_path / "both")
    assert table["windows"].tolist() == [3, 3, 3]
    assert table["length"].tolist() == table["prefill_flops"].tolist() == [3, 4, 5]


def test_each_range_has_the_tokens_between_two_lengths(tmp_path: Path):
    stored(tmp_path, "full", FULL)
    table = perplexities(tmp_path)
    assert list(table.columns) == PERPLEXITY_COLUMNS
    first, last = table.to_dict("records")
    means = {3: [1.5, 2, 0.5], 5: [3.5, 1, 5]}
    for row, after, tokens in ((first, 1, 6), (last, 3, 6)):
        assert (row["model"], row["attention"], row["dtype"]) == ("m", "full", "float32")
        assert (row["after"], row["windows"], row["tokens"]) == (after, 3, tokens)
        mine = means[row["length"]]
        assert row["perplexity"] == pytest.approx(np.exp(np.mean(mine)), rel=1e-12)
        assert (row["ci_low"], row["ci_high"]) == pytest.approx(limits(mine), rel=1e-6)
        assert (row["prefill_flops"], row["cache_bytes"]) == (row["length"], 2 * row["length"])
    assert first["whole"] == pytest.approx(np.exp(8 / 6), rel=1e-12)
    assert last["whole"] == pytest.approx(np.exp(27 / 12), rel=1e-12)
    assert table[["ratio", "ratio_low", "ratio_high", "p", "p_holm"]].isna().all(axis=None)


def test_operations_are_a_share_of_full_attentions_at_the_same_length(tmp_path: Path):
    stored(tmp_path, "block:2", OTHER)
    table = perplexities(tmp_path)
    assert table["operations_of_full"].isna().all()
    stored(tmp_path, "full", FULL)
    half = {str(n): {"prefill_flops": n * n / 10, "cache_bytes": 1.0} for n in (3, 5)}
    stored(tmp_path, "approx:2", OTHER, by_length=half)
    found = perplexities(tmp_path).set_index(["attention", "length"])["operations_of_full"].to_dict()
    assert found == pytest.approx(
        {
            ("full", 3): 1,
            ("full", 5): 1,
            ("block:2", 3): 1,
            ("block:2", 5): 1,
            ("approx:2", 3): 0.3,
            ("approx:2", 5): 0.5,
        }
    )


def test_lengths_up_to_which_a_window_is_full_attention_are_not_tested_and_do_not_count(tmp_path: Path):
    """The last token of the first range is predicted from two, which a window of two has both."""
    stored(tmp_path, "full", FULL)
    stored(tmp_path, "grouped:2,2", np.where(np.arange(4) < 2, FULL, OTHER))
    rows = perplexities(tmp_path).query("attention != 'full'").set_index("length")
    assert rows["p"].isna().to_dict() == {3: True, 5: False}
    assert rows["p_holm"][5] == rows["p"][5]
    assert rows.loc[3, ["ratio", "ratio_low", "ratio_high"]].tolist() == [1, 1, 1]


def test_the_ratio_is_paired_by_window_and_p_is_of_all_ranges_and_patterns(tmp_path: Path):
    stored(tmp_path, "block:2", OTHER)
    stored(tmp_path, "full", FULL)
    stored(tmp_path, "approx:2", np.add(OTHER, [[0.5], [0.25], [0.0]]))
    table = perplexities(tmp_path)
    assert table["attention"].tolist() == ["full"] * 2 + ["approx:2"] * 2 + ["block:2"] * 2
    p = []
    for row, error in zip(table.to_dict("records")[2:], holm_steps(table["p"])[2:], strict=True):
        other = np.array(OTHER) + (np.array([[0.5], [0.25], [0.0]]) if row["attention"] == "approx:2" else 0)
        part = slice(0, 2) if row["length"] == 3 else slice(2, 4)
        mine, base = other[:, part].mean(1), np.array(FULL)[:, part].mean(1)
        assert row["ratio"] == pytest.approx(np.exp((mine - base).mean()), rel=1e-6)
        assert (row["ratio_low"], row["ratio_high"]) == pytest.approx(limits(mine - base, 1 - error), rel=1e-6)
        p.append(stats.ttest_rel(mine, base).pvalue)
    assert table["p"].tolist()[2:] == pytest.approx(p, rel=1e-6)
    assert table["p_holm"].tolist()[2:] == pytest.approx(holm(p).tolist(), rel=1e-6)


def test_only_windows_that_every_attention_has_read_are_taken(tmp_path: Path):
    stored(tmp_path, "full", [*FULL, [9, 9, 9, 9]])
    stored(tmp_path, "block:2", OTHER)
    stored(tmp_path, "full", [[7, 7, 7, 7]], text="b")
    stored(tmp_path, "full", [[1, 1, 1, 1]], text="c")
    stored(tmp_path, "block:2", [[2, 2, 2, 2]], text="c")
    table = perplexities(tmp_path)
    assert table["windows"].tolist() == [4] * 4
    assert table["perplexity"].tolist() == pytest.approx(np.exp([5 / 4, 10.5 / 4, 8.5 / 4, 15.5 / 4]).tolist())
    assert table["ratio"].tolist()[2:] == pytest.approx(np.exp([3.5 / 4, 5 / 4]).tolist())


def test_a_pattern_without_a_common_text_takes_no_row_from_the_others(tmp_path: Path):
    stored(tmp_path, "full", FULL)
    stored(tmp_path, "block:2", OTHER)
    alone = perplexities(tmp_path)
    stored(tmp_path, "approx:2", OTHER, text="b")
    table = perplexities(tmp_path)
    others = table[table["attention"] != "approx:2"].reset_index(drop=True)
    pd.testing.assert_frame_equal(others, alone)
    apart = table[table["attention"] == "approx:2"]
    assert len(apart) == len(LENGTHS)
    assert apart[["ratio", "p_holm"]].isna().all(axis=None)


def test_a_pattern_that_read_a_text_of_full_attention_alone_is_beside_it(tmp_path: Path):
    stored(tmp_path, "full", FULL)
    stored(tmp_path, "full", OTHER, text="b")
    stored(tmp_path, "block:2", OTHER)
    stored(tmp_path, "approx:2", FULL, text="b")
    table = perplexities(tmp_path)
    assert table["attention"].value_counts().to_dict() == {"full": 2, "block:2": 2, "approx:2": 2}
    assert table.loc[table["attention"] != "full", "ratio"].notna().all()


def test_models_of_one_name_and_different_files_are_told_apart(tmp_path: Path):
    for fingerprint in ("files-sha256:aaaa1111", "files-sha256:bbbb2222"):
        stored(tmp_path, "full", FULL, model="final", fingerprint=fingerprint)
    assert set(perplexities(tmp_path)["model"]) == {"final@aaaa1111", "final@bbbb2222"}
    assert set(perplexities(tmp_path, "final@bbbb2222")["model"]) == {"final@bbbb2222"}
    assert len(perplexities(tmp_path, "final")) == 2 * len(LENGTHS)


def test_without_full_attention_there_is_no_ratio(tmp_path: Path):
    stored(tmp_path, "block:2", FULL)
    table = perplexities(tmp_path)
    assert table["perplexity"].tolist() == pytest.approx(np.exp([4 / 3, 19 / 6]).tolist())
    names = ["ratio", "ratio_low", "ratio_high", "p", "p_holm"]
    assert table[names].isna().all(axis=None)


def test_equal_losses_have_a_ratio_of_one_and_are_no_difference(tmp_path: Path):
    stored(tmp_path, "full", FULL)
    stored(tmp_path, "block:2", FULL)
    stored(tmp_path, "grouped:2,1", np.array(FULL) + 1)
    table = perplexities(tmp_path).set_index("attention")
    names = ["ratio", "ratio_low", "ratio_high", "p"]
    assert table.loc["block:2", names].to_numpy().tolist() == [[1, 1, 1, 1]] * 2
    np.testing.assert_allclose(table.loc["grouped:2,1", names].to_numpy(float), [[np.e, np.e, np.e, 0]] * 2)


@pytest.mark.filterwarnings("error")
def test_one_window_has_no_limits_and_two_have(tmp_path: Path):
    names = ["ci_low", "ci_high"]
    for attention, losses in (("full", FULL), ("block:2", OTHER)):
        stored(tmp_path / "one", attention, losses[:1])
        stored(tmp_path / "two", attention, losses[:2])
    one, two = perplexities(tmp_path / "one"), perplexities(tmp_path / "two")
    assert one[[*names, "ratio_low", "ratio_high", "p", "p_holm"]].isna().all(axis=None)
    assert one["ratio"].tolist()[2:] == pytest.approx(np.exp([0.5, 1.5]).tolist())
    assert (two["ci_low"][0], two["ci_high"][0]) == pytest.approx(limits([1.5, 2]), rel=1e-6)


def test_models_types_and_lengths_stand_apart(tmp_path: Path):
    stored(tmp_path, "full", FULL)
    for name, value in {"model": "n", "fingerprint": "g", "dtype": "bfloat16"}.items():
        stored(tmp_path, "block:2", OTHER, **{name: value})
    longer = {str(n): {"prefill_flops": 1.0 * n, "cache_bytes": 2.0 * n} for n in (3, 4)}
    stored(tmp_path, "block:2", np.array(OTHER)[:, :3], length=4, by_length=longer)
    table = perplexities(tmp_path)
    assert len(table) == 10
    assert table["ratio"].isna().all()
    assert set(perplexities(tmp_path, "n")["model"]) == {"n"}
    assert len(perplexities(tmp_path, "n")) == 2
    assert len(perplexities(tmp_path, "m")) == 8


def test_a_finding_is_of_its_folder_and_model(tmp_path: Path):
    stored(tmp_path, "full", FULL)
    stored(tmp_path, "full", FULL, model="n")
    nothing = Stored(cell("aabb").iloc[:0], {}, {}, ())
    for context, models in [
        (Context(nothing, results=tmp_path), ["m", "m", "n", "n"]),
        (Context(nothing, results=tmp_path, model="n"), ["n", "n"]),
        (Context(nothing), []),
    ]:
        table: pd.DataFrame = PERPLEXITY.make(context)
        assert table["model"].tolist() == models
        assert list(table.columns) == PERPLEXITY_COLUMNS


def test_a_range_that_only_another_pattern_has_counted_has_no_cost(tmp_path: Path):
    stored(tmp_path, "full", FULL)
    stored(tmp_path, "block:2", OTHER, by_length={"5": {"prefill_flops": 9.0, "cache_bytes": 8.0}})
    table = perplexities(tmp_path)
    assert table["length"].tolist() == [3, 5, 3, 5]
    assert table["prefill_flops"].fillna(-1).tolist() == [3, 5, -1, 9]
