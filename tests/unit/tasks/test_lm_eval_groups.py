"""Groups of lm-evaluation-harness: their tasks, found by name, tag or as fields of the group's file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.in_process import run_command, said

from icl_bench.cli.jobs import each_of
from icl_bench.errors import UserError
from icl_bench.studies.file import load_study
from icl_bench.tasks.task_files import load_task, tasks_of

TASK: dict[str, Any] = {
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"train": "rows.json", "test": "rows.json"}},
    "training_split": "train",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{thing}} is",
    "doc_to_target": "colour",
    "doc_to_choice": ["red", "green"],
}


def write(path: Path, **values: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three tasks, of which two have a tag that an included file says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.json").write_text(
        json.dumps([{"thing": f"t{n}", "colour": ["red", "green"][n % 2]} for n in range(4)])
    )
    write(tmp_path / "own" / "a.yaml", task="a", **TASK)
    write(tmp_path / "own" / "_base_yaml", tag=["tagged"], **TASK)
    for name in "cb":
        write(
            tmp_path / "own" / "deep" / f"{name}.yaml",
            task=name,
            include="../_base_yaml",
            doc_to_text=f"{name} {{{{thing}}}}",
        )
    return tmp_path


def inputs(names: list[str]) -> dict[str, str]:
    """The templates of tasks by their names."""
    specs = [load_task(name) for name in names]
    return {spec.name: spec.template.input for spec in specs}


def test_a_group_is_its_tasks_by_name_and_by_tag(folder: Path):
    group = write(
        folder / "own" / "all.yaml", group="all", task=["a", "tagged"], aggregate_metric_list=[{"metric": "acc"}]
    )
    assert inputs(tasks_of(str(group))) == {"a": "{{thing}} is", "b": "b {{thing}}", "c": "c {{thing}}"}
    assert tasks_of(str(group))[0] == str(folder / "own" / "a.yaml")
    assert [one["task"] for one in each_of({"task": f"{group},trec", "model": "m"})] == [*tasks_of(str(group)), "trec"]


def test_files_in_hidden_folders_are_no_tasks_of_a_group(folder: Path):
    """Version control, virtual environments and notebooks keep copies in them."""
    hidden = [folder / "own" / name for name in (".git/x", ".venv/lib/tasks", "deep/.ipynb_checkpoints")]
    for number, place in enumerate(hidden):
        write(place / "a.yaml", task="a", **{**TASK, "doc_to_text": "hidden"})
        write(place / "d.yaml", task=f"d{number}", tag=["tagged"], **TASK)
    group = write(folder / "own" / "all.yaml", group="all", task=["a", "tagged"])
    assert inputs(tasks_of(str(group))) == {"a": "{{thing}} is", "b": "b {{thing}}", "c": "c {{thing}}"}


def test_a_group_in_a_hidden_folder_has_its_tasks(folder: Path):
    write(folder / ".mine" / "a.yaml", task="a", **TASK)
    group = write(folder / ".mine" / "all.yaml", group="all", task=["a"])
    assert inputs(tasks_of(str(group))) == {"a": "{{thing}} is"}


def test_fields_of_a_group_override_those_of_its_tasks(folder: Path):
    group = write(
        folder / "own" / "all.yaml",
        group="all",
        description="Colours.\n",
        task=["a", {"task": "b", "doc_to_text": "other {{thing}}", "description": "Mine.\n"}],
    )
    names = tasks_of(str(group))
    assert names == [f"{group}::a", f"{group}::b"]
    assert inputs(names) == {"a": "{{thing}} is", "b": "other {{thing}}"}
    assert [load_task(name).template.start for name in names] == ["Colours.\n", "Mine.\n"]


def test_a_group_has_tasks_and_groups_of_its_own_and_names_other_groups(folder: Path):
    write(folder / "own" / "few.yaml", group="few", task=["a"])
    inner = {"group": "inner", "task": [{"task": "new", **TASK, "doc_to_text": "new {{thing}}"}, "c"]}
    listed = ["few", inner, {"task": "from_file", "include": "_base_yaml"}]
    group = write(folder / "own" / "all.yaml", group="all", task=listed)
    found = inputs(tasks_of(str(group)))
    assert found == {
        "a": "{{thing}} is",
        "all--inner--new": "new {{thing}}",
        "c": "c {{thing}}",
        "all--from_file": "{{thing}} is",
    }


def test_names_are_looked_for_in_the_whole_folder_of_tasks(folder: Path):
    write(folder / "tasks" / "far" / "far.yaml", task="far", **TASK)
    group = write(folder / "tasks" / "groups" / "all.yaml", group="all", task=["far"])
    assert inputs(tasks_of(str(group))) == {"far": "{{thing}} is"}
    group = write(folder / "elsewhere" / "all.yaml", group="all", task=["far"])
    with pytest.raises(UserError, match=r"all\.yaml: no task, group or tag far in .*elsewhere$"):
        load_task(tasks_of(str(group))[0])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"group": "all", "task": ["all"]}, "the group all is inside itself"),
        ({"group": "all", "task": [3]}, "a group lists names of tasks, or fields with a task, not 3"),
        ({"group": "all", "task": [{"doc_to_text": "x"}]}, "a group lists names of tasks, or fields with a task, not"),
        ({"group": "all", "task": []}, "is a group of tasks, and one is needed here: it has none"),
        ({"group": "all"}, "is a group of tasks, and one is needed here: it has none"),
    ],
)
def test_a_group_that_is_none_is_refused(folder: Path, values: dict[str, Any], said: str):
    group = write(folder / "all.yaml", **values)
    with pytest.raises(UserError, match=f"all.yaml: {said}"):
        load_task(tasks_of(str(group))[0])


def test_where_one_task_is_needed_those_of_the_group_are_named(folder: Path):
    group = write(folder / "all.yaml", group="all", task=["a", {"task": "b", "doc_to_text": "{{thing}}"}])
    with pytest.raises(UserError, match=r"is a group of tasks, and one is needed here: .*own/a\.yaml, .*all\.yaml::b$"):
        load_task(group)
    with pytest.raises(UserError, match="the group has no task nobody; it has a, b"):
        load_task(f"{group}::nobody")
    with pytest.raises(UserError, match="is one task, not a group"):
        load_task(f"{folder / 'own' / 'a.yaml'}::a")


def test_all_tasks_of_a_group_are_checked_and_what_cannot_run_is_named(folder: Path):
    (folder / "own" / "python.yaml").write_text("task: python\nclass: !function utils.Mine\n")
    write(folder / "own" / "all.yaml", group="all", task=["a", "python", "b"])
    ended = run_command("tasks", "--check", "own/all.yaml", "--json")
    assert ended.code == 2
    assert "own/python.yaml: is a task written in Python (utils.Mine)" in ended.err
    assert "1 of 3 tasks of own/all.yaml cannot be read" in ended.err
    assert [report["task"] for report in json.loads(ended.out)] == ["a", "b"]
    assert "name: b" in said("tasks", "--from-lm-eval", "own/all.yaml::b")


def test_a_damaged_task_of_a_group_is_named_and_stops_no_other(folder: Path):
    (folder / "own" / "damaged.yaml").write_text("task: damaged\ndataset_path: [\n")
    listed = ["damaged", {"task": "new", "include": "nowhere.yaml"}, "a"]
    group = write(folder / "own" / "all.yaml", group="all", task=listed)
    ended = run_command("tasks", "--check", group, "--json")
    assert "damaged.yaml:3: not YAML: " in ended.err
    assert "nowhere.yaml" in ended.err
    assert [report["task"] for report in json.loads(ended.out)] == ["a"]


def test_a_study_has_the_tasks_of_a_group(folder: Path):
    write(folder / "own" / "all.yaml", group="all", task=["a", "b"])
    study = write(folder / "study.yaml", tasks=["./own/all.yaml"], models=["m"], settings=[{"k": [1]}])
    file = load_study(study)
    assert [job.task for job in file.jobs] == tasks_of(str(folder / "own" / "all.yaml"))
    assert file.place_of("tasks", file.jobs[1].task) == ("tasks", 0)


def test_a_shipped_group_is_all_its_tasks_in_a_run_and_in_a_study(tmp_path: Path):
    tasks = tasks_of("bbh")
    assert [one["task"] for one in each_of({"task": "bbh,trec", "model": "m"})] == [*tasks, "trec"]
    study = tmp_path / "study.yaml"
    study.write_text("tasks: [bbh]\nmodels: [m]\nsettings: [{k: 1}]\n")
    assert [job.task for job in load_study(study).jobs] == tasks
