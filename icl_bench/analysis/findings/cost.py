"""Cost: tokens, seconds and operations of a query, and when training is cheaper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.analysis.by_task import ByTask
from icl_bench.analysis.cell_cost import MAKING, OF_CELL, OF_MODEL, CellCost
from icl_bench.analysis.columns import POINT, TERA, Column
from icl_bench.analysis.draws import is_shuffled
from icl_bench.analysis.finding import Finding, Printed, Section
from icl_bench.analysis.predictions import samples_of
from icl_bench.analysis.query_cost import split_seconds
from icl_bench.demonstrations.selector_spec import known
from icl_bench.models.attention_patterns import FULL, pattern_of
from icl_bench.results.cells import SETTING
from icl_bench.results.trained_methods import BASELINES

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

TOKENS = ["prompt_tokens", "cached_tokens", "answer_tokens"]


BY_SERVER = ["cache_write_tokens", "reasoning_tokens"]
"""Tokens that only a server counts."""


WARMED = ["once_new_tokens", "once_written_tokens", "warm_new_tokens", "warm_written_tokens"]
"""Tokens of filling a server's cache, for points with tokens billed by a server (:func:`_warmed`)."""


EVEN = [
    "task",
    "model",
    "select",
    "variant",
    "k",
    "beside",
    "base_variant",
    "training_flops",
    "flops",
    "base_flops",
    "queries",
    "training_seconds",
    "seconds",
    "base_seconds",
    "queries_by_seconds",
    "until",
    "until_by_seconds",
]


def cost(frame: pd.DataFrame, cells: Mapping[str, CellCost]) -> pd.DataFrame:
    """The cost of a query at each point, and of its training if there was one.

    Columns: the setting, k, predictions; means per query: prompt_tokens, cached_tokens (from a cache, or shared with
    other queries), answer_tokens (including thoughts), computed_tokens (of the prompt, not cached), seconds (over the
    cells with known time); means over cells: rows_a_cell (the number of queries of a cell), samples_a_query (if any
    query has several samples, whose tokens are added up), prefix_flops (operations computed once for all queries: the
    prompts' shared beginning, or each reused demonstration), query_flops (additional operations of a query),
    whole_flops (of a query with nothing cached) and cache_bytes (of the cached keys and values of the longest prompt)
    by formula (:mod:`icl_bench.sweep.compute_cost`; older cells have those of full attention by
    :meth:`icl_bench.models.architecture.Architecture.flops`, and no bytes); prefill_seconds and peak_cache_bytes as
    measured; training_seconds, training_tokens and training_flops; calibration_seconds, calibration_tokens and
    calibration_flops, of calibration queries; for demonstrations with rationales written by a model, ``MAKING``, their
    cost; for a training of a model trained by this program, ``OF_MODEL``, the cost of the earlier training;
    ``served`` is the share of cells that a server answered. Unknown values are NaN.

    If a server counted tokens, all means are of billed tokens, with cache_write_tokens and reasoning_tokens (of the
    prompt and of the answer). The columns ``WARMED``, means over cells, have the tokens of filling its cache: in this
    run (``warm_``), and for a use of this point alone (``once_``), as new or as written tokens.

    A nested sweep extends the prompt of the next smaller k, so seconds depend on the run, not on this k alone.
    """
    import pandas as pd

    tokens = [*TOKENS, *BY_SERVER]
    queries = frame.reindex(columns=[*POINT, *tokens, "local_prompt_tokens", "cell"])
    queries = queries.astype(dict.fromkeys([*tokens, "local_prompt_tokens"], float))
    queries["samples_a_query"] = samples_of(frame)
    if "thought_tokens" in frame:
        queries["answer_tokens"] += frame["thought_tokens"].astype(float).fillna(0.0)
    points = queries.groupby(POINT, observed=True, sort=True)
    table: pd.DataFrame = points[TOKENS].mean()
    table[BY_SERVER] = points[BY_SERVER].sum(min_count=1).div(points.size(), axis=0)
    table.insert(0, "predictions", points.size())
    table["computed_tokens"] = table["prompt_tokens"] - table["cached_tokens"]
    by_cell = queries.groupby([*POINT, "cell"], observed=True)
    means = by_cell[TOKENS].mean().assign(rows=by_cell.size()).reset_index()
    table["rows_a_cell"] = means.groupby(POINT, observed=True)["rows"].mean()
    if (queries["samples_a_query"] != 1).any():
        table["samples_a_query"] = points["samples_a_query"].mean()
    costs = [cells.get(str(cell), CellCost()) for cell in means["cell"]]
    means["seconds"] = [np.nan if c.seconds is None else c.seconds for c in costs]
    means["rows"] = means["rows"].where(means["seconds"].notna())
    sums = means.groupby(POINT, observed=True)[["seconds", "rows"]].sum(min_count=1)
    table["seconds"] = sums["seconds"] / sums["rows"]
    counts = zip(costs, means["prompt_tokens"], means["answer_tokens"], strict=True)
    rows = [c.row(prompt, answer) for c, prompt, answer in counts]
    making = pd.DataFrame([c.making() for c in costs], columns=MAKING, dtype=float)
    earlier = pd.DataFrame([c.of_model() for c in costs], columns=OF_MODEL, dtype=float)
    means = means[POINT].join(pd.DataFrame(rows, columns=OF_CELL, dtype=float)).join(making).join(earlier)
    for more, names in ((making, MAKING), (earlier, OF_MODEL)):
        if (more != 0).any(axis=None):
            table[names] = means.groupby(POINT, observed=True)[names].mean()
    table[OF_CELL] = means.groupby(POINT, observed=True)[OF_CELL].mean()
    if (billed := queries["local_prompt_tokens"].notna()).any():
        table[WARMED] = _warmed(queries[billed]).groupby(POINT, observed=True)[WARMED].mean()
    else:
        table[WARMED] = np.nan
    return table.reset_index()


def _warmed(billed: pd.DataFrame) -> pd.DataFrame:
    """Tokens of filling a server's cache, by cell: ``WARMED``, indexed by ``POINT`` and cell.

    ``billed`` has the queries whose tokens a server counted. A query usually reads the median number of cached tokens
    of its cell. This number was read once without the cache: as written tokens if the server bills them, else as new
    ones. A run pays less if a cell of a smaller k, or an earlier run, has filled the cache.
    """
    import pandas as pd

    keys = [billed[name] for name in [*POINT, "cell"]]
    cached, written = billed["cached_tokens"].fillna(0.0), billed["cache_write_tokens"].fillna(0.0)
    usual = (cached / billed["samples_a_query"]).groupby(keys, observed=True).median()
    lacked = cached.groupby(keys, observed=True).transform("median") - cached - written
    lacked = lacked.clip(0.0, (billed["prompt_tokens"] - cached - written).clip(lower=0.0))  # no more than were new
    warm_written = np.minimum(written.groupby(keys, observed=True).sum(), usual)
    warm_new = np.minimum(lacked.groupby(keys, observed=True).sum(), usual - warm_written)
    found_full = usual - warm_written - warm_new
    once_written = warm_written + found_full.where(warm_written > 0, 0.0)
    parts = [usual - once_written, once_written, warm_new, warm_written]
    warmed: pd.DataFrame = pd.concat(parts, axis=1, keys=WARMED)
    return warmed


def break_even(costs: pd.DataFrame) -> pd.DataFrame:
    """The number of queries after which training is cheaper than prompting with the same number of examples.

    ``costs`` is :func:`cost`'s table. Every training, of a classifier or of a reader of vectors, is compared with
    prompts of the same task, model and k: with random or otherwise shared demonstrations, cached and uncached, and with
    retrieved ones, computed for each query or, with reuse, once for all queries. Attention other than full is named.
    Costs are equal at ``training + n * query = prefix + n * prompt query``. If demonstrations are read as vectors,
    reading the shared ones once is part of the training.

    Columns: task, model, select (the method, or how its demonstrations are read), its variant, k, ``beside`` (the
    compared prompt), base_variant, training_flops, flops and base_flops (of a query, with the training and with the
    prompt), queries (the first number with which training is cheaper: 0 at once, NaN never), until (the last such
    number, if a query costs more with the training; NaN if training stays cheaper, or never is), and the same by
    measured seconds, without those of the shared demonstrations, which are missing for uncached prompts.
    """
    import pandas as pd

    named = costs.astype(dict.fromkeys(SETTING, object))
    named = named[~is_shuffled(named["order"])]
    classifies = named["select"].isin(BASELINES)
    reads_vectors = ~classifies & named["attention"].map(_reads_vectors)
    known_training = named["training_flops"].notna()
    trained = [
        *(
            (row, _Way(row["select"], 0.0, row["query_flops"], *_seconds(row)))
            for _, row in named[classifies & known_training].iterrows()
        ),
        *(
            (row, way)
            for _, row in named[reads_vectors & known_training & (named["k"] > 0)].iterrows()
            for way in islice(_ways(row), 1)
        ),
    ]
    keys = ["task", "model", "k"]
    rows = [
        {**{name: row[name] for name in [*keys, "variant"]}, "base_variant": prompt["variant"], **_even(row, own, way)}
        for row, own in trained
        for _, prompt in named[~classifies & ~reads_vectors].iterrows()
        if all(row[name] == prompt[name] for name in keys)
        for way in _ways(prompt)
    ]
    return pd.DataFrame(rows, columns=EVEN)


class _Way(NamedTuple):
    """A way to serve a point: its name, and its operations and seconds per query and once."""

    name: str
    once: float
    query: float
    seconds: float
    seconds_once: float


def _seconds(row: Any) -> tuple[float, float]:
    """Seconds per query, and those of the shared demonstrations, once."""
    each, once = split_seconds(row["seconds"], row.get("prefill_seconds", 0.0), row.get("rows_a_cell", 1.0))
    return float(each), float(once)


def _reads_vectors(attention: str) -> bool:
    pattern = pattern_of(attention)
    return pattern is not None and pattern.reads_vectors


def _ways(prompt: Any) -> Iterator[_Way]:
    """Ways to serve a prompt, with cached demonstrations first if possible; none if their order is not that of their
    draw.
    """
    name, pattern = str(prompt["select"]), pattern_of(prompt["attention"])
    read = "" if pattern == FULL else f", {prompt['attention']}"
    once, query, whole = (prompt[f"{part}_flops"] for part in ("prefix", "query", "whole"))
    choice = known(name)
    if choice is None or choice.retrieves:
        reuses = pattern is not None and pattern.reuses
        once, query = (once, query) if reuses else (0.0, whole)
        yield _Way(name + read, once, query, *(_seconds(prompt) if reuses else (prompt["seconds"], 0.0)))
    elif prompt["order"] == "drawn":
        yield _Way(f"{name}, cached{read}", once, query, *_seconds(prompt))
        yield _Way(f"{name}, not cached{read}", 0.0, whole, np.nan, np.nan)


def _even(row: Any, own: _Way, base: _Way) -> dict[str, float | str]:
    queries, until = _queries(row["training_flops"] + own.once - base.once, base.query - own.query)
    more_seconds = row["training_seconds"] + own.seconds_once - base.seconds_once
    by_seconds, until_by_seconds = _queries(more_seconds, base.seconds - own.seconds)
    return {
        "select": own.name,
        "beside": base.name,
        "training_flops": row["training_flops"],
        "flops": own.query,
        "base_flops": base.query,
        "queries": queries,
        "training_seconds": row["training_seconds"],
        "seconds": own.seconds,
        "base_seconds": base.seconds,
        "queries_by_seconds": by_seconds,
        "until": until,
        "until_by_seconds": until_by_seconds,
    }


def _queries(training: float, saved: float) -> tuple[float, float]:
    """The first number of queries with which the training is cheaper, NaN for never, and the last one, NaN without end.

    ``training`` is the additional cost once, which may be negative, and ``saved`` that of each query.
    """
    never = float("nan")
    if np.isnan(training) or np.isnan(saved) or (saved <= 0 and training > 0):
        return never, never
    if saved < 0:
        last = float(np.ceil(training / saved) - 1)
        return (0.0, last) if last >= 1 else (never, never)
    return (0.0 if training <= 0 else float(np.floor(training / saved) + 1)), never


def costs_of(context: Context) -> pd.DataFrame:
    """The cost of a query at each point as stored: ``random, k=0`` is not added to other curves."""
    return context.once("costs of points", lambda: cost(context.unperturbed, context.cells.costs))


COST = Finding(
    "cost",
    lambda context: context.from_zero_shot(costs_of(context)),
    caption="Cost of a query",
    shown="task model series k predictions metric score prompt_tokens cached_tokens "
    "computed_tokens answer_tokens seconds training_seconds training_tokens",
    printed=Printed(
        "cost of a query, and of a training",
        "task model select order k prompt_tokens cached_tokens seconds query_flops whole_flops "
        "training_seconds training_flops",
        columns_here=(
            Column("query_flops", "GFLOP, cached", "number", unit=1e9),
            Column("whole_flops", "GFLOP, not cached", "number", unit=1e9),
        ),
        option="cost",
    ),
    section=Section(
        "cost",
        "What a score costs",
        "Cost",
        "run it here: imports rarely have token counts",
        "Up and to the left is better. Tokens and seconds in the charts are those of the frontier for "
        "{queries}: with a query's share of what is computed once, a cached prefix or a training. "
        "The table has them without that share, as the run took them: tokens of a prompt that came "
        "from no cache and were not shared, and seconds of the backend, where a nested sweep extends "
        "the prompt of the next smaller k.",
        place=180,
    ),
    by_task=ByTask(lacking={"samples_a_query": 1.0, **dict.fromkeys((*MAKING, *OF_MODEL), 0.0)}),
)


def _printed(table: pd.DataFrame) -> pd.DataFrame:
    """Numbers of queries as text: ``never`` if training never pays off, a dash without costs, ``0 to 45`` if it only
    pays for few.
    """
    sides = (("queries", "until", "base_flops"), ("queries_by_seconds", "until_by_seconds", "base_seconds"))
    shown = table.copy()
    for name, until, base in sides:
        text = table[name].map("{:,.0f}".format, na_action="ignore").fillna("never")
        text += table[until].map(" to {:,.0f}".format, na_action="ignore").fillna("")
        shown[name] = text.where(table[base].notna())
    return shown


BREAK_EVEN = Finding(
    "break_even",
    lambda context: break_even(context.uncalibrated(context.table("cost"))),  # they cost the same
    (
        Column("select", "method"),
        Column("beside", "beside"),
        Column("queries", "queries until it pays", "count", short="by operations"),
        Column("until", "pays until", "count", short="until", optional=True),
        Column("queries_by_seconds", "by seconds", "count", optional=True),
        Column("until_by_seconds", "pays until, by seconds", "count", short="until", optional=True),
        Column("flops", "a query (TFLOP)", "number", unit=TERA),
        Column("base_flops", "a prompted query (TFLOP)", "number", unit=TERA),
        Column("base_seconds", "seconds a prompted query", "number", optional=True),
    ),
    caption="Break-even",
    shown="task model series k queries until queries_by_seconds until_by_seconds training_flops flops base_flops "
    "training_seconds seconds base_seconds",
    printed=Printed(
        "queries until training is cheaper than a prompt of as many examples",
        "task model select k beside queries queries_by_seconds",
        _printed,
        option="cost",
    ),
    section=Section(
        "even",
        "When training pays",
        "Break-even",
        "icl-bench finetune, and run with the same k",
        "After this many queries, training once and answering bare queries takes fewer "
        "floating-point operations than prompting with the same number of demonstrations, which "
        "are cached, computed again for each query, or retrieved. How well either answers is "
        "another matter. What never pays, or only for few queries, has no point.",
        "Bertsch et al. 2025, section 3.3",
        place=190,
    ),
)
