"""Task files of lm-evaluation-harness: what becomes of each field, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support.in_process import said

from icl_bench.errors import UserError
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.lm_eval import converted, is_lm_eval
from icl_bench.tasks.spec import TaskSpec
from icl_bench.tasks.task_files import load_task

CHOICE = """
task: colours
dataset_path: someone/colours
dataset_name: bright
output_type: multiple_choice
training_split: train
validation_split: validation
test_split: test
description: "Colours.\\n\\n"
doc_to_text: "{{thing}} is"
doc_to_target: colour
doc_to_choice: ["red", "green"]
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
  - metric: mcc
metadata: {version: 1.0}
"""
WRITTEN = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {train: sums.jsonl, test: asked.jsonl}, trust_remote_code: true}
training_split: train
test_split: test
doc_to_text: "{{q}}\\nA:"
doc_to_target: "{{a}}"
fewshot_delimiter: "\\n"
generation_kwargs: {until: ["Q:", "\\n\\n"], do_sample: false, temperature: 0.0, max_gen_toks: 12}
filter_list:
  - name: strict
    filter:
      - {function: regex, regex_pattern: "(?i)is (\\\\d+)|= (\\\\d+)", group_select: -1}
      - {function: take_first}
  - name: lax
    filter: [{function: take_first}]
metric_list:
  - {metric: exact_match, ignore_case: true, ignore_punctuation: false, regexes_to_ignore: [","]}
num_fewshot: 5
fewshot_config: {sampler: first_n}
"""


def fields(folder: Path, text: str, **changes: Any) -> dict[str, Any]:
    """A file's fields as ours, some of them changed (``...`` takes one out)."""
    said = yaml.safe_load(text) | changes
    path = folder / "theirs.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in said.items() if v is not ...}))
    return converted(path)


def refusal(folder: Path, text: str, **changes: Any) -> str:
    """What cannot be said of a file."""
    with pytest.raises(UserError) as error:
        fields(folder, text, **changes)
    start = f"{folder}/theirs.yaml: cannot be written as a task file of icl-bench: "
    assert str(error.value).startswith(start), error.value
    return str(error.value).removeprefix(start)


def test_choices_become_labels(tmp_path):
    assert fields(tmp_path, CHOICE) == {
        "name": "colours",
        "description": "colours of lm-evaluation-harness",
        "data": {
            "hub": {"path": "someone/colours", "revision": "main", "name": "bright", "train": "train", "test": "test"}
        },
        "template": {
            "engine": "jinja",
            "start": "Colours.\n\n",
            "input": "{{thing}} is",
            "output": "colour",
            "delimiter": " ",
            "separator": "\n\n",
        },
        "labels": {"choices": ["red", "green"], "gold": "index or text"},
        "metrics": ["accuracy"],
        "notes": ["labels are scored as acc; for acc_norm set labels.normalize to characters", "left out: metric mcc"],
    }


def test_free_answers_become_free_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = fields(tmp_path, WRITTEN)
    files = {"train": [str(tmp_path / "sums.jsonl")], "test": [str(tmp_path / "asked.jsonl")]}
    assert made["data"] == {
        "hub": {"path": "json", "train": "train", "test": "test", "arguments": {"data_files": files}}
    }
    assert made["answer"] == {
        "extract": r"(?i)is (\d+)|= (\d+)",
        "take": "last",
        "group": "any",
        "of": "answers",
        "ignore": {"case": True, "patterns": [","]},
    }
    assert (made["metrics"], made["stop"]) == (["exact_text"], ["Q:", "\n\n"])
    assert (made["max_answer_tokens"], made["template"]["separator"]) == (12, "\n")
    assert made["notes"] == [
        "lm-eval shows the first rows of the split (sampler: first_n); icl-bench draws demonstrations at random",
        "left out: what filter lax makes of the answers",
        "lm-eval shows 5 demonstrations unless told otherwise",
    ]
    assert TaskSpec.model_validate(made).stops_beside("\n") == ("Q:", "\n\n")


def test_what_is_not_said_is_as_lm_eval_has_it(tmp_path):
    made = fields(
        tmp_path,
        WRITTEN,
        generation_kwargs=...,
        filter_list=...,
        metric_list=...,
        fewshot_delimiter=...,
        dataset_path="x/y",
        dataset_kwargs={"revision": "abc"},
    )
    assert (made["stop"], made["max_answer_tokens"]) == (["\n\n"], 256)
    assert made["metrics"] == ["exact_text"]
    assert "answer" not in made
    assert made["data"]["hub"]["revision"] == "abc"
    assert fields(tmp_path, CHOICE, metric_list=...)["metrics"] == ["accuracy"]


@pytest.mark.parametrize(("metric", "way"), [("acc_norm", "characters"), ("acc_bytes", "bytes")])
def test_the_first_way_to_score_choices_is_taken(tmp_path, metric, way):
    made = fields(tmp_path, CHOICE, metric_list=[{"metric": metric}, {"metric": "acc"}])
    assert made["labels"]["normalize"] == way
    assert "for acc set labels.normalize to none" in made["notes"][-1]


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "8", True])
def test_a_length_that_is_no_finite_number_is_refused(tmp_path, value):
    said = refusal(tmp_path, WRITTEN, generation_kwargs={"until": ["Q:"], "max_gen_toks": value})
    assert "generation_kwargs.max_gen_toks (" in said
    assert "which is not a number" in said


def test_macro_f1_is_for_labels_that_all_rows_share(tmp_path):
    macro = [{"metric": "f1", "average": "macro", "aggregation": "f1"}]
    assert fields(tmp_path, CHOICE, metric_list=macro)["metrics"] == ["macro_f1"]
    assert refusal(tmp_path, CHOICE, metric_list=[{"metric": "f1"}]) == "metric f1"
    assert refusal(tmp_path, CHOICE, metric_list=macro, doc_to_choice="list") == "metric f1"


@pytest.mark.parametrize(
    ("splits", "train", "test"),
    [
        ({"fewshot_split": "dev"}, "dev", "test"),
        ({"fewshot_config": {"split": "few"}}, "few", "test"),
        ({"training_split": None}, "validation", "test"),
        ({"test_split": None}, "train", "validation"),
    ],
)
def test_demonstrations_are_of_the_split_that_lm_eval_takes_them_from(tmp_path, splits, train, test):
    hub = fields(tmp_path, CHOICE, **splits)["data"]["hub"]
    assert (hub["train"], hub["test"]) == (train, test)


def test_one_split_for_both_is_halved_and_said(tmp_path):
    made = fields(tmp_path, CHOICE, training_split=..., validation_split=...)
    assert made["data"]["hub"]["holdout"] == {"share": 0.5, "seed": 43}
    assert "demonstrations and test rows are both of the split test, halved by seed 43" in made["notes"]
    local = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "all.jsonl"}}}
    hub = fields(tmp_path, CHOICE, training_split=..., validation_split=..., **local)["data"]["hub"]
    assert hub["holdout"] == {"share": 0.5, "seed": 43}
    assert hub["arguments"] == {"data_files": {"test": [str(Path("all.jsonl").absolute())]}}


@pytest.mark.parametrize(
    ("pattern", "ours"), [("[A-D]", "([A-D])"), ("(?s)a.b", "(?s)(a.b)"), ("(?is)a|b", "(?is)(a|b)"), ("x(.)", "x(.)")]
)
def test_a_pattern_without_a_group_is_compared_whole(tmp_path, pattern, ours):
    steps = [{"name": "one", "filter": [{"function": "regex", "regex_pattern": pattern}]}]
    assert fields(tmp_path, WRITTEN, filter_list=steps)["answer"]["extract"] == ours


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        (CHOICE, {"output_type": "loglikelihood"}, "output_type loglikelihood"),
        (CHOICE, {"gen_prefix": "So"}, "gen_prefix (a given beginning of the answer)"),
        (CHOICE, {"mystery": 1}, "mystery (an unknown field)"),
        (CHOICE, {"doc_to_text": ""}, "doc_to_text (empty: all rows would make the same prompt)"),
        (CHOICE, {"doc_to_text": 3}, "doc_to_text (3, which is not a text)"),
        (CHOICE, {"doc_to_target": [0]}, "doc_to_target (a list, which is not a text)"),
        (CHOICE, {"description": "{{thing}}"}, "description (with Jinja: it differs from row to row)"),
        (CHOICE, {"fewshot_delimiter": " "}, "fewshot_delimiter (' ', which does not end a line)"),
        (CHOICE, {"fewshot_config": {"doc_to_text": "x"}}, "fewshot_config.doc_to_text"),
        (CHOICE, {"fewshot_config": {"sampler": "mine"}}, "fewshot_config.sampler ('mine')"),
        (CHOICE, {"repeats": 4}, "repeats (several answers a row)"),
        (CHOICE, {"doc_to_choice": [True, False]}, "doc_to_choice (a choice that is not a text)"),
        (CHOICE, {"doc_to_choice": ...}, "doc_to_choice (is missing)"),
        (CHOICE, {"test_split": ..., "validation_split": ...}, "test_split (neither it nor validation_split is given)"),
        (
            WRITTEN,
            {"dataset_kwargs": {"data_files": {"train": "a.jsonl", "test": ["b", 3]}}},
            "dataset_kwargs.data_files (test: expected the paths of files)",
        ),
        (
            WRITTEN,
            {"dataset_kwargs": {"data_files": "a.jsonl"}},
            "dataset_kwargs.data_files (no file of the split test)",
        ),
        (WRITTEN, {"generation_kwargs": {"do_sample": True}}, "generation_kwargs.do_sample (answers drawn at random)"),
        (WRITTEN, {"generation_kwargs": {"until": []}}, "generation_kwargs.until (empty: nothing ends an answer)"),
        (WRITTEN, {"generation_kwargs": {"num_beams": 4}}, "generation_kwargs.num_beams"),
        (WRITTEN, {"generation_kwargs": {"min_p": 0.1}}, "generation_kwargs.min_p"),
        (WRITTEN, {"doc_to_choice": ["a", "b"]}, "doc_to_choice (with output_type: generate_until)"),
        (WRITTEN, {"metric_list": [{"metric": "ter"}]}, "metric ter"),
        (
            WRITTEN,
            {"metric_list": [{"metric": "exact_match", "ignore_numbers": True}]},
            "metric exact_match with ignore_numbers",
        ),
        (WRITTEN, {"filter_list": [{"name": "x", "filter": [{"function": "lowercase"}]}]}, "filter lowercase"),
        (
            WRITTEN,
            {"filter_list": [{"name": "x", "filter": [{"function": "regex", "regex_pattern": "("}]}]},
            "filter regex (missing ), unterminated subpattern at position 0)",
        ),
        (
            WRITTEN,
            {"filter_list": [{"name": "x", "filter": [{"function": "regex", "group_select": 1}]}]},
            "filter regex with group_select 1",
        ),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(tmp_path, text, changes, said):
    assert refusal(tmp_path, text, **changes) == said


def test_all_that_cannot_be_said_is_named_at_once_and_no_function_is_called(tmp_path):
    (tmp_path / "utils.py").write_text("raise SystemExit('called')")
    path = tmp_path / "theirs.yaml"
    path.write_text(
        f"{CHOICE}process_docs: !function utils.rows\nrepeats: 2\n".replace(
            "doc_to_target: colour", "doc_to_target: !function utils.target"
        )
    )
    with pytest.raises(UserError) as error:
        converted(path)
    assert (
        "icl-bench: doc_to_target (a Python function, utils.target); "
        "process_docs (rows changed by a function, utils.rows); repeats (several answers a row). icl-bench never runs Python "
        "code of task files; give the rows that it makes"
    ) in str(error.value)


def test_a_task_written_in_python_is_told_as_that(tmp_path):
    path = tmp_path / "theirs.yaml"
    for code, named in (("!function utils.Mine", "utils.Mine"), ("lm_eval.tasks.Mine", "lm_eval.tasks.Mine")):
        path.write_text(f"task: mine\nclass: {code}\n")
        assert f"theirs.yaml: is a task written in Python ({named})" in said("tasks", "--check", path, code=2)


def test_fields_of_included_files_stand_unless_they_are_said_again(tmp_path):
    (tmp_path / "base.yaml").write_text(CHOICE + "task_list: [x]\n")
    (tmp_path / "deeper").mkdir()
    own = tmp_path / "deeper" / "own.yaml"
    own.write_text("include: ../base.yaml\ntask: own\ndoc_to_text: 'So {{thing}} is'\n")
    made = converted(own)
    assert (made["name"], made["template"]["input"]) == ("own", "So {{thing}} is")
    assert made["labels"]["choices"] == ["red", "green"]
    (tmp_path / "base.yaml").write_text("include: deeper/own.yaml\n")
    with pytest.raises(UserError, match="includes itself"):
        converted(own)


def test_a_file_of_theirs_runs_as_one_of_ours_and_is_written_as_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"q": f"{n} + {n}", "a": f"= {2 * n}"} for n in range(1, 5)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    for name in ("sums.jsonl", "asked.jsonl"):
        (tmp_path / name).write_text(lines)
    (tmp_path / "theirs.yaml").write_text(WRITTEN)
    theirs = ("tasks", "--from-lm-eval", "theirs.yaml")
    shown = said(*theirs)
    assert '  input: "{{q}}\\nA:"' in shown
    said(*theirs, "--out", "ours.yaml")
    assert (tmp_path / "ours.yaml").read_text() == shown
    task = load_task("./theirs.yaml")
    assert load_task("./ours.yaml") == task
    data = load_data(task)
    assert [row.golds for row in data.train] == [None] * 4  # what is extracted is of answers alone
    assert data.notes[:3] == task.notes
    assert "ours.yaml: is there already" in said(*theirs, "--out", "ours.yaml", code=2)
    assert "--out: needs --from-csv or --from-lm-eval" in said("tasks", "--out", "ours.yaml", code=2)
    assert "ours.txt: a task file ends in .yaml" in said(*theirs, "--out", "ours.txt", code=2)


ROWS = {
    "train": [("001", "False", "2020-01-01 10:00:00", ""), ("002", "True", "", "x")],
    "test": [("3", "True", "", "")],
}
TYPED = """
task: typed
dataset_path: {kind}
dataset_kwargs: {files}
training_split: train
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{code}}}} {{{{flag}}}} {{{{at}}}} {{{{more}}}}:"
doc_to_target: flag
doc_to_choice: ["no", "yes"]
"""


def _typed(folder: Path, kind: str, files: Any) -> list[tuple[str, str]]:
    (folder / "typed.yaml").write_text(TYPED.format(kind=kind, files=json.dumps({"data_files": files})))
    data = load_data(load_task(folder / "typed.yaml"))
    return [(row.fields["input"], row.answer) for row in (*data.train, *data.test)]


def test_cells_of_csv_files_are_typed_as_datasets_types_them(tmp_path):
    for split, rows in ROWS.items():
        (tmp_path / f"{split}.csv").write_text(
            "".join(f"{','.join(r)}\n" for r in [("code", "flag", "at", "more"), *rows])
        )
    # paths are relative to the working folder, else to the task's file
    assert _typed(tmp_path, "csv", {"train": "train.csv", "test": ["test.csv"]}) == [
        ("1 False 2020-01-01 10:00:00 None:", "no"),
        ("2 True None x:", "yes"),
        ("3 True None None:", "yes"),
    ]


def test_files_are_json_arrays_lines_and_several_of_a_split(tmp_path):
    rows = [{"code": f"0{n}", "flag": bool(n % 2), "at": "now", "more": {"n": n}} for n in range(5)]
    (tmp_path / "a.json").write_text(json.dumps(rows[:2]))
    (tmp_path / "b.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows[2:4]))
    (tmp_path / "c.json").write_text(json.dumps(rows[4:]))
    found = _typed(tmp_path, "json", {"train": ["a.json", "b.jsonl"], "test": "c.json"})
    assert found == [(f"0{n} {bool(n % 2)} now {{'n': {n}}}:", ["no", "yes"][n % 2]) for n in range(5)]
    (tmp_path / "c.json").write_text(json.dumps([{**rows[4], "code": "changed"}]))
    found = _typed(tmp_path, "json", {"train": ["a.json", "b.jsonl"], "test": "c.json"})
    assert found[-1][0].startswith("changed")  # nothing of an earlier reading is kept


def test_of_many_files_a_message_names_a_few_and_counts_the_others(tmp_path):
    files = {"train": [str(tmp_path / f"{n}.json") for n in range(4)], "test": str(tmp_path / "4.json")}
    (tmp_path / "typed.yaml").write_text(TYPED.format(kind="json", files=json.dumps({"data_files": files})))
    with pytest.raises(UserError, match=r"0\.json, \S+/1\.json, \S+/2\.json and 2 more\): "):
        load_data(load_task(tmp_path / "typed.yaml"))


def test_named_files_go_before_a_folder_of_the_tasks_name(tmp_path):
    folder = tmp_path / "data" / "typed"
    folder.mkdir(parents=True)
    row = {"code": "c", "flag": True, "at": "", "more": ""}
    for name in ("train", "test"):
        (folder / f"{name}.jsonl").write_text(json.dumps({**row, "code": "another"}))
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    files = {"train": "rows.json", "test": "rows.json"}
    (tmp_path / "typed.yaml").write_text(TYPED.format(kind="json", files=json.dumps({"data_files": files})))
    data = load_data(load_task(tmp_path / "typed.yaml"), data_dir=tmp_path / "data")
    assert data.train[0].fields == {"input": "c True  :"}
    assert data.origin == f"json files ({tmp_path / 'rows.json'})"


@pytest.mark.parametrize(
    ("content", "why"), [(None, "Unable to find '.*rows.json'"), ("[1", "Unexpected character found"), ("", "")]
)
def test_files_that_datasets_cannot_read_are_refused_in_one_line(tmp_path, content, why):
    if content is not None:
        (tmp_path / "rows.json").write_text(content)
    with pytest.raises(
        UserError, match=rf"^typed: no data: datasets cannot read its json files \(\S+rows\.json\): \w+: .*({why})"
    ) as error:
        _typed(tmp_path, "json", {"train": "rows.json", "test": "rows.json"})
    assert "\n" not in str(error.value)


def test_what_becomes_no_task_of_ours_is_said_of_their_file(tmp_path):
    path = tmp_path / "theirs.yaml"
    path.write_text(CHOICE.replace('["red", "green"]', '["red", "red"]'))
    assert "theirs.yaml:2: choices has 'red' twice" in said("tasks", "--from-lm-eval", path, code=2)


@pytest.mark.parametrize("group", ["colours_and_more", ["one", "two"]])
def test_the_group_of_an_older_file_is_a_tag(tmp_path, group):
    assert fields(tmp_path, CHOICE, group=group) == fields(tmp_path, CHOICE)


def test_a_file_of_ours_is_not_taken_for_one_of_theirs():
    assert is_lm_eval(yaml.safe_load(CHOICE))
    assert not is_lm_eval({"name": "x", "data": {}, "template": {}})
    assert not is_lm_eval([1])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.sampled_from(["", "x", "{{q}}", "\n", "test", "acc"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "metric",
                    "name",
                    "filter",
                    "function",
                    "until",
                    "split",
                    "data_files",
                    "temperature",
                    "max_gen_toks",
                    "do_sample",
                    "regex_pattern",
                    "group_select",
                    "num_beams",
                    "revision",
                    "x",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
)


@settings(max_examples=150)
@given(
    text=st.sampled_from([CHOICE, WRITTEN]),
    name=st.sampled_from(
        sorted(
            yaml.safe_load(CHOICE + WRITTEN.replace("task:", "alias:").replace("metric_list:", "more:")).keys()
            - {"alias", "more"}
        )
    ),
    value=VALUES,
)
def test_whatever_a_field_holds_it_becomes_a_task_or_one_clear_line(
    text: str, name: str, value: Any, tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("any")
    try:
        TaskSpec.model_validate(fields(folder, text, **{name: value}))
    except (UserError, ValidationError) as error:
        assert isinstance(error, ValidationError) or "\n" not in str(error)  # noqa: PT017
