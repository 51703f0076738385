"""What the demonstrations teach: shown whole, in part, with other answers, or without the nearest.

Beside the plain curve these tell whether a model learns the task from its demonstrations or from
something less: from the answers' mere presence (permuted and wrong labels: Min et al. 2022, section
4), from the inputs or the labels alone (section 5), or from the few that are most like the query.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, get_args

import numpy as np

from icl_bench.errors import UserError
from icl_bench.prompts.rendering import Piece, answer_line, demonstration_text, input_text
from icl_bench.seeds import generator
from icl_bench.tasks.examples import Example
from icl_bench.wording import nearest, plain

Kind = Literal[
    "plain", "labels:permuted", "labels:noise", "inputs-only", "labels-only", "nearest-removed"
]


KNOWN = (
    "plain", "labels:permuted", "labels:noise=0.3", "inputs-only", "labels-only",
    "nearest-removed:10",
)  # fmt: skip


@dataclass(frozen=True)
class Perturbation:
    """One way, written as in ``--demonstrations``: ``Perturbation.parse(str(t)) == t``."""

    kind: Kind = "plain"
    amount: float | None = None
    """Of ``labels:noise``, the share of wrong labels, 0 to 1; of ``nearest-removed``, the percent
    that is left out, above 0 and below 100; of nothing else."""

    def __post_init__(self) -> None:
        if (self.amount is not None) != (self.kind in ("labels:noise", "nearest-removed")):
            raise ValueError(f"an amount belongs to noise and removal: {self.kind}, {self.amount}")

    @classmethod
    def parse(cls, text: str) -> Perturbation:
        """Read one. Raises ``UserError`` for an unknown name or an amount out of its range."""
        shown = f"--demonstrations {plain(text[:60])}"
        if text.startswith("labels:noise"):
            share = _number(text.removeprefix("labels:noise"), "=")
            if share is None or not 0 <= share <= 1:
                raise UserError(
                    f"{shown}: noise is a share of wrong labels from 0 to 1, like labels:noise=0.3"
                )
            return cls("labels:noise", abs(share))  # -0 is 0
        if text.startswith("nearest-removed"):
            percent = _number(text.removeprefix("nearest-removed"), ":")
            if percent is None or not 0 < percent < 100:
                raise UserError(
                    f"{shown}: says how many percent are left out, above 0 and below 100, "
                    "like nearest-removed:10"
                )
            return cls("nearest-removed", percent)
        for kind in get_args(Kind):
            if text == kind:
                return cls(kind)
        raise UserError(f"{shown}: not known; {nearest(text, KNOWN)}")

    def __str__(self) -> str:
        if self.amount is None:
            return self.kind
        mark = "=" if self.kind == "labels:noise" else ":"
        return f"{self.kind}{mark}{repr(self.amount).removesuffix('.0')}"

    # -- what follows from it -------------------------------------------------------------------

    @property
    def shared(self) -> bool:
        """Whether demonstrations that all queries share are still shared."""
        return self.kind != "nearest-removed"

    @property
    def embeds(self) -> bool:
        """Whether it depends on a sentence encoder: the nearest are those of ``dense``."""
        return self.kind == "nearest-removed"

    @property
    def changes_answers(self) -> bool:
        """Whether :func:`taught` gives other answers than the data."""
        return self.kind in ("labels:permuted", "labels:noise")

    def check_allowed(self, *, shared: bool, labelled: bool) -> None:
        """Raise ``UserError`` where it does not apply.

        ``shared`` says whether the selector gives all queries the same demonstrations, ``labelled``
        whether the task's answers are labels.
        """
        if self.kind == "nearest-removed" and not shared:
            raise UserError(
                f"--demonstrations {self}: takes from demonstrations that all queries share; "
                "use it with --select random, balanced or centroids"
            )
        if self.kind == "labels:noise" and not labelled:
            raise UserError(
                f"--demonstrations {self}: this task's answers are free text, there is no wrong "
                "label to show; labels:permuted is for any task"
            )

    def removed_count(self, k: int) -> int:
        """How many of k shared demonstrations are left out of a query's prompt.

        ``ceil(percent / 100 * k)``, in exact arithmetic. Raises ``UserError`` where nothing would
        be left.
        """
        if self.kind != "nearest-removed":
            return 0
        if k < self.smallest_k:
            raise UserError(
                f"--demonstrations {self}: of k={k} nothing would be left; "
                f"ask for k of {self.smallest_k} or more"
            )
        return math.ceil(self._share_removed * k)

    @property
    def smallest_k(self) -> int:
        """The smallest k of which something is left."""
        return math.ceil(1 / (1 - self._share_removed))

    @property
    def _share_removed(self) -> Fraction:
        if self.kind != "nearest-removed":
            return Fraction(0)
        return Fraction(repr(self.amount)) / 100

    @property
    def piece(self) -> Piece:
        """How a demonstration is written: the whole of it, its input, or its answer's line."""
        if self.kind == "inputs-only":
            return input_text
        return answer_line if self.kind == "labels-only" else demonstration_text


PLAIN = Perturbation()
"""Demonstrations as the data has them."""


def taught(
    teaching: Perturbation,
    train: Sequence[Example],
    labels: Sequence[str],
    seed: int,
    draw: int,
    drawn: np.ndarray,
) -> tuple[Example, ...]:
    """The train rows as one draw's demonstrations show them, in the order given.

    ``labels`` are the task's; wrong ones are drawn from them. ``drawn`` are the train indices of
    the pool in the draw's order, ``(pool,)``. What a row shows does not depend on k: a larger k
    shows the same of what a smaller one shows, so that prompts stay nested, and a row that is the
    query's own shows what it shows as a shared one.

    - ``labels:permuted``: the answers of all train rows are permuted among them. Labels keep their
      frequencies in the train file, and so in a prompt on average, but not among the k that are
      shown: a permutation within each k could not be nested.
    - ``labels:noise``: that share of the first k of the draw has a wrong label, exact to less than
      one row for every k (Min et al. 2022, section 4.2); of k that are chosen otherwise, about that
      share. It is any of the other labels, equally likely. Another share has other rows wrong; one
      that is wrong at both is wrong in the same way.

    Raises ``UserError`` for noise where there are not two labels.
    """
    if teaching.kind == "labels:permuted":
        order = generator(seed, "permuted labels", draw).permutation(len(train))
        pairs = zip(train, order, strict=True)
        return tuple(replace(row, answer=train[other].answer) for row, other in pairs)
    if teaching.kind == "labels:noise":
        if len(labels) < 2:
            raise UserError(f"--demonstrations {teaching}: needs two labels, has {len(labels)}")
        assert teaching.amount is not None
        shown = list(train)
        start = generator(seed, "label noise", draw).random()
        for i in drawn[_systematic(teaching.amount, len(drawn), start)]:
            shown[i] = _wrong(train[i], labels, generator(seed, "label noise", draw, train[i].id))
        return tuple(shown)
    return tuple(train)


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


def _number(text: str, mark: str) -> float | None:
    """The number behind a mark; None where there is none."""
    try:
        return float(text[1:]) if text.startswith(mark) and text.isascii() else None
    except ValueError:
        return None
