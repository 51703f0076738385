"""Prompts as conversations: demonstrations as turns, or all of them in one user message.

A template is asked once for a conversation whose contents are marks; what it writes around them is
then put around the real contents, so that demonstrations are rendered once for all queries and all
k. Not every template can be used so: it may trim contents, number turns or drop parts of earlier
ones. So what is put together is compared with what the template makes of it; where that differs,
conversations are rendered whole, each by itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icl_bench.errors import UserError
from icl_bench.frozen import Frozen
from icl_bench.prompts.chat_template import ChatTemplate
from icl_bench.prompts.rendering import HasText, Message, Piece, demonstration_text, query_text
from icl_bench.text_files import decode, read_file
from icl_bench.wording import plain

if TYPE_CHECKING:
    from icl_bench.models.registry import Model
    from icl_bench.models.tokenizers import Tokenizer
    from icl_bench.tasks.templates import AnyTemplate

_MARKS = ("\ue0f0", "\ue0f1", "\ue0f2", "\ue0f3", "\ue0f4")
"""Letters of no script (Unicode's private use area), which stand for contents."""


class ChatSettings(Frozen):
    """How prompts are put to a chat model."""

    style: Literal["turns", "single"]
    """``turns``: each demonstration is a user turn and an assistant turn; ``single``: all of them
    and the query are one user message."""
    system: str | None = None
    """What a system turn says, if there is one."""
    arguments: tuple[tuple[str, Any], ...] = ()
    """What the template is told beside the messages."""


@dataclass(frozen=True)
class Around:
    """What a template writes around contents."""

    start: str
    """Before the first user turn's content."""
    answer: str
    """Between a user turn's content and the assistant's."""
    joint: str
    """Between an assistant turn's content and the next user turn's."""
    end: str
    """Behind the last user turn's content, up to where the model answers."""
    closing: str
    """Behind the last assistant turn's content."""


class ChatForm:
    """Writes prompts of one task for one model's chat template."""

    has_special_tokens = True

    def __init__(
        self,
        template: AnyTemplate,
        settings: ChatSettings,
        chat: ChatTemplate,
        special: Collection[str],
        piece: Piece = demonstration_text,
    ) -> None:
        """``special`` are the texts of the tokenizer's special tokens; ``piece`` writes a
        demonstration, where all are in one message.

        Raises ``UserError`` where the template refuses such conversations, or does not end the
        assistant's turns.
        """
        self.template, self.settings, self._chat, self._piece = template, settings, chat, piece
        self._special = tuple(special)
        self._pieced: dict[tuple[str, ...], bool] = {}
        self._around, self._regular = self._looked_at()
        self.ending = self._ending()
        self.stop = self.ending.strip()
        self.start, self.before_answer = self._around.start, self._around.end
        self.joint = template.separator if settings.style == "single" else self._around.joint

    # -- the parts of a prompt ------------------------------------------------------------------

    def demonstration(self, example: HasText) -> str:
        """See ``PromptForm``: a user's turn and the assistant's, or a part of the user's."""
        if self.settings.style == "single":
            return self._piece(self.template, example) + self.joint
        asked = query_text(self.template, example)
        return f"{asked}{self._around.answer}{example.answer}{self.joint}"

    def query(self, example: HasText) -> str:
        """See ``PromptForm``."""
        return query_text(self.template, example) + self._around.end

    def answer(self, answer: str) -> str:
        """See ``PromptForm``: the end of the assistant's turn ends it."""
        return f"{self._lead}{answer}{self.ending}"

    @property
    def _lead(self) -> str:
        """What the template writes between the generation prompt and an answer."""
        around = self._around
        return around.answer[len(around.end) :] if around.answer.startswith(around.end) else ""

    def facts(self) -> dict[str, Any]:
        """What decides prompts beside examples: the settings, and what the template writes around
        contents, in which today's date may be.
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

    # -- conversations --------------------------------------------------------------------------

    def messages(self, shown: Sequence[HasText], query: HasText) -> list[Message]:
        """The conversation of one prompt."""
        last = query_text(self.template, query)
        if self.settings.style == "single":
            pieces = [self._piece(self.template, e) + self.template.separator for e in shown]
            return self._conversation(["".join([*pieces, last])])
        turns = [(query_text(self.template, e), e.answer) for e in shown]
        return self._conversation([*chain.from_iterable(turns), last])

    def whole(self, shown: Sequence[HasText], query: HasText) -> str:
        """See ``PromptForm``: rendered by the template as it is."""
        return self._chat.render(self.messages(shown, query))

    def is_pieced(self, shown: Sequence[HasText], queries: Sequence[HasText]) -> bool:
        """See ``PromptForm``: where the template treats all turns and these contents alike.

        Each example is tried as a conversation of its own, and all of them as one. Raises
        ``UserError`` for a text that the tokenizer would read as a special token.
        """
        if not self._regular:
            return False
        if not all(self._holds(example) for example in (*shown, *queries)):
            return False
        pieces = [self.start, *map(self.demonstration, shown)]
        return all("".join([*pieces, self.query(q)]) == self.whole(shown, q) for q in queries[:1])

    def _holds(self, example: HasText) -> bool:
        """Whether the template leaves an example's text as it is."""
        asked = query_text(self.template, example)
        name = (asked, example.answer)
        if name not in self._pieced:
            for token in self._special:
                if token in asked or token in example.answer:
                    raise UserError(
                        f"--chat: a row has the text {token!r}, which this model reads as a "
                        f"special token ({asked[:60]!r}); change that row, or leave --chat out"
                    )
            around, contents = self._around, [asked]
            parts = [around.start, asked, around.end]
            if self.settings.style == "turns":
                contents += [example.answer, _MARKS[0]]
                parts[2:] = [around.answer, example.answer, around.joint, _MARKS[0], around.end]
            found = self._chat.render(self._conversation(contents))
            self._pieced[name] = found == "".join(parts)
        return self._pieced[name]

    # -- what the template writes around contents -----------------------------------------------

    def _conversation(self, contents: Sequence[str]) -> list[Message]:
        """User and assistant in turns, behind the system's words."""
        said = self._system
        first = [] if said is None else [{"role": "system", "content": said}]
        roles = ("user", "assistant")
        return [*first, *({"role": roles[i % 2], "content": c} for i, c in enumerate(contents))]

    @property
    def _system(self) -> str | None:
        """What the system's turn says: what was asked for, and what the task begins with."""
        said, start = self.settings.system, self.template.start
        if not said or not start:
            return start or said
        apart = said[-1].isspace() or start[0].isspace()
        return f"{said}{'' if apart else self.template.separator}{start}"

    def _looked_at(self) -> tuple[Around, bool]:
        """What the template writes around contents, and whether it is the same around all turns."""
        start, end = self._split(_MARKS[:1])
        _, answer, closing = self._split(_MARKS[:2], answer_follows=False)
        if self.settings.style == "single":
            return Around(start, answer, "", end, closing), True
        second, third = self._split(_MARKS[:3]), self._split(_MARKS[:5])
        joint = second[2]
        regular = second == [start, answer, joint, end] and third == [start, answer, joint, answer, joint, end]
        return Around(start, answer, joint, end, closing), regular

    def _split(self, marks: Sequence[str], *, answer_follows: bool = True) -> list[str]:
        """What stands around contents: one text more than there are contents.

        Raises ``UserError`` where a content is left out or comes twice.
        """
        text = self._chat.render(self._conversation(marks), answer_follows=answer_follows)
        found = re.split("|".join(marks), text)
        if re.findall("|".join(marks), text) != list(marks):
            raise UserError(
                f"--chat: the chat template of model {self._chat.whose} does not show every turn "
                "once; take --chat single"
            )
        return found

    def _ending(self) -> str:
        """What ends an answer: up to the first special token, or the first line break."""
        closing = self._around.closing
        places = [(closing.find(token), len(token)) for token in self._special if token in closing]
        if places:
            at, size = min(places)
            return closing[: at + size]
        if "\n" in closing:
            return closing[: closing.index("\n") + 1]
        raise UserError(
            f"--chat: the chat template of model {self._chat.whose} does not end an answer: no "
            "special token and no line break stand behind it"
        )


def chat_form(
    template: AnyTemplate, settings: ChatSettings, model: Model, tokenizer: Tokenizer, piece: Piece = demonstration_text
) -> ChatForm:
    """The form of a model's own chat template. Raises ``UserError``."""
    chat = ChatTemplate.of_folder(Path(model.source), model.name, dict(settings.arguments))
    added = tokenizer.added_tokens_decoder.values()
    special = [token.content for token in added if token.special]
    return ChatForm(template, settings, chat, special, piece)


def around_turns(style: str, around: Sequence[str], template: AnyTemplate, piece: Piece) -> tuple[Piece, str, str]:
    """How demonstrations are written, what stands between them, and what stands behind the query,
    as far as a cell's facts tell it (:meth:`ChatForm.facts`).
    """
    _, answer, joint, end, _ = around
    if style == "single":
        return piece, template.separator, end
    return lambda task, one: f"{query_text(task, one)}{answer}{one.answer}", joint, end


def read_settings(style: str | None, system: str | None, arguments: Sequence[str]) -> ChatSettings | None:
    """Read ``--chat``, ``--system`` and each ``--chat-arg``; None where no chat is asked for.

    Raises ``UserError``.
    """
    if style is None:
        if system is not None or arguments:
            given = "--system" if system is not None else "--chat-arg"
            raise UserError(f"{given}: is for prompts of a chat; give --chat turns or --chat single")
        return None
    if style not in ("turns", "single"):
        raise UserError(f"--chat {plain(style)}: expected turns or single")
    pairs = dict(_argument(text) for text in arguments)
    return ChatSettings(style=style, system=_said(system), arguments=tuple(pairs.items()))


def _said(system: str | None) -> str | None:
    """The text itself, or that of ``@FILE`` without the line break at its end."""
    if system is None or not system.startswith("@"):
        return system
    path = Path(system[1:])
    try:
        return decode(read_file(path), plain(path)).removesuffix("\n")
    except UserError as error:
        raise UserError(f"--system @{error}") from None


def _argument(text: str) -> tuple[str, Any]:
    """``enable_thinking=false`` as a name and a value: JSON where it is some, else text."""
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise UserError(f"--chat-arg {plain(text)}: expected NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
