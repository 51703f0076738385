"""What ways to choose demonstrations cost and bring: accuracy and seconds of a query.

    python benchmarks/selection.py --data DIR --results DIR [--task banking77] [--k 500]
        [--draws 3] [--rows 250] [--select random,hybrid:10,hybrid:20,by=dense,...]

Each selection is a run of its own with a freshly loaded model, so that none finds another's
demonstrations in the cache. Seconds are the engine's, the shared demonstrations' included; with
several k, a nested selection extends the prefix of the smaller one: give one k to time it alone.
What is in the results folder is kept, so that it can be run in parts; the table has all of it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from icl_bench.analysis.cell_cost import CellCost
from icl_bench.analysis.curves import curves
from icl_bench.analysis.findings.cost import cost
from icl_bench.analysis.predictions import unperturbed_predictions
from icl_bench.demonstrations.selector_spec import SelectorSpec, split
from icl_bench.errors import UserError
from icl_bench.quiet_libraries import hush_libraries
from icl_bench.results.reading import read_some
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep

SELECT = "random,hybrid:10,hybrid:10,by=dense,hybrid:20,centroids,balanced,bm25,dense"
POINT = ["select", "k"]


def run(arguments: argparse.Namespace, select: str) -> None:
    """Run what is missing of one selection; says how long the plan took, choosing included."""
    spec = RunSpec(
        task=arguments.task,
        model=arguments.model,
        k=arguments.k,
        select=(select,),
        draws=None if SelectorSpec.parse(select).retrieves else arguments.draws,
        test_size=arguments.rows,
        data_dir=arguments.data,
    )
    start = time.perf_counter()
    sweep = Sweep.prepare(spec)
    chosen = time.perf_counter() - start
    outcome = sweep.run(arguments.results)
    for name, reason in outcome.failed.items():
        print(f"{outcome.names[name]}: {reason}")
    print(f"{select}: {chosen:.1f} s to plan, {len(outcome.computed)} cells computed", flush=True)


def table(results: Path, task: str, model: str) -> Any:
    """Accuracy, interval, seconds and computed tokens of a query at each point of the folder."""
    stored = read_some(results, {"task": task, "model": model})
    frame = unperturbed_predictions(stored.predictions)
    found = curves(frame).astype(dict.fromkeys(["select", "variant"], object))
    costs = cost(frame, {cell: CellCost.of(meta) for cell, meta in stored.cells.items()})
    costs = costs.astype(dict.fromkeys(["select", "variant"], object))
    names = [*POINT, "variant"]
    found = found.merge(costs[[*names, "computed_tokens", "seconds"]], on=names)
    beside = found[found["select"] == "bm25"].drop_duplicates("k").set_index("k")["seconds"]
    return found.assign(ratio=found["seconds"] / found["k"].map(beside)).sort_values(["k", "select"])


def main() -> None:
    """Run what is asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="data folder; without it the hub is asked")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--task", default="banking77")
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--k", default="500")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--rows", type=int, default=250)
    parser.add_argument("--select", default=SELECT, help="may be empty: print the table alone")
    arguments = parser.parse_args()
    hush_libraries()
    for select in split(arguments.select):
        try:
            run(arguments, select)
        except UserError as error:
            print(f"{select}: {error}", flush=True)
    print(
        f"{'k':>5}  {'select':<28} {'draws':>5} {'accuracy %':>10} {'95% interval':>13} "
        f"{'s/query':>8} {'/ bm25':>7} {'computed':>9}"
    )
    for row in table(arguments.results, arguments.task, arguments.model).itertuples():
        print(
            f"{row.k:>5}  {row.select:<28} {row.draws:>5} {100 * row.accuracy:>10.1f} "
            f"{100 * row.ci_low:>6.1f}-{100 * row.ci_high:<6.1f} {row.seconds:>8.3f} "
            f"{row.ratio:>7.2f} {row.computed_tokens:>9.0f}"
        )


if __name__ == "__main__":
    main()
