"""``icl-bench run``: the main job."""

from __future__ import annotations

import typer

from icl_bench.cli import options as o


def run(
    task: o.Task,
    model: o.Model,
    k: o.K = None,
    per_label: o.PerLabel = None,
    select: o.Select = "random",
    encoder: o.Encoder = None,
    demonstrations: o.Demonstrations = "plain",
    order: o.Order = None,
    attention: o.Attention = "full",
    draws: o.Draws = None,
    seed: o.Seed = 0,
    test_size: o.TestSize = None,
    labels: o.Labels = "all",
    queries: o.Queries = "test",
    data_dir: o.DataDir = None,
    results: o.Results = o.DEFAULT_RESULTS,
    unconstrained: o.Unconstrained = False,
    score: o.Score = "greedy",
    context: o.Context = None,
    backend: o.Backend = "auto",
    dtype: o.Dtype = "auto",
    device: o.Device = None,
    pack: o.Pack = None,
    tensor_parallel: o.TensorParallel = None,
    max_model_len: o.MaxModelLen = None,
    gpu_memory: o.GpuMemory = None,
    quantization: o.Quantization = None,
    base_url: o.BaseUrl = None,
    tokenizer: o.Tokenizer = None,
    chat: o.Chat = False,
    concurrency: o.Concurrency = None,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Sweep the number of demonstrations on a task with a model.

    Finished cells are kept: run the same command again to go on after an interruption, or with
    more k. Several processes may share one results folder.
    """
    from icl_bench.cli.output.progress import Display, show_results
    from icl_bench.cli.request import make_spec
    from icl_bench.sweep.sweep import Sweep

    spec = make_spec(locals())
    display = Display(quiet=quiet or json)
    with display.preparing() as say:
        sweep = Sweep.prepare(spec, say)
    display.plan(sweep)
    with display.running(sweep.plan) as watcher:
        outcome = sweep.run(results, watcher)
    display.outcome(outcome, results)
    named = sweep.experiment.data.spec.name, sweep.model.name
    show_results(results, *named, quiet=quiet, json=json)
    if outcome.failed:
        raise typer.Exit(1)
