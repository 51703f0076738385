"""The transformers backend: one prefix cache that grows, many queries packed over it.

Any decoder of the transformers library that takes its attention from ``AttentionInterface`` runs
here unchanged; on loading, a few tokens are computed both ways and compared, so that a model whose
attention is of another kind is refused instead of answered wrongly.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from icl_bench.backends.attention_steps import Extend, Step, View
from icl_bench.backends.demonstration_cache import DemonstrationCache, RotaryShift, assembled
from icl_bench.backends.device import choose_device, choose_dtype
from icl_bench.backends.interface import Answer, Counters, Decoding, Exact, Greedy
from icl_bench.backends.kv_cache import Prefix
from icl_bench.backends.packed_decoding import HEAD_ROWS, OpenPack, answer_room
from icl_bench.errors import CellError, UserError
from icl_bench.models.attention_patterns import FULL, Approx, Block, Pattern
from icl_bench.models.config import layer_windows
from icl_bench.prompts.encoding import Ids, PromptSet, parts

ATTENTION = "icl_bench"


SMALLEST_CHUNK = 64


_REUSING = 16  # prompts whose demonstrations are computed together before they are answered


T = TypeVar("T")


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - always None: the step knows
    scaling: float | None = None,
    sliding_window: int | None = None,
    step: Step | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What the model calls in every layer; the step knows which keys are seen."""
    if step is None:
        raise UserError("this model does not hand options through to its attention layers")
    for name in ("softcap", "s_aux"):
        if options.get(name) is not None:
            raise UserError(f"this model's attention uses {name!r}, which is not supported")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    out = step.layer(module.layer_idx, query, key, value, scale, sliding_window)
    return out.transpose(1, 2), None


class TransformersBackend:
    """A decoder from a folder or the hub, on the CPU or CUDA."""

    name = "transformers"

    def __init__(
        self,
        model: str | Path,
        tokenizer: Any,
        *,
        revision: str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        pack_tokens: int | None = None,
        pack_rows: int | None = None,
        chunk_tokens: int | None = None,
    ) -> None:
        """Load the model. ``pack_tokens``/``pack_rows`` limit how much is packed into one call;
        ``chunk_tokens`` is how much of a prefix is computed per call. Raises ``UserError``.
        """
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        self.tokenizer = tokenizer
        small = self.device.type == "cpu"
        self.chunk_tokens = chunk_tokens or (512 if small else 4096)
        self.pack_tokens = pack_tokens or (2048 if small else 16384)
        self.pack_rows = pack_rows or 256
        self.counters = Counters()
        self.peak_prefix_bytes = 0
        self._long_tokens = self.chunk_tokens
        self._reserves = True
        self._prefix, self._ids, self._view = Prefix(), tuple[int, ...](), View()
        self._kept: dict[Ids, DemonstrationCache] = {}
        self._model = self._load(model, revision)
        self._core = self._model.get_decoder()
        self._head = self._model.get_output_embeddings()
        self._head_rows: tuple[bytes, Tensor, Tensor | float] | None = None
        self._check_against_plain_forward()

    def _load(self, model: str | Path, revision: str | None) -> Any:
        from transformers import AttentionInterface, AutoModelForCausalLM

        AttentionInterface.register(ATTENTION, _attention)
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(model),
                revision=revision or "main",
                dtype=self.dtype,
                attn_implementation="sdpa",
            )
            return loaded.to(self.device).eval()
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"model {model}: cannot be loaded ({_said(error)})") from None
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            raise UserError(f"model {model}: does not fit the memory ({_said(error)})") from None

    def identity(self) -> dict[str, str]:
        """The engine and its arithmetic: what decides answers beside model and prompt."""
        return {"backend": self.name, "dtype": str(self.dtype).removeprefix("torch.")}

    # -- one call of the model ------------------------------------------------------------------

    @torch.inference_mode()
    def _forward(self, tokens: Tensor, positions: Tensor, step: Step) -> Tensor:
        """Last hidden states of flat tokens: ``(tokens, hidden)``."""
        output = self._core(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            step=step,
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    @torch.inference_mode()
    def _logits(self, hidden: Tensor) -> Tensor:
        """Logits over the whole vocabulary in float32: ``(rows, vocabulary)``."""
        logits: Tensor = self._head(hidden).float()
        config = self._model.config.get_text_config()
        if (scale := getattr(config, "logit_scale", None)) is not None:
            logits = logits * scale
        if (divisor := getattr(config, "logits_scaling", None)) is not None:
            logits = logits / divisor
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    @torch.inference_mode()
    def _some_logits(self, hidden: Tensor, vocabulary: np.ndarray) -> np.ndarray:
        """Logits of some tokens only, up to a monotone function: ``(rows, allowed)`` float32.

        In single precision whatever the model's: logits rounded to bfloat16 often tie.
        """
        name = vocabulary.tobytes()
        if self._head_rows is None or self._head_rows[0] != name:
            index = torch.from_numpy(vocabulary).to(self.device)
            bias = getattr(self._head, "bias", None)
            rows = self._head.weight[index].float()
            self._head_rows = (name, rows, 0.0 if bias is None else bias[index].float())
        _, rows, bias = self._head_rows
        logits: Tensor = hidden.float() @ rows.T + bias
        return logits.cpu().numpy()

    # -- the prefix -----------------------------------------------------------------------------

    def _extend(self, ids: Ids, each: Callable[[Tensor], None] = lambda _: None) -> None:
        """Compute more tokens of the prefix, a chunk a call; smaller chunks if memory is short.

        ``each`` is given the last hidden states of every chunk, ``(tokens, hidden)``.
        """
        done = 0
        while done < len(ids):
            part = ids[done : done + self.chunk_tokens]
            step = Extend(self._prefix, len(part), self._view)
            start = self._prefix.length
            tokens = torch.tensor(part, device=self.device)
            positions = torch.arange(start, start + len(part), device=self.device)
            mark = self._prefix.mark()
            try:
                hidden = self._forward(tokens, positions, step)
            except BaseException as error:
                self._prefix.rewind(mark)
                if not _out_of_memory(error) or len(part) <= SMALLEST_CHUNK:
                    raise
                self.chunk_tokens = max(SMALLEST_CHUNK, len(part) // 2)
                _release(self.device)
                continue
            step.done()
            each(hidden)
            done += len(part)
            self._ids += part
            self.counters.prefix_tokens += len(part)
        self.peak_prefix_bytes = max(self.peak_prefix_bytes, self._prefix.nbytes())

    def _load_prefix(self, prefix: Ids, reserve: int, view: View = View()) -> None:  # noqa: B008
        """Make the cache hold just this prefix, computing what it does not hold yet."""
        if self._ids != prefix[: len(self._ids)] or not self._holds(view):
            self._drop_prefix()
        self._view = view
        if self._reserves and reserve > len(prefix):
            chunk_tokens = self.chunk_tokens
            self._prefix.reserve(reserve)
            try:
                self._extend(prefix[len(self._ids) :])
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                # room for later cells must not cost this one
                self._reserves, self.chunk_tokens = False, chunk_tokens
                self._drop_prefix()
        self._prefix.reserve(len(prefix))
        self._extend(prefix[len(self._ids) :])

    def _holds(self, view: View) -> bool:
        """Whether what is cached was computed as this view has it."""
        mine = self._view
        if mine.layout is None or view.layout is None:
            return mine == view
        return mine.sights == view.sights and view.layout.begins(mine.layout, len(self._ids))

    def _drop_prefix(self) -> None:
        self._prefix, self._ids = Prefix(), ()
        _release(self.device)

    def losses(self, ids: Ids, pattern: Pattern = FULL) -> np.ndarray:
        """Loss of each token but the first, in nats: ``(tokens - 1,)`` float64.

        That is minus the log-probability given all tokens before it, as the pattern lets them be
        seen. Raises ``CellError`` where memory does not suffice.
        """
        wanted = torch.tensor(ids[1:], device=self.device)
        found: list[Tensor] = []

        def score(hidden: Tensor) -> None:
            for rows in hidden.split(HEAD_ROWS):
                start = sum(map(len, found))
                targets = wanted[start : start + len(rows)]
                logits = self._logits(rows[: len(targets)])
                chosen = logits.gather(1, targets[:, None])[:, 0]
                found.append(torch.logsumexp(logits, -1) - chosen)

        def read() -> None:
            self._drop_prefix()
            self._view = View() if pattern == FULL else View(pattern.sights(self._windows))
            self._prefix.reserve(len(ids) - 1)
            self._extend(ids[:-1], score)

        self.peak_prefix_bytes = 0
        self._guarded(read, len(ids))
        self._drop_prefix()
        return torch.cat(found).double().cpu().numpy()

    # -- answering ------------------------------------------------------------------------------

    def answer(
        self,
        prompts: PromptSet,
        todo: Sequence[int],
        decoding: Decoding,
        reserve: int,
        pattern: Pattern = FULL,
    ) -> Iterator[list[Answer]]:
        """See ``Backend.answer``. Packs queries of similar length; a suffix that is too long for
        one call, or that has demonstrations to be read by blocks, is computed as a prefix of its
        own and dropped again.
        """
        self.peak_prefix_bytes = 0
        if isinstance(pattern, Block) and pattern.reuse:
            yield from self._answer_reusing(prompts, todo, decoding, pattern)
            return
        view = self._viewed(pattern, prompts, 0)
        load = lambda: self._load_prefix(prompts.prefix, reserve, view)  # noqa: E731
        start = self.counters.seconds
        self._guarded(load, len(prompts.prefix))
        self.counters.prefix_seconds += self.counters.seconds - start
        by_length = sorted(todo, key=lambda i: (len(prompts.suffixes[i]), i))
        limit = min(self._long_tokens, self._room(pattern, decoding))
        short = [i for i in by_length if self._packs(prompts, i, pattern, limit)]
        long = [i for i in by_length if i not in set(short)]
        while short:
            pack = self._first_pack(prompts, short, decoding)
            try:
                suffixes = [prompts.suffixes[i] for i in pack]
                answers = self._timed(lambda: self._answer_pack(suffixes, decoding))  # noqa: B023
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                _release(self.device)
                if len(pack) > 1:
                    self.pack_tokens = len(pack) // 2 * self._width(suffixes[-1], decoding)
                else:
                    self.chunk_tokens = max(SMALLEST_CHUNK, len(suffixes[0]) // 2)
                    short, long = short[1:], [*pack, *long]
                continue
            short = short[len(pack) :]
            yield [_placed(a, pack, len(prompts.prefix)) for a in answers]
        for i in long:
            own = self._viewed(pattern, prompts, i)
            work = lambda: self._answer_long(prompts, i, decoding, own, limit)  # noqa: B023, E731
            yield [self._guarded(work, len(prompts.ids(i)))]

    def _viewed(self, pattern: Pattern, prompts: PromptSet, index: int) -> View:
        """Who sees whom in one prompt."""
        if pattern == FULL:
            return View()
        layout = pattern.layout(prompts.ends_of(index)) if pattern.blocks else None
        return View(pattern.sights(self._windows), layout)

    @property
    def _windows(self) -> tuple[int | None, ...]:
        return layer_windows(self._model.config.get_text_config())

    def _room(self, pattern: Pattern, decoding: Decoding) -> int:
        """Tokens of a query that may be packed: what lies in one window with its answer."""
        if not isinstance(pattern, Approx):
            return self._long_tokens
        room = pattern.window - answer_room(decoding)
        if room < 1:
            raise CellError(
                f"--attention {pattern}: WINDOW must hold an answer, here "
                f"{answer_room(decoding) + 1} tokens at most"
            )
        return room

    @staticmethod
    def _packs(prompts: PromptSet, index: int, pattern: Pattern, limit: int) -> bool:
        """Whether a query is computed in one call with others."""
        if len(prompts.suffixes[index]) > limit:
            return False
        return not pattern.blocks or prompts.ends_of(index)[-1] <= len(prompts.prefix)

    def _answer_reusing(
        self, prompts: PromptSet, todo: Sequence[int], decoding: Decoding, pattern: Block
    ) -> Iterator[list[Answer]]:
        """Answer prompts whose demonstrations were computed once, or are now, for all prompts."""
        for start in range(0, len(todo), _REUSING):
            batch = todo[start : start + _REUSING]
            work = lambda: self._reuse(prompts, batch, decoding, pattern)  # noqa: B023, E731
            yield self._guarded(work, max(len(prompts.ids(i)) for i in batch))

    def _reuse(
        self, prompts: PromptSet, batch: Sequence[int], decoding: Decoding, pattern: Block
    ) -> list[Answer]:
        lead = prompts.ends_of(batch[0])[0] if pattern.sink else prompts.lead
        head = prompts.ids(batch[0])[:lead]
        behind = head if pattern.sink else ()
        sights = pattern.sights(self._windows)
        view = View(sights)
        self._load_prefix(behind, 0, view)
        kept = self._kept.setdefault(behind, DemonstrationCache(len(behind)))
        shown = {i: parts(prompts, i, pattern.sink) for i in batch}
        fresh = {ids for i in batch for ids in shown[i] if ids not in kept}
        self._encode(sorted(fresh, key=lambda ids: (len(ids), ids)), kept)
        self._load_prefix(head, 0, view)
        turner, alone, ids = RotaryShift(self._core), self._prefix, self._ids
        answers = []
        try:
            for i in batch:
                prompt = prompts.ids(i)
                assert prompt[:lead] == head, "prompts that reuse demonstrations begin alike"
                layers = [kept.get(part) for part in shown[i]]
                self._prefix = assembled(alone, layers, kept.base, sights, turner, self.device)
                held = self._prefix.nbytes() + kept.nbytes
                self.peak_prefix_bytes = max(self.peak_prefix_bytes, held)
                (answer,) = self._answer_pack([prompt[self._prefix.length :]], decoding)
                new = sum(len(part) for part in shown[i] if part in fresh)
                fresh.difference_update(shown[i])
                answers.append(_placed(answer, [i], self._prefix.length - new))
        finally:
            self._prefix, self._ids = alone, ids
        kept.trim()
        return answers

    def _encode(self, texts: Sequence[Ids], kept: DemonstrationCache) -> None:
        """Compute demonstrations behind the loaded sink, many in one call."""
        start = time.perf_counter()
        while texts:
            size = 1
            while size < min(len(texts), self.pack_rows):
                if len(texts[size]) * (size + 1) > self.pack_tokens:
                    break
                size += 1
            pack, texts = texts[:size], texts[size:]
            opened = OpenPack(self, pack, 0)
            for row, text in enumerate(pack):
                kept.put(text, opened.keys_of(row, len(text)))
            self.counters.prefix_tokens += sum(map(len, pack))
        self.counters.prefix_seconds += time.perf_counter() - start

    def _first_pack(
        self, prompts: PromptSet, indices: Sequence[int], decoding: Decoding
    ) -> list[int]:
        """As many of the indices, sorted by length, as the limits of rows and tokens allow."""
        pack = [indices[0]]
        for i in indices[1 : self.pack_rows]:
            if self._width(prompts.suffixes[i], decoding) * (len(pack) + 1) > self.pack_tokens:
                break
            pack.append(i)
        return pack

    @staticmethod
    def _width(suffix: Ids, decoding: Decoding) -> int:
        """Tokens that one row of a pack computes in one call."""
        return len(suffix) + (len(decoding.trie.inner) if isinstance(decoding, Exact) else 0)

    def _answer_long(
        self, prompts: PromptSet, index: int, decoding: Decoding, view: View, limit: int
    ) -> Answer:
        """Answer one prompt whose own part is long (retrieved demonstrations)."""
        suffix = prompts.suffixes[index]
        step = min(self.chunk_tokens, limit)
        own = (len(suffix) - 1) // step * step
        if view.layout is not None:  # what comes behind the demonstrations sees all of them
            own = min(max(0, len(view.layout.starts) - len(prompts.prefix)), len(suffix) - 1)
        mark, ids, before = self._prefix.mark(), self._ids, self.counters.prefix_tokens
        shared, self._view = self._view, view
        try:
            self._prefix.reserve(self._prefix.length + own)
            self._extend(suffix[:own])
            (answer,) = self._answer_pack([suffix[own:]], decoding)
        finally:
            self._prefix.rewind(mark)
            self._ids, self._view = ids, shared
            self.counters.own_tokens += self.counters.prefix_tokens - before
            self.counters.prefix_tokens = before
        return _placed(answer, [index], len(prompts.prefix))

    def _answer_pack(self, suffixes: Sequence[Ids], decoding: Decoding) -> list[Answer]:
        """Answer queries over the loaded prefix; an answer's index is its place in the pack."""
        extra = len(decoding.trie.inner) if isinstance(decoding, Exact) else answer_room(decoding)
        pack = OpenPack(self, suffixes, extra)
        if isinstance(decoding, Greedy):
            answers = pack.greedy(decoding)
        elif isinstance(decoding, Exact):
            answers = pack.exact(decoding)
        else:
            answers = pack.free(decoding)
        self.counters.own_tokens += sum(map(len, suffixes))
        return answers

    def _timed(self, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        self.counters.seconds += time.perf_counter() - start
        return result

    def _guarded(self, work: Callable[[], T], tokens: int) -> T:
        """Run work on so many tokens that cannot be halved; lack of memory fails the cell only."""
        try:
            return self._timed(work)
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            reason = _memory_reason(error, tokens)
        self._drop_prefix()
        raise CellError(reason)

    # -- is this model computed rightly? --------------------------------------------------------

    @torch.inference_mode()
    def _check_against_plain_forward(self) -> None:
        """Compare with the model's own forward pass on a few tokens; refuse a model that differs.

        Covers what differs between model families: how attention is scaled, masked and given
        positions, and how logits are made of hidden states. What shows only in longer prompts is
        read from the model's config.
        """
        config = self._model.config.get_text_config()
        ids = tuple(np.random.default_rng(0).integers(0, int(config.vocab_size), 24).tolist())
        tokens = torch.tensor([ids], device=self.device)
        expected = self._model(tokens, use_cache=False).logits[0, [-1, 13]].float()
        try:
            self._model.set_attn_implementation(ATTENTION)
            self._extend(ids[:4])
            self._extend(ids[4:9])
            pack = OpenPack(self, [ids[9:], ids[9:14]], 0)
            got = self._logits(pack.ends)
            layers = self._prefix.layers
        except (TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
            if _out_of_memory(error):
                raise
            name = type(self._model).__name__
            raise UserError(f"{name}: not supported ({_said(error)})") from None
        finally:
            self._prefix, self._ids, self.counters = Prefix(), (), Counters()
        reason = _beyond_a_few_tokens(config, layers)
        allowed = (0.02 if self.dtype == torch.float32 else 0.5) * float(expected.std())
        if not float((got - expected).abs().max()) <= allowed:
            reason = "its logits differ from the model's own"
        if reason:
            raise UserError(
                f"{type(self._model).__name__}: its attention is of a kind that this backend does "
                f"not compute ({reason}); use --backend vllm"
            )


def _placed(answer: Answer, pack: Sequence[int], cached: int) -> Answer:
    """The answer with its place in the prompt set instead of the pack."""
    from dataclasses import replace

    return replace(answer, index=pack[answer.index], cached_tokens=cached)


def _beyond_a_few_tokens(config: Any, layers: tuple[int, int]) -> str | None:
    """What a model does with long prompts that is not computed here, or None.

    ``layers`` is how many full and how many sliding layers have handed over keys.
    """
    ropes = getattr(config, "rope_parameters", None) or {}
    ropes = [ropes, *(rope for rope in ropes.values() if isinstance(rope, dict))]
    if {"dynamic", "longrope"} & {rope.get("rope_type") for rope in ropes}:
        return "its position encoding depends on the prompt's length"
    windows = layer_windows(config)
    expected = windows.count(None), len(windows) - windows.count(None)
    if layers != expected or sum(layers) != config.num_hidden_layers:
        return (
            f"of {config.num_hidden_layers} layers, {expected[0]} are full and {expected[1]} "
            f"sliding, but {layers[0]} and {layers[1]} work so"
        )
    return None


def _out_of_memory(error: BaseException) -> bool:
    """Whether it is the lack of memory of a GPU or, in Linux' or another system's words, a CPU."""
    messages = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in messages)
    )


def _memory_reason(error: BaseException, tokens: int) -> str:
    return f"out of memory at {tokens:,} prompt tokens ({_said(error)})"


def _said(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
