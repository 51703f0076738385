"""What a metric is: scores of single answers, or one number of many answers at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np

Answers = Literal["labels", "text", "any"]


class Measure(NamedTuple):
    """A score of single answers, a share of 1, whose mean is the score of a point."""

    name: str
    """What tables of comparisons call it in their column ``metric``."""
    column: str
    """The column of predictions that holds it."""
    title: str


class Metric:
    """Base of all metrics; :data:`icl_bench.registry.METRICS` knows them by name.

    A metric has measures, which are stored beside each prediction, or numbers of many predictions
    at once, which the analysis makes of stored answers, or both.
    """

    answers: ClassVar[Answers] = "any"
    """Which tasks may name it: those of labels, those of free text, or both."""
    needs_common_labels: ClassVar[bool] = False
    """Whether it is for labels that all rows share, not for a row's own choices written out."""
    measures: ClassVar[tuple[Measure, ...]] = ()
    """Its scores of single answers, the first the one that points are compared by."""
    of_many: ClassVar[Mapping[str, str]] = {}
    """Its numbers of many answers at once: column of the curves -> title."""
    compares_empty: ClassVar[bool] = False
    """Whether it scores answers where the right one is empty: to a question without an answer."""

    def __init_subclass__(cls) -> None:
        """Raise ``TypeError`` if ``measures`` or ``of_many`` are of the wrong kind."""
        if not all(isinstance(measure, Measure) for measure in cls.measures):
            raise TypeError(f"{cls.__name__}.measures: expected a tuple of Measure")
        if not isinstance(cls.of_many, Mapping):
            raise TypeError(f"{cls.__name__}.of_many: expected a mapping of columns to titles")

    def facts(self) -> Mapping[str, Any]:
        """What decides its values beside the answers (an encoder): goes into a cell's identity.

        Raises ``UserError`` where it cannot be had.
        """
        return {}

    def score(self, gold: Sequence[str], said: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Scores of answers, ``(rows,)`` each, by the columns of ``measures``.

        Asked once a cell, after its last answer. What is stored without its help has none.
        """
        del gold, said
        return {}

    def score_golds(self, golds: Sequence[Sequence[str]], said: Sequence[str]) -> Mapping[str, np.ndarray]:
        """The same where rows have one or more right answers: the best score over a row's.

        A metric that has a rule of its own for several overrides it.
        """
        import numpy as np

        pairs = [(gold, text) for of, text in zip(golds, said, strict=True) for gold in of]
        found = self.score([gold for gold, _ in pairs], [text for _, text in pairs])
        if len(pairs) == len(said):
            return found
        starts = np.cumsum([0, *(len(of) for of in golds[:-1])])
        return {name: np.maximum.reduceat(values, starts) for name, values in found.items()}

    def score_many(self, cell: np.ndarray, gold: Sequence[str], said: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Numbers of many answers, ``(cells,)`` each, by the columns of ``of_many``.

        ``cell`` numbers the set that each answer belongs to, from 0: ``(rows,)``.
        """
        del cell, gold, said
        return {}

    def score_many_golds(
        self, cell: np.ndarray, golds: Sequence[Sequence[str]], said: Sequence[str]
    ) -> Mapping[str, np.ndarray]:
        """The same where rows have one or more right answers; of the first unless overridden."""
        return self.score_many(cell, [of[0] for of in golds], said)

    def unfit(self, gold: str) -> str:
        """Why no answer can be compared with this right one, as "is no number"; empty where any
        can.
        """
        del gold
        return ""
