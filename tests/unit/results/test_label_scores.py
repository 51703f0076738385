"""Stored label scores: which are kept, and that a journal and a file hold them to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.fakes import FakeBackend, plan, runner

from icl_bench.errors import UserError
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.cells import SCORES
from icl_bench.results.exporting import export_results
from icl_bench.results.label_scores import KeptScores, as_line, of_line
from icl_bench.results.reading import read_results, read_table
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep

FLOATS = st.floats(-200, 0, width=32)


@given(arrays(np.float32, st.integers(0, 30), elements=FLOATS))
def test_a_journal_holds_scores_to_the_bit(scores: np.ndarray) -> None:
    assert of_line(as_line(scores)).tobytes() == scores.tobytes()


@given(arrays(np.float32, st.integers(1, 30), elements=FLOATS), st.integers(1, 30))
def test_the_n_likeliest_labels_are_kept(scores: np.ndarray, most: int) -> None:
    kept = KeptScores.parse(f"top:{most}").of(scores)
    assert kept is not None
    present = ~np.isnan(kept)
    assert present.sum() == min(most, len(scores))
    assert (kept[present] == scores[present]).all()
    if not present.all():
        assert scores[present].min() >= scores[~present].max()


@pytest.mark.parametrize("text", ["", "some", "top", "top:", "top:0", "top:-1", "top:1.5", "top:²", "all:3"])
def test_other_ways_to_keep_scores_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected all, none or top:N"):
        KeptScores.parse(text)


@pytest.mark.parametrize(("labels", "kept"), [(2, "all"), (500, "all"), (501, "top:20")])
def test_all_scores_of_up_to_500_labels_are_kept_by_default(labels: int, kept: str) -> None:
    assert str(KeptScores.default(labels)) == kept


def _run(folder: Path, keep: str) -> None:
    one = runner(plan(folder / "task", scoring="exact"), folder / "results", FakeBackend(scored=True))
    one.keep_scores = KeptScores.parse(keep)
    one.run()


@pytest.mark.parametrize(
    ("asked", "kept"), [({}, "top:20"), ({"calibrate": "batch"}, "all"), ({"keep_scores": "top:3"}, "top:3")]
)
def test_a_calibration_keeps_all_scores_by_default(
    asked: dict[str, str], kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = plan(tmp_path / "task", scoring="exact")
    spec = RunSpec(task="trec", model="none", k="1", score="exact", **asked)
    sweep = Sweep(spec, ready.task.model, ready.task, ready, spec.backend_for(ready.task.data.spec))
    monkeypatch.setattr(Sweep, "most_labels", 501)
    assert str(sweep.kept_scores) == kept


@pytest.mark.parametrize("stored", ["none", "top:2"])
def test_cells_that_lack_the_requested_scores_are_not_kept(stored: str, tmp_path: Path) -> None:
    _run(tmp_path, stored)
    again = runner(plan(tmp_path / "task", scoring="exact"), tmp_path / "results")
    again.requested_scores = KeptScores.parse("all")
    outcome = again.run()
    assert (outcome.computed, outcome.kept, len(outcome.failed)) == ([], [], 6)
    for name, reason in outcome.failed.items():
        assert reason == (
            f"{tmp_path / 'results' / name}.parquet: lacks label scores that this run needs (--keep-scores all); "
            "delete it and run again, which asks for its answers again, or use another --results"
        )
    enough = runner(plan(tmp_path / "task", scoring="exact"), tmp_path / "results")
    enough.requested_scores = KeptScores.parse(stored)
    assert len(enough.run().kept) == 6


def test_answers_of_an_interrupted_cell_that_lack_the_requested_scores_are_not_continued(tmp_path: Path) -> None:
    def stop(_: PromptSet) -> None:
        if next(packs):
            raise KeyboardInterrupt

    packs = iter([False, True])
    made = plan(tmp_path / "task", "1", draws=1, scoring="exact")
    first = runner(made, tmp_path / "results", FakeBackend(scored=True, fails=stop))
    first.keep_scores = KeptScores.parse("top:2")
    with pytest.raises(KeyboardInterrupt):
        first.run()
    again = runner(made, tmp_path / "results")
    again.requested_scores = KeptScores.parse("all")
    ((name, reason),) = again.run().failed.items()
    assert reason.startswith(f"{tmp_path / 'results' / name}.journal.jsonl: lacks label scores that this run needs")


def test_a_run_stores_each_labels_score_beside_the_columns_that_were_there(tmp_path: Path) -> None:
    _run(tmp_path, "all")
    table = read_table(tmp_path / "results", scores=True)
    scores = np.stack(table[SCORES].to_numpy())
    assert scores.dtype == np.float32
    assert scores.shape == (len(table), 3)
    np.testing.assert_allclose(np.exp(scores).max(axis=1), table["probability"].to_numpy(), rtol=1e-6)
    labels = sorted(set(table["gold"].to_pylist()))
    assert [labels[i] for i in scores.argmax(axis=1)] == table["prediction"].to_pylist()


def test_other_readers_do_not_read_label_scores(tmp_path: Path) -> None:
    _run(tmp_path, "all")
    assert SCORES not in read_results(tmp_path / "results")


def test_an_interrupted_cell_keeps_the_scores_of_its_journal(tmp_path: Path) -> None:
    fails = iter([False, False, True])

    def stop(_: object) -> None:
        if next(fails, False):
            raise KeyboardInterrupt

    task = tmp_path / "task"
    with pytest.raises(KeyboardInterrupt):
        runner(plan(task, scoring="exact"), tmp_path / "stopped", FakeBackend(fails=stop, scored=True)).run()
    runner(plan(task, scoring="exact"), tmp_path / "stopped", FakeBackend(scored=True)).run()
    runner(plan(task, scoring="exact"), tmp_path / "whole", FakeBackend(scored=True)).run()
    tables = [read_table(tmp_path / name, scores=True)[SCORES] for name in ("stopped", "whole")]
    assert tables[0].to_pylist() == tables[1].to_pylist()


def test_no_scores_are_stored_if_none_are_kept(tmp_path: Path) -> None:
    _run(tmp_path, "none")
    assert SCORES not in read_table(tmp_path / "results", scores=True).column_names
    with pytest.raises(UserError, match=r"--scores: no prediction .* has stored label scores; run with --score exact"):
        export_results(tmp_path / "results", tmp_path / "out.parquet", scores=True)


@pytest.mark.parametrize("name", ["out.parquet", "out.csv"])
def test_an_export_has_label_scores_only_if_asked_for(name: str, tmp_path: Path) -> None:
    _run(tmp_path, "all")
    read = pd.read_parquet if name.endswith("parquet") else pd.read_csv
    export_results(tmp_path / "results", tmp_path / name)
    assert SCORES not in read(tmp_path / name)
    export_results(tmp_path / "results", tmp_path / name, scores=True)
    assert SCORES in read(tmp_path / name)
