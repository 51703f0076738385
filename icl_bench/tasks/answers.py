"""What of a free answer is compared: a row's right answers, and what is read of a model's text."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from icl_bench.errors import UserError
from icl_bench.metrics.exact_match import normalised
from icl_bench.metrics.scores import metrics_of
from icl_bench.tasks.spec import AnswerRule, Ignored, TaskSpec
from icl_bench.tasks.splits import Row, encodable, number_as_text
from icl_bench.wording import plain, short

_EMPTY = (
    "an empty list; what demonstrations write where a question has no answer is said by "
    "answer.unanswerable in the task file"
)


class RightAnswer(NamedTuple):
    """The right answers of a row."""

    shown: str
    """What a demonstration writes."""
    golds: tuple[str, ...] | None
    """What answers are compared with; None where that is ``shown`` alone, as it stands."""


def extracted(rule: AnswerRule, text: str, *, is_right: bool = False) -> str | None:
    """What of a text is compared, without blanks around it; None where there is nothing.

    The empty text stands for "there is no answer", where the task has a word for that. With
    ``is_right`` it is a right answer's text, else a model's.
    """
    found = _found(rule, text.strip(), is_right)
    if found and rule.ignore is not None:
        return _without(rule.ignore, found) or None
    return found


def _without(ignored: Ignored, text: str) -> str:
    """A text without what makes no difference (lm-evaluation-harness' ``exact_match``)."""
    for pattern in ignored.patterns:
        text = re.sub(pattern, "", text)
    if ignored.case:
        text = text.lower()
    if ignored.punctuation:
        text = text.translate(_PUNCTUATION)
    return text


_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _found(rule: AnswerRule, text: str, is_right: bool) -> str | None:
    """What of a text is compared, whatever of it is ignored."""
    found = None
    if rule.unanswerable is not None and normalised(text) == normalised(rule.unanswerable):
        return ""
    if rule.extract is None or (is_right and rule.of == "answers"):
        found = text
    else:
        for match in re.finditer(rule.extract, text):
            groups = match.groups() if rule.group == "any" else match.groups()[:1]
            if held := next((part for part in groups if part and part.strip()), None):
                found = held.strip()
                if rule.take == "first":
                    break
    if found and rule.unanswerable is not None:
        return "" if normalised(found) == normalised(rule.unanswerable) else found
    return found or None


@dataclass(frozen=True)
class FreeAnswers:
    """Reads the right answers of a task of free text from its rows."""

    spec: TaskSpec

    def of(self, row: Row, column: str) -> RightAnswer:
        """The right answers in a column: a text, a number or a list of them, the first of which
        demonstrations show.

        Raises ``UserError`` for anything else, for no answer where there must be one, and for one
        that no answer can be compared with.
        """
        value, rule = row.cell(column), self.spec.answer
        if value in ("", []):
            if rule is not None and rule.unanswerable is not None:
                return RightAnswer(rule.unanswerable, ("",))
            raise UserError(f"{row.where}: {plain(column)} is {_EMPTY if value == [] else 'empty'}")
        values = value if isinstance(value, list) else [value]
        texts = [self._text(row, column, one, value) for one in values]
        golds = tuple(dict.fromkeys(self._gold(row, column, text) for text in texts))
        for gold in golds:
            self._check(row, column, gold)
        return RightAnswer(texts[0], None if golds == (texts[0],) else golds)

    def _text(self, row: Row, column: str, value: Any, whole: Any) -> str:
        """One right answer of the ``whole`` value, which may be a list of several."""
        value = number_as_text(value)
        if value is None and whole is None:
            raise UserError(f"{row.where}: {plain(column)} is empty")
        if not isinstance(value, str):
            kind = "a list of texts" if isinstance(whole, list) else "text or a list of texts"
            raise UserError(f"{row.where}: {plain(column)} must be {kind}, not {short(whole)}")
        if not value or value.isspace():
            held = f": it holds {short(value)} in {short(whole)}" if isinstance(whole, list) else ""
            raise UserError(f"{row.where}: {plain(column)} is empty{held}")
        return encodable(value, row, column)

    def _gold(self, row: Row, column: str, text: str) -> str:
        """What of a right answer is compared."""
        if self.spec.answer is None:
            return text.strip()  # as what a model says is compared
        gold = extracted(self.spec.answer, text, is_right=True)
        if gold is None:
            rule = "extract finds" if self.spec.answer.ignore is None else "ignore leaves"
            raise UserError(f"{row.where}: answer.{rule} nothing in {plain(column)}, {short(text)}")
        return gold

    def _check(self, row: Row, column: str, gold: str) -> None:
        for name, metric in self._metrics:
            if why := metric.unfit(gold):
                raise UserError(f"{row.where}: {plain(column)}: {short(gold)} {why}, for {name}")

    @cached_property
    def _metrics(self) -> list[tuple[str, Any]]:
        return list(zip(self.spec.metrics, metrics_of(self.spec.metrics), strict=True))
