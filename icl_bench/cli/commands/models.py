"""``icl-bench models``: known models, whether they are installed, and what they need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icl_bench.cli import options as o
from icl_bench.errors import UserError

Check = Annotated[
    bool,
    typer.Option("--check", help="With --prepare: read every byte of a converted model; convert it again if damaged."),
]
Prepare = Annotated[str | None, typer.Option("--prepare", metavar="NAME", help="Fetch or convert this model now.")]


def models(prepare: Prepare = None, check: Check = False, json: o.Json = False) -> None:
    """List the models with a registered name.

    Any folder with a model and any hub id work as --model, too.
    """
    from icl_bench.cli.output.lists import print_models
    from icl_bench.cli.output.tables import print_records
    from icl_bench.cli.output.terminal import console
    from icl_bench.models.made_once import remove_damaged
    from icl_bench.models.registry import listing, resolve

    if check and prepare is None:
        raise UserError("--check: is for --prepare NAME, the model to check")
    if prepare is not None:
        model = resolve(prepare)
        if check:
            damaged = remove_damaged(Path(model.source))
            if damaged:
                resolve(prepare)
            said = {True: "were damaged; they are converted again", False: "are whole"}
            found = "not converted by icl-bench, so there is nothing to check"
            found = found if damaged is None else f"its converted files {said[damaged]}"
            console(stderr=True).print(f"{model.name}: {found}", highlight=False)
    print_records(listing(), print_models, json=json)
