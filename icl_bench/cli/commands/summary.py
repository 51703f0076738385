"""``icl-bench summary``: the table of results."""

from __future__ import annotations

from typing import Annotated

import typer

from icl_bench.cli import options as o

Only = Annotated[str | None, typer.Option(metavar="NAME", help="Only this one.", show_default=False)]


Base = Annotated[
    str | None,
    typer.Option(
        "--base-model",
        metavar="NAME",
        help="The model that others are compared with (default: the first by name).",
        show_default=False,
    ),
]


Cost = Annotated[
    bool,
    typer.Option("--cost", help="Also print tokens, seconds and operations, and after how many queries training pays."),
]


Cascade = Annotated[
    bool,
    typer.Option(
        "--cascade",
        help="Also print what answering each query at the first k with a margin that is large "
        "enough would bring, from predictions of --score exact at several k.",
    ),
]


Forecast = Annotated[
    bool,
    typer.Option(
        "--forecast",
        help="Also print what twice and four times as many demonstrations are likely to bring, where the data tell.",
    ),
]


Provenance = Annotated[
    bool,
    typer.Option("--provenance", help="Also print of each variant the command, days, versions, hashes and machine."),
]


Wanted = Annotated[
    float | None,
    typer.Option(
        "--wanted",
        metavar="PERCENT",
        help="With --forecast: the score of which it says from which k it is likely.",
        show_default=False,
    ),
]


Advice = Annotated[
    str | None,
    typer.Option(
        "--advice",
        metavar="BUDGET",
        help="Instead of the tables: the cheapest selection and k that is as good as the best, and "
        "the test behind it. BUDGET is per query: tokens=2000 (computed ones), seconds=0.5 or any; "
        "with --queries, of prompts and trained classifiers, also operations=10 (GFLOP) or "
        "money=0.001 (with --price).",
        show_default=False,
    ),
]


Frontier = Annotated[
    bool,
    typer.Option(
        "--frontier",
        help="Instead of the tables: every point by accuracy and cost of a query, and which are "
        "dominated, on the frontier, or undecided.",
    ),
]


Queries = Annotated[
    int | None,
    typer.Option(
        "--queries",
        metavar="N",
        help="With --frontier (1000) or --advice: how many queries share what is computed once, a "
        "cached prefix or a training.",
        show_default=False,
    ),
]


Price = Annotated[
    str | None,
    typer.Option(
        "--price",
        metavar="PRICES",
        help="With --frontier or --advice: money a million tokens, input=0.5,cached=0.05,output=1.5.",
        show_default=False,
    ),
]


def summary(
    results: o.Results = o.DEFAULT_RESULTS,
    task: Only = None,
    model: Only = None,
    base: Base = None,
    cost: Cost = False,
    cascade: Cascade = False,
    forecast: Forecast = False,
    wanted: Wanted = None,
    provenance: Provenance = False,
    advice: Advice = None,
    frontier: Frontier = False,
    queries: Queries = None,
    price: Price = None,
    json: o.Json = False,
) -> None:
    """Show the results: accuracy by k, and what follows from it.

    A table per task and model with the means over draws, 95% intervals (draws and test examples
    both count as samples) and macro-F1, and below it what could not be computed; then order, label
    sorting, selection, models and more, each compared pairwise and tested, as far as there are
    runs. --json has every number.
    """
    from icl_bench.analysis.all_findings import read_findings
    from icl_bench.analysis.cascade import require_cascades
    from icl_bench.analysis.findings.forecast import check_wanted
    from icl_bench.cli.output.findings import made_for, print_advice, print_findings
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console
    from icl_bench.cli.output.working import watched, working
    from icl_bench.demonstrations.selector_spec import cautions
    from icl_bench.errors import UserError
    from icl_bench.registry import FINDINGS

    instead = {"--frontier": frontier, "--advice": advice is not None}
    of_tables = {
        "--base-model": base is not None,
        "--cost": cost,
        "--cascade": cascade,
        "--forecast": forecast,
        "--provenance": provenance,
    }
    first, *others = [name for name, given in {**instead, **of_tables}.items() if given] or [""]
    if first in instead and others:
        raise UserError(f"{first}: prints its own table instead; run {others[0]} by itself")
    if not frontier and advice is None and (queries is not None or price is not None):
        option = "--price" if queries is None else "--queries"
        raise UserError(f"{option}: goes with --frontier or --advice")
    if wanted is not None and not (forecast or json):
        raise UserError("--wanted: goes with --forecast")
    share = None if wanted is None else check_wanted(wanted)
    if frontier:
        from icl_bench.cli.output.frontier import print_frontier

        print_frontier(results, queries, price, {"task": task, "model": model}, json=json)
        return
    if advice is not None:
        print_advice(results, advice, {"task": task, "model": model}, queries=queries, price=price, json=json)
        return
    asked = {"cost": cost, "cascade": cascade, "forecast": forecast, "provenance": provenance}
    options = [name for name, wanted in asked.items() if wanted]
    with working() as say:
        place = watched(results, say)
        found = read_findings(place, task=task, model=model, base_model=base, wanted=share)
        if cascade:
            require_cascades(found)
        if json or not found.context.stored.predictions.empty:
            found.work_out([*FINDINGS] if json else made_for(options), say)
    if json:
        selects = [*found.summary.curves["select"], *found.summary.perturbed_curves["select"]]
        print_json({**found.as_json(), "cautions": cautions(selects)})
    else:
        print_findings(found, console(), options)
