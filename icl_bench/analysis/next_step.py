"""The next step after a run: what to add or to look at, in one line."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from icl_bench.analysis.curves import LEAST_POINTS, at_chance
from icl_bench.analysis.draws import ENOUGH_DRAWS, is_drawn
from icl_bench.analysis.summary import Summary, summarise_folder
from icl_bench.analysis.zero_shot import with_demonstrations
from icl_bench.metrics.scores import ACCURACY
from icl_bench.results.cells import SETTING
from icl_bench.results.storage import CellsOf, Place, cells_on_curves_of
from icl_bench.wording import counted, percent

if TYPE_CHECKING:
    import pandas as pd

MANY_DRAWS = 10
"""The recommended number of draws."""

WIDE = 0.2
"""The width of an interval of accuracy, a share of 1, above which more data is recommended before more
demonstrations.
"""

LARGER = "a larger --k (max is the largest that fits the context window and the pool)"


def next_step(summaries: Sequence[Summary], stored: Sequence[Summary] | None = None) -> str:
    """The most important addition to a run, with its option; else where to look at the results.

    ``stored`` are the summaries :func:`with_stored`, if the results folder has more than the run. The first that
    applies of: failed cells, no demonstrations, answers at chance, points of one draw, a curve that
    still rises, too few values of k for a saturation point, too few draws, a curve that may still rise.
    """
    import pandas as pd

    if failed := sum(len(summary.failed) for summary in summaries):
        return f"{counted(failed, 'cell')} failed, see above; run the same command again to retry them"
    own = pd.concat([summary.curves for summary in summaries])
    curves = pd.concat([summary.curves for summary in stored or summaries])
    saturation = pd.concat([summary.saturation for summary in stored or summaries])
    shown = with_demonstrations(curves)
    if curves.empty:
        return LOOK
    if shown.empty:
        return "no demonstrations shown yet: --k 1,10,100, as far as they fit, measures what they add"
    if (curves["metric"] == ACCURACY).all() and at_chance(curves):
        return f"no point is shown to be better than always giving the most frequent label: {_beyond_chance(curves)}"
    drawn = shown[shown["select"].astype(str).map(is_drawn).astype(bool)]
    drawn = drawn[_points(drawn).isin(_points(own))]
    return next(_additions(drawn, curves, saturation), LOOK)


LOOK = "icl-bench summary tests what differs; icl-bench report has charts, icl-bench view single predictions"


def with_stored(summary: Summary, results: Place, cells: Collection[str]) -> Summary:
    """A summary of these cells, with the k and draws of its curves that earlier commands have computed.

    Raises ``UserError`` if the results folder cannot be read.
    """
    every = cells_on_curves_of(results, cells)
    if every == set(cells):
        return summary
    with warnings.catch_warnings(action="ignore"):  # about cells that are not the run's
        found = summarise_folder(CellsOf(results, every))
    own = set(summary.curves["variant"])
    tables = {name: getattr(found, name) for name in ("curves", "saturation")}
    return replace(summary, **{name: table[table["variant"].isin(own)] for name, table in tables.items()})


def _points(table: pd.DataFrame) -> pd.MultiIndex:
    """The point of each row. The variant identifies the model, which may be renamed beside others."""
    import pandas as pd

    return pd.MultiIndex.from_frame(table[[name for name in (*SETTING, "k") if name != "model"]].astype(object))


def _beyond_chance(curves: pd.DataFrame) -> str:
    """What could show that answers are better than chance."""
    if (width := float((curves["ci_high"] - curves["ci_low"]).max())) > WIDE:
        return (
            f"intervals are up to {percent(width)} points wide, more test rows (--test-size) and draws "
            f"(--draws {MANY_DRAWS}) make them narrower"
        )
    return f"{LARGER} shows more demonstrations, icl-bench show prints a prompt and its answer"


def _additions(drawn: pd.DataFrame, curves: pd.DataFrame, saturation: pd.DataFrame) -> Iterator[str]:
    """Possible additions, the most important first."""
    count = f"of {counted(len(drawn), 'drawn point')}"
    if single := int((drawn["draws"] == 1).sum()):
        yield (
            f"{single:,} {count} with a single draw: --draws {MANY_DRAWS} also measures how much the choice of "
            "demonstrations matters; finished cells are kept"
        )
    rising = saturation[saturation["spoken"].astype(bool) & ~saturation["within_window"].astype(bool)]
    surely = rising["likely_low"] >= rising["max_k"]
    if len(rises := rising[surely]):
        yield f"not saturated at k = {int(rises['max_k'].max()):,}: {LARGER} shows whether more demonstrations help"
    known = curves[curves["score"].notna()]
    numbers = int(known.groupby(SETTING, observed=True)["k"].nunique().max())
    if numbers < LEAST_POINTS:
        yield (
            f"{counted(numbers, 'value')} of k: with {LEAST_POINTS} or more, summary estimates from which k on "
            "more demonstrations add nothing"
        )
    if few := int(drawn["draws"].between(2, ENOUGH_DRAWS).sum()):
        yield f"{few:,} {count} with two or three draws: --draws {MANY_DRAWS} makes their intervals reliable"
    if len(may_rise := rising[~surely]):
        yield f"may not be saturated at k = {int(may_rise['max_k'].max()):,}: more draws or test rows would show it"
