"""Perturbations: changes to the demonstrations that prompts show.

Compared with the unperturbed curve, they show what a model learns from its demonstrations: whether
it needs right answers (permuted and wrong labels: Min et al. 2022, section 4), inputs as well as
labels (section 5), or the few demonstrations most similar to the query.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from icl_bench.demonstrations.interface import sentence_encoder_fact
from icl_bench.errors import UserError
from icl_bench.prompts.rendering import Piece, Writing, answer_line, demonstration_text, input_text
from icl_bench.registry import PERTURBATIONS
from icl_bench.seeds import generator
from icl_bench.wording import listed, nearest, plain

if TYPE_CHECKING:
    from icl_bench.demonstrations.pool import DemonstrationPool
    from icl_bench.tasks.examples import Example


@dataclass(frozen=True)
class Perturbation:
    """Base of all perturbations, written as in ``--perturbation``: ``parse(str(p)) == p``."""

    name: ClassVar[str]
    written: ClassVar[str]
    """Its syntax, for messages."""
    shared: ClassVar[bool] = True
    """Whether shared demonstrations are still the same for all queries."""
    embeds: ClassVar[bool] = False
    """Whether it depends on a sentence encoder."""
    changes_answers: ClassVar[bool] = False
    """Whether :meth:`answers` changes answers."""
    option: ClassVar[str | None] = None
    """The name of a numeric option after its name: ``,format=4``."""
    asks_model: ClassVar[bool] = False
    """Whether the model first predicts the answers of demonstrations."""
    unsupervised: ClassVar[bool] = False
    """Whether prompts have the task's texts around inputs without answers."""

    @staticmethod
    def parse(text: str) -> Perturbation:
        """Parse a perturbation. Raises ``UserError`` for an unknown name or an amount out of range."""
        option_text = f"--perturbation {plain(text[:60])}"
        for name in sorted(PERTURBATIONS.names, key=len, reverse=True):
            rest = text.removeprefix(name)
            if text == name or (rest != text and rest[:1] in ("=", ":", ",")):
                _refuse_option_of_another(rest, name, option_text)
                perturbation: Perturbation = PERTURBATIONS[name].parse_amount(rest, option_text)
                return perturbation
        hint = nearest(text, (perturbation.written for perturbation in PERTURBATIONS.values()))
        raise UserError(f"{option_text}: not known; {hint}")

    @classmethod
    def parse_amount(cls, text: str, option_text: str) -> Perturbation:
        """Create a perturbation from the text after its name; ``option_text`` begins messages."""
        if text:
            raise UserError(f"{option_text}: not known; did you mean {cls.name}?")
        return cls()

    def __str__(self) -> str:
        return self.name

    def check_allowed(self, *, shared: bool, labelled: bool) -> None:
        """Raise ``UserError`` if it does not apply.

        ``shared``: whether all queries have the same demonstrations. ``labelled``: whether the
        task's answers are labels.
        """

    @property
    def smallest_k(self) -> int:
        """The smallest k that leaves a demonstration."""
        return 1

    def check_k(self, k: int) -> None:
        """Raise ``UserError`` for a k that would leave no demonstration."""

    @property
    def piece(self) -> Piece:
        """How a demonstration is written."""
        return demonstration_text

    @property
    def changes_piece(self) -> bool:
        """Whether a demonstration is written differently from input and answer."""
        return self.piece is not demonstration_text

    @property
    def complete(self) -> int:
        """The number of further, unperturbed demonstrations after the k."""
        return 0

    @property
    def apart(self) -> int:
        """The number of pool rows that it needs besides the k demonstrations."""
        return self.complete

    def writing(self, unsupervised: Mapping[str, str]) -> Writing:
        """How the demonstrations of a prompt are written, and the text between them.

        ``unsupervised`` are the texts around inputs without answers, by name: ``preamble``, ``instruction``.
        """
        return Writing(self.piece, **unsupervised, complete=self.complete)

    def answers(
        self, train: Sequence[Example], labels: Sequence[str], seed: int, draw: int, drawn: np.ndarray
    ) -> tuple[Example, ...]:
        """The train rows with the answers that demonstrations of one draw have, in the order given.

        ``labels`` are the task's; wrong ones are sampled from them. ``drawn`` are the train indices of the pool in the
        draw's order, ``(pool,)``. A row's answer does not depend on k or on whether the row is shared, so prompts stay
        nested.
        """
        del labels, seed, draw, drawn
        return tuple(train)

    def of_queries(self, demonstrations: np.ndarray, pool: DemonstrationPool) -> np.ndarray:
        """Which of k shared demonstrations each query's prompt has: ``(test, up to k)``.

        ``demonstrations`` are train indices in the prompt's order, ``(k,)``. Called only if
        ``shared`` is false.
        """
        return np.tile(demonstrations, (len(pool.data.test), 1))

    def facts(self, pool: DemonstrationPool) -> Mapping[str, Any]:
        """Facts that it depends on besides its name. Part of a cell's identity."""
        return sentence_encoder_fact(pool.similarity) if self.embeds else {}


@dataclass(frozen=True)
class NoPerturbation(Perturbation):
    """Demonstrations as in the data."""

    name = "none"
    written = "none"


NONE = NoPerturbation()
"""No perturbation."""


@dataclass(frozen=True)
class PermutedLabels(Perturbation):
    """The answers of all train rows, permuted among them.

    Labels keep their frequencies in the train file, and so in a prompt on average. They do not keep
    them exactly among the k shown: a permutation within each k would not be nested.
    """

    name = "labels:permuted"
    written = "labels:permuted"
    changes_answers = True

    def answers(
        self, train: Sequence[Example], labels: Sequence[str], seed: int, draw: int, drawn: np.ndarray
    ) -> tuple[Example, ...]:
        """See ``Perturbation``.

        Raises ``UserError`` if a row would show an answer that is not one of its own choices.
        """
        del labels, drawn
        order = generator(seed, "permuted labels", draw).permutation(len(train))
        pairs = zip(train, order, strict=True)
        permuted = tuple(replace(row, answer=train[other].answer) for row, other in pairs)
        if any(row.choices and row.answer not in row.choices for row in permuted):
            raise UserError(
                f"--perturbation {self}: rows have choices of their own, and so labels of other rows "
                "are not among them; labels:noise=1 shows each row's wrong choices"
            )
        return permuted


@dataclass(frozen=True)
class NoisyLabels(Perturbation):
    """A share of the first k of the draw has a wrong label (Min et al. 2022, section 4.2).

    For the first k of the draw, the share is exact to less than one row; for other selections it is
    approximate. A wrong label is any of the other labels (of the row's own choices, if it has
    them), equally likely. Different shares perturb different rows. A row that is perturbed at two
    shares has the same wrong label at both.
    """

    share: float
    """The share of wrong labels, 0 to 1."""
    name = "labels:noise"
    written = "labels:noise=0.3"
    changes_answers = True

    @classmethod
    def parse_amount(cls, text: str, option_text: str) -> Perturbation:
        """See ``Perturbation``."""
        share = _number(text, "=")
        if share is None or not 0 <= share <= 1:
            raise UserError(f"{option_text}: noise is a share of wrong labels from 0 to 1, like labels:noise=0.3")
        return cls(abs(share))  # -0 is 0

    def __str__(self) -> str:
        return f"{self.name}={_shortest(self.share)}"

    def check_allowed(self, *, shared: bool, labelled: bool) -> None:
        """See ``Perturbation``."""
        del shared
        if not labelled:
            raise UserError(
                f"--perturbation {self}: this task's answers are free text, so it has "
                "no wrong labels; labels:permuted works for any task"
            )

    def answers(
        self, train: Sequence[Example], labels: Sequence[str], seed: int, draw: int, drawn: np.ndarray
    ) -> tuple[Example, ...]:
        """See ``Perturbation``. Raises ``UserError`` if there are fewer than two labels."""
        if len(labels) < 2 and not all(row.choices for row in train):
            raise UserError(f"--perturbation {self}: needs two labels, has {len(labels)}")
        noisy = list(train)
        start = generator(seed, "label noise", draw).random()
        for i in drawn[_systematic(self.share, len(drawn), start)]:
            wrong = [label for label in train[i].choices or labels if label != train[i].answer]
            rng = generator(seed, "label noise", draw, train[i].id)
            noisy[i] = replace(train[i], answer=wrong[int(rng.integers(len(wrong)))])
        return tuple(noisy)


@dataclass(frozen=True)
class LabelsByModel(Perturbation):
    """The model's own answers in place of the true ones (MAPLE's first step, arXiv 2505.16225).

    The model first answers the demonstrations like test rows, without demonstrations or with some that have their true
    labels. The runner stores the answers as cells; until then, true labels are placeholders.
    """

    labelled: int = 0
    """The number of truly labelled demonstrations in the prompts that ask for labels."""
    name = "labels:model"
    written = "labels:model"
    option = "k"
    changes_answers = True
    asks_model = True

    @classmethod
    def parse_amount(cls, text: str, option_text: str) -> Perturbation:
        """See ``Perturbation``."""
        return cls(_count(text, "k", option_text, "labels:model,k=4")) if text else cls()

    def __str__(self) -> str:
        return f"{self.name},k={self.labelled}" if self.labelled else self.name

    @property
    def apart(self) -> int:
        """See ``Perturbation``."""
        return self.labelled


@dataclass(frozen=True)
class InputsOnly(Perturbation):
    """Inputs without their answers: Unsupervised ICL (Agarwal et al. 2024, section 3.2).

    The task's preamble precedes the inputs. Its instruction and complete demonstrations, which show the form of an
    answer, may follow them. Complete demonstrations are the last remaining rows of the draw's permutation, so the
    inputs are those of the unperturbed prompt.
    """

    format: int = 0
    """The number of complete demonstrations."""
    name = "inputs-only"
    written = "inputs-only"
    option = "format"
    unsupervised = True

    @classmethod
    def parse_amount(cls, text: str, option_text: str) -> Perturbation:
        """See ``Perturbation``."""
        return cls(_count(text, "format", option_text, "inputs-only,format=4")) if text else cls()

    def __str__(self) -> str:
        return f"{self.name},format={self.format}" if self.format else self.name

    @property
    def complete(self) -> int:
        """See ``Perturbation``."""
        return self.format

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
    """Removes the demonstrations most similar to each query, so fewer than k are shown."""

    percent: float
    """The percentage that is left out, above 0 and below 100."""
    name = "nearest-removed"
    written = "nearest-removed:10"
    shared = False
    embeds = True
    sign: ClassVar[int] = 1
    """-1 if the least similar are left out."""

    @classmethod
    def parse_amount(cls, text: str, option_text: str) -> Perturbation:
        """See ``Perturbation``."""
        percent = _number(text, ":")
        if percent is None or not 0 < percent < 100:
            raise UserError(
                f"{option_text}: needs the percentage to leave out, above 0 and below 100, like {cls.written}"
            )
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

        ``ceil(percent / 100 * k)``, in exact arithmetic. Raises ``UserError`` if none would remain.
        """
        if k < self.smallest_k:
            raise UserError(
                f"--perturbation {self}: leaves no demonstration of k={k}; use a k of {self.smallest_k} or more"
            )
        return math.ceil(self._share * k)

    def of_queries(self, demonstrations: np.ndarray, pool: DemonstrationPool) -> np.ndarray:
        """See ``Perturbation``."""
        places, count = pool.places(demonstrations), self.removed_count(len(demonstrations))
        rankings = pool.similarity.ranked("dense")
        return np.stack(
            [without_nearest(demonstrations, self.sign * ranking.scores[places], count) for ranking in rankings]
        )

    @property
    def _share(self) -> Fraction:
        return Fraction(repr(self.percent)) / 100


@dataclass(frozen=True)
class FarthestRemoved(NearestRemoved):
    """Removes the demonstrations least similar to each query: the counterpart of :class:`NearestRemoved` in the sample
    learning ratio (Zou, Khalifa & Wang 2025, ACL).
    """

    name = "farthest-removed"
    written = "farthest-removed:10"
    sign = -1


def without_nearest(demonstrations: np.ndarray, scores: np.ndarray, count: int) -> np.ndarray:
    """Leave out the ``count`` demonstrations of largest ``scores``, ``(k,)``: ``(k - count,)``, in order.

    Ties remove the first. Raises ValueError if the numbers of scores and demonstrations differ, or there are too few.
    """
    if len(scores) != len(demonstrations) or not 0 <= count <= len(demonstrations):
        raise ValueError(f"{count} of {len(demonstrations)} demonstrations by {len(scores)} scores")
    remaining: np.ndarray = np.delete(demonstrations, np.argsort(-scores, kind="stable")[:count])
    return remaining


def _systematic(share: float, count: int, start: float) -> np.ndarray:
    """Systematic sampling: for every k, the share of the first k is true: ``(count,)``.

    Exact to less than one. Position i is true if ``floor((i + 1) share + start)`` is more than ``floor(i share +
    start)``, with a random start, 0 to 1.
    """
    sampled: np.ndarray = np.diff(np.floor(np.arange(count + 1) * share + start)) > 0
    return sampled


def _shortest(amount: float) -> str:
    return repr(amount).removesuffix(".0")


def _refuse_option_of_another(text: str, name: str, option_text: str) -> None:
    """Raise ``UserError`` for an option that the perturbation does not have, such as ``,format=N``."""
    for option in re.findall(r",\s*(\w+)\s*=", text):
        if PERTURBATIONS[name].option == option:
            continue
        if having := [other for other, owner in PERTURBATIONS.items() if owner.option == option]:
            raise UserError(f"{option_text}: {option}= is an option of {listed(having)} only")


def _count(text: str, option: str, option_text: str, example: str) -> int:
    """The number of ``,option=N``. Raises ``UserError``."""
    found = re.fullmatch(rf"\s*,\s*{option}\s*=\s*0*([1-9][0-9]{{0,8}})\s*", text, re.ASCII)
    if found is None:
        raise UserError(f"{option_text}: {option} is a whole number of demonstrations of at least 1, like {example}")
    return int(found[1])


def _number(text: str, mark: str) -> float | None:
    """The number after a mark, or None if there is none."""
    try:
        return float(text[1:]) if text.startswith(mark) and text.isascii() else None
    except ValueError:
        return None
