"""What a model is adapted on: sequences of long texts, and of a task's demonstrations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.errors import UserError
from icl_bench.models.tokenizers import Tokenizer
from icl_bench.prompts.encoding import Ids
from icl_bench.seeds import generator
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.texts import read_text, text_files, text_ids, text_name

HELD = 0.05
"""Of every text: its end, which is not learnt from."""

HELD_SEQUENCES = 8
"""Sequences of these ends, at most: the loss that is looked at."""


@dataclass(frozen=True)
class Lesson:
    """Tokens to learn from."""

    ids: Ids
    learnt: tuple[tuple[int, int], ...] | None = None
    """Which tokens are learnt, as ranges; None for all behind the first."""
    ends: tuple[int, ...] = ()
    """Where demonstrations end, where it is made of some."""


@dataclass(frozen=True)
class PackedTexts:
    """Texts one behind another, each in BOS and EOS, cut into sequences (004, section 3.1).

    The texts are shuffled anew each time that all of them have been read.
    """

    names: tuple[str, ...]
    hashes: tuple[str, ...]
    documents: tuple[np.ndarray, ...]
    """What is learnt of each text, with BOS and EOS: ``(tokens,)`` each."""
    held: tuple[np.ndarray, ...]
    """What is not: the end of each text, so too."""
    length: int
    seed: int = 0
    _passes: dict[int, np.ndarray] = field(default_factory=dict, compare=False)

    @classmethod
    def read(cls, folder: Path, tokenizer: Tokenizer, length: int, seed: int = 0) -> PackedTexts:
        """Read a folder. Raises ``UserError``, for texts that are too short too."""
        names, hashes, documents, held = [], [], [], []
        for file in text_files(folder):
            content, sha256 = read_text(file)
            ids = text_ids(tokenizer, content)
            kept = len(ids) - int(HELD * len(ids))
            names.append(text_name(file))
            hashes.append(sha256)
            documents.append(_framed(ids[:kept], tokenizer))
            held.append(_framed(ids[kept:], tokenizer))
        found = cls(tuple(names), tuple(hashes), tuple(documents), tuple(held), length, seed)
        least = length if found.held_tokens >= length else int(length / HELD)
        if found.tokens < length or found.held_tokens < length:
            raise UserError(
                f"--texts {folder}: {found.tokens + found.held_tokens:,} tokens are too few for "
                f"sequences of {length:,} and a twentieth that is held back; give at least "
                f"{least + length:,}, or a smaller --length"
            )
        return found

    @property
    def tokens(self) -> int:
        """To learn from."""
        return sum(map(len, self.documents))

    @property
    def held_tokens(self) -> int:
        """Held back."""
        return sum(map(len, self.held))

    def sequence(self, number: int) -> Ids:
        """One of any number of sequences."""
        turn, start = divmod(number * self.length, self.tokens)
        found = self._turn(turn)[start : start + self.length]
        if len(found) < self.length:
            found = np.concatenate([found, self._turn(turn + 1)[: self.length - len(found)]])
        return tuple(found.tolist())

    def _turn(self, number: int) -> np.ndarray:
        """All texts in the order of one turn: ``(tokens,)``."""
        if number not in self._passes:
            for old in [turn for turn in self._passes if turn < number - 1]:
                del self._passes[old]
            order = generator(self.seed, "texts", number).permutation(len(self.documents))
            self._passes[number] = np.concatenate([self.documents[i] for i in order])
        return self._passes[number]

    def held_sequences(self) -> list[Ids]:
        """Of what is held back, evenly spread."""
        joined = np.concatenate(self.held)
        count = len(joined) // self.length
        chosen = np.unique(np.linspace(0, count - 1, min(count, HELD_SEQUENCES)).astype(int))
        return [tuple(joined[i * self.length :][: self.length].tolist()) for i in chosen]


def _framed(ids: Sequence[int], tokenizer: Any) -> np.ndarray:
    """A text's tokens between BOS and EOS, where the tokenizer has them."""
    ends = ([] if one is None else [int(one)] for one in (tokenizer.bos_token_id, tokenizer.eos_token_id))
    first, last = ends
    return np.array([*first, *ids, *last], dtype=np.int64)


@dataclass(frozen=True)
class DemonstrationSequences:
    """As many demonstrations of a task as a sequence holds, whose answers are learnt.

    They are rows of the pool, so never test rows, drawn anew for each sequence.
    """

    task: TokenizedTask
    length: int
    seed: int = 0

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Tokens of each train row as a demonstration; 0 for those that are not in the pool."""
        rows, train = self.task.pool.rows, self.task.data.train
        sizes = np.zeros(len(train), dtype=int)
        sizes[rows] = self.task.encoder.demonstration_lengths([train[i] for i in rows])
        return sizes

    def sequence(self, number: int) -> Lesson:
        """One of any number. Raises ``UserError`` where not one demonstration fits."""
        rows = self.task.pool.rows
        order = generator(self.seed, "demonstrations", number).permutation(rows)
        room = self.length - len(self.task.encoder.bos) - 8  # what a join may add
        count = int(np.searchsorted(np.cumsum(self._sizes[order]), room, side="right"))
        if count < 1:
            raise UserError(f"--length {self.length}: no demonstration of {self.task.data.spec.name} fits")
        train = self.task.data.train
        ids, ends, learnt = self.task.encoder.lesson([train[i] for i in order[:count]])
        return Lesson(ids[: self.length], tuple(learnt), ends)


@dataclass(frozen=True)
class AdaptationExamples:
    """All sequences of a training, by number."""

    texts: PackedTexts
    tasks: tuple[DemonstrationSequences, ...] = ()
    share: float = 0.0
    """Of the sequences that are demonstrations."""

    def sequence(self, number: int) -> Lesson:
        """Demonstrations are spread evenly, the tasks in turn."""
        if self.tasks:
            before, after = int(number * self.share), int((number + 1) * self.share)
            if after > before:
                task = self.tasks[before % len(self.tasks)]
                return task.sequence(before // len(self.tasks))
            number -= before
        return Lesson(self.texts.sequence(number))

    def held(self) -> Iterator[Lesson]:
        """What is not learnt from."""
        for ids in self.texts.held_sequences():
            yield Lesson(ids)
