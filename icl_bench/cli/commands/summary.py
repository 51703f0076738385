"""``icl-bench summary``: the table of results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from icl_bench.cli import options as o

if TYPE_CHECKING:
    from icl_bench.results.storage import Place

Base = Annotated[
    str | None,
    typer.Option(
        "--base-model",
        metavar="NAME",
        help="The model with which the others are compared (default: the one with the most points in common with "
        "them).",
    ),
]


Cost = Annotated[
    bool,
    typer.Option(
        "--cost", help="Also print tokens, seconds and operations, and after how many queries training pays off."
    ),
]


Cascade = Annotated[
    bool,
    typer.Option(
        "--cascade",
        help="Also print the accuracy of a cascade: each query is answered at the first k with a large enough "
        "margin. Needs predictions of --score exact at several k.",
    ),
]


Forecast = Annotated[
    bool,
    typer.Option(
        "--forecast",
        help="Also print forecasts for twice and four times as many demonstrations, where the data suffice.",
    ),
]


Provenance = Annotated[
    bool,
    typer.Option("--provenance", help="Also print the command, days, versions, hashes and machine of each variant."),
]


WantedScore = Annotated[
    float | None,
    typer.Option(
        "--wanted",
        metavar="PERCENT",
        help="The required accuracy of the remaining answers when unsure ones are withheld, in percent (default: 95; "
        "needs --score exact). With "
        "--forecast also print how many demonstrations this score needs.",
    ),
]


Advice = Annotated[
    str | None,
    typer.Option(
        "--advice",
        metavar="BUDGET",
        help="Instead of the tables: the cheapest selection and k that is as good as the best, with the test behind "
        "it. BUDGET is the maximum cost of a query: any, tokens=2000 (computed tokens) or seconds=0.5. With --queries "
        "it may also be operations=10 (GFLOP) or money=0.001 (needs --price), and trained classifiers count, too.",
    ),
]


Frontier = Annotated[
    bool,
    typer.Option(
        "--frontier",
        help="Instead of the tables: accuracy and cost of a query for every point, and which points are "
        "dominated, on the frontier, or undecided.",
    ),
]


Detect = Annotated[
    float | None,
    typer.Option(
        "--detect",
        metavar="POINTS",
        help="Instead of the tables: the smallest difference that the results can show with 80% power, and how many "
        "draws or test rows a difference of POINTS needs.",
    ),
]


QueryCount = Annotated[
    int | None,
    typer.Option(
        "--queries",
        metavar="N",
        help="With --frontier (1000) or --advice: number of queries that share one-time costs (a cached "
        "prefix or a training).",
    ),
]


Price = Annotated[
    str | None,
    typer.Option(
        "--price",
        metavar="PRICES",
        help="With --frontier or --advice: prices per million tokens, input=0.5,cached=0.05,output=1.5, and write=0.6 "
        "if writing into a cache costs more than input. auto: each model's prices in the table of genai-prices. "
        "hour=2: the price of an hour of the machine that runs local models, alone or after the others.",
    ),
]


Across = Annotated[
    str | None,
    typer.Option(
        "--across",
        metavar="models",
        help="With --frontier or --advice: compare points of all models of a task, such as prompts of a model behind a "
        "server with classifiers trained on this machine, by money or seconds.",
    ),
]


Top = Annotated[
    int | None,
    typer.Option(
        "--top",
        metavar="N",
        min=1,
        help="Print at most N rows of each table: the points with the highest scores, the comparisons with the "
        "smallest p values; with --frontier, the points on it first.",
    ),
]


def summary(
    results: o.ResultsDir = o.DEFAULT_RESULTS,
    task: o.Only = None,
    model: o.Only = None,
    base: Base = None,
    cost: Cost = False,
    cascade: Cascade = False,
    forecast: Forecast = False,
    wanted: WantedScore = None,
    provenance: Provenance = False,
    advice: Advice = None,
    frontier: Frontier = False,
    detect: Detect = None,
    queries: QueryCount = None,
    price: Price = None,
    across: Across = None,
    top: Top = None,
    json: o.Json = False,
) -> None:
    """Show the results: accuracy by k, and what follows from it.

    Each task and model has a table with means over draws, 95% intervals (for new draws and new test examples),
    macro-F1 and failed cells. Comparisons with tests follow: order, label sorting, selection, models and more, where
    the results allow them. --json has every number.
    """
    options = {name: value for name, value in locals().items() if name != "results"}
    if price is not None and "auto" in price:  # its prices are those of the day
        _print_summary(results, **options)
        return
    from icl_bench.cli.output.printed_once import print_once

    print_once(results, {"command": "summary", **options}, lambda place: _print_summary(place, **options))


def _print_summary(
    results: Place,
    *,
    task: str | None,
    model: str | None,
    base: str | None,
    cost: bool,
    cascade: bool,
    forecast: bool,
    wanted: float | None,
    provenance: bool,
    advice: str | None,
    frontier: bool,
    detect: float | None,
    queries: int | None,
    price: str | None,
    across: str | None,
    top: int | None,
    json: bool,
) -> None:
    """Print the tables that these options of ``summary`` request."""
    from icl_bench.analysis.all_findings import read_findings
    from icl_bench.analysis.cascade import require_cascades
    from icl_bench.analysis.findings.forecast import check_wanted
    from icl_bench.cli.output.findings import made_for, print_advice, print_detectable, print_findings
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console
    from icl_bench.cli.output.working import watched, working
    from icl_bench.demonstrations.selector_spec import cautions
    from icl_bench.errors import UserError
    from icl_bench.machine import threads_here
    from icl_bench.registry import FINDINGS
    from icl_bench.tasks.task_files import known_groups

    instead = {"--frontier": frontier, "--advice": advice is not None, "--detect": detect is not None}
    of_tables = {
        "--base-model": base is not None,
        "--cost": cost,
        "--cascade": cascade,
        "--forecast": forecast,
        "--wanted": wanted is not None,
        "--provenance": provenance,
    }
    first, *others = [name for name, is_set in {**instead, **of_tables}.items() if is_set] or [""]
    if first in instead and others:
        raise UserError(f"{first}: prints its own table instead; run {others[0]} by itself")
    if not frontier and advice is None:
        of_costs = {"--queries": queries, "--price": price, "--across": across}
        for option in [name for name, value in of_costs.items() if value is not None][:1]:
            raise UserError(f"{option}: goes with --frontier or --advice")
    if top is not None and (json or advice is not None or detect is not None):
        raise UserError("--top: applies to printed tables; leave it out with --json, --advice and --detect")
    share = None if wanted is None else check_wanted(wanted)
    only = {name: value for name, value in (("task", task), ("model", model)) if value is not None}
    if frontier:
        from icl_bench.cli.output.frontier import print_frontier

        print_frontier(results, queries, price, only, across=across, top=top, json=json)
        return
    if advice is not None:
        print_advice(results, advice, only, queries=queries, price=price, across=across, json=json)
        return
    if detect is not None:
        print_detectable(results, detect, only, json=json)
        return
    flags = {"cost": cost, "cascade": cascade, "forecast": forecast, "provenance": provenance}
    options = [name for name, is_set in flags.items() if is_set]
    with working() as say:
        place = watched(results, say)
        findings = read_findings(
            place,
            task=task,
            model=model,
            base_model=base,
            wanted=share,
            groups=known_groups(),
            processes=threads_here(),
        )
        if cascade:
            require_cascades(findings)
        if json or len(findings.context.stored.rows):
            findings.work_out([*FINDINGS] if json else made_for(options), say)
    if json:
        selects = [*findings.summary.curves["select"], *findings.summary.perturbed_curves["select"]]
        print_json({**findings.as_json(), "cautions": cautions(selects)})
    else:
        print_findings(findings, console(), options, top)
