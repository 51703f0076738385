"""What calibration gains, held to arithmetic written out here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.fakes import FakeBackend, plan, runner

from icl_bench.analysis.all_findings import Findings, read_findings
from icl_bench.analysis.findings.calibration_gain import AT_A_TIME, calibration_gain, streamed
from icl_bench.analysis.label_score_arrays import arrays_of
from icl_bench.results.derived import CellScores


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    folder = tmp_path_factory.mktemp("gain")
    ready = plan(folder / "task", "0,1,4", scoring="exact", test_rows=24, calibrations=["batch,of=pool:5"])
    runner(ready, folder / "results", FakeBackend(scored=True)).run()
    return read_findings(folder / "results")


def test_each_point_has_its_answers_with_and_without_calibration(findings: Findings) -> None:
    table = findings.calibration_gain
    assert set(table["calibration"]) == {"batch", "batch,of=pool:5", "batch, 1 at a time", "batch, 16 at a time"}
    predictions = findings.context.stored.predictions
    for row in table[table["calibration"].isin(["batch", "batch,of=pool:5"])].to_dict("records"):
        sides = [
            predictions[(predictions["k"] == row["k"]) & (predictions["variant"].astype(str) == row[name])]["correct"]
            for name in ("variant", "base_variant")
        ]
        assert row["mean"] == pytest.approx(sides[0].mean())
        assert row["base_mean"] == pytest.approx(sides[1].mean())
        assert row["difference"] == pytest.approx(row["mean"] - row["base_mean"])
        assert row["rows"] == 24


def test_the_table_says_what_a_bias_is_estimated_on(findings: Findings) -> None:
    table = findings.calibration_gain.groupby("calibration")["estimated_on"].first()
    assert table.to_dict() == {
        "batch": "inputs of test rows",
        "batch,of=pool:5": "rows of the pool",
        "batch, 1 at a time": "inputs of test rows so far",
        "batch, 16 at a time": "inputs of test rows so far",
    }


def test_batches_of_all_queries_or_more_are_not_simulated(findings: Findings) -> None:
    assert 64 in AT_A_TIME
    assert "batch, 64 at a time" not in set(findings.calibration_gain["calibration"])


def test_batches_are_simulated_by_accuracy_alone(findings: Findings) -> None:
    """Which label would be the answer is known on average over orders, its score by another metric is not."""
    context = findings.context
    frame = context.prompts.assign(metric="last_letter", score=0.5)
    table = calibration_gain(frame, context.stored.label_scores, context.facts)
    assert set(table["calibration"]) == {"batch", "batch,of=pool:5"}
    assert set(table["mean"]) == {0.5}


def _scores(raw: np.ndarray, golds: list[str]) -> CellScores:
    labels = tuple("abcdef"[: raw.shape[1]])
    return CellScores(labels, tuple(map(str, range(len(raw)))), tuple(golds), raw.astype(np.float32))


def test_one_query_at_a_time_begins_with_the_models_own_answer() -> None:
    # both labels as likely for each query but for a bias towards a, which only a second query can show
    raw = np.log([[0.9, 0.1], [0.9, 0.1]])
    right = streamed(_scores(raw, ["a", "a"]), 1)
    # the first to come is answered a; the second has scores of 0 after its bias: the first label, a
    assert right.tolist() == [1, 1]
    assert streamed(_scores(raw, ["b", "b"]), 1).tolist() == [0, 0]


def test_batches_of_all_queries_are_batch_calibration_itself() -> None:
    rng = np.random.default_rng(3)
    raw = np.log(rng.dirichlet(np.ones(3), 20))
    golds = [str(label) for label in rng.choice(list("abc"), 20)]
    scores = _scores(raw, golds)
    expected = [("abc"[i] == gold) for i, gold in zip((raw - raw.mean(axis=0)).argmax(axis=1), golds, strict=True)]
    assert streamed(scores, 20).tolist() == expected


def test_a_folder_without_scores_has_no_rows(tmp_path: Path) -> None:
    runner(plan(tmp_path / "task"), tmp_path / "results", FakeBackend(scored=True)).run()
    assert read_findings(tmp_path / "results").calibration_gain.empty


def test_scores_are_arrays_in_the_order_of_their_predictions(findings: Findings) -> None:
    (((task, model), scores),) = arrays_of(findings.context.stored).items()
    assert (task, model) == ("cards", "small")
    assert scores.values.shape == (len(scores.rows), len(scores.labels)) == (24 * 5, 3)
    answers = pd.Series([scores.labels[place] for place in scores.values.argmax(axis=1)])
    assert (answers == scores.rows["prediction"]).all()
