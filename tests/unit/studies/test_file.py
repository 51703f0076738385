"""Study files: what they say, and that all that is wrong in one is said at once, by its lines."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from icl_bench.errors import UserError
from icl_bench.studies.file import BLOCK, FINETUNE, RUN, StudyFields, StudyFile, known_studies, load_study
from icl_bench.studies.rules import KEYS, PointFilter, Rule
from icl_bench.studies.study import check, names_of
from icl_bench.sweep.options import OF_THE_MODEL, RunOptions
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.training.spec import FinetuneSpec

STUDY = """\
tasks: [stdlib, stdlib_six]
models: [gemma3-270m, other]
options: {test_size: 20, k: "1,10", dtype: float32}
engines:
  "*": {pack: 4}
  other: {context: 500, pack: 8}
settings:
  - select: [random, "hybrid:2,by=dense"]
    order: drawn
  - name: sorted
    tasks: [stdlib]
    order: [by-label, "shuffled:3"]
    k: [5, 20]
    draws: 2
  - finetune: [probe, knn]
    models: [gemma3-270m]
    k: [40]
"""


def written(tmp_path: Path, text: str = STUDY) -> StudyFile:
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    return load_study(tmp_path / "mine.yaml")


def refused(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(UserError) as found:
        check(written(tmp_path, text), PointFilter())
    return str(found.value).replace(f"{tmp_path}/", "").splitlines()


def test_each_block_is_run_with_its_tasks_and_models_model_by_model(tmp_path: Path):
    jobs = written(tmp_path).jobs
    names = [(job.model, job.setting, job.task) for job in jobs]
    first, second = "random,hybrid:2,by=dense", "probe,knn"
    assert names == [
        ("gemma3-270m", first, "stdlib"),
        ("gemma3-270m", first, "stdlib_six"),
        ("gemma3-270m", "sorted", "stdlib"),
        ("gemma3-270m", second, "stdlib"),
        ("gemma3-270m", second, "stdlib_six"),
        ("other", first, "stdlib"),
        ("other", first, "stdlib_six"),
        ("other", "sorted", "stdlib"),
    ]
    spec = jobs[0].spec()
    assert isinstance(spec, RunSpec)
    assert list(map(str, spec.select)) == ["random", "hybrid:2,by=dense"]
    assert (spec.test_size, spec.dtype, spec.pack) == (20, "float32", 4)
    ordered = jobs[-1].spec()
    assert isinstance(ordered, RunSpec)
    assert list(map(str, ordered.order or ())) == ["by-label", "shuffled:3"]
    assert ordered.k is not None
    assert (ordered.k.numbers, ordered.draws) == ((5, 20), 2)
    assert (ordered.context, ordered.pack) == (500, 8)
    trained = jobs[3].spec()
    assert isinstance(trained, FinetuneSpec)
    # what is for prompts alone does not reach it
    assert (trained.method, trained.test_size, trained.dtype) == (("probe", "knn"), 20, "float32")


def test_every_option_of_a_run_is_an_option_of_a_block_under_the_same_name():
    assert RunOptions.declared().keys() - {"task", "model", "price", "budget", "batch"} == RUN
    assert {"chat", "system", "dtype", "base_url"} <= OF_THE_MODEL <= RUN


@pytest.mark.parametrize("name", known_studies())
def test_a_shipped_study_can_be_read(name: str):
    jobs = load_study(name).jobs
    for job in jobs:
        job.spec()
    assert jobs
    assert all(job.setting for job in jobs)


def test_names_that_begin_with_a_dot_are_paths_from_the_files_folder(tmp_path: Path):
    text = "tasks: [./t.yaml]\nmodels: [./m]\nsettings: [{k: 1, data_dir: ./data}]\n"
    (job,) = written(tmp_path, text).jobs
    assert (job.task, job.model) == (str(tmp_path / "t.yaml"), str(tmp_path / "m"))
    assert job.options["data_dir"] == tmp_path / "data"


# -- what is wrong --------------------------------------------------------------------------------


def test_everything_that_is_wrong_is_said_at_once_with_its_line(tmp_path: Path):
    text = """\
tasks:
  - stdlib
  - stdlibb
models:
  - ./nowhere
settings:
  - k: 1
    unconstrained: true
    score: exact
  - k: ten
  - select: bm25
    k: 5
    order: by-label
    draws: 0
"""
    said = refused(tmp_path, text)
    assert [line.split(": ")[0] for line in said] == [f"mine.yaml:{line}" for line in (3, 5, 8, 10, 14)]
    for line, part in zip(said, ("stdlibb", "nowhere", "exclude each other", "--k ten", "--draws 0"), strict=True):
        assert part in line


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("tasks: [stdlib]\nmodels: [m]\n", 1, "settings: is missing"),
        ("tasks: []\nmodels: [m]\nsettings: [{k: 1}]\n", 1, "tasks: "),
        ("tasks: [t]\nmodels: [m]\nsetings: [{k: 1}]\n", 3, "did you mean settings or options"),
        ("tasks: [t]\nmodels: [m]\nsettings:\n  - k: 1\n    slect: bm25\n", 5, "did you mean select"),
        ("tasks: [t]\nmodels: [m]\nsettings:\n  - select: bm25\n", 4, "needs k"),
        (
            "tasks: [t]\nmodels: [m]\nsettings: [{k: 1}]\nengines:\n  x: {dtype: float32}\n",
            5,
            "x is not one of the models",
        ),
        ("tasks: [t]\nmodels: [m]\nsettings: [{k: 1}]\nengines:\n  m: {select: bm25}\n", 5, "select: unknown option"),
        ("tasks: [t]\nmodels: [m]\nsettings: [{k: 1, finetune: lora, select: bm25}]\n", 3, "select: unknown option"),
        ("tasks: [t]\nmodels: [m]\nsettings: [{k: 1}]\nexclude:\n  - {draw: 1, size: 3}\n", 5, "size: unknown key"),
        ("tasks: [t]\nmodels: [m]\nsettings: [{k: 1}]\nexclude:\n  - {}\n", 5, "is empty; give task"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, line: int, said: str):
    found = refused(tmp_path, text)
    assert any(one.startswith(f"mine.yaml:{line}: ") and said in one for one in found)


@pytest.mark.parametrize(
    "option",
    [
        "draws: many",
        "test_size: [1, 2]",
        "queries: none",
        'unconstrained: "no"',
        "select: {a: 1}",
        "select: 5",
        "context: wide",
        "chat: 3",
    ],
)
def test_a_value_of_another_kind_is_refused_at_its_line(tmp_path: Path, option: str):
    text = f"tasks: [stdlib]\nmodels: [gemma3-270m]\nsettings:\n  - k: 1\n    {option}\n"
    (found,) = [line for line in refused(tmp_path, text) if ":5: " in line]
    assert option.partition(":")[0].replace("_", "-") in found


@pytest.mark.parametrize("option", sorted((RUN | FINETUNE) - {"k"}))
def test_null_says_nothing(tmp_path: Path, option: str):
    """The program's default holds; one hypothesis case in thousands found ``select: null``."""
    block = "k: 1" if option in RUN else "k: 1\n    finetune: lora"

    def specs(block: str) -> list[Any]:
        file = tmp_path / "mine.yaml"
        text = f"tasks: [stdlib]\nmodels: [gemma3-270m]\nsettings:\n  - {block}\n"
        file.write_text(text, encoding="utf-8")
        return [job.spec() for job in load_study(file).jobs]

    assert specs(f"{block}\n    {option}: null") == specs(block)


def test_null_takes_back_what_is_said_of_all_blocks(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "tasks: [stdlib]\nmodels: [gemma3-270m]\noptions: {k: 1, draws: 4, select: bm25}\nsettings:\n"
        "  - {select: null, tasks: null, models: null, name: null, finetune: null}\n  - {draws: null}\n",
        encoding="utf-8",
    )
    first, second = load_study(file).jobs
    assert (first.setting, first.task, first.model) == ("random", "stdlib", "gemma3-270m")
    assert first.options == {"k": 1, "draws": 4}
    assert second.options == {"k": 1, "select": "bm25"}
    text = "tasks: [t]\nmodels: [m]\noptions: {k: 1}\nsettings: [{k: null}]\n"
    (said,) = refused(tmp_path, text)
    assert said.startswith("mine.yaml:4: ")
    assert "needs k" in said


NAMES = [*sorted(RUN | FINETUNE), *BLOCK]
"""In one order: what CI draws is the same each time, and sets have another order in each process."""

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2000)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "1,10", "bm25", "auto", "random", "x", "lora", "*", "./t.yaml", "full"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, *KEYS, "x", "*"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(list(StudyFields.model_fields)), VALUES), st.data())
@settings(max_examples=80)
def test_any_file_is_read_or_refused_in_lines_of_its_own(fields: dict[str, Any], data: Any):
    """Half of them have a form that is read, so that their options come to be read."""
    if data.draw(st.booleans()):
        blocks = data.draw(
            st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3), min_size=1, max_size=2)
        )
        fields |= {
            "tasks": ["stdlib_six"],
            "models": ["gemma3-270m"],
            "settings": [{"k": 1, **block} for block in blocks],
        }
    with TemporaryDirectory() as folder:
        file = Path(folder) / "any.yaml"
        file.write_text(yaml.safe_dump(fields), encoding="utf-8")
        with suppress(UserError):
            for job in load_study(file).jobs:
                job.spec()


# -- which points are meant -----------------------------------------------------------------------


def point(**names: Any) -> dict[str, frozenset[str]]:
    return {key: frozenset({str(value)}) for key, value in names.items()}


def test_a_point_is_left_out_where_all_that_a_rule_names_holds():
    wanted = PointFilter((Rule.read({"select": "bm25", "k": [10, 20]}),))
    assert not wanted(point(task="t", select="bm25", k=10))
    assert wanted(point(task="t", select="bm25", k=5))
    # of a part of a study it is not known yet
    assert wanted(point(task="t", select="bm25"))


def test_a_text_of_several_values_is_split_in_a_rule_as_in_only():
    wanted = PointFilter((Rule.read({"select": "bm25,hybrid:20,by=dense", "k": "5, 10"}),))
    assert not wanted(point(select="bm25", k=10))
    assert not wanted(point(select="hybrid:20,by=dense", k=5))
    assert wanted(point(select="bm25", k=20))
    # the default name of a block of several selectors
    assert not PointFilter((Rule.read({"setting": "bm25,dense"}),))(point(setting="bm25,dense"))
    assert PointFilter(only=Rule.parse(["setting=bm25,dense"]))(point(setting="bm25,dense"))


@pytest.mark.parametrize("values", ["", " , ", [], [""]])
def test_a_rule_without_values_is_refused(values: Any):
    with pytest.raises(UserError, match="k: is empty"):
        Rule.read({"k": values})


def test_only_what_is_asked_for_is_meant():
    wanted = PointFilter(only=Rule.parse(["task=trec,nlu", "attention=grouped:3,512", "k=1,10"]))
    assert wanted(point(task="nlu", attention="grouped:3,512", k=10))
    assert wanted(point(task="trec"))
    assert not wanted(point(task="samsum"))
    assert not wanted(point(task="trec", attention="full", k=1))
    assert not wanted(point(task="trec", attention="grouped:3,512", k=5))


@pytest.mark.parametrize("text", ["task", "task=", "tsk=trec", "=trec", ""])
def test_a_part_that_is_none_is_refused(text: str):
    with pytest.raises(UserError, match="--only"):
        Rule.parse([text])
    with pytest.raises(UserError, match="twice"):
        Rule.parse(["k=1", "k=2"])


def test_a_job_is_known_by_its_files_name_too(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("name: other\n", encoding="utf-8")
    text = "tasks: [./t.yaml]\nmodels: [./m]\nsettings: [{k: 1, perturbation: permuted-labels}]\n"
    names = names_of(written(tmp_path, text).jobs[0])
    assert {"t", str(tmp_path / "t.yaml")} <= names["task"]
    assert "m" in names["model"]
    assert names["perturbation"] == {"permuted-labels"}
