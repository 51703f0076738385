"""``icl-bench plan``: what would run."""

from __future__ import annotations

from icl_bench.cli import options as o


def plan(
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
    json: o.Json = False,
) -> None:
    """Show what a run would compute, and what fits.

    Takes run's options and lists cells with their tokens and estimated time. Nothing is computed
    and nothing is written.
    """
    from icl_bench.cli.output.plan import plan_records, print_plan
    from icl_bench.cli.output.progress import Display
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console
    from icl_bench.cli.request import make_spec
    from icl_bench.sweep.sweep import Sweep

    spec = make_spec(locals())
    with Display(quiet=json).preparing() as say:
        sweep = Sweep.prepare(spec, say)
        seconds, works = sweep.estimates(), sweep.works()
    if json:
        print_json(plan_records(sweep, seconds, works))
    else:
        print_plan(sweep, seconds, works, console())
