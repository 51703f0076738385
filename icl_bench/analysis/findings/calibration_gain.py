"""The effect of label bias on accuracy: calibrated answers compared with the model's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.by_task import ByTask
from icl_bench.analysis.columns import SIGNED_LIMITS, Column
from icl_bench.analysis.finding import Chart, Finding, Printed, Section
from icl_bench.analysis.predictions import joined
from icl_bench.analysis.statistics.paired import compare
from icl_bench.metrics.scores import ACCURACY, scored
from icl_bench.results.calibration import BATCH, PRIOR, Calibration
from icl_bench.results.facts import UNKNOWN, FactsOf
from icl_bench.results.label_bias import running_bias
from icl_bench.seeds import generator

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.results.derived import CellScores

NONE = "none"
"""The name of the model's own answers in comparisons."""

AT_A_TIME = (1, 16, 64)
"""Batch sizes for which Batch Calibration of a stream of queries is simulated."""

ORDERS = 20
"""Random orders of the queries that a simulation averages over."""


def calibration_gain(frame: pd.DataFrame, scores: Mapping[str, CellScores], facts: FactsOf) -> pd.DataFrame:
    """Compare calibrated answers with the model's own, at each k.

    ``scores`` are the label scores of cells, including derived ones, and ``facts`` those of each variant. Points
    without stored scores have no row. Both sides have the same prompts and are paired by draw and test example;
    ``difference`` is above 0 if calibration helps. ``calibration`` is as in ``--calibrate``; ``batch, N at a time``
    simulates ``batch`` for queries that arrive N at a time in random order, with the bias estimated on the queries so
    far (a single first query is not calibrated). ``estimated_on`` describes the data on which the bias is estimated.
    The other columns are those of :func:`icl_bench.analysis.statistics.paired.compare`.
    """
    frame = scored(frame)
    frame = frame[frame["cell"].astype(object).isin(list(scores))]
    named = {variant: facts.get(str(variant), UNKNOWN).calibration or NONE for variant in frame["variant"].unique()}
    frame = frame.assign(calibration=frame["variant"].astype(object).map(named))
    parts = [frame, *(_in_batches(frame, scores, size) for size in AT_A_TIME)]
    table = compare(
        joined(parts, frame), {"calibration": NONE}, facts=facts, apart=("calibration",), about="demonstrations"
    )
    estimated_on = [_estimated_on(str(name)) for name in table["calibration"]]
    return table.assign(estimated_on=np.array(estimated_on, dtype=object))


def _in_batches(frame: pd.DataFrame, scores: Mapping[str, CellScores], size: int) -> pd.DataFrame:
    """The predictions of ``batch`` if queries arrive ``size`` at a time; none if there are not more than ``size``, or
    if answers are compared by another metric than accuracy.
    """
    rows = frame[(frame["calibration"] == BATCH) & (frame["metric"] == ACCURACY)]
    cells = [cell for cell in rows["cell"].astype(object).unique() if len(scores[cell].tests) > size]
    shares = {cell: dict(zip(scores[cell].tests, streamed(scores[cell], size), strict=True)) for cell in cells}
    rows = rows[rows["cell"].astype(object).isin(cells)]
    pairs = zip(rows["cell"].astype(object), rows["test_id"], strict=True)
    values = np.array([shares[cell][test] for cell, test in pairs], dtype=float)
    return rows.assign(calibration=f"{BATCH}, {size} at a time", score=values)


def streamed(scores: CellScores, size: int) -> np.ndarray:
    """How often each query is answered correctly if queries arrive ``size`` at a time: ``(queries,)``.

    The mean over ``ORDERS`` random orders. Each estimates the bias on the queries so far
    (:func:`icl_bench.results.label_bias.running_bias`).
    """
    raw = scores.raw.astype(float)
    gold = np.array([scores.labels.index(label) if label in scores.labels else -1 for label in scores.golds])
    right = np.zeros(len(raw))
    rng = generator(0, "calibration", size)
    for _ in range(ORDERS):
        order = rng.permutation(len(raw))
        bias = running_bias(raw[order], size)
        if size == 1:
            bias[0] = 0.0  # a single query has no distinguishable bias
        right[order] += (raw[order] - bias).argmax(axis=1) == gold[order]
    return right / ORDERS


def _estimated_on(name: str) -> str:
    """The data on which a calibration estimates the bias, as text."""
    if name.startswith(f"{BATCH}, ") and name.endswith("at a time"):
        return "inputs of test rows so far"
    if name.startswith(f"{PRIOR}="):
        return "inputs of test rows and a stated distribution"
    calibration = Calibration.parse(name)
    if calibration.reads_test_inputs:
        return "inputs of test rows"
    return "rows of the pool" if calibration.rows is not None else "inputs without content"


CALIBRATION_GAIN = Finding(
    "calibration_gain",
    lambda context: calibration_gain(context.prompts, context.stored.label_scores, context.facts),
    (
        *SIGNED_LIMITS,
        Column("calibration", "calibration"),
        Column("estimated_on", "bias estimated on"),
        Column("base_mean", "without", "share"),
        Column("mean", "with", "share"),
    ),
    caption="Calibrated minus the model's own answers",
    shown="task model series calibration estimated_on k metric base_mean mean difference ci_low ci_high interval_over "
    "p p_holm rows draws left_out",
    printed=Printed(
        "label bias: {score} with calibration minus without it, points",
        "task model select order calibration k draws base_mean mean difference ci_low p_holm",
        columns_here=(Column("base_mean", "without", "share"), Column("mean", "with", "share")),
    ),
    section=Section(
        "label-bias-removed",
        "How much of it is label bias?",
        "Calibration gain",
        "run --score exact",
        "{Score} after the model's bias towards some labels is estimated and removed, minus that of its own answers to "
        "the same prompts. Above 0: calibration helps. batch estimates the bias on the test rows' inputs, "
        "all of them or those that have come so far; batch,of=pool:N on rows of the pool alone.",
        "Zhou et al. 2024",
        Chart("difference", by=("task", "model", "select", "order"), line="calibration", difference=True),
        place=45,
    ),
    by_task=ByTask(("calibration", "task")),
)
