"""What findings are made of: facts of cells, parts of the predictions, tables by variant."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from support.predictions import cell, frame
from support.stored import facts_of, meta

from icl_bench.analysis.cell_cost import CellCost
from icl_bench.analysis.context import SEED, CellFacts, Context
from icl_bench.models.registry import REGISTRY
from icl_bench.results.facts import Facts
from icl_bench.results.reading import Stored
from icl_bench.results.stored_meta import CellMeta
from icl_bench.seeds import generator


def stored(predictions: pd.DataFrame | None = None, **cells: CellMeta) -> Stored:
    return Stored(cell("aabb") if predictions is None else predictions, cells, {"v": Facts(seed=0)}, ())


def test_shared_demonstrations_are_those_of_the_cells_that_have_them():
    found = CellFacts.of(
        stored(
            a=meta(demonstration_ids=["d1", "d2"]),
            b=meta(demonstration_ids=None),
            c=meta(),
            d=meta(demonstration_ids=[]),
        )
    )
    assert found.shared == {"a": ["d1", "d2"], "d": []}


def test_labels_of_demonstrations_are_gathered_by_variant():
    found = CellFacts.of(
        stored(
            a=meta(demonstration_labels={"x": ["d1", "d2"], "y": ["d3"]}),
            b=meta(demonstration_labels={"x": ["d4"]}),
            c=meta("w", demonstration_labels={"z": ["d1"]}),
            d=meta("u"),
            e=meta("u", demonstration_labels=None),
        )
    )
    assert found.labels == {"v": {"d1": "x", "d2": "x", "d3": "y", "d4": "x"}, "w": {"d1": "z"}, "u": {}}


def test_costs_are_of_each_cell():
    found = CellFacts.of(stored(a=meta(seconds=2.5, prefix_tokens=7), b=meta()))
    assert found.costs == {"a": CellCost(seconds=2.5, prefix_tokens=7), "b": CellCost()}


def test_windows_are_those_of_the_files_and_else_the_registrys():
    first, second = list(REGISTRY)[:2]
    found = CellFacts.of(
        stored(a=meta(model="own", context_tokens=99), b=meta(model="none"), c=meta(model=first, context_tokens=11))
    )
    assert found.windows["own"] == 99
    assert found.windows[first] == 11
    assert found.windows[second] == REGISTRY[second].context_tokens
    assert set(found.windows) == {*REGISTRY, "own"}


def test_the_parts_of_the_predictions_are_told_apart():
    rows = frame(
        cell("aabb", cell="plain"),
        cell("aabb", cell="perturbed", perturbation="shuffled"),
        cell("aabb", cell="copied", queries="demonstrations"),
        cell("aabb", cell="trained", select="lora"),
    ).reindex(columns=[*cell("a", "a").columns, "cell", "perturbation", "queries"])
    found = Context(stored(rows))
    names = ["predictions", "of_tests", "copied", "unperturbed", "prompts"]
    assert {name: getattr(found, name)["cell"].unique().tolist() for name in names} == {
        "predictions": ["plain", "perturbed", "copied", "trained"],
        "of_tests": ["plain", "perturbed", "trained"],
        "copied": ["copied"],
        "unperturbed": ["plain", "trained"],
        "prompts": ["plain"],
    }
    assert set(found.prompts["metric"]) == {"accuracy"}
    assert found.facts == {"v": Facts(seed=0)}


def test_a_table_is_made_once(monkeypatch: pytest.MonkeyPatch):
    made: list[Context] = []

    class Finding:
        def make(self, context: Context) -> pd.DataFrame:
            made.append(context)
            return pd.DataFrame({"n": [len(made)]})

    monkeypatch.setattr("icl_bench.analysis.context.FINDINGS", {"mine": Finding()})
    found = Context(stored())
    assert found.table("mine") is found.table("mine")
    assert len(made) == 1
    assert made[0] is found


def test_the_random_numbers_of_a_finding_are_its_own_and_the_same_again():
    found = Context(stored())
    expected = generator(SEED, "one").random(3).tolist()
    assert found.generator("one").random(3).tolist() == expected
    assert found.generator("one").random(3).tolist() == expected
    assert found.generator("two").random(3).tolist() != expected


def test_curves_begin_with_the_point_without_demonstrations_by_the_facts_of_variants():
    facts = facts_of(
        {"v": {"seed": 0}, "w": {"seed": 0, "bertscore_encoder": "x"}, "u": {"seed": 1, "bertscore_encoder": "x"}}
    )
    rows = frame(cell("aabb", k=0), cell("aabb", select="bm25", variant="w"), cell("aabb", select="bm25", variant="u"))
    found = Context(Stored(rows, {}, facts, ())).from_zero_shot(rows)
    bare = found[found["k"] == 0]
    assert set(bare["variant"]) == {"w"}
    assert len(bare) == 4


def test_a_table_by_variant_is_given_each_ones_own_labels_and_the_shared_demonstrations():
    calls: list[Any] = []

    def table(part: pd.DataFrame, labels: Any, shared: Any) -> pd.DataFrame:
        calls.append((part["variant"].tolist(), labels, shared))
        return pd.DataFrame({"variant": part["variant"].unique(), "labels": len(labels)})

    rows = frame(cell("aa", "aa", variant="v"), cell("a", "a", variant="w"), cell("a", "a", variant="none")).astype(
        {"variant": "category"}
    )
    found = Context(
        stored(
            rows,
            a=meta(demonstration_labels={"x": ["d1", "d2"]}, demonstration_ids=["d1"]),
            b=meta("w", demonstration_labels={"z": ["d1"]}),
            c=meta("none"),
        )
    ).by_variant(rows, table)
    assert found.to_dict("list") == {"variant": ["v", "w"], "labels": [2, 1]}
    assert calls == [
        ([], {}, {}) if not names else (names, labels, {"a": ["d1"]})
        for names, labels in [(["v", "v"], {"d1": "x", "d2": "x"}), (["w"], {"d1": "z"}), ([], {})]
    ]


def test_without_labels_a_table_by_variant_has_columns_and_no_row():
    rows = cell("aabb")

    def table(part: pd.DataFrame, labels: Any, shared: Any) -> pd.DataFrame:
        return part[["test_id", "k"]]

    found = Context(stored(rows, a=meta())).by_variant(rows, table)
    assert found.empty
    assert list(found.columns) == ["test_id", "k"]
