"""Studies laid out and carried out with a tiny model: every cell that is meant, once, and no other."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.fakes import write_rows, write_task
from support.in_process import run_command, said
from support.models import tiny_checkpoint

from icl_bench.analysis.all_findings import read_findings
from icl_bench.cli import main
from icl_bench.errors import NotHereError, UserError
from icl_bench.models import registry
from icl_bench.results.reading import read_results
from icl_bench.results.studies import FOLDER, read_studies
from icl_bench.studies.file import known_studies, load_study
from icl_bench.studies.parts import Engines, Listener, PromptPart, run_here
from icl_bench.studies.rules import PointFilter, Rule
from icl_bench.studies.study import Study, check_rules
from icl_bench.studies.workers import LocalWorkers, Team, WorkerSpec
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.runner import Outcome
from icl_bench.sweep.sweep import Sweep
from icl_bench.tasks.task_files import load_task

STUDY = """\
tasks: [stdlib_six]
models: [./first, ./second]
options: {test_size: 4, dtype: float32, draws: 2}
settings:
  - name: plain
    select: [random, bm25]
    k: [2, 4]
    draws: 1
  - name: shuffled
    order: "shuffled:1"
    k: 3
  - name: neighbours
    finetune: probe
    k: 12
    models: [./first]
exclude:
  - {model: second, select: bm25, k: 4}
  - {model: second, setting: shuffled, draw: 1}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("study")
    for name in ("first", "second"):
        tiny_checkpoint(root / name)
    (root / "mine.yaml").write_text(STUDY, encoding="utf-8")
    return root


def prepared(folder: Path, *only: str) -> Study:
    file = load_study(folder / "mine.yaml")
    return Study.prepare(file, PointFilter(file.exclude, Rule.parse(only) if only else None))


EXPECTED = {
    *(
        ("first", select, "drawn" if select == "random" else "relevance", k, 0)
        for select in ("random", "bm25")
        for k in (2, 4)
    ),
    ("first", "random", "shuffled:1", 3, 0),
    ("first", "random", "shuffled:1", 3, 1),
    ("first", "probe", "drawn", 12, 0),
    ("first", "probe", "drawn", 12, 1),
    ("second", "random", "drawn", 2, 0),
    ("second", "random", "drawn", 4, 0),
    ("second", "bm25", "relevance", 2, 0),
    ("second", "random", "shuffled:1", 3, 0),
}


def asked(study: Study) -> set[tuple[Any, ...]]:
    return {
        (c.model, c.select, c.order, c.k, c.draw)
        for part in study.parts
        for c in (cell.identity.spec for cell in part.cells())
    }


def test_what_is_laid_out_is_what_rules_leave(folder: Path):
    assert asked(prepared(folder)) == EXPECTED
    few = prepared(folder, "model=first", "k=2,3")
    assert asked(few) == {one for one in EXPECTED if one[0] == "first" and one[3] in (2, 3)}
    assert asked(prepared(folder, "setting=neighbours")) == {one for one in EXPECTED if one[1] == "probe"}
    assert asked(prepared(folder, "select=bm25")) == {one for one in EXPECTED if one[1] == "bm25"}
    with pytest.raises(UserError, match="nothing to run"):
        prepared(folder, "setting=neighbours", "model=second")


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ("model=third", "--only model=third: no point of "),
        ("k=2,11", r"--only k=11: no point of \S+mine\.yaml has it; did you mean 12\?"),
        ("select=BM25", r"--only select=BM25: no point .*; did you mean bm25\?"),
        ("draw=0,2", r"--only draw=2: no point .*; known: 0, 1"),
        ("attention=ful", "--only attention=ful: no point .*; did you mean full"),
        ("setting=plain,model=first", "--only setting=model=first: no point"),
        ("labels=all,halves", "--only labels=halves: no point"),
    ],
)
def test_a_part_with_a_value_that_no_point_has_is_refused(folder: Path, only: str, said: str):
    with pytest.raises(UserError, match=said):
        prepared(folder, only)


def test_a_rule_with_a_value_that_no_point_has_is_refused_with_its_line(folder: Path):
    rules = """\
  - {select: "bm25,random", k: "4,5"}
  - {model: frist}
  - {select: BM25, order: by-label}
  - {select: probe, task: stdlib_six, queries: test, perturbation: none, draw: [0, 1]}
"""
    (folder / "wrong.yaml").write_text(STUDY + rules, encoding="utf-8")
    file = load_study(folder / "wrong.yaml")
    with pytest.raises(UserError) as refused:
        Study.prepare(file, PointFilter(file.exclude))
    said = [line.rpartition("/")[2] for line in str(refused.value).splitlines()]
    assert [line.partition("; ")[0] for line in said] == [
        "wrong.yaml:19: exclude: k: no point has 5",
        "wrong.yaml:20: exclude: model: no point has frist",
        "wrong.yaml:21: exclude: order: no point has by-label",
        "wrong.yaml:21: exclude: select: no point has BM25",
    ]
    assert said[-1].endswith("; did you mean bm25?")


def test_numbers_that_depend_on_model_and_data_may_be_in_rules(folder: Path):
    text = STUDY.replace("k: 3", "k: [3, max]").replace("bm25, k: 4", "bm25, k: [4, 250]")
    (folder / "open.yaml").write_text(text, encoding="utf-8")
    file = load_study(folder / "open.yaml")
    assert Study.prepare(file, PointFilter(file.exclude)).parts
    with pytest.raises(UserError, match="--only k=max: no point"):
        Study.prepare(file, PointFilter(file.exclude, Rule.parse(["k=max"])))


@pytest.mark.parametrize("name", known_studies())
def test_rules_of_shipped_studies_have_known_values(name: str):
    file = load_study(name)
    check_rules(file, PointFilter(file.exclude))


MIXED = """\
tasks: [stdlib]
models: [./first]
options: {draws: 1, test_size: 4, device: cpu, dtype: float32}
settings:
  - {name: mixed, select: [random, bm25], order: [drawn, relevance], k: [1, 3]}
exclude:
  - {select: random, order: relevance}
"""


def test_a_block_leaves_out_what_makes_no_sense_and_says_so_unless_it_is_excluded(folder: Path):
    (folder / "mixed.yaml").write_text(MIXED, encoding="utf-8")
    file = load_study(folder / "mixed.yaml")
    (part,) = Study.prepare(file, PointFilter(file.exclude)).parts
    assert {(one.spec.select, one.spec.order) for one in part.identities()} == {
        ("random", "drawn"),
        ("bm25", "relevance"),
    }
    left_out = [text for text in part.problems() if text.startswith("left out")]
    assert [text.partition(": order")[0] for text in left_out] == ["left out: bm25, drawn"]


def test_a_part_and_then_the_whole_compute_each_cell_once_and_the_report_knows(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    loaded: list[object] = []
    load = Engines.load
    monkeypatch.setattr(Engines, "load", lambda self, part: loaded.append(part.engine) or load(self, part))
    results = tmp_path / "results"
    part = prepared(folder, "model=second")
    outcome = part.run(results, Listener())
    assert (len(outcome.computed), len(outcome.kept)) == (4, 0)
    assert len(set(loaded)) == 1
    points = read_findings(results).study_points
    assert points["cells"].sum() == points["done"].sum() == 4
    whole = prepared(folder)
    whole.record(results)
    points = read_findings(results).study_points
    assert (points["cells"].sum(), points["done"].sum(), points["missing"].sum()) == (12, 4, 8)
    outcome = whole.run(results, Listener())
    assert (len(outcome.computed), len(outcome.kept), len(outcome.failed)) == (8, 4, 0)
    points = read_findings(results).study_points
    assert points["done"].sum() == 12
    assert set(points["setting"]) == {"plain", "shuffled", "neighbours"}
    found = read_results(results)
    cells = found.drop_duplicates("cell")
    there = zip(cells["model"], cells["select"], cells["order"], cells["k"], cells["draw"], strict=True)
    assert set(there) == EXPECTED
    # the same predictions as those of a run of its own
    job = next(one for one in whole.parts if isinstance(one, PromptPart))
    Sweep.prepare(job.sweep.spec).run(tmp_path / "alone")
    alone, mine = (
        {(row.cell, row.test_id): (row.prediction, row.prompt_tokens) for row in frame.itertuples()}
        for frame in (read_results(tmp_path / "alone"), found)
    )
    assert len(alone) == 16
    assert {key: mine[key] for key in alone} == alone


def test_a_part_asked_for_later_is_added_to_what_is_recorded(folder: Path, tmp_path: Path):
    prepared(folder, "model=second").record(tmp_path)
    prepared(folder, "setting=neighbours").record(tmp_path)
    (study,) = read_studies(tmp_path)
    assert (study.study, len(study.cells)) == ("mine", 6)
    prepared(folder).record(tmp_path)
    assert len(read_studies(tmp_path)[0].cells) == 12


OWN = """\
tasks: [./rows.csv]
models: [./first]
options: {test_size: 4, dtype: float32, draws: 2}
settings:
  - {name: small, k: [2, 3]}
  - {name: large, k: [3, 4]}
  - {name: several, k: 2}
  - {name: several, k: 2, perturbation: "labels:permuted"}
"""


def test_a_setting_has_its_own_cells_also_if_another_has_them_and_no_cells_of_replaced_data(
    folder: Path, tmp_path: Path
):
    def recorded(word: str, *only: str) -> dict[str, int]:
        rows = [f"{word} {n},{'ab'[n % 2]}\n" for n in range(40)]
        (folder / "rows.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8")
        file = load_study(folder / "own.yaml")
        Study.prepare(file, PointFilter(file.exclude, Rule.parse(only) if only else None)).record(tmp_path)
        (study,) = read_studies(tmp_path)
        return Counter(cell.setting for cell in study.cells)

    (folder / "own.yaml").write_text(OWN, encoding="utf-8")
    every = {"small": 4, "large": 4, "several": 4}
    assert recorded("one") == every
    assert recorded("one", "setting=small") == every
    assert recorded("two", "setting=small") == every
    assert recorded("two", "setting=large", "k=3") == every
    assert recorded("two", "perturbation=none") == every | {"several": 6}  # which block the others are of is not stored


def test_of_one_task_or_model_nothing_of_others_is_said_to_be_missing(folder: Path, tmp_path: Path):
    part = prepared(folder, "setting=shuffled", "model=second")
    part.run(tmp_path, Listener())
    (file,) = (tmp_path / FOLDER).iterdir()
    study = json.loads(file.read_text())
    del study["check"]
    other = {**study["cells"][0], "task": "another", "cell": "0" * 12}
    file.write_text(json.dumps({**study, "cells": [*study["cells"], other]}))
    assert read_findings(tmp_path).study_points["missing"].sum() == 1
    for only in ({"task": "stdlib_six"}, {"task": "stdlib_six", "model": "second"}):
        points = read_findings(tmp_path, **only).study_points
        assert points[["done", "missing"]].to_numpy().tolist() == [[1, 0]]


def test_what_failed_is_told_with_its_reason(folder: Path, tmp_path: Path):
    study = prepared(folder, "setting=plain", "model=first", "select=random")
    study.record(tmp_path)
    cells = [cell.identity for part in study.parts for cell in part.cells()]
    mark = {
        "spec": cells[0].spec.model_dump(),
        "reason": "out of memory",
        "cell": cells[0].cell,
        "variant": cells[0].variant,
        "facts": {},
    }
    (tmp_path / f"{cells[0].name}.failed.json").parent.mkdir(parents=True)
    (tmp_path / f"{cells[0].name}.failed.json").write_text(json.dumps(mark))
    points = read_findings(tmp_path).study_points.set_index("k")
    assert points.loc[cells[0].spec.k, ["failed", "reason"]].tolist() == [1, "out of memory"]
    assert points.loc[cells[1].spec.k, ["failed", "missing"]].tolist() == [0, 1]


def test_finished_cells_of_a_changed_task_are_not_kept_when_their_group_is_given_up(folder: Path, tmp_path: Path):
    def part(column: str) -> PromptPart:
        data = {"train": "train.jsonl", "test": "test.jsonl", "fields": {"text": column, "label": "label"}}
        task = write_task(tmp_path, data=data)
        for split in ("train", "test"):
            rows = [{"text": f"{split} {n}", "title": f"lost {n}", "label": "ab"[n % 2]} for n in range(8)]
            write_rows(tmp_path / f"{split}.jsonl", rows)
        return PromptPart.of(
            Sweep.prepare(RunSpec(task=str(task), model=str(folder / "first"), k="1", draws=1, dtype="float32"))
        )

    results = tmp_path / "results"
    part("text").sweep.run(results)
    assert len(part("text").give_up(0, results, "lost").kept) == 1
    outcome = part("title").give_up(0, results, "lost")
    assert outcome.kept == []
    (reason,) = outcome.failed.values()
    assert "was computed with data.fields.text: 'text', and task cards now has 'title'" in reason


@pytest.mark.parametrize("by", [None, LocalWorkers(WorkerSpec(None)), LocalWorkers(WorkerSpec(2))], ids=str)
def test_a_part_that_cannot_be_computed_leaves_the_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: LocalWorkers | None
):
    def load_unless_damaged(self: Engines, part: PromptPart) -> Any:
        if part.model == "first":
            raise UserError("the model is damaged")
        return load(self, part)

    load = Engines.load
    monkeypatch.setattr(Engines, "load", load_unless_damaged)
    monkeypatch.setattr(Team, "run", lambda self, *others: run_here(self.parts, *others))
    outcome = prepared(folder, "setting=shuffled").run(tmp_path, Listener(), by)
    assert outcome.stopped == ["shuffled: stdlib_six with " + str(folder / "first") + ": the model is damaged"]
    assert [cell.model for cell in outcome.computed] == ["second"]
    with pytest.raises(UserError, match="the model is damaged"):
        prepared(folder, "setting=shuffled", "model=first").run(tmp_path, Listener(), by)


def test_a_study_of_which_nothing_can_be_computed_ends_with_the_reasons(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def damaged(self: Engines, part: PromptPart) -> Any:
        raise UserError("the model is damaged")

    monkeypatch.setattr(Engines, "load", damaged)
    ended = run_command("study", folder / "mine.yaml", "--only", "setting=shuffled", "--results", tmp_path)
    assert ended.code == 1
    assert ended.err.count("\nstopped: shuffled: stdlib_six with ") == 2
    assert "error" not in ended.err


def test_what_workers_leave_out_is_told(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Team, "run", lambda *_: Outcome())
    (folder / "long.yaml").write_text(STUDY.replace("k: [2, 4]", "k: [2, 4, 50000]"), encoding="utf-8")
    words = ("study", folder / "long.yaml", "--only", "setting=plain", "--results", tmp_path, "--workers", 2)
    told = " ".join(run_command(*words).err.split())
    assert "plain, stdlib_six with second" in told
    assert told.count("skipped: k=50000 is more than the pool's") == 3  # second has bm25 in a part of its own


def test_a_damaged_record_is_left_out_with_a_warning(folder: Path, tmp_path: Path):
    prepared(folder, "setting=neighbours").record(tmp_path)
    (tmp_path / FOLDER / "other.json").write_text('{"study": "other"}')
    with pytest.warns(UserWarning, match="other.json: cannot be read"):
        assert [one.study for one in read_studies(tmp_path)] == ["mine"]


def test_the_command_plans_runs_and_says_how_far_it_is(folder: Path, tmp_path: Path):
    def study(*words: str) -> str:
        return said("study", folder / "mine.yaml", "--results", tmp_path / "r", *words)

    plan = json.loads(study("--plan", "--json"))
    assert len(plan) == 12
    assert not (tmp_path / "r").exists()
    assert {one["backend"] for one in plan} == {"transformers", "training"}
    assert all(one["new_tokens"] > 0 for one in plan if one["backend"] == "transformers")
    assert "mine: 12 cells" in study("--plan")
    done = study("--only", "model=second")
    assert "plain" in done
    states = json.loads(study("--only", "model=second", "--json"))
    assert sum(one["done"] for one in states) == 4


def test_without_a_file_the_command_lists_the_shipped_studies_and_what_they_are():
    text = " ".join(said("study").split())
    for option in (["--plan"], ["--only", "k=1"]):
        assert f"{option[0]}: needs a study" in said("study", *option, code=2)
    records = json.loads(said("study", "--json"))
    assert [one["name"] for one in records] == list(known_studies())
    for one in records:
        assert one["description"]
        assert f"{one['name']} " in text
    assert "A small study of both packaged models" in text


HUB = """\
tasks: [stdlib_six]
models: [llama2, ./first]
options: {test_size: 4, dtype: float32}
settings:
  - {name: counted, select: [random, bm25], k: [2, 4], draws: 3}
  - {name: open, k: auto}
  - {name: trained, finetune: [probe, knn], k: [12, 24], draws: 2}
"""


@pytest.fixture
def without_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def refuse(hub: str, *_: Any, **__: Any) -> Path:
        raise NotHereError(f"{hub} cannot be downloaded")

    monkeypatch.setattr(registry, "fetch", refuse)
    path = folder / "hub.yaml"
    path.write_text(HUB, encoding="utf-8")
    return path


def test_without_the_hub_a_plan_says_what_it_cannot_know(without_hub: Path):
    file = load_study(without_hub)
    study = Study.prepare(file, PointFilter(file.exclude), to_run=False)
    assert {part.model for part in study.parts} == {"first"}
    assert {one.job.setting: one.cells for one in study.unplanned} == {"counted": 12, "open": None, "trained": 8}
    out = said("study", without_hub, "--plan")
    assert "at most 12" in out
    assert "not known for 3 parts" in out
    assert "meta-llama/Llama-2-7b-hf cannot be downloaded" in " ".join(out.split())
    only = PointFilter(file.exclude, Rule.parse(["select=bm25,knn", "k=2,12"]))
    some = Study.prepare(file, only, to_run=False)
    assert {one.job.setting: one.cells for one in some.unplanned} == {"counted": 3, "open": None, "trained": 2}


def test_what_a_plan_cannot_know_is_a_note_and_no_error(without_hub: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["study", str(without_hub), "--plan", "--json"])
    said = capsys.readouterr()
    assert not ended.value.code
    assert json.loads(said.out)
    assert [line[:27] for line in said.err.splitlines()] == ["note: not known for 3 parts"]


def test_without_the_hub_a_packaged_model_is_planned_and_others_are_not_run(without_hub: Path):
    file = load_study(without_hub)
    study = Study.prepare(file, PointFilter(file.exclude, Rule.parse(["model=first"])))
    assert study.parts
    assert not study.unplanned
    with pytest.raises(UserError, match=r"hub.yaml:2: .*cannot be downloaded"):
        Study.prepare(file, PointFilter(file.exclude))


@pytest.mark.parametrize("name", known_studies())
def test_every_block_of_a_shipped_study_can_be_asked_for(name: str):
    """Of every model: the options and their combinations, without data and weights."""
    for job in load_study(name).jobs:
        spec = job.spec()
        if isinstance(spec, RunSpec):
            _, combinations = spec.check(load_task(job.task), to_run=False)
            combinations.require_some()
        else:
            spec.check()


def test_the_papers_study_asks_mistral_its_own_rows_where_they_are_published():
    tasks = ("trec", "trec_fine", "nlu", "banking77", "clinic150")
    asked = {(job.task, job.spec().test_ids) for job in load_study("bertsch2025").jobs if job.model == "mistral"}
    assert asked == {("samsum", None), *((t, "paper-mistral") for t in tasks)}
