"""Which score a task's points are compared by, and the names of scores."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.outside import installed

from icl_bench.errors import CellError
from icl_bench.metrics import bertscore, scores
from icl_bench.metrics.accuracy import Accuracy
from icl_bench.metrics.bertscore import BertScore
from icl_bench.metrics.interface import Metric
from icl_bench.metrics.rouge import Rouge
from icl_bench.models.text_encoders import Encoder
from icl_bench.registry import METRICS

NONE = float("nan")


def frame(**columns: Any) -> pd.DataFrame:
    """Four predictions; scores that are not named are empty."""
    empty = dict.fromkeys(("correct", "rouge1", "rouge2", "rougeL", "bertscore"))
    return pd.DataFrame({"task": "t", **empty, **columns}, index=range(4))


def test_the_score_is_accuracy_where_some_answer_is_right_or_wrong():
    rows = frame(correct=[True, False, None, True], rouge1=[0.5] * 4)
    found = scores.scored(rows)
    assert found["metric"].tolist() == ["accuracy"] * 4
    assert found["score"].tolist()[:2] == [1, 0]
    assert math.isnan(found["score"][2])
    assert "score" not in rows


def test_the_score_that_a_task_names_first_goes_before_accuracy_where_it_is_there():
    rows = frame(correct=[True] * 4, rougeL=[0.25, 0.5, NONE, 1.0])
    found = scores.scored(rows, first={"t": "rougeL", "u": "rouge2"})
    assert set(found["metric"]) == {"rougeL"}
    assert found["score"].dropna().tolist() == [0.25, 0.5, 1.0]
    assert set(scores.scored(rows, first={"t": "rouge2"})["metric"]) == {"accuracy"}


def test_free_text_has_the_score_that_most_predictions_have_the_first_of_equals():
    most = frame(rouge1=[0.1, NONE, NONE, NONE], bertscore=[0.9, 0.8, NONE, NONE])
    assert set(scores.scored(most)["metric"]) == {"bertscore"}
    equal = frame(bertscore=[0.9] * 4, rouge2=[0.2] * 4, rouge1=[0.1] * 4)
    found = scores.scored(equal)
    assert set(found["metric"]) == {"rouge1"}
    assert found["score"].tolist() == [0.1] * 4


def test_each_task_has_a_metric_of_its_own_and_nothing_at_all_is_accuracy():
    rows = pd.concat(
        [frame(correct=[True, False, True, True]), frame(task="u", rouge1=[0.3] * 4), frame(task="w")],
        ignore_index=True,
    )
    found = scores.scored(rows)
    assert scores.metrics(found) == {"t": "accuracy", "u": "rouge1", "w": "accuracy"}
    assert found["score"].tolist()[:8] == [1, 0, 1, 1] + [0.3] * 4
    assert found["score"][8:].isna().all()
    assert found["metric"].dtype == "category"
    assert scores.measure(found) == "score"
    assert scores.measure(found[found["task"] == "u"]) == "ROUGE-1"


def test_parts_of_a_folder_keep_the_metrics_of_the_whole():
    rows = frame(correct=[True] * 4, score=[0.5] * 4, metric=["theirs"] * 4)
    assert scores.scored(rows) is rows
    assert scores.scored(rows.drop(columns="metric"))["metric"].tolist() == ["accuracy"] * 4


def test_columns_that_are_not_there_are_no_scores():
    rows = pd.DataFrame({"task": ["t", "t"], "rouge2": [0.5, 0.25]})
    assert scores.scored(rows)["score"].tolist() == [0.5, 0.25]
    rows["task"] = pd.Categorical(rows["task"], ["t", "of another part"])
    found = scores.scored(rows)
    assert (found["metric"].tolist(), found["score"].tolist()) == (["rouge2"] * 2, [0.5, 0.25])


def test_scores_have_names_columns_and_titles():
    of = scores.measures()
    assert {name: (m.column, m.title) for name, m in of.items()} == {
        "accuracy": ("correct", "accuracy"),
        "rouge1": ("rouge1", "ROUGE-1"),
        "rouge2": ("rouge2", "ROUGE-2"),
        "rougeL": ("rougeL", "ROUGE-L"),
        "bertscore": ("bertscore", "BERTScore"),
        "exact_match": ("exact_match", "exact match"),
        "exact_text": ("exact_text", "exact text"),
        "f1": ("f1", "F1"),
        "numeric": ("numeric", "equal number"),
        "bleu": ("bleu", "BLEU"),
        "chrf": ("chrf", "chrF"),
    }
    assert scores.score_columns() == (
        "rouge1",
        "rouge2",
        "rougeL",
        "bertscore",
        "exact_match",
        "exact_text",
        "f1",
        "numeric",
        "bleu",
        "chrf",
    )
    assert scores.numbers_of_many() == {
        "macro_f1": "macro-F1",
        "corpus_bleu": "corpus BLEU",
        "corpus_chrf": "corpus chrF",
    }
    assert scores.corpus_numbers() == {"corpus_bleu": "corpus BLEU", "corpus_chrf": "corpus chrF"}
    assert [scores.title(name) for name in ("rougeL", "meteor")] == ["ROUGE-L", "meteor"]


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What is known of metrics is asked for again, now and afterwards."""
    cached = (
        scores.usable_metrics,
        scores.measures,
        scores.columns_by_score,
        scores.score_columns,
        scores.numbers_of_many,
        scores.corpus_numbers,
    )
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()
    sys.modules.pop("other_metrics", None)


OTHERS = """
from icl_bench.metrics.interface import Measure, Metric

class Own(Metric):
    measures = (Measure("own", "own_score", "own score"),)
    of_many = {"own_number": "own number"}

class Takes(Metric):
    measures = (Measure("better_accuracy", "correct", "accuracy"),)

class Counts(Metric):
    of_many = {"macro_f1": "another macro-F1"}
"""


@pytest.mark.usefixtures("forgotten")
def test_a_plugins_metric_has_scores_of_its_own_and_cannot_take_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
):
    entries = "own = other_metrics:Own\ntakes = other_metrics:Takes\ncounts = other_metrics:Counts"
    known = installed(tmp_path, monkeypatch, METRICS, entries, OTHERS, dict(METRICS._built_in))
    monkeypatch.setattr(scores, "METRICS", known)
    assert scores.columns_by_score()["accuracy"] == "correct"
    assert scores.score_columns()[-2:] == ("chrf", "own_score")
    assert scores.numbers_of_many()["macro_f1"] == "macro-F1"
    assert scores.corpus_numbers()["own_number"] == "own number"
    assert sorted(str(one.message) for one in recwarn) == [
        "metric counts of other_metrics has the score of another metric, macro_f1: skipped",
        "metric takes of other_metrics has the score of another metric, correct: skipped",
    ]


def test_a_metric_whose_scores_are_not_declared_as_such_is_refused_when_it_is_defined():
    with pytest.raises(TypeError, match=r"^Wrong.measures: expected a tuple of Measure$"):
        type("Wrong", (Metric,), {"measures": ("own",)})
    with pytest.raises(TypeError, match=r"^Wrong.of_many: expected a mapping of columns to titles$"):
        type("Wrong", (Metric,), {"of_many": ("own",)})


def test_a_task_is_compared_by_the_first_score_of_its_first_metric():
    assert scores.first_measures(
        {
            "labels": ["accuracy", "macro_f1"],
            "many": ["macro_f1", "accuracy"],
            "texts": ["rouge", "bertscore"],
            "theirs": ["meteor", "rouge"],
            "none": [],
        }
    ) == {"labels": "accuracy", "texts": "rouge1"}


def test_metrics_of_a_task_are_made_by_name():
    assert [type(m) for m in scores.metrics_of(["rouge", "accuracy"])] == [Rouge, Accuracy]
    with pytest.raises(KeyError):
        scores.metrics_of(["meteor"])


def test_what_a_metric_returns_is_taken_where_it_is_a_share_of_1_for_each_answer():
    found = scores.checked_scores("own", [1, "0.5", -1, 1.001], 4)
    assert (found.tolist(), found.dtype) == ([1, 0.5, -1, 1.001], float)
    shape = r"^metric own: 2 answers have scores of shape \((3,|2, 1|)\)$"
    for values in ([0, 1, 0], [[0], [1]], 0.5):
        with pytest.raises(CellError, match=shape):
            scores.checked_scores("own", values, 2)
    said = r"^metric own: scores must be shares from 0 to 1 \(no percentages, no gaps\), and one is "
    for values, one in (([0, 45.2, 99], "45.2"), ([NONE, 0, 0], "nan"), ([0, 1, -1.01], "-1.01")):
        with pytest.raises(CellError, match=f"{said}{one}$"):
            scores.checked_scores("own", values, 3)


def test_right_answers_are_those_of_the_list_else_the_one():
    lists: list[Any] = [
        ["a", "b"],
        ("a",),
        np.array(["a", "b"], object),
        '["a", "é"]',
        None,
        NONE,
        [],
        "[]",
        "a",
        "[" * 100_000,
        '["a", 1]',
        ["a", None],
        '{"a": "b"}',
        7,
    ]
    expected = [["a", "b"], ["a"], ["a", "b"], ["a", "é"], *[["7"]] * 10]
    rows = pd.DataFrame({"gold": [7] * len(lists), "golds": pd.Series(lists, dtype=object)})
    assert [list(scores.golds_of(several, 7)) for several in lists] == expected
    assert [list(of) for of in scores.all_golds(rows)] == expected
    assert scores.all_golds(rows[["gold"]]) == [("7",)] * len(lists)


def test_a_metric_without_scores_of_single_answers_gives_none():
    assert Accuracy().score(["a"], ["a"]) == {}
    assert Accuracy().score_many(np.zeros(1, int), ["a"], ["a"]) == {}
    assert Accuracy().facts() == {}


def test_bertscore_is_stored_with_the_name_of_its_encoder(monkeypatch: pytest.MonkeyPatch):
    metric = BertScore()
    metric.encoder = Encoder("some-encoder", "nowhere", 3)
    said: list[Any] = []

    def f1(gold: Any, prediction: Any, encoder: Encoder) -> np.ndarray:
        said.append((gold, prediction, encoder.name))
        return np.array([0.5])

    monkeypatch.setattr(bertscore, "bertscore_f1", f1)
    assert metric.facts() == {"bertscore": "some-encoder"}
    assert {name: v.tolist() for name, v in metric.score(["g"], ["p"]).items()} == {"bertscore": [0.5]}
    assert said == [(["g"], ["p"], "some-encoder")]
