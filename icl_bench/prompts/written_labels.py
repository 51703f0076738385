"""Labels in free text: finds the label of an unconstrained answer, if it is unambiguous.

An unconstrained model formats a label in its own way: ``Label.``, ``**label**``, ``intent: label``, or after its
thoughts. It is read only if it is unambiguous: the rest of the answer must be markup, and no other label may match.
Everything else is not a label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
SIGNED = re.compile(r"[-.]\s*\d")
"""The beginning of a number, with a sign or a point that is not markup."""
AROUND_NUMBERS = "".join(sign for sign in MARKUP if sign not in "-.")


def without_thoughts(text: str) -> str:
    """The answer after a thinking block, or harmony's final channel, without end markers.

    Empty if the text ends before its thoughts do.
    """
    if ANY_CHANNEL.search(text):
        final = HARMONY.search(text)
        text = final[1] if final else ""
    text = THINKING.sub("", text, count=1)
    return "" if OPEN_THINKING.match(text) else END_MARKERS.sub("", text)


def label_in(text: str, labels: Sequence[str]) -> str | None:
    """The label of an answer, in any formatting; None if it is ambiguous."""
    return LabelReader(labels).label_in(text)


class LabelReader:
    """Reads labels in answers. Spellings of labels are computed once for many answers.

    An answer that is exactly a label is that label. Otherwise the first line with text, or the whole, must be one label
    up to markup, case, blanks and underscores, a name before it, or JSON around it.
    """

    def __init__(self, labels: Iterable[str]) -> None:
        self.labels = frozenset(labels)

    @cached_property
    def _spelled(self) -> dict[str, str | None]:
        return _spellings(self.labels)

    def label_in(self, text: str) -> str | None:
        """The label of an answer; None if it is ambiguous."""
        if (stripped := text.strip()) in self.labels:
            return stripped
        for part in _parts(without_thoughts(text)):
            if part in self.labels:
                return part
            if not _is_signed(part) and (label := self._spelled.get(_plain(part))) is not None:
                return label
        return None


def _parts(answer: str) -> Iterator[str]:
    """Candidates for the label's text, the most probable reading first."""
    lines = [line for line in answer.splitlines() if line.strip(MARKUP)]
    for whole in dict.fromkeys([answer.strip(), *(lines[:1])]):
        yield from _of_json(whole)
        for part in (whole, NAMED.sub("", whole, count=1)):
            yield part.strip()
            yield part.lstrip(AROUND_NUMBERS).rstrip(MARKUP) if _is_signed(part) else part.strip(MARKUP)


def _is_signed(part: str) -> bool:
    """Whether a text begins like ``-1`` or ``.5``, which differ from 1 and 5."""
    return SIGNED.match(part.lstrip(AROUND_NUMBERS)) is not None


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
    return re.sub(r"[\s_\u00a0-]+", " ", text.strip(MARKUP)).casefold()


def _spellings(labels: Iterable[str]) -> dict[str, str | None]:
    """Each plain spelling with its label; None if several labels have it."""
    found: dict[str, str | None] = {}
    for label in labels:
        name = _plain(label)
        found[name] = None if name in found else label
    found.pop("", None)
    return found
