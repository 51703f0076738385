"""The point without demonstrations (k=0): shared by all curves of a setting, as the first point of each.

A prompt without demonstrations does not depend on selection, order or attention, so it is run and stored once, as a
single draw of random selection. Tables with a row for each point of a curve begin every curve with it. Comparisons of
selections, orders or attention leave it out, because it is the same prompt on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.statistics.grid import partition
from icl_bench.models.attention_patterns import FULL, pattern_of
from icl_bench.results.cells import SETTING
from icl_bench.results.facts import NO_FACTS, UNKNOWN, FactsOf
from icl_bench.results.trained_methods import BASELINES

if TYPE_CHECKING:
    import pandas as pd

STORED_AS = {"select": "random", "order": "drawn", "attention": str(FULL)}
"""The name of its cell, as in :func:`icl_bench.sweep.plan.make_plan`."""

ZERO_SHOT = "zero-shot"
"""Its name among selectors that are compared with it."""


def with_demonstrations(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of points with demonstrations."""
    return frame[frame["k"] > 0]


def where_attention_matters(table: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    """The rows of points with demonstrations, and of points without that depend on the pattern.

    The latter are cells of models that read a query's passages as vectors: only they are named by their pattern at k=0.
    ``predictions`` show which exist; a table may have rows that were copied to curves.
    """

    def task_and_model(frame: pd.DataFrame) -> pd.Series[str]:
        return frame["task"].astype(str) + "\n" + frame["model"].astype(str)

    bare = predictions[predictions["k"] == 0]
    own = bare[bare["attention"].astype(str) != STORED_AS["attention"]]
    if own.empty:  # avoids creating texts for millions of predictions
        return with_demonstrations(table)
    return table[(table["k"] > 0) | task_and_model(table).isin(task_and_model(own))]


def from_zero_shot(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """Begin every curve with the point without demonstrations, if there is one for it.

    ``frame`` has predictions, or one or more rows per point: the setting, k and any other columns. A curve gets the k=0
    rows of its own variant or, if its selector has an encoder that random selection does not use, of the variant that
    agrees in all common ``facts``. Trained classifiers get none, and models that read a query's passages as vectors
    have their own. If such rows were copied to other curves and random selection itself has no k above 0, they form no
    separate curve. Rows keep their order; copied rows precede the first row of their curve.
    """
    import pandas as pd

    if not (frame["k"] == 0).any():
        return frame
    keys, parts = partition(frame, SETTING)
    curves: list[Any] = keys.astype(object).to_dict("records")
    bare = [rows[frame["k"].to_numpy()[rows] == 0] for rows in parts]
    lenders = [at for at, curve in enumerate(curves) if len(bare[at]) and STORED_AS.items() <= curve.items()]
    lent: set[int] = set()
    pieces, places = [frame], [np.arange(len(frame), dtype=float)]
    for at, curve in enumerate(curves):
        if len(bare[at]) or curve["select"] in BASELINES or _reads_passages(curve, facts):
            continue
        source = next(_of_curve(curve, [(lender, curves[lender]) for lender in lenders], facts), None)
        if source is None:
            continue
        lent.add(source)
        rows, first = bare[source], parts[at].min()
        own = frame.iloc[np.repeat(first, len(rows))]
        pieces.append(frame.iloc[rows].assign(**{name: own[name].array for name in SETTING}))
        places.append(np.full(len(rows), first - 0.5))
    alone = [bare[at] for at in lent if len(bare[at]) == len(parts[at])]
    table: pd.DataFrame = pd.concat(pieces, ignore_index=True)
    order = np.argsort(np.concatenate(places), kind="stable")
    kept = ~np.isin(order, np.concatenate([np.arange(0), *alone]))
    return table.iloc[order[kept]].reset_index(drop=True)


def _reads_passages(curve: Mapping[str, Any], facts: FactsOf) -> bool:
    """Whether its prompts have passages that its pattern reads, also without demonstrations."""
    of_passages = facts.get(curve["variant"], UNKNOWN).passages is not None
    pattern = pattern_of(str(curve["attention"])) if of_passages else None
    return pattern is not None and pattern.reads_vectors


def _of_curve(curve: Mapping[str, Any], lenders: list[tuple[int, Mapping[str, Any]]], facts: FactsOf) -> Iterator[int]:
    """The points that may begin a curve, that of its own variant first."""
    same = [
        (at, lender["variant"])
        for at, lender in lenders
        if all(lender[name] == curve[name] for name in ("task", "model"))
    ]
    yield from (at for at, variant in same if variant == curve["variant"])
    yield from (at for at, variant in same if _agree(curve["variant"], variant, facts))


def _agree(variant: str, other: str, facts: FactsOf) -> bool:
    """Whether two variants, both run here, agree in all common facts."""
    mine, others = facts.get(variant, UNKNOWN), facts.get(other, UNKNOWN)
    return mine.are_of_a_run and others.are_of_a_run and mine.agrees(others)
