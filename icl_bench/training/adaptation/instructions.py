"""Conversations as training data: instruction tuning (Zebra; Song et al. 2023, section 4).

Each row of a file is a conversation, written with the model's chat template. Its answers are the targets. Several
conversations are packed into one sequence, and see only themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.errors import UserError
from icl_bench.models.registry import Model
from icl_bench.models.tokenizers import Tokenizer, check_offsets, special_texts, with_offsets
from icl_bench.prompts.chat import ending_of
from icl_bench.prompts.chat_template import ChatTemplate
from icl_bench.prompts.rendering import Message
from icl_bench.seeds import generator
from icl_bench.tasks.file_readers import read_split
from icl_bench.tasks.splits import StoredRow, encodable
from icl_bench.training.adaptation.examples import HELD, HELD_SEQUENCES, Lesson
from icl_bench.wording import counted, listed_or, plain, short

DAY = "2024-07-26"
"""The date for chat templates, so that a training does not depend on its day."""

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Instructions:
    """The conversations of a file, packed into sequences; reshuffled after each pass over all of them."""

    hashes: tuple[str, ...]
    """The hash of the file."""
    conversations: tuple[Lesson, ...]
    held: tuple[Lesson, ...]
    """Conversations that are held out from training, a twentieth."""
    length: int
    """The largest number of tokens of a sequence."""
    seed: int = 0
    too_long: int = 0
    """Number of conversations that are left out because they exceed a sequence."""
    longest: int = 0
    """Tokens of the longest conversation of the file."""
    dated: bool = False
    """Whether the chat template may write a date."""
    reading: tuple[str, ...] = ()
    """Notes for the user on how the file was read."""
    _passes: list[list[list[int]]] = field(default_factory=list, compare=False)
    """The conversations of each sequence of each pass so far."""

    @classmethod
    def read(cls, file: Path, model: Model, tokenizer: Tokenizer, length: int, seed: int = 0) -> Instructions:
        """Read a file of conversations. Raises ``UserError``, with the row if one is wrong."""
        writer = ConversationWriter.of(model, tokenizer)
        split = read_split(file, "instructions", {})
        lessons = [writer.lesson(row) for row in split.rows]
        longest = max(len(lesson.ids) for lesson in lessons)
        fitting = [lesson for lesson in lessons if len(lesson.ids) <= length]
        if len(fitting) < 2:
            raise UserError(
                f"--instructions {plain(str(file))}: {len(fitting)} of {counted(len(lessons), 'conversation')} fit "
                f"--length {length:,}; at least 2 are needed; the longest has {longest:,} tokens"
            )
        order = generator(seed, "instructions").permutation(len(fitting))
        cut = max(1, int(HELD * len(fitting)))
        held, learnt = (tuple(fitting[i] for i in part) for part in (order[:cut], order[cut:]))
        too_long = len(lessons) - len(fitting)
        dated = writer.chat.writes_date
        return cls((split.sha256,), learnt, held, length, seed, too_long, longest, dated, split.notes)

    @property
    def tokens(self) -> int:
        """Number of tokens to train on."""
        return sum(len(lesson.ids) for lesson in self.conversations)

    @property
    def mean_tokens(self) -> float:
        """Mean number of tokens of a sequence of the first pass. Packing leaves sequences partly empty."""
        return self.tokens / len(self._turn(0))

    def lesson(self, number: int) -> Lesson:
        """Training sequence ``number``; conversations repeat without limit."""
        turn = 0
        while number >= len(packs := self._turn(turn)):
            number -= len(packs)
            turn += 1
        return packed([self.conversations[i] for i in packs[number]])

    def _turn(self, number: int) -> list[list[int]]:
        """The conversations of each sequence of one pass."""
        while len(self._passes) <= number:
            order = generator(self.seed, "instructions", len(self._passes)).permutation(len(self.conversations))
            self._passes.append(self._packs(self.conversations, order.tolist()))
        return self._passes[number]

    def _packs(self, lessons: Sequence[Lesson], order: Sequence[int]) -> list[list[int]]:
        """The conversations of each sequence, filled in order."""
        packs: list[list[int]] = []
        room = 0
        for i in order:
            size = len(lessons[i].ids)
            if size > room:
                packs.append([])
                room = self.length
            packs[-1].append(i)
            room -= size
        return packs

    def held_lessons(self) -> list[Lesson]:
        """Held-out sequences, the first few."""
        packs = self._packs(self.held, range(len(self.held)))
        return [packed([self.held[i] for i in pack]) for pack in packs[:HELD_SEQUENCES]]

    def notes(self, sequences: float) -> list[str]:
        """Notes for the user before a training of this number of sequences."""
        answers = sum(last - first for lesson in self.conversations for first, last in lesson.learnt or ())
        notes = [
            *self.reading,
            f"{counted(len(self.conversations), 'conversation')} to train on ({self.tokens:,} tokens, {answers:,} in "
            f"answers), {len(self.held):,} held out; conversations in one sequence do not attend to each other",
        ]
        if self.too_long:
            notes.append(
                f"{counted(self.too_long, 'conversation')} left out, longer than --length {self.length:,}; the longest "
                f"has {self.longest:,} tokens"
            )
        if (times := sequences / len(self._turn(0))) > 1.5:
            notes.append(f"the training reads each conversation about {times:,.0f} times")
        if self.dated:
            notes.append(f"the chat template may write a date: {DAY}")
        return notes


def packed(lessons: Sequence[Lesson]) -> Lesson:
    """Conversations as one sequence, whose parts see only themselves."""
    ends = np.cumsum([len(lesson.ids) for lesson in lessons]).tolist()
    ids = tuple(token for lesson in lessons for token in lesson.ids)
    learnt = tuple(
        (begin + first, begin + last)
        for begin, lesson in zip([0, *ends], lessons, strict=False)
        for first, last in lesson.learnt or ()
    )
    return Lesson(ids, learnt, tuple(ends), apart=True)


@dataclass(frozen=True)
class ConversationWriter:
    """Encodes rows as tokens with a model's chat template."""

    chat: ChatTemplate
    tokenizer: Any
    special: Collection[str]
    """The texts of the tokenizer's special tokens."""

    @classmethod
    def of(cls, model: Model, tokenizer: Any) -> ConversationWriter:
        """The writer of a model. Raises ``UserError`` if it has no chat template."""
        chat = ChatTemplate.of_folder(Path(model.source), model.name, {}, day=DAY, option="--instructions")
        check_offsets(tokenizer, "--instructions")
        return cls(chat, tokenizer, special_texts(tokenizer))

    def lesson(self, row: StoredRow) -> Lesson:
        """The tokens of a row, and the ranges of its answers, each with the end of its turn.

        A token that spans the start of an answer belongs to the answer. Raises ``UserError`` with the row.
        """
        messages = messages_in(row)
        try:
            return self._lesson(messages)
        except UserError as error:
            raise UserError(f"{row.where}: {str(error).removeprefix('--instructions: ')}") from None

    def _lesson(self, messages: Sequence[Message]) -> Lesson:
        for message in messages:
            for token in self.special:
                if token in message["content"]:
                    raise UserError(f"has the text {token!r}, which this model reads as a special token")
        text = self.chat.render(messages, answer_follows=False)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        ranges = [self._answer(messages, i, text) for i in answers]
        ids, offsets = with_offsets(self.tokenizer, text, split_special_tokens=False)
        # a token's start may exclude its blank, but its end is after the start of its text in any tokenizer
        starts, ends = zip(*offsets, strict=True)
        first = np.searchsorted(ends, [begin + 1 for begin, _ in ranges])
        last = np.searchsorted(starts, [end for _, end in ranges])
        return Lesson(ids, tuple(zip(first.tolist(), last.tolist(), strict=True)))

    def _answer(self, messages: Sequence[Message], place: int, text: str) -> tuple[int, int]:
        """The range of an answer with its end in the conversation's text, in characters."""
        prompt = self.chat.render(messages[:place])
        through = self.chat.render(messages[: place + 1], answer_follows=False)
        content = messages[place]["content"].strip()
        at = through.find(content, len(prompt)) if through.startswith(prompt) else -1
        if at < 0 or not text.startswith(through[: at + len(content)]):
            raise UserError(
                f"turn {place + 1}: the chat template of model {self.chat.model_name} changes the answer or its place "
                "after the prompt; adapt cannot train with such a template"
            )
        end = at + len(content)
        # the template's text after the answer, whether or not the conversation continues
        ending = ending_of(commonprefix([through[end:], text[end:]]), self.special)  # noqa: RUF071 - texts, not paths
        if ending is None:
            raise UserError(
                f"turn {place + 1}: the chat template of model {self.chat.model_name} does not end an answer"
            )
        return len(prompt), end + len(ending)


def messages_in(row: StoredRow) -> list[Message]:
    """The conversation of a row with texts that can be tokenized. Raises ``UserError`` with the row."""
    try:
        messages = messages_of(row.cells)
    except UserError as error:
        raise UserError(f"{row.where}: {error}") from None
    for number, message in enumerate(messages, 1):
        encodable(message["content"], row, f"turn {number}")
    return messages


def messages_of(cells: Mapping[str, Any]) -> list[Message]:
    """The conversation of a row: its ``messages``, or ``instruction`` (with ``input``) and ``output``.

    Raises ``UserError``.
    """
    if "messages" in cells:
        return _checked(cells["messages"])
    if "instruction" not in cells or "output" not in cells:
        raise UserError(f"expected messages, or instruction and output; it has {short(', '.join(map(plain, cells)))}")
    for name in ("instruction", "input", "output"):
        if name in cells and not isinstance(cells[name], str) and not (name == "input" and cells[name] is None):
            raise UserError(f"{name}: expected text, not {short(cells[name])}")
    asked = "\n\n".join(part for part in (cells["instruction"], cells.get("input")) if part and not part.isspace())
    return _checked([{"role": "user", "content": asked}, {"role": "assistant", "content": cells["output"]}])


def _checked(messages: Any) -> list[Message]:
    """Validate the turns: known roles, texts, and an answer at the end."""
    if not isinstance(messages, list) or not messages:
        raise UserError(f"messages: expected a list of turns, not {short(messages)}")
    found: list[Message] = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            raise UserError(f"turn {number}: expected a role and content, not {short(message)}")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise UserError(f"turn {number}: the role is {short(role)}; expected {listed_or(ROLES)}")
        if not isinstance(content, str):
            raise UserError(f"turn {number}: the content is {short(content)}; expected text")
        if not content or content.isspace():
            raise UserError(f"turn {number}: the text of the {role} is empty")
        found.append({"role": role, "content": content})
    if found[-1]["role"] != "assistant":
        raise UserError(f"the last turn is the {found[-1]['role']}'s; expected an answer of the assistant")
    if len(found) < 2:
        raise UserError("only one turn; expected a question before the answer")
    return found
