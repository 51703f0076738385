"""A plan as a table and as records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from icl_bench.cli.output.fitting import ColumnHead, print_table
from icl_bench.cli.output.tables import print_lines
from icl_bench.results.calibration import of_queries
from icl_bench.results.facts import LABELLED
from icl_bench.wording import DASH, counted, three_digits

if TYPE_CHECKING:
    from rich.console import Console

    from icl_bench.models.prices import Prices
    from icl_bench.results.storage import Place
    from icl_bench.sweep.combinations import Combination
    from icl_bench.sweep.compute_cost import ComputeCost
    from icl_bench.sweep.plan import CellPlan
    from icl_bench.sweep.plan_money import MoneyRange
    from icl_bench.sweep.sweep import Sweep


def plan_records(sweep: Sweep, results: Place | None = None, prices: Prices | None = None) -> list[dict[str, Any]]:
    """The plan's cells as records, then a record for each combination that is left out.

    A combination of selector, order, attention and k has no draw; its ``problem`` is the reason. With
    ``results``, ``finished`` is whether a cell has a file there. With ``prices``, ``money_cached`` and
    ``money_uncached`` are what a cell costs (:func:`icl_bench.sweep.plan_money.sweep_money`), and with ``_most``
    what it costs at most.
    """
    from icl_bench.sweep.plan_money import sweep_money, sweep_prices

    finished = _finished(sweep, results)
    money: Sequence[MoneyRange | None] = [None] * len(sweep.plan.cells)
    if prices is not None:
        money = sweep_money(sweep, sweep_prices(sweep, prices))
    cells = [
        {
            **cell.spec.model_dump(),
            "queries": cell.task.asked or cell.task.queries,
            "left_out": False,
            "fits": cell.problem is None,
            "problem": cell.problem,
            "prefix_tokens": cell.prefix_tokens,
            "longest_query_tokens": max(0, cell.longest_prompt - cell.prefix_tokens),
            "longest_prompt_tokens": cell.longest_prompt,
            "answer_tokens": cell.answer_tokens,
            "needed_tokens": cell.needed_tokens,
            "context_tokens": cell.context_tokens,
            "prompt_tokens": cell.prompt_tokens,
            "shared_tokens": cell.shared_tokens,
            "new_tokens": cell.new_tokens,
            "same_prompts": cell.same_prompts,
            "flops": work and work.prefix_flops + cell.queries * work.query_flops,
            "prefix_flops": work and work.prefix_flops,
            "cache_bytes": work and work.cache_bytes,
            "seconds": None if estimate is None else round(estimate, 1),
            "finished": done,
            **_money_record(costs),
        }
        for cell, estimate, work, done, costs in zip(
            sweep.plan.cells, sweep.estimates(), sweep.costs(), finished, money, strict=True
        )
    ]
    return cells + [
        _left_out(sweep, combination, reason) for combination, reason in sweep.plan.combinations.left_out.items()
    ]


def _left_out(sweep: Sweep, combination: Combination, reason: str) -> dict[str, Any]:
    """The record of an impossible combination."""
    tokens = ("prefix", "longest_query", "longest_prompt", "answer", "needed", "prompt", "shared", "new")
    return {
        "task": sweep.task.data.spec.name,
        "model": sweep.model.name,
        **dict(zip(("select", "order", "attention", "k"), combination.axes, strict=True)),
        "draw": None,
        "queries": sweep.task.queries,
        "left_out": True,
        "fits": False,
        "problem": reason,
        **{f"{name}_tokens": 0 for name in tokens},
        "context_tokens": sweep.model.context_tokens,
        "same_prompts": 0,
        **dict.fromkeys(("flops", "prefix_flops", "cache_bytes", "seconds", "finished")),
    }


def _money_record(money: MoneyRange | None) -> dict[str, float | None]:
    """``money_cached`` and ``money_uncached``; with ``_most`` where answers may be longer. None if unknown."""
    if money is None:
        return {}
    record = {f"money_{name}": amount for name, amount in money.least._asdict().items()}
    if money.most != money.least and not math.isnan(money.least.cached):
        record |= {f"money_{name}_most": amount for name, amount in money.most._asdict().items()}
    return {name: None if math.isnan(amount) else amount for name, amount in record.items()}


def print_planned_money(sweep: Sweep, console: Console, results: Place | None, prices: Prices) -> None:
    """Print what the cells that are left cost, each curve's point and all of them."""
    from icl_bench.sweep.plan_money import paid_by_hour, sweep_money, sweep_prices

    of_model = sweep_prices(sweep, prices)
    rows = zip(sweep.plan.cells, _finished(sweep, results), sweep_money(sweep, of_model), strict=True)
    left = [(cell, money) for cell, finished, money in rows if cell.problem is None and not finished]
    of_points: dict[tuple[str, int], list[MoneyRange]] = {}
    for cell, money in left:
        of_points.setdefault((", ".join(_curve(cell)), cell.spec.k), []).append(money)
    heads = (ColumnHead("curve", "name", bare=True), ColumnHead("k", "key"), ColumnHead("cells", "count"))
    rows_of_points = [[curve, f"{k:,}", str(len(money)), *_in_words(money)] for (curve, k), money in of_points.items()]
    print_table(console, [*heads, ColumnHead("price, cached"), ColumnHead("price, not cached")], rows_of_points)
    cached, uncached = _in_words([money for _, money in left])
    what = f"{cached} if the server's cache has all that prompts share, {uncached} if it has nothing"
    longest = any(money.most != money.least for _, money in left)
    thoughts = (
        "from answers without thoughts to answers at the limit of tokens" if longest else "answers without thoughts"
    )
    told = f"{cached}, by the hour" if paid_by_hour(sweep, of_model) else f"{what}; {thoughts}"
    print_lines(
        console,
        f"price of {counted(len(left), 'cell')}: {told}",
        *[f"prices: US dollars per million tokens, {of_model.origin}"] * (of_model.origin is not None),
    )


def _in_words(money: Sequence[MoneyRange]) -> tuple[str, str]:
    """The sums of cells, with and without a cache; with thoughts as a range."""
    cached, uncached = (
        [sum(amounts) for amounts in ([one.least[at] for one in money], [one.most[at] for one in money])]
        for at in (0, 1)
    )
    return _amounts(*cached), _amounts(*uncached)


def _amounts(least: float, most: float) -> str:
    shown = [DASH if math.isnan(one) else f"{one:,.2f}" if one >= 1 else three_digits(one) for one in (least, most)]
    return shown[0] if shown[0] == shown[1] else " to ".join(shown)


def _finished(sweep: Sweep, results: Place | None) -> Sequence[bool | None]:
    """Whether cells have a file in the results; None without a folder."""
    return [None] * len(sweep.plan.cells) if results is None else sweep.finished(results)


def print_plan(sweep: Sweep, console: Console, results: Place | None = None) -> None:
    """Print the plan: a row per cell, a table per selector, order and attention.

    With ``results``, also print how many cells are left to compute.
    """
    from icl_bench.sweep.notes import notes, queries_in_words

    data, model = sweep.task.data, sweep.model
    console.print(f"{data.spec.name} · {model.name}, tokens", style="bold")
    seconds, works, finished = sweep.estimates(), sweep.costs(), _finished(sweep, results)
    rows = list(zip(sweep.plan.cells, seconds, works, finished, strict=True))
    for curve in dict.fromkeys(map(_curve, sweep.plan.cells)):
        cells = [_row(*row) for row in rows if _curve(row[0]) == curve]
        heads = PLANNED if results is not None else PLANNED[:-1]
        print_table(console, heads, [cell[: len(heads)] for cell in cells], names=[", ".join(curve)])
    total = sum(estimate or 0.0 for estimate in seconds)
    about = f", about {duration(total)} on this machine" if None not in seconds else ""
    left = [row for row in rows if row[0].problem is None and not row[3]]
    remaining = sum(estimate or 0.0 for _, estimate, *_ in left)
    time_left = f", about {duration(remaining)} on this machine" if left and None not in seconds else ""
    why = f" ({sweep.backend.reason})" if sweep.backend.reason else ""  # if the program chose it
    print_lines(
        console,
        *(f"note: {text}" for text in notes(sweep)),
        *(f"skipped: {problem}" for problem in sweep.plan.problems),
        *(f"left out: {reason}" for reason in sweep.plan.combinations.reasons),
        f"backend: {sweep.backend.name}{why}",
        f"{counted(sum(cell.problem is None for cell, *_ in rows), 'cell')}, "
        f"{queries_in_words(sweep.task)}{about}; {model.name} reads "
        f"{model.context_tokens:,} tokens; data: {data.origin}",
        *[f"finished in {results}: {counted(sum(map(bool, finished)), 'cell')}; left: {len(left):,}{time_left}"]
        * (results is not None),
        *_stored_scores(sweep),
        *["TFLOP: of a cell without sharing, by formula; cache: keys and values of its longest prompt"] * any(works),
    )


def _stored_scores(sweep: Sweep) -> list[str]:
    """What stored label scores take, where every label is scored."""
    if sweep.task.scoring != "exact":
        return []
    kept, labels = sweep.kept_scores, sweep.most_labels
    each = kept.bytes_of(labels)
    total = each * sum(cell.queries for cell in sweep.plan.cells if cell.problem is None)
    return [
        f"label scores: {each:,} bytes a prediction ({counted(labels, 'label')}, --keep-scores {kept}), "
        f"{in_bytes(total) if total >= 1e6 else f'{total:,} bytes'} in all before compression"
    ]


def _curve(cell: CellPlan) -> tuple[str, ...]:
    asked: tuple[str, ...] = ()
    if cell.task.asked:
        calibration = of_queries(cell.task.asked)
        asked = (f"queries of --calibrate {calibration}" if calibration else "rows of the pool, for their labels",)
    if not cell.spec.k and cell.task.asked == LABELLED:
        return ("without demonstrations", *asked)
    if not cell.spec.k:
        return ("without demonstrations, for every curve", *asked)
    return (cell.spec.select, cell.spec.order, cell.spec.attention, *asked)


PLANNED = (
    *(ColumnHead(name, "key") for name in ("draw", "k")),
    *map(ColumnHead, ("prefix", "longest query", "needs")),
    ColumnHead("fits", "count"),
    *map(ColumnHead, ("shared", "to compute", "TFLOP", "cache", "time", "finished")),
)
"""The columns of a plan; ``fits`` moves to the title if every cell fits and there is little room."""


def _row(cell: CellPlan, estimate: float | None, work: ComputeCost | None, finished: bool | None) -> list[str]:
    """The cells of a row, for the columns of ``PLANNED``."""
    spec, fits = cell.spec, cell.problem is None
    lengths = (cell.prefix_tokens, cell.longest_prompt - cell.prefix_tokens, cell.needed_tokens)
    tokens = (cell.shared_tokens, cell.new_tokens)
    known = cell.longest_prompt > 0
    return [
        str(spec.draw),
        f"{spec.k:,}",
        *(f"{n:,}" if known else "" for n in lengths),
        "yes" if fits else "no",
        *(f"{n:,}" if fits else "" for n in tokens),
        f"{(work.prefix_flops + cell.queries * work.query_flops) / 1e12:,.1f}" if work else "",
        in_bytes(work.cache_bytes) if work else "",
        duration(estimate) if fits and estimate is not None else "",
        "yes" if finished else "",
    ]


def in_bytes(count: float) -> str:
    """A number of bytes with its unit."""
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_planned_power(sweep: Sweep, console: Console, results: Place | None, wanted: float) -> None:
    """Print which differences the planned draws and test rows can show at each k."""
    import pandas as pd

    from icl_bench.analysis.detect import DETECT, known_pairs, lines, planned

    name, model = sweep.task.data.spec.name, sweep.model.name
    known = {} if results is None else known_pairs(results, name, model)
    rows = []
    for k in sorted({cell.spec.k for cell in sweep.plan.cells} - {0}):
        draws = len({cell.spec.draw for cell in sweep.plan.cells if cell.spec.k == k})
        rows.append({"task": name, "model": model, **planned(k, known, (draws, len(sweep.task.data.test)), wanted)})
    print_lines(console, *lines(pd.DataFrame(rows, columns=DETECT)))
