"""Labels in free text: finds the label of an unconstrained answer, if it is unambiguous.

An unconstrained model formats a label in its own way: ``Label.``, ``**label**``, ``intent: label``, or after its
thoughts. It is read only if it is unambiguous: the rest of the answer must be markup, and no other label may match.
Everything else is not a label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

THINKING = re.compile(
    r"\A\s*(?:<(think|thinking|reasoning|thought)>.*?</\1>"  # DeepSeek R1, Qwen 3, ...
    r"|\[THINK\].*?\[/THINK\]"  # Magistral
    r"|◁think▷.*?◁/think▷"  # Kimi
    r"|.*?</think>)",  # the template has written the opening
    re.DOTALL,
)
OPEN_THINKING = re.compile(r"\A\s*(?:<(?:think|thinking|reasoning|thought)>|\[THINK\]|◁think▷)")
HARMONY = re.compile(r"<\|channel\|>final(?:\s[^<]*)?<\|message\|>(.*?)(?:<\|(?:end|return|call)\|>|\Z)", re.DOTALL)
"""The final channel of OpenAI's harmony format (https://cookbook.openai.com/articles/openai-harmony)."""
ANY_CHANNEL = re.compile(r"<\|channel\|>")
END_MARKERS = re.compile(
    r"(?:</s>|<\|(?:im_end|eot_id|end_of_text|endoftext|end|return|eom_id)\|>|<end_of_turn>|<\uff5cend\u2581of\u2581sentence\uff5c>)"
)
NAMED = re.compile(r"\A\W{0,3}(?:[^\W\d_]+(?:[ _-][^\W\d_]+){0,2})\W{0,3}?\s*[:=]\s*(?=\S)")
"""A name of at most three words before the label: ``Intent:``, ``**Final answer:**``."""
MARKUP = " \t\r\n\u00a0\u200b\ufeff\"'`*_~“”\u2018\u2019«»„()[]{}<>#-•>.,;:!?。、"
QUIET_BEFORE = " \t\u00a0\u200b\ufeff\"'`_“”\u2018\u2019«»„([{•"
QUIET_AFTER = " \t\u00a0\u200b\ufeff\"'`_“”\u2018\u2019«»„)]}.,;:!?。、"
"""Markup that answers may leave out where labels begin or end with it: ``(A)``, ``Yes.``, but not ``-1``."""
PAIRS = {first: first for first in "*_~`\"'"} | dict(zip("“\u2018«„([{", "”\u2019»“)]}", strict=True))
"""Markup around a text, by its beginning."""
ENDS = " .,;:!?。、"
"""Punctuation at the end of a sentence, and blanks."""
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)")


def without_thoughts(text: str) -> str:
    """The answer after a thinking block, or harmony's final channel, without end markers.

    Empty if the text ends before its thoughts do.
    """
    if ANY_CHANNEL.search(text):
        final = HARMONY.search(text)
        text = final[1] if final else ""
    text = THINKING.sub("", text, count=1)
    return "" if OPEN_THINKING.match(text) else END_MARKERS.sub("", text)


def label_in(text: str, labels: Sequence[str], *, cut: bool = False) -> str | None:
    """The label of an answer, in any formatting; None if it is ambiguous.

    ``cut``: whether the answer ended at the token limit. Then its end may be the beginning of a longer label.
    """
    reader = LabelReader(labels)
    label = reader.label_in(text)
    return None if cut and label is not None and reader.may_go_on(text, label) else label


class LabelReader:
    """Reads labels in answers. Spellings of labels are computed once for many answers.

    An answer that is exactly a label is that label. Otherwise the first line with text, or the whole, must be one label
    up to markup, case, blanks and underscores, a name before it, or JSON around it. Of labels that differ in the markup
    at their ends (``C`` and ``C#``), it is the longest that the answer has. A sign or a point before a digit is no
    markup. Numbers are equal by value.
    """

    def __init__(self, labels: Iterable[str]) -> None:
        self.labels = frozenset(labels)

    @cached_property
    def _spelled(self) -> dict[str, list[tuple[_Edges, str]]]:
        """Each plain spelling without markup, with its labels."""
        found: dict[str, list[tuple[_Edges, str]]] = {}
        for label in self.labels:
            edges = _Edges.of(label)
            found.setdefault(_plain(edges.core), []).append((edges, label))
        found.pop("", None)
        return found

    @cached_property
    def _numbers(self) -> dict[Decimal, str | None]:
        """Each number with its label; None if several labels have it."""
        found: dict[Decimal, str | None] = {}
        for label in self.labels:
            if (number := number_in(label)) is not None:
                found[number] = None if number in found else label
        return found

    def label_in(self, text: str) -> str | None:
        """The label of an answer; None if it is ambiguous."""
        if (stripped := text.strip()) in self.labels:
            return stripped
        for part in _parts(without_thoughts(text)):
            if (label := self._read(part)) is not None:
                return label
        return None

    def may_go_on(self, text: str, label: str) -> bool:
        """Whether more text behind an answer that is read as a label could make it a longer one: ``1`` of ``10``."""
        longer = (one for one in self.labels if one != label and one.startswith(label))
        return any(self.label_in(f"{text}{one[len(label) :]}") == one for one in longer)

    def _read(self, part: str) -> str | None:
        """The label that a text is, up to markup."""
        while (label := self._exact(part)) is None and len(part) > 2 and PAIRS.get(part[0]) == part[-1]:
            part = part[1:-1].strip()
        written = _Edges.of(part)
        if label is not None or not written.core:
            return label
        spelled = self._spelled.get(_plain(written.core), ())
        if written.is_signed:
            spelled = [(edges, label) for edges, label in spelled if edges.before]
        shown = [(edges, label) for edges, label in spelled if edges.is_shown_in(written)]
        if shown or spelled:
            label = _only_best(shown or [(edges, label) for edges, label in spelled if edges.is_quiet], written.core)
            if label is not None or shown:
                return label
        sign = written.before[-1] if written.is_signed else ""
        number = None if sign.isspace() else number_in(f"{sign}{written.core}")
        return None if number is None else self._numbers.get(number)

    def _exact(self, part: str) -> str | None:
        """The label that a text is, except for punctuation at its end."""
        ends = range(len(part), len(part.rstrip(ENDS)) - 1, -1)
        return next((part[:end] for end in ends if part[:end] in self.labels), None)


@dataclass(frozen=True)
class _Edges:
    """A text and the markup that it begins and ends with."""

    before: str
    core: str
    after: str

    @classmethod
    def of(cls, text: str) -> _Edges:
        begins = text.lstrip(MARKUP)
        core = begins.rstrip(MARKUP)
        return cls(text[: len(text) - len(begins)], core, begins[len(core) :])

    @property
    def is_signed(self) -> bool:
        """Whether a text begins like ``-1`` or ``.5``, which differ from 1 and 5."""
        return self.core[:1].isdigit() and self.before.rstrip()[-1:] in ("-", ".")

    @property
    def is_quiet(self) -> bool:
        """Whether an answer may leave out the markup of this label."""
        return not self.before.strip(QUIET_BEFORE) and not self.after.strip(QUIET_AFTER)

    def is_shown_in(self, written: _Edges) -> bool:
        """Whether an answer has the markup of this label."""
        return written.before.endswith(self.before) and written.after.startswith(self.after)


def needs_signs(label: str) -> bool:
    """Whether a label begins or ends with markup that decides it, or is a number."""
    return not _Edges.of(label).is_quiet or number_in(label) is not None


def _only_best(found: Sequence[tuple[_Edges, str]], core: str) -> str | None:
    """The label with the most markup, preferably in the same case; None if there are several."""
    ranked = [((len(edges.before) + len(edges.after), edges.core == core), label) for edges, label in found]
    best = max((rank for rank, _ in ranked), default=None)
    labels = [label for rank, label in ranked if rank == best]
    return labels[0] if len(labels) == 1 else None


def number_in(text: str) -> Decimal | None:
    """The number in a text, without an exponent; None if it is not a number.

    >>> number_in("1.0") == number_in(" 1")
    True
    """
    stripped = text.strip()
    return Decimal(stripped) if stripped.isascii() and NUMBER.fullmatch(stripped) else None


def _parts(answer: str) -> Iterator[str]:
    """Candidates for the label's text, the most probable reading first."""
    lines = [line for line in answer.splitlines() if line.strip(MARKUP)]
    for whole in dict.fromkeys([answer.strip(), *(lines[:1])]):
        yield from _of_json(whole)
        yield whole.strip()
        yield NAMED.sub("", whole, count=1).strip()


def _of_json(text: str) -> Iterator[str]:
    """The only text of a JSON value: ``{"label": "x"}``, ``["x"]``."""
    if text[:1] not in ("{", "["):
        return
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    items = list(value.values() if isinstance(value, Mapping) else value)
    if len(items) == 1 and isinstance(items[0], str):
        yield items[0].strip()


def _plain(text: str) -> str:
    """A spelling without differences of case, blanks, underscores and hyphens."""
    return re.sub(r"[\s_\u00a0-]+", " ", text).casefold()
