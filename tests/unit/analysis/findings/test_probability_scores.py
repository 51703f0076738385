"""Top-n accuracy, log-loss and Brier score of stored label scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, top_k_accuracy_score
from support.label_scores import cell_scores, drawn, letters, stored

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.statistics.intervals import location_interval, mean_interval
from icl_bench.results.reading import Stored


def row_of(of: Stored) -> dict[str, float]:
    (found,) = find(of).probability_scores.to_dict("records")
    return found


def chances_and_golds(of: Stored) -> tuple[np.ndarray, np.ndarray]:
    """Of all draws, one below the other."""
    cells = of.label_scores.values()
    golds = np.concatenate([[own.labels.index(gold) for gold in own.golds] for own in cells])
    return np.concatenate([softmax(own.raw.astype(float), axis=1) for own in cells]), golds


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("draws", [1, 3])
def test_scores_are_those_of_scikit_learn(seed: int, draws: int):
    of = drawn(seed, draws)
    chances, golds = chances_and_golds(of)
    found, labels = row_of(of), range(6)
    assert found["top_1"] == pytest.approx(accuracy_score(golds, chances.argmax(axis=1)))
    for n in (3, 5):
        assert found[f"top_{n}"] == pytest.approx(top_k_accuracy_score(golds, chances, k=n, labels=labels))
    assert found["log_loss"] == pytest.approx(log_loss(golds, chances, labels=labels))
    brier = brier_score_loss(golds, chances, labels=labels, scale_by_half=False)
    assert found["brier"] == pytest.approx(brier)
    assert (found["labels"], found["draws"], found["test_rows"], found["predictions"]) == (6, draws, 40, 40 * draws)
    assert (found["top_1"], found["left_out"]) == (of.predictions["correct"].mean(), 0)


def test_limits_are_over_draws_and_test_rows():
    of = drawn(1, 4)
    chances, golds = chances_and_golds(of)
    own = chances[np.arange(len(golds)), golds]
    brier = ((chances - np.eye(6)[golds]) ** 2).sum(axis=1)
    third = (chances > own[:, None]).sum(axis=1) < 3
    found = row_of(of)
    for name, interval in (
        ("top_3", mean_interval(third.reshape(4, 40).astype(float))),
        ("log_loss", location_interval(-np.log(own).reshape(4, 40))),
    ):
        assert [found[name], found[f"{name}_low"], found[f"{name}_high"]] == pytest.approx(list(interval))
    half = mean_interval(brier.reshape(4, 40) / 2)
    assert [found[f"brier{end}"] / 2 for end in ("", "_low", "_high")] == pytest.approx(list(half))
    assert found["interval_over"] == "draws and test examples"
    assert row_of(drawn(1, 1))["interval_over"] == "test examples only"


@pytest.mark.parametrize(("labels", "known"), [(1, []), (2, [1]), (3, [1]), (4, [1, 3]), (5, [1, 3]), (6, [1, 3, 5])])
def test_top_n_is_missing_unless_there_are_more_labels(labels: int, known: list[int]):
    found = row_of(drawn(0, labels=labels))
    assert [n for n in (1, 3, 5) if not np.isnan(found[f"top_{n}"])] == known
    if labels == 1:
        assert (found["log_loss"], found["brier"]) == (0, 0)


def test_a_right_label_that_a_prior_excludes_has_an_infinite_loss():
    raw = np.log([[0.5, 0.5], [0.8, 0.2]])
    of = stored({"c": (cell_scores(raw, np.array([0, 1]), np.array([0.0, np.inf])), {})})
    found = row_of(of)
    assert found["log_loss"] == np.inf
    assert found["brier"] == 1, "0 and 2"
    assert np.isnan(found["log_loss_high"])


def test_predictions_without_scores_are_counted():
    of = drawn(0, 3)
    kept = {name: own for name, own in of.label_scores.items() if name != "cell 2"}
    found = row_of(replace(of, label_scores=kept))
    assert (found["draws"], found["predictions"], found["left_out"]) == (2, 80, 40)
    assert find(replace(of, label_scores={})).probability_scores.empty


def test_each_calibration_has_a_row_with_the_share_that_it_answers():
    of = drawn(0, 2)
    calibrated = {
        f"{name}+batch": (replace(own, bias=np.linspace(-2, 0, 6)), {"draw": draw, "variant": "v+batch"})
        for draw, (name, own) in enumerate(of.label_scores.items())
    }
    plain = {name: (own, {"draw": draw}) for draw, (name, own) in enumerate(of.label_scores.items())}
    found = find(stored({**plain, **calibrated}))
    table = found.probability_scores.set_index("variant")
    assert table.loc["v", "log_loss"] != table.loc["v+batch", "log_loss"]
    assert table["share_answered"].tolist() == found.abstention["share_answered"].tolist()
    assert letters(6) == of.label_scores["cell 0"].labels
