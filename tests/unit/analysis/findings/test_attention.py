"""Ways to read the demonstrations beside full attention: differences, costs, and their names."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes import ENGINE, FakeBackend, plan, planned, runner, tokenized_task
from support.predictions import answers, cell, frame, scored
from support.stored import meta

from icl_bench.analysis.all_findings import Findings, find
from icl_bench.analysis.cell_cost import CellCost
from icl_bench.analysis.curves import curves
from icl_bench.analysis.findings.attention import ATTENTION_PATTERNS, attention_patterns, differences
from icl_bench.analysis.findings.cost import break_even, cost
from icl_bench.analysis.statistics.paired import ALPHA, compare, holm
from icl_bench.backends.interface import Answer
from icl_bench.cli import main
from icl_bench.models.architecture import Architecture
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.registry import FINDINGS
from icl_bench.report.build import Report, make_report, tables
from icl_bench.report.headlines import headlines
from icl_bench.report.naming import Naming
from icl_bench.report.sections.curves import order
from icl_bench.report.sections.index import DRAWERS, sections
from icl_bench.results.facts import Facts
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import Stored, read_some
from icl_bench.results.store import Store
from icl_bench.sweep.compute_cost import ComputeCost
from icl_bench.sweep.runner import Runner

SHAPE = Architecture(parameters=50, heads_width=2, windows=(None, 4), key_width=2)
WORK = asdict(ComputeCost(1000.0, 10.0, 1010.0, 64.0))
BLOCK, BARE = "block:1,sink=1,local=2", "block:1,sink=0,local=0"
PATTERNS = (
    "full",
    "block:2,sink=1,local=0",
    "block:4,sink=1,local=0",
    "block:1,sink=0,local=0",
    "grouped:2,3",
    "approx:4,2",
)


def read(rows: pd.DataFrame, costs: dict[str, CellCost] | None = None) -> pd.DataFrame:
    return attention_patterns(rows, curves(rows), cost(rows, costs or {}))


# -- differences --------------------------------------------------------------------------------


def test_a_known_difference_is_found_and_its_absence_is_not_claimed():
    """One pattern answers as full attention does, the other 20 points fewer rows right."""
    rng = np.random.default_rng(0)
    full = answers(rng, (1, 4, 250), 0.6)[0]
    worse = full * (rng.random(full.shape) < 2 / 3)
    again = np.where(rng.random(full.shape) < 0.02, 1 - full, full)
    rows = frame(scored(full), scored(worse, attention=BARE), scored(again, attention=BLOCK))
    table = read(rows).set_index("attention")
    assert list(table.index) == ["full", BARE, BLOCK]
    assert table.loc[BARE, "difference"] == pytest.approx(worse.mean() - full.mean())
    assert table.loc[BARE, "difference_low"] < -0.2 < table.loc[BARE, "difference_high"] < 0
    assert table.loc[BARE, "recovered"] == pytest.approx(worse.mean() / full.mean())
    assert table["advice"].fillna("").tolist() == ["", "full", ""]
    assert table.loc["full", ["difference", "p", "recovered"]].isna().all()


def test_the_test_is_that_of_paired_comparisons_corrected_over_patterns_and_ks():
    rng = np.random.default_rng(1)
    rows = frame(
        *(
            scored(answers(rng, (1, 3, 60), odds)[0], attention=attention, k=k)
            for attention, odds in (("full", 0.5), (BARE, 0.4), (BLOCK, 0.5))
            for k in (5, 50)
        )
    )
    table = differences(read(rows))
    paired = compare(rows, {"attention": "full"}, jointly=True)
    found = table.set_index(["attention", "k"])
    for row in paired.itertuples():
        mine = found.loc[(row.attention, row.k)]
        for name in ("difference", "ci_low", "ci_high", "p", "rows", "left_out"):
            assert mine[name] == getattr(row, name), name
    assert table["p_holm"].tolist() == holm(table["p"]).tolist()
    assert (table["p_holm"] >= table["p"]).all()
    excluded = (table["ci_low"] > 0) | (table["ci_high"] < 0)
    assert excluded.tolist() == (table["p_holm"] <= ALPHA).tolist()


def test_blocks_that_see_all_others_are_not_tested_and_do_not_count():
    """Up to k=200, block:50 is full attention: the corrected p of k=250 was too large."""
    rng, pattern = np.random.default_rng(2), "block:50,sink=1,local=2"
    rows = frame(
        *(
            scored(answers(rng, (1, 3, 60), share)[0], attention=attention, k=k)
            for attention, share in (("full", 0.5), (pattern, 0.4))
            for k in (50, 200, 250)
        )
    )
    found = differences(read(rows)).set_index("k")
    assert found["withheld"].fillna("").to_dict() == {50: "nothing differs", 200: "nothing differs", 250: ""}
    assert found["p"].isna().tolist() == [True, True, False]
    assert found["p_holm"][250] == found["p"][250] == differences(read(rows[rows["k"] == 250]))["p"].item()


def test_limits_are_corrected_over_the_patterns_as_p_is():
    """One pattern is significantly worse by itself, and among three no more: then no limit excludes 0 either."""
    full, worse, same = "a" * 40, "a" * 34 + "b" * 6, "a" * 39 + "b"
    rows = frame(cell(full, full), cell(worse, full, attention=BARE))
    others = (cell(same, full, attention=pattern) for pattern in (BLOCK, "grouped:2,64"))
    for table, excluded in ((read(rows), True), (read(frame(rows, *others)), False)):
        row = differences(table).set_index("attention").loc[BARE]
        assert (row["ci_high"] < 0, row["p_holm"] <= ALPHA) == (excluded, excluded)


def test_a_difference_that_four_tests_together_could_bring_is_not_claimed():
    """p is 0.03 at one of four points: alone it is told apart, among the others not."""
    full, other = "a" * 40, "a" * 34 + "b" * 6
    alone = frame(cell(full, full), cell(other, full, attention=BARE))
    (told,) = differences(read(alone)).itertuples()
    assert 0.0125 < told.p < 0.05
    assert told.advice == "full"
    rest = (cell(full[:-1] + "b", full, attention=a, k=k) for a in ("full", BARE) for k in (7, 8, 9))
    among = differences(read(frame(alone, *rest)))
    assert among["advice"].isna().all()


def test_the_terminal_names_the_better_pattern_by_its_kind():
    rng = np.random.default_rng(0)
    full = answers(rng, (1, 4, 250), 0.5)[0]
    better = np.maximum(full, rng.random(full.shape) < 0.5)
    rows = frame(scored(full), scored(better, attention=BARE), scored(1 - better, attention=BLOCK))
    assert ATTENTION_PATTERNS.printed is not None
    table = ATTENTION_PATTERNS.printed.rows(read(rows))
    assert table["attention"].tolist() == [BARE, BLOCK]
    assert table["advice"].tolist() == ["block", "full"]


def test_a_pattern_is_better_where_p_is_the_level_itself(monkeypatch: pytest.MonkeyPatch):
    full = "a" * 40
    rows = frame(cell(full, full), cell("a" * 34 + "b" * 6, full, attention=BARE))
    made = rows, curves(rows), cost(rows, {})
    p = float(differences(attention_patterns(*made))["p_holm"].item())
    for alpha, advice in ((p, "full"), (p / 2, "")):
        monkeypatch.setattr("icl_bench.analysis.statistics.paired.ALPHA", alpha)
        table = differences(attention_patterns(*made))
        assert table["advice"].fillna("").tolist() == [advice]


def test_there_is_no_share_of_a_prefix_where_queries_have_demonstrations_of_their_own():
    rows = frame(
        *(
            cell("aabb", attention=attention, k=k, cell=f"{attention} {k}")
            for attention in ("full", BARE)
            for k in (5, 50)
        )
    )
    costs = {
        f"{attention} {k}": CellCost(
            counted={
                "prefix_flops": 10.0 * k * of,
                "query_flops": 3.0 * k,
                "whole_flops": 1.0,
                "cache_bytes": 7.0 * of * of * k,
            },
            prefill_seconds=0.0 if k == 5 and of == 1 else of / 8,
        )
        for attention, of in (("full", 1.0), (BARE, 0.5))
        for k in (5, 50)
    }
    table = read(rows, costs)
    assert table["shared"].tolist() == [True] * 4
    sizes = ["size", "sink", "local", "every", "window", "chunk"]
    assert set(map(str, table[sizes].dtypes)) == {"Int64"}
    names = [
        "k",
        "attention",
        "prefix_flops",
        "prefix_flops_of_full",
        "query_flops_of_full",
        "cache_bytes_of_full",
        "prefill_seconds",
    ]
    assert table[names].to_numpy().tolist() == [
        [5, "full", 50, 1, 1, 1, 0],
        [5, BARE, 25, 0.5, 1, 0.25, 1 / 16],
        [50, "full", 500, 1, 1, 1, 1 / 8],
        [50, BARE, 250, 0.5, 1, 0.25, 1 / 16],
    ]
    assert table["prefill_seconds_of_full"].fillna(-1).tolist() == [-1, -1, 1, 0.5]
    own = rows.assign(demonstration_ids=[["d"] if k == 5 else None for k in rows["k"]])
    table = read(own, costs)
    assert table["shared"].tolist() == [False, False, True, True]
    assert table["prefix_flops_of_full"].fillna(-1).tolist() == [-1, -1, 1, 0.5]
    assert table["prefill_seconds_of_full"].fillna(-1).tolist() == [-1, -1, 1, 0.5]
    assert table["cache_bytes_of_full"].tolist() == [1, 0.25, 1, 0.25]


def test_variants_are_not_compared_and_points_without_full_attention_have_no_difference():
    rows = frame(
        cell("aabb", attention=BARE, variant="w"),
        cell("aabb", attention=BLOCK, variant="w"),
        cell("aabb"),
        cell("abbb", attention=BARE),
        cell("aabb", attention=BARE, k=9),
        cell("aabb", task="u"),
        cell("aabb", k=0),
    )
    table = read(rows)
    points = [(row["variant"], row["k"], row["attention"]) for row in table.to_dict("records")]
    assert points == [("v", 5, "full"), ("v", 5, BARE), ("v", 9, BARE), ("w", 5, BARE), ("w", 5, BLOCK)]
    assert table["difference"].fillna(9).tolist() == [9, -0.25, 9, 9, 9]
    assert table["advice"].isna().all()
    compared = differences(table)
    assert compared["draws"].tolist() == [1]
    assert compared["interval_over"].tolist() == ["test examples only"]
    assert read(cell("aabb")).empty
    assert list(read(cell("aabb")).columns) == list(table.columns)


@settings(max_examples=12)
@given(st.data())
def test_every_point_has_one_row_whatever_was_run(data: st.DataObject):
    """Each point of a curve that was read in several ways, once, and no other point."""
    chosen = data.draw(
        st.sets(
            st.tuples(
                st.sampled_from(["t", "u"]),
                st.sampled_from([*PATTERNS, "theirs"]),
                st.sampled_from([1, 5]),
                st.sampled_from(["v", "w"]),
            ),
            min_size=1,
        )
    )
    rows = frame(*(cell("aabb", task=t, attention=a, k=k, variant=v) for t, a, k, v in sorted(chosen)))
    table = read(rows)
    several = {
        (t, a, k, v) for t, a, k, v in chosen if len({other for u, other, _, w in chosen if (u, w) == (t, v)}) > 1
    }
    found = list(zip(table["task"], table["attention"], table["k"], table["variant"], strict=True))
    assert len(found) == len(set(found))
    assert set(found) == several
    compared = table["difference"].notna()
    for there, (t, a, k, v) in zip(compared, found, strict=True):
        assert there == (a != "full" and (t, "full", k, v) in chosen)
    json.loads(table.to_json(orient="records"))


@pytest.mark.parametrize("text", [*PATTERNS[1:], "block:1,sink=1,local=0,reuse"])
def test_a_pattern_is_taken_apart_into_what_it_was_made_of(text: str):
    rows = frame(cell("aabb"), cell("aabb", attention=text), cell("aabb", attention="theirs"))
    table = read(rows).set_index("attention")
    pattern = Pattern.parse(text)
    row = table.loc[text]
    assert row["kind"] == pattern.name
    for name in ("size", "sink", "local", "every", "window", "chunk", "reuse"):
        value = vars(pattern).get(name)
        assert pd.isna(row[name]) if value is None else row[name] == value
    assert table.loc["theirs", "kind"] == "theirs"


def test_one_way_to_read_is_no_comparison():
    assert read(frame(cell("aabb", attention=BLOCK), cell("aabb", k=9, attention=BLOCK))).empty
    different = frame(cell("aabb"), cell("aabb", attention=BLOCK, order="by-label"))
    assert read(different).empty


def test_other_variants_are_no_base():
    rows = frame(cell("aabb", variant="w"), cell("aaaa", attention=BARE), cell("aabb", attention=BLOCK))
    table = read(rows)
    assert set(table["variant"]) == {"v"}
    assert table["difference"].isna().all()


# -- cost ---------------------------------------------------------------------------------------


def test_a_cells_own_work_counts_and_not_the_formula_of_full_attention():
    rows = frame(cell("aabb", cell="one")).assign(prompt_tokens=30, answer_tokens=0)
    known = CellCost(prefix_tokens=20, architecture=SHAPE, counted=WORK)
    (found,) = cost(rows, {"one": known}).itertuples()
    assert (found.prefix_flops, found.query_flops, found.whole_flops) == (1000, 10, 1010)
    assert found.cache_bytes == 64


def test_what_was_measured_of_reading_is_the_mean_over_cells():
    rows = frame(*(cell("aabb", cell=f"{draw}", draw=draw) for draw in range(3)))
    costs = {
        "0": CellCost(prefill_seconds=2.0, peak_cache_bytes=10),
        "1": CellCost(prefill_seconds=4.0, peak_cache_bytes=30),
    }
    (found,) = cost(rows, costs).itertuples()
    assert (found.prefill_seconds, found.peak_cache_bytes) == (3, 20)
    assert math.isnan(found.cache_bytes)


def test_the_formula_of_full_attention_is_for_no_other():
    rows = frame(cell("aabb", cell="one")).assign(prompt_tokens=30, answer_tokens=0)
    blocks, full = (CellCost.of(meta(architecture=SHAPE, attention=attention)) for attention in (BLOCK, "full"))
    (found,) = cost(rows, {"one": blocks}).itertuples()
    assert math.isnan(found.prefix_flops)
    (found,) = cost(rows, {"one": full}).itertuples()
    assert found.prefix_flops == 0 < found.query_flops


def test_costs_are_shares_of_full_attentions_at_the_same_k():
    rows = frame(*(cell("aabb", attention=a, k=k, cell=f"{a} {k}") for a in ("full", BARE) for k in (5, 9)))
    costs = {
        f"{a} {k}": CellCost(
            counted=asdict(ComputeCost(k * part * 100, part * 10, 0, part * 8)), prefill_seconds=k * part
        )
        for a, part in (("full", 1.0), (BARE, 0.25))
        for k in (5, 9)
    }
    table = read(rows, costs)
    shares = table.filter(regex="_of_full$")
    assert (shares[table["kind"] == "full"] == 1).to_numpy().all()
    assert (shares[table["kind"] == "block"] == 0.25).to_numpy().all()
    assert table["prefix_flops"].tolist() == [500, 125, 900, 225]


def test_prompts_with_demonstrations_of_their_own_have_no_share_of_a_prefix():
    reused = "block:1,sink=1,local=0,reuse"
    rows = frame(cell("aabb", cell="a"), cell("aabb", attention=reused, cell="b"))
    rows["demonstration_ids"] = [["x"]] * len(rows)
    costs = {name: CellCost(counted=WORK, prefill_seconds=2.0) for name in "ab"}
    table = read(rows, costs)
    assert not table["shared"].any()
    assert table[["prefix_flops_of_full", "prefill_seconds_of_full"]].isna().all(axis=None)
    assert (table["query_flops_of_full"] == 1).all()


def test_break_even_names_the_attention_of_what_it_is_beside():
    same = {"task": "t", "model": "m", "variant": "v", "k": 5, "order": "drawn", "seconds": 1.0}
    flops = {"prefix_flops": 100.0, "query_flops": 7.0, "whole_flops": 107.0}
    reused = "block:1,sink=1,local=0,reuse"
    rows = [
        {"select": "random", "attention": "full", **flops},
        {"select": "random", "attention": BLOCK, **flops, "prefix_flops": 60.0},
        {"select": "bm25", "attention": "full", **flops},
        {"select": "bm25", "attention": reused, **flops},
        {"select": "lora", "attention": "full", "query_flops": 5.0, "training_flops": 1000.0, "training_seconds": 60.0},
    ]
    found = break_even(pd.DataFrame([{**same, **row} for row in rows])).set_index("beside")
    assert found.index.is_unique
    # 1000 + 5 n < 100 + 7 n from n = 451, < 60 + 7 n from 471; reused ones are computed once
    assert found["queries"].to_dict() == {
        "random, cached": 451,
        "random, not cached": 10,
        f"random, cached, {BLOCK}": 471,
        f"random, not cached, {BLOCK}": 10,
        "bm25": 10,
        f"bm25, {reused}": 451,
    }


# -- a folder -----------------------------------------------------------------------------------


class Reader(FakeBackend):
    """Answers by the hash of a prompt and, as a real engine, otherwise in another pattern."""

    def answer(
        self, prompts: Any, todo: Sequence[int], decodings: Any, reserve: int, pattern: Pattern = FULL
    ) -> Iterator[list[Answer]]:
        self.peak_prefix_bytes: int | None = 1000
        self.counters.prefix_seconds += 0.5
        turn = PATTERNS.index(str(pattern))
        for pack in super().answer(prompts, todo, decodings, reserve):
            yield [Answer(**{**vars(a), "label": (a.label + turn) % 3}) for a in pack]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reading")
    ready = tokenized_task(folder / "cards", test_rows=12)
    made = planned(ready, "4,8", draws=2, attention=PATTERNS)
    Runner(made, Store(folder / "results"), ENGINE, Reader, architecture=lambda: SHAPE).run()
    return folder / "results"


@pytest.fixture(scope="module")
def found(results: Path) -> Findings:
    return find(read_some(results))


@pytest.fixture(scope="module")
def report(results: Path) -> Report:
    """The report of it, which tests only read."""
    return make_report(results)


def test_every_pattern_of_a_folder_is_there_with_its_own_numbers(results: Path, found: Findings):
    table = found.attention_patterns
    assert set(zip(table["attention"], table["k"], strict=True)) == {
        (pattern, k) for pattern in PATTERNS for k in (4, 8)
    }
    predictions = read_some(results).predictions
    accuracy = predictions.groupby(["attention", "k"], observed=True)["correct"].mean()
    for row in table.itertuples():
        assert row.accuracy == accuracy[row.attention, row.k]
    for name in ("prefix_flops", "query_flops", "cache_bytes", "prefill_seconds"):
        assert (table[name] > 0).all(), name
    at_8 = table[table["k"] == 8].set_index("attention")["prefix_flops_of_full"]
    assert at_8["full"] == 1
    assert at_8.max() == 1
    assert at_8[["block:1,sink=0,local=0", "block:2,sink=1,local=0", "approx:4,2"]].max() < 1


def test_the_report_shows_every_pattern_under_its_own_name(report: Report):
    sections = {section.name: section for section in report.sections}
    names = {f"random, {p}" for p in PATTERNS[1:]} | {"random, full attention"}
    assert set(sections["accuracy"].look.series) == names
    assert set(sections["context"].look.series) == {"full attention", *PATTERNS[1:]}
    for section, table in tables(report):
        columns = [column.name for column in table.columns]
        if "series" in columns and "k" in columns and section.name in ("accuracy", "saturation", "bias", "cost"):
            at = columns.index("series")
            assert names == {row[at] for row in table.rows}, table.caption


def test_a_single_point_is_first_that_of_full_attention(report: Report):
    (section,) = [s for s in report.sections if s.name == "bias"]
    (shown,) = [p["value"] for p in section.panels[0].spec()["params"] if p["name"] == "point"]
    assert shown == "random, full attention, k = 8"


def test_what_changes_when_run_again_is_told_by_attention(tmp_path: Path):
    """Two draws of one and the same prompt are a repeat."""
    rows = [cell("aabb", attention=a, draw=d) for a in ("full", BLOCK) for d in (0, 1)]
    made = frame(*rows, *(cell("aabb", order="shuffled:1", attention=a) for a in ("full", BLOCK)))
    stored = Stored(made.assign(cell="c", queries=None, prompt_hash="h"), {}, {"v": Facts()}, [])
    noise = find(stored)
    section = order(FINDINGS["order_sensitivity"], noise, Naming.of(noise.summary))
    assert section is not None
    (table,) = [t for t in section.tables if t.caption == "Changed by running again"]
    at = [column.name for column in table.columns].index("attention")
    assert [row[at] for row in table.rows] == [BLOCK, "full"]


def test_the_sections_charts_hold_the_tables_numbers(report: Report, found: Findings):
    (section,) = [s for s in report.sections if s.name == "context"]
    table = found.attention_patterns.set_index(["attention", "k"])
    kinds = set()
    for panel in section.panels:
        panel.chart.to_dict(validate=True)
        kinds.add(panel.name.split("-cards-")[0])
        assert "full attention" in {row["series"] for row in panel.rows}
        for row in panel.rows:
            point = table.loc[(row["series"].removesuffix(" attention"), row["k"])]
            assert (row["value"], row["low"], row["high"]) == pytest.approx(
                (point["accuracy"], point["ci_low"], point["ci_high"])
            )
            if "cost" in row:
                assert row["cost"] == pytest.approx(point["prefix_flops"] / 1e12)
            if row.get("size") is not None:
                assert row["size"] == point["size"]
    assert kinds == {"context-sizes", "context-shots", "context-work"}


def test_block_sizes_are_joined_only_where_their_masks_are_alike(report: Report):
    (section,) = [s for s in report.sections if s.name == "context"]
    sizes = [panel for panel in section.panels if panel.name.startswith("context-sizes")]
    assert len(sizes) == 2  # one for each k: sink 0 has a single size
    for panel in sizes:
        assert [row["series"] for row in panel.rows] == [
            "full attention",
            "block:2,sink=1,local=0",
            "block:4,sink=1,local=0",
        ]
        assert len({row["k"] for row in panel.rows}) == 1


def test_the_mask_table_tells_limits_of_accuracy_from_those_of_differences(report: Report):
    (table,) = [t for _, t in tables(report) if t.caption == "Attention patterns"]
    kinds = {column.name: column.kind for column in table.columns}
    assert kinds["ci_low"] == kinds["ci_high"] == "share"
    assert kinds["difference_low"] == kinds["difference_high"] == "points"


def test_full_attention_alone_has_no_such_section_and_needs_no_mention(tmp_path: Path):
    runner(plan(tmp_path / "cards"), tmp_path / "r", FakeBackend()).run()
    found = find(read_some(tmp_path / "r"))
    present, absent = sections(found, Naming.of(found.summary))
    assert "context" not in {section.name for section in present}
    assert "Attention patterns" in {missing.title for missing in absent}
    (accuracy,) = [s for s in present if s.name == "accuracy"]
    assert accuracy.look.series == ["random"]


def test_an_attention_that_is_the_only_one_is_named_where_it_is_not_full():
    table = frame(cell("aabb", attention=BLOCK), cell("aabb", select="probe"))
    named = Naming({}, attentions=True).named(table)
    assert set(named["series"]) == {f"random, {BLOCK}", "probe"}
    alone = curves(frame(cell("aabb", attention=BLOCK)))
    assert Naming.of_curves(alone, {}).attentions


def imported(folder: Path, *rows: pd.DataFrame) -> Path:
    made = frame(*rows).drop(columns=["variant", "valid"])
    made.to_csv(folder / "made.csv", index=False)
    import_predictions(folder / "made.csv", folder / "results")
    return folder / "results"


def test_imports_have_the_section_without_costs(tmp_path: Path):
    right, wrong = "a" * 30, "b" * 30
    results = imported(
        tmp_path,
        *(cell(right, right, k=k, draw=d) for k in (5, 9) for d in range(3)),
        *(cell(wrong, right, k=k, attention="theirs", draw=d) for k in (5, 9) for d in range(3)),
    )
    found = find(read_some(results))
    naming = Naming.of(found.summary)
    drawing = DRAWERS["attention_patterns"](FINDINGS["attention_patterns"], found, naming)
    assert drawing is not None
    (panel,) = drawing.panels
    assert {row["series"] for row in panel.rows} == {"full attention", "theirs attention"}
    (said,) = headlines(found, naming)
    (about,) = [one.text for one in said.sentences if one.topic == "Attention"]
    assert about.startswith("random, theirs attention against full attention: worse by 100.0")


def test_no_difference_of_attention_is_claimed_without_its_test(tmp_path: Path):
    right = "a" * 30
    results = imported(
        tmp_path,
        *(
            made
            for draw in range(3)
            for made in (cell(right, right, draw=draw), cell("b" + right[1:], right, attention=BLOCK, draw=draw))
        ),
    )
    found = find(read_some(results))
    (said,) = headlines(found, Naming.of(found.summary))
    (about,) = [one.text for one in said.sentences if one.topic == "Attention"]
    assert (
        about
        == f"random, {BLOCK} against full attention: not distinguishable at k = 5: -3.3 points, 95% interval -14.3 to +8.0 (30 test rows, 3 draws beside 3)."
    )


def told(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert not ended.value.code
    return capsys.readouterr().out


def test_summary_prints_the_patterns_and_names_them_everywhere(results: Path, found: Findings, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    text = told(capsys, "summary", "--results", results, "--cost")
    assert "attention: accuracy minus that of full attention" in text
    part = text.partition("attention: accuracy")[2].partition("cost of a query")[0]
    for pattern in PATTERNS[1:]:
        assert part.count(pattern) == 2  # k=4 and k=8
    assert all(pattern in text.partition("cost of a query")[2] for pattern in PATTERNS)
    shown = json.loads(told(capsys, "summary", "--results", results, "--json"))
    assert len(shown["attention_patterns"]) == len(found.attention_patterns) == 12
