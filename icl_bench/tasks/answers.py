"""Free answers: a row's right answers, and the part of a model's text that is compared with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from icl_bench.errors import UserError
from icl_bench.metrics.exact_match import PUNCTUATION, normalised, normalised_unicode
from icl_bench.metrics.scores import metrics_of
from icl_bench.tasks.spec import AnswerRule, Ignored, TaskSpec
from icl_bench.tasks.splits import StoredRow, encodable, number_as_text
from icl_bench.tasks.time_limits import TookTooLongError, time_limit
from icl_bench.wording import one_line, plain, short

SECONDS = 1.0
"""The time limit of one extraction."""

_EMPTY = (
    "an empty list; for questions without an answer, set answer.unanswerable in the task file to the "
    "text that demonstrations show"
)


class SlowPatternError(UserError):
    """A regular expression takes too long on a text."""

    def __init__(self, name: str, pattern: str, text: str) -> None:
        """``name`` is the pattern's field in the task file."""
        super().__init__(
            one_line(
                f"{name} {pattern!r} takes more than {SECONDS:g} s on the text {short(text)}: it backtracks too much, "
                "as nested repeats do, like (a+)+"
            )
        )
        self.pattern = f"{name} {pattern!r}"
        """The pattern with its field, as in the message."""


class RightAnswer(NamedTuple):
    """The right answers of a row."""

    written: str
    """The text that a demonstration shows."""
    golds: tuple[str, ...] | None
    """The texts that answers are compared with; None for only ``written``, unchanged."""


def extracted(rule: AnswerRule, text: str, *, is_right: bool = False) -> str | None:
    """The part of a text that is compared, stripped; None if nothing matches.

    The empty text means "there is no answer", if the task has a word for that. ``is_right``: whether the text is a
    right answer, not a model's. After a thought, the text begins after the end mark, but a pattern that contains the
    mark still matches it. Raises :class:`SlowPatternError`.
    """
    answer = _extract(rule, text.strip(), is_right)
    if answer is None and rule.thought is not None and text.strip():
        answer = _extract(rule, f"{rule.thought.ends}{text.strip()}".strip(), is_right)
        if answer is not None and answer == _extract(rule, rule.thought.ends.strip(), is_right):
            answer = None  # it is found only in the mark
    if answer and rule.ignore is not None:
        return _without(rule.ignore, answer) or None
    return answer


def _without(ignored: Ignored, text: str) -> str:
    """A text without ignored parts, as in the ``exact_match`` of lm-evaluation-harness."""
    for pattern in ignored.patterns:
        with _limited("answer.ignore.patterns", pattern, text):
            text = re.sub(pattern, "", text)
    if ignored.case:
        text = text.lower()
    if ignored.punctuation:
        text = text.translate(PUNCTUATION)
    return text


@contextmanager
def _limited(name: str, pattern: str, text: str) -> Iterator[None]:
    """Raise :class:`SlowPatternError` if a pattern takes too long on a text."""
    try:
        with time_limit(SECONDS):
            yield
    except TookTooLongError:
        raise SlowPatternError(name, pattern, text) from None


def _extract(rule: AnswerRule, text: str, is_right: bool) -> str | None:
    """The extracted part of a text, before ``ignore`` is applied."""
    extracted_text = None
    if rule.unanswerable is not None and _is_same(text, rule.unanswerable):
        return ""
    if rule.extract is None or (is_right and rule.of == "answers"):
        extracted_text = text
    else:
        with _limited("answer.extract", rule.extract, text):
            for match in re.finditer(rule.extract, text):
                groups = match.groups() if rule.group == "any" else match.groups()[:1]
                if matched := next((group for group in groups if group and group.strip()), None):
                    extracted_text = matched.strip()
                    if rule.take == "first":
                        break
    if extracted_text and rule.unanswerable is not None:
        return "" if _is_same(extracted_text, rule.unanswerable) else extracted_text
    return extracted_text or None


def _is_same(text: str, unanswerable: str) -> bool:
    """Whether a text is the word for "there is no answer", after SQuAD's normalisation; in other scripts, Unicode's."""
    normalise = normalised if unanswerable.isascii() else normalised_unicode
    return normalise(text) == normalise(unanswerable)


@dataclass(frozen=True)
class FreeAnswers:
    """Reads the right answers of a task of free text from its rows."""

    spec: TaskSpec

    def of(self, row: StoredRow, column: str) -> RightAnswer:
        """The right answers in a column: a text, a number or a list of them. Demonstrations show the
        first.

        Raises ``UserError`` for anything else, for a missing answer, and for one that a metric
        cannot score.
        """
        value, rule = row.cell(column), self.spec.answer
        if value in ("", []):
            if rule is not None and rule.unanswerable is not None:
                return RightAnswer(rule.unanswerable, ("",))
            raise UserError(f"{row.where}: {plain(column)} is {_EMPTY if value == [] else 'empty'}")
        values = value if isinstance(value, list) else [value]
        texts = [self._text(row, column, item, value) for item in values]
        if rule is not None:
            texts = [rule.without_thought(text) for text in texts]
        golds = tuple(dict.fromkeys(self._gold(row, column, text) for text in texts))
        for gold in golds:
            for name, metric in self._metrics:
                if why := metric.unfit(gold):
                    raise UserError(f"{row.where}: {plain(column)}: {short(gold)} {why}, for {name}")
        return RightAnswer(texts[0], None if golds == (texts[0],) else golds)

    def _text(self, row: StoredRow, column: str, value: Any, cell_value: Any) -> str:
        """Check one right answer. ``cell_value`` is the whole cell, which may be a list of several."""
        value = number_as_text(value)
        if value is None and cell_value is None:
            raise UserError(f"{row.where}: {plain(column)} is empty")
        if not isinstance(value, str):
            kind = "a list of texts" if isinstance(cell_value, list) else "text or a list of texts"
            raise UserError(f"{row.where}: {plain(column)} must be {kind}, not {short(cell_value)}")
        if not value or value.isspace():
            detail = f": it holds {short(value)} in {short(cell_value)}" if isinstance(cell_value, list) else ""
            raise UserError(f"{row.where}: {plain(column)} is empty{detail}")
        return encodable(value, row, column)

    def _gold(self, row: StoredRow, column: str, text: str) -> str:
        """The part of a right answer that is compared."""
        if self.spec.answer is None:
            return text.strip()  # like a model's answer
        try:
            gold = extracted(self.spec.answer, text, is_right=True)
        except SlowPatternError as error:
            raise UserError(f"{row.where}: {plain(column)}: {error}") from None
        if gold is None:
            rule = "extract finds" if self.spec.answer.ignore is None else "ignore leaves"
            raise UserError(f"{row.where}: answer.{rule} nothing in {plain(column)}, {short(text)}")
        return gold

    @cached_property
    def _metrics(self) -> list[tuple[str, Any]]:
        return list(zip(self.spec.metrics, metrics_of(self.spec.metrics), strict=True))
