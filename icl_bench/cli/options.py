"""Options that several commands share, described once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Concatenate, Literal, ParamSpec, TypeVar, get_type_hints

import typer

from icl_bench.wording import short

if TYPE_CHECKING:
    from icl_bench.studies.cluster import ClusterSpec
    from icl_bench.sweep.run_spec import RunSpec

P = ParamSpec("P")

Task = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="NAME",
        help="A task's name (icl-bench tasks lists them) or the path of a task file (.yaml).",
        show_default=False,
    ),
]


Model = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="NAME",
        help="A model's name (icl-bench models lists them), a folder, or a hub id like org/name.",
        show_default=False,
    ),
]


Tasks = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="LIST",
        help="A task's name (icl-bench tasks lists them) or the path of a task file (.yaml). "
        "Several with commas: each with each model.",
        show_default=False,
    ),
]


Models = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="LIST",
        help="A model's name (icl-bench models lists them), a folder, or a hub id like org/name. "
        "Several with commas: each with each task.",
        show_default=False,
    ),
]


K = Annotated[
    str | None,
    typer.Option(
        "--k",
        metavar="LIST",
        help="Numbers of demonstrations: 0,1,10,100; 0 is the prompt without any (zero-shot); "
        "'max' is the largest that fits the context window; 'auto' is 1, 5, 10, 25, 50, 75, 100, "
        "250, ... 2000 and max.",
        show_default=False,
    ),
]


PerLabel = Annotated[
    str | None,
    typer.Option(
        "--per-label",
        metavar="LIST",
        help="Instead of --k, for --select balanced: demonstrations of each label, like 1,2,5.",
        show_default=False,
    ),
]


Select = Annotated[
    str,
    typer.Option(
        "--select",
        metavar="LIST",
        help="How demonstrations are chosen. The same for all test examples, cached: random, "
        "balanced (by label), centroids (of k-means over the pool; ,of=queries: over the test "
        "examples). The most similar to each test example: bm25, bertscore, dense. Both: "
        "hybrid:S[,by=bm25|bertscore|dense] ends with S of the test example's own, as does "
        "centroids+hybrid:S. per-label:N[,by=dense|...]: the N most similar of every label, "
        "whatever --k says; hybrid:per-label:N ends with them. Several with commas.",
    ),
]


Encoder = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        metavar="NAME",
        help="Sentence encoder of dense and centroids: a name, a folder or a hub id "
        "(all-MiniLM-L6-v2, which is packaged).",
        show_default=False,
    ),
]


Perturbation = Annotated[
    str,
    typer.Option(
        "--perturbation",
        metavar="HOW",
        help="What prompts show of them: none (as they are); labels:permuted (over the whole train file); "
        "labels:noise=0.3 (that share is wrong: exactly with random, about with others); "
        "inputs-only; labels-only; nearest-removed:P (without the P percent most similar to the "
        "test example, so fewer than k).",
    ),
]


Order = Annotated[
    str | None,
    typer.Option(
        "--order",
        metavar="LIST",
        help="How they are arranged: drawn (default), shuffled:SEED, by-label; where all are the "
        "test example's own, relevance (default; most similar last), relevance-reversed. Several "
        "with commas.",
    ),
]


Draws = Annotated[
    int | None,
    typer.Option(
        "--draws",
        metavar="N",
        min=1,
        help="Random permutations of the pool to average over (10; retrieval: 1).",
        show_default=False,
    ),
]


Attention = Annotated[
    str | None,
    typer.Option(
        "--attention",
        metavar="LIST",
        help="How the model reads the demonstrations: full; block:SIZE[,sink=1,local=2] (blocks of "
        "SIZE demonstrations that see themselves, the first and the last blocks; with ,reuse "
        "retrieved ones are computed once); grouped:EVERY,WINDOW; approx:WINDOW,CHUNK; vectors:N. "
        "Unless given, what the model was adapted to, else full.",
        show_default=False,
    ),
]


OutFolder = Annotated[
    Path,
    typer.Option(
        "--out", metavar="DIR", help="Where the model is written; run takes it as --model.", show_default=False
    ),
]


def _of_64_bits(seed: int) -> int:
    """A check of its own: the range of an option is in its help, and this one is no help."""
    if not -(2**63) <= seed < 2**63:
        raise typer.BadParameter(f"{short(seed)} is not a whole number of 64 bits")
    return seed


Seed = Annotated[int, typer.Option("--seed", metavar="N", callback=_of_64_bits, help="Names the random permutations.")]


TestSize = Annotated[
    int | None,
    typer.Option(
        "--test-size", metavar="N", min=1, help="Ask only this many test examples (task file: 250).", show_default=False
    ),
]


Labels = Annotated[
    str,
    typer.Option(
        "--labels", metavar="PART", help="all, or half:SEED: leave out a random half of the labels, with their rows."
    ),
]


Queries = Annotated[
    Literal["test", "copied"],
    typer.Option(
        "--queries",
        metavar="WHICH",
        help="test rows, or copied: demonstrations of the prompt itself, whose answers it shows.",
    ),
]


DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        envvar="ICL_BENCH_DATA",
        help="Folder with one sub-folder per data set (train.jsonl, test.jsonl). Without it data "
        "comes from the Hugging Face hub.",
    ),
]


Results = Annotated[
    str,
    typer.Option(
        "--results",
        metavar="DIR",
        help="Folder that predictions are written to and read from, or an address like s3://bucket/folder.",
    ),
]


Context = Annotated[
    int | None,
    typer.Option(
        "--context",
        metavar="TOKENS",
        min=1,
        help="Context window in tokens, instead of the model's own.",
        show_default=False,
    ),
]


Unconstrained = Annotated[
    bool,
    typer.Option(
        "--unconstrained", help="Let the model write anything; what is no label counts as wrong and as invalid."
    ),
]


Score = Annotated[
    Literal["greedy", "exact"],
    typer.Option(
        "--score",
        metavar="HOW",
        help="greedy: the likeliest allowed token at each step. exact: the probability of every "
        "label, stored with its margin (many times slower).",
    ),
]


Backend = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="The engine: transformers, vllm, openai (any server with OpenAI's API); auto is "
        "transformers, or vllm where that reads less on a GPU (plan says which, and why).",
    ),
]


Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="NAME",
        help="auto (bfloat16; float32 on a CPU without bfloat16 arithmetic), float32, bfloat16, float16.",
    ),
]


Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="NAME", help="transformers: cpu, cuda, cuda:1, ... (default: cuda if there is one)."
    ),
]


Pack = Annotated[
    int | None,
    typer.Option(
        "--pack", metavar="N", min=1, help="transformers: queries per call of the model, at most.", show_default=False
    ),
]


TensorParallel = Annotated[
    int | None,
    typer.Option(
        "--tensor-parallel", metavar="GPUS", min=1, help="vllm: GPUs that share one model.", show_default=False
    ),
]


MaxModelLen = Annotated[
    int | None,
    typer.Option(
        "--max-model-len",
        metavar="TOKENS",
        min=1,
        help="vllm: tokens to make room for (default: what the largest cell needs).",
        show_default=False,
    ),
]


GpuMemory = Annotated[
    float | None,
    typer.Option(
        "--gpu-memory",
        metavar="SHARE",
        min=0.05,
        max=1.0,
        help="vllm: share of the card's memory to use (vLLM's default: 0.9).",
        show_default=False,
    ),
]


Quantization = Annotated[
    str | None, typer.Option("--quantization", metavar="NAME", help="vllm: awq, gptq, fp8, ...: one that vLLM knows.")
]


KvCacheDtype = Annotated[
    str | None,
    typer.Option(
        "--kv-cache-dtype",
        metavar="NAME",
        help="vllm: fp8, ...: how keys and values are stored (default: as they are computed).",
        show_default=False,
    ),
]


BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL",
        help="openai: the server, like https://host/v1; its key is read from OPENAI_API_KEY.",
        show_default=False,
    ),
]


Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar="NAME",
        help="openai: the model (name, folder, hub id) whose tokenizer counts the prompts' tokens.",
        show_default=False,
    ),
]


Chat = Annotated[
    str | None,
    typer.Option(
        "--chat",
        metavar="STYLE",
        help="For chat models, by their own template. turns: each demonstration is a user's turn "
        "and the assistant's; single: all of them and the query are one user message. With an API "
        "the server's chat completions are asked.",
        show_default=False,
    ),
]


System = Annotated[
    str | None,
    typer.Option(
        "--system",
        metavar="TEXT",
        help="With --chat: what a system turn says; @FILE reads it from a file.",
        show_default=False,
    ),
]


ChatArg = Annotated[
    list[str] | None,
    typer.Option(
        "--chat-arg",
        metavar="NAME=VALUE",
        help="With --chat: told to the template, like enable_thinking=false. May be repeated.",
        show_default=False,
    ),
]


Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency", metavar="N", min=1, help="openai: requests in flight, at most (8).", show_default=False
    ),
]


On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="CLUSTER",
        help="ray: shared out among the machines of this machine's Ray cluster, or processes of "
        "this machine alone; or ray://HOST:10001.",
        show_default=False,
    ),
]


Engines = Annotated[
    str | None,
    typer.Option(
        "--engines",
        metavar="N|auto",
        help="With --on: processes that keep a model; by default as many as there are GPUs for, or one a machine.",
        show_default=False,
    ),
]


GpusPerEngine = Annotated[
    float | None,
    typer.Option(
        "--gpus-per-engine",
        metavar="N",
        min=0,
        help="With --on: GPUs of each; by default 1, or as many as --tensor-parallel says.",
        show_default=False,
    ),
]


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def cluster_of(on: str | None, engines: str | None, gpus_per_engine: float | None) -> ClusterSpec | None:
    """What the three options ask for; None without them. Raises ``UserError``."""
    if on is None and engines is None and gpus_per_engine is None:
        return None
    from icl_bench.studies.cluster import ClusterSpec

    return ClusterSpec.read(on, engines, gpus_per_engine)


DEFAULT_RESULTS = "results"


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What ``run``, ``plan`` and ``finetune`` are about."""

    task: Tasks
    model: Models


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What the three are told of data and machine."""

    seed: Seed = 0
    test_size: TestSize = None
    data_dir: DataDir = None
    dtype: Dtype = "auto"
    device: Device = None


@dataclass(frozen=True, kw_only=True)
class SweepOptions(DataOptions, TaskOptions):
    """What ``run`` and ``plan`` are told of a sweep."""

    k: K = None
    per_label: PerLabel = None
    select: Select = "random"
    encoder: Encoder = None
    perturbation: Perturbation = "none"
    order: Order = None
    attention: Attention = None
    draws: Draws = None
    labels: Labels = "all"
    queries: Queries = "test"
    unconstrained: Unconstrained = False
    score: Score = "greedy"
    context: Context = None
    backend: Backend = "auto"
    pack: Pack = None
    tensor_parallel: TensorParallel = None
    max_model_len: MaxModelLen = None
    gpu_memory: GpuMemory = None
    quantization: Quantization = None
    kv_cache_dtype: KvCacheDtype = None
    base_url: BaseUrl = None
    tokenizer: Tokenizer = None
    chat: Chat = None
    system: System = None
    chat_arg: ChatArg = None
    concurrency: Concurrency = None

    def spec(self) -> RunSpec:
        """Read them. Raises ``UserError``."""
        from icl_bench.sweep.options import run_spec

        return run_spec(**vars(self))


Options = TypeVar("Options")


def taking(options: type[Options]) -> Callable[[Callable[Concatenate[Options, P], None]], Callable[..., None]]:
    """Make a command of a function whose first argument is a data class of options.

    Typer reads a command's options from its signature: the class's fields come first there, then
    the function's own arguments.
    """

    def command(run: Callable[Concatenate[Options, P], None]) -> Callable[..., None]:
        hints = get_type_hints(options, include_extras=True)
        # in the help: what is required, what is the command's own, what it shares with others
        ranked = sorted(
            fields(options),  # type: ignore[arg-type]
            key=lambda f: (f.default is not MISSING, f.name not in vars(options)["__annotations__"]),
        )
        shared = [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in ranked
        ]
        own = get_type_hints(run, include_extras=True)
        further = [
            p.replace(kind=Parameter.KEYWORD_ONLY, annotation=own[p.name])
            for p in list(signature(run).parameters.values())[1:]
        ]

        def called(*args: P.args, **given: P.kwargs) -> None:
            named = {parameter.name: given.pop(parameter.name) for parameter in shared}
            run(options(**named), *args, **given)

        every = [*shared, *further]
        called.__name__, called.__doc__ = run.__name__, run.__doc__
        called.__annotations__ = {p.name: p.annotation for p in every}
        called.__signature__ = Signature(every)  # type: ignore[attr-defined]
        return called

    return command
