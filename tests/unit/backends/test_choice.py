"""Backends before they are loaded: which one is meant, and what of a request it can do."""

from __future__ import annotations

import importlib.util
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support import fakes
from support.outside import installed

from icl_bench.backends import choice, loaders
from icl_bench.backends.choice import Needs, check_able, check_backend, check_patterns, choose
from icl_bench.backends.interface import BackendLoader
from icl_bench.backends.spec import BackendSpec
from icl_bench.backends.vllm.backend import last_error
from icl_bench.cli.output.plan import print_plan
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.registry import BACKENDS
from icl_bench.results.reading import read_results
from icl_bench.sweep.plan import room_for
from icl_bench.sweep.sweep import RunSpec, Sweep
from icl_bench.tasks.task_files import load_task


def present(monkeypatch: pytest.MonkeyPatch, *, vllm: bool, cuda: bool) -> None:
    find = importlib.util.find_spec
    spec = object() if vllm else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "vllm" else find(name))
    monkeypatch.setattr("icl_bench.backends.device.may_have_cuda", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)


LABELS, FREE, APART = Needs(), Needs(free=True), Needs(shares=False)
EXACT, BLOCKS = Needs(exact=True), Needs([FULL, Pattern.parse("block:5")])


@pytest.mark.parametrize(
    ("vllm", "cuda", "options", "asked", "expected"),
    [
        (True, True, {}, LABELS, "transformers"),
        (True, True, {}, FREE, "vllm"),
        (True, True, {}, APART, "vllm"),
        (True, True, {"tensor_parallel": 2}, LABELS, "vllm"),
        (True, True, {"quantization": "awq"}, LABELS, "vllm"),
        (True, True, {"kv_cache_dtype": "fp8"}, LABELS, "vllm"),
        (True, True, {}, EXACT, "transformers"),
        (True, True, {}, Needs(exact=True, shares=False), "transformers"),
        (True, True, {"tensor_parallel": 2}, EXACT, "vllm"),
        (True, True, {"backend": "vllm"}, EXACT, "vllm"),
        (True, True, {}, BLOCKS, "transformers"),
        (True, True, {"device": "cuda:1"}, FREE, "transformers"),
        (True, True, {"pack": 3}, FREE, "transformers"),
        (True, True, {"base_url": "http://host/v1"}, FREE, "openai"),
        (True, True, {"backend": "transformers"}, FREE, "transformers"),
        (True, True, {"backend": "vllm"}, BLOCKS, "vllm"),
        (True, False, {"backend": "vllm"}, LABELS, "vllm"),
        (True, False, {}, FREE, "transformers"),
        (True, False, {"tensor_parallel": 2}, FREE, "vllm"),
        (False, True, {}, FREE, "transformers"),
        (False, True, {"tensor_parallel": 2}, LABELS, "vllm"),
    ],
)
def test_auto_is_the_backend_that_can_do_what_is_asked_and_reads_less_for_it(
    vllm: bool, cuda: bool, options: dict[str, Any], asked: Needs, expected: str, monkeypatch: pytest.MonkeyPatch
):
    present(monkeypatch, vllm=vllm, cuda=cuda)
    chosen = choose(BackendSpec(**options), asked)
    assert chosen.name == expected
    assert (chosen.reason is None) == ("backend" in options)


def test_a_vllm_that_is_too_old_is_not_chosen_but_said(monkeypatch: pytest.MonkeyPatch):
    present(monkeypatch, vllm=True, cuda=True)
    monkeypatch.setattr(loaders, "version", lambda _: "0.30.0")
    chosen = choose(BackendSpec(), FREE)
    assert chosen.name == "transformers"
    assert str(chosen.reason).startswith("vLLM 0.30.0 is too old")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, "transformers"),
        ({"score": "exact"}, "transformers"),
        ({"score": "exact", "select": "bm25"}, "transformers"),
        ({"score": "exact", "quantization": "awq"}, "vllm"),
        ({"unconstrained": True}, "vllm"),
        ({"select": "bm25"}, "vllm"),
        ({"select": "bm25,hybrid:2"}, "transformers"),
        ({"task": "samsum"}, "vllm"),
        ({"attention": "block:5"}, "transformers"),
    ],
)
def test_a_run_tells_auto_what_is_asked(asked: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch):
    present(monkeypatch, vllm=True, cuda=True)
    spec = RunSpec(**{"task": "banking77", "model": "tiny", "k": "10", **asked})
    backend, _ = spec.check(load_task(spec.task))  # and what is chosen can do it
    assert backend.name == expected


def test_a_plan_says_which_backend_would_answer_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = fakes.plan(tmp_path, k="1", draws=1)

    def said(**options: Any) -> str:
        spec = RunSpec(task="cards", model="tiny", k="1", **options)
        console = Console(file=StringIO(), width=200)
        sweep = Sweep(spec, made.task.model, made.task, made, spec.backend_for(made.task.data.spec))
        sweep.estimates = sweep.costs = lambda: [None]  # type: ignore[method-assign]
        print_plan(sweep, console)
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        (found,) = [line.strip() for line in lines if "backend:" in line]
        return str(found)

    present(monkeypatch, vllm=True, cuda=False)
    assert said() == "backend: transformers (there is no GPU)"
    present(monkeypatch, vllm=True, cuda=True)
    assert said().startswith("backend: transformers (packed queries read their shared keys")
    assert said(score="exact").startswith("backend: transformers (packed queries score all labels in one call, vLLM")
    assert said(tensor_parallel=2) == "backend: vllm (--tensor-parallel is for it)"
    assert said(backend="vllm") == "backend: vllm"


def test_a_name_that_is_no_backend_is_said_with_the_nearest():
    with pytest.raises(UserError, match=r"^--backend vlm: not a backend; did you mean vllm\?$"):
        choose(BackendSpec(backend="vlm"))


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ({"backend": "transformers", "max_model_len": 10}, "--max-model-len"),
        ({"backend": "transformers", "quantization": "awq"}, "--quantization"),
        ({"backend": "transformers", "concurrency": 2}, "--concurrency"),
        ({"backend": "vllm", "pack": 2}, "--pack"),
        ({"backend": "vllm", "base_url": "http://host/v1"}, "--base-url"),
    ],
)
def test_an_option_of_another_backend_is_refused(asked: dict[str, Any], option: str, monkeypatch: pytest.MonkeyPatch):
    present(monkeypatch, vllm=True, cuda=False)
    with pytest.raises(UserError, match=f"^{option}: applies to --backend"):
        check_backend(choose(BackendSpec(**asked)).loader)


def test_a_missing_vllm_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch):
    present(monkeypatch, vllm=False, cuda=True)
    with pytest.raises(UserError, match=r"not installed; pip install 'icl-bench\[vllm\]'"):
        check_backend(choose(BackendSpec(backend="vllm")).loader)


@pytest.mark.parametrize(
    ("here", "usable"),
    [("0.24.0", False), ("0.30.2+cu129", False), ("0.31.0", True), ("0.32.0+cpu", True), ("1.0", True)],
)
def test_a_vllm_that_does_not_escape_an_answers_line_break_is_refused_in_one_line(
    here: str, usable: bool, monkeypatch: pytest.MonkeyPatch
):
    present(monkeypatch, vllm=True, cuda=True)
    monkeypatch.setattr(loaders, "version", lambda _: here)
    loader = choose(BackendSpec(backend="vllm")).loader
    if usable:
        check_backend(loader)
        return
    with pytest.raises(UserError, match=r"before 0\.31 .*head_dtype.*pip install --upg") as raised:
        check_backend(loader)
    assert here in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_extra_asks_for_the_vllm_that_is_accepted():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f'vllm = ["vllm>={".".join(map(str, loaders.OLDEST_VLLM))}"]' in text


def test_what_decides_answers_is_in_a_backends_identity(monkeypatch: pytest.MonkeyPatch):
    present(monkeypatch, vllm=True, cuda=False)
    plain = choose(BackendSpec(backend="vllm", dtype="float32")).loader.identity()
    fp8 = choose(BackendSpec(backend="vllm", dtype="float32", quantization="fp8", gpu_memory=0.5)).loader.identity()
    assert plain == {"backend": "vllm", "dtype": "float32"}
    assert fp8 == {**plain, "quantization": "fp8"}


@pytest.mark.parametrize(
    ("backend", "asked", "said"),
    [
        (
            "vllm",
            {"patterns": ("block:5",)},
            "--attention block:5,sink=1,local=2: runs on --backend transformers, not vllm",
        ),
        (
            "openai",
            {"patterns": ("full", "grouped:2,8"), "tokenizer": "m"},
            "--attention grouped:2,8: runs on --backend transformers, not openai",
        ),
        (
            "anthropic",
            {"exact": True, "tokenizer": "m"},
            "--score exact: runs on --backend transformers, vllm or openai",
        ),
        ("vllm", {"exact": True}, None),
        ("vllm", {"tokenizer": "m"}, "--tokenizer: applies to --backend openai, anthropic or google only"),
        ("openai", {}, "--backend openai needs --tokenizer: a model name, folder or hub id"),
        ("transformers", {"patterns": ("block:5", "approx:9,3"), "exact": True}, None),
        ("openai", {"tokenizer": "m"}, None),
        ("vllm", {"patterns": ("full",)}, None),
    ],
)
def test_what_a_backend_cannot_do_is_said_with_the_one_that_can(backend: str, asked: dict[str, Any], said: str | None):
    loader = choose(BackendSpec(backend=backend)).loader
    request = {"patterns": (), "tokenizer": None, "exact": False, **asked}
    patterns = [Pattern.parse(text) for text in request["patterns"]]
    if said is None:
        check_patterns(loader, patterns)
        check_able(loader, request["tokenizer"], exact=request["exact"])
        return
    with pytest.raises(UserError) as raised:  # noqa: PT012 - which of the two is what is asked
        check_patterns(loader, patterns)
        check_able(loader, request["tokenizer"], exact=request["exact"])
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_loader_is_named_as_in_the_registry_and_its_options_are_fields(name: str):
    loader = BACKENDS[name]
    assert issubclass(loader, BackendLoader)
    assert loader.name == name
    assert loader.options <= set(BackendSpec.model_fields) - {"backend", "dtype"}


# -- a backend of another package ---------------------------------------------------------------

ECHO = """
    from icl_bench.backends.interface import Answer, BackendLoader, Counters
    from icl_bench.errors import UserError
    from icl_bench.models.attention_patterns import FULL


    class EchoLoader(BackendLoader):
        name = "echo"
        options = frozenset({"base_url"})
        needs_tokenizer_name = True

        def check(self):
            if self.spec.base_url == "nowhere":
                raise UserError("--base-url nowhere: nothing is there")

        def identity(self):
            return {"backend": "echo"}

        def load(self, model, tokenizer, room):
            return Echo(room)


    class Echo:
        name = "echo"
        peak_prefix_bytes = None

        def __init__(self, room):
            self.counters, self.room = Counters(), room

        def identity(self):
            return {"backend": "echo"}

        def answer(self, prompts, todo, decodings, reserve, pattern=FULL):
            assert all(len(prompts.ids(i)) < self.room for i in todo)
            yield [Answer(i, 0, 1, label=len(decodings[i].automaton.answers) - 1) for i in todo]
    """


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"transformers": "icl_bench.backends.loaders:TransformersLoader"}
    known = installed(tmp_path / "site", monkeypatch, BACKENDS, "echo = echo_backend:EchoLoader", ECHO, here)
    monkeypatch.setattr(choice, "BACKENDS", known)


@pytest.mark.usefixtures("echo")
def test_a_backend_of_another_package_answers_a_sweep(tmp_path: Path):
    asked = BackendSpec(backend="echo", base_url="here")
    check_backend(choose(asked).loader)
    plan = fakes.plan(tmp_path, k="1,2", draws=1)
    spec = RunSpec(task="cards", model="tiny", k="1,2", backend="echo", base_url="here", tokenizer="tiny")
    sweep = Sweep(spec, plan.task.model, plan.task, plan, spec.backend_for(plan.task.data.spec))
    outcome = sweep.run(tmp_path / "results")
    assert len(outcome.computed) == 2
    frame = read_results(tmp_path / "results")
    assert set(frame["backend"]) == {"echo"}
    assert set(frame["prediction"]) == {plan.task.data.labels[-1]}


@pytest.mark.usefixtures("echo")
def test_options_and_checks_of_a_backend_of_another_package_are_its_own():
    with pytest.raises(UserError, match="nowhere: nothing is there"):
        check_backend(choose(BackendSpec(backend="echo", base_url="nowhere")).loader)
    with pytest.raises(UserError, match="--pack: applies to --backend transformers only"):
        check_backend(choose(BackendSpec(backend="echo", pack=2)).loader)
    with pytest.raises(UserError, match="--base-url: applies to --backend echo only"):
        check_backend(choose(BackendSpec(backend="transformers", base_url="here")).loader)
    with pytest.raises(UserError, match="not echo"):
        check_patterns(choose(BackendSpec(backend="echo")).loader, [Pattern.parse("block:5")])


# -- vLLM ---------------------------------------------------------------------------------------


def test_vllm_makes_room_for_the_largest_cell_and_no_more_than_the_window(tmp_path: Path):
    plan = fakes.plan(tmp_path, k="1,4")
    largest = max(cell.needed_tokens for cell in plan.cells)
    assert largest < room_for(plan, 4096) <= largest + 257
    assert room_for(plan, 4096) % 256 == 0
    assert room_for(plan, largest + 3) == largest + 3


def test_the_last_error_of_a_log_is_the_cause_and_not_what_wraps_it():
    log = """INFO starting
(EngineCore pid=7) ERROR 10:00:00 [core.py:9] Traceback (most recent call last):
(EngineCore pid=7) ERROR 10:00:00 [core.py:9]     raise ValueError("too large")
(EngineCore pid=7) ERROR 10:00:00 [core.py:9] ValueError: No available memory for the cache blocks.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
    assert last_error(log) == "No available memory for the cache blocks."
    assert last_error("nothing of the kind") is None
