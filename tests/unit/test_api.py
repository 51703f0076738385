"""The public interface in Python does what the command line does, with values as Python has them."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fakes import FREE_TEXT, row, write_task
from support.in_process import run_command, said
from support.models import llama_tokenizer, tiny_checkpoint

import icl_bench
from icl_bench import Results, UserError
from icl_bench.cli.jobs import each_of
from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.perturbations import Perturbation
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import CellError
from icl_bench.models.attention_patterns import Pattern
from icl_bench.models.registry import resolve
from icl_bench.report.figure_style import FigureStyle
from icl_bench.results.calibration import Calibration
from icl_bench.studies.options import MachineOptions
from icl_bench.sweep.options import RunOptions
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.tasks.examples import load_data
from icl_bench.training.spec import FinetuneSpec

pytestmark = pytest.mark.usefixtures("loading_once")

HERE: dict[str, Any] = {"device": "cpu", "dtype": "float32"}
ROWS = {"train": [row(i) for i in range(40)], "test": [row(1000 + i) for i in range(6)]}
TEMPLATE = {"input": "query: {text}", "output": "intent: {label}"}


class Made(NamedTuple):
    """A tiny model, a task file and a sweep of both."""

    model: Path
    task: Path
    results: Path
    found: Results


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("api")
    model = tiny_checkpoint(folder / "tiny", tokenizer=llama_tokenizer(add_bos_token=True))
    task = write_task(folder / "task")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ICL_BENCH_CACHE", str(folder / "cache"))
        environment.setattr("icl_bench.backends.loaders.rate_here", lambda *_: 1e9)
        results = folder / "results"
        found = icl_bench.run(task=task, model=model, k=[1, 2], draws=2, results=results, quiet=True, **HERE)
        yield Made(model, task, results, found)


@pytest.fixture
def sweep(made: Made, tmp_path: Path) -> Callable[..., Results]:
    """Run the tiny model, quietly, with one draw, into a folder of the test's own."""

    def run(task: Any = made.task, **options: Any) -> Results:
        usual = {"model": made.model, "k": [1, 2], "draws": 1, "results": tmp_path / "results", "quiet": True}
        return icl_bench.run(task=task, **{**usual, **HERE, **options})

    return run


def task_of(**changes: Any) -> icl_bench.Task:
    """The task of the file with its rows in memory."""
    return icl_bench.Task(**{"name": "cards", **ROWS, **TEMPLATE, "labels": {"style": "words"}, **changes})


def test_rows_with_nested_values_have_texts_as_names_as_in_json():
    rows = [{**row, "meta": {"a": 1, 2: {3: None, "c": 4}}} for row in ROWS["train"]]
    same = [{**row, "meta": {"a": 1, "2": {"3": None, "c": 4}}} for row in ROWS["train"]]
    first, second = (load_data(task_of(train=train)) for train in (rows, same))
    assert first.files == second.files
    with pytest.raises(UserError, match="task cards: train: column 2 appears twice"):
        task_of(train=[{**row, "meta": {"2": 1, 2: 1}} for row in ROWS["train"]])


def cells(results: Results) -> set[str]:
    return set(results.predictions["cell"].unique())


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        call()
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


# -- beside the command line ---------------------------------------------------------------------


def test_a_sweep_has_the_cells_and_the_exported_bytes_of_the_command_line(made: Made, tmp_path: Path):
    words = ["--task", made.task, "--model", made.model, "--k", "1,2", "--draws", 2, "--device", "cpu"]
    ended = run_command("run", *words, "--dtype", "float32", "--results", tmp_path / "there", "--quiet")
    assert ended.code == 0, ended.err
    files = [sorted(p.name for p in place.rglob("*.parquet")) for place in (made.results, tmp_path / "there")]
    assert files[0] == files[1]
    assert len(files[0]) == 4
    for place, out in ((made.results, "here.csv"), (tmp_path / "there", "there.csv")):
        said("export", "--results", place, "--out", tmp_path / out)
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "there.csv").read_bytes()


def names(*known: str) -> st.SearchStrategy[tuple[list[str], Any]]:
    """One of some names, the same here and there."""
    return st.sampled_from(known).map(lambda name: ([name], name))


def whole(*, least: int = 1) -> st.SearchStrategy[tuple[list[str], Any]]:
    kinds = st.sampled_from([int, np.int64, str])
    return st.builds(lambda n, kind: ([str(n)], kind(n)), st.integers(least, 10_000), kinds)


def paths() -> st.SearchStrategy[tuple[list[str], Any]]:
    return st.builds(
        lambda name, kind: ([name], kind(name)), st.sampled_from(["a", "b/c", "/d"]), st.sampled_from([str, Path])
    )


def joined(some: Iterable[Any]) -> str:
    return ",".join(map(str, some))


def lists(*texts: str, parse: Callable[[str], Any] = str) -> st.SearchStrategy[tuple[list[str], Any]]:
    """Several values: as one text, a list or tuple of texts, or of what they are read to."""

    def one(some: list[str], kind: Callable[[Any], Any], read: Callable[[str], Any]) -> tuple[list[str], Any]:
        return [",".join(some)], kind(map(read, some))

    some = st.lists(st.sampled_from(texts), min_size=1, max_size=3)
    return st.builds(one, some, st.sampled_from([list, tuple, joined]), st.sampled_from([str, parse]))


def numbers(*words: str) -> st.SearchStrategy[tuple[list[str], Any]]:
    """Numbers of demonstrations, and words among them."""
    plain = st.lists(st.integers(1, 500), min_size=1, max_size=4)
    kinds: list[Callable[[list[int]], Any]] = [list, tuple, np.array, joined]
    one = st.builds(lambda some, kind: ([joined(some)], kind(some)), plain, st.sampled_from(kinds))
    single = st.integers(1, 500).map(lambda n: ([str(n)], n))
    spans = st.integers(2, 9).map(lambda n: ([joined(range(1, n))], range(1, n)))
    mixed = st.lists(st.sampled_from([1, 7, *words]), min_size=1, max_size=3)
    return one | single | spans | mixed.map(lambda some: ([joined(some)], some))


def variables() -> st.SearchStrategy[tuple[list[str], Any]]:
    """Of a chat template: a dictionary, or texts."""
    values = st.dictionaries(st.sampled_from("abc"), st.sampled_from([True, False, 3, "low", None, [1]]), min_size=1)

    def one(mapping: dict[str, Any], as_text: bool) -> tuple[list[str], Any]:
        texts = [f"{name}={json.dumps(value)}" for name, value in mapping.items()]
        return texts, texts if as_text else mapping

    return st.builds(one, values, st.booleans())


SELECTS = ("random", "bm25", "balanced", "hybrid:3,by=dense", "per-label:2")
SHARES = st.floats(0.05, 1, allow_nan=False)
ALL = {
    "backend": names("auto", "transformers", "vllm", "openai"),
    "dtype": names("auto", "float32", "bfloat16"),
    "device": names("cpu", "cuda:1"),
    "gpu_memory": st.builds(lambda x, kind: ([repr(x)], kind(x)), SHARES, st.sampled_from([float, np.float64, repr])),
    "quantization": names("awq", "fp8"),
    "kv_cache_dtype": names("fp8"),
    "base_url": names("http://127.0.0.1:1/v1"),
    "endpoint": names("completions", "chat", "responses"),
    "hold": names("choice", "json"),
    "thinking": names("off", "high", "4096") | whole(),
    "think": names("on", "off", "400") | whole(),
    "on_model_change": names("fail", "mark"),
    "price": names("input=1,cached=0.1,output=2"),
    "budget": st.builds(lambda x, kind: ([repr(x)], kind(x)), SHARES, st.sampled_from([float, np.float64, repr])),
    "server_arg": variables(),
    "chat": names("turns", "single"),
    "k": numbers("max", "auto"),
    "per_label": numbers(),
    "select": lists(*SELECTS, parse=SelectorSpec.parse),
    "encoder": paths(),
    "long_texts": names("cut", "windows"),
    "perturbation": st.sampled_from(["none", "labels:permuted", "labels:noise=0.25"]).flatmap(
        lambda text: st.sampled_from([([text], text), ([text], Perturbation.parse(text))])
    ),
    "order": lists("drawn", "by-label", "by-length", "smooth", "pool", "shuffled:3", parse=Order.parse),
    "attention": lists("full", "block:5,sink=0,local=1", "grouped:2,64", parse=Pattern.parse),
    "seed": whole(least=-5),
    "score": names("greedy", "exact"),
    "keep_scores": names("all", "none", "top:3"),
    "calibrate": lists("batch", "batch,of=pool:8", "contextual", parse=Calibration.parse),
    "unconstrained": st.just(([], True)),
    "temperature": st.floats(0.01, 100).map(lambda x: ([repr(x)], x)),
    "labels": names("all", "half:3"),
    "text": names("body"),
    "label": names("queue"),
    "queries": names("test", "copied"),
    "data_dir": paths(),
    "base": paths(),
    "tokenizer": paths(),
    "system": names("be short", "1"),
    "chat_arg": variables(),
    "method": lists("lora", "full", "probe", "knn", "encoder-probe"),
    "head": names("lm", "random"),
    "validation": names("pool", "examples"),
    "learning_rate": st.floats(1e-6, 1).map(lambda x: ([repr(x)], x)),
    "rslora": st.just(([], True)),
    "test_ids": names("paper", "paper-mistral"),
    "keep_checkpoints": paths(),
    "on": names("ray", "ray://host:10001"),
    "engines": whole() | names("auto"),
    "workers": whole() | names("auto"),
    "gpus_per_engine": whole() | st.sampled_from([(["0.5"], 0.5), (["2"], 2)]),
}
"""Options by name -> what the command line writes and what Python gives for it. Any other is a whole number."""

OF_RUN = {"batch": st.just(([], True))}
"""The same for options of ``run`` whose names mean something else in ``finetune``."""


def of(spec: type[Any]) -> st.SearchStrategy[dict[str, tuple[list[str], Any]]]:
    known = {name for each in (spec, MachineOptions) for name in each.declared()} - {"task", "model"}
    needed = [name for name in ("k",) if spec.declared()[name].field.is_required()]
    some = st.lists(st.sampled_from(sorted(known)), unique=True, max_size=6).map(lambda chosen: {*needed, *chosen})
    values = ALL | (OF_RUN if spec is RunSpec else {})
    return some.flatmap(lambda chosen: st.fixed_dictionaries({name: values.get(name, whole()) for name in chosen}))


def asked(call: Callable[[], object]) -> tuple[Any, ...]:
    """The specifications that a run or training is carried out with, or why there are none."""
    heard: list[Any] = []

    def carried_out(spec: Any, given: Mapping[str, Any], machines: Any, *_: Any) -> tuple[list[Any], None]:
        heard.extend(each_of(given))
        heard[:] = [*(spec(**one) for one in heard), machines]
        return [], None

    with patch("icl_bench.cli.jobs.carry_out", carried_out):
        try:
            call()
        except UserError as error:
            return ("refused", str(error))
    return tuple(heard)


@pytest.mark.parametrize(("name", "spec"), [("run", RunSpec), ("finetune", FinetuneSpec)])
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_option_is_read_in_python_as_on_the_command_line(name: str, spec: type[Any], data: st.DataObject):
    chosen = data.draw(of(spec))
    words = ["--task=t", "--model=m"]
    for option, (texts, _) in chosen.items():
        flag = spec.declared().get(option, MachineOptions.declared().get(option)).flag
        words += [f"{flag}={text}" for text in texts] or [flag]
    values = {option: value for option, (_, value) in chosen.items()}

    def command() -> None:
        ended = run_command(name, *words)
        if ended.code:
            raise UserError(ended.err.removeprefix("error: ").strip())

    there = asked(command)
    here = asked(lambda: getattr(icl_bench, name)(task="t", model="m", **values))
    assert here == there


def test_lists_of_tasks_and_models_are_each_with_each():
    here = asked(lambda: icl_bench.run(task=["a", "b"], model=["m", "n"], k=1))
    there = asked(lambda: run_command("run", "--task", "a,b", "--model", "m,n", "--k", "1"))
    assert here == there
    assert [(one.task, one.model) for one in here[:-1]] == [("a", "m"), ("a", "n"), ("b", "m"), ("b", "n")]


@pytest.mark.parametrize("name", ["run", "finetune", "plan"])
def test_help_and_completion_know_the_options(name: str):
    function = getattr(icl_bench, name)
    known = inspect.signature(function).parameters
    spec = FinetuneSpec if name == "finetune" else RunOptions
    assert known.keys() >= {*spec.declared(), *MachineOptions.declared(), "results"}
    assert known["task"].default is inspect.Parameter.empty
    assert f"\n        test_size: {spec.declared()['test_size'].option.help}\n" in function.__doc__


# -- wrong values --------------------------------------------------------------------------------

WRONG = {
    "a whole number": (["draws", "test_size", "pack", "context"], [True, 1.5, "x", [1], {}]),
    "a whole number of 64 bits": (["seed"], [True, 0.5, "x", 2**63]),
    "1 or more": (["draws", "test_size"], [0, -1, "0"]),
    "a number": (["gpu_memory"], [True, "x", [0.5]]),
    "at most 1.0": (["gpu_memory"], [1.5, "2"]),
    "true or false": (["unconstrained"], [1, 0, "yes", "true", []]),
    "greedy or exact": (["score"], ["exakt", 1, True, ["exact"]]),
    "a path": (["data_dir"], [1, True, ["a"]]),
    "numbers like 1,10,100, max or auto": (["k"], [True, 1.5, {1: 2}, object()]),
    "numbers like 1,2,5": (["per_label"], [True, 1.5, {1: 2}]),
    "text like random,bm25, or a list": (["select"], [True, 3, [], "", ["random", 3], {}]),
    "text like drawn,by-label, or a list": (["order"], [True, 3, [], [None]]),
    "text like full,block:25, or a list": (["attention"], [True, 3, [], {}]),
    "text like labels:permuted": (["perturbation"], [True, [1.5, 2], object()]),
    "text like enable_thinking=false, or a dictionary": (["chat_arg"], [True, 3, {"a": object()}]),
    "text": (["encoder", "tokenizer", "device"], [True, ["a"], {}]),
}


def shown(value: object) -> str:
    """How a message shows what is neither text nor a number."""
    return {dict: "a mapping", list: "[]" if value == [] else "a list"}.get(type(value), f"a {type(value).__name__}")


@pytest.mark.parametrize(
    ("expected", "option", "value"),
    [(text, option, value) for text, (options, values) in WRONG.items() for option in options for value in values],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
def test_a_wrong_value_is_refused_in_one_line_with_the_option_the_value_and_what_is_expected(
    expected: str, option: str, value: Any
):
    message = refused(lambda: icl_bench.run(task="stdlib", model="m", **{"k": 1, option: value}))
    flag = f"--{option.replace('_', '-')}"
    assert message.startswith(f"{flag} ")
    if option == "perturbation" and isinstance(value, list):  # a list of numbers is text, as for --k
        assert message.startswith(f"{flag} 1.5,2: not known")
        return
    assert message.endswith(f": expected {expected}")
    inside = value[-1] if option in ("select", "order") and isinstance(value, list) and value else value
    simple = isinstance(inside, int | float | str)
    text = str(inside).lower() if isinstance(inside, bool) else str(inside) or "''"
    assert (
        message == f"{flag} {text if simple else str(inside) if inside is None else shown(inside)}: expected {expected}"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tests_size": 3}, "tests_size: not an option of run; did you mean test_size or test_ids or tokenizer?"),
        ({"model": None}, "--model: is missing"),
        ({"task": []}, "--task: is missing"),
        ({"task": 3}, "--task 3: expected a task's name, the path of a task file, or an icl_bench.Task"),
        (
            {"task": pd.DataFrame({"text": ["a"]})},
            "--task a DataFrame: expected a task's name, the path of a task file, or an icl_bench.Task",
        ),
        ({"workers": "many"}, "--workers many: expected a number from 1, or auto"),
        ({"on": "slurm"}, "--on slurm: expected ray, or ray://HOST:10001"),
        ({"results": 3}, "--results 3: expected a folder, or an address like s3://bucket/results"),
        ({"model": "x" * 5000}, "model '" + "x" * 59 + "…: the name is too long for a file"),
    ],
)
def test_what_is_missing_or_unknown_is_named_in_one_line(options: dict[str, Any], message: str):
    heard = refused(lambda: icl_bench.run(**{"task": "stdlib", "model": "m", "k": 1, **options}))
    assert heard == message
    if "results" not in options:
        assert refused(lambda: icl_bench.plan(**{"task": "stdlib", "model": "m", "k": 1, **options})) == heard


def test_rows_in_place_of_a_task_or_a_folder_are_refused_in_one_line():
    rows = pd.DataFrame({"text": ["a", "b"], "label": ["x", "y"]})
    assert refused(lambda: icl_bench.choose(task=rows, model="m")) == (
        "--task a DataFrame: expected a task's name, the path of a task file, or an icl_bench.Task"
    )
    assert refused(lambda: icl_bench.choose(task=rows, data=rows, model="m")) == (
        "--data: makes a task of rows; leave --task out"
    )
    assert refused(lambda: icl_bench.read("")) == (
        "--results '': expected a folder, or an address like s3://bucket/results"
    )


def test_arguments_of_another_kind_are_refused_in_one_line(made: Made):
    found = made.found
    assert (
        refused(lambda: icl_bench.read(made.results, task=["cards"])) == "--task a list: expected the name of one task"
    )
    assert refused(lambda: found.frontier(queries="10")) == "--queries '10': expected a whole number"
    assert refused(lambda: found.frontier(queries=float("nan"))) == "--queries nan: expected a whole number"
    assert refused(lambda: found.advice(queries=True)) == "--queries True: expected a whole number"
    assert refused(lambda: found.advice(5)).startswith("--advice 5: a budget per query is written tokens=2000")
    price = "expected text like input=0.5,cached=0.05,output=1.5, or a dictionary"
    assert refused(lambda: found.frontier(price=5)) == f"--price 5: {price}"
    assert refused(lambda: icl_bench.run(task="stdlib", model="m", k=1, price=5)) == f"--price 5: {price}"
    assert len(found.frontier(queries=np.int64(10)))


def test_an_option_that_is_none_has_its_default():
    for name in RunOptions.declared().keys() - {"task", "model"}:
        assert RunSpec(task="t", model="m", **{name: None}) == RunSpec(task="t", model="m"), name


# -- several, and what could not be done ------------------------------------------------------------


def test_one_that_fails_stops_no_other_and_is_named(made: Made, sweep: Callable[..., Results], tmp_path: Path, capfd):
    broken = task_of(name="broken", train=[{"text": "where"}])
    message = refused(lambda: sweep([broken, made.task], model=[made.model, "nowhere"]))
    assert message == (
        f"3 of 4 not finished, see above: broken with {made.model}; broken with nowhere; {made.task.name} with nowhere"
    )
    assert "error: broken with nowhere: broken train row 0: no column 'label'; columns: text" in capfd.readouterr().err
    assert cells(icl_bench.read(tmp_path / "results")) == cells(sweep())


def test_cells_that_do_not_fit_leave_the_others(sweep: Callable[..., Results]):
    assert set(sweep(k=[1, 41]).predictions["k"]) == {1}


def test_a_cell_that_fails_is_listed_with_its_reason(sweep: Callable[..., Results], capfd):
    def fails(*_: Any) -> None:
        raise CellError("no memory")

    with patch("icl_bench.backends.transformers.backend.TransformersBackend.load_prefix", fails):
        found = sweep(k=1)
    assert found.failed[["task", "k", "draw", "reason"]].to_dict("records") == [
        {"task": "cards", "k": 1, "draw": 0, "reason": "no memory"}
    ]
    for text in (repr(found), found._repr_html_()):
        assert "0 predictions, 1 cell failed (.failed)" in text


def test_a_plan_says_which_cells_are_finished_and_what_is_left_out(made: Made):
    options = {"task": made.task, "model": made.model, "k": [1, 2, 3], "select": ["random", "bm25"], **HERE}
    table = icl_bench.plan(**options, draws=2, order="drawn", results=made.results)
    planned = table[~table["left_out"]]
    assert planned.groupby("k")["finished"].all().to_dict() == {1: True, 2: True, 3: False}
    left_out = table[table["left_out"]]
    assert set(left_out["select"]) == {"bm25"}
    assert left_out["problem"].str.len().gt(0).all()
    assert not any(made.results.parent.joinpath("results").rglob("*k00003*"))


# -- results -------------------------------------------------------------------------------------


def test_results_are_of_the_cells_that_were_asked_for_and_read_takes_all(made: Made, monkeypatch: pytest.MonkeyPatch):
    some = icl_bench.run(task=made.task, model=made.model, k=2, draws=1, results=made.results, quiet=True, **HERE)
    assert set(some.predictions["k"]) == {2}
    assert len(some.predictions) == 6
    assert set(icl_bench.read(made.results).predictions["k"]) == {1, 2}
    monkeypatch.chdir(made.results.parent)
    found = icl_bench.read("results", task="cards")
    monkeypatch.chdir(made.results)
    assert len(found.curves) == 2
    assert found.show(1, draw=0).checked == "the very token ids that were run (hash checked)"
    assert found.show(2, "cards", model="tiny", select="random").row["k"] == 2
    assert refused(lambda: found.show(1, selct="bm25")) == "selct: not an option of show; did you mean select?"
    assert "run something first" in refused(lambda: icl_bench.read(made.results / "nothing"))
    assert "cards" in refused(lambda: icl_bench.read(made.results, task="card"))
    assert "has no model ''" in refused(lambda: icl_bench.read(made.results, model=""))


def test_scores_are_shares_in_tables_and_percent_where_they_are_shown(made: Made):
    score = made.found.predictions.groupby("k")["correct"].mean()
    curves = made.found.curves.set_index("k")
    assert curves["score"].to_dict() == pytest.approx(score.to_dict())
    assert ((curves["ci_low"] <= curves["score"]) & (curves["score"] <= curves["ci_high"])).all()
    assert made.found.findings.curves is made.found.curves
    shown = [f"{100 * value:.1f}" for value in score]
    for text in (repr(made.found), made.found._repr_html_()):
        assert "24 predictions" in text
        assert str(made.results) in text
        assert all(value in text for value in shown)
    assert "<table" in made.found._repr_html_()
    assert made.found.failed.empty


def test_a_frontier_and_advice_take_budgets_and_prices(made: Made):
    price = {"input": 0.5, "cached": 0.05, "output": 1.5}
    here = made.found.frontier(queries=np.int64(100), price=price)
    there = made.found.frontier(queries=100, price="input=0.5,cached=0.05,output=1.5")
    pd.testing.assert_frame_equal(here, there)
    assert (here["money"] > 0).all()
    assert made.found.advice()["advised"].sum() <= 1
    assert "tokens" in refused(lambda: made.found.advice("token=3"))


def test_charts_and_the_report_are_made(made: Made, tmp_path: Path):
    pytest.importorskip("vl_convert")
    charts = made.found.plot()
    assert all(png.startswith(b"\x89PNG") for png in charts)
    assert repr(charts) == "1 chart; .save(folder) writes PNG files"
    assert [path.read_bytes() for path in charts.save(tmp_path / "charts")] == list(charts)
    assert refused(lambda: made.found.plot("acuracy")) == "no section acuracy; did you mean accuracy?"
    style = FigureStyle(width=3.3, formats=("pdf",))
    page = made.found.report(tmp_path / "report.html", figures=tmp_path / "figures", style=style)
    assert page == tmp_path / "report.html"
    assert "cards" in page.read_text()
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".pdf"}


def test_a_check_says_whether_results_lost_against_a_baseline(made: Made, tmp_path: Path):
    baseline = tmp_path / "baseline.parquet"
    said("export", "--results", made.results, "--out", baseline)
    same = icl_bench.check(baseline, made.results)
    assert not same.lost
    assert len(same.points) == 2
    assert repr(same) == f"{made.results} against {baseline}: no loss, 2 points compared (.lost, .overall, .points)"
    part = tmp_path / "part"
    icl_bench.run(task=made.task, model=made.model, k=2, draws=2, results=part, quiet=True, **HERE)
    assert "k=1" in refused(lambda: icl_bench.check(baseline, part)).replace("k=1,", "k=1")
    assert not icl_bench.check(baseline, part, allow_missing=True).lost
    refused(lambda: icl_bench.check(tmp_path / "none.parquet", made.results))


def test_training_takes_the_same_kinds_of_values(made: Made, tmp_path: Path):
    pytest.importorskip("sklearn")
    found = icl_bench.finetune(
        task=task_of(), model=made.model, k=[6], method=["probe"], draws=1, results=tmp_path, quiet=True, **HERE
    )
    assert set(found.predictions["select"]) == {"probe"}
    assert refused(lambda: icl_bench.finetune(task="t", model="m")) == "--k: is missing"


def test_the_import_loads_no_library_until_a_name_is_used():
    program = "import sys, icl_bench; dir(icl_bench); print({'pandas', 'pydantic', 'numpy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# -- rows in memory ------------------------------------------------------------------------------


def dataset(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(rows)


@pytest.mark.parametrize("kind", [pd.DataFrame, dataset, tuple])
def test_rows_are_the_same_whatever_holds_them(kind: Callable[..., Any], sweep: Callable[..., Results]):
    listed = sweep(task_of())
    held = sweep(task_of(train=kind(ROWS["train"]), test=kind(ROWS["test"])))
    assert cells(held) == cells(listed)
    assert len(held.predictions) == 12


def test_class_numbers_of_a_dataset_are_its_names_and_those_without_a_class_are_empty():
    datasets = pytest.importorskip("datasets")
    labels = datasets.ClassLabel(names=["card_arrival", "lost_card"])
    features = datasets.Features({"text": datasets.Value("string"), "label": labels})
    numbers = {split: [{**one, "label": n % 2} for n, one in enumerate(ROWS[split])] for split in ROWS}
    numbers["test"][0]["label"] = -1
    rows = {split: datasets.Dataset.from_list(numbers[split], features=features) for split in numbers}
    with pytest.raises(UserError, match=r"^cards test row 0: label is empty; labels\.empty: leave_out "):
        load_data(task_of(**rows))
    data = load_data(task_of(**rows, labels={"empty": "leave_out"}))
    assert data.labels == ("card_arrival", "lost_card")
    assert {row.answer for row in data.test} == {"card_arrival", "lost_card"}
    assert data.left_out["test"] == 1


def test_two_columns_of_one_name_are_refused():
    frame = pd.DataFrame(ROWS["train"])
    twice = pd.concat([frame, frame[["text"]]], axis=1)
    numbered = frame.assign(**{"1": "a"}).rename(columns={"label": 1})
    for name, rows in {"text": twice, "1": numbered, "2": [*ROWS["train"], {"2": "a", 2: "b"}]}.items():
        assert refused(lambda rows=rows: task_of(train=rows)) == f"task cards: train: column {name} appears twice"


def test_rows_in_memory_are_answered_as_the_same_rows_in_files(sweep: Callable[..., Results]):
    columns = ["k", "gold", "prediction", "prompt_hash"]
    there, here = sweep().predictions, sweep(task_of(test_rows={"size": 250})).predictions
    assert here[columns].to_dict("records") == there[columns].to_dict("records")


def test_values_of_numpy_and_pandas_are_read_as_plain_ones(sweep: Callable[..., Results]):
    frame = pd.DataFrame(ROWS["train"]).assign(weight=np.float32(0.5), seen=pd.NaT, label=np.arange(40) % 3)
    rows = [
        {**one, "weight": np.float32(0.5), "seen": None, "label": np.int64(n % 3)}
        for n, one in enumerate(ROWS["train"])
    ]
    changes: dict[str, Any] = {"test": [{**one, "label": n % 3} for n, one in enumerate(ROWS["test"])], "labels": {}}
    found = sweep(task_of(train=frame, **changes))
    assert cells(found) == cells(sweep(task_of(train=rows, **changes)))
    assert set(found.predictions["gold"]) == {"0", "1", "2"}


@pytest.mark.parametrize("missing", [np.nan, None, pd.NA])
def test_a_row_whose_text_is_missing_is_left_out(missing: Any, made: Made):
    frame = pd.DataFrame([*ROWS["train"], {"text": missing, "label": "top_up"}])
    table = icl_bench.plan(task=task_of(train=frame), model=made.model, k=[5, 41], draws=1, **HERE)
    assert "more than the pool's 40" in table["problem"][1]
    empty = [*ROWS["train"], {"text": "top", "label": missing}]
    heard = refused(lambda: icl_bench.plan(task=task_of(train=empty), model=made.model, k=1, **HERE))
    assert heard == "cards train row 40: label is empty; labels.empty: leave_out leaves such rows out"


@pytest.mark.parametrize("split", ["train", "test"])
def test_another_row_is_another_variant(split: str, made: Made, sweep: Callable[..., Results]):
    before = sweep(task_of()).predictions
    rows = [*ROWS[split][:-1], {**ROWS[split][-1], "text": "lost it"}]
    after = sweep(task_of(**{split: rows})).predictions
    assert set(before["variant"]).isdisjoint(after["variant"])
    assert set(before["cell"]).isdisjoint(after["cell"])


def test_a_column_that_is_not_there_is_named_beside_those_that_are(made: Made):
    other = task_of(input="query: {text} {title}", fields={"title": "headline"})
    heard = refused(lambda: icl_bench.plan(task=other, model=made.model, k=1))
    assert heard == "cards train row 0: no column 'headline'; columns: text, label"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": 3}, "train=3: expected a pandas or polars frame, a datasets.Dataset or a list of dictionaries"),
        (
            {"test": {"text": ["a"]}},
            "test=a mapping: expected a pandas or polars frame, a datasets.Dataset or a list of dictionaries",
        ),
        ({"test": [1]}, "test=a list: expected a pandas or polars frame, a datasets.Dataset or a list of dictionaries"),
        ({"test": pd.DataFrame()}, "test has no rows"),
        ({"labels": 3}, "labels: Input should be a valid dictionary or instance of Labels, not 3"),
        ({"labels": {"styl": 1}}, "labels.styl: unknown field; did you mean style?"),
        ({"labels": None}, "metrics: is missing; free text needs one, like exact_match or rouge"),
        ({"metrics": 3}, "metrics: Input should be a valid tuple, not 3"),
        ({"fields": 3}, "data.fields: Input should be a valid dictionary, not 3"),
        ({"data": 3}, "data: Input should be a valid dictionary or instance of DataSpec, not 3"),
        ({"test_rows": {"size": 0}}, "test.size: Input should be greater than or equal to 1, not 0"),
        ({"input": 3}, "template.input: Input should be a valid string, not 3"),
        ({"input": "{text"}, "template.input: not a template: expected '}' before end of string in '{text'"),
        ({"template": {}}, "template: give input, output and separator"),
        ({"pol": 3}, "pol: unknown field; did you mean pool?"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_task_is_said_in_one_line(changes: dict[str, Any], message: str):
    assert refused(lambda: task_of(**changes)) == f"task cards: {message}"


def test_a_prediction_on_rows_in_memory_is_shown_with_the_very_prompt(sweep: Callable[..., Results], tmp_path: Path):
    task = task_of()
    found = sweep(task, k=1)
    prompts = [found.show(1), found.show(1, "cards"), icl_bench.read(tmp_path / "results").show(k=1, task=task)]
    (prompt,) = {one.prompt for one in prompts}
    assert prompts[0].checked == "the very token ids that were run (hash checked)"
    assert prompt.endswith("\n==\nquery: top 1000\nintent:")
    assert f"\nanswered: {found.predictions['prediction'][0]}; right: card lost" in str(prompts[0])
    heard = refused(lambda: icl_bench.read(tmp_path / "results").show(k=1))
    assert heard.endswith("give the task again: icl_bench.read(folder).show(..., task=task)")
    other = task_of(train=ROWS["train"][::-1])
    assert "the data has changed since the run" in refused(lambda: found.show(1, other))
    page = found.report(tmp_path / "report.html") if _has("vl_convert") else None
    assert page is None or page.exists()


def _has(library: str) -> bool:
    from importlib.util import find_spec

    return find_spec(library) is not None


def test_a_task_of_free_text_has_metrics_and_stops(sweep: Callable[..., Results]):
    found = sweep(task_of(**FREE_TEXT, stop=["\n"]), k=1)
    assert set(found.curves["metric"]) == {"rouge1"}
    assert not found.predictions["gold"].str.contains("card lost").any()  # as in the rows, with an underscore
    assert set(task_of(labels=None, metrics="f1").metrics) == {"f1"}


def test_rows_may_have_choices_of_their_own(sweep: Callable[..., Results]):
    def with_choices(rows: list[dict[str, str]]) -> list[dict[str, Any]]:
        return [{**one, "options": np.array([one["label"], f"not {one['label']}"])} for one in rows]

    rows = {split: with_choices(rows) for split, rows in ROWS.items()}
    task = task_of(**rows, labels={"choices": "options"})
    assert task.metrics == ("accuracy",)
    found = sweep(task, k=1)
    assert found.predictions["valid"].all()
    assert set(found.show(1).choices) == {"card_lost", "not card_lost"}
    lettered = task_of(**rows, input="{text}\n{options}", labels={"choices": "options", "style": "letters"})
    assert lettered.metrics == ("accuracy", "macro_f1")
    assert set(sweep(lettered, k=1).predictions["prediction"]) <= {"A", "B"}


def test_ids_of_rows_name_predictions_and_choose_test_rows(sweep: Callable[..., Results]):
    rows = [{**one, "id": f"mine-{n}"} for n, one in enumerate(ROWS["test"])]
    found = sweep(task_of(test=rows, test_rows={"ids": ["mine-4", "mine-1"]}), k=1)
    assert found.predictions["test_id"].tolist() == ["mine-4", "mine-1"]
    assert found.show(1, test_id="mine-1").row["test_id"] == "mine-1"
    twice = task_of(test=[rows[0], rows[0]])
    assert "mine-0" in refused(lambda: sweep(twice))


# -- models in memory ----------------------------------------------------------------------------


class Loaded(NamedTuple):
    model: Any
    tokenizer: Any


@pytest.fixture
def loaded(made: Made) -> Loaded:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(made.model, dtype=torch.float32)
    return Loaded(model, AutoTokenizer.from_pretrained(made.model))


def test_a_loaded_model_answers_as_the_folder_that_it_was_saved_to(
    loaded: Loaded, sweep: Callable[..., Results], capfd, tmp_path: Path
):
    columns = ["k", "prediction", "prompt_hash"]
    here, there = sweep(model=tuple(loaded)), sweep()
    assert here.predictions[columns].to_dict("records") == there.predictions[columns].to_dict("records")
    assert set(here.predictions["model"]) == {"tiny"}
    assert here.show(1).checked == "the very token ids that were run (hash checked)"
    assert capfd.readouterr() == ("", "")  # no bars of other libraries
    named = sweep(model=(*loaded, "my org/step 7"))
    assert set(named.predictions["model"]) == {"my-org-step-7"}


def identity(*parts: Any) -> str:
    return resolve(RunSpec(task="t", model=parts).model).fingerprint


def test_another_weight_tokenizer_or_chat_template_is_another_model(loaded: Loaded, sweep: Callable[..., Results]):
    import torch

    model, tokenizer = loaded
    results = sweep(model=tuple(loaded))
    tokenizer.pad_token = tokenizer.eos_token
    before = identity(model, tokenizer)
    tokenizer(["a", "longer text"], padding="max_length", truncation=True, max_length=3)
    assert identity(model, tokenizer) == before
    tokenizer.chat_template = "{{ messages }}"
    assert identity(model, tokenizer) != before
    tokenizer.chat_template = None
    model.generation_config.eos_token_id = 7
    assert identity(model, tokenizer) != before
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 5] += 1e-3
    assert identity(model, tokenizer) != before
    after = sweep(model=tuple(loaded))
    assert set(after.predictions["variant"]).isdisjoint(results.predictions["variant"])


@pytest.mark.parametrize("kind", ["alone", "one", "none", "swapped", "text"])
def test_a_loaded_model_without_its_tokenizer_is_refused_in_one_line(kind: str, loaded: Loaded):
    model, tokenizer = loaded
    given = {
        "alone": model,
        "one": (model,),
        "none": (model, None),
        "swapped": (tokenizer, model),
        "text": (model, "gpt2"),
    }[kind]
    heard = refused(lambda: icl_bench.run(task="stdlib", model=given, k=1))
    assert heard == "--model: a loaded model needs its tokenizer; give model=(model, tokenizer)"


def test_a_model_with_an_adapter_is_to_be_merged_first(loaded: Loaded):
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(loaded.model, peft.LoraConfig(target_modules=["q_proj"]))
    heard = refused(lambda: icl_bench.run(task="stdlib", model=(adapted, loaded.tokenizer), k=1))
    assert heard == "--model: the loaded model has an adapter that is not merged; give model.merge_and_unload()"


def test_messages_name_a_loaded_model_and_a_task_in_memory(loaded: Loaded, sweep: Callable[..., Results]):
    broken = task_of(name="broken", train=[{"text": "where"}])
    heard = refused(lambda: sweep(broken, model=[tuple(loaded), (*loaded, "mine")]))
    assert heard == "2 of 2 not finished, see above: broken with tiny; broken with mine"
