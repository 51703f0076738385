"""Saturation: the certainty of its point, and the share of the context window that it needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.analysis.by_task import BY_NAME, IN_ORDER, ByTask
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.curves import SATURATED, saturation
from icl_bench.analysis.finding import Finding, Printed, Section
from icl_bench.analysis.predictions import prompt_lengths
from icl_bench.analysis.statistics.alike import all_or_common, filled, on_tests
from icl_bench.analysis.statistics.bootstrap import Streams, means, resample, stream_of
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import Grid, grids, partition
from icl_bench.metrics.scores import ACCURACY, metrics, scored
from icl_bench.results.cells import SETTING
from icl_bench.results.facts import NO_FACTS, UNKNOWN, FactsOf
from icl_bench.wording import percent

if TYPE_CHECKING:
    import pandas as pd

CHANCES = [*POINT, "metric", "score", "accuracy", "chance", "saturated", "rows", "left_out"]


SHARES = [
    "k",
    "best_k",
    "max_k",
    "within_window",
    "metric",
    "share_of_tested",
    "prompt_tokens",
    "window",
    "share_of_window",
]


ALL_LABELS = "all"
"""The value of the column ``label_space`` for all labels."""


def parts_of_labels(frame: pd.DataFrame) -> Any:
    """The part of the labels of each prediction, all or a half: a column, or one value without the column."""
    return frame["label_space"].astype(object).fillna(ALL_LABELS) if "label_space" in frame else ALL_LABELS


def saturation_chances(frame: pd.DataFrame, rng: np.random.Generator | Streams, resamples: int = 1000) -> pd.DataFrame:
    """How often each k is the saturation point when draws and test examples are resampled.

    The point itself is :func:`icl_bench.analysis.curves.saturation`'s (Bertsch et al. 2025, appendix A). All k of a
    curve are resampled together, on the test examples that any of them has. An example that a k lacks is filled in
    (:func:`icl_bench.analysis.statistics.alike.filled`). If some k has less than three quarters of the examples, it was
    asked others, and only common examples are used.

    Columns: the setting, k, metric and score (``metrics.scores.scored``), accuracy (if the score is accuracy, else
    missing), chance (the share of resamples in which this k is the point; 1 over a curve), saturated (whether it is the
    point of the sample itself), rows (test examples) and left_out (predictions on others, or in draws that share no
    test example with the others). The curves test whether scores are missing at random.
    """
    import pandas as pd

    curves = _curves(frame)
    of_task, scores = metrics(curves.frame), curves.scores
    tables = []
    of_label = (curves.keys["task"].astype(object).map(of_task) == ACCURACY).to_numpy()
    # labels first: their random numbers do not depend on other predictions in the folder
    for at in sorted(curves.places, key=lambda at: not of_label[at[0]]):
        points, tests = curves.on_shared_rows(at)
        score, chance = _chances(points, scores, tests, stream_of(rng, curves.keys["task"].iloc[at[0]]), resamples)
        used = np.array([point.predictions for point in points])
        available = np.array([curves.points[place].predictions for place in at])
        part = curves.keys.iloc[at].assign(score=score, chance=chance, rows=len(tests), left_out=available - used)
        tables.append(part)
    if not tables:
        return pd.DataFrame(columns=CHANCES)
    table = _named(pd.concat(tables).sort_index().reset_index(drop=True), of_task)
    table["accuracy"] = table["score"].where(table["metric"] == ACCURACY)
    point = saturation(table)[POINT].assign(saturated=True)
    table = table.merge(point, on=POINT, how="left")
    return table.assign(saturated=table["saturated"].notna())[CHANCES]


LIKELY = 0.9
"""The share of resamples in the likely range of k."""


def with_likely(points: pd.DataFrame, chances: pd.DataFrame) -> pd.DataFrame:
    """Add the certainty of each saturation point.

    ``points`` is :func:`icl_bench.analysis.curves.saturation`'s table and ``chances`` :func:`saturation_chances`'.
    Further columns: ``chance``, the share of resamples with the point at this k; ``likely_low`` and ``likely_high``,
    the range of k that has 90% of them, with at most 5% on either side. Missing without chances.
    """
    import pandas as pd

    names = ["chance", "likely_low", "likely_high"]
    rows = {}
    known = chances[chances["chance"].notna()]
    for key, part in known.groupby(SETTING, observed=True):
        part = part.sort_values("k")
        k, below = part["k"].to_numpy(), part["chance"].to_numpy().cumsum()
        edge = (1 - LIKELY) / 2
        low = k[int((below > edge + 1e-9).argmax())]
        high = k[int((below >= 1 - edge - 1e-9).argmax())]
        rows[key] = dict(zip(k, part["chance"], strict=True)), float(low), float(high)
    missing: tuple[dict[Any, float], float, float] = ({}, np.nan, np.nan)
    likely = []
    for *setting, k in points[[*SETTING, "k"]].itertuples(index=False):
        chance, low, high = rows.get(tuple(setting), missing)
        likely.append((chance.get(k, np.nan), low, high))
    return points.join(pd.DataFrame(likely, index=points.index, columns=names, dtype=float))


def saturation_text(row: Any) -> str:
    """Text about a curve's saturation point and its certainty, or why there is none.

    ``row`` is a row of :func:`with_likely`; the text follows the curve's name.
    """
    if not row.spoken:
        return f"saturation not estimated: {row.reason}"
    low, high = row.likely_low, row.likely_high
    sure = ""
    if low == high == row.k:
        sure = f" (in {percent(row.chance)}% of resamples)"
    elif not math.isnan(low):
        beyond = " or beyond" if high == row.max_k else ""
        sure = f" ({LIKELY:.0%} of resamples: k = {low:,.0f} to {high:,.0f}{beyond})"
    if row.within_window:
        below = "or below " if row.k == row.min_k > 0 else ""
        return f"saturated at {below}k = {row.k:,}{sure}"
    if low < row.max_k:
        return f"whether it is saturated by k = {row.max_k:,} is undetermined{sure}"
    return f"not saturated within the tested k, up to {row.max_k:,}{sure}"


class _Curves(NamedTuple):
    """The scored predictions of some curves."""

    frame: pd.DataFrame
    keys: pd.DataFrame
    """Their points, one row each."""
    points: Sequence[Grid]
    """The grid of each point."""
    places: Sequence[np.ndarray]
    """The positions of each curve's points, by rising k."""

    @property
    def scores(self) -> np.ndarray:
        """The score of each prediction, between 0 and 1."""
        return self.frame["score"].to_numpy(dtype=float).clip(0, 1)

    def on_shared_rows(self, at: np.ndarray) -> tuple[list[Grid], np.ndarray]:
        """A curve's points on the same test examples, and the codes of these."""
        points = [self.points[place].joined() for place in at]
        tests = all_or_common(points)
        return [on_tests(point, tests) for point in points], tests


def _curves(frame: pd.DataFrame) -> _Curves:
    frame = scored(frame)
    frame = frame.loc[frame["score"].notna(), [*POINT, "draw", "test_id", "score", "metric"]]
    keys, points = grids(frame, POINT)
    return _Curves(frame, keys, points, partition(keys, SETTING)[1])


def shared_scores(frame: pd.DataFrame) -> pd.DataFrame:
    """The mean score of each point on test examples that all k of its curve share, as in :func:`saturation_chances`.

    Columns: the setting, k and score, which is missing if a curve has no such examples.
    """
    curves = _curves(frame)
    scores, mean = curves.scores, np.full(len(curves.keys), np.nan)
    for at in curves.places:
        points, tests = curves.on_shared_rows(at)
        if len(tests):
            mean[at] = [TwoWayLayout(matrix).mean for matrix in filled(points, scores, tests)]
    return curves.keys.assign(score=mean)


def saturation_on(curve: pd.DataFrame, shared: pd.DataFrame) -> pd.DataFrame:
    """:func:`icl_bench.analysis.curves.saturation` by scores on ``shared`` test examples (:func:`shared_scores`).

    A curve whose k have none in common keeps its own scores, and its saturation is not reported.
    """
    names = dict.fromkeys(SETTING, object)
    points, known = curve[POINT].astype(names), shared[[*POINT, "score"]].astype(names)
    score = points.merge(known, on=POINT, how="left")["score"].to_numpy(dtype=float)
    alike = ~np.isnan(score)
    return saturation(curve.assign(score=np.where(alike, score, curve["score"].astype(float)), alike=alike))


def _chances(
    points: list[Grid], scores: np.ndarray, tests: np.ndarray, rng: np.random.Generator, resamples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean scores, and chances of being the saturation point, ``(k,)``; NaN without examples."""
    if not len(tests):
        nothing = np.full(len(points), np.nan)
        return nothing, nothing
    draws = reduce(np.union1d, [point.draws for point in points])
    counts = resample(rng, resamples, len(draws), len(tests))
    matrices = filled(points, scores, tests)
    mean = np.array([TwoWayLayout(matrix).mean for matrix in matrices])
    again = np.empty((len(points), resamples))
    for number, matrix in enumerate(matrices):
        own = counts
        if len(matrix) < len(draws):  # points with fewer draws are resampled among these
            own = counts._replace(draws=resample(rng, resamples, len(matrix), 1).draws)
        again[number] = means(matrix, own)
    first = (again >= SATURATED * again.max(axis=0)).argmax(axis=0)
    return mean, np.bincount(first, minlength=len(points)) / resamples


def context_shares(frame: pd.DataFrame, windows: Mapping[str, int]) -> pd.DataFrame:
    """The share of the context window that a curve needs until saturation (Bertsch et al., table 4).

    ``windows`` gives the tokens of each model's context window. If the frame has a column ``label_space``, the part of
    the label space of each row ("all" or missing for the whole), each part has its own curve.

    Columns: the setting, label_space if given; k, best_k, max_k, within_window and metric of
    :func:`icl_bench.analysis.curves.saturation`; share_of_tested, k over max_k: the study's figure, whose largest k
    filled the window; prompt_tokens (mean at that k), window, and share_of_window, the quotient of these two. Unknown
    values are NaN.
    """
    import pandas as pd

    frame = scored(frame)
    if "label_space" in frame:
        parts = {
            name: context_shares(part.drop(columns="label_space"), windows)
            for name, part in frame.groupby(parts_of_labels(frame))
        }
        columns = [*SETTING, "label_space", *SHARES]
        if not parts:
            return pd.DataFrame(columns=columns)
        table: pd.DataFrame = pd.concat(parts, names=["label_space"]).reset_index("label_space")
        return table[columns]
    frame = frame[frame["score"].notna()]
    curve = _curve(frame)
    table = saturation_on(curve, shared_scores(frame)).merge(curve[[*POINT, "prompt_tokens"]], on=POINT, how="left")
    window = table["model"].astype(object).map(dict(windows)).astype(float)
    return table.assign(
        share_of_tested=table["k"] / table["max_k"].where(table["max_k"] > 0),
        window=window,
        share_of_window=table["prompt_tokens"] / window,
    )[[*SETTING, *SHARES]]


def _curve(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean score and prompt tokens of each point, over existing predictions."""
    keys, points = grids(frame, POINT)
    known = frame.reindex(columns=["score"]).astype(float).assign(prompt_tokens=prompt_lengths(frame))
    for name, values in known.assign(score=known["score"].clip(0, 1)).items():
        column = values.to_numpy()
        present = ~np.isnan(column)
        parts = [point.joined(present).values(column) for point in points]
        keys[name] = np.array([TwoWayLayout(part).mean if part.size else np.nan for part in parts])
    return _named(keys, metrics(frame))


def _named(table: pd.DataFrame, of_task: Mapping[str, str]) -> pd.DataFrame:
    """The table with each task's ``metric``."""
    return table.assign(metric=table["task"].astype(object).map(dict(of_task)))


def label_spaces(
    shares: pd.DataFrame, halves: Mapping[str, str], share: str = "share_of_tested", facts: FactsOf = NO_FACTS
) -> pd.DataFrame:
    """Saturation with all labels, and with half of them (mean over subsets; Bertsch et al., table 4).

    ``shares`` is :func:`context_shares`' table and ``share`` one of its columns. A curve belongs to a half if
    ``halves`` has its task (task of the half -> task with all labels), or if its ``label_space`` is not "all". A half
    is compared with the curves with all labels that agree with it in all ``facts`` except its labels and the rows that
    follow from them (:func:`_closeness`). If a half was run on several test sets, the largest counts.

    Columns: task, model, select, order, attention, variant (of all labels), full, half, and subsets,
    the number of halves. Tasks without a half, or whose half has no full counterpart, are left out.
    """
    task = shares["task"].astype(object)
    labels = shares["label_space"] if "label_space" in shares else task.map(lambda _: ALL_LABELS)
    half = task.isin(halves) | (labels != ALL_LABELS)
    curve = [name for name in SETTING if name != "variant"]
    table = shares[SETTING].astype(object).assign(task=task.replace(dict(halves)), of=shares[share])
    full = table[~half].rename(columns={"of": "full"})
    parts = table.assign(subset=task + "\n" + labels.astype(object))[half]
    pairs = full.merge(parts.rename(columns={"variant": "half_variant", "of": "half"}), on=curve)
    both = zip(pairs["variant"], pairs["half_variant"], strict=True)
    pairs = pairs.assign(
        closeness=[_closeness(*names, facts) for names in both],
        test_rows=[facts.get(name, UNKNOWN).test_rows or 0 for name in pairs["half_variant"]],
    )
    nearest = pairs.groupby([*curve, "half_variant", "subset"])["closeness"].transform("max")
    pairs = pairs[(pairs["closeness"] > 0) & (pairs["closeness"] == nearest)]
    pairs = pairs.sort_values(["closeness", "test_rows", "half_variant"], ascending=[False, False, True])
    once = pairs.drop_duplicates([*SETTING, "subset"])
    means = once.groupby([*SETTING, "full"])["half"].agg(half="mean", subsets="size").reset_index()
    return means[[*SETTING, "full", "half", "subsets"]]


OF_LABELS = ("label_space", "labels", "pool", "pool_rows", "test", "test_rows")
"""Facts that differ between a task with all labels and with half of them."""


def _closeness(full: str, half: str, facts: FactsOf) -> int:
    """How well a half's variant matches one with all labels; 0 for no match.

    3 is the same variant (in imports); 2 means equal facts; 1 means that the facts of one are unknown.
    """
    if full == half:
        return 3
    sides = [facts.get(variant, UNKNOWN) for variant in (full, half)]
    if sides[0].calibration != sides[1].calibration:
        return 0
    if not all(side.are_of_a_run for side in sides):
        return 1
    apart = {*OF_LABELS, "imported"}
    first, second = ({k: v for k, v in side.known().items() if k not in apart} for side in sides)
    return 2 if first == second else 0


CHANCE_COLUMNS = (Column("chance", "chance", "share"), Column("saturated", "saturated", "flag"))


SATURATION_CHANCES = Finding(
    "saturation_chances",
    lambda context: saturation_chances(context.from_zero_shot(context.unperturbed), context.generators("saturation")),
    CHANCE_COLUMNS,
    caption="Probability that each k is the saturation point",
    shown="task model series k metric score chance rows left_out",
    section=Section(
        "saturation",
        "Where more demonstrations stop helping",
        "Saturation",
        "run --k with two or more numbers",
        "A curve is saturated at the smallest tested k that reaches 95% of its best {score}: more "
        "demonstrations may still add the last 5%. It is at k = 0 if the prompt without "
        "demonstrations was tested and reaches it. The "
        "stronger a k's colour, the more of the resamples of draws and test rows had their "
        "point there; gaps were not tested. At the last k, saturation may lie beyond what was "
        "tested.",
        "Bertsch et al. 2025, tables 3 and 4, appendix A",
        also=("context_shares", "forecast"),
        place=20,
    ),
    by_task=IN_ORDER,
)


CONTEXT_SHARES = Finding(
    "context_shares",
    lambda context: context_shares(context.from_zero_shot(context.prompts), context.cells.windows),
    (
        Column("best_k", "best k", "count"),
        Column("max_k", "largest k", "count"),
        Column("within_window", "saturated", "flag"),
        Column("share_of_tested", "share of largest k", "share"),
        Column("window", "context window", "count", optional=True),
        Column("share_of_window", "share of the window", "share", optional=True),
    ),
    caption="Saturation points",
    shown="task model series k metric best_k max_k within_window share_of_tested prompt_tokens window share_of_window",
    by_task=ByTask(("label_space",)),
)


LABEL_SPACES = Finding(
    "label_spaces",
    lambda context: label_spaces(context.table("context_shares"), {}, facts=context.facts),
    (
        Column("full", "all labels", "share"),
        Column("half", "half of them", "share", short="half"),
        Column("subsets", "halves", "count"),
    ),
    caption="Label spaces",
    shown="task model series full half subsets",
    printed=Printed(
        "half of the labels: saturation k over the largest tested k, %", "task model select order full half subsets"
    ),
    section=Section(
        "label-spaces",
        "Half of the labels",
        "Label spaces",
        "run again with --labels half:1",
        "Saturation, as a share of the largest tested k, with all labels and with half of them (mean of the halves).",
        "Bertsch et al. 2025, table 4",
        place=170,
    ),
    by_task=BY_NAME,
)
