"""``icl-bench perplexity``: how well a model predicts long texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from icl_bench.cli import options as o
from icl_bench.escaping import visible

LENGTHS = "1024,2048,4096,8192,16384,32768"


Texts = Annotated[
    Path, typer.Option("--texts", metavar="DIR", help="Folder of .txt or .txt.gz files.", show_default=False)
]


Lengths = Annotated[str, typer.Option("--lengths", metavar="LIST", help="Lengths in tokens; the last is read.")]


Attention = Annotated[
    str | None,
    typer.Option(
        "--attention",
        metavar="LIST",
        show_default=False,
        help="full, grouped:EVERY,WINDOW, approx:WINDOW,CHUNK; several with commas. "
        "Unless given, what the model was adapted to, else full.",
    ),
]


Windows = Annotated[int, typer.Option("--windows", metavar="N", min=1, help="Windows of each text, at most.")]


def perplexity(
    model: o.Model,
    texts: Texts,
    lengths: Lengths = LENGTHS,
    attention: Attention = None,
    windows: Windows = 1,
    results: o.Results = o.DEFAULT_RESULTS,
    dtype: o.Dtype = "auto",
    device: o.Device = None,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Measure perplexity by length, for each way to read.

    Every text is cut into windows of the longest length; each token's loss is stored with its
    place. What is finished is kept. The report has the curves.
    """
    from icl_bench.analysis.findings.perplexity import perplexities
    from icl_bench.analysis.summary import records
    from icl_bench.cli.output.lists import print_perplexity
    from icl_bench.cli.output.progress import Display
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console
    from icl_bench.models.attention_patterns import split
    from icl_bench.sweep.perplexity import Perplexity, PerplexitySpec

    spec = PerplexitySpec(
        model=model,
        texts=texts,
        lengths=lengths,
        windows=windows,
        attention=None if attention is None else tuple(split(attention)),
        dtype=dtype,
        device=device,
    )
    display = Display(quiet=quiet or json)
    with display.preparing() as say:
        asked = Perplexity.prepare(spec, say)
    for text in asked.notes:
        display.note(f"  note: {text}")
    with display.preparing() as say:
        outcome = asked.run(results, say)
    for name, reason in outcome.failed.items():
        print(visible(f"failed: {name}: {reason}"), file=sys.stderr)
    display.note(f"{outcome.computed} computed, {outcome.kept} already there. Results: {results}/")
    table = perplexities(results)
    table = table[table["model"] == asked.model.name]
    if json:
        print_json({"perplexity": records(table)})
    elif not quiet:
        print_perplexity(table, console())
    if outcome.failed:
        raise typer.Exit(1)
