"""Best points: the highest of what was tested, with limits that allow for the choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.finding import Finding, Printed
from icl_bench.analysis.statistics.best import best_interval
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import grids, partition
from icl_bench.metrics.scores import metrics, scored
from icl_bench.results.trained_methods import UPPER

if TYPE_CHECKING:
    import pandas as pd

BEST_COLUMNS = [*POINT, "points", "draws", "test_rows", "metric", "score", "ci_low", "ci_high"]


def best_points(frame: pd.DataFrame) -> pd.DataFrame:
    """The point with the highest mean score, one row a task and model.

    Points are those of :func:`icl_bench.analysis.curves.curves`, without random reorderings, which
    repeat others, and upper bounds of training, which are no result. Of equals it is the first.

    Columns: the setting and k; ``points``, of how many it is the highest; its draws, test_rows,
    metric and score as in the curves; ci_low and ci_high (95%), which allow for the choice:
    :func:`icl_bench.analysis.statistics.best.best_interval`. So they are wider than the curve's.
    """
    import pandas as pd

    frame = scored(frame)
    shuffled = frame["order"].astype(str).str.startswith("shuffled")
    upper = frame["select"].astype(str).str.endswith(UPPER)
    kept = frame.loc[frame["score"].notna() & ~shuffled & ~upper]
    kept = kept[[*POINT, "draw", "test_id", "score", "metric"]].reset_index(drop=True)
    of_task, values = metrics(kept), kept["score"].to_numpy(dtype=float).clip(0, 1)
    keys, all_points = grids(kept, POINT)
    rows = []
    for places in partition(keys, ["task", "model"])[1]:
        points = [all_points[place].joined().values(values) for place in places]
        best = int(np.argmax([TwoWayLayout(scores).mean for scores in points]))
        key = keys.iloc[places[best]].to_dict()
        draws, test_rows = points[best].shape
        mean, low, high = best_interval(points)
        rows.append(
            {
                **key,
                "points": len(points),
                "draws": draws,
                "test_rows": test_rows,
                "metric": of_task[key["task"]],
                "score": mean,
                "ci_low": low,
                "ci_high": high,
            }
        )
    return pd.DataFrame(rows, columns=BEST_COLUMNS)


BEST_POINTS = Finding(
    "best_points",
    lambda context: best_points(context.unperturbed),
    (Column("points", "tested points", "count", short="of\npoints"),),
    printed=Printed(
        "the highest {score}, %; its limits allow for the choice among so many points",
        "task model select order k points draws score ci_low",
        rows=lambda table: table[table["points"] > 1],
    ),
)
