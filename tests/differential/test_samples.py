"""Samples of the real models, with thoughts and without: alone, packed and resumed, against a slow loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.fakes import write_task
from support.models import PlainDecoding, plain_model, tiny_checkpoint

from icl_bench.backends.interface import Answer, Backend, Free, Greedy
from icl_bench.models.packaged_gemma import GEMMA3_270M
from icl_bench.models.packaged_smollm2 import SMOLLM2_135M
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.reading import read_results
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep

pytestmark = pytest.mark.slow

MODELS = {model.name: model for model in (GEMMA3_270M, SMOLLM2_135M)}
THINK = {"think": True, "opens": "Let's think.", "ends": "So it is ", "limit": 4}


class Made:
    """A model with its sweeps of two test rows, three samples each."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.backend: Any = None

    @cached_property
    def network(self) -> Any:
        """The library's own model."""
        return plain_model(self.sweep().model.source)

    def sweep(self, **task: Any) -> Sweep:
        path = write_task(self.folder / ("thoughts" if task else "labels"), train_rows=8, test_rows=2, **task)
        options: dict[str, Any] = {"k": "2", "draws": 1, "samples": 3, "temperature": 0.9, "seed": 7}
        made = Sweep.prepare(RunSpec(task=str(path), model=self.name, device="cpu", dtype="float32", **options))
        self.backend = self.backend or made.load_backend()
        return made

    def run(self, results: Path, rows: int = 256, backend: Any = None, **task: Any) -> pd.DataFrame:
        made = self.sweep(**task)
        self.backend.limits.rows = rows
        made.run(results, load=lambda: backend or self.backend)
        return read_results(results).sort_values("test_id").reset_index(drop=True)


@pytest.fixture(scope="module", params=[pytest.param(GEMMA3_270M.name, marks=pytest.mark.thorough), SMOLLM2_135M.name])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    if not MODELS[request.param].is_installed():
        pytest.skip(f"needs pip install {MODELS[request.param].install}")
    return Made(request.param, tmp_path_factory.mktemp(request.param))


def label(plain: PlainDecoding, decoding: Greedy) -> int:
    """A sampled label behind a prompt, token by token by the library's own model."""
    assert decoding.sampling is not None
    automaton, state, written = decoding.automaton, 0, list[int]()
    places = {token: place for place, token in enumerate(automaton.vocabulary.tolist())}
    while automaton.decided[state] < 0:
        logits = plain.logits.numpy()
        noise = decoding.sampling.noise(len(written), len(places))
        allowed = automaton.tokens[state].tolist()
        best = max(range(len(allowed)), key=lambda at: float(logits[allowed[at]] + noise[places[allowed[at]]]))
        written.append(allowed[best])
        plain.append(allowed[best])
        state = int(automaton.targets[state][best])
    return int(automaton.decided[state])


def thought(plain: PlainDecoding, tokenizer: Any, free: Free, ends: set[int]) -> str:
    """A sampled thought behind a prompt, token by token by the library's own model."""
    assert free.sampling is not None
    written: list[int] = []
    while len(written) < free.max_tokens:
        logits = plain.logits.numpy()
        token = int((logits + free.sampling.noise(len(written), len(logits))).argmax())
        if token in ends:
            break
        written.append(token)
        plain.append(token)
        if (text := free.before_stop(tokenizer.decode(written))) is not None:
            return text
    return str(tokenizer.decode(written))


def prompts_of(sweep: Sweep) -> PromptSet:
    (planned,) = sweep.plan.groups
    ((_, prompts),) = planned.group.prompts([2])
    return prompts


def test_sampled_labels_are_those_of_a_slow_loop(made: Made, tmp_path: Path):
    sweep, frame = made.sweep(), made.run(tmp_path / "results")
    task, network, prompts = sweep.task, made.network, prompts_of(sweep)
    assert task.samples is not None
    for index, row in enumerate(task.data.test):
        each = [task.samples.of(task.decodings(task.data.test)[index], row.id, n) for n in range(3)]
        plain = PlainDecoding(network, prompts.ids(index))
        expected = [label(plain.copy(), one) for one in each if isinstance(one, Greedy)]
        (stored,) = frame.loc[frame["test_id"] == row.id, "samples"]
        assert list(stored) == [task.data.labels[at] for at in expected]


def test_sampled_thoughts_are_those_of_a_slow_loop(made: Made, tmp_path: Path):
    sweep, frame = made.sweep(answer=THINK), made.run(tmp_path / "results", answer=THINK)
    task, network, prompts = sweep.task, made.network, prompts_of(sweep)
    assert task.samples is not None
    assert task.thinking is not None
    row = task.data.test[0]
    sampling = [task.samples.of(task.decodings(task.data.test)[0], row.id, n) for n in range(3)]
    each = [replace(task.thinking.free, sampling=one.sampling.named("thought")) for one in sampling]  # type: ignore[union-attr]
    ends = made.backend.model.end_tokens
    plain = PlainDecoding(network, prompts.ids(0))
    expected = [thought(plain.copy(), task.tokenizer, one, ends) for one in each]
    (stored,) = frame.loc[frame["test_id"] == row.id, "sample_thoughts"]
    assert list(stored) == expected
    assert len(set(expected)) > 1


class Stops:
    """A backend that stops after so many packs, in a thought or in an answer."""

    def __init__(self, backend: Backend, packs: int) -> None:
        self._backend, self._left = backend, packs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def answer(self, *asked: Any) -> Iterator[list[Answer]]:
        for pack in self._backend.answer(*asked):
            yield pack
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt


def test_samples_are_the_same_alone_packed_and_resumed(tmp_path: Path):
    """With a tiny model: what a sample depends on is not a matter of weights."""
    made = Made(str(tiny_checkpoint(tmp_path / "model")), tmp_path)
    same = ["samples", "sample_thoughts", "sample_thought_tokens", "prediction", "thought"]
    whole = made.run(tmp_path / "packed", answer=THINK)[same].map(str)
    pd.testing.assert_frame_equal(whole, made.run(tmp_path / "alone", rows=1, answer=THINK)[same].map(str))
    for packs in (1, 4):
        with pytest.raises(KeyboardInterrupt):
            made.run(tmp_path / f"cut {packs}", rows=2, backend=Stops(made.backend, packs), answer=THINK)
        again = made.run(tmp_path / f"cut {packs}", rows=2, answer=THINK)
        pd.testing.assert_frame_equal(whole, again[same].map(str))
