"""After a run: what to add or to look at next, in one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from icl_bench.analysis.curves import LEAST_POINTS, at_chance
from icl_bench.analysis.draws import ENOUGH_DRAWS, is_drawn
from icl_bench.analysis.summary import Summary
from icl_bench.analysis.zero_shot import with_demonstrations
from icl_bench.results.cells import SETTING
from icl_bench.wording import counted

if TYPE_CHECKING:
    import pandas as pd

MANY_DRAWS = 10
"""The number of draws that is advised."""


def next_step(summaries: Sequence[Summary]) -> str:
    """What the results of a run lack most, with the option that adds it; else where to look at them.

    The first that applies: failed cells, no demonstrations, answers at chance, points of one draw, a curve that
    still rises, too few values of k for a saturation point, too few draws.
    """
    import pandas as pd

    if failed := sum(len(summary.failed) for summary in summaries):
        return f"{counted(failed, 'cell')} failed, see above; the same command computes them again"
    curves = pd.concat([summary.curves for summary in summaries])
    saturation = pd.concat([summary.saturation for summary in summaries])
    shown = with_demonstrations(curves)
    if curves.empty:
        return LOOK
    if shown.empty:
        return "no demonstrations shown yet: --k 1,10,100 measures what they add"
    if at_chance(curves):
        more = 10 * int(shown["k"].max())
        return (
            f"no point is shown to be better than guessing: --k {more} shows more demonstrations, "
            "icl-bench show prints a prompt and its answer"
        )
    drawn = shown[shown["select"].astype(str).map(is_drawn).astype(bool)]
    return next(_additions(drawn, shown, saturation), LOOK)


LOOK = "icl-bench summary tests what differs; icl-bench report has charts, icl-bench view single predictions"


def _additions(drawn: pd.DataFrame, shown: pd.DataFrame, saturation: pd.DataFrame) -> Iterator[str]:
    """What could be added, the most important first."""
    count = f"of {counted(len(drawn), 'drawn point')}"
    if single := int((drawn["draws"] == 1).sum()):
        yield (
            f"{single:,} {count} with a single draw: --draws {MANY_DRAWS} also measures how much the choice of "
            "demonstrations matters; finished cells are kept"
        )
    rising = saturation[saturation["spoken"].astype(bool) & ~saturation["within_window"].astype(bool)]
    if len(rising):
        largest = int(rising["max_k"].max())
        yield f"not saturated at k = {largest:,}: --k {2 * largest} shows whether more demonstrations help"
    numbers = int(shown.groupby(SETTING, observed=True)["k"].nunique().max())
    if numbers < LEAST_POINTS:
        yield (
            f"{counted(numbers, 'value')} of k above 0: with {LEAST_POINTS} or more, summary estimates from which k on "
            "more demonstrations add nothing"
        )
    if few := int(drawn["draws"].between(2, ENOUGH_DRAWS).sum()):
        yield f"{few:,} {count} with two or three draws: --draws {MANY_DRAWS} makes their intervals reliable"
