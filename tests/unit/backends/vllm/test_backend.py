"""What the vLLM backend asks of its engine, with an engine that only notes what it is asked."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import small_tokenizer
from support.models import qwen_tokenizer

from icl_bench.backends.choice import choose
from icl_bench.backends.interface import Answer, Decoding, Exact, Free, Greedy
from icl_bench.backends.label_constraint import compile_labels, label_trie, one_of
from icl_bench.backends.sampling import Sampling
from icl_bench.backends.spec import BackendSpec
from icl_bench.backends.vllm import backend as backend_of_vllm
from icl_bench.backends.vllm.backend import CALL, VllmBackend
from icl_bench.errors import CellError
from icl_bench.prompts.encoding import PromptSet

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


@dataclass
class Engine:
    """An engine that answers every prompt with one token, and all that was asked of it."""

    made: dict[str, Any] = field(default_factory=dict)
    calls: list[list[tuple[int, ...]]] = field(default_factory=list)
    fails_at: int | None = None
    """The call that fails."""

    def generate(self, prompts: Sequence[Any], sampling: Sequence[Any], **_: Any) -> list[Any]:
        assert len(prompts) == len(sampling)
        if len(self.calls) == self.fails_at:
            raise RuntimeError("EngineDeadError: the engine was killed")
        self.calls.append([tuple(asked["prompt_token_ids"]) for asked in prompts])
        said = SimpleNamespace(token_ids=[7], text="yes", finish_reason="stop")
        return [SimpleNamespace(num_cached_tokens=0, outputs=[said]) for _ in prompts]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Stands in for vLLM's; the environment is as it was before afterwards."""
    engine, module, sampling = Engine(), ModuleType("vllm"), ModuleType("vllm.sampling_params")

    def made(**arguments: Any) -> Engine:
        engine.made.update(arguments, environment=dict(os.environ))
        return engine

    module.LLM = made  # type: ignore[attr-defined]
    module.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    sampling.StructuredOutputsParams = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", sampling)
    for name in [*os.environ, METHOD, "VLLM_ENABLE_V1_MULTIPROCESSING"]:
        if name.startswith("VLLM_"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
    return engine


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Makes CUDA seem to be there; how processes were to be started whenever it was asked for."""
    seen: list[str | None] = []

    def available() -> bool:
        seen.append(os.environ.get(METHOD))
        return True

    monkeypatch.setattr(torch.cuda, "is_available", available)
    return seen


def started(**more: Any) -> VllmBackend:
    identity = {"backend": "vllm", "dtype": "bfloat16"}
    return VllmBackend("a/model", small_tokenizer(), identity=identity, max_model_len=100, **more)


def test_processes_are_spawned_and_that_is_settled_before_cuda_is_asked_for(engine: Engine, cuda: list[str | None]):
    started()
    assert set(cuda) == {"spawn"}
    assert engine.made["environment"][METHOD] == "spawn"


@pytest.mark.usefixtures("cuda")
def test_prompts_beyond_the_configs_window_are_refused_in_one_line(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    started()
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN" not in engine.made["environment"]
    text = (
        "1 validation error for ModelConfig\n  Value error, User-specified max_model_len (100) is greater than the "
        "derived max_model_len (max_position_embeddings=64.0 or model_max_length=None in model's config.json)."
    )

    def refuses(**_: Any) -> None:
        raise ValueError(text)

    monkeypatch.setattr(sys.modules["vllm"], "LLM", refuses)
    with pytest.raises(CellError) as caught:
        started()
    assert str(caught.value).startswith(
        "vLLM did not start: 100 tokens were requested, but the model's config covers 64; use a smaller k"
    )
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("cuda")
def test_who_starts_processes_in_another_way_is_let(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(METHOD, "forkserver")
    started()
    assert engine.made["environment"][METHOD] == "forkserver"


@pytest.mark.usefixtures("cuda")
def test_on_cuda_the_grammar_engine_holds_answers_unless_the_processor_is_asked_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    assert started().constraint == "xgrammar"
    assert "logits_processors" not in engine.made
    with pytest.raises(CellError, match=r"takes no logits processor: 0\.32 or later"):
        started(constraint="processor")
    monkeypatch.setattr(backend_of_vllm.importlib.util, "find_spec", lambda name: name)
    started(constraint="processor")
    (name,) = engine.made["logits_processors"]
    assert name == "icl_bench.backends.vllm.device_processor:DeviceLabelProcessor"
    assert engine.made["environment"]["VLLM_USE_V2_MODEL_RUNNER"] == "1"


def test_on_a_cpu_the_processor_of_the_first_model_runner_holds_them(engine: Engine):
    assert started().constraint == "processor"
    (name,) = engine.made["logits_processors"]
    assert name == "icl_bench.backends.vllm.logits_processor:LabelProcessor"
    assert "VLLM_USE_V2_MODEL_RUNNER" not in engine.made["environment"]


@pytest.mark.usefixtures("cuda")
def test_the_engine_works_on_as_many_requests_as_a_cell_has(engine: Engine):
    started()
    assert engine.made["max_num_seqs"] == 256
    started(max_num_seqs=32)
    assert engine.made["max_num_seqs"] == 32


@pytest.mark.parametrize(("free", "room"), [(30, 4), (6, 3)])
def test_on_a_cpu_the_cache_has_four_gib_or_half_of_what_is_free(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, free: int, room: int
):
    memory = SimpleNamespace(available=free * 2**30)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    started()
    assert engine.made["kv_cache_memory_bytes"] == room * 2**30
    engine.made.clear()
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # vLLM reads it itself
    started()
    assert "kv_cache_memory_bytes" not in engine.made


def test_how_the_cache_is_stored_is_handed_on_and_part_of_the_identity(engine: Engine):
    started()
    assert "kv_cache_dtype" not in engine.made
    started(kv_cache_dtype="fp8")
    assert engine.made["kv_cache_dtype"] == "fp8"
    plain = BackendSpec(backend="vllm", dtype="float32")
    fp8 = plain.model_copy(update={"kv_cache_dtype": "fp8"})
    assert choose(plain).loader.identity() == {"backend": "vllm", "dtype": "float32"}
    assert choose(fp8).loader.identity() == {**choose(plain).loader.identity(), "kv_cache_dtype": "fp8"}


# -- calls --------------------------------------------------------------------------------------

PROMPTS = PromptSet((1, 2, 3), tuple((10 + i,) for i in range(150)))
ANSWER = [Free(("\n",), 5)] * len(PROMPTS)


def packs(
    backend: VllmBackend,
    todo: Sequence[int],
    keep: Callable[[list[Answer]], object],
    prompts: PromptSet = PROMPTS,
    decodings: Sequence[Decoding] = ANSWER,
) -> None:
    for pack in backend.answer(prompts, todo, decodings, 0):
        keep(pack)


def test_a_cell_is_answered_in_several_calls_behind_one_for_its_prefix(engine: Engine):
    found: list[list[Answer]] = []
    packs(started(), range(150), found.append)
    assert [len(pack) for pack in found] == [CALL, CALL, 150 - 2 * CALL]
    assert [answer.index for pack in found for answer in pack] == list(range(150))
    assert engine.calls[0] == [PROMPTS.prefix]
    asked = [ids for call in engine.calls[1:] for ids in call]
    assert asked == [PROMPTS.ids(i) for i in range(150)]


def test_an_engine_that_dies_within_a_cell_leaves_what_it_has_answered(engine: Engine):
    found: list[list[Answer]] = []
    backend = started()
    engine.fails_at = 2
    with pytest.raises(CellError, match=r"^vLLM failed \(.*killed\)$"):
        packs(backend, range(150), found.append)
    assert [len(pack) for pack in found] == [backend_of_vllm.CALL]
    engine.fails_at = None
    packs(backend, range(CALL, 150), found.append)
    assert sorted(a.index for pack in found for a in pack) == list(range(150))


def test_the_seconds_of_a_call_are_counted_before_its_answers_are_handed_out(engine: Engine):
    backend, seen = started(), [0.0]
    packs(backend, range(150), lambda _: seen.append(backend.counters.seconds))
    assert seen == sorted(set(seen))


def test_an_engine_is_told_all_stops_and_the_earliest_ends_the_text(engine: Engine):
    free = Free(("s", "e"), 5)  # the engine answers "yes"
    backend = started()
    found = [a for pack in backend.answer(PROMPTS, [0], [free] * len(PROMPTS), 0) for a in pack]
    assert [(a.text, a.ids) for a in found] == [("y", (7,))]
    assert (backend.sampling(free).stop, backend.sampling(free).stop_token_ids) == (["s", "e"], [])


@pytest.mark.usefixtures("engine")
def test_a_stop_that_is_a_special_token_ends_the_answer_though_the_engines_text_is_without_it():
    backend = started()
    backend.tokenizer = qwen_tokenizer()
    end = backend.tokenizer.eos_token
    assert backend.sampling(Free(("\n", end), 5)).stop_token_ids == [backend.tokenizer.eos_token_id]
    assert backend.sampling(Free(("\n",), 5)).stop_token_ids == []


@pytest.mark.usefixtures("cuda")
def test_a_sample_has_its_temperature_and_a_seed_of_its_own(engine: Engine):
    tokenizer: Any = small_tokenizer()
    automaton, backend = compile_labels([" card\n", " top up\n"], tokenizer), started()
    one, other = (Sampling(0.7, 0, (name, 0)) for name in ("row 1", "row 2"))
    for decoding in (Free(("s",), 5, sampling=one), Greedy(automaton, one)):
        found = backend.sampling(decoding)
        assert (found.temperature, found.seed) == (0.7, one.request_seed)
        assert backend.sampling(replace(decoding, sampling=other)).seed == other.request_seed != one.request_seed
        plain = backend.sampling(replace(decoding, sampling=None))
        assert plain.temperature == 0
        assert not hasattr(plain, "seed")


@pytest.mark.usefixtures("cuda")
def test_each_prompt_is_held_to_its_own_choices(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    tokenizer: Any = small_tokenizer()
    asked: list[Any] = []

    def says_the_last(prompts: Sequence[Any], sampling: Sequence[Any], **_: Any) -> list[Any]:
        asked.extend(sampling)
        texts = [lasts[one.structured_outputs.regex] for one in sampling]
        said = [
            SimpleNamespace(token_ids=ids, text=text, finish_reason="stop")
            for text, ids in zip(texts, tokenizer(texts)["input_ids"], strict=True)
        ]
        return [SimpleNamespace(num_cached_tokens=0, outputs=[one]) for one in said]

    monkeypatch.setattr(engine, "generate", says_the_last)
    choices = [[" card\n", " lost\n"], [" top up\n", " card\n", " it\n"]]
    lasts = {one_of(answers): answers[-1] for answers in choices}
    own = [Greedy(compile_labels(answers, tokenizer)) for answers in choices]
    prompts = PromptSet((), tuple((10 + i,) for i in range(4)))
    (pack,) = started().answer(prompts, range(4), [own[i % 2] for i in range(4)], 0)
    assert [answer.label for answer in pack] == [1, 2, 1, 2]
    assert [one.structured_outputs.regex for one in asked] == [one_of(choices[i % 2]) for i in range(4)]


# -- every label --------------------------------------------------------------------------------


def log_probability(ids: Sequence[int], token: int) -> float:
    """That of a token after others, in a language model of this test."""
    return -(1 + (7 * sum(ids) + 3 * len(ids) + token) % 11) / 4


@pytest.fixture
def scoring(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine with these log-probabilities. Five tokens of each prompt are cached, but never its last."""

    def generate(prompts: Sequence[Any], sampling: Sequence[Any], **_: Any) -> list[Any]:
        asked = [tuple(prompt["prompt_token_ids"]) for prompt in prompts]
        engine.calls.append(asked)
        outputs = []
        for ids, one in zip(asked, sampling, strict=True):
            tokens = getattr(one, "logprob_token_ids", [])
            assert len(tokens) <= 128, "vLLM refuses more"
            step = {token: SimpleNamespace(logprob=log_probability(ids, token)) for token in [*tokens, 99]}
            outputs.append(
                SimpleNamespace(num_cached_tokens=min(5, len(ids) - 1), outputs=[SimpleNamespace(logprobs=[step])])
            )
        return outputs

    monkeypatch.setattr(engine, "generate", generate)
    return engine


def summed(prompt: tuple[int, ...], answer: tuple[int, ...]) -> float:
    return sum(log_probability(prompt + answer[:n], token) for n, token in enumerate(answer))


LABELS = ((3, 4, 9), (3, 4, 5, 9), (3, 9), (8, 9))
"""The first begins the second but for its end. Inner nodes: nothing, 3, 34, 345 and 8."""
SCORED = PromptSet((1, 2, 3), ((6, 6, 6), (7, 6, 5, 4), (5,)))


def test_scores_are_the_sums_of_each_labels_tokens_over_packs_and_calls(
    scoring: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(backend_of_vllm, "SCORED_NODES", 10)
    monkeypatch.setattr(backend_of_vllm, "SCORED_TOKENS", 3 * SCORED.longest)
    exact = Exact(label_trie(LABELS), sizes=(3, 4, 2, 2))
    found = list(started().answer(SCORED, range(3), [exact] * 3, 0))
    assert [[answer.index for answer in pack] for pack in found] == [[0, 1], [2]]
    for answer in (answer for pack in found for answer in pack):
        expected = [summed(SCORED.ids(answer.index), label) for label in LABELS]
        assert answer.scores == pytest.approx(expected)
        assert answer.label == np.argmax(np.array(expected) / exact.sizes)
    assert scoring.calls[0] == [SCORED.prefix]
    assert scoring.calls[1] == [SCORED.ids(0), SCORED.ids(1)]
    assert [len(call) for call in scoring.calls] == [1, 2, 3, 3, 2, 1, 3, 1]


def test_a_node_with_more_children_than_one_request_may_ask_for_is_asked_for_in_several(scoring: Engine):
    labels = tuple((100 + i, 9) for i in range(300))
    (pack,) = started().answer(SCORED, [1], [Exact(label_trie(labels))] * 3, 0)
    assert pack[0].scores == pytest.approx([summed(SCORED.ids(1), label) for label in labels])
    assert scoring.calls[0] == [SCORED.ids(1)] * 3


@pytest.mark.usefixtures("scoring")
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_log_probabilities_that_are_not_finite_fail_the_cell(value: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "log_probability", lambda *_: value)
    with pytest.raises(CellError, match=r"infinite or NaN; --dtype"):
        packs(started(), range(3), list, SCORED, [Exact(label_trie(LABELS))] * 3)


def test_computed_tokens_are_counted_for_the_query_or_for_labels(scoring: Engine):
    """Prompts of 6, 7 and 4 tokens. Five tokens of each request are cached, but never its last."""
    backend = started()
    tries = [Exact(label_trie(labels)) for labels in (LABELS, LABELS[2:], LABELS[:1])]
    (pack,) = backend.answer(SCORED, range(3), tries, 0)
    assert [(answer.cached_tokens, answer.answer_tokens) for answer in pack] == [(5, 0), (5, 0), (3, 0)]
    assert [len(answer.scores) for answer in pack if answer.scores is not None] == [4, 2, 1]
    assert backend.counters.own_tokens == 5 * 1 + 3 * 2 + 1
    assert backend.counters.answer_tokens == (1 + 2 + 3 + 1) + (1 + 1) + (1 + 1)


def test_log_probabilities_of_one_pack_are_kept_when_a_later_one_fails(
    scoring: Engine, monkeypatch: pytest.MonkeyPatch
):
    generate = scoring.generate

    def dies(*asked: Any, **more: Any) -> list[Any]:
        if len(scoring.calls) == 3:
            raise RuntimeError("EngineDeadError: the engine was killed")
        return generate(*asked, **more)

    monkeypatch.setattr(scoring, "generate", dies)
    monkeypatch.setattr(backend_of_vllm, "SCORED_NODES", 1)
    found: list[Answer] = []
    with pytest.raises(CellError, match=r"^vLLM failed \(.*killed\)$"):
        packs(started(), range(3), found.extend, SCORED, [Exact(label_trie(LABELS))] * 3)
    assert [answer.index for answer in found] == [0]
