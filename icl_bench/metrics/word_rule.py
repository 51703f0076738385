"""Metrics of words: words by a reference implementation, or by Unicode if answers need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

from icl_bench.metrics.interface import Metric
from icl_bench.unicode_words import BEYOND_ASCII, has_many

if TYPE_CHECKING:
    from typing import Self

    import regex


class WordRule(Metric):
    """Base of metrics whose reference implementation finds only words of English, or of spaced scripts.

    Words follow the reference, unless many words of the right answers have letters that it does not read: then they
    follow Unicode, which is a fact of a cell.
    """

    answers = "text"
    unicode_if: ClassVar[regex.Pattern[str]] = BEYOND_ASCII
    """Detects words that the reference does not read."""
    _unicode: bool | None = None

    def fit(self, answers: Sequence[str]) -> None:
        """See ``Metric``."""
        self._unicode = has_many(self.unicode_if, answers)

    def facts(self) -> Mapping[str, Any]:
        """See ``Metric``."""
        return {"score_words": "unicode"} if self._unicode else {}

    def takes_unicode(self, golds: Sequence[str]) -> bool:
        """Whether words follow Unicode. These right answers decide if the metric is not fitted."""
        return has_many(self.unicode_if, golds) if self._unicode is None else self._unicode

    def fitted(self, golds: Sequence[str]) -> Self:
        """The metric, fitted to these right answers if it is not fitted yet."""
        if self._unicode is not None:
            return self
        metric = copy(self)
        metric._unicode = self.takes_unicode(golds)
        return metric
