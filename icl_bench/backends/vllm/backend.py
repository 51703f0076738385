"""The vLLM backend: demonstrations stay in its prefix cache, answers are constrained to labels.

One vLLM engine serves a run. A cell's prefix is computed first, so its queries find it in the cache
instead of each computing it. Then come the queries, many in a call. Cells of a draw follow each other
with increasing k, so every prefix extends the previous one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from icl_bench.backends.interface import Answer, Counters, Decoding, Exact, Free, Greedy
from icl_bench.backends.label_constraint import END, LabelAutomaton, one_of
from icl_bench.backends.vllm.label_file import FILE, write_automaton
from icl_bench.backends.vllm.label_requests import NodeRequest, node_requests
from icl_bench.errors import CellError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import Ids, PromptSet
from icl_bench.wording import one_line

CPU_CACHE_BYTES = 4 * 2**30
"""Room for keys and values on a CPU, or half of the free memory if that is less.
VLLM_CPU_KVCACHE_SPACE (GiB) overrides it."""

MAX_REQUESTS = 256
"""Requests that the engine processes at once. More than a cell's queries would cost memory on a GPU, and time for graph
capture when the engine starts.
"""

CALL = 64
"""Queries per call. The answers of a call are kept if later calls fail."""

SCORED_NODES = 1024
"""Label tree nodes per pack (at least one query), because scoring 64 queries could take minutes."""

SCORED_TOKENS = 2**22
"""Tokens per call that scores labels: each request contains its whole prompt, and the engine copies it."""


class VllmBackend:
    """A decoder in vLLM's offline engine, on CUDA or the CPU."""

    name = "vllm"
    peak_prefix_bytes = None

    def __init__(
        self,
        model: str,
        tokenizer: Any,
        *,
        identity: Mapping[str, str],
        max_model_len: int,
        tensor_parallel: int = 1,
        gpu_memory: float | None = None,
        quantization: str | None = None,
        kv_cache_dtype: str | None = None,
        constraint: str | None = None,
        **engine: Any,
    ) -> None:
        """Start the engine. ``max_model_len`` is the longest prompt with its answer, in tokens.

        ``constraint`` is ``processor`` (of this package) or one of vLLM's grammar engines. The
        default is the processor on a CPU, where it is the fastest, and xgrammar on CUDA, where the
        processor's speed is not known (docs/constrained-decoding.md). ``engine`` are further
        arguments of ``vllm.LLM``. Raises ``CellError`` with the engine's message if it does not
        start.
        """
        import torch

        _set_environment()
        self.tokenizer, self.counters = tokenizer, Counters()
        self._identity = dict(identity)
        cuda = torch.cuda.is_available()
        self.constraint = constraint or ("xgrammar" if cuda else "processor")
        self._folder = tempfile.TemporaryDirectory(prefix="icl-bench-")
        self._written: dict[int, tuple[LabelAutomaton, str]] = {}
        engine = {"max_num_seqs": MAX_REQUESTS, **engine} if cuda else _on_a_cpu(engine, gpu_memory)
        if kv_cache_dtype is not None:
            engine["kv_cache_dtype"] = kv_cache_dtype
        if gpu_memory is not None:
            engine["gpu_memory_utilization"] = gpu_memory
        if quantization is not None:
            engine["quantization"] = quantization
        elif identity["dtype"] != "float32":
            # logits rounded to bfloat16 tie in several percent of the answers
            engine = {"hf_overrides": {"head_dtype": "float32"}, **engine}
        if self.constraint == "processor":
            engine["logits_processors"] = [_processor(cuda=cuda)]
        # standard error of the engine's processes
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            with _stderr_into(self._log):
                from vllm import LLM

                self.llm: Any = LLM(
                    model=model,
                    dtype=identity["dtype"],
                    max_model_len=max_model_len,
                    tensor_parallel_size=tensor_parallel,
                    enable_prefix_caching=True,
                    disable_log_stats=True,
                    structured_outputs_config={
                        "backend": "auto" if self.constraint == "processor" else self.constraint
                    },
                    **engine,
                )
        except Exception as error:  # the engine raises many kinds of errors, some from other processes
            raise CellError(_not_started(self._reason(error), max_model_len)) from None

    def identity(self) -> dict[str, str]:
        """See ``Backend.identity``."""
        return dict(self._identity)

    def answer(
        self,
        prompts: PromptSet,
        todo: Sequence[int],
        decodings: Sequence[Decoding],
        reserve: int,  # noqa: ARG002 - the engine's cache has a fixed size
        pattern: Pattern = FULL,
    ) -> Iterator[list[Answer]]:
        """See ``Backend.answer``. A pack is the answers of one call, or of a few if labels are scored."""
        assert pattern == FULL, "attention patterns run on the transformers backend"
        nodes = max((len(d.trie.inner) for i in todo if isinstance(d := decodings[i], Exact)), default=0)
        rows = min(CALL, max(1, SCORED_NODES // nodes)) if nodes else CALL
        for first in range(0, len(todo), rows):
            start = time.perf_counter()
            try:
                if not first and prompts.prefix and len(todo) > 1:
                    self.warm(prompts.prefix)
                answers = (self._scored if nodes else self._answers)(prompts, todo[first : first + rows], decodings)
            except Exception as error:
                raise CellError(f"vLLM failed ({self._reason(error)})") from None
            self.counters.seconds += time.perf_counter() - start
            yield answers

    def warm(self, prefix: Ids) -> None:
        """Compute a prefix once, before many queries need it at the same time."""
        from vllm import SamplingParams

        (output,) = self.generate([prefix], [SamplingParams(temperature=0, max_tokens=1)])
        self.counters.prefix_tokens += len(prefix) - _cached_tokens(output)

    def _answers(self, prompts: PromptSet, todo: Sequence[int], decodings: Sequence[Decoding]) -> list[Answer]:
        different = {id(decodings[i]): decodings[i] for i in todo}
        sampling = {name: self.sampling(decoding) for name, decoding in different.items()}
        sampling_of_prompts = [sampling[id(decodings[i])] for i in todo]
        outputs = self.generate([prompts.ids(i) for i in todo], sampling_of_prompts)
        answers = []
        for index, output in zip(todo, outputs, strict=True):
            cached, (completion,), decoding = _cached_tokens(output), output.outputs, decodings[index]
            self.counters.own_tokens += prompts.size(index) - cached
            self.counters.answer_tokens += len(completion.token_ids)
            if isinstance(decoding, Greedy):
                label = decoding.automaton.read(completion.token_ids)
                if label < 0:
                    raise RuntimeError(f"the engine stopped within a label: {completion.text!r}")
                answers.append(Answer(index, cached, len(completion.token_ids), label=label))
            else:
                assert isinstance(decoding, Free), _IN_ONE_WAY
                ended = decoding.before_stop(completion.text)  # the engine checks stops in their order
                text, truncated = completion.text if ended is None else ended, completion.finish_reason == "length"
                ids = tuple(completion.token_ids)
                answers.append(Answer(index, cached, len(ids), text=text, truncated=truncated, ids=ids))
        return answers

    def _scored(self, prompts: PromptSet, todo: Sequence[int], decodings: Sequence[Decoding]) -> list[Answer]:
        """Score every label of these queries.

        The trees' roots come first: they compute the queries, which the other nodes find in the cache. An answer's
        cached tokens are those of its root's request. Counts include all requests: computed prompt tokens (including
        recomputed ones, because the cache holds only whole blocks) count as the query's own, label tokens as the
        answer's.
        """
        scored = {i: decoding for i in todo if isinstance(decoding := decodings[i], Exact)}
        assert len(scored) == len(todo), _IN_ONE_WAY
        asked = {id(decoding): node_requests(decoding.trie) for decoding in scored.values()}
        requests = [(i, request) for i, decoding in scored.items() for request in asked[id(decoding)]]
        logs = {i: np.zeros(len(decoding.trie.tokens)) for i, decoding in scored.items()}
        cached: dict[int, int] = {}
        for some in self._calls(prompts, requests):
            ids = [prompts.ids(i) + request.path for i, request in some]
            outputs = self.generate(ids, [request.sampling() for _, request in some])
            for (i, request), whole, output in zip(some, ids, outputs, strict=True):
                request.read(output, logs[i])
                found, own = _cached_tokens(output), len(whole) - len(request.path)
                cached.setdefault(i, found)
                self.counters.own_tokens += max(own - found, 0)
                self.counters.answer_tokens += len(whole) - max(own, found)
        return [Answer.of_scores(i, d.trie.sums(logs[i]), d.sizes, cached[i]) for i, d in scored.items()]

    @staticmethod
    def _calls(
        prompts: PromptSet, requests: Sequence[tuple[int, NodeRequest]]
    ) -> Iterator[Sequence[tuple[int, NodeRequest]]]:
        """The requests of each call. Root requests, which have no path, come first."""
        yield [(i, request) for i, request in requests if not request.path]
        others = [(i, request) for i, request in requests if request.path]
        size = max(1, SCORED_TOKENS // prompts.longest)
        yield from (others[first : first + size] for first in range(0, len(others), size))

    @cached_property
    def _special_tokens(self) -> dict[int, str]:
        """The special tokens, with their texts."""
        return {i: token.content for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}

    def sampling(self, decoding: Decoding) -> Any:
        """VLLM's sampling parameters for a decoding."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        assert isinstance(decoding, Free | Greedy), _IN_ONE_WAY
        how: dict[str, Any] = {"temperature": 0}
        if (sampled := decoding.sampling) is not None:
            how = {"temperature": sampled.temperature, "seed": sampled.request_seed}
        if isinstance(decoding, Free):
            # the engine leaves special tokens out of the text in which it looks for stops
            ends = [i for i, text in self._special_tokens.items() if text in decoding.stops]
            return SamplingParams(**how, max_tokens=decoding.max_tokens, stop=list(decoding.stops), stop_token_ids=ends)
        automaton = decoding.automaton
        common = {**how, "max_tokens": automaton.longest + 1, "detokenize": False}
        if self.constraint == "processor":
            path, end = self._automaton_file(automaton)
            return SamplingParams(**common, stop_token_ids=[*automaton.deciding, end], extra_args={FILE: path})
        # no early stop: grammar engines withhold stop tokens until their grammar ends
        # not choice: xgrammar 0.2 misreads é before a hexadecimal digit in its grammar, as in "fiancée"
        allowed = StructuredOutputsParams(regex=one_of(a.removesuffix(END) for a in automaton.answers))
        return SamplingParams(**common, structured_outputs=allowed)

    def _automaton_file(self, automaton: LabelAutomaton) -> tuple[str, int]:
        """The file of an automaton for the engine, and the token that ends its answers."""
        allowed = set(automaton.vocabulary.tolist())
        ends = (self.tokenizer.eos_token_id, *range(len(allowed) + 1))
        end = next(i for i in ends if i is not None and i not in allowed)
        if id(automaton) not in self._written:
            path = Path(self._folder.name) / f"{len(self._written)}.json"
            write_automaton(automaton, end, path)
            self._written[id(automaton)] = automaton, str(path)
        return self._written[id(automaton)][1], end

    def generate(self, prompts: Sequence[Ids], sampling: Sequence[Any]) -> list[Any]:
        """VLLM's request outputs, in the order of the prompts. ``sampling`` has one for each prompt."""
        requests = [{"prompt_token_ids": list(ids)} for ids in prompts]
        outputs: list[Any] = self.llm.generate(requests, list(sampling), use_tqdm=False)
        return outputs

    def _reason(self, error: BaseException) -> str:
        """The engine's last error on one line, preferably from its processes."""
        self._log.seek(0)
        log = self._log.read().decode(errors="replace")
        text = str(error)
        if not text or any(wrapped in text for wrapped in _WRAPPED):
            text = last_error(log) or text or type(error).__name__
        return one_line(text)[:300]


def _set_environment() -> None:
    """Set the environment variables that vLLM reads before it starts."""
    # a process that has used CUDA, as this one to choose a device, must not be forked
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")


def _on_a_cpu(engine: Mapping[str, Any], gpu_memory: float | None) -> dict[str, Any]:
    """The engine's arguments without a GPU.

    In this process, the engine starts in half the time and uses all cores. Compiling takes minutes
    and gains little. By default, vLLM would reserve nearly all memory.
    """
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    arguments = {"enforce_eager": True, **engine}
    if gpu_memory is None and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        import psutil  # a dependency of vLLM

        room = min(CPU_CACHE_BYTES, psutil.virtual_memory().available // 2)
        arguments = {"kv_cache_memory_bytes": room, **arguments}
    return arguments


def _processor(*, cuda: bool) -> str:
    """The name of the label processor for the model runner: V2 on CUDA.

    Raises ``CellError`` if vLLM is too old to have the interface of this runner.
    """
    if not cuda:
        return "icl_bench.backends.vllm.logits_processor:LabelProcessor"
    try:
        module = importlib.util.find_spec("vllm.v1.worker.gpu.sample.logits_processor")
    except ModuleNotFoundError:
        module = None
    if module is None:
        raise CellError("this vLLM's V2 model runner takes no logits processor: 0.32 or later does")
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    return "icl_bench.backends.vllm.device_processor:DeviceLabelProcessor"


def _cached_tokens(output: Any) -> int:
    return int(output.num_cached_tokens or 0)


def _not_started(reason: str, max_model_len: int) -> str:
    """Why the engine did not start, and advice."""
    if (window := _WINDOW.search(reason)) is not None:  # vLLM: positions beyond it lead to nan
        return (
            f"vLLM did not start: {max_model_len:,} tokens were requested, but the model's config covers "
            f"{int(window[1]):,}; use a smaller k, --context {window[1]}, a smaller --max-model-len, or a folder whose "
            "config.json states the scaling of positions (rope_parameters)"
        )
    short = any(word in reason.lower() for word in ("max seq len", "kv cache", "memory"))
    advice = (
        f"; {max_model_len:,} tokens were requested: use a smaller k, --max-model-len, "
        "--dtype bfloat16, more --gpu-memory, or more cards with --tensor-parallel"
    )
    return f"vLLM did not start ({reason}){advice if short else ''}"


@contextmanager
def _stderr_into(file: IO[bytes]) -> Iterator[None]:
    """Redirect standard error of this process and its children to a file."""
    sys.stderr.flush()
    stderr_copy = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr_copy, 2)
        os.close(stderr_copy)


_IN_ONE_WAY = "labels are scored for all queries of a call or for none"

_WINDOW = re.compile(r"derived max_model_len \([a-z_]+=(\d+)")
"""The tokens that a config covers, in vLLM's refusal of more."""

_ERROR = re.compile(r"\b((?:[A-Za-z_]+\.)*[A-Za-z]*(?:Error|Exception)): +(\S.*)$")

_WRAPPED = ("See root cause above", "Engine core initialization failed", "EngineCore encountered")


def last_error(log: str) -> str | None:
    """The message of the last error in a log, except errors that only refer to an earlier one."""
    for line in reversed(log.splitlines()):
        match = _ERROR.search(line)
        if match and not any(text in line for text in _WRAPPED):
            return match[2]
    return None
