"""``icl-bench models``: known models, whether they are installed, and what they need."""

from __future__ import annotations

from typing import Annotated

import typer

from icl_bench.cli import options as o

Prepare = Annotated[
    str | None, typer.Option("--prepare", metavar="NAME", help="Fetch or convert this model now.", show_default=False)
]


def models(prepare: Prepare = None, json: o.Json = False) -> None:
    """List the models with a registered name.

    Any folder with a model and any hub id work as --model, too.
    """
    from icl_bench.cli.output.lists import print_models
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console
    from icl_bench.models.registry import listing, resolve

    if prepare is not None:
        resolve(prepare)
    records = listing()
    if json:
        print_json(records)
    else:
        print_models(records, console())
