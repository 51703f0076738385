"""``icl-bench perplexity``: how well a model predicts long texts."""

from __future__ import annotations

import sys

import typer

from icl_bench.cli import options as o
from icl_bench.escaping import visible
from icl_bench.sweep.options import PerplexitySpec


@o.command(PerplexitySpec)
def perplexity(
    options: o.OptionValues, results: o.ResultsDir = o.DEFAULT_RESULTS, quiet: o.Quiet = False, json: o.Json = False
) -> None:
    """Measure perplexity by length, for each attention pattern.

    Each text is cut into windows of the largest length, and the loss of each token is stored with its position.
    Finished measurements are kept. The report shows the curves.
    """
    from icl_bench.analysis.findings.perplexity import perplexities
    from icl_bench.analysis.summary import records
    from icl_bench.cli.output.lists import print_perplexity
    from icl_bench.cli.output.progress import Display
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console
    from icl_bench.results.hub_commits import commits_of
    from icl_bench.sweep.perplexity import Perplexity

    display = Display(quiet=quiet or json)
    with display.preparing() as say:
        measurement = Perplexity.prepare(PerplexitySpec(**options), say, commits_of(results))
    for text in measurement.notes:
        display.note(f"  note: {text}")
    with display.preparing() as say:
        outcome = measurement.run(results, say)
    for name, reason in outcome.failed.items():
        print(visible(f"failed: {name}: {reason}"), file=sys.stderr)
    display.note(f"{outcome.computed} computed, {outcome.kept} already computed. Results: {results}/")
    table = perplexities(results, measurement.model.name)
    if json:
        print_json({"perplexity": records(table)})
    elif not quiet:
        print_perplexity(table, console())
    if outcome.failed:
        raise typer.Exit(1)
