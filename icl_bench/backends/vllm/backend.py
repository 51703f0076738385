"""The vLLM backend: demonstrations stay in its prefix cache, answers are held to the labels.

One engine of vLLM serves a run. Of a cell its prefix is asked for first and alone, so that its
queries find it in the cache instead of each computing it; then the queries, many in a call. Cells
of a draw follow each other with rising k, so that every prefix extends the one before it.
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
from pathlib import Path
from typing import IO, Any

from icl_bench.backends.interface import Answer, Counters, Decoding, Free, Greedy
from icl_bench.backends.label_constraint import END, LabelAutomaton
from icl_bench.backends.vllm.label_file import FILE, write_automaton
from icl_bench.errors import CellError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import Ids, PromptSet
from icl_bench.wording import one_line

CPU_CACHE_BYTES = 4 * 2**30
"""Room for keys and values on a CPU, or half of what memory is free where that is less, unless
VLLM_CPU_KVCACHE_SPACE (GiB) says otherwise."""

QUERIES = 256
"""Requests that the engine works on at once. More than a cell asks cost memory on a GPU, and time
for graphs that are captured when it starts."""

CALL = 64
"""Queries of one call: what is answered is kept from then on, whatever becomes of the others."""


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
        """Start the engine; ``max_model_len`` is the longest prompt and answer in tokens.

        ``constraint`` is ``processor`` (ours) or one of vLLM's grammar engines; by default the
        processor on a CPU, where it is the fastest, and xgrammar on CUDA, where the processor's
        speed is not known (docs/constrained-decoding.md).
        ``engine`` are further arguments of ``vllm.LLM``. Raises ``CellError`` with the engine's own
        words where it does not start.
        """
        _set_environment()
        self.tokenizer, self.counters = tokenizer, Counters()
        self._identity = dict(identity)
        cuda = _has_cuda()
        self.constraint = constraint or ("xgrammar" if cuda else "processor")
        self._folder = tempfile.TemporaryDirectory(prefix="icl-bench-")
        self._written: dict[int, tuple[LabelAutomaton, str]] = {}
        engine = {"max_num_seqs": QUERIES, **engine} if cuda else _on_a_cpu(engine, gpu_memory)
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
        # what the engine's processes write, for as long as they live
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            with _errors_into(self._log):
                from vllm import LLM

                self.llm: Any = LLM(
                    model=model,
                    dtype=identity["dtype"],
                    max_model_len=max_model_len,
                    tensor_parallel_size=tensor_parallel,
                    enable_prefix_caching=True,
                    disable_log_stats=True,
                    structured_outputs_config={"backend": self._grammar},
                    **engine,
                )
        except Exception as error:  # the engine raises many kinds, some of other processes
            raise CellError(_not_started(self._said(error), max_model_len)) from None

    @property
    def _grammar(self) -> str:
        return "auto" if self.constraint == "processor" else self.constraint

    def identity(self) -> dict[str, str]:
        """See ``Backend.identity``."""
        return dict(self._identity)

    def answer(
        self,
        prompts: PromptSet,
        todo: Sequence[int],
        decodings: Sequence[Decoding],
        reserve: int,  # noqa: ARG002 - the engine's cache has the size it has
        pattern: Pattern = FULL,
    ) -> Iterator[list[Answer]]:
        """See ``Backend.answer``: a pack is what one call answers."""
        assert pattern == FULL, "attention patterns run on the transformers backend"
        for first in range(0, len(todo), CALL):
            start = time.perf_counter()
            try:
                if not first and prompts.prefix and len(todo) > 1:
                    self.warm(prompts.prefix)
                answers = self._answers(prompts, todo[first : first + CALL], decodings)
            except Exception as error:
                raise CellError(f"vLLM failed ({self._said(error)})") from None
            self.counters.seconds += time.perf_counter() - start
            yield answers

    def warm(self, prefix: Ids) -> None:
        """Compute a prefix once, before many queries ask for it at the same time."""
        from vllm import SamplingParams

        (done,) = self.generate([prefix], [SamplingParams(temperature=0, max_tokens=1)])
        self.counters.prefix_tokens += len(prefix) - _cached(done)

    def _answers(self, prompts: PromptSet, todo: Sequence[int], decodings: Sequence[Decoding]) -> list[Answer]:
        different = {id(decodings[i]): decodings[i] for i in todo}
        sampling = {name: self.sampling(decoding) for name, decoding in different.items()}
        asked = [sampling[id(decodings[i])] for i in todo]
        done = self.generate([prompts.ids(i) for i in todo], asked)
        answers = []
        for index, output in zip(todo, done, strict=True):
            cached, (said,), decoding = _cached(output), output.outputs, decodings[index]
            self.counters.own_tokens += len(prompts.ids(index)) - cached
            self.counters.answer_tokens += len(said.token_ids)
            if isinstance(decoding, Greedy):
                label = decoding.automaton.read(said.token_ids)
                if label < 0:
                    raise RuntimeError(f"the engine stopped within a label: {said.text!r}")
                answers.append(Answer(index, cached, len(said.token_ids), label=label))
            else:
                assert isinstance(decoding, Free), "exact scoring runs on the transformers backend"
                ended = decoding.before_stop(said.text)  # the engine takes stops in their order
                answers.append(
                    Answer(
                        index,
                        cached,
                        len(said.token_ids),
                        text=said.text if ended is None else ended,
                        truncated=said.finish_reason == "length",
                    )
                )
        return answers

    def sampling(self, decoding: Decoding) -> Any:
        """Sampling parameters for a decoding, as vLLM takes them."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        if isinstance(decoding, Free):
            return SamplingParams(temperature=0, max_tokens=decoding.max_tokens, stop=list(decoding.stops))
        assert isinstance(decoding, Greedy), "exact scoring runs on the transformers backend"
        automaton = decoding.automaton
        common = {"temperature": 0, "max_tokens": automaton.longest + 1, "detokenize": False}
        if self.constraint == "processor":
            path, end = self._saved(automaton)
            return SamplingParams(**common, stop_token_ids=[*automaton.deciding, end], extra_args={FILE: path})
        # no early stop here: grammar engines keep stop tokens back until their grammar ends
        choice = StructuredOutputsParams(choice=[a.removesuffix(END) for a in automaton.answers])
        return SamplingParams(**common, structured_outputs=choice)

    def _saved(self, automaton: LabelAutomaton) -> tuple[str, int]:
        """The file that holds an automaton for the engine, and the token that ends its answers."""
        known = set(automaton.vocabulary.tolist())
        ends = (self.tokenizer.eos_token_id, *range(len(known) + 1))
        end = next(i for i in ends if i is not None and i not in known)
        if id(automaton) not in self._written:
            path = Path(self._folder.name) / f"{len(self._written)}.json"
            write_automaton(automaton, end, path)
            self._written[id(automaton)] = automaton, str(path)
        return self._written[id(automaton)][1], end

    def generate(self, prompts: Sequence[Ids], sampling: Sequence[Any]) -> list[Any]:
        """Request outputs of vLLM, in the order of the prompts; sampling parameters of each."""
        asked = [{"prompt_token_ids": list(ids)} for ids in prompts]
        done: list[Any] = self.llm.generate(asked, list(sampling), use_tqdm=False)
        return done

    def _said(self, error: BaseException) -> str:
        """The engine's own last error on one line; its processes' words before ours."""
        self._log.seek(0)
        log = self._log.read().decode(errors="replace")
        text = str(error)
        if not text or any(wrapped in text for wrapped in _WRAPPED):
            text = last_error(log) or text or type(error).__name__
        return one_line(text)[:300]


def _set_environment() -> None:
    """What vLLM reads before it starts."""
    # a process that has asked for CUDA, as ours has to choose a device, must not be forked
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    # asked for by --context or --max-model-len: longer than the model's config says
    os.environ.setdefault("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")


def _on_a_cpu(engine: Mapping[str, Any], gpu_memory: float | None) -> dict[str, Any]:
    """The engine's arguments where there is no GPU.

    In this process it starts in half the time and uses all cores; compiling takes minutes and
    gains little; and by itself vLLM would take nearly all memory.
    """
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    arguments = {"enforce_eager": True, **engine}
    if gpu_memory is None and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        import psutil  # vLLM needs it, too

        room = min(CPU_CACHE_BYTES, psutil.virtual_memory().available // 2)
        arguments = {"kv_cache_memory_bytes": room, **arguments}
    return arguments


def _processor(*, cuda: bool) -> str:
    """The name of the label processor for the model runner that will run: V2 on CUDA.

    Raises ``CellError`` where vLLM is too old to have that runner's interface.
    """
    if not cuda:
        return "icl_bench.backends.vllm.logits_processor:LabelProcessor"
    try:
        found = importlib.util.find_spec("vllm.v1.worker.gpu.sample.logits_processor")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise CellError("this vLLM's V2 model runner takes no logits processor: 0.32 or later does")
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    return "icl_bench.backends.vllm.device_processor:DeviceLabelProcessor"


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _cached(output: Any) -> int:
    return int(output.num_cached_tokens or 0)


def _not_started(said: str, max_model_len: int) -> str:
    """Why the engine did not start, and what would help."""
    short = any(word in said.lower() for word in ("max seq len", "kv cache", "memory"))
    advice = (
        f"; room for {max_model_len:,} tokens was asked for: take a smaller k, --max-model-len, "
        "--dtype bfloat16, more --gpu-memory, or more cards with --tensor-parallel"
    )
    return f"vLLM did not start ({said}){advice if short else ''}"


@contextmanager
def _errors_into(file: IO[bytes]) -> Iterator[None]:
    """Send what this process and the ones it starts write to standard error into a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


_ERROR = re.compile(r"\b((?:[A-Za-z_]+\.)*[A-Za-z]*(?:Error|Exception)): +(\S.*)$")


_WRAPPED = ("See root cause above", "Engine core initialization failed", "EngineCore encountered")


def last_error(log: str) -> str | None:
    """The message of the last error in a log that is not only about another one above it."""
    for line in reversed(log.splitlines()):
        found = _ERROR.search(line)
        if found and not any(text in line for text in _WRAPPED):
            return found[2]
    return None
