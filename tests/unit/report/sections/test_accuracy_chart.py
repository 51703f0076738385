"""The chart of accuracy over k: what one draw looks like, what guessing has, and what limits are called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.predictions import frame, scored
from support.stored import meta

from icl_bench.analysis.all_findings import find
from icl_bench.registry import FINDINGS
from icl_bench.report.naming import Naming
from icl_bench.report.sections.index import DRAWERS
from icl_bench.report.sections.over_k import over_k
from icl_bench.report.sections.panels import Panel
from icl_bench.results.facts import Facts
from icl_bench.results.reading import Stored

GOLDS = np.array(["a"] * 60 + ["b"] * 30 + ["c"] * 10)


def points(draws: int, golds: np.ndarray = GOLDS, **changes: Any) -> list[pd.DataFrame]:
    """Points at two k, of which the first two thirds of the rows are right."""
    right = np.tile(np.arange(len(golds)) < 67, (draws, 1))
    made = []
    for k in (1, 10):
        one = scored(right, k=k, cell=f"{k}", **changes)
        gold = np.tile(golds, draws)
        made.append(one.assign(gold=gold, prediction=np.where(one["correct"], gold, "a")))
    return made


def panels(*cells: pd.DataFrame, finding: str = "curves") -> list[Panel]:
    findings = find(Stored(frame(*cells), {}, {}, ()))
    drawing = DRAWERS.get(finding, over_k)(FINDINGS[finding], findings, Naming.of(findings.summary))
    assert drawing is not None
    return list(drawing.panels)


def panel(*cells: pd.DataFrame, finding: str = "curves") -> Panel:
    (found,) = panels(*cells, finding=finding)
    return found


def layers(made: Panel, mark: str) -> list[dict[str, Any]]:
    return [layer for layer in made.spec()["layer"] if layer["mark"]["type"] == mark]


def test_points_of_one_draw_are_hollow_with_dashed_limits_and_no_band():
    made = panel(*points(1), *points(3, select="balanced"), *points(1, select="bm25", order="relevance"))
    one = {row["series"]: row["one_draw"] for row in made.rows}
    assert one == {"random": True, "balanced": False, "bm25": False}, "BM25 draws nothing"
    hollow = [layer for layer in layers(made, "point") if not layer["mark"]["filled"]]
    filled = [layer for layer in layers(made, "point") if layer["mark"]["filled"]]
    assert [layer["transform"][-1] for layer in hollow] == [{"filter": "datum.one_draw"}]
    assert [layer["transform"][-1] for layer in filled] == [{"filter": "!datum.one_draw"}]
    (dashed,) = [layer for layer in layers(made, "rule") if "strokeDash" in layer["mark"]]
    assert {"filter": "datum.one_draw"} in dashed["transform"]
    (band,) = layers(made, "area")
    assert any("!datum.one_draw" in part.get("filter", "") for part in band["transform"])


def test_without_a_point_of_one_draw_nothing_is_hollow():
    made = panel(*points(3))
    assert all(layer["mark"]["filled"] for layer in layers(made, "point"))


def levels(made: Panel) -> dict[str, float]:
    """The lines of accuracies without skill, by name."""
    found = [
        made.spec()["datasets"][layer["data"]["name"]][0] if "name" in layer["data"] else layer["data"]["values"][0]
        for layer in layers(made, "rule")
        if layer["mark"].get("style") == "reference"
    ]
    return {level["name"]: level["level"] for level in found}


def test_the_most_frequent_label_and_guessing_are_lines():
    """The number of the task's labels is not known of these rows."""
    assert levels(panel(*points(3))) == {
        "most frequent label, 60.0%": 0.6,
        "guessing one of 3 labels among the test rows, 33.3%": 1 / 3,
    }


@pytest.mark.parametrize("of_task", ["l", "another"])
def test_guessing_is_among_all_labels_of_the_task_if_a_cell_has_them(of_task: str):
    """Cells with the scores of all labels have them; others of the same labels are recognised by their hash."""
    facts = {"v": Facts(labels="l"), "w": Facts(labels=of_task)}
    cells = {"c": meta(facts={"labels": of_task}, label_order=["a", "b", "c", "d", "e"])}
    findings = find(Stored(frame(*points(3)), cells, facts, ()))
    drawing = over_k(FINDINGS["curves"], findings, Naming.of(findings.summary))
    assert drawing is not None
    name = (
        "guessing one of 5 labels, 20.0%" if of_task == "l" else "guessing one of 3 labels among the test rows, 33.3%"
    )
    assert name in levels(drawing.panels[0])


def test_names_of_lines_near_the_axis_do_not_cover_its_numbers():
    golds = np.repeat([f"label {number:02}" for number in range(40)], [5, 5, *[3] * 38])
    made = panel(*points(3, golds=golds))
    names = [layer for layer in layers(made, "text") if layer["encoding"]["text"]["field"] == "name"]
    places = [(layer["encoding"]["y"]["field"], layer["mark"]["dy"]) for layer in names]
    assert places == [("at", -6), ("at", -18)], "both above the higher line, one above the other"
    data = [made.spec()["datasets"][layer["data"]["name"]][0] for layer in names]
    assert [row["at"] for row in data] == [5 / 124, 5 / 124]


def test_points_of_rows_with_other_labels_have_no_such_line():
    made = panel(*points(3), *points(3, golds=np.array(["a"] * 50 + ["b"] * 50), select="bm25", order="relevance"))
    assert [layer for layer in layers(made, "rule") if layer["mark"].get("style") == "reference"] == []


def test_bands_and_whiskers_are_named_as_limits():
    made = panel(*points(1), *points(3, select="balanced"))
    for layer in [*layers(made, "area"), *(one for one in layers(made, "rule") if "strokeDash" in one["mark"])]:
        assert layer["encoding"]["description"]["field"] == "limits"
        (text,) = [part["calculate"] for part in layer["transform"] if part.get("as") == "limits"]
        assert text.startswith("'95% limits of ' + datum.series")


def test_labels_that_are_far_off_are_named_beside_their_points():
    made = panel(*points(3), finding="label_frequencies")
    named = {row["label"] for row in made.rows if row["named"]}
    assert named == {"a", "b", "c"}
    (text,) = layers(made, "text")
    assert text["encoding"]["text"]["field"] == "written"
    assert {"filter": "datum.named"} not in text["transform"], "where none is named, a layer would have no extent"


def test_of_many_labels_those_that_are_farthest_off_are_named():
    golds = np.repeat(list("abcdefg"), 10)
    one = scored(np.ones((3, 70), bool), k=10, cell="10").assign(gold=np.tile(golds, 3))
    said = one["gold"].to_numpy().copy()
    for place, (label, wrong) in enumerate({"b": 9, "c": 7, "d": 5, "e": 3, "f": 1}.items()):
        said[np.flatnonzero(said == label)[:wrong]] = "a" if place < 4 else "e"
    made = panel(one.assign(prediction=said, correct=said == one["gold"]), finding="label_frequencies")
    assert {row["label"] for row in made.rows if row["named"]} == {"a", "b", "c", "d"}
    assert len(made.rows) == 7


def test_a_confusion_matrix_names_its_denominators():
    mistakes, matrix = panels(*points(3), finding="confusions")
    assert matrix.title == f"{mistakes.title} · all labels"
    of_point = [row for row in matrix.rows if row["point"] == "random, k = 10"]
    assert {row["right"] for row in of_point} == {"a (180)", "b (90)", "c (30)"}
    assert sum(row["count"] for row in of_point) == 300
    counts = {(row["gold"], row["said"]): (row["count"], row["of"]) for row in of_point}
    assert counts["b", "b"] == (21, 90)
    assert counts["b", "a"] == (69, 90)
    assert [choice.value for choice in matrix.choices] == [choice.value for choice in mistakes.choices]
