"""Temperature scaling: calibration error and log-loss before and after, with the temperature fitted on rows of the
pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.by_task import IN_ORDER
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.draws import interval_over
from icl_bench.analysis.finding import Finding
from icl_bench.analysis.findings.calibration import calibration_error
from icl_bench.analysis.label_probabilities import label_probabilities
from icl_bench.analysis.statistics.bootstrap import Streams
from icl_bench.analysis.statistics.grid import grids
from icl_bench.analysis.statistics.intervals import location_interval
from icl_bench.results.derived import CellScores, base_cell
from icl_bench.results.facts import FactsOf
from icl_bench.results.label_bias import calibrated, normalised

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

LARGEST = 100.0
"""The search range of temperatures is 1 / ``LARGEST`` to this."""


TEMPERATURE = [
    *POINT,
    "pool_rows",
    "temperature",
    "least_temperature",
    "largest_temperature",
    "error",
    "error_low",
    "error_high",
    "scaled_error",
    "scaled_error_low",
    "scaled_error_high",
    "log_loss",
    "scaled_log_loss",
    "difference",
    "ci_low",
    "ci_high",
    "draws",
    "test_rows",
    "interval_over",
]


def fitted_temperature(logs: np.ndarray, gold: np.ndarray) -> float:
    """The temperature with the smallest log-loss of rows ``(rows, labels)``, with right labels at the indices ``gold``.

    Log-probabilities are divided by it and normalised (Guo et al. 2017, ICML, "On Calibration of Modern Neural
    Networks", section 4.2). NaN if a right label has the probability 0.
    """
    from scipy.optimize import minimize_scalar

    rows = np.arange(len(gold))
    if np.isinf(logs[rows, gold]).any():
        return float("nan")

    def loss(log_temperature: float) -> float:
        return float(-normalised(logs / np.exp(log_temperature))[rows, gold].mean())

    ends = (-np.log(LARGEST), np.log(LARGEST))
    return float(np.exp(minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-6}).x))


def scaled(own: CellScores, pool: CellScores) -> tuple[float, CellScores] | None:
    """The temperature of a cell, fitted on pool rows with the cell's own bias, and its scaled scores.

    None if it cannot be fitted.
    """
    place = {label: at for at, label in enumerate(own.labels)}
    gold = np.array([place.get(label, -1) for label in pool.golds])
    logs = normalised(pool.raw.astype(float)) if own.bias is None else calibrated(pool.raw, own.bias)
    found = fitted_temperature(logs[gold >= 0], gold[gold >= 0]) if (gold >= 0).any() else np.nan
    return None if np.isnan(found) else (found, replace(own, raw=own.logs / found, bias=None))


def temperatures(
    frame: pd.DataFrame,
    scores: Mapping[str, CellScores],
    pool: Mapping[str, CellScores],
    facts: FactsOf,
    rng: Callable[[], np.random.Generator | Streams],
) -> pd.DataFrame:
    """Calibration error and log-loss with and without a temperature that was fitted on pool rows.

    ``frame`` has predictions, ``scores`` and ``pool`` are those of ``Stored``; ``rng`` gives the random numbers of the
    limits, the same each time. Each cell has its own temperature, because each has other demonstrations. A
    calibration's bias is subtracted first, for test rows and pool rows. Temperatures change no answer. Points without
    pool rows are left out.

    Columns: the setting, k; ``pool_rows``, the smallest number of a cell; ``temperature``, the geometric mean over
    cells, with minimum and maximum; the expected calibration error before, as ``error``, and after, as
    ``scaled_error``, with limits (:func:`icl_bench.analysis.findings.calibration.calibration_error`); log_loss and
    scaled_log_loss in nats, of rows whose right answer is among the labels, and the ``difference``, the second minus
    the first, with ci_low and ci_high (95%); draws, test_rows and interval_over.
    """
    import pandas as pd

    after: dict[str, CellScores] = {}
    fits: dict[str, tuple[float, int]] = {}
    for cell in frame["cell"].astype(str).unique():
        rows = pool.get(base_cell(cell))
        if rows is not None and cell in scores and (both := scaled(scores[cell], rows)) is not None:
            fits[cell], after[cell] = (both[0], len(rows.golds)), both[1]
    if not fits:
        return pd.DataFrame(columns=TEMPERATURE)
    known = frame[frame["cell"].astype(object).isin(fits)]
    sides = [label_probabilities(known, of, facts).assign(label_mass=1.0) for of in (scores, after)]
    errors = [calibration_error(side, rng()).set_index(POINT) for side in sides]
    losses = [side["log_loss"].to_numpy(dtype=float) for side in sides]
    keys, points = grids(sides[0], POINT)
    rows_of: list[dict[str, Any]] = []
    for key, whole in zip(keys.to_dict("records"), points, strict=True):
        point, losing = whole.joined(), whole.joined(~np.isnan(losses[0]))
        named = {str(name): value for name, value in key.items()}
        cells = sides[0]["cell"].astype(str).to_numpy()[point.rows[point.rows >= 0]]
        found = np.array([fits[cell] for cell in np.unique(cells)])
        before, then = (losing.values(loss) for loss in losses)
        draws, tests = point.rows.shape
        row = {
            **named,
            "pool_rows": int(found[:, 1].min()),
            "temperature": float(np.exp(np.log(found[:, 0]).mean())),
            "least_temperature": float(found[:, 0].min()),
            "largest_temperature": float(found[:, 0].max()),
            "draws": draws,
            "test_rows": tests,
            "interval_over": interval_over(draws > 1),
        }
        if losing.predictions:
            row |= {"log_loss": location_interval(before).mean, "scaled_log_loss": location_interval(then).mean}
            if not np.isinf(before).any():  # else a stated prior excludes the right label, at any temperature
                row |= dict(zip(("difference", "ci_low", "ci_high"), location_interval(then - before), strict=True))
        for side, part in zip(("error", "scaled_error"), errors, strict=True):
            error = part.loc[tuple(key.values())]
            row |= {side: error["error"], f"{side}_low": error["ci_low"], f"{side}_high": error["ci_high"]}
        rows_of.append(row)
    return pd.DataFrame(rows_of, columns=TEMPERATURE)


def _temperatures(context: Context) -> pd.DataFrame:
    stored = context.stored
    return temperatures(
        context.unperturbed,
        stored.label_scores,
        stored.pool_scores,
        context.facts,
        lambda: context.generators("calibration"),
    )


TEMPERATURES = Finding(
    "temperature",
    lambda context: context.from_zero_shot(_temperatures(context)),
    (
        Column("pool_rows", "rows of the pool", "count"),
        Column("temperature", "temperature", "number"),
        Column("least_temperature", "least", "number"),
        Column("largest_temperature", "largest", "number"),
        Column("error", "calibration error", "share"),
        Column("error_low", "95% from", "share"),
        Column("error_high", "95% to", "share"),
        Column("scaled_error", "with the temperature", "share"),
        Column("scaled_error_low", "95% from", "share"),
        Column("scaled_error_high", "95% to", "share"),
        Column("log_loss", "log-loss (nats)", "number"),
        Column("scaled_log_loss", "with the temperature", "number"),
        Column("difference", "difference (nats)", "number"),
        Column("ci_low", "95% from", "number"),
        Column("ci_high", "95% to", "number"),
    ),
    caption="Calibration with a temperature fitted on rows of the pool",
    shown=f"task model series k {' '.join(TEMPERATURE[len(POINT) :])}",
    by_task=IN_ORDER,
)
