"""Perplexity by length: how well a model predicts long texts under each attention pattern.

Windows of the longest length, each after BOS, are read once. The loss of every token is stored with its position, so
that one pass serves all lengths (Zebra, Song et al. 2023, figures 2 and 4, tables 2 and 4). All patterns read the same
tokens. Positions can be divided to read beyond the model's window without training (position interpolation, the upper
half of its table 4).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from icl_bench.backends.choice import check_backend
from icl_bench.backends.loaders import TransformersLoader
from icl_bench.backends.spec import BackendSpec
from icl_bench.errors import CellError, UserError
from icl_bench.models.architecture import Architecture, architecture_of, check_family
from icl_bench.models.attention_patterns import Pattern
from icl_bench.models.registry import CommitOf, Model, load_tokenizer, newest, resolve
from icl_bench.models.rotary_positions import OWN_POSITIONS
from icl_bench.models.tokenizers import bos_of
from icl_bench.models.trained import own_pattern, training_of
from icl_bench.results.cells import short_hash
from icl_bench.results.hub_commits import keep_commit
from icl_bench.results.perplexity_losses import add_lengths, losses_name, write_losses
from icl_bench.results.storage import Place, Storage, storage_at
from icl_bench.results.stored_meta import LossesMeta, TrainingMeta
from icl_bench.sweep.compute_cost import cache_bytes, flops
from icl_bench.sweep.facts import versions
from icl_bench.sweep.options import PerplexitySpec
from icl_bench.tasks.texts import read_text, text_files, text_ids, text_name
from icl_bench.wording import comma_list, plain


@dataclass(frozen=True)
class WindowedText:
    """One text in one model's tokens, cut into windows."""

    name: str
    sha256: str
    windows: tuple[tuple[int, ...], ...]
    """Consecutive windows of BOS and ``length - 1`` tokens each."""


@dataclass
class PerplexityOutcome:
    """Result of a perplexity run: numbers of files, and failures."""

    computed: int = 0
    kept: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Text and pattern of each failure, with the reason."""


@dataclass
class Perplexity:
    """A prepared perplexity run: model, patterns and texts cut into windows."""

    spec: PerplexitySpec
    model: Model
    tokenizer: Any
    lengths: tuple[int, ...]
    patterns: tuple[Pattern, ...]
    texts: tuple[WindowedText, ...]
    notes: tuple[str, ...]

    @classmethod
    def prepare(
        cls, spec: PerplexitySpec, say: Callable[[str], None] = lambda _: None, commit_of: CommitOf = newest
    ) -> Perplexity:
        """Read and cut the texts; nothing is computed yet. ``commit_of`` as in ``resolve``. Raises ``UserError``."""
        lengths = parse_lengths(spec.lengths)
        patterns = tuple(dict.fromkeys(map(Pattern.parse, spec.attention or ())))
        patterns = patterns or (own_pattern(spec.model),)
        if blocks := [pattern for pattern in patterns if pattern.blocks]:
            raise UserError(
                f"--attention {blocks[0]}: block patterns need demonstrations; take full, grouped or approx"
            )
        check_backend(TransformersLoader(BackendSpec(dtype=spec.dtype, device=spec.device)))
        spec.positions.check()
        files = text_files(spec.texts)
        say(f"preparing {spec.model}")
        model = resolve(spec.model, commit_of=commit_of)
        for pattern in patterns:
            check_family(pattern, model)
        model, positions = replace(model, positions=spec.positions), spec.positions
        if positions != OWN_POSITIONS:
            positions.config(model.source, model.revision)  # raises if they cannot be changed this way
        texts, notes = [], []
        if lengths[-1] > (reach := positions.reach(model.context_tokens)):
            if positions == OWN_POSITIONS:
                raise UserError(
                    f"--lengths {lengths[-1]}: {model.name} reads {model.context_tokens:,} tokens; take smaller ones, "
                    f"or add --rope-scale {math.ceil(lengths[-1] / model.context_tokens)} (or 1, to read beyond it "
                    "with the positions as they are)"
                )
            notes.append(
                f"{model.name} reads up to {reach:,} tokens within the positions of its training; larger "
                "positions are extrapolated"
            )
        tokenizer = load_tokenizer(model)
        say("counting tokens")
        for file in files:
            text, count = _cut(file, tokenizer, lengths[-1], spec.windows)
            if text.windows:
                texts.append(text)
            else:
                notes.append(f"{file.name}: {count:,} tokens are less than {lengths[-1]:,}; left out")
        if not texts:
            raise UserError(f"--texts {spec.texts}: no text has {lengths[-1]:,} tokens")
        return cls(spec, model, tokenizer, lengths, patterns, tuple(texts), tuple(notes))

    @property
    def backend(self) -> TransformersLoader:
        """The backend, not loaded yet."""
        return TransformersLoader(BackendSpec(dtype=self.spec.dtype, device=self.spec.device))

    def run(self, results: Place, say: Callable[[str], None] = lambda _: None) -> PerplexityOutcome:
        """Compute what is missing in the results folder, one file for each text and pattern.

        Raises ``UserError`` if the folder cannot be written.
        """
        storage, outcome, backend = storage_at(results), PerplexityOutcome(), None
        storage.prepare()
        keep_commit(results, self.model.fingerprint)
        done: dict[str, str] = {}
        for text in self.texts:
            for pattern in self.patterns:
                facts, what = self._facts(text, pattern), f"{text.name}, {pattern}"
                name = done[what] = self._name(facts)
                if storage.has(name):
                    add_lengths(storage, name, self._costs(pattern, facts))
                    outcome.kept += 1
                    continue
                if backend is None:
                    backend = self.load_backend()
                say(what)
                try:
                    self._compute(backend, text, pattern, facts, storage, name)
                    outcome.computed += 1
                except CellError as error:
                    outcome.failed[what] = str(error)
        gone = [what for what, name in done.items() if what not in outcome.failed and not storage.has(name)]
        outcome.failed |= dict.fromkeys(gone, "its file was removed during the run; run it again")
        return outcome

    @cached_property
    def _architecture(self) -> Architecture:
        """The dimensions of the model that decide its cost."""
        return architecture_of(self.model.source)

    def load_backend(self) -> Any:
        """Load the model. Raises ``UserError``."""
        return self.backend.load(self.model, self.tokenizer, self.lengths[-1])

    def _facts(self, text: WindowedText, pattern: Pattern) -> dict[str, Any]:
        """Everything that decides a file's numbers."""
        return {
            **self.backend.identity(),
            **self.model.positions.facts(),
            "model": self.model.name,
            "fingerprint": self.model.fingerprint,
            "attention": str(pattern),
            "text": text.name,
            "sha256": text.sha256,
            "length": self.lengths[-1],
            "windows": len(text.windows),
        }

    def _name(self, facts: dict[str, Any]) -> str:
        slug = re.sub(r"[^A-Za-z0-9.-]+", "_", f"{facts['attention']}-{facts['text']}")
        return losses_name(self.model.name, f"{slug}-{short_hash(facts)}")

    def _costs(self, pattern: Pattern, facts: dict[str, Any]) -> dict[int, dict[str, float]]:
        """Length -> its costs by formula."""
        return {
            length: {
                "prefill_flops": flops(self._architecture, pattern, None, 0, length, read=0),
                "cache_bytes": cache_bytes(self._architecture, pattern, length, facts["dtype"]),
            }
            for length in self.lengths
        }

    def _compute(
        self, backend: Any, text: WindowedText, pattern: Pattern, facts: dict[str, Any], storage: Storage, name: str
    ) -> None:
        losses, peak, start = [], 0, time.perf_counter()
        for window in text.windows:
            losses.append(backend.losses(window, pattern))
            peak = max(peak, backend.peak_prefix_bytes)
        seconds = time.perf_counter() - start
        by_length = {str(length): costs for length, costs in self._costs(pattern, facts).items()}
        trained = training_of(self.model.source)
        meta = LossesMeta(
            **facts,
            training=TrainingMeta(**trained.cost) if trained else None,
            seconds=seconds,
            peak_cache_bytes=peak,
            by_length=by_length,
            lengths=list(self.lengths),
            versions=versions(),
        )
        write_losses(storage, name, losses, meta)


def parse_lengths(text: str) -> tuple[int, ...]:
    """Parse ascending numbers of tokens. Raises ``UserError``."""
    words = comma_list(text)
    for word in words:
        if not re.fullmatch(r"[0-9]{1,9}", word) or int(word) < 2:
            raise UserError(f"--lengths {plain(word)}: give numbers of tokens of at least 2, like 1024,2048")
    if not words:
        raise UserError("--lengths: empty; give numbers of tokens like 1024,2048")
    return tuple(sorted({int(word) for word in words}))


def _cut(file: Path, tokenizer: Any, length: int, windows: int) -> tuple[WindowedText, int]:
    """A text cut into windows, and its number of tokens."""
    content, sha256 = read_text(file)
    ids = text_ids(tokenizer, content)
    lead = () if (bos := bos_of(tokenizer)) is None else (bos,)
    size = length - len(lead)
    cut = tuple(lead + tuple(part) for part in _windows(ids, size, windows))
    return WindowedText(text_name(file), sha256, cut), len(ids)


def _windows(ids: Sequence[int], size: int, count: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids) - size + 1, size):
        if start // size == count:
            return
        yield ids[start : start + size]
