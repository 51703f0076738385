"""Paired comparisons: points that differ from a base in one respect, at each k, on common examples."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from icl_bench.analysis.draws import deviations_elsewhere, interval_over, is_drawn, outlying_draws
from icl_bench.analysis.statistics.contrast import contrast, detectable, half_widths, p_values
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import Grid, grids
from icl_bench.analysis.statistics.meeting import Meeting, meet
from icl_bench.analysis.statistics.moderation import DrawMeans, moderated
from icl_bench.analysis.statistics.right_answers import with_rows_apart
from icl_bench.metrics.scores import metrics, scored
from icl_bench.models.attention_patterns import FULL, pattern_of
from icl_bench.results.cells import SETTING
from icl_bench.results.facts import NO_FACTS, UNKNOWN, FactsOf, agreement

if TYPE_CHECKING:
    import pandas as pd

TESTS = ("test", "test_rows")
"""Facts that may differ in every comparison, because sides are paired on common test rows."""


RESULT = [
    "metric",
    "difference",
    "ci_low",
    "ci_high",
    "p",
    "p_holm",
    "detectable",
    "mean",
    "base_mean",
    "rows",
    "draws",
    "base_draws",
    "left_out",
    "advice",
    "all_rows",
    "interval_over",
    "withheld",
    "draws_sd",
    "draws_sd_of",
    "outlying_draws",
    "base_outlying_draws",
]


TEXT_COLUMNS = {"metric", "advice", "interval_over", "withheld", "draws_sd_of", "outlying_draws", "base_outlying_draws"}
"""Columns of ``RESULT`` that are text."""


ALPHA = 0.05
"""The significance level of advice and of every other test."""


About = Literal["draws", "demonstrations"]
"""What a comparison generalises to: a selection, model or training with any draws; or the specific demonstrations that
both sides have.
"""


ONE_DRAW, UNKNOWN_BASE, NO_CHANGE = "one draw", "unknown base", "nothing differs"
"""Why there is no p value, and no advice."""


OF_PROMPTS = {"select", "order", "perturbation", "chat"}
"""Columns whose values differ in their prompts or not at all."""


def compare(
    frame: pd.DataFrame,
    base: Mapping[str, str],
    *,
    matched: bool = True,
    facts: FactsOf = NO_FACTS,
    apart: Collection[str] = (),
    unmatched: Collection[str] = (),
    about: About | None = None,
    jointly: bool = False,
) -> pd.DataFrame:
    """Compare points that differ from ``base`` only in its columns with the base at each k.

    ``base`` maps columns of the setting, or further columns that count as part of it, to values, like ``{"order":
    "drawn"}``. With ``matched`` draws (the same demonstrations on both sides), both sides are compared on common draws
    and test examples. Otherwise, without common draws, and for a run beside an import of unknown facts, each side's
    draws are a separate sample and only test examples are paired.

    A point is compared with the base of its own variant. If there is none, as for another model, it is compared with
    other variants that agree in all common ``facts`` (:func:`icl_bench.results.facts.agreement`) except those
    ``apart``, of the test set and of the imported file; among these, with those that agree in most facts. The facts
    ``unmatched`` may differ only where no variant agrees in them; draws are then separate samples. Calibrated
    predictions are compared only with those of the same calibration, and halves of the labels only with the same half
    (the column ``label_space``, if there is one). With ``jointly``, points are compared with the base of their own
    variant only, and p_holm and limits are corrected over k and over all values of the columns of ``base``. Points
    without a base have no row. The compared score is the task's own (:func:`icl_bench.metrics.scores.scored`): accuracy
    or, for free text, ROUGE-1.

    Columns: the setting; k; for each column of ``base``, and variant, the base's value as ``base_...``; ``metric``, the
    compared score; ``difference``, its mean minus the base's, a share of 1; ci_low and ci_high, 95% limits corrected
    like p_holm (:func:`holm_steps`), so that they exclude 0 if p_holm is at most ``ALPHA``; p and p_holm, corrected
    over k and over the bases of a curve that has several (:func:`holm`); ``detectable``, the smallest difference that
    is found in 80% of such samples; mean and base_mean; the number of common ``rows`` (test examples), draws and
    base_draws; ``left_out``, the predictions of either side that have no counterpart; and ``advice``, the side that is
    significantly better (p_holm <= ``ALPHA``; its value of the first column of ``base``), missing if neither is. Then
    ``all_rows``, the test examples of the side that has more; ``interval_over``, the sampled unit of the limits
    (:func:`icl_bench.analysis.draws.interval_over`); ``withheld``, why there is no p; ``draws_sd`` and ``draws_sd_of``,
    if a side has one draw, the deviation of draws elsewhere (:func:`icl_bench.analysis.draws.deviations_elsewhere`, the
    larger of the sides'); and outlying_draws and base_outlying_draws of the compared parts
    (:func:`icl_bench.analysis.draws.outlying_draws`).

    Limits and p are those of :func:`icl_bench.analysis.statistics.contrast.judge`, with the draws' variance of each k
    moderated by the curve's other k (:func:`icl_bench.analysis.statistics.moderation.moderated`). A single draw does
    not generalise to other draws, and two draws of one selection may differ by more than any effect. So p, p_holm and
    advice are withheld if a side has a single random draw (:func:`icl_bench.analysis.draws.is_drawn`) and the
    comparison is ``about`` draws: one selection, model or training against another. Retrieval has one draw by
    definition and is tested. p is also withheld where a curve has several bases in one imported file, which does not
    say in what they differ. If the comparison is about ``demonstrations`` (orders, attention, perturbations), both
    sides have the same ones and p applies to these; it is withheld only without a common draw. Limits of one draw are
    kept, over test examples only. Without ``about`` no single draw is withheld: the caller must interpret it. p is also
    withheld where nothing differs (:func:`_same`): a base in another selection, order, perturbation or chat format has
    the same prompts, or so few demonstrations that a pattern is full attention.

    Raises ValueError if a test example was predicted twice in one draw of a point.
    """
    setting = [*(name for name in base if name not in SETTING), *SETTING]
    own = [name for name in setting if name in base or name == "variant"]
    ways = [*setting, *(f"base_{name}" for name in own)]
    if not _have_both_sides(frame, base):
        return _without_rows([*ways, "k", *RESULT])
    frame = scored(with_rows_apart(frame, facts))
    columns = [*setting, "k", "draw", "test_id", "score", "metric", *({"prompt_hash"} & set(frame))]
    spaces = _label_spaces(frame)
    frame = frame.loc[frame["score"].notna(), columns]
    values = frame["score"].to_numpy(dtype=float)
    keys, points = grids(frame, [*setting, "k"])
    table = _nearest(_pairs(keys, base, setting), facts, apart, unmatched, spaces)
    if jointly:
        table = table[table["variant"] == table["base_variant"]].reset_index(drop=True)
    sides = table.pop("at").to_numpy(), table.pop("base_at").to_numpy()
    places = list(zip(*sides, strict=True))
    unlike = ~table.pop("same_draws").to_numpy(dtype=bool) | _of_other_sources(table, facts)
    met = [
        meet(points[at], points[base_at], matched and not apart_draws)
        for (at, base_at), apart_draws in zip(places, unlike, strict=True)
    ]
    table["metric"] = table["task"].map(metrics(frame))
    contrasts = [contrast(m.point.values(values), m.base.values(values), m.matched) for m in met]
    same = _same(met, frame, base, table)
    of_draws = [
        [] if alike else _draw_means(m, values, tuple(key), k)
        for m, key, k, alike in zip(met, table[ways].itertuples(index=False), table["k"], same, strict=True)
    ]
    contrasts = moderated(contrasts, of_draws)
    table["difference"] = np.array([c.difference for c in contrasts], dtype=float)
    table["mean"] = np.array([c.mean for c in contrasts], dtype=float)
    table["base_mean"] = table["mean"] - table["difference"]
    larger = [max(len(points[at].tests), len(points[base_at].tests)) for at, base_at in places]
    counts = [
        (len(m.point.tests), len(m.point.draws), len(m.base.draws), m.left_out, all_rows)
        for m, all_rows in zip(met, larger, strict=True)
    ]
    names = ["rows", "draws", "base_draws", "left_out", "all_rows"]
    table[names] = np.array(counts, dtype=int).reshape(-1, len(names))
    single = _single(table)
    table = table.assign(
        **_about_draws(met, values, list(map(any, single.T))), **_elsewhere(keys, points, values, sides, single)
    )
    family = [name for name in ways if name != "base_variant"]
    unknown = _unknown_bases(table, family, facts)
    unjudged = _unjudged(met, single, about)
    table["withheld"] = [
        UNKNOWN_BASE if unlike else NO_CHANGE if alike else ONE_DRAW if hidden else None
        for unlike, alike, hidden in zip(unknown, same, unjudged, strict=True)
    ]
    table["p"] = np.where(table["withheld"].notna(), np.nan, p_values(contrasts))
    family = [name for name in family if not jointly or name.removeprefix("base_") not in base]
    together = table.groupby(family, observed=True)["p"]
    table["p_holm"], error = together.transform(holm), together.transform(holm_steps)
    half = half_widths(contrasts, 1 - error.to_numpy(dtype=float))
    centre = np.array([c.centre for c in contrasts], dtype=float)
    table["ci_low"], table["ci_high"] = (centre - half).clip(-1, 1), (centre + half).clip(-1, 1)
    table["detectable"] = detectable(contrasts, half)
    first = next(iter(base))
    better = table[first].where(table["difference"] > 0, table[f"base_{first}"])
    table["advice"] = better.where(table["p_holm"] <= ALPHA)
    return table[[*ways, "k", *RESULT]]


def _draw_means(met: Meeting, values: np.ndarray, curve: tuple[Any, ...], k: int) -> list[DrawMeans]:
    """Each sample of draws of two points, as passed to :func:`contrast`."""
    first, second = (side.values(values) for side in (met.point, met.base))
    if not first.size:
        return []
    if met.matched:
        samples = [("both", met.point.draws, first - second)]
    else:
        samples = [("point", met.point.draws, first), ("base", met.base.draws, second)]
    return [
        DrawMeans((*curve, side), k, draws, TwoWayLayout(scores).by_draw)
        for side, draws, scores in samples
        if len(draws) > 1
    ]


def _single(table: pd.DataFrame) -> np.ndarray:
    """Which sides have a single random draw, the point's and the base's: ``(2, points)``."""
    selects = table["select"], table.get("base_select", table["select"])
    drawn = np.array([_are_drawn(select, table["k"]) for select in selects])
    single: np.ndarray = drawn & (table[["draws", "base_draws"]].to_numpy().T == 1)
    return single


def _are_drawn(select: pd.Series, k: pd.Series) -> np.ndarray:
    """Which points have random demonstrations; without demonstrations nothing is random."""
    drawn: np.ndarray = select.map(is_drawn).to_numpy(dtype=bool) & (k.to_numpy() > 0)
    return drawn


def _unjudged(met: Sequence[Meeting], single: np.ndarray, about: About | None) -> list[bool]:
    """Which comparisons a single draw cannot decide."""
    if about is None:
        return [False] * len(met)
    same = [m.matched and about == "demonstrations" for m in met]
    return [any(sides) and not kept for sides, kept in zip(single.T, same, strict=True)]


def _same(met: Sequence[Meeting], frame: pd.DataFrame, base: Mapping[str, str], table: pd.DataFrame) -> list[bool]:
    """Which comparisons are of the same: prompts with equal stored hashes, orders of a single demonstration, and
    patterns that are full attention for k demonstrations.
    """
    import pandas as pd

    if base == {"attention": str(FULL)}:
        patterns = zip(map(pattern_of, table["attention"]), table["k"], strict=True)
        return [pattern is not None and pattern.is_full(k) for pattern, k in patterns]
    if not base.keys() <= OF_PROMPTS:  # other models, attentions or calibrations answer the same prompts
        return [False] * len(met)
    single = [k <= 1 and "order" in base and "select" not in base for k in table["k"]]
    if "prompt_hash" not in frame:
        return single
    prompts, _ = pd.factorize(frame["prompt_hash"])

    def equal(m: Meeting) -> bool:
        mine, others = (prompts[side.rows[side.rows >= 0]] for side in (m.point, m.base))
        return bool(m.matched and mine.size and (mine >= 0).all() and np.array_equal(mine, others))

    return [alone or equal(m) for alone, m in zip(single, met, strict=True)]


def _unknown_bases(table: pd.DataFrame, curve: Sequence[str], facts: FactsOf) -> np.ndarray:
    """Which comparisons are with one of several variants of the base in the same imported file.

    The file does not say in what its variants differ, so none of them is known to be like the point's.
    """
    sides = ([facts.get(variant, UNKNOWN) for variant in table[name]] for name in ("variant", "base_variant"))
    of_file = [mine.imported is not None and mine == other for mine, other in zip(*sides, strict=True)]
    several = table.groupby(list(curve), observed=True)["base_variant"].transform("nunique") > 1
    unknown: np.ndarray = several.to_numpy(dtype=bool) & np.array(of_file, dtype=bool)
    return unknown


def _of_other_sources(table: pd.DataFrame, facts: FactsOf) -> np.ndarray:
    """Which comparisons are of a run with an import of unknown facts: their draws of equal numbers are not the same."""
    unknown = {variant for variant, of in facts.items() if of.imported is not None and not of.are_of_a_run}
    sides = zip(table["variant"], table["base_variant"], strict=True)
    return np.array([(variant in unknown) != (base in unknown) for variant, base in sides], dtype=bool)


def _about_draws(met: Sequence[Meeting], values: np.ndarray, unknown: Sequence[bool]) -> dict[str, Any]:
    """The sampled unit of limits, with one side's draws ``unknown`` or not, and outlying draws of each side."""
    sides = {"outlying_draws": [m.point for m in met], "base_outlying_draws": [m.base for m in met]}
    outlying = {
        name: np.array([outlying_draws(g.draws, g.values(values)) for g in grids], dtype=object)
        for name, grids in sides.items()
    }
    several = [max(len(m.point.draws), len(m.base.draws)) > 1 for m in met]
    over = [interval_over(*both) for both in zip(several, unknown, strict=True)]
    return {"interval_over": np.array(over, dtype=object), **outlying}


def _elsewhere(
    keys: pd.DataFrame,
    all_points: Sequence[Grid],
    values: np.ndarray,
    sides: tuple[np.ndarray, np.ndarray],
    single: np.ndarray,
) -> dict[str, Any]:
    """The deviation of repeated draws, for sides that have one draw.

    Draws of retrieval are copies or nearly so, and do not count.
    """
    means = [TwoWayLayout(grid.joined().values(values)).by_draw for grid in all_points]
    repeated = [of and len(m) > 1 for of, m in zip(_are_drawn(keys["select"], keys["k"]), means, strict=True)]
    points = keys.assign(
        draw_variance=[m.var(ddof=1) if of else np.nan for of, m in zip(repeated, means, strict=True)],
        draw_freedom=[len(m) - 1 if of else 0 for of, m in zip(repeated, means, strict=True)],
    )
    deviations = deviations_elsewhere(points)
    sd, where = (deviations[name].to_numpy()[np.array(sides)] for name in ("draws_sd", "draws_sd_of"))
    sd = np.where(single, sd, np.nan)
    larger = np.nan_to_num(sd, nan=-1).argmax(axis=0)[None]
    largest = np.take_along_axis(sd, larger, axis=0)[0]
    named = np.take_along_axis(where, larger, axis=0)[0]
    return {"draws_sd": largest, "draws_sd_of": np.where(np.isnan(largest), None, named)}


def _have_both_sides(frame: pd.DataFrame, base: Mapping[str, str]) -> bool:
    """Whether there are predictions on both sides, so that there is something to compare."""
    is_base = np.logical_and.reduce([frame[name] == value for name, value in base.items()])
    return bool(is_base.any() and not is_base.all())


def _without_rows(columns: Sequence[str]) -> pd.DataFrame:
    """A table of comparisons without rows."""
    import pandas as pd

    numbers = set(RESULT) - TEXT_COLUMNS
    return pd.DataFrame({name: np.empty(0, dtype=float if name in numbers else object) for name in columns})


def _pairs(keys: pd.DataFrame, base: Mapping[str, str], setting: Sequence[str]) -> pd.DataFrame:
    """The pairs of points to compare: setting, ``base_`` columns, k and the positions ``at`` and ``base_at``."""
    keys = keys.astype(dict.fromkeys(setting, object)).assign(at=np.arange(len(keys)))
    is_base = np.logical_and.reduce([keys[name] == value for name, value in base.items()])
    own = [name for name in setting if name in base or name == "variant"]
    same = [name for name in [*setting, "k"] if name not in own]
    bases = keys[is_base].rename(columns={name: f"base_{name}" for name in [*own, "at"]})
    pairs: pd.DataFrame = keys[~is_base].merge(bases, on=same)
    names = [*setting, *(f"base_{name}" for name in own), "k"]
    return pairs.sort_values(names)[[*names, "at", "base_at"]].reset_index(drop=True)


def _label_spaces(frame: pd.DataFrame) -> dict[str, str]:
    """Variant -> the half of the labels of its predictions, also of imports, whose facts do not have it."""
    if "label_space" not in frame:
        return {}
    halves = frame.loc[frame["label_space"].notna(), ["variant", "label_space"]].drop_duplicates("variant")
    halves = halves.astype(object)
    return dict(zip(halves["variant"], halves["label_space"], strict=True))


def _nearest(
    pairs: pd.DataFrame, facts: FactsOf, apart: Collection[str], unmatched: Collection[str], spaces: Mapping[str, str]
) -> pd.DataFrame:
    """For each point, the pair with its own variant, or the pairs that agree in most facts, first those ``unmatched``.

    The column ``same_draws`` is whether these agree.
    """
    free = {"imported", *TESTS, *apart, *unmatched}
    known = {variant: of.known() for variant, of in facts.items()}

    def rank(variant: str, base: str) -> int:
        if variant == base:
            return 2 * len(free) + 1
        if spaces.get(variant) != spaces.get(base):
            return -1
        mine, others = known.get(variant, {}), known.get(base, {})
        equal = agreement(mine, others)
        if not all(equal[name] for name in equal.keys() - free):
            return -1
        same_draws = all(equal.get(name, True) for name in unmatched)
        return sum(equal.get(name, False) for name in free) + same_draws * len(free)

    names = pairs[["variant", "base_variant"]]
    ranks = np.array([rank(*both) for both in names.itertuples(index=False)], dtype=int)
    ranked = pairs.assign(rank=ranks, same_draws=ranks >= len(free))
    best = ranked["rank"] == ranked.groupby("at")["rank"].transform("max")
    return ranked[best & (ranked["rank"] >= 0)].drop(columns="rank").reset_index(drop=True)


def holm(p: Any) -> np.ndarray:
    """Return p values adjusted for their number (Holm 1979, Scand. J. Stat. 6:65), in their order.

    NaN stays NaN and is not counted, because there was no test.
    """
    p = np.asarray(p, dtype=float)
    adjusted = np.full(len(p), np.nan)
    order = np.argsort(p, kind="stable")[: np.count_nonzero(~np.isnan(p))]  # NaN sorts last
    steps = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


def holm_steps(p: Any) -> np.ndarray:
    """The error at which Holm's procedure tests each p value, ``(tests,)``, in their order.

    Limits at this error exclude 0 if and only if the adjusted p is at most ``ALPHA``: once a p value is too large, all
    larger ones have the same error. ``ALPHA`` without a test (NaN).
    """
    p = np.asarray(p, dtype=float)
    steps = np.full(len(p), ALPHA)
    order = np.argsort(p, kind="stable")[: np.count_nonzero(~np.isnan(p))]
    errors = ALPHA / np.arange(len(order), 0, -1)
    kept = p[order] > errors
    last = int(kept.argmax()) if kept.any() else len(order)
    steps[order] = errors[np.minimum(np.arange(len(order)), last)]
    return steps
