"""``icl-bench show``: one prediction and the exact prompt behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icl_bench.cli import options as o
from icl_bench.options import OUTPUT

OneK = Annotated[int, typer.Option("--k", metavar="N", help="Number of demonstrations.")]


TestId = Annotated[
    str | None, typer.Option("--test-id", metavar="ID", help="The id of the test row (default: the cell's first).")
]


OneDraw = Annotated[int, typer.Option("--draw", metavar="N", help="The number of the draw, from 0.")]


CellHash = Annotated[
    str | None, typer.Option("--cell", metavar="HASH", help="The hash of the cell; needed if several match.")
]


PromptFile = Annotated[
    Path | None,
    typer.Option(
        "--prompt",
        metavar="FILE",
        help="Write the prompt to this file. If all queries share the demonstrations, it has {NAME} in place of the "
        "query's fields, so that it can be used for any query.",
        rich_help_panel=OUTPUT,
    ),
]


Which = Annotated[str | None, typer.Option(metavar="NAME", help="Its name; required if several cells match.")]


def show(
    task: o.TaskName,
    k: OneK,
    test_id: TestId = None,
    model: Which = None,
    select: Which = None,
    order: Which = None,
    attention: Which = None,
    perturbation: Which = None,
    draw: OneDraw = 0,
    cell: CellHash = None,
    prompt: PromptFile = None,
    results: o.ResultsDir = o.DEFAULT_RESULTS,
    data_dir: o.DataDir = None,
    json: o.Json = False,
) -> None:
    """Show one prediction and the exact prompt behind it.

    The prompt is rebuilt from the stored ids, and its hash is compared with the one stored with the prediction.
    """
    from icl_bench.cli.output.lists import print_shown, write_prompt
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console
    from icl_bench.report.prompt_trace import find_prediction, named_cell

    wanted = named_cell(
        task=task,
        k=k,
        draw=draw,
        model=model,
        select=select,
        order=order,
        attention=attention,
        perturbation=perturbation,
        cell=cell,
    )
    shown = find_prediction(results, wanted, test_id, data_dir)
    if prompt is not None:
        said = write_prompt(shown, prompt)
        if not json:
            print(said)
            return
    if json:
        print_json(shown.as_json())
    else:
        print_shown(shown, console())
