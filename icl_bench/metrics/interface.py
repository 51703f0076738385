"""The interface of metrics: scores of single answers, or one number for many answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np

Answers = Literal["labels", "text", "any"]


class Measure(NamedTuple):
    """A score of single answers, as a share of 1. Its mean is the score of a point."""

    name: str
    """Its name in the column ``metric`` of tables."""
    column: str
    """Its column in the predictions."""
    title: str


class Metric:
    """Base of all metrics. :data:`icl_bench.registry.METRICS` lists them by name.

    A metric has measures, which are stored with each prediction, or numbers of many predictions,
    which the analysis computes from stored answers, or both.
    """

    answers: ClassVar[Answers] = "any"
    """The tasks that it applies to: tasks with labels, with free text, or both."""
    needs_common_labels: ClassVar[bool] = False
    """Whether all rows must have the same labels. Rows' own choices are not enough."""
    measures: ClassVar[tuple[Measure, ...]] = ()
    """Its scores of single answers. Points are compared by the first."""
    of_many: ClassVar[Mapping[str, str]] = {}
    """Its numbers of many answers: column of the curves -> title."""
    is_right: ClassVar[bool] = False
    """Whether its first measure is either 1 (right) or 0 (wrong)."""
    compares_empty: ClassVar[bool] = False
    """Whether the right answer may be empty, for a question without an answer."""
    windows: bool = False
    """Whether a text encoder reads texts that are longer than its window in several windows instead of truncating
    them.
    """

    def __init_subclass__(cls) -> None:
        """Raise ``TypeError`` if ``measures`` or ``of_many`` are of the wrong kind."""
        if not all(isinstance(measure, Measure) for measure in cls.measures):
            raise TypeError(f"{cls.__name__}.measures: expected a tuple of Measure")
        if not isinstance(cls.of_many, Mapping):
            raise TypeError(f"{cls.__name__}.of_many: expected a mapping of columns to titles")

    def facts(self) -> Mapping[str, Any]:
        """Facts that its values depend on besides the answers (an encoder). Part of a cell's identity.

        Raises ``UserError`` if it is not available.
        """
        return {}

    def fit(self, answers: Sequence[str]) -> None:
        """Adapt to the data: ``answers`` are the right answers of all rows, of train and test.

        Called before :meth:`facts`. A metric that is not fitted adapts to the right answers that it scores. Raises
        ``UserError`` if it cannot score answers in this script.
        """
        del answers

    def notes(self) -> Sequence[str]:
        """Notes for the user before a run, from the right answers that it was fitted to."""
        return ()

    def notes_on_answers(self) -> Sequence[str]:
        """Notes for the user after a run, from the answers that it scored."""
        return ()

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Scores of answers by the columns of ``measures``, ``(rows,)`` each.

        Called once for each cell, after its last answer.
        """
        del gold, predictions
        return {}

    def score_golds(self, golds: Sequence[Sequence[str]], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Scores for rows with one or more right answers: the best over a row's right answers.

        A metric with another rule overrides it.
        """
        import numpy as np

        pairs = [(gold, text) for row_golds, text in zip(golds, predictions, strict=True) for gold in row_golds]
        scores = self.score([gold for gold, _ in pairs], [text for _, text in pairs])
        if len(pairs) == len(predictions):
            return scores
        starts = np.cumsum([0, *(len(row_golds) for row_golds in golds[:-1])])
        return {name: np.maximum.reduceat(values, starts) for name, values in scores.items()}

    def score_many(self, cell: np.ndarray, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Numbers of many answers by the columns of ``of_many``, ``(cells,)`` each.

        ``cell`` is the number, from 0, of the cell that each answer belongs to: ``(rows,)``.
        """
        del cell, gold, predictions
        return {}

    def score_many_golds(
        self, cell: np.ndarray, golds: Sequence[Sequence[str]], predictions: Sequence[str]
    ) -> Mapping[str, np.ndarray]:
        """Numbers for rows with one or more right answers. By default, the first one counts."""
        return self.score_many(cell, [row_golds[0] for row_golds in golds], predictions)

    def form(self, answer: str) -> str:
        """The form in which answers are compared: answers with equal forms are equal."""
        return answer

    def unfit(self, gold: str) -> str:
        """Why this right answer cannot be scored, such as "is not a number". Empty if it can."""
        del gold
        return ""


class TextMetric(Metric):
    """Base of metrics with one measure, which score each answer of free text separately."""

    answers = "text"

    def score_one(self, gold: str, prediction: str) -> float:
        """The score of one answer."""
        raise NotImplementedError

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        import numpy as np

        (measure,) = self.measures
        pairs = zip(gold, predictions, strict=True)
        return {measure.column: np.array([self.score_one(*pair) for pair in pairs], dtype=float)}
