"""The share of right labels among those that perturbed demonstrations show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.finding import Finding, Printed
from icl_bench.results.reading import Stored
from icl_bench.results.stored_meta import CellMeta

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["perturbation", *POINT, "draws", "labels", "right", "right_least", "right_most"]


def shown_labels(cells: Mapping[str, CellMeta]) -> pd.DataFrame:
    """The share of right labels among those that demonstrations show instead of the labels in the data.

    ``cells`` are those of a folder. One row for each point whose answers are labels and whose prompts show other labels
    than the data: the perturbation, the point, draws, labels (mean number per draw), and the share of right ones: mean,
    minimum and maximum over draws. A demonstration counts once per draw, regardless of its number of queries.
    """
    import pandas as pd

    shares: dict[tuple[object, ...], list[tuple[int, float]]] = {}
    for meta in cells.values():
        shown, labelled = meta.shown_answers, meta.demonstration_labels
        if not shown or not labelled or not meta.facts.asks_test_rows:
            continue
        right = [shown[name] == label for label, names in labelled.items() for name in names if name in shown]
        spec = meta.spec.model_dump()
        point = (meta.facts.perturbation, *({**spec, "variant": meta.variant}[name] for name in POINT))
        shares.setdefault(point, []).append((len(right), float(np.mean(right))))
    rows = []
    for point, draws in shares.items():
        counts, means = zip(*draws, strict=True)
        rows.append((*point, len(draws), float(np.mean(counts)), float(np.mean(means)), min(means), max(means)))
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.sort_values(COLUMNS[: 1 + len(POINT)], kind="stable", ignore_index=True)


def _own_cells(stored: Stored) -> dict[str, CellMeta]:
    """The cells that computed these predictions."""
    present = stored.rows.names("cell")
    return {cell: meta for cell, meta in stored.own_cells.items() if cell in present}


SHOWN_LABELS = Finding(
    "shown_labels",
    lambda context: shown_labels(_own_cells(context.stored)),
    (
        Column("labels", "labels shown", "number", short="labels"),
        Column("right", "right labels", "share", short="right"),
        Column("right_least", "of the draw with the least", "share", short="least to\nmost", upper="right_most"),
        Column("right_most", "of the draw with the most", "share"),
    ),
    caption="Right labels among those shown",
    shown="task model series perturbation k draws labels right right_least right_most",
    printed=Printed(
        "labels that perturbed demonstrations show: right ones, % (draws with the least and the most)",
        "task model perturbation select order k draws labels right right_least",
    ),
)
