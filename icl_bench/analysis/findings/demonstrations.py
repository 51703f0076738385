"""How a prompt's demonstrations relate to its answer: labels shown, queries copied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icl_bench.analysis.by_task import IN_ORDER, ByTask, place_of_variant
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.finding import Chart, Finding, Printed, Section
from icl_bench.analysis.statistics.grid import partition
from icl_bench.analysis.statistics.shares import shares
from icl_bench.analysis.zero_shot import with_demonstrations

if TYPE_CHECKING:
    import pandas as pd

Shared = Mapping[str, Sequence[str]]
"""Cell -> ids of the demonstrations that all its prompts share, in order."""


DISTANCE_BINS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


UNKNOWN_LABEL = -2


CHUNK = 10_000
"""Rows with their own demonstrations that are processed at once, because they have many ids."""


BEYOND = np.iinfo(np.int64).max


def by_presence(frame: pd.DataFrame, labels: Mapping[str, str], shared: Shared | None = None) -> pd.DataFrame:
    """Accuracy if the right label is among the demonstrations' labels, and if it is not.

    ``labels`` gives each demonstration's label by its id; ``shared`` the demonstrations of each cell (its
    ``demonstration_ids`` in the store). A row's own ``demonstration_ids`` come first; rows for which neither is known
    are left out.

    Columns: the setting, k, present, predictions, accuracy, ci_low and ci_high (95%, draws and test
    examples random). Raises ValueError for a demonstration without a label.
    """
    known = _with_distance(frame, "gold", labels, shared)
    known["present"] = known["distance"] > 0
    return shares(known, [*POINT, "present"], "correct", "accuracy")


def by_distance(
    frame: pd.DataFrame, labels: Mapping[str, str], shared: Shared | None = None, bins: Sequence[int] = DISTANCE_BINS
) -> pd.DataFrame:
    """Accuracy by the distance from the query to the last demonstration of the right label.

    The demonstration right before the query has distance 1. ``bins`` are the smallest distances of each bin, ascending
    from 1. For the rest see :func:`by_presence`.

    Columns: the setting, k, nearest and farthest (the bin's distances; 0 and 0 if no demonstration has the right label;
    the last bin ends at k), predictions, accuracy, ci_low and ci_high.
    """
    known = _with_distance(frame, "gold", labels, shared)
    edges = np.array([0, *bins])
    number = np.searchsorted(edges, known["distance"], side="right") - 1
    last = np.append(edges[1:] - 1, BEYOND)[number]
    known["nearest"] = edges[number]
    known["farthest"] = np.where(number == 0, 0, np.minimum(last, known["k"]))
    return shares(known, [*POINT, "nearest", "farthest"], "correct", "accuracy")


def copying(frame: pd.DataFrame, shared: Shared | None = None) -> pd.DataFrame:
    """Accuracy on queries that are themselves among the demonstrations (Bertsch et al., table 5).

    These are queries whose ``test_id`` is the id of a demonstration. For ``shared`` see :func:`by_presence`.

    Columns: the setting, k, predictions, accuracy, ci_low and ci_high.
    """
    known = _with_distance(frame, "test_id", None, shared)
    return shares(known[known["distance"] > 0], POINT, "correct", "accuracy")


def _with_distance(
    frame: pd.DataFrame, wanted: str, labels: Mapping[str, str] | None, shared: Shared | None
) -> pd.DataFrame:
    """The rows with known demonstrations, with :func:`distances` as ``distance``."""
    frame = with_demonstrations(frame)
    distance = distances(frame, wanted, labels, shared)
    known = (distance >= 0) & frame["correct"].notna().to_numpy()
    columns = [*POINT, "draw", "test_id", "correct"]
    return frame.loc[known, columns].assign(distance=distance[known])


def distances(
    frame: pd.DataFrame, wanted: str = "gold", labels: Mapping[str, str] | None = None, shared: Shared | None = None
) -> np.ndarray:
    """Return the distance from the query to the last matching demonstration, ``(rows,)``.

    It matches if its label (its id, without ``labels``) is the row's value of the column ``wanted``. 1 is right before
    the query, 0 means that none matches, and -1 that the demonstrations are unknown.
    """
    distance = np.full(len(frame), -1, dtype=np.int64)
    fitting = _Fitting.of(frame[wanted], labels)
    if shared and "cell" in frame:
        cells, parts = partition(frame, ["cell"])
        for cell, rows in zip(cells["cell"], parts, strict=True):
            if cell in shared:
                distance[rows] = fitting.by_value(shared[cell])[fitting.of_row[rows]]
    if "demonstration_ids" in frame:
        own = np.flatnonzero(frame["demonstration_ids"].notna().to_numpy())
        ids = frame["demonstration_ids"].to_numpy()
        for rows in np.array_split(own, len(own) // CHUNK + 1):
            distance[rows] = fitting.by_row(ids[rows], fitting.of_row[rows])
    return distance


class _Fitting(NamedTuple):
    """Which demonstrations match which rows, by codes of the wanted values."""

    of_row: np.ndarray
    """Code of the wanted value of each row: ``(rows,)``."""
    values: int
    of_id: dict[str, int]
    """Code of the value of each demonstration, -1 if no row wants it."""
    otherwise: int
    """Code of a demonstration that is not included."""

    @classmethod
    def of(cls, wanted: pd.Series[str], labels: Mapping[str, str] | None) -> _Fitting:
        """Encode the wanted values and the labels; without labels, the values are ids."""
        import pandas as pd

        codes, values = pd.factorize(wanted)
        of_value = dict(zip(values, range(len(values)), strict=True))
        if labels is None:
            return cls(codes, len(values), of_value, -1)
        of_id = {name: of_value.get(label, -1) for name, label in labels.items()}
        return cls(codes, len(values), of_id, UNKNOWN_LABEL)

    def codes(self, ids: Iterable[str], count: int) -> np.ndarray:
        """Code of the value of each demonstration, ``(count,)``."""
        codes = np.fromiter(map(self.of_id.get, ids, repeat(self.otherwise)), np.int64, count)
        if (codes == UNKNOWN_LABEL).any():
            raise ValueError(f"no label for {np.count_nonzero(codes == UNKNOWN_LABEL)} demonstrations")
        return codes

    def by_value(self, ids: Sequence[str]) -> np.ndarray:
        """Distance of the last demonstration with each value, ``(values,)``; 0 for none."""
        last = np.zeros(self.values + 1, dtype=np.int64)  # one more for values that no row wants
        last[self.codes(ids, len(ids))] = np.arange(len(ids), 0, -1)
        return last[:-1]

    def by_row(self, ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Distances for rows with their own demonstrations, ``(rows,)`` lists of ids."""
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        total = int(lengths.sum())
        fits = self.codes(chain.from_iterable(ids), total) == np.repeat(wanted, lengths)
        distance = np.repeat(lengths.cumsum(), lengths) - np.arange(total)
        nearest = np.full(len(ids), BEYOND)
        np.minimum.at(nearest, np.repeat(np.arange(len(ids)), lengths)[fits], distance[fits])
        return np.where(nearest == BEYOND, 0, nearest)


BY_PRESENCE = Finding(
    "by_presence",
    lambda context: context.by_variant(context.unperturbed, by_presence),
    (Column("present", "its label is shown", "flag"),),
    caption="By presence of the right label",
    shown="task model series k present predictions accuracy ci_low ci_high",
    section=Section(
        "presence",
        "With and without a demonstration of the right label",
        "Presence of the right label",
        "run it here: imports do not record the demonstrations",
        "Accuracy of test rows whose label is that of some demonstration, and of the others. "
        "They are different rows: rare labels are more often missing.",
        chart=Chart(
            "accuracy",
            about="Accuracy by whether the right label is shown, {panel}",
            by=("task", "model", "curve"),
            line="present",
            line_names={True: "its label is shown", False: "its label is not shown"},
            tips=("predictions",),
        ),
        place=140,
    ),
    by_task=ByTask((place_of_variant,)),
)


BY_DISTANCE = Finding(
    "by_distance",
    lambda context: context.by_variant(context.prompts, by_distance),
    (Column("nearest", "from", "count"), Column("farthest", "to", "count")),
    caption="By distance of the right label",
    shown="task model series k nearest farthest predictions accuracy ci_low ci_high",
    section=Section(
        "distance",
        "How far back the right label is",
        "Distance of the right label",
        "run it here, with k above 1",
        "Accuracy by how many demonstrations back the last one of the right label stands; 1 is "
        "right before the query, “none” that there is none. Frequent labels are nearer.",
        place=150,
    ),
    by_task=ByTask((place_of_variant,)),
)


COPYING = Finding(
    "copying",
    lambda context: copying(context.copied, context.cells.shared),
    caption="Copied queries",
    shown="task model series k predictions accuracy ci_low ci_high",
    printed=Printed(
        "copying: accuracy on queries that are among the demonstrations, %", "task model select order k accuracy ci_low"
    ),
    section=Section(
        "copying",
        "Queries that the prompt already answers",
        "Copying",
        "run --queries copied",
        "Accuracy on queries that are also demonstrations, with their answers. A model "
        "that copies from its prompt gets all of them right.",
        "Bertsch et al. 2025, table 5",
        Chart(
            "accuracy",
            "accuracy on copies",
            "Accuracy on copied demonstrations, {panel}, over k",
            tips=("predictions",),
        ),
        place=160,
    ),
    by_task=IN_ORDER,
)
