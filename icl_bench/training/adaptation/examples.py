"""Training sequences of an adaptation: long texts, and demonstrations of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from icl_bench.errors import UserError
from icl_bench.models.tokenizers import Tokenizer
from icl_bench.prompts.encoding import Ids
from icl_bench.seeds import generator
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.texts import read_text, text_files, text_ids

HELD = 0.05
"""Share of every text, its end, that is held out from training."""

HELD_SEQUENCES = 8
"""Maximum number of held-out sequences, whose loss is reported."""


@dataclass(frozen=True)
class Lesson:
    """A sequence of tokens to train on."""

    ids: Ids
    learnt: tuple[tuple[int, int], ...] | None = None
    """Ranges of the tokens with a loss; None for all after the first."""
    ends: tuple[int, ...] = ()
    """The ends of its demonstrations, if it has any, or of parts that see only themselves."""
    apart: bool = False
    """Whether its parts see only themselves."""


class Source(Protocol):
    """A source of sequences: long texts, or conversations."""

    @property
    def hashes(self) -> tuple[str, ...]:
        """The hash of each file."""

    @property
    def mean_tokens(self) -> float:
        """Mean number of tokens of a training sequence."""

    def lesson(self, number: int) -> Lesson:
        """Training sequence ``number``; sequences are unlimited."""

    def held_lessons(self) -> list[Lesson]:
        """Held-out sequences, whose loss is reported."""

    def notes(self, sequences: float) -> list[str]:
        """Notes for the user before a training of this number of sequences."""


@dataclass(frozen=True)
class PackedTexts:
    """Concatenated texts, each between BOS and EOS, cut into sequences (Zebra, section 3.1).

    The texts are reshuffled after each pass over all of them.
    """

    hashes: tuple[str, ...]
    documents: tuple[np.ndarray, ...]
    """Training part of each text, with BOS and EOS: ``(tokens,)`` each."""
    held: tuple[np.ndarray, ...]
    """Held-out end of each text, with BOS and EOS: ``(tokens,)`` each."""
    length: int
    seed: int = 0
    _passes: dict[int, np.ndarray] = field(default_factory=dict, compare=False)

    @classmethod
    def read(cls, folder: Path, tokenizer: Tokenizer, length: int, seed: int = 0) -> PackedTexts:
        """Read a folder of texts. Raises ``UserError``, also if they have too few tokens."""
        hashes, documents, held = [], [], []
        for file in text_files(folder):
            content, sha256 = read_text(file)
            ids = text_ids(tokenizer, content)
            kept = len(ids) - int(HELD * len(ids))
            hashes.append(sha256)
            documents.append(_framed(ids[:kept], tokenizer))
            held.append(_framed(ids[kept:], tokenizer))
        texts = cls(tuple(hashes), tuple(documents), tuple(held), length, seed)
        least = length if texts.held_tokens >= length else int(length / HELD)
        if texts.tokens < length or texts.held_tokens < length:
            raise UserError(
                f"--texts {folder}: {texts.tokens + texts.held_tokens:,} tokens are too few for "
                f"sequences of {length:,} with a twentieth held out; give at least "
                f"{least + length:,}, or a smaller --length"
            )
        return texts

    @property
    def tokens(self) -> int:
        """Number of tokens to train on."""
        return sum(map(len, self.documents))

    @property
    def held_tokens(self) -> int:
        """Number of held-out tokens."""
        return sum(map(len, self.held))

    @property
    def mean_tokens(self) -> float:
        """Mean number of tokens of a sequence. Texts fill all of them."""
        return self.length

    def sequence(self, number: int) -> Ids:
        """Training sequence ``number``; texts repeat without limit."""
        turn, start = divmod(number * self.length, self.tokens)
        ids = self._turn(turn)[start : start + self.length]
        if len(ids) < self.length:
            ids = np.concatenate([ids, self._turn(turn + 1)[: self.length - len(ids)]])
        return tuple(ids.tolist())

    def _turn(self, number: int) -> np.ndarray:
        """All texts in the order of one pass: ``(tokens,)``."""
        if number not in self._passes:
            for old in [turn for turn in self._passes if turn < number - 1]:
                del self._passes[old]
            order = generator(self.seed, "texts", number).permutation(len(self.documents))
            self._passes[number] = np.concatenate([self.documents[i] for i in order])
        return self._passes[number]

    def lesson(self, number: int) -> Lesson:
        """Training sequence ``number``, with a loss on all tokens."""
        return Lesson(self.sequence(number))

    def held_lessons(self) -> list[Lesson]:
        """The held-out sequences as lessons."""
        return list(map(Lesson, self.held_sequences()))

    def notes(self, sequences: float) -> list[str]:
        """Notes for the user before a training of this number of sequences."""
        notes = [
            f"{len(self.hashes):,} texts have {self.tokens:,} tokens to train on, and {self.held_tokens:,} held out"
        ]
        if (wanted := sequences * self.length) > 1.5 * self.tokens:
            notes.append(f"each text is read about {wanted / self.tokens:,.0f} times")
        return notes

    def held_sequences(self) -> list[Ids]:
        """Held-out sequences, evenly spaced."""
        joined = np.concatenate(self.held)
        count = len(joined) // self.length
        chosen = np.unique(np.linspace(0, count - 1, min(count, HELD_SEQUENCES)).astype(int))
        return [tuple(joined[i * self.length :][: self.length].tolist()) for i in chosen]


def _framed(ids: Sequence[int], tokenizer: Any) -> np.ndarray:
    """A text's tokens between BOS and EOS, if the tokenizer has them."""
    framed = (tokenizer.bos_token_id, *ids, tokenizer.eos_token_id)
    return np.array([token for token in framed if token is not None], dtype=np.int64)


@dataclass(frozen=True)
class DemonstrationSequences:
    """Sequences filled with demonstrations of a task; their answers are the targets.

    Demonstrations are rows of the pool, never test rows, and are sampled for each sequence.
    """

    task: TokenizedTask
    length: int
    seed: int = 0

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Tokens of each train row as a demonstration; 0 for rows outside the pool."""
        rows, train = self.task.pool.rows, self.task.data.train
        sizes = np.zeros(len(train), dtype=int)
        sizes[rows] = self.task.encoder.demonstration_lengths([train[i] for i in rows])
        return sizes

    @cached_property
    def _room(self) -> int:
        """Tokens for demonstrations. Raises ``UserError`` if none fits."""
        encoder, rows = self.task.encoder, self.task.pool.rows
        start = encoder.whole(encoder.form.start) if encoder.form.start else encoder.bos
        room = self.length - len(start) - 8  # tokens that may be added at joins
        if not (self._sizes[rows] <= room).any():
            raise UserError(f"--length {self.length}: no demonstration of {self.task.data.spec.name} fits")
        return room

    def check(self) -> None:
        """Raise ``UserError`` if no demonstration fits."""
        _ = self._room

    def sequence(self, number: int) -> Lesson:
        """Sequence ``number``. Raises ``UserError`` if no demonstration fits."""
        room, rows = self._room, self.task.pool.rows
        order = generator(self.seed, "demonstrations", number).permutation(rows)
        order = order[np.argmax(self._sizes[order] <= room) :]  # the first that fits begins
        count = int(np.searchsorted(np.cumsum(self._sizes[order]), room, side="right"))
        train = self.task.data.train
        ids, ends, learnt = self.task.encoder.lesson([train[i] for i in order[:count]])
        return Lesson(ids[: self.length], tuple(learnt), ends)


@dataclass(frozen=True)
class AdaptationExamples:
    """All training sequences, by number."""

    texts: Source
    tasks: tuple[DemonstrationSequences, ...] = ()
    share: float = 0.0
    """Share of the sequences that are demonstrations."""

    def sequence(self, number: int) -> Lesson:
        """Sequence ``number``; demonstrations are evenly spaced, tasks take turns."""
        if self.tasks:
            before, after = int(number * self.share), int((number + 1) * self.share)
            if after > before:
                task = self.tasks[before % len(self.tasks)]
                return task.sequence(before // len(self.tasks))
            number -= before
        return self.texts.lesson(number)
