"""The sample learning ratio: whether a task depends on the few demonstrations similar to the query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.by_task import ByTask
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.draws import interval_over
from icl_bench.analysis.finding import Finding, Printed
from icl_bench.analysis.statistics.bootstrap import Streams, means, resample, stream_of
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import common_rows, grids
from icl_bench.metrics.scores import metrics, scored
from icl_bench.results.cells import SETTING
from icl_bench.results.facts import FactsOf

if TYPE_CHECKING:
    import pandas as pd

NEAREST, FARTHEST = "nearest-removed", "farthest-removed"

RESAMPLES = 2000

SMALL_DIVISOR = "leaving out the least similar changes too little to divide by"

RATIO = [
    "k",
    "removed",
    "metric",
    "score",
    "nearest_lost",
    "nearest_low",
    "nearest_high",
    "farthest_lost",
    "farthest_low",
    "farthest_high",
    "ratio",
    "ratio_low",
    "ratio_high",
    "draws",
    "test_rows",
    "interval_over",
    "reason",
]


def learning_ratio(
    predictions: pd.DataFrame, effects: pd.DataFrame, rng: np.random.Generator | Streams
) -> pd.DataFrame:
    """The loss without the most similar demonstrations, divided by the loss without the least similar ones.

    The sample learning ratio of ManyICLBench (Zou, Khalifa & Wang 2025, ACL, "On Many-Shot In-Context Learning for
    Long-Context Evaluation"): the relative change of the score without the 10% of the demonstrations that are most
    similar to each query, over that without the 10% least similar. Far above 1, the task depends on similar
    demonstrations (similar-sample learning). Near 1, all demonstrations matter equally (all-sample learning).

    ``predictions`` are those of test examples, perturbed or not; ``effects`` is
    :func:`icl_bench.analysis.findings.comparisons.perturbation_effect`'s table, which pairs perturbed and unperturbed
    points. One row for each point with all three: the setting of the unperturbed one, k, ``removed`` (percent), metric
    and its unperturbed ``score``; the loss without the nearest and farthest, shares of 1, with 95% limits by resampling
    draws and test examples together; the ``ratio`` with limits; draws, test_rows and interval_over (with one draw, test
    examples only: the ratio for other demonstrations is then unknown). Without a ratio there is a ``reason``: the loss
    without the farthest is not significantly above 0, so the quotient is not reported.
    """
    import pandas as pd

    frame = scored(predictions)
    frame = frame[frame["score"].notna()]
    of_task = metrics(frame)
    keys, points = grids(frame, POINT)
    scores = frame["score"].to_numpy(dtype=float)
    names = keys.astype(dict.fromkeys(SETTING, object)).itertuples(index=False)
    places = {tuple(key): place for place, key in enumerate(names)}
    rows: list[dict[str, Any]] = []
    for point, removed, near, far in _beside(effects):
        three = [points[places[key]] for key in (point, near, far)]
        common = common_rows(three)
        row = {**dict(zip(POINT, point, strict=True)), "removed": removed, "metric": of_task[point[0]]}
        if common is None:
            rows.append({**row, "reason": "no test rows in common"})
            continue
        draws, tests, at = common
        plain, *less = (np.where(part < 0, np.nan, scores[part]) for part in at)
        row |= {
            "score": float(TwoWayLayout(plain).mean),
            "draws": len(draws),
            "test_rows": len(tests),
            "interval_over": interval_over(len(draws) > 1),
        }
        rows.append({**row, **_ratio(plain - less[0], plain - less[1], stream_of(rng, point[0]))})
    return pd.DataFrame(rows, columns=[*SETTING, *RATIO])


Key = tuple[Any, ...]


def _beside(effects: pd.DataFrame) -> Iterator[tuple[Key, float, Key, Key]]:
    """Pairs of points without the nearest and without the farthest demonstrations, with the same percentage."""
    named = effects.astype({name: object for name in effects if name not in ("k", "difference")})
    removals: dict[tuple[Key, str], dict[str, Key]] = {}
    for row in named.to_dict("records"):
        kind, _, percent = str(row["perturbation"]).partition(":")
        if kind in (NEAREST, FARTHEST):
            own = tuple(row[name] for name in POINT)
            plain = tuple(row["base_variant" if name == "variant" else name] for name in POINT)
            removals.setdefault((plain, percent), {})[kind] = own
    for (plain, percent), kinds in removals.items():
        if len(kinds) == 2:
            yield plain, float(percent), kinds[NEAREST], kinds[FARTHEST]


def _ratio(nearest: np.ndarray, farthest: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    """Both losses ``(draws, test)``, and the quotient of their means."""
    counts = resample(rng, RESAMPLES, *nearest.shape)
    losses: dict[str, Any] = {}
    again = []
    for name, lost in (("nearest", nearest), ("farthest", farthest)):
        again.append(means(lost, counts))
        low, high = np.quantile(again[-1], [0.025, 0.975]).tolist()
        mean = float(TwoWayLayout(lost).mean)
        losses |= {f"{name}_lost": mean, f"{name}_low": low, f"{name}_high": high}
    if losses["farthest_low"] <= 0:
        return {**losses, "reason": SMALL_DIVISOR}
    # a divisor of 0 or less is beyond all others: the quotient's sign is that of the other loss
    beyond = np.copysign(np.inf, again[0])
    quotients = np.divide(again[0], again[1], out=beyond, where=again[1] > 0)
    low, high = np.quantile(quotients, [0.025, 0.975]).tolist()
    if not np.isfinite([low, high]).all():
        return {**losses, "reason": SMALL_DIVISOR}
    ratio = losses["nearest_lost"] / losses["farthest_lost"]
    return {**losses, "ratio": ratio, "ratio_low": low, "ratio_high": high}


def _removed(table: pd.DataFrame, facts: FactsOf) -> pd.Series[Any]:
    """The percentage as text, by which the perturbations are in order."""
    del facts
    return table["removed"].map("{:g}".format)


LEARNING_RATIO = Finding(
    "learning_ratio",
    lambda context: learning_ratio(
        context.of_tests, context.table("perturbations"), context.generators("learning ratio")
    ),
    (
        Column("removed", "left out (%)", "number", short="left\nout %"),
        Column("nearest_lost", "loss without the nearest", "points", short="nearest\nlost"),
        Column("nearest_low", "95% from", "points", short="95%", upper="nearest_high"),
        Column("nearest_high", "95% to", "points"),
        Column("farthest_lost", "loss without the farthest", "points", short="farthest\nlost"),
        Column("farthest_low", "95% from", "points", short="95%", upper="farthest_high"),
        Column("farthest_high", "95% to", "points"),
        Column("ratio", "sample learning ratio", "number", short="ratio"),
        Column("ratio_low", "95% from", "number", short="95%", upper="ratio_high"),
        Column("ratio_high", "95% to", "number"),
        Column("reason", "not estimated", optional=True),
    ),
    caption="Sample learning ratio",
    shown="task model series k removed score nearest_lost nearest_low nearest_high farthest_lost "
    "farthest_low farthest_high ratio ratio_low ratio_high draws test_rows interval_over reason",
    printed=Printed(
        "sample learning ratio: what the most similar demonstrations bring, over the least, points",
        "task model select k draws removed nearest_lost nearest_low farthest_lost farthest_low ratio ratio_low reason",
    ),
    by_task=ByTask((_removed, "task")),
)
