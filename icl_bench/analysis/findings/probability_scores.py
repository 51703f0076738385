"""Scores of label probabilities: top-3 and top-5 accuracy, log-loss and Brier score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.by_task import IN_ORDER
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.draws import interval_over
from icl_bench.analysis.finding import Finding, Printed
from icl_bench.analysis.statistics.grid import grids
from icl_bench.analysis.statistics.intervals import Interval, location_interval, mean_interval

if TYPE_CHECKING:
    import pandas as pd

TOPS = (1, 3, 5)


MOST_BRIER = 2.0
"""The largest Brier score of a prediction."""


SCORES = (*(f"top_{n}" for n in TOPS), "log_loss", "brier")


COLUMNS = [
    *POINT,
    "labels",
    *(f"{name}{end}" for name in SCORES for end in ("", "_low", "_high")),
    "draws",
    "test_rows",
    "interval_over",
    "predictions",
    "left_out",
]


def probability_scores(frame: pd.DataFrame, counts: pd.DataFrame) -> pd.DataFrame:
    """Scores of the probabilities that a point gives to all labels, with 95% limits.

    ``frame`` is the table of :func:`icl_bench.analysis.label_probabilities.label_probabilities`, ``counts`` the
    predictions that it was computed from.

    Columns: the setting, k; the number of ``labels``; ``top_1``, ``top_3`` and ``top_5``, the share of predictions
    whose right label is among the 1, 3 or 5 most probable ones, missing if there are not more labels; ``log_loss``, the
    mean of minus the log of the right label's probability, in nats; ``brier``, the mean Brier score, from 0 to 2; each
    with ``_low`` and ``_high``; draws, test_rows, interval_over; predictions with a log-loss, and left_out (predictions
    without scores, in draws that share no test example with the others, or whose right answer is not among the labels:
    these have no log-loss).
    """
    import pandas as pd

    keys, points = grids(frame, POINT)
    labels, rank, loss, brier = (frame[name].to_numpy(dtype=float) for name in ("labels", "rank", "log_loss", "brier"))
    rows: list[dict[str, Any]] = []
    for key, whole in zip(keys.to_dict("records"), points, strict=True):
        point, known = whole.joined(), whole.joined(~np.isnan(loss))
        row = {str(name): value for name, value in key.items()}
        row["labels"] = int(labels[point.rows[point.rows >= 0][0]])
        for n in TOPS:
            if n < row["labels"]:
                row |= _limits(f"top_{n}", mean_interval(point.values((rank < n).astype(float))))
        if known.predictions:
            row |= _limits("log_loss", _from_zero(location_interval(known.values(loss))))
        halves = mean_interval(point.values(brier / MOST_BRIER))
        row |= _limits("brier", Interval(*(MOST_BRIER * number for number in halves)))
        draws, tests = point.rows.shape
        row |= {"draws": draws, "test_rows": tests, "interval_over": interval_over(draws > 1)}
        rows.append({**row, "predictions": known.predictions})
    table = pd.DataFrame(rows, columns=COLUMNS).drop(columns="left_out")
    answered = counts[counts["correct"].notna()].groupby(POINT, observed=True).size().rename("left_out")
    table = table.join(answered, on=POINT)
    return table.assign(left_out=table["left_out"] - table["predictions"])


def _limits(name: str, interval: Interval) -> dict[str, float]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), interval, strict=True))


def _from_zero(interval: Interval) -> Interval:
    """The interval of a value that is never below 0."""
    return interval._replace(low=float(np.maximum(interval.low, 0.0)))


def _with_answered(table: pd.DataFrame, answered: pd.DataFrame) -> pd.DataFrame:
    """The scores with the share of answers at the wanted accuracy."""
    names = [*POINT, "share_answered", "wanted"]
    return table.merge(answered[names].astype({name: table[name].dtype for name in POINT}), on=POINT, how="left")


PROBABILITY_SCORES = Finding(
    "probability_scores",
    lambda context: _with_answered(
        context.from_zero_shot(probability_scores(context.label_probabilities, context.unperturbed)),
        context.table("abstention"),
    ),
    (
        Column("labels", "labels", "count"),
        *(
            column
            for n in TOPS
            for column in (
                Column(f"top_{n}", f"top-{n} accuracy", "share", optional=True, short=f"top-{n}"),
                Column(f"top_{n}_low", "95% from", "share", optional=True),
                Column(f"top_{n}_high", "95% to", "share", optional=True),
            )
        ),
        Column("log_loss", "log-loss (nats)", "number", short="log-loss"),
        Column("log_loss_low", "95% from", "number"),
        Column("log_loss_high", "95% to", "number"),
        Column("brier", "Brier score (0 to 2)", "number", short="Brier"),
        Column("brier_low", "95% from", "number"),
        Column("brier_high", "95% to", "number"),
        Column("share_answered", "answered at the wanted accuracy", "share", short="answered"),
        Column("wanted", "wanted accuracy", "share", short="at\naccuracy"),
    ),
    caption="Scores of label probabilities",
    shown=f"task model series k {' '.join(COLUMNS[len(POINT) :])}",
    printed=Printed(
        "label probabilities, and the share of rows that can be answered at an accuracy, %",
        "task model select order k top_3 top_5 log_loss brier share_answered wanted",
    ),
    by_task=IN_ORDER,
)
