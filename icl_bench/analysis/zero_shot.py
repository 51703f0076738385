"""The point without demonstrations (k=0): one for all curves of a setting, at the left of each.

A prompt without demonstrations does not depend on how they would be chosen, ordered or read, so it
is run and stored once, as a single draw of random selection. Tables with a row for each point of a
curve begin every curve with it. What compares ways to choose, order or read demonstrations leaves
it out: there it is one and the same prompt on both sides.
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
"""What its cell is called, as :func:`icl_bench.sweep.plan.make_plan` calls it."""

ZERO_SHOT = "zero-shot"
"""What it is called beside selectors, where these are compared with it."""


def with_demonstrations(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of points with demonstrations."""
    return frame[frame["k"] > 0]


def where_attention_matters(table: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    """The rows of points with demonstrations, and of those without that patterns read otherwise.

    Without demonstrations these are models that read a query's passages as vectors: such cells are
    called by their pattern, which no other is at k=0. ``predictions`` tell which there are; a table
    may have rows that were lent to curves.
    """

    def task_and_model(frame: pd.DataFrame) -> pd.Series[str]:
        return frame["task"].astype(str) + "\n" + frame["model"].astype(str)

    bare = predictions[predictions["k"] == 0]
    own = bare[bare["attention"].astype(str) != STORED_AS["attention"]]
    if own.empty:  # saves making texts of millions of predictions
        return with_demonstrations(table)
    return table[(table["k"] > 0) | task_and_model(table).isin(task_and_model(own))]


def from_zero_shot(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """Begin every curve with the point without demonstrations, where there is one for it.

    ``frame`` has predictions, or one row or more a point: the setting, k and any other columns.
    A curve takes the k=0 rows of its own variant or, where a selector names an encoder that random
    selection has no use for, of the variant that agrees in all ``facts`` that both have. Trained
    classifiers take none, and what reads a query's passages as vectors has its own. Where such rows
    were lent to other curves and random selection itself has no k above 0, they make no curve of
    their own. Rows keep their order, the lent ones stand before their curve's first.
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
    """Whether its prompts have something to be read by its pattern without demonstrations too."""
    of_passages = facts.get(curve["variant"], UNKNOWN).passages is not None
    pattern = pattern_of(str(curve["attention"])) if of_passages else None
    return pattern is not None and pattern.reads_vectors


def _of_curve(curve: Mapping[str, Any], lenders: list[tuple[int, Mapping[str, Any]]], facts: FactsOf) -> Iterator[int]:
    """Which of the points may begin a curve, that of its own variant first."""
    same = [
        (at, lender["variant"])
        for at, lender in lenders
        if all(lender[name] == curve[name] for name in ("task", "model"))
    ]
    yield from (at for at, variant in same if variant == curve["variant"])
    yield from (at for at, variant in same if _agree(curve["variant"], variant, facts))


def _agree(variant: str, other: str, facts: FactsOf) -> bool:
    """Whether two variants, both run here, agree in all facts that both have."""
    mine, others = facts.get(variant, UNKNOWN), facts.get(other, UNKNOWN)
    return mine.are_of_a_run and others.are_of_a_run and mine.agrees(others)
