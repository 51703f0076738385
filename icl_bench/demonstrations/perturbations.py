"""Perturbations: what prompts show of the demonstrations instead of all of them as they are.

Beside the unperturbed curve these tell whether a model learns the task from its demonstrations or
from something less: from the answers' mere presence (permuted and wrong labels: Min et al. 2022,
section 4), from the inputs or the labels alone (section 5), or from the few that are most like the
query.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from icl_bench.demonstrations.interface import sentence_encoder_fact
from icl_bench.errors import UserError
from icl_bench.prompts.rendering import Piece, answer_line, demonstration_text, input_text
from icl_bench.registry import PERTURBATIONS
from icl_bench.seeds import generator
from icl_bench.wording import nearest, plain

if TYPE_CHECKING:
    from icl_bench.demonstrations.pool import DemonstrationPool
    from icl_bench.tasks.examples import Example


@dataclass(frozen=True)
class Perturbation:
    """Base of all perturbations, written as in ``--perturbation``: ``parse(str(p)) == p``."""

    name: ClassVar[str]
    written: ClassVar[str]
    """How it is written, for messages."""
    shared: ClassVar[bool] = True
    """Whether demonstrations that all queries share are still shared."""
    embeds: ClassVar[bool] = False
    """Whether it depends on a sentence encoder."""
    changes_answers: ClassVar[bool] = False
    """Whether :meth:`answers` gives other answers than the data."""

    @staticmethod
    def parse(text: str) -> Perturbation:
        """Read one. Raises ``UserError`` for an unknown name or an amount out of its range."""
        shown = f"--perturbation {plain(text[:60])}"
        for name in sorted(PERTURBATIONS.names, key=len, reverse=True):
            rest = text.removeprefix(name)
            if text == name or (rest != text and rest[:1] in ("=", ":")):
                found: Perturbation = PERTURBATIONS[name].parse_amount(rest, shown)
                return found
        known = nearest(text, (found.written for found in PERTURBATIONS.values()))
        raise UserError(f"{shown}: not known; {known}")

    @classmethod
    def parse_amount(cls, text: str, shown: str) -> Perturbation:
        """Make one from what stands behind its name; ``shown`` is the option as it was given."""
        if text:
            raise UserError(f"{shown}: not known; did you mean {cls.name}?")
        return cls()

    def __str__(self) -> str:
        return self.name

    def check_allowed(self, *, shared: bool, labelled: bool) -> None:
        """Raise ``UserError`` where it does not apply.

        ``shared`` says whether the selector gives all queries the same demonstrations, ``labelled``
        whether the task's answers are labels.
        """

    @property
    def smallest_k(self) -> int:
        """The smallest k of which something is shown."""
        return 1

    def check_k(self, k: int) -> None:
        """Raise ``UserError`` for a k of which nothing would be shown."""

    @property
    def piece(self) -> Piece:
        """How a demonstration is written."""
        return demonstration_text

    @property
    def changes_piece(self) -> bool:
        """Whether a demonstration is written in another way than input and answer."""
        return self.piece is not demonstration_text

    def answers(
        self, train: Sequence[Example], labels: Sequence[str], seed: int, draw: int, drawn: np.ndarray
    ) -> tuple[Example, ...]:
        """The train rows as one draw's demonstrations show them, in the order given.

        ``labels`` are the task's; wrong ones are drawn from them. ``drawn`` are the train indices
        of the pool in the draw's order, ``(pool,)``. What a row shows does not depend on k: a
        larger k shows the same of what a smaller one shows, so that prompts stay nested, and a row
        that is the query's own shows what it shows as a shared one.
        """
        del labels, seed, draw, drawn
        return tuple(train)

    def of_queries(self, shown: np.ndarray, pool: DemonstrationPool) -> np.ndarray:
        """What each query's prompt shows of k shared demonstrations: ``(test, up to k)``.

        ``shown`` are their train indices in the prompt's order, ``(k,)``. Asked only where
        ``shared`` is false.
        """
        return np.tile(shown, (len(pool.data.test), 1))

    def facts(self, pool: DemonstrationPool) -> Mapping[str, Any]:
        """What decides it beside its name: goes into a cell's identity."""
        return sentence_encoder_fact(pool.similarity) if self.embeds else {}


@dataclass(frozen=True)
class NoPerturbation(Perturbation):
    """Demonstrations as the data has them."""

    name = "none"
    written = "none"


NONE = NoPerturbation()
"""No perturbation."""


@dataclass(frozen=True)
class PermutedLabels(Perturbation):
    """The answers of all train rows, permuted among them.

    Labels keep their frequencies in the train file, and so in a prompt on average, but not among
    the k that are shown: a permutation within each k could not be nested.
    """

    name = "labels:permuted"
    written = "labels:permuted"
    changes_answers = True

    def answers(
        self, train: Sequence[Example], labels: Sequence[str], seed: int, draw: int, drawn: np.ndarray
    ) -> tuple[Example, ...]:
        """See ``Perturbation``.

        Raises ``UserError`` where a row would show what is none of its own choices.
        """
        del labels, drawn
        order = generator(seed, "permuted labels", draw).permutation(len(train))
        pairs = zip(train, order, strict=True)
        shown = tuple(replace(row, answer=train[other].answer) for row, other in pairs)
        if any(row.choices and row.answer not in row.choices for row in shown):
            raise UserError(
                f"--perturbation {self}: rows have choices of their own, and would show what is "
                "none of them; labels:noise=1 shows each row's wrong choices"
            )
        return shown


@dataclass(frozen=True)
class NoisyLabels(Perturbation):
    """A share of the first k of the draw has a wrong label (Min et al. 2022, section 4.2).

    The share is exact to less than one row for every k; of k that are chosen otherwise, it is about
    that. A wrong label is any of the others (of its own choices, where a row has them), equally
    likely. Another share has other rows wrong; one that is wrong at both is wrong in the same way.
    """

    share: float
    """Of wrong labels, 0 to 1."""
    name = "labels:noise"
    written = "labels:noise=0.3"
    changes_answers = True

    @classmethod
    def parse_amount(cls, text: str, shown: str) -> Perturbation:
        """See ``Perturbation``."""
        share = _number(text, "=")
        if share is None or not 0 <= share <= 1:
            raise UserError(f"{shown}: noise is a share of wrong labels from 0 to 1, like labels:noise=0.3")
        return cls(abs(share))  # -0 is 0

    def __str__(self) -> str:
        return f"{self.name}={_shortest(self.share)}"

    def check_allowed(self, *, shared: bool, labelled: bool) -> None:
        """See ``Perturbation``."""
        del shared
        if not labelled:
            raise UserError(
                f"--perturbation {self}: this task's answers are free text, there is no wrong "
                "label to show; labels:permuted is for any task"
            )

    def answers(
        self, train: Sequence[Example], labels: Sequence[str], seed: int, draw: int, drawn: np.ndarray
    ) -> tuple[Example, ...]:
        """See ``Perturbation``. Raises ``UserError`` where there are not two labels."""
        if len(labels) < 2 and not all(row.choices for row in train):
            raise UserError(f"--perturbation {self}: needs two labels, has {len(labels)}")
        shown = list(train)
        start = generator(seed, "label noise", draw).random()
        for i in drawn[_systematic(self.share, len(drawn), start)]:
            among = train[i].choices or labels
            shown[i] = _wrong(train[i], among, generator(seed, "label noise", draw, train[i].id))
        return tuple(shown)


@dataclass(frozen=True)
class InputsOnly(Perturbation):
    """Inputs without their answers."""

    name = "inputs-only"
    written = "inputs-only"

    @property
    def piece(self) -> Piece:
        """See ``Perturbation``."""
        return input_text


@dataclass(frozen=True)
class LabelsOnly(Perturbation):
    """Answers without their inputs."""

    name = "labels-only"
    written = "labels-only"

    @property
    def piece(self) -> Piece:
        """See ``Perturbation``."""
        return answer_line


@dataclass(frozen=True)
class NearestRemoved(Perturbation):
    """Without the demonstrations most similar to each query, so that fewer than k are shown."""

    percent: float
    """That is left out, above 0 and below 100."""
    name = "nearest-removed"
    written = "nearest-removed:10"
    shared = False
    embeds = True
    sign: ClassVar[int] = 1
    """-1 where the least similar are left out."""

    @classmethod
    def parse_amount(cls, text: str, shown: str) -> Perturbation:
        """See ``Perturbation``."""
        percent = _number(text, ":")
        if percent is None or not 0 < percent < 100:
            raise UserError(f"{shown}: says how many percent are left out, above 0 and below 100, like {cls.written}")
        return cls(percent)

    def __str__(self) -> str:
        return f"{self.name}:{_shortest(self.percent)}"

    def check_allowed(self, *, shared: bool, labelled: bool) -> None:
        """See ``Perturbation``."""
        del labelled
        if not shared:
            raise UserError(
                f"--perturbation {self}: takes from demonstrations that all queries share; "
                "use it with --select random, balanced or centroids"
            )

    @property
    def smallest_k(self) -> int:
        """See ``Perturbation``."""
        return math.ceil(1 / (1 - self._share))

    def check_k(self, k: int) -> None:
        """See ``Perturbation``."""
        self.removed_count(k)

    def removed_count(self, k: int) -> int:
        """How many of k shared demonstrations are left out of a query's prompt.

        ``ceil(percent / 100 * k)``, in exact arithmetic. Raises ``UserError`` where nothing would
        be left.
        """
        if k < self.smallest_k:
            raise UserError(
                f"--perturbation {self}: of k={k} nothing would be left; ask for k of {self.smallest_k} or more"
            )
        return math.ceil(self._share * k)

    def of_queries(self, shown: np.ndarray, pool: DemonstrationPool) -> np.ndarray:
        """See ``Perturbation``."""
        places, count = pool.places(shown), self.removed_count(len(shown))
        rankings = pool.similarity.ranked("dense")
        return np.stack([without_nearest(shown, self.sign * r.scores[places], count) for r in rankings])

    @property
    def _share(self) -> Fraction:
        return Fraction(repr(self.percent)) / 100


@dataclass(frozen=True)
class FarthestRemoved(NearestRemoved):
    """Without the demonstrations least similar to each query: what :class:`NearestRemoved` is set
    beside for the sample learning ratio (Zou, Khalifa & Wang 2025, ACL).
    """

    name = "farthest-removed"
    written = "farthest-removed:10"
    sign = -1


def without_nearest(shown: np.ndarray, scores: np.ndarray, count: int) -> np.ndarray:
    """Leave out the ``count`` demonstrations most similar to a query: ``(k - count,)``.

    ``shown`` are the k that are shared, in the order of the prompt, which stays; ``scores`` their
    similarities to the query, ``(k,)``. Of equally similar ones the first goes first.

    Raises ValueError if there are more or fewer scores than demonstrations, or too few of them.
    """
    if len(scores) != len(shown) or not 0 <= count <= len(shown):
        raise ValueError(f"{count} of {len(shown)} demonstrations by {len(scores)} scores")
    left: np.ndarray = np.delete(shown, np.argsort(-scores, kind="stable")[:count])
    return left


def _systematic(share: float, count: int, start: float) -> np.ndarray:
    """Systematic sampling: of every first k places, k times the share are true: ``(count,)``.

    Exact to less than one. Place i is true where ``floor((i + 1) share + start)`` is more than
    ``floor(i share + start)``, with a random start, 0 to 1.
    """
    true: np.ndarray = np.diff(np.floor(np.arange(count + 1) * share + start)) > 0
    return true


def _wrong(row: Example, labels: Sequence[str], rng: np.random.Generator) -> Example:
    others = [label for label in labels if label != row.answer]
    return replace(row, answer=others[int(rng.integers(len(others)))])


def _shortest(amount: float) -> str:
    return repr(amount).removesuffix(".0")


def _number(text: str, mark: str) -> float | None:
    """The number behind a mark; None where there is none."""
    try:
        return float(text[1:]) if text.startswith(mark) and text.isascii() else None
    except ValueError:
        return None
