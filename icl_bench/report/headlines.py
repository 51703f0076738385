"""The findings in words: numbers with intervals, and differences only if a test confirms them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.findings.attention import differences
from icl_bench.analysis.findings.replication import in_words
from icl_bench.analysis.findings.saturation import saturation_text
from icl_bench.analysis.statistics.paired import NO_CHANGE
from icl_bench.analysis.words import founded_on, points, power, too_little
from icl_bench.metrics.scores import ACCURACY, measure, title
from icl_bench.report.naming import Naming, point_name, unshuffled
from icl_bench.wording import counted, listed, percent

if TYPE_CHECKING:
    import pandas as pd


class Sentence(NamedTuple):
    """One finding, and its subject in one word."""

    topic: str
    text: str
    """The text with its numbers, intervals and data."""
    clause: str
    """The finding without scores, intervals and data."""


@dataclass(frozen=True)
class Headlines:
    """The sentences about one task and model."""

    task: str
    model: str
    sentences: tuple[Sentence, ...]
    called: str = ""
    """The heading after the task; by default the model."""


def headlines(findings: Findings, naming: Naming) -> list[Headlines]:
    """Sentences on each task and model that the tables support."""
    tables = {
        "curves": findings.curves,
        "best": findings.best_points,
        "saturation": findings.saturation,
        "chances": findings.saturation_chances,
        "selection": findings.retrieval_gain,
        "retrieval order": findings.retrieval_order,
        "training": findings.training_gain,
        "sorting": findings.sorting_penalty,
        "attention": differences(findings.attention_patterns),
        "order": findings.order_sensitivity,
        "models": findings.models,
        "replication": findings.replication,
    }
    named = {name: _with_bases(naming.named(table), naming) for name, table in tables.items()}
    curves = named["curves"]
    pairs = curves[["task", "model"]].drop_duplicates().sort_values(["task", "model"])
    all_headlines = []
    for task, model in pairs.itertuples(index=False):
        of_pair = {name: table[(table["task"] == task) & (table["model"] == model)] for name, table in named.items()}
        all_headlines.append(Headlines(task, model, tuple(_sentences(of_pair))))
    return [headline for headline in all_headlines if headline.sentences]


def _with_bases(table: pd.DataFrame, naming: Naming) -> pd.DataFrame:
    """A named table with ``beside``, what distinguishes the bases of a series."""
    if "base_variant" not in table or table.empty:
        return table.assign(beside="")
    return table.assign(beside=naming.bases(table, [n for n in ("task", "model", "base_model") if n in table]))


def _sentences(tables: dict[str, pd.DataFrame]) -> Iterator[Sentence]:
    rows = tables["curves"]["test_rows"].max()
    yield from _best(tables["best"].assign(all_rows=rows))
    yield from _saturated(unshuffled(tables["saturation"]), tables["chances"])
    yield from _gains("Selection", tables["selection"], "random selection")
    yield from _gains("Retrieval order", tables["retrieval order"], "the same by relevance")
    yield from _gains("Training", tables["training"], "a prompt with the same examples")
    yield from _gains("Sorting", tables["sorting"], "the same as drawn")
    yield from _gains("Attention", unshuffled(tables["attention"]), "full attention")
    yield from _changed(tables["order"])
    for base, rows in unshuffled(tables["models"]).groupby("base_model"):
        yield from _gains("Model", rows, str(base))
    for (series, beside), rows in unshuffled(tables["replication"]).groupby(["series", "beside"]):
        against = "imported predictions" + (f" ({beside})" if beside else "")
        verdicts = listed(f"{verdict} at {len(same)} of {len(rows)} k" for verdict, same in rows.groupby("verdict"))
        text = f"{series} beside {against}: {in_words(rows)}."
        yield Sentence("Replication", text, f"{series} beside {against}: {verdicts}")


def _best(points: pd.DataFrame) -> Iterator[Sentence]:
    for row in points.assign(rows=points["test_rows"]).to_dict("records"):
        where = f"by {row['series']} at k = {row['k']:,}" if row["k"] else point_name(row)
        if why := too_little(row):
            text = f"undetermined: the highest, {where}, has too little data ({why})."
            yield Sentence("Best", text, f"undetermined: the highest, {where}, has too little data")
            continue
        among, choice, tied = "", "", ""
        if row["points"] > 1:
            tied = f", tied with {counted(row['tied'], 'other')}" if row["tied"] else ""
            among = f", the highest of {counted(row['points'], 'tested point')}{tied}"
            among += f", {row['other_rows']:,} of them on other test rows" if row["other_rows"] else ""
            choice = "; interval corrected for selecting the maximum"
        yield Sentence(
            "Best",
            f"{percent(row['score'])}% {title(row['metric'])} ({_range(row)}) {where}{among} "
            f"({row['test_rows']:,} test rows, {counted(row['draws'], 'draw')}){choice}.",
            f"{percent(row['score'])}% {title(row['metric'])} {where}{tied}",
        )


def _founded(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The points with enough data for a key finding, and those with too little."""
    why = [too_little(row) for row in table.to_dict("records")]
    thin = [bool(text) for text in why]
    table = table.assign(why=why)
    return table[[not is_thin for is_thin in thin]], table[thin]


def _thin(rows: pd.DataFrame) -> str:
    """Points with too little data for a key finding, and the reasons."""
    where = listed(f"{k:,}" for k in sorted(set(rows["k"])))
    return f"too little data at k = {where} ({listed(dict.fromkeys(rows['why']))})"


def _without_data(thin: int) -> str:
    """The number of tested k with too little data; empty if none."""
    return f" ({thin:,} {'has' if thin == 1 else 'have'} too little data)" if thin else ""


def _saturated(points: pd.DataFrame, chances: pd.DataFrame) -> Iterator[Sentence]:
    rows: Iterable[Any] = points.itertuples()
    for row in rows:
        if (chances["series"] == row.series).sum() > 1:  # meaningless for a single k
            said = saturation_text(row)
            link = " is " if said.startswith(("saturated", "not saturated")) else ": "
            text = f"{row.series}{link}{said}."
            certain = row.likely_low == row.likely_high == row.k
            clause = f"{row.series}{link}{said.partition(' (')[0]}" if certain and row.spoken else text
            yield Sentence("Saturation", text, clause)


def _gains(topic: str, table: pd.DataFrame, base: str) -> Iterator[Sentence]:
    """For each series and base, the points where the test shows a difference, and where it is undecided."""
    of = measure(table) if len(table) else title(ACCURACY)
    compared = "" if of == title(ACCURACY) else f", in {of}"
    table = table[table["withheld"] != NO_CHANGE]  # nothing was compared
    for (series, beside), of_series in table.sort_values("k").groupby(["series", "beside"]):
        against = f"{base} ({beside})" if beside else base
        rows, thin = _founded(of_series)
        decided = rows[rows["advice"].notna()]
        parts = []
        for word, kept in (
            ("better", decided[decided["difference"] > 0]),
            ("worse", decided[decided["difference"] < 0]),
        ):
            if len(kept):
                ends = [kept.iloc[0], *([kept.iloc[-1]] if len(kept) > 1 else [])]
                where = f" at {len(kept)} of {len(of_series)} tested k," if len(kept) > 2 else ""
                parts.append(f"{word}{where} by " + " and ".join(map(_difference, ends)))
        unsure = rows[rows["advice"].isna()]
        if len(unsure):
            parts.append(_undecided(unsure))
        if len(rows):
            parts[-1] += f" ({founded_on(rows)})"
        if len(thin):
            parts.append(_thin(thin))
        text = f"{series} against {against}{compared}: {'; '.join(parts)}."
        yield Sentence(topic, text, f"{series}: {_decided(decided, len(rows), len(thin), against)}")


def _decided(decided: pd.DataFrame, judged: int, thin: int, base: str) -> str:
    """The number of tested k at which a series is better or worse than its base.

    ``judged`` counts the k that have enough data, ``thin`` the others.
    """
    if not judged:
        return f"too little data beside {base}"
    tested = judged + thin
    less = _without_data(thin)
    better = int((decided["difference"] > 0).sum())
    counts = {"better": better, "worse": len(decided) - better}
    parts = [
        f"{word} than {base} at {'every' if count == tested else f'{count} of {tested}'} tested k"
        for word, count in counts.items()
        if count
    ]
    if not parts:
        where = f" at {judged} of {tested} tested k" if thin else ""
        return f"not distinguishable from {base}{where}{less}"
    return f"{' and '.join(parts)}{less}"


def _undecided(rows: pd.DataFrame) -> str:
    """The points at which two sides are not distinguishable, and their largest difference."""
    largest = rows.iloc[int(rows["difference"].abs().argmax())]
    where = listed(f"{k:,}" for k in rows["k"])
    at = f" at k = {largest['k']:,}" if len(rows) > 1 else ""
    up_to = "up to " if len(rows) > 1 else ""
    return f"not distinguishable at k = {where}: {up_to}{points(largest)}{at}{power(largest)}"


def _changed(table: pd.DataFrame) -> Iterator[Sentence]:
    for series, of_series in table.assign(all_rows=table["rows"]).groupby("series"):
        rows, thin = _founded(of_series.sort_values("k"))
        if rows.empty:
            yield Sentence("Order", f"{series}: {_thin(thin)}.", f"{series}: too little data")
            continue
        ends = [rows.iloc[0], *([rows.iloc[-1]] if len(rows) > 1 else [])]
        changes = " and ".join(f"{percent(row['changed'])}% ({_range(row)}) at k = {row['k']:,}" for row in ends)
        beside = f"; {_thin(thin)}" if len(thin) else ""
        shares = " to ".join(
            dict.fromkeys(f"{percent(share)}%" for share in (rows["changed"].min(), rows["changed"].max()))
        )
        at = f" at {len(rows)} of {len(of_series)} tested k{_without_data(len(thin))}" if len(thin) else ""
        yield Sentence(
            "Order",
            f"{series}: another order changes {changes} of the answers ({founded_on(rows)}){beside}.",
            f"{series}: another order changes {shares} of the answers{at}",
        )


def _difference(row: Any) -> str:
    low, high = sorted((abs(row["ci_low"]), abs(row["ci_high"])))
    size = percent(abs(row["difference"]))
    return f"{size} points ({percent(low)} to {percent(high)}) at k = {row['k']:,}"


def _range(row: Any) -> str:
    return f"{percent(row['ci_low'])} to {percent(row['ci_high'])}"
