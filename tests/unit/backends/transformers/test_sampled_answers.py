"""Sampled answers equal a plain loop over whole forward passes: alone, packed, and by their distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from support.models import plain_logits, plain_model, save_tiny_model, tiny_config
from support.models import random_ids as ids

from icl_bench.backends.interface import Answer, Decoding, Free, Greedy
from icl_bench.backends.label_constraint import LabelAutomaton, compile_labels
from icl_bench.backends.sampling import Sampling
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.backends.transformers.forward_check import check_forward
from icl_bench.backends.transformers.loaded_model import LoadedModel
from icl_bench.prompts.encoding import Ids, PromptSet

pytestmark = pytest.mark.usefixtures("one_thread")

ANSWERS = [f" {label}\n" for label in ("card arrival", "card", "card status", "order", "état", "top up")]
KINDS = ["llama", "gemma3_text", "capped"]
LENGTHS = [1, 5, 3, 20, 9, 2]
COUNT = 3


@pytest.fixture(scope="module", params=KINDS)
def both(
    request: pytest.FixtureRequest, folders: dict[str, Path], tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedModel, Any]:
    """A model of this program, and the library's own; ``capped`` bends its logits, as Gemma 2 does."""
    if request.param == "capped":
        config = tiny_config("gemma3_text", len(tokenizer))
        config.final_logit_softcapping = 0.5
        folder = save_tiny_model(config, tmp_path_factory.mktemp("models") / "capped")
    else:
        folder = folders[request.param]
    model = LoadedModel.load(folder, tokenizer, None, "float32", "cpu")
    check_forward(model)
    return model, plain_model(folder)


@pytest.fixture(scope="module")
def automaton(tokenizer: Any) -> LabelAutomaton:
    return compile_labels(ANSWERS, tokenizer)


def prompts_of(prefix: int = 33) -> PromptSet:
    return PromptSet(ids(500, 0)[:prefix], tuple(ids(size, 7 * i + 1) for i, size in enumerate(LENGTHS)))


def sampled(decoding: Decoding, temperature: float = 0.9) -> list[Decoding]:
    """Each row's samples beside each other."""
    names = [(f"row {index}", number) for index in range(len(LENGTHS)) for number in range(COUNT)]
    return [replace(decoding, sampling=Sampling(temperature, 5, name)) for name in names]  # type: ignore[call-arg]


def asked(
    model: LoadedModel, each: Sequence[Decoding], todo: Sequence[int] | None = None, **settings: Any
) -> dict[int, Answer]:
    prompts = prompts_of().repeated(COUNT)
    todo = range(len(prompts)) if todo is None else todo
    packs = TransformersBackend(model, **settings).answer(prompts, todo, each, 0)
    return {answer.index: answer for pack in packs for answer in pack if answer.index in todo}


def free_text(model: Any, tokenizer: Any, prompt: Ids, decoding: Free) -> str:
    """Free sampling by its definition."""
    assert decoding.sampling is not None
    written: list[int] = []
    while len(written) < decoding.max_tokens:
        logits = plain_logits(model, (*prompt, *written), last=1)[-1].numpy()
        written.append(int((logits + decoding.sampling.noise(len(written), len(logits))).argmax()))
        if written[-1] == tokenizer.eos_token_id:
            return str(tokenizer.decode(written[:-1]))
    return str(tokenizer.decode(written))


def label(model: Any, prompt: Ids, decoding: Greedy) -> int:
    """Sampling under the constraint by its definition: the softmax over allowed tokens."""
    assert decoding.sampling is not None
    automaton, state, written = decoding.automaton, 0, list[int]()
    while automaton.decided[state] < 0:
        logits = plain_logits(model, (*prompt, *written), last=1)[-1].numpy()
        noise = decoding.sampling.noise(len(written), len(automaton.vocabulary))
        noise_of = dict(zip(automaton.vocabulary.tolist(), noise, strict=True))
        scores = [float(logits[token] + noise_of[token]) for token in automaton.tokens[state].tolist()]
        best = int(np.argmax(scores))
        written.append(int(automaton.tokens[state][best]))
        state = int(automaton.targets[state][best])
    return int(automaton.decided[state])


def test_free_samples_are_those_of_a_plain_loop(both: tuple[LoadedModel, Any], tokenizer: Any):
    model, reference = both
    each = sampled(Free(("no such text",), 8))
    found, prompts = asked(model, each), prompts_of()
    for index, answer in found.items():
        decoding = each[index]
        assert isinstance(decoding, Free)
        assert answer.text == free_text(reference, tokenizer, prompts.ids(index // COUNT), decoding)
    assert len({answer.text for answer in found.values()}) > len(LENGTHS)


def test_samples_under_the_constraint_are_those_of_a_plain_loop(
    both: tuple[LoadedModel, Any], automaton: LabelAutomaton
):
    model, reference = both
    each = sampled(Greedy(automaton))
    found, prompts = asked(model, each), prompts_of()
    for index, answer in found.items():
        decoding = each[index]
        assert isinstance(decoding, Greedy)
        assert answer.label == label(reference, prompts.ids(index // COUNT), decoding)
    assert len({answer.label for answer in found.values()}) > 1


@pytest.mark.parametrize("kind", ["free", "greedy"])
def test_a_sample_is_the_same_alone_packed_and_beside_other_rows(
    both: tuple[LoadedModel, Any], automaton: LabelAutomaton, kind: str
):
    model, _ = both
    each = sampled(Free(("no such text",), 5) if kind == "free" else Greedy(automaton))
    whole = asked(model, each)
    for settings in ({"pack_rows": 1}, {"pack_rows": 4, "chunk_tokens": 7}):
        assert _said(asked(model, each, **settings)) == _said(whole)
    some = [1, 8, 17]
    assert _said(asked(model, each, some)) == {index: _said(whole)[index] for index in some}
    mixed = [one if index in some else replace(one, sampling=None) for index, one in enumerate(each)]  # type: ignore[call-arg]
    beside = _said(asked(model, mixed))
    assert {index: beside[index] for index in some} == {index: _said(whole)[index] for index in some}


def _said(answers: dict[int, Answer]) -> dict[int, tuple[Any, ...]]:
    return {index: (one.label, one.text, one.answer_tokens) for index, one in answers.items()}


def test_without_sampling_nothing_changes(both: tuple[LoadedModel, Any], tokenizer: Any):
    model, reference = both
    (answer,) = asked(model, [Free(("no such text",), 6)] * len(LENGTHS) * COUNT, [0]).values()
    with torch.inference_mode():
        prompt = prompts_of().ids(0)
        expected = reference.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=6)
    assert answer.text == tokenizer.decode(expected[0, len(prompt) :])


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_labels_are_sampled_by_their_renormalised_probabilities(
    both: tuple[LoadedModel, Any], tokenizer: Any, temperature: float
):
    """Labels of one token each: the distribution is the softmax over the allowed tokens, also of capped logits."""
    model, reference = both
    automaton = compile_labels(["a", "b", "c", "d"], tokenizer)
    prompt = PromptSet((), (ids(12, 3),) * 1).repeated(1500)
    each = [Greedy(automaton, Sampling(temperature, 1, (n,))) for n in range(1500)]
    packs: Callable[..., Any] = TransformersBackend(model).answer
    drawn = [answer.label for pack in packs(prompt, range(1500), each, 0) for answer in pack]
    logits = plain_logits(reference, prompt.ids(0), last=1)[-1].numpy()[automaton.tokens[0]].astype(float)
    letters = [automaton.decided[target] for target in automaton.targets[0]]
    chances = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    expected = np.zeros(4)
    expected[letters] = chances
    assert stats.chisquare(np.bincount(drawn, minlength=4), 1500 * expected).pvalue > 0.001
