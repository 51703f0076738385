"""The smallest difference that the data can show, and whether more draws or more test examples help."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from icl_bench.analysis.columns import POINT
from icl_bench.analysis.draws import candidate, is_shuffled
from icl_bench.analysis.predictions import comparable_predictions
from icl_bench.analysis.statistics.best import Candidate
from icl_bench.analysis.statistics.grid import grids, partition
from icl_bench.analysis.statistics.power import Components, components, draws_needed, rows_needed, smallest
from icl_bench.errors import UserError
from icl_bench.metrics.scores import scored
from icl_bench.results.reading import read_some
from icl_bench.results.storage import Place
from icl_bench.wording import counted, percent, plain

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

PUBLISHED = "Bertsch et al. 2025: random against BM25, TREC and Banking-77, Llama-2-7B"

TYPICAL = (
    (10, Components(0.20, (0.0078,), (0.109,))),
    (100, Components(0.13, (0.0006,), (0.110,))),
    (math.inf, Components(0.055, (0.0003,), (0.061,))),
)
"""Variances of a comparison, up to this number of demonstrations: medians over the points of the published predictions
of Bertsch et al. 2025 (``PUBLISHED``; 9, 14 and 9 points, ten draws of 250 test rows).
"""

DETECT = [
    "task",
    "model",
    "k",
    "draws",
    "test_rows",
    "detectable",
    "wanted",
    "draws_needed",
    "rows_needed",
    "buy",
    "pairs",
    "variances_of",
]


class Pair(NamedTuple):
    """Two points with the variances of their difference."""

    of: Components
    draws: int
    rows: int


Size = tuple[int, int]
"""Draws and test rows."""


def check_points(points: float) -> float:
    """The wanted difference as a share of 1. Raises ``UserError`` unless it is above 0 and at most 100 points."""
    if not 0 < points <= 100:
        raise UserError(f"--detect {points:g}: a difference in points, above 0 and at most 100")
    return points / 100


def detect(frame: pd.DataFrame, wanted: float) -> pd.DataFrame:
    """For each task, model and k, compute the smallest difference of two points that is found in 80% of samples.

    ``frame`` has predictions, ``wanted`` is a difference as a share of 1. Points of one k are compared in pairs; with a
    single curve, each point is compared with its next k. Points with a single random draw are not used. A k without
    other points has the variances of ``TYPICAL``.

    Columns: task, model, k; draws and test_rows of the comparison; ``detectable``, the smallest difference that a
    two-sided test at 0.05 finds in 80% of samples (:mod:`icl_bench.analysis.statistics.power`; the median over the
    pairs of points, not corrected for several comparisons), infinite (null in JSON) if none is; ``wanted``;
    ``draws_needed`` with these test rows and ``rows_needed`` with these draws to find that, missing if no number
    suffices; ``buy``, which of the two needs fewer predictions (``draws``, ``test rows``, or ``nothing`` if the data
    suffice); ``pairs``, and ``variances_of``, ``results`` or ``published``.
    """
    import pandas as pd

    rows = [
        {"task": task, "model": model, **described(k, pairs, size, wanted)}
        for (task, model), ks in _compared(frame)
        for k, (size, pairs) in ks.items()
    ]
    return pd.DataFrame(rows, columns=DETECT)


def _compared(frame: pd.DataFrame) -> Iterator[tuple[tuple[str, str], dict[int, tuple[Size, list[Pair]]]]]:
    """Task and model -> each k -> draws and test rows of its first point, and comparisons of its points."""
    frame = scored(frame)
    frame = frame[frame["score"].notna() & ~is_shuffled(frame["order"])]
    frame = frame[[*POINT, "draw", "test_id", "score"]].reset_index(drop=True)
    scores = frame["score"].to_numpy(dtype=float)
    keys, points = grids(frame, POINT)
    for places in partition(keys, ["task", "model"])[1]:
        of_pair = keys.iloc[places]
        candidates = [
            candidate(points[place].joined(), select, k)
            for place, select, k in zip(places, of_pair["select"], of_pair["k"], strict=True)
        ]
        ways = of_pair[[name for name in POINT if name != "k"]].astype(str).agg(" ".join, axis=1).tolist()
        ks = {}
        for k in sorted({one.k for one in candidates} - {0}):
            draws, rows = next(one.grid for one in candidates if one.k == k).rows.shape
            ks[k] = (draws, rows), _pairs(candidates, ways, k, scores)
        yield tuple(of_pair[["task", "model"]].iloc[0]), ks


def described(k: int, pairs: Sequence[Pair], size: Size, wanted: float) -> dict[str, Any]:
    """The columns of one k; without ``pairs``, of its draws and test rows by the typical variances."""
    published = not pairs
    if published:
        pairs = [Pair(next(of for below, of in TYPICAL if k < below), max(size[0], 2), size[1])]
    found = sorted(((smallest(*pair), number) for number, pair in enumerate(pairs)))
    detectable, number = found[(len(found) - 1) // 2]
    of, draws, rows = pairs[number]
    more_draws = draws_needed(of, rows, wanted) if of.draws else None
    more_rows = rows_needed(of, draws, wanted)
    by_cost = {
        "draws": math.inf if more_draws is None else more_draws * rows,
        "test rows": math.inf if more_rows is None else more_rows * draws,
    }
    buy = min(by_cost, key=lambda name: by_cost[name])
    return {
        "k": k,
        "draws": draws,
        "test_rows": rows,
        "detectable": detectable,
        "wanted": wanted,
        "draws_needed": more_draws,
        "rows_needed": more_rows,
        "buy": "nothing" if detectable <= wanted else "both" if math.isinf(by_cost[buy]) else buy,
        "pairs": 0 if published else len(pairs),
        "variances_of": "published" if published else "results",
    }


def _pairs(candidates: Sequence[Candidate], ways: Sequence[str], k: int, scores: np.ndarray) -> list[Pair]:
    """Comparisons of points of one k, or of one curve's points with its next k, with known variances."""
    judged = [at for at, one in enumerate(candidates) if one.judged]
    here = [at for at in judged if candidates[at].k == k]
    pairs = [(i, j) for i in here for j in here if i < j]
    if not pairs:
        larger = [at for at in judged if candidates[at].k > k]
        following = {at: [j for j in larger if ways[j] == ways[at]] for at in here}
        pairs = [(at, min(js, key=lambda j: candidates[j].k)) for at, js in following.items() if js]
    found = []
    for i, j in pairs:
        met = candidates[i].meet(candidates[j])
        of = components(met.point.values(scores), met.base.values(scores), met.matched)
        if of is not None and (of.tests or any(of.draws) or any(of.rest)):  # not for equal answers
            found.append(Pair(of, max(len(met.point.draws), len(met.base.draws)), len(met.point.tests)))
    return found


def detect_folder(results: Place, points: float, only: Mapping[str, str] | None = None) -> pd.DataFrame:
    """:func:`detect` on a results folder, or on its part with these values (task, model).

    ``points`` is the wanted difference. Halves of a label space and perturbed demonstrations are left out. Raises
    ``UserError`` if nothing is left.
    """
    wanted = check_points(points)
    table = detect(comparable_predictions(read_some(results, only), derived=False), wanted)
    if table.empty:
        raise UserError(f"results folder {plain(results)}: no finished cell with demonstrations")
    return table


def planned(k: int, known: Mapping[int, Sequence[Pair]], size: Size, wanted: float) -> dict[str, Any]:
    """The columns of one k of a plan, from the variances ``known`` at the nearest k (:func:`known_pairs`)."""
    nearest = min(known, key=lambda other: abs(math.log(other / k)), default=None)
    pairs = [] if nearest is None else [pair._replace(draws=size[0], rows=size[1]) for pair in known[nearest]]
    return described(k, [pair for pair in pairs if pair.draws > 1 or not pair.of.draws], size, wanted)


def known_pairs(results: Place, task: str, model: str) -> dict[int, list[Pair]]:
    """Each k -> comparisons of a task and model with variances known from the results; empty without results."""
    try:
        stored = read_some(results, {"task": task, "model": model})
    except UserError:
        return {}
    return {
        k: pairs
        for _, ks in _compared(comparable_predictions(stored, derived=False))
        for k, (_, pairs) in ks.items()
        if pairs
    }


def lines(table: pd.DataFrame) -> Iterator[str]:
    """The table of :func:`detect` as text, one line per k."""
    for row in table.to_dict("records"):
        of = f"{counted(row['draws'], 'draw')} of {counted(row['test_rows'], 'test row')}"
        least = (
            "no difference" if math.isinf(row["detectable"]) else f"a difference of {percent(row['detectable'])} points"
        )
        yield f"{row['task']} · {row['model']}, k = {row['k']:,}: {of} find {least} with 80% power; {_needed(row)}"
    if (table["variances_of"] == "published").any():
        yield f"where no two points of a k have several draws, the variances are typical ones ({PUBLISHED})"
    yield "for one comparison, two-sided at 0.05; correcting for several k or points takes more data"


def _needed(row: Mapping[Any, Any]) -> str:
    """Text about the draws or test rows that the wanted difference needs."""
    wanted = f"{percent(row['wanted'])} points"
    if row["buy"] == "nothing":
        return f"{wanted} need no more"
    if row["buy"] == "both":
        return f"{wanted} need more draws and more test rows"
    needed = {"draws": row["draws_needed"], "test rows": row["rows_needed"]}
    ways = [f"{int(number):,} {what}" for what, number in needed.items() if number is not None and number == number]
    if len(ways) > 1:
        return f"{wanted} need {' or '.join(ways)}; {row['buy']} take fewer predictions"
    other = "test rows" if row["buy"] == "draws" else "draws"
    return f"{wanted} need {ways[0]}; more {other} alone do not suffice"
