"""What stored label scores say of each prediction, and which cells have none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax, softmax
from support.label_scores import cell_scores, drawn, letters, predictions, stored
from support.predictions import cell
from support.stored import meta

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.label_probabilities import label_probabilities, measures, missing_scores, without_scores
from icl_bench.results.facts import NO_FACTS, Facts

SCORES = arrays(
    np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.sampled_from([-9.0, -2, -1, 0])
)


@given(SCORES, st.data())
def test_each_measure_is_that_of_a_loop_over_labels(raw: np.ndarray, data: st.DataObject):
    rows, labels = raw.shape
    gold = [data.draw(st.integers(0, labels - 1)) for _ in range(rows)]
    logs, names = log_softmax(raw, axis=1), letters(labels)
    found = measures(logs, names, tuple(names[at] for at in gold))
    for row in range(rows):
        chances = softmax(raw[row])
        order = sorted(range(labels), key=lambda at, row=row: (-logs[row, at], at))
        brier = sum((chances[at] - (at == gold[row])) ** 2 for at in range(labels))
        expected = [labels, order.index(gold[row]), max(chances), -np.log(chances[gold[row]]), brier]
        assert found[row] == pytest.approx(expected, abs=1e-12)


def test_a_right_answer_that_is_no_label_is_behind_all_labels_and_has_no_loss():
    logs = np.log([[0.5, 0.5], [0.9, 0.1]])
    found = measures(logs, ("a", "b"), ("b", "c"))
    assert found[1] == pytest.approx([2, 2, 0.9, np.nan, 0.9**2 + 0.1**2 + 1], nan_ok=True)
    assert found[0, 1] == 1, "of equals the first is the answer"


def test_predictions_are_those_of_their_cell_and_test_row_whatever_their_order():
    of = drawn(0, draws=2, tests=9)
    mixed = of.predictions.sample(frac=0.7, random_state=1)
    table = label_probabilities(mixed, of.label_scores, NO_FACTS)
    assert len(table) == len(mixed)
    for row in table.itertuples():
        own = of.label_scores[row.cell]
        at = own.tests.index(row.test_id)
        assert row.probability == pytest.approx(softmax(own.raw[at].astype(float)).max())
        assert row.answer == own.labels[own.raw[at].argmax()]
        assert row.gold == own.golds[at]
    assert table["correct"].tolist() == mixed["correct"].tolist()


def test_a_calibrated_cell_has_the_probabilities_after_its_bias():
    raw, bias = np.array([[-1.0, -2.0], [-1.0, -1.5]]), np.array([0.0, -1.0])
    of = stored({"c+batch": (cell_scores(raw, np.array([0, 1]), bias), {})})
    (first, second) = label_probabilities(of.predictions, of.label_scores, NO_FACTS).itertuples()
    assert first.probability == 0.5
    assert second.answer == "label 01"
    assert second.log_loss == pytest.approx(-np.log(np.exp(-0.5) / (np.exp(-0.5) + np.exp(-1))))


def test_cells_without_scores_and_length_normalised_ones_are_left_out():
    of = drawn(0, draws=2)
    without = {name: own for name, own in of.label_scores.items() if name != "cell 0"}
    assert set(label_probabilities(of.predictions, without, NO_FACTS)["cell"]) == {"cell 1"}
    by_length = {"v": Facts(normalize="tokens")}
    assert label_probabilities(of.predictions, of.label_scores, by_length).empty
    assert label_probabilities(of.predictions.iloc[:0], {}, NO_FACTS).empty


def test_cells_that_lack_scores_are_counted_without_those_of_own_choices_queries_and_other_folders():
    rows = pd.concat([cell("aabb", cell=name) for name in ("old", "own", "asked", "new")], ignore_index=True)
    facts = {"own": {"choice_style": "letters"}, "asked": {"queries": "copied"}}
    cells = {name: meta(facts=facts.get(name)) for name in ("old", "own", "asked", "new", "elsewhere")}
    of = replace(stored({"c": (cell_scores(np.zeros((2, 2)), np.zeros(2, dtype=int)), {})}), given=rows)
    of = replace(of, cells=cells, without_scores=["old", "own", "asked", "elsewhere"])
    assert without_scores(of) == ["old"]
    (note,) = missing_scores(of)
    assert note.startswith("1 cell scored every label, but not all scores are stored")
    assert missing_scores(replace(of, without_scores=())) == []


def test_the_table_is_made_once():
    context = find(drawn(0)).context
    assert context.label_probabilities is context.label_probabilities
    assert predictions("c", drawn(0).label_scores["cell 0"])["cell"].eq("c").all()
