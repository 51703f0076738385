"""Paired comparisons: what differs from a base in one respect, at each k, on common examples."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.analysis.statistics.contrast import Alternative, contrast, judge
from icl_bench.analysis.statistics.grid import Grid, grids
from icl_bench.metrics.scores import metrics, scored
from icl_bench.results.cells import SETTING
from icl_bench.results.reading import IMPORTED

if TYPE_CHECKING:
    import pandas as pd

Facts = Mapping[str, Mapping[str, Any]]
"""Variant -> its facts."""


NO_FACTS: Facts = {}


TESTS = ("test", "test_rows")
"""Facts that may differ in every comparison: sides are paired on what both have."""


RESULT = ["metric", "difference", "ci_low", "ci_high", "p", "p_holm", "mean", "base_mean", "rows",
          "draws", "base_draws", "left_out", "advice"]  # fmt: skip


class Meeting(NamedTuple):
    """The common parts of two points."""

    point: Grid
    base: Grid
    matched: bool
    """Whether row d of both is one draw."""
    left_out: int
    """Predictions of either that are in no common part."""


def compare(
    frame: pd.DataFrame,
    base: Mapping[str, str],
    *,
    value: str | None = None,
    matched: bool = True,
    alternative: Alternative = "two-sided",
    alpha: float = 0.05,
    facts: Facts = NO_FACTS,
    apart: Collection[str] = (),
) -> pd.DataFrame:
    """Compare whatever differs from ``base`` in its columns, and in no others, with it at each k.

    ``base`` is columns of the setting, or further ones that are taken as part of it, and a value of
    each, like ``{"order": "drawn"}``. Both sides
    are taken where both have predictions: with ``matched`` draws (the same demonstrations on both
    sides) in common draws and test examples. Otherwise, and where no draw is common, each side's
    draws are a sample of their own and test examples alone are paired.

    A point is compared with the base of its own variant. Where there is none, as for another model,
    it is compared with those of other variants that agree in all ``facts`` that both have but those
    ``apart``, of the test set and of the imported file, of these with those that agree in most.
    Without any it has no row.
    What is compared is the column ``value``, by default each task's own score
    (:func:`icl_bench.metrics.scores.scored`): accuracy or, for free text, ROUGE-1.

    Columns: the setting; k; for each column of ``base``, and variant, the base's value as
    ``base_...``; ``metric``, what is compared; ``difference`` of its mean, a share of 1, from the
    base's, ci_low and ci_high (95%); p and p_holm, corrected over the ks (:func:`holm`); mean and
    base_mean; the number of common ``rows`` (test examples), draws and base_draws; ``left_out``,
    the predictions of either side that have no counterpart; and ``advice``, the side that is better
    by p_holm <= ``alpha`` (its value of the first column of ``base``), missing where there is no
    telling.

    Limits and p are those of :func:`icl_bench.analysis.statistics.contrast.judge`. A single draw
    says nothing of other draws: then they speak of its demonstrations alone.

    Raises ValueError if a test example was predicted twice in one draw of a point.
    """
    setting = [*(name for name in base if name not in SETTING), *SETTING]
    own = [name for name in setting if name in base or name == "variant"]
    ways = [*setting, *(f"base_{name}" for name in own)]
    if not _have_both_sides(frame, base):
        return _without_rows([*ways, "k", *RESULT])
    frame = scored(frame, value)
    columns = [*setting, "k", "draw", "test_id", "score", "metric"]
    frame = frame.loc[frame["score"].notna(), columns]
    values = frame["score"].to_numpy(dtype=float)
    keys, found = grids(frame, [*setting, "k"])
    table = _nearest(_pairs(keys, base, setting), facts, apart)
    met = [
        _meet(found[at], found[base_at], matched)
        for at, base_at in zip(table.pop("at"), table.pop("base_at"), strict=True)
    ]
    table["metric"] = table["task"].map(metrics(frame))
    contrasts = [contrast(m.point.values(values), m.base.values(values), m.matched) for m in met]
    low, high, p = judge(contrasts, alternative)
    table["difference"] = np.array([c.difference for c in contrasts], dtype=float)
    table["ci_low"], table["ci_high"], table["p"] = low.clip(-1, 1), high.clip(-1, 1), p
    table["mean"] = np.array([c.mean for c in contrasts], dtype=float)
    table["base_mean"] = table["mean"] - table["difference"]
    counts = [(len(m.point.tests), len(m.point.draws), len(m.base.draws), m.left_out) for m in met]
    table[["rows", "draws", "base_draws", "left_out"]] = np.array(counts, dtype=int).reshape(-1, 4)
    table["p_holm"] = table.groupby(ways, observed=True)["p"].transform(holm)
    first = next(iter(base))
    better = table[first].where(table["difference"] > 0, table[f"base_{first}"])
    table["advice"] = better.where(table["p_holm"] <= alpha)
    return table[[*ways, "k", *RESULT]]


def _have_both_sides(frame: pd.DataFrame, base: Mapping[str, str]) -> bool:
    """Whether some predictions are of the base and some are not: else there is nothing to do."""
    is_base = np.logical_and.reduce([frame[name] == value for name, value in base.items()])
    return bool(is_base.any() and not is_base.all())


def _without_rows(columns: Sequence[str]) -> pd.DataFrame:
    """A table of comparisons of which there are none."""
    import pandas as pd

    numbers = set(RESULT) - {"metric", "advice"}
    kinds = {name: float if name in numbers else object for name in columns}
    return pd.DataFrame(columns=list(columns)).astype(kinds)


def _pairs(keys: pd.DataFrame, base: Mapping[str, str], setting: Sequence[str]) -> pd.DataFrame:
    """Which points meet: setting, ``base_`` columns, k and the places ``at`` and ``base_at``."""
    keys = keys.astype(dict.fromkeys(setting, object)).assign(at=np.arange(len(keys)))
    is_base = np.logical_and.reduce([keys[name] == value for name, value in base.items()])
    own = [name for name in setting if name in base or name == "variant"]
    same = [name for name in [*setting, "k"] if name not in own]
    bases = keys[is_base].rename(columns={name: f"base_{name}" for name in [*own, "at"]})
    pairs: pd.DataFrame = keys[~is_base].merge(bases, on=same)
    names = [*setting, *(f"base_{name}" for name in own), "k"]
    return pairs.sort_values(names)[[*names, "at", "base_at"]].reset_index(drop=True)


def _nearest(pairs: pd.DataFrame, facts: Facts, apart: Collection[str]) -> pd.DataFrame:
    """Of each point's pairs the one of its own variant, or those that have most in common."""
    free = {IMPORTED, *TESTS, *apart}

    def common(variant: str, base: str) -> int:
        if variant == base:
            return len(free) + 1
        mine, others = facts.get(variant, {}), facts.get(base, {})
        equal = {name: fact == others[name] for name, fact in mine.items()
                 if fact is not None and others.get(name) is not None}  # fmt: skip
        if not all(equal[name] for name in equal.keys() - free):
            return -1
        return sum(equal.get(name, False) for name in free)

    names = pairs[["variant", "base_variant"]]
    found = pairs.assign(common=[common(*both) for both in names.itertuples(index=False)])
    best = found.groupby("at")["common"].transform("max")
    kept = (found["common"] >= 0) & (found["common"] == best)
    return pairs[kept].reset_index(drop=True)


def _meet(point: Grid, base: Grid, matched: bool) -> Meeting:
    """Match two points by test ids and, where draws are matched and common, by draws."""
    a, b = _common(point, base, "tests")
    matched = matched and bool(np.isin(a.draws, b.draws).any())
    if matched:
        a, b = _common(a, b, "draws")
        a, b = _answered_by_both(a, b)
    else:
        a, b = _common(a.joined(), b.joined(), "tests")
        a, b = a.of_rows(), b.of_rows()  # draws without any of the common test examples
    there = point.predictions + base.predictions
    return Meeting(a, b, matched, there - a.predictions - b.predictions)


def _answered_by_both(a: Grid, b: Grid) -> tuple[Grid, Grid]:
    """Two grids of the same draws and test examples without what one of them lacks."""
    both = (a.rows >= 0) & (b.rows >= 0)
    if both.all():
        return a, b
    a = a._replace(rows=np.where(both, a.rows, -1)).joined()
    draws, tests = np.isin(b.draws, a.draws), np.isin(b.tests, a.tests)
    b = b.take(np.flatnonzero(draws), np.flatnonzero(tests))
    return a, b._replace(rows=np.where(a.rows >= 0, b.rows, -1))


def _common(a: Grid, b: Grid, axis: str) -> tuple[Grid, Grid]:
    """Both grids where they agree in test ids, or in draws."""
    mine, others = getattr(a, axis), getattr(b, axis)
    if np.array_equal(mine, others):
        return a, b
    _, here, there = np.intersect1d(mine, others, assume_unique=True, return_indices=True)

    def part(grid: Grid, places: np.ndarray) -> Grid:
        if axis == "draws":
            return grid.take(places, np.arange(len(grid.tests)))
        return grid.take(np.arange(len(grid.draws)), places)

    return part(a, here), part(b, there)


def holm(p: Any) -> np.ndarray:
    """Return p values adjusted for their number (Holm 1979, Scand. J. Stat. 6:65), in their order.

    NaN stays NaN and is not counted: there was no test.
    """
    p = np.asarray(p, dtype=float)
    adjusted = np.full(len(p), np.nan)
    order = np.argsort(p, kind="stable")[: np.count_nonzero(~np.isnan(p))]  # NaN sorts last
    steps = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted
