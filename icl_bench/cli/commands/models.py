"""``icl-bench models``: known models, whether they are installed, and what they need."""

from __future__ import annotations

from typing import Annotated

import typer

from icl_bench.cli import options as o

Prepare = Annotated[str | None, typer.Option("--prepare", metavar="NAME", help="Fetch or convert this model now.")]


def models(prepare: Prepare = None, json: o.Json = False) -> None:
    """List the models with a registered name.

    Any folder with a model and any hub id work as --model, too.
    """
    from icl_bench.cli.output.lists import print_models
    from icl_bench.cli.output.tables import print_records
    from icl_bench.models.registry import listing, resolve

    if prepare is not None:
        resolve(prepare)
    print_records(listing(), print_models, json=json)
