"""A plan as a table and as records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icl_bench.cli.output.fitting import ColumnHead, print_table
from icl_bench.cli.output.tables import print_lines
from icl_bench.results.calibration import of_queries
from icl_bench.results.facts import LABELLED
from icl_bench.wording import DASH, counted, duration, three_digits

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

    A combination of selector, order, attention and k has no draw; its ``problem`` is the reason. With ``results``,
    ``finished`` is whether a cell has a file there. With ``prices``, ``money_cached`` and ``money_uncached`` are the
    cost of a cell (:func:`icl_bench.sweep.plan_money.sweep_money`), and with ``_most`` its maximum.
    """
    from icl_bench.sweep.plan_money import sweep_money, sweep_prices

    finished = finished_cells(sweep, results)
    sweep = sweep.continued(finished)
    money: Sequence[MoneyRange | None] = [None] * len(sweep.plan.cells)
    if prices is not None:
        money = sweep_money(sweep, sweep_prices(sweep, prices), finished)
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
    """``money_cached`` and ``money_uncached``; with ``_most`` for the longest answers. None if unknown."""
    if money is None:
        return {}
    record = {f"money_{name}": amount for name, amount in money.least._asdict().items()}
    if money.most != money.least and not math.isnan(money.least.cached):
        record |= {f"money_{name}_most": amount for name, amount in money.most._asdict().items()}
    return {name: None if math.isnan(amount) else amount for name, amount in record.items()}


def print_planned_money(sweep: Sweep, console: Console, finished: Sequence[bool | None], prices: Prices) -> None:
    """Print the cost of the remaining cells, per point of each curve and in total.

    ``finished`` is whether each cell has a file.
    """
    from icl_bench.sweep.plan_money import paid_by_hour, sweep_money, sweep_prices

    of_model = sweep_prices(sweep, prices)
    of_cells = sweep_money(sweep, of_model, finished)
    left = [(sweep.plan.cells[at], of_cells[at]) for at in _left(sweep, finished)]
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


def finished_cells(sweep: Sweep, results: Place | None) -> Sequence[bool | None]:
    """Whether cells have a file in the results; None without a folder."""
    return [None] * len(sweep.plan.cells) if results is None else sweep.finished(results)


def _left(sweep: Sweep, finished: Sequence[bool | None]) -> list[int]:
    """The indices of the cells that can run and are not finished."""
    return [at for at, cell in enumerate(sweep.plan.cells) if cell.problem is None and not finished[at]]


@dataclass(frozen=True)
class PlanTotal:
    """Totals over cells."""

    cells: int
    tokens: int
    """Prompt tokens to compute."""
    seconds: float | None
    """Estimated; None if unknown."""
    money: tuple[MoneyRange, ...] | None = None
    """For each cell; None without prices."""

    def __add__(self, other: PlanTotal) -> PlanTotal:
        known = None not in (self.seconds, other.seconds)
        return PlanTotal(
            self.cells + other.cells,
            self.tokens + other.tokens,
            (self.seconds or 0.0) + (other.seconds or 0.0) if known else None,
            None if self.money is None or other.money is None else (*self.money, *other.money),
        )

    def __str__(self) -> str:
        """The text of :func:`total_in_words`, with the price if there is one."""
        price = ""
        if self.money:
            cached, uncached = _in_words(self.money)
            price = f", price {cached}" + (f" ({uncached} if nothing is cached)" if uncached != cached else "")
        return total_in_words(self.cells, self.tokens, self.seconds) + price


def total_in_words(cells: int, tokens: int, seconds: float | None) -> str:
    """Text such as ``8 cells, 12,345 tokens to compute, about 3 min on this machine``, with the time if it is known."""
    about = f", about {duration(seconds)} on this machine" if cells and seconds is not None else ""
    return f"{counted(cells, 'cell')}, {tokens:,} tokens to compute{about}"


def plan_total(sweep: Sweep, finished: Sequence[bool | None], prices: Prices | None = None) -> PlanTotal:
    """Totals of the cells that can run and are not ``finished``, without prompts that an earlier draw answers."""
    from icl_bench.sweep.plan import shares_asked
    from icl_bench.sweep.plan_money import sweep_money, sweep_prices

    cells, left, estimates = sweep.plan.cells, _left(sweep, finished), sweep.estimates()
    shares = shares_asked(cells, finished)
    seconds = [shares[at] * estimate for at in left if (estimate := estimates[at]) is not None]
    money = None if prices is None else sweep_money(sweep, sweep_prices(sweep, prices), finished)
    return PlanTotal(
        len(left),
        sum(round(shares[at] * cells[at].new_tokens) for at in left),
        sum(seconds) if len(seconds) == len(left) else None,
        None if money is None else tuple(money[at] for at in left),
    )


def print_plan(
    sweep: Sweep, console: Console, results: Place | None = None, finished: Sequence[bool | None] | None = None
) -> None:
    """Print the plan: one row per k, one table per selector, order and attention.

    Values that differ between the draws of a row are shown as a range. With ``results``, also print how many cells are
    ``finished`` there (:func:`finished_cells`).
    """
    from icl_bench.sweep.notes import notes, queries_in_words

    data, model = sweep.task.data, sweep.model
    seconds, works = sweep.estimates(), sweep.costs()
    finished = finished_cells(sweep, None) if finished is None else finished
    curves: dict[tuple[str, ...], dict[int, list[PlannedRow]]] = {}
    for row in zip(sweep.plan.cells, seconds, works, finished, strict=True):
        curves.setdefault(_curve(row[0]), {}).setdefault(row[0].spec.k, []).append(row)
    heads = PLANNED if any(finished) else PLANNED[:-1]
    console.print(f"{data.spec.name} · {model.name}, tokens", style="bold")
    for curve, points in curves.items():
        rows = [_folded(draws)[: len(heads)] for draws in points.values()]
        print_table(console, heads, rows, names=[", ".join(curve)])
    why = f" ({sweep.backend.reason})" if sweep.backend.reason else ""  # if the program chose it
    print_lines(
        console,
        *(f"note: {text}" for text in notes(sweep)),
        *(f"skipped: {problem}" for problem in sweep.plan.problems),
        *(f"left out: {reason}" for reason in sweep.plan.combinations.reasons),
        f"backend: {sweep.backend.name}{why}",
        f"each cell: {queries_in_words(sweep.task)}; {model.name} reads {model.context_tokens:,} tokens; "
        f"data: {data.origin}",
        *[f"finished in {results}: {counted(sum(map(bool, finished)), 'cell')}"] * (results is not None),
        *_stored_scores(sweep),
        "numbers are of one draw; needs: the longest prompt and answer; shared: tokens computed once or cached",
        *["TFLOP: of a cell alone, by formula; cache: keys and values of its longest prompt"] * any(works),
    )


def _stored_scores(sweep: Sweep) -> list[str]:
    """The size of stored label scores, if every label is scored."""
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


PlannedRow = tuple["CellPlan", "float | None", "ComputeCost | None", "bool | None"]
"""A cell, its estimated seconds, its cost and whether it is finished; each None if unknown."""

PLANNED = (
    ColumnHead("draws", "count"),
    ColumnHead("k", "key"),
    *map(ColumnHead, ("prefix", "longest query", "needs")),
    ColumnHead("fits", "count"),
    *map(ColumnHead, ("shared", "to compute", "TFLOP", "cache", "time", "finished")),
)
"""The columns of a plan; ``fits`` moves to the title if every cell fits and there is little room."""


def _folded(draws: Sequence[PlannedRow]) -> list[str]:
    """The cells of a row, for the columns of ``PLANNED``: numbers over draws, as a range if they differ."""
    cells = [cell for cell, *_ in draws]
    known = [cell for cell in cells if cell.longest_prompt > 0]
    fitting = [cell for cell in cells if cell.problem is None]
    works = [(cell, work) for cell, _, work, _ in draws if work is not None]

    def whole(values: Iterable[int]) -> str:
        return _range(values, lambda n: f"{n:,}")

    return [
        f"{len(draws):,}",
        f"{cells[0].spec.k:,}",
        whole(cell.prefix_tokens for cell in known),
        whole(cell.longest_prompt - cell.prefix_tokens for cell in known),
        whole(cell.needed_tokens for cell in known),
        _share(len(fitting), len(draws), none="no"),
        whole(cell.shared_tokens for cell in fitting),
        whole(cell.new_tokens for cell in fitting),
        _range(
            ((work.prefix_flops + cell.queries * work.query_flops) / 1e12 for cell, work in works),
            lambda n: f"{n:,.1f}",
        ),
        _range((work.cache_bytes for _, work in works), in_bytes),
        _range((time for cell, time, *_ in draws if cell.problem is None and time is not None), duration),
        _share(sum(bool(finished) for *_, finished in draws), len(draws), none=""),
    ]


def _range(values: Iterable[float], write: Callable[[Any], str]) -> str:
    """The minimum and maximum, or one text if both are written equally; empty without values."""
    present = sorted(values)
    return DASH.join(dict.fromkeys(map(write, (present[0], present[-1])))) if present else ""


def _share(count: int, of: int, none: str) -> str:
    """The number of draws for which something holds."""
    if count in (0, of):
        return "yes" if count else none
    return f"{count:,} of {of:,}"


def in_bytes(count: float) -> str:
    """A number of bytes with its unit."""
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def print_planned_power(sweep: Sweep, console: Console, results: Place | None, wanted: float) -> None:
    """Print the differences that the planned draws and test rows can show at each k."""
    import pandas as pd

    from icl_bench.analysis.detect import DETECT, known_pairs, lines, planned

    name, model = sweep.task.data.spec.name, sweep.model.name
    known = {} if results is None else known_pairs(results, name, model)
    rows = []
    for k in sorted({cell.spec.k for cell in sweep.plan.cells} - {0}):
        draws = len({cell.spec.draw for cell in sweep.plan.cells if cell.spec.k == k})
        rows.append({"task": name, "model": model, **planned(k, known, (draws, len(sweep.task.data.test)), wanted)})
    print_lines(console, *lines(pd.DataFrame(rows, columns=DETECT)))
