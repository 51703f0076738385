"""A stored prediction leads back to the exact prompt that it answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support import fakes
from support.fakes import FakeBackend, plan, runner, small_tokenizer, write_task

from icl_bench.cli.output.lists import write_prompt
from icl_bench.errors import UserError
from icl_bench.models import registry as models
from icl_bench.models.registry import Model
from icl_bench.prompts.rendering import prompt_text
from icl_bench.report.prompt_trace import find_prediction
from icl_bench.results.reading import finished_cells
from icl_bench.sweep.k_values import KValues
from icl_bench.sweep.plan import Plan, make_plan
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.label_subset import HalfLabels
from icl_bench.tasks.task_files import load_task

CELL = {"task": "cards", "k": 3, "draw": 1}


@pytest.fixture(autouse=True)
def known_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small model is found by its name, as a real one is."""

    def resolve(name: str, prepare: bool = True, **_: object) -> Model:
        assert (name, prepare) == ("small", False)
        return fakes.model()

    monkeypatch.setattr(models, "resolve", resolve)
    monkeypatch.setattr(models, "load_tokenizer", lambda _: small_tokenizer())


@pytest.fixture
def made(tmp_path: Path) -> Plan:
    found = plan(tmp_path / "task", "1,3")
    runner(found, tmp_path / "results", FakeBackend()).run()
    return found


def prompt_of(made: Plan, draw: int, k: int, test: int) -> str:
    data = made.task.data
    shown = [data.train[i] for i in made.groups[draw].group.demonstrations(k)]
    return prompt_text(data.spec.template, shown, data.test[test])


def test_the_prompt_is_rebuilt_and_its_hash_is_checked(made: Plan, tmp_path: Path):
    row = made.task.data.test[4]
    shown = find_prediction(tmp_path / "results", CELL, row.id)
    assert shown.prompt == prompt_of(made, 1, 3, 4)
    assert "hash checked" in shown.checked
    assert (shown.row["test_id"], shown.row["gold"]) == (row.id, row.answer)
    assert [d.id for d in shown.demonstrations] == shown.as_json()["demonstration_ids"]
    assert shown.prompt.count("\n==\n") == len(shown.demonstrations) == 3
    json.dumps(shown.as_json())


def test_without_a_test_id_the_cells_first_row_is_shown(made: Plan, tmp_path: Path):
    shown = find_prediction(tmp_path / "results", CELL)
    assert shown.row["test_id"] == made.task.data.test[0].id


def test_a_prompt_file_of_a_jinja_template_has_one_place_for_the_query_as_the_template_writes_it(tmp_path: Path):
    template = {"engine": "jinja", "input": "Q: {{text.upper()}}\nA:", "output": "label"}
    data = {"train": "train.jsonl", "test": "test.jsonl"}
    made = plan(tmp_path / "task", "3", draws=1, template=template, data=data)
    runner(made, tmp_path / "results", FakeBackend()).run()
    shown = find_prediction(tmp_path / "results", {"task": "cards", "k": 3, "draw": 0})
    said = write_prompt(shown, tmp_path / "prompt.txt")
    assert "put the query as the task's input template writes it in place of {input} after" in said
    text = (tmp_path / "prompt.txt").read_text()
    assert text.replace("{input}", made.task.data.test[0].fields["input"]) == shown.prompt


def test_retrieved_demonstrations_are_those_of_the_row(tmp_path: Path):
    made = plan(tmp_path / "task", "3", selects=["bm25"], draws=1)
    runner(made, tmp_path / "results", FakeBackend()).run()
    data, wanted = made.task.data, {"task": "cards", "k": 3, "draw": 0}
    chosen = made.groups[0].group.demonstrations(3)
    for test, row in enumerate(data.test):
        shown = find_prediction(tmp_path / "results", wanted, row.id)
        assert shown.demonstrations == tuple(data.train[i] for i in chosen[test])
        assert "hash checked" in shown.checked


@pytest.mark.parametrize("name", ["train.jsonl", "test.jsonl"])
def test_data_that_has_changed_since_is_refused(made: Plan, tmp_path: Path, name: str):
    file = tmp_path / "task" / name
    file.write_text(file.read_text().replace("card", "cart", 1))
    with pytest.raises(UserError, match="the data has changed since the run"):
        find_prediction(tmp_path / "results", CELL)


def test_a_list_of_test_ids_beside_the_data_is_no_change(tmp_path: Path):
    folder = tmp_path / "data" / "cards"
    fields = {"text": "text", "label": "label"}
    write_task(folder, data={"folder": "cards", "fields": fields}, test={"ids": "paper"})
    known = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    rows = [{"id": f"t{i}", **row} for i, row in enumerate(known)]
    fakes.write_rows(folder / "test.jsonl", rows)
    (folder / "paper_test_ids.json").write_text(json.dumps({"row_ids": ["t3", "t1"]}))
    tokenizer: Any = small_tokenizer()
    data = load_data(load_task(folder / "cards.yaml"), data_dir=tmp_path / "data")
    made = make_plan(TokenizedTask(data, fakes.model(), tokenizer), KValues.parse("3"), draws=2)
    runner(made, tmp_path / "results", FakeBackend()).run()
    shown = find_prediction(tmp_path / "results", CELL, "t1", tmp_path / "data")
    assert "hash checked" in shown.checked


def test_a_model_that_is_not_here_leaves_the_prompt_unchecked(
    made: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def gone(name: str, prepare: bool = True, **_: object) -> Model:
        raise UserError("no such model")

    monkeypatch.setattr(models, "resolve", gone)
    shown = find_prediction(tmp_path / "results", CELL)
    assert shown.checked == "not checked: no such model"
    assert shown.prompt == prompt_of(made, 1, 3, 0)


def test_a_model_whose_files_have_changed_leaves_the_prompt_unchecked(
    made: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = replace(fakes.model(), fingerprint="other")
    monkeypatch.setattr(models, "resolve", lambda *_, **__: other)
    shown = find_prediction(tmp_path / "results", CELL)
    assert shown.checked.startswith("not checked: the model's files have changed")


def test_a_prompt_that_is_not_the_one_that_was_run_is_refused(made: Plan, tmp_path: Path):
    for name, meta in finished_cells(tmp_path / "results"):
        path = tmp_path / "results" / name
        if meta.spec.k == 3 and meta.spec.draw == 1:
            table = pq.read_table(path, partitioning=None)
            stored = json.loads(table.schema.metadata[b"icl_bench"])
            stored["demonstration_ids"].reverse()
            pq.write_table(table.replace_schema_metadata({"icl_bench": json.dumps(stored)}), path)
    with pytest.raises(UserError, match="not the one that was run"):
        find_prediction(tmp_path / "results", CELL)


def test_several_matching_cells_are_listed_and_a_hash_tells_which(made: Plan, tmp_path: Path):
    shuffled = plan(tmp_path / "task", "3", orders=["shuffled:1"])
    runner(shuffled, tmp_path / "results", FakeBackend()).run()
    with pytest.raises(UserError, match="2 cells match") as refused:
        find_prediction(tmp_path / "results", CELL)
    assert "--perturbation or --cell HASH" in str(refused.value)
    by_order = find_prediction(tmp_path / "results", {**CELL, "order": "shuffled:1"})
    assert by_order.row["order"] == "shuffled:1"
    for spelled in (by_order.row["cell"], by_order.row["cell"][:6]):
        found = find_prediction(tmp_path / "results", {**CELL, "cell": spelled})
        assert found.file == by_order.file


def test_a_cell_or_row_that_is_not_there_is_refused_by_name(made: Plan, tmp_path: Path):
    results = tmp_path / "results"
    with pytest.raises(UserError, match="no finished cell with task=cards k=9 draw=0"):
        find_prediction(results, {"task": "cards", "k": 9, "draw": 0})
    with pytest.raises(UserError, match="--test-id nobody: not among the 6 test rows"):
        find_prediction(results, CELL, "nobody")
    with pytest.raises(UserError, match="run something first"):
        find_prediction(tmp_path / "nothing", CELL)


def test_a_damaged_file_hides_no_other_cell(made: Plan, tmp_path: Path):
    for name, meta in finished_cells(tmp_path / "results"):
        path = tmp_path / "results" / name
        if meta.spec.k == 1:
            path.write_bytes(path.read_bytes()[:99])
    with pytest.warns(UserWarning, match="cannot be read"):
        assert find_prediction(tmp_path / "results", CELL).row["k"] == 3


def test_a_task_may_be_named_by_its_file(made: Plan, tmp_path: Path):
    wanted = {**CELL, "task": str(tmp_path / "task" / "cards.yaml")}
    assert find_prediction(tmp_path / "results", wanted).row["task"] == "cards"


def test_a_query_that_is_copied_from_its_demonstrations_is_found_again(tmp_path: Path):
    asked = plan(tmp_path / "task", "3", draws=1, queries="copied")
    runner(asked, tmp_path / "results", FakeBackend()).run()
    row = asked.groups[0].group.queries(3)[1]
    shown = find_prediction(tmp_path / "results", {**CELL, "draw": 0}, row.id)
    assert shown.prompt.count(row.fields["text"] + "\n") == 2
    assert row.id in [example.id for example in shown.demonstrations]
    assert "hash checked" in shown.checked


def test_random_words_that_calibrate_half_of_the_labels_are_found_again(tmp_path: Path):
    changes: dict[str, Any] = {"half": HalfLabels(1), "scoring": "exact", "calibrations": ["domain"]}
    asked = plan(tmp_path / "task", "3", draws=1, test_rows=1, **changes)
    runner(asked, tmp_path / "results", FakeBackend(scored=True)).run()
    (cell,) = (meta.cell for _, meta in finished_cells(tmp_path / "results") if meta.facts.queries == "domain")
    for row in asked.groups[1].group.task.data.test:
        shown = find_prediction(tmp_path / "results", {"task": "cards", "k": 3, "cell": cell}, row.id)
        assert row.fields["text"] in shown.prompt
        assert "hash checked" in shown.checked
