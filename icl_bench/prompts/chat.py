"""Prompts as conversations: demonstrations as turns, or all of them in one user message.

The template renders conversations of placeholder marks once. The markup around the marks is then
put around the real contents, so demonstrations are rendered once for all queries and all k. This
does not work for every template: it may trim contents, number turns or drop parts of earlier ones.
So the result is compared with what the template renders, and if they differ, each conversation is
rendered as a whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icl_bench.errors import UserError
from icl_bench.frozen import Frozen
from icl_bench.models.tokenizers import special_texts
from icl_bench.options import read_pair
from icl_bench.prompts.chat_template import ChatTemplate, closed, thought_mark_in, thought_of
from icl_bench.prompts.rendering import AS_THEY_ARE, Message, Piece, PlainForm, Writing, query_text
from icl_bench.tasks.thoughts import joined
from icl_bench.text_files import decode, read_file
from icl_bench.wording import plain

if TYPE_CHECKING:
    from icl_bench.models.registry import Model
    from icl_bench.models.tokenizers import Tokenizer
    from icl_bench.tasks.examples import Example
    from icl_bench.tasks.templates import AnyTemplate
    from icl_bench.tasks.thoughts import ThoughtRule

_MARKS = ("\ue0f0", "\ue0f1", "\ue0f2", "\ue0f3", "\ue0f4")
"""Placeholders of contents: characters of Unicode's private use area."""


class ChatSettings(Frozen):
    """How prompts are written for a chat model."""

    style: Literal["turns", "single"]
    """``turns``: each demonstration is a user turn and an assistant turn. ``single``: all of them
    and the query are one user message."""
    system: str | None = None
    """The content of a system turn, if there is one."""
    arguments: tuple[tuple[str, Any], ...] = ()
    """Arguments of the template besides the messages."""
    day: str | None = None
    """The date that the template may write, such as ``2026-01-31``; None for today's."""


@dataclass(frozen=True)
class TurnMarkup:
    """The markup that a template writes around contents."""

    start: str
    """Before the first user turn's content."""
    answer: str
    """Between a user turn's content and the assistant's."""
    joint: str
    """Between an assistant turn's content and the next user turn's."""
    end: str
    """After the last user turn's content, up to the model's answer."""
    closing: str
    """After the last assistant turn's content."""


class ChatForm:
    """Writes the prompts of one task with one model's chat template."""

    has_special_tokens = True

    def __init__(
        self,
        template: AnyTemplate,
        settings: ChatSettings,
        chat: ChatTemplate,
        special: Collection[str],
        writing: Writing = AS_THEY_ARE,
        thought: ThoughtRule | None = None,
    ) -> None:
        """``special`` are the texts of the tokenizer's special tokens. ``writing`` writes the demonstrations if all are
        in one message. With ``thought``, the assistant's turn begins with its opening.

        Raises ``UserError`` if the template refuses such conversations, or does not end the
        assistant's turns.
        """
        self.template, self.settings, self._chat, self._writing = template, settings, chat, writing
        self.thought, self._opens = thought, thought.opens.rstrip(" ") if thought else ""
        self._special = tuple(special)
        self._kept_texts: dict[tuple[str, ...], bool] = {}
        self._has_system = not (settings.system or template.start) or self._shows_system()
        self._around, self._regular = self._probe_template()
        self.ending = self._ending()
        self.start, self.before_answer = self._around.start, self._around.end
        if thought is not None:
            self.before_answer = thought.mark
        self.joint = template.separator if settings.style == "single" else self._around.joint

    # -- the parts of a prompt ------------------------------------------------------------------

    def demonstration(self, example: Example) -> str:
        """See ``PlainForm``: a user and an assistant turn, or a part of the only user turn."""
        if self.settings.style == "single":
            return self._writing.piece(self.template, example) + self.joint
        query = query_text(self.template, example)
        return f"{query}{self._around.answer}{example.worked}{example.answer}{self.joint}"

    def demonstrations(self, examples: Sequence[Example], skip: int = 0) -> list[str]:
        """See ``PlainForm``."""
        if self.settings.style == "single":
            return self._writing.texts(self.template, self.joint, examples, skip)
        return list(map(self.demonstration, examples[skip:]))

    def query(self, example: Example) -> str:
        """See ``PlainForm``."""
        return query_text(self.template, example) + self._around.end + self._opens

    def answer(self, answer: str) -> str:
        """See ``PlainForm``: with the markup after the generation prompt, and the end of the turn."""
        if self.thought is not None:
            return f"{self.thought.answer_lead}{answer}{self.ending}"
        generation, before = self._around.end, self._around.answer
        lead = before.removeprefix(generation) if before.startswith(generation) else ""
        return f"{lead}{answer}{self.ending}"

    def facts(self) -> dict[str, Any]:
        """Facts that prompts depend on besides examples: the settings and the template's markup, which may have today's
        date.
        """
        around = self._around
        written = [around.start, around.answer, around.joint, around.end, around.closing]
        return {
            "style": self.settings.style,
            "system": self.settings.system,
            "arguments": dict(self.settings.arguments),
            "template": hashlib.sha256(self._chat.source.encode()).hexdigest()[:16],
            "around": written,
        }

    def notes(self) -> list[str]:
        """Notes on the template's own text that readers of results should know."""
        notes = []
        if self._chat.writes_date:
            day = self.settings.day or date.today().isoformat()
            notes.append(f"the chat template may write a date: {day}, kept for this results folder")
        if (mark := self._thought) is not None:
            end = "it is closed, and labels follow it" if self._chat.closes_thoughts else "answers begin inside it"
            notes.append(f"the chat template begins a thought ({mark}) before each answer: {end}")
        return notes

    @cached_property
    def stop(self) -> str:
        """The text that ends a free answer: the end of a turn, or if that is blank, the beginning of the next.

        Raises ``UserError`` if the template writes neither.
        """
        if ends := self.ending.strip():
            return ends
        with suppress(UserError):  # a template of one user message may not show several turns
            begins = self._around_marks(_MARKS[:3])[2].strip()
            if begins:
                return (ending_of(begins, self._special) or begins).strip()
        raise UserError(
            f"--chat: the chat template of model {self._chat.model_name} ends a turn and begins the next with blanks "
            "only, so nothing ends a free answer or a thought; leave --chat out"
        )

    @property
    def ends_at_next_turn(self) -> bool:
        """Whether the beginning of the next turn ends a free answer, as the end of a turn is blank."""
        return not self.ending.strip()

    @property
    def thought_marks(self) -> tuple[str, ...]:
        """The mark with which the model begins its own thoughts, such as ``<think>``, if the template has one."""
        mark = thought_mark_in(self._chat.source)
        return () if mark is None else (mark,)

    @property
    def own_thought(self) -> str | None:
        """The mark with which the model may begin a thought of its own in a free answer; None if it has none, or if the
        prompt begins or closes one.
        """
        marks = self.thought_marks if self.thought is None and self._thought is None else ()
        return next((mark for mark in marks if closed(mark) not in self._around.end), None)

    @property
    def thought_stops(self) -> tuple[str, ...]:
        """Texts that end a thought besides the task's end mark: those of the model's own thoughts and of turns."""
        return (*map(closed, self.thought_marks), self.stop)

    def closing(self, text: str) -> str:
        """The text that closes the model's own thought, if a prompt with a thought leaves it open; else empty."""
        left_open = (mark for mark in self.thought_marks if text.rfind(mark) > text.rfind(closed(mark)))
        return next((f"\n{closed(mark)}\n\n" for mark in left_open), "")

    @property
    def _thought(self) -> str | None:
        """The mark of a thought that the template begins before an answer, such as ``<think>``."""
        left_open = replace(self._chat, closes_thoughts=False)
        return thought_of(left_open.render(self._conversation(_MARKS[:1])))

    @property
    def writes_date(self) -> bool:
        """Whether the template may write the date."""
        return self._chat.writes_date

    # -- conversations --------------------------------------------------------------------------

    def messages(self, demonstrations: Sequence[Example], query: Example) -> list[Message]:
        """The conversation of one prompt. The opening of a thought is at the end of the last turn, because a server
        begins the next.
        """
        *before, last = self._messages(demonstrations, query)
        return [*before, {**last, "content": joined(last["content"], self._opens)}]

    def _messages(self, demonstrations: Sequence[Example], query: Example) -> list[Message]:
        """The conversation of one prompt, without the opening of a thought in the answer."""
        last = query_text(self.template, query)
        if self.settings.style == "single":
            return self._conversation(["".join([*self.demonstrations(demonstrations), last])])
        turns = [(query_text(self.template, one), f"{one.worked}{one.answer}") for one in demonstrations]
        return self._conversation([*chain.from_iterable(turns), last])

    def whole(self, demonstrations: Sequence[Example], query: Example) -> str:
        """See ``PlainForm``: rendered by the template as a whole."""
        return self._chat.render(self._messages(demonstrations, query)) + self._opens

    def is_pieced(self, demonstrations: Sequence[Example], queries: Sequence[Example]) -> bool:
        """See ``PlainForm``: whether the template treats all turns and these contents equally.

        Tests each example as a separate conversation, and all of them as one. Raises ``UserError`` for a text that the
        tokenizer would read as a special token.
        """
        if not self._regular:
            return False
        if not all(self._keeps_text(example) for example in (*demonstrations, *queries)):
            return False
        pieces = [self.start, *self.demonstrations(demonstrations)]
        return all("".join([*pieces, self.query(query)]) == self.whole(demonstrations, query) for query in queries[:1])

    def _keeps_text(self, example: Example) -> bool:
        """Whether the template keeps an example's text unchanged."""
        query, answer = query_text(self.template, example), f"{example.worked}{example.answer}"
        key = (query, answer)
        if key not in self._kept_texts:
            for token in self._special:
                if token in query or token in answer:
                    raise UserError(
                        f"--chat: a row has the text {token!r}, which this model reads as a "
                        f"special token ({query[:60]!r}); change that row, or remove --chat"
                    )
            around, conversation = self._around, [query]
            parts = [around.start, query, around.end]
            if self.settings.style == "turns":
                conversation += [answer, _MARKS[0]]
                parts[2:] = [around.answer, answer, around.joint, _MARKS[0], around.end]
            rendered = self._chat.render(self._conversation(conversation))
            self._kept_texts[key] = rendered == "".join(parts)
        return self._kept_texts[key]

    # -- the template's markup ------------------------------------------------------------------

    def _conversation(self, contents: Sequence[str]) -> list[Message]:
        """Alternating user and assistant turns, after the system turn.

        For a template without system turns, the first user turn begins with the start of the task's.
        """
        system = self._system
        if system is not None and not self._has_system:
            system, contents = None, [f"{system}{contents[0]}", *contents[1:]]
        system_turn = [] if system is None else [{"role": "system", "content": system}]
        roles = ("user", "assistant")
        return [*system_turn, *({"role": roles[i % 2], "content": c} for i, c in enumerate(contents))]

    @property
    def _system(self) -> str | None:
        """The content of the system turn: ``--system`` and the start of the task's template."""
        system, start = self.settings.system, self.template.start
        if not system or not start:
            return start or system
        apart = system[-1].isspace() or start[0].isspace()
        return f"{system}{'' if apart else self.template.separator}{start}"

    def _shows_system(self) -> bool:
        """Whether the template shows a system turn. Raises ``UserError`` if ``--system`` gives one and the template
        refuses it or leaves it out.
        """
        turns: list[Message] = [{"role": "system", "content": _MARKS[0]}, {"role": "user", "content": _MARKS[1]}]
        try:
            shown = _MARKS[0] in self._chat.render(turns)
        except UserError:
            if self.settings.system:
                raise
            return False
        if self.settings.system and not shown:
            raise UserError(
                f"--system: the chat template of model {self._chat.model_name} ignores system turns; put the text "
                "into the task's template"
            )
        return shown

    def _probe_template(self) -> tuple[TurnMarkup, bool]:
        """The template's markup, and whether it is the same around all turns."""
        start, end = self._around_marks(_MARKS[:1])
        _, answer, closing = self._around_marks(_MARKS[:2], answer_follows=False)
        if self.settings.style == "single":
            return TurnMarkup(start, answer, "", end, closing), True
        second, third = self._around_marks(_MARKS[:3]), self._around_marks(_MARKS[:5])
        joint = second[2]
        regular = second == [start, answer, joint, end] and third == [start, answer, joint, answer, joint, end]
        return TurnMarkup(start, answer, joint, end, closing), regular

    def _around_marks(self, marks: Sequence[str], *, answer_follows: bool = True) -> list[str]:
        """The texts around contents: one more than there are contents.

        Raises ``UserError`` if a content is missing or repeated.
        """
        text = self._chat.render(self._conversation(marks), answer_follows=answer_follows)
        surroundings = re.split("|".join(marks), text)
        if re.findall("|".join(marks), text) != list(marks):
            raise UserError(
                f"--chat: the chat template of model {self._chat.model_name} does not show every turn "
                "once; take --chat single"
            )
        return surroundings

    def _ending(self) -> str:
        """The end of an answer: up to the first special token, or the first line break."""
        if (ending := ending_of(self._around.closing, self._special)) is not None:
            return ending
        raise UserError(
            f"--chat: the chat template of model {self._chat.model_name} does not end an answer: no "
            "special token and no line break follow it"
        )


def ending_of(closing: str, special: Collection[str]) -> str | None:
    """The end of an answer in the text after it: up to the first special token, or the first line break.

    None if there is neither.
    """
    places = [(closing.find(token), len(token)) for token in special if token in closing]
    if places:
        at, size = min(places)
        return closing[: at + size]
    return closing[: closing.index("\n") + 1] if "\n" in closing else None


PromptForm = PlainForm | ChatForm
"""The form in which a prompt's parts are written and joined."""


def chat_form(
    template: AnyTemplate,
    settings: ChatSettings,
    model: Model,
    tokenizer: Tokenizer,
    writing: Writing = AS_THEY_ARE,
    *,
    closes_thoughts: bool = False,
    thought: ThoughtRule | None = None,
) -> ChatForm:
    """The form of a model's own chat template. With ``closes_thoughts``, answers follow the thought that it begins;
    with ``thought``, they follow a thought of the task. Raises ``UserError``.
    """
    arguments = dict(settings.arguments)
    chat = ChatTemplate.of_folder(
        Path(model.source), model.name, arguments, day=settings.day, closes_thoughts=closes_thoughts
    )
    return ChatForm(template, settings, chat, special_texts(tokenizer), writing, thought)


def around_turns(style: str, around: Sequence[str], template: AnyTemplate, piece: Piece) -> tuple[Piece, str, str]:
    """How demonstrations are written, the text between them, and the text after the query, from a
    cell's facts (:meth:`ChatForm.facts`).
    """
    _, answer, joint, end, _ = around
    if style == "single":
        return piece, template.separator, end
    return lambda template, one: f"{query_text(template, one)}{answer}{one.worked}{one.answer}", joint, end


def read_settings(style: str | None, system: str | None, arguments: Sequence[str]) -> ChatSettings | None:
    """Parse ``--chat``, ``--system`` and each ``--chat-arg``; None without ``--chat``.

    Raises ``UserError``.
    """
    if style is None:
        if system is not None or arguments:
            option = "--system" if system is not None else "--chat-arg"
            raise UserError(f"{option}: needs a chat; add --chat turns or --chat single")
        return None
    if style not in ("turns", "single"):
        raise UserError(f"--chat {plain(style)}: expected turns or single")
    pairs = dict(read_pair(text, "--chat-arg") for text in arguments)
    return ChatSettings(style=style, system=_system_text(system), arguments=tuple(pairs.items()))


def _system_text(system: str | None) -> str | None:
    """The text itself, or the content of ``@FILE`` without its last line break."""
    if system is None or not system.startswith("@"):
        return system
    path = Path(system[1:])
    try:
        return decode(read_file(path), plain(path)).removesuffix("\n")
    except UserError as error:
        raise UserError(f"--system @{error}") from None
