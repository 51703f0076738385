"""The findings in words: numbers with intervals, and a difference only where a test holds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from icl_bench.analysis.attention import differences
from icl_bench.analysis.words import points, try_more
from icl_bench.metrics.scores import ACCURACY, measure, title
from icl_bench.report.naming import Naming, unshuffled
from icl_bench.results.trained_methods import UPPER
from icl_bench.wording import counted, listed, percent

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.findings import Findings


class Sentence(NamedTuple):
    """One finding, and what it is about in a word."""

    topic: str
    text: str


@dataclass(frozen=True)
class Headlines:
    """What can be said of one task and model."""

    task: str
    model: str
    sentences: tuple[Sentence, ...]


def headlines(findings: Findings, naming: Naming) -> list[Headlines]:
    """Say of each task and model what the tables support."""
    tables = {
        "curves": findings.curves,
        "saturation": findings.saturation,
        "chances": findings.saturation_chances,
        "selection": findings.retrieval_gain,
        "training": findings.training_gain,
        "sorting": findings.sorting_penalty,
        "attention": differences(findings.attention_patterns),
        "order": findings.order_sensitivity,
        "models": findings.models,
    }
    named = {name: naming.named(table) for name, table in tables.items()}
    curves = named["curves"]
    pairs = curves[["task", "model"]].drop_duplicates().sort_values(["task", "model"])
    found = []
    for task, model in pairs.itertuples(index=False):
        of_pair = {
            name: table[(table["task"] == task) & (table["model"] == model)]
            for name, table in named.items()
        }
        found.append(Headlines(task, model, tuple(_sentences(of_pair))))
    return [headline for headline in found if headline.sentences]


def _sentences(tables: dict[str, pd.DataFrame]) -> Iterator[Sentence]:
    yield from _best(unshuffled(tables["curves"]))
    yield from _saturated(unshuffled(tables["saturation"]), tables["chances"])
    yield from _gains("Selection", tables["selection"], "random selection")
    yield from _gains("Training", tables["training"], "a prompt with the same examples")
    yield from _gains("Sorting", tables["sorting"], "the same as drawn")
    yield from _gains("Attention", unshuffled(tables["attention"]), "full attention")
    yield from _changed(tables["order"])
    for base, rows in unshuffled(tables["models"]).groupby("base_model"):
        yield from _gains("Model", rows, str(base))


def _best(curves: pd.DataFrame) -> Iterator[Sentence]:
    honest = ~curves["select"].astype(str).str.endswith(UPPER)  # an upper bound is no result
    there = curves[honest & curves["score"].notna()]
    if there.empty:
        return
    # all curves begin with one point of k=0: it was tested once
    again = (there["k"] == 0) & there.duplicated(["k", "score", "ci_low", "ci_high"])
    tested = counted(int((~again).sum()), "tested point")
    best = there.iloc[int(there["score"].argmax())]
    where = f"by {best['series']} at k = {best['k']:,}" if best["k"] else "without demonstrations"
    yield Sentence(
        "Best",
        f"{percent(best['score'])}% {title(best['metric'])} ({_range(best)}) {where}, "
        f"the highest of {tested}.",
    )


def _saturated(points: pd.DataFrame, chances: pd.DataFrame) -> Iterator[Sentence]:
    for row in points.itertuples():
        here = chances[(chances["series"] == row.series) & (chances["k"] == row.k)]
        sure = f" (in {percent(here['chance'].iloc[0])}% of resamples)" if len(here) else ""
        tested = (chances["series"] == row.series).sum()
        if tested < 2:
            continue
        if row.within_window:
            text = f"{row.series} is saturated at k = {row.k:,}{sure}."
        else:
            text = f"{row.series} is not saturated within the tested k, up to {row.max_k:,}{sure}."
        yield Sentence("Saturation", text)


def _gains(topic: str, table: pd.DataFrame, base: str) -> Iterator[Sentence]:
    """Of each series: where it differs from its base by the test, and where it cannot be told."""
    table = table[table["difference"].notna()]
    of = measure(table) if len(table) else title(ACCURACY)
    compared = "" if of == title(ACCURACY) else f", in {of}"
    for series, rows in table.sort_values("k").groupby("series"):
        told = rows[rows["advice"].notna()]
        parts = []
        for word, kept in (("better", told[told["difference"] > 0]),
                           ("worse", told[told["difference"] < 0])):  # fmt: skip
            if len(kept):
                ends = [kept.iloc[0], *([kept.iloc[-1]] if len(kept) > 1 else [])]
                where = f" at {len(kept)} of {len(rows)} tested k," if len(kept) > 2 else ""
                parts.append(f"{word}{where} by " + " and ".join(map(_difference, ends)))
        unsure = rows[rows["advice"].isna()]
        if len(unsure):
            parts.append(_undecided(unsure))
        yield Sentence(topic, f"{series} against {base}{compared}: {'; '.join(parts)}.")


def _undecided(rows: pd.DataFrame) -> str:
    """Where two sides are not distinguishable, and the largest difference among these points."""
    largest = rows.iloc[int(rows["difference"].abs().argmax())]
    where = listed(f"{k:,}" for k in rows["k"])
    at = f" at k = {largest['k']:,}" if len(rows) > 1 else ""
    up_to = "up to " if len(rows) > 1 else ""
    more = try_more(largest) if largest["k"] else ""  # without demonstrations nothing is drawn
    return f"not distinguishable at k = {where}: {up_to}{points(largest)}{at}{more}"


def _changed(table: pd.DataFrame) -> Iterator[Sentence]:
    for series, rows in table.groupby("series"):
        rows = rows.sort_values("k")
        ends = [rows.iloc[0], *([rows.iloc[-1]] if len(rows) > 1 else [])]
        said = " and ".join(
            f"{percent(row['changed'])}% ({_range(row)}) at k = {row['k']:,}" for row in ends
        )
        yield Sentence("Order", f"{series}: another order changes {said} of the answers.")


def _difference(row: Any) -> str:
    low, high = sorted((abs(row["ci_low"]), abs(row["ci_high"])))
    size = 100 * abs(row["difference"])
    return f"{size:.1f} points ({100 * low:.1f}–{100 * high:.1f}) at k = {row['k']:,}"


def _range(row: Any) -> str:
    return f"{100 * row['ci_low']:.1f}–{percent(row['ci_high'])}%"
