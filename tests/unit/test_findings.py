"""All tables of a folder together: what ``summary`` prints and its JSON are these and no others."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from fakes import FREE_TEXT, FakeBackend, plan, runner
from predictions import cell, frame

from icl_bench.analysis.cost import cost
from icl_bench.analysis.findings import Findings, Known, find
from icl_bench.analysis.summary import read_some
from icl_bench.cli import main
from icl_bench.errors import CellError, UserError
from icl_bench.prompts import PromptSet
from icl_bench.store import finished_cells, read_results


@pytest.fixture
def results(tmp_path: Path) -> Path:
    plans = [
        plan(tmp_path / "cards", "1,4", orders=["drawn", "by-label", "shuffled:1", "shuffled:2"]),
        plan(tmp_path / "cards", "1,4", selects=["bm25"]),
        plan(tmp_path / "cards", "4", scoring="exact"),
        plan(tmp_path / "texts", "2", name="texts", **FREE_TEXT),
    ]
    for made in plans:
        runner(made, tmp_path / "results", FakeBackend()).run()
    return tmp_path / "results"


@pytest.fixture
def found(results: Path) -> Findings:
    return find(read_some(results))


EMPTY = {"models", "label_spaces", "copying", "training_gain"}


def test_every_table_has_rows_where_there_are_runs_for_it(found: Findings):
    sizes = {name: len(table) for name, table in found.tables()}
    assert {name for name, size in sizes.items() if not size} == EMPTY


def test_another_way_of_scoring_is_no_noise(found: Findings):
    """One prompt of k=1 stands in the cells of all orders; k=4 is scored in two ways."""
    noise = found.noise_floor
    assert (noise["variant"] == noise["other_variant"]).all()
    assert noise.loc[noise["k"] == 1, "predictions"].item() >= 2 * 6 * 3
    assert (noise["changed"] == 0).all()


def test_the_json_has_every_table_under_its_name(found: Findings):
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert told.keys() == {name for name, _ in found.tables()} | {"settings", "failed"}
    for name, table in found.tables():
        assert len(told[name]) == len(table)
        if len(table):
            assert list(told[name][0]) == list(table.columns)


def test_the_same_folder_gives_the_same_numbers(results: Path, found: Findings):
    assert json.dumps(find(read_some(results)).as_json()) == json.dumps(found.as_json())


def test_what_is_known_of_cells_is_what_their_files_say(results: Path):
    known = Known.of(read_some(results))
    assert known.windows["small"] == 4096
    assert known.windows["llama2"] == 4096  # the registry's
    for _, meta in finished_cells(results):
        ids = meta["demonstration_ids"]
        assert known.shared.get(meta["cell"]) == ids
        assert known.seconds[meta["cell"]] == meta["seconds"]
        if ids and meta["spec"]["task"] == "cards":
            assert set(ids) <= known.labels[meta["variant"]].keys()


def test_demonstrations_labels_are_those_of_the_data(results: Path, tmp_path: Path):
    rows = [json.loads(line) for line in (tmp_path / "cards" / "train.jsonl").open()]
    known = Known.of(read_some(results))
    checked = 0
    for labels in known.labels.values():
        for name, label in labels.items():
            assert label == rows[int(name.rpartition("-")[2])]["label"].replace("_", " ")
            checked += 1
    assert checked > 10


def test_presence_counts_each_prediction_of_a_label_once(results: Path, found: Findings):
    labelled = read_results(results)["correct"].notna().sum()
    assert found.by_presence["predictions"].sum() == labelled
    assert found.by_distance["predictions"].sum() == labelled


def test_equal_ids_of_two_tasks_are_not_mixed_up(tmp_path: Path):
    """Row 3 has another label in the other task."""
    for name, style in (("cards", "words"), ("others", "as-is")):
        made = plan(tmp_path / name, "4", name=name, labels={"style": style})
        runner(made, tmp_path / "results", FakeBackend()).run()
    stored = read_some(tmp_path / "results")
    whole = find(stored).by_presence
    for task in ("cards", "others"):
        alone = find(read_some(tmp_path / "results", {"task": task})).by_presence
        part = whole[whole["task"] == task].reset_index(drop=True)
        assert part["accuracy"].tolist() == alone["accuracy"].tolist()
        assert part["present"].tolist() == alone["present"].tolist()


def test_models_are_compared_with_the_one_that_is_asked_for(tmp_path: Path):
    stored = read_some_of(tmp_path)
    assert find(stored).models["base_model"].unique().tolist() == ["a"]
    assert find(stored, "b").models["model"].unique().tolist() == ["a"]
    with pytest.raises(UserError, match=r"--base-model c: not in the results; known: a, b"):
        find(stored, "c")


def read_some_of(tmp_path: Path):
    from icl_bench.importing import import_predictions

    made = frame(*(
        cell("aabb", model=m, order=o, k=k) for m in "ab" for k in (1, 5)
        for o in ("drawn", "shuffled:1")
    ))  # fmt: skip
    made.drop(columns=["variant", "valid"]).to_csv(tmp_path / "some.csv", index=False)
    import_predictions(tmp_path / "some.csv", tmp_path / "imported")
    return read_some(tmp_path / "imported")


def test_shuffled_orders_are_not_compared_between_models(tmp_path: Path):
    table = find(read_some_of(tmp_path)).models
    assert table["order"].unique().tolist() == ["drawn"]
    assert table["k"].tolist() == [1, 5]


# -- cost ---------------------------------------------------------------------------------------


def test_cost_is_the_mean_of_a_query():
    rows = frame(cell("aabb", cell="one"), cell("aabb", cell="two", draw=1))
    rows["prompt_tokens"] = [10, 20, 30, 40, 10, 20, 30, 40]
    rows["cached_tokens"] = 5
    rows["answer_tokens"] = 2
    (found,) = cost(rows, {"one": 8.0}).itertuples()
    assert (found.predictions, found.prompt_tokens, found.computed_tokens) == (8, 25, 20)
    assert found.seconds == 2.0  # eight for the four predictions whose time is known


def test_what_was_not_counted_has_no_cost():
    (found,) = cost(frame(cell("aabb")), {}).itertuples()
    assert math.isnan(found.prompt_tokens)
    assert math.isnan(found.seconds)
    assert cost(frame(cell("aabb")).iloc[:0], {}).empty


def test_the_engines_seconds_are_those_of_its_cells(results: Path, found: Findings):
    seconds = sum(meta["seconds"] for _, meta in finished_cells(results))
    table = found.cost
    assert np.dot(table["seconds"], table["predictions"]) == pytest.approx(seconds)


# -- on the command line ------------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code
    return capsys.readouterr().out


def test_summary_prints_what_follows_from_the_curves(results: Path, capsys):
    text = told(capsys, "summary", "--results", str(results))
    for title in ("order:", "noise:", "sorting:", "retrieval:", "calibration:"):
        assert title in text
    for title in ("models:", "copying:", "half of the labels:"):
        assert title not in text


def test_summary_json_is_that_of_the_findings(results: Path, found: Findings, capsys):
    text = told(capsys, "summary", "--results", str(results), "--json")
    assert json.loads(text) == json.loads(json.dumps(found.as_json()))


def test_a_folder_of_failed_cells_alone_has_nothing_to_find(tmp_path: Path, capsys):
    def fail(_: PromptSet) -> None:
        raise CellError("no memory")

    runner(plan(tmp_path / "task", "1"), tmp_path / "results", FakeBackend(fails=fail)).run()
    text = told(capsys, "summary", "--results", str(tmp_path / "results"))
    assert "2 cells failed" in text


def test_each_task_has_a_base_model_of_its_own(tmp_path: Path):
    from icl_bench.importing import import_predictions

    tasks = {"t": "ab", "u": "bc"}
    made = frame(*(cell("aabb", task=t, model=m) for t, models in tasks.items() for m in models))
    made.drop(columns=["variant", "valid"]).to_csv(tmp_path / "some.csv", index=False)
    import_predictions(tmp_path / "some.csv", tmp_path / "imported")
    stored = read_some(tmp_path / "imported")
    table = find(stored).models
    assert table[["task", "base_model", "model"]].to_numpy().tolist() == [
        ["t", "a", "b"], ["u", "b", "c"],
    ]  # fmt: skip
    assert find(stored, "c").models["task"].tolist() == ["u"]
