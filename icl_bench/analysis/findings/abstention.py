"""Abstention: the share of answers that remain, and their accuracy, if answers of low probability are withheld."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.analysis.by_task import IN_ORDER
from icl_bench.analysis.cascade import halves, halving
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.draws import interval_over
from icl_bench.analysis.finding import Finding, Section
from icl_bench.analysis.statistics.grid import grids
from icl_bench.analysis.statistics.selective import cuts, lowest_threshold, risk_parts
from icl_bench.analysis.statistics.shares import share_interval

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context
    from icl_bench.analysis.statistics.intervals import Interval

WANTED = 0.95
"""The default accuracy that answers must have."""


STEPS = 20
"""Maximum number of points of a risk-coverage curve."""


NOT_REACHED = "no threshold reaches the wanted accuracy"


ABSTENTION = [
    *POINT,
    "wanted",
    "share_answered",
    "share_low",
    "share_high",
    "accuracy",
    "ci_low",
    "ci_high",
    "threshold",
    "other_threshold",
    "area",
    "area_low",
    "area_high",
    "by_label_share",
    "by_label_share_low",
    "by_label_share_high",
    "by_label_accuracy",
    "by_label_low",
    "by_label_high",
    "labels_with_threshold",
    "labels",
    "draws",
    "test_rows",
    "interval_over",
]


RISK_COVERAGE = [*POINT, "share_answered", "threshold", "accuracy", "ci_low", "ci_high", "answered", "predictions"]


LABEL_THRESHOLDS = [
    *POINT,
    "label",
    "answers",
    "rows",
    "precision",
    "threshold",
    "other_threshold",
    "share_answered",
    "accuracy",
    "ci_low",
    "ci_high",
    "reason",
]


class Answers(NamedTuple):
    """The answers of a point, ``(draws, test)`` each."""

    present: np.ndarray
    probability: np.ndarray
    right: np.ndarray
    label: np.ndarray
    """The answered label, as a code."""
    draws: int
    tests: int

    def judged(self, answered: np.ndarray) -> tuple[Interval, Interval]:
        """The share of answered predictions, and their accuracy, with limits."""
        given = (answered & self.present).astype(float)
        return share_interval(given, self.present.astype(float)), share_interval(given * self.right, given)


class Crossed(NamedTuple):
    """A threshold for each half of the test examples, chosen on the other half."""

    first: float
    """The threshold chosen on the first half."""
    second: float
    answered: np.ndarray
    """Which predictions have the required probability: ``(draws, test)``."""


def _points(frame: pd.DataFrame) -> Iterator[tuple[dict[str, Any], Answers]]:
    """The points of :func:`icl_bench.analysis.label_probabilities.label_probabilities`' table."""
    keys, points = grids(frame, POINT)
    probability, right = frame["probability"].to_numpy(), frame["correct"].to_numpy(dtype=bool)
    code = frame["code"].to_numpy() if "code" in frame else np.zeros(len(frame), dtype=int)
    for key, point in zip(keys.to_dict("records"), points, strict=True):
        present = point.rows >= 0
        named = {str(name): value for name, value in key.items()}
        values = (column[point.rows] for column in (probability, right, code))
        yield named, Answers(present, *values, *present.shape)


def crossed(of: Answers, kept: np.ndarray, wanted: float, fewest: int = 1) -> Crossed:
    """Choose a threshold on each half of the test examples, and apply it to the other half.

    ``kept`` ``(draws, test)`` marks the predictions that count. Both thresholds are NaN, and nothing is answered, if a
    half has fewer than ``fewest`` test examples with such a prediction.
    """
    answered = np.zeros(kept.shape, dtype=bool)
    parted = halves(of.tests, halving())
    if min(np.count_nonzero(kept[:, half].any(axis=0)) for half in parted) < fewest:
        return Crossed(math.nan, math.nan, answered)
    thresholds = []
    for chosen_on, judged_on in (parted, parted[::-1]):
        here = kept[:, chosen_on]
        threshold = lowest_threshold(of.probability[:, chosen_on][here], of.right[:, chosen_on][here], wanted)
        answered[:, judged_on] = kept[:, judged_on] & (of.probability[:, judged_on] >= threshold)
        thresholds.append(threshold)
    return Crossed(thresholds[0], thresholds[1], answered)


def fewest_rows(wanted: float) -> int:
    """The minimum test rows of a half for a threshold. With fewer, a single wrong answer is too many."""
    return math.ceil(1 / (1 - min(wanted, 0.99)) - 1e-9)


def abstention(frame: pd.DataFrame, wanted: float = WANTED) -> pd.DataFrame:
    """The share of answers that can be given at a wanted accuracy, by the probability of the answer.

    ``frame`` is :func:`icl_bench.analysis.label_probabilities.label_probabilities`' table. The threshold of each half
    of the test examples (:func:`icl_bench.analysis.cascade.halving`) is the lowest one at which the answers of the
    other half are right in a share of ``wanted`` or more, all draws together. So no row is evaluated with a threshold
    that was chosen on it, and the accuracy may miss the wanted one. Limits are conditional on the two thresholds.

    Columns: the setting, k; wanted; share_answered with share_low and share_high (95%), accuracy of the answers with
    ci_low and ci_high, ``threshold`` and ``other_threshold``, 0 if everything is answered, infinite if nothing is (null
    in JSON, where share_answered is a number) and missing, with share_answered, if there are too few test rows;
    ``area``, the area under the risk-coverage curve, with limits
    (:func:`icl_bench.analysis.statistics.selective.risk_parts`); the same share and accuracy with a threshold for each
    label (:func:`label_thresholds`) as ``by_label_...``, and ``labels_with_threshold`` of the ``labels``; draws,
    test_rows and interval_over.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for key, of in _points(_coded(frame)):
        both = crossed(of, of.present, wanted)
        row = {**key, "wanted": wanted, "threshold": both.first, "other_threshold": both.second}
        if not math.isnan(both.first):
            share, accuracy = of.judged(both.answered)
            row |= _named(share, "share_answered", "share_low", "share_high")
            row |= _named(accuracy, "accuracy", "ci_low", "ci_high")
        parts = np.zeros(of.present.shape)
        parts[of.present] = risk_parts(of.probability[of.present], of.right[of.present])
        row |= _named(share_interval(parts, of.present.astype(float)), "area", "area_low", "area_high")
        of_labels = [one for _, _, one in _by_label(of, wanted)]
        told = [one for one in of_labels if not math.isnan(one.first)]
        row |= {"labels": len(of_labels), "labels_with_threshold": len(told)}
        if told:
            share, accuracy = of.judged(np.any([one.answered for one in told], axis=0))
            row |= _named(share, "by_label_share", "by_label_share_low", "by_label_share_high")
            row |= _named(accuracy, "by_label_accuracy", "by_label_low", "by_label_high")
        rows.append({**row, "draws": of.draws, "test_rows": of.tests, "interval_over": interval_over(of.draws > 1)})
    return pd.DataFrame(rows, columns=ABSTENTION)


def risk_coverage(frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by the share of answered predictions, the most probable ones first.

    ``frame`` is as for :func:`abstention`. A curve has at most ``STEPS`` points; predictions of equal probability stay
    together. Thresholds follow from the shares, not from the right answers.

    Columns: the setting, k, share_answered, threshold (the least probability of an answer), accuracy with ci_low and
    ci_high (95%), and the numbers of answered and of all predictions.
    """
    import pandas as pd

    rows = []
    for key, of in _points(frame):
        possible = cuts(of.probability[of.present], of.right[of.present])
        count = int(of.present.sum())
        at = np.unique(np.searchsorted(possible.answered, np.ceil(np.arange(1, STEPS + 1) * count / STEPS)))
        for place in at.tolist():
            threshold = float(possible.threshold[place])
            share, accuracy = of.judged(of.probability >= threshold)
            row = {**key, "share_answered": share.mean, "threshold": threshold, "predictions": count}
            row |= {**_named(accuracy, "accuracy", "ci_low", "ci_high"), "answered": int(possible.answered[place])}
            rows.append(row)
    return pd.DataFrame(rows, columns=RISK_COVERAGE)


def label_thresholds(frame: pd.DataFrame, wanted: float = WANTED) -> pd.DataFrame:
    """For each label, the threshold from which on answers with it have the wanted accuracy.

    ``frame`` is as for :func:`abstention`, and so are the two thresholds. They need :func:`fewest_rows` test
    rows with this answer in each half of the test examples; with fewer they are missing.

    Columns: the setting, k; label; ``answers`` with it and the test ``rows`` of these; ``precision``, the share of
    right answers among them; threshold and other_threshold; share_answered of these answers, and accuracy with ci_low
    and ci_high (95%), on the rows that the threshold was not chosen on; and ``reason``, why there is no threshold or no
    answer.
    """
    import pandas as pd

    coded, labels = _coded(frame), _labels(frame)
    fewest, rows = fewest_rows(wanted), []
    for key, of in _points(coded):
        for code, kept, both in _by_label(of, wanted):
            answers = int(kept.sum())
            row = {**key, "label": labels[code], "answers": answers, "rows": int(kept.any(axis=0).sum())}
            row |= {"threshold": both.first, "other_threshold": both.second}
            row["precision"] = float(of.right[kept].mean()) if answers else math.nan
            if math.isnan(both.first):
                row["reason"] = f"too few rows (needs {fewest} in each half)"
            else:
                _, accuracy = of.judged(both.answered)
                row |= _named(accuracy, "accuracy", "ci_low", "ci_high")
                row["share_answered"] = float(both.answered.sum() / answers)
                if math.isinf(both.first) and math.isinf(both.second):
                    row["reason"] = NOT_REACHED
            rows.append(row)
    return pd.DataFrame(rows, columns=LABEL_THRESHOLDS).astype({"reason": object})


def _labels(frame: pd.DataFrame) -> np.ndarray:
    """All labels of a table, sorted."""
    return np.unique(np.concatenate([frame["answer"].to_numpy(dtype=object), frame["gold"].to_numpy(dtype=object)]))


def _coded(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with each answer's ``code``, its position among the labels."""
    return frame.assign(code=np.searchsorted(_labels(frame), frame["answer"].to_numpy(dtype=object)))


def _by_label(of: Answers, wanted: float) -> Iterator[tuple[int, np.ndarray, Crossed]]:
    """The answers of each answered label, and their thresholds."""
    for code in np.unique(of.label[of.present]).tolist():
        kept = of.present & (of.label == code)
        yield code, kept, crossed(of, kept, wanted, fewest_rows(wanted))


def _named(interval: Interval, *names: str) -> Mapping[str, float]:
    return dict(zip(names, interval, strict=True))


def _wanted(context: Context) -> float:
    return WANTED if context.wanted is None else context.wanted


SHARE_ANSWERED = Column("share_answered", "answered", "share")


ANSWERED = Finding(
    "abstention",
    lambda context: context.from_zero_shot(abstention(context.label_probabilities, _wanted(context))),
    (
        Column("wanted", "wanted accuracy", "share"),
        SHARE_ANSWERED,
        Column("share_low", "95% from", "share", short="95% interval", upper="share_high"),
        Column("share_high", "95% to", "share"),
        Column("accuracy", "accuracy of the answers", "share"),
        Column("threshold", "probability needed", "number"),
        Column("other_threshold", "on the other half", "number"),
        Column("area", "area under risk-coverage", "share"),
        Column("area_low", "95% from", "share", short="95% interval", upper="area_high"),
        Column("area_high", "95% to", "share"),
        Column("by_label_share", "answered, thresholds by label", "share", optional=True),
        Column("by_label_share_low", "95% from", "share", optional=True),
        Column("by_label_share_high", "95% to", "share", optional=True),
        Column("by_label_accuracy", "their accuracy", "share", optional=True),
        Column("by_label_low", "95% from", "share", optional=True),
        Column("by_label_high", "95% to", "share", optional=True),
        Column("labels_with_threshold", "labels with a threshold", "count"),
        Column("labels", "labels answered", "count"),
    ),
    caption="Answers that can be given at the wanted accuracy",
    shown=f"task model series k {' '.join(ABSTENTION[len(POINT) :])}",
    section=Section(
        "abstention",
        "Answering only where the model is sure",
        "Abstention",
        "run --score exact",
        "Accuracy of the answers that are left when only the most probable ones are given: the risk-coverage "
        "curve, with 95% intervals. The dashed line is the wanted accuracy. The table has the largest share that "
        "can be answered at it: the probability that is needed was chosen on one half of the test rows and "
        "judged on the other half, both ways, so that the accuracy may miss the wanted one. The area is the mean "
        "share of wrong answers over all numbers of answers; the lower the better.",
        "Geifman & El-Yaniv 2017",
        also=("label_thresholds", "probability_scores"),
        place=132,
    ),
    by_task=IN_ORDER,
)


RISK_COVERAGE_CURVE = Finding(
    "risk_coverage",
    lambda context: context.from_zero_shot(risk_coverage(context.label_probabilities)),
    (
        SHARE_ANSWERED,
        Column("threshold", "probability needed", "number"),
        Column("accuracy", "accuracy of the answers", "share"),
        Column("answered", "answered", "count"),
    ),
    caption="Risk-coverage curves",
    by_task=IN_ORDER,
)


BY_LABEL = Finding(
    "label_thresholds",
    lambda context: context.from_zero_shot(label_thresholds(context.label_probabilities, _wanted(context))),
    (
        Column("label", "label"),
        Column("answers", "answers with it", "count"),
        Column("precision", "right", "share"),
        Column("threshold", "probability needed", "number", optional=True),
        Column("other_threshold", "on the other half", "number", optional=True),
        Column("share_answered", "answered", "share", optional=True),
        Column("accuracy", "accuracy of these", "share", optional=True),
        Column("reason", "no threshold", optional=True),
    ),
    caption="Thresholds by label, at the wanted accuracy",
    shown=f"task model series k {' '.join(LABEL_THRESHOLDS[len(POINT) :])}",
    by_task=IN_ORDER,
)
