"""The options of ``run``, ``plan`` and ``perplexity``, and those that other commands share with them.

Each option is declared once, for the command line, study files and :func:`icl_bench.run`.
:class:`icl_bench.sweep.run_spec.RunSpec` checks options against each other. This module imports nothing heavy, so that
help is fast: value classes are named, and imported when a value is parsed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from icl_bench.backends.spec import BackendSpec, Device, Dtype
from icl_bench.models.in_memory import read_model
from icl_bench.models.rotary_positions import RotaryPositions
from icl_bench.options import (
    MODEL,
    NAME,
    PROMPTS,
    SERVERS,
    TASK,
    Option,
    Options,
    as_pairs,
    as_text,
    path_as_text,
    read,
    read_each,
    read_with,
)
from icl_bench.registry import ATTENTION_PATTERNS, ORDERS, PERTURBATIONS, SELECTORS
from icl_bench.sweep.k_values import MOST_DRAWS, parse_per_label
from icl_bench.tasks.published_rows import PublishedIds

if TYPE_CHECKING:
    from icl_bench.demonstrations.ordering import Order
    from icl_bench.demonstrations.perturbations import Perturbation
    from icl_bench.demonstrations.selector_spec import SelectorSpec
    from icl_bench.models.attention_patterns import Pattern
    from icl_bench.models.prices import Prices
    from icl_bench.results.calibration import Calibration
    from icl_bench.results.label_scores import KeptScores
    from icl_bench.sweep.k_values import KValues
    from icl_bench.tasks.label_subset import HalfLabels
    from icl_bench.tasks.spec import TaskSpec
    from icl_bench.tasks.think_option import ThinkOption
else:  # their readers check values
    Calibration = Order = Perturbation = SelectorSpec = Pattern = KeptScores = KValues = HalfLabels = TaskSpec = (
        Prices
    ) = ThinkOption = Any

Queries = Literal["test", "copied"]

MOST_SAMPLES = 256
"""The maximum number of answers to a query. The analysis counts the subsets of them exactly."""


def _task(value: Any) -> Any:
    """Return a task's name or path as text, or the task itself if it is already loaded. Raises ``UserError``."""
    value = path_as_text(value)
    if isinstance(value, str):
        return value
    from icl_bench.tasks.spec import TaskSpec

    if not isinstance(value, TaskSpec):
        from icl_bench.errors import UserError
        from icl_bench.wording import short

        expected = "a task's name, the path of a task file, or an icl_bench.Task"
        raise UserError(f"--task {short(value)}: expected {expected}")
    return value


TaskOption = Annotated[
    str | TaskSpec,
    BeforeValidator(_task),
    Option(
        "A task's name (icl-bench tasks lists them), the path of a task file (.yaml), or of a file of rows (.csv, ...) "
        "with a text and a label each.",
        TASK,
        "NAME",
    ),
]

TextColumn = Annotated[
    str | None, NAME, Option("With a file of rows: the column of texts (default: a guess).", TASK, "COLUMN")
]

LabelColumn = Annotated[
    str | None, NAME, Option("With a file of rows: the column of labels (default: a guess).", TASK, "COLUMN")
]

ModelOption = Annotated[
    str,
    BeforeValidator(read_model),
    Option(
        "A model's name (icl-bench models lists them), a folder, or a hub id like org/name.",
        MODEL,
        "NAME",
        expected="a model's name, a folder, a hub id, or a loaded model with its tokenizer",
    ),
]

Seed = Annotated[int, Option("Random seed of draws and training.", PROMPTS, "N", expected="a whole number of 64 bits")]

TestSize = Annotated[int | None, Option("Use only the first N test rows (task file: 250).", TASK, "N")]

TestIds = Annotated[
    PublishedIds | None,
    Option(
        "Tasks of Bertsch et al. 2025: the test rows of most of its models (paper; the default), or those of its "
        "Mistral (paper-mistral).",
        TASK,
        "WHICH",
        expected="paper or paper-mistral",
    ),
]

DataDir = Annotated[
    Path | None,
    Option(
        "Folder with one sub-folder per data set (train.jsonl, test.jsonl); by default, the one that the environment "
        "variable ICL_BENCH_DATA names. Without both, data come from the Hugging Face hub.",
        TASK,
        "DIR",
    ),
]

OF_TEXTS = Option(
    "A folder of .txt and .txt.gz files in UTF-8. Training holds back the last twentieth of each.", TASK, "DIR"
)

Texts = Annotated[Path, OF_TEXTS]

Draws = Annotated[int | None, Option("Number of random permutations of the pool (10; retrieval: 1).", PROMPTS, "N")]


NumbersOfDemonstrations = Annotated[
    KValues | None,
    read("icl_bench.sweep.k_values:KValues"),
    Option(
        "Numbers of demonstrations: 0,1,10,100. 0 is the prompt without any (zero-shot); max is the largest that "
        "fits the context window; auto is 1, 5, 10, 25, 50, 75, 100, 250, ... 2000 and max.",
        PROMPTS,
        "LIST",
        expected="numbers like 1,10,100, max or auto",
    ),
]

Selectors = Annotated[
    tuple[SelectorSpec, ...],
    read_each("icl_bench.demonstrations.selector_spec:SelectorSpec", "icl_bench.demonstrations.selector_spec:split"),
    Option(
        "How demonstrations are selected. Shared by all test rows, and cached: random, first (of the pool), "
        "balanced (by label), centroids (of k-means over the pool; ,of=queries: over the test rows), "
        "diverse:mmr-shared, diverse:bertscore-shared, diverse:dpp-shared (,sample=N: for N inputs of the pool). "
        "The most similar to each test row: bm25, bertscore, dense. Similar to it and unlike each other: "
        "diverse:mmr[,lambda=0.5], diverse:bertscore (covers its tokens), diverse:dpp[,theta=0.5]. Both: "
        "hybrid:S[,by=bm25|bertscore|dense] ends with S of the test row's own, as does centroids+hybrid:S. "
        "per-label:N[,by=dense|...]: the N most similar of every label, whatever --k says; hybrid:per-label:N ends "
        "with them. Several with commas.",
        PROMPTS,
        "LIST",
        more=SELECTORS.added,
        expected="text like random,bm25, or a list",
    ),
]


def seed_field() -> Any:
    """Default and range of a seed."""
    return Field(default=0, ge=-(2**63), lt=2**63)


def draws_field(default: int | None = None) -> Any:
    """Default and range of the number of draws."""
    return Field(default=default, ge=1, le=MOST_DRAWS)


def _prices(value: Any) -> Any:
    """Prices of text or a dictionary. Raises ``UserError``."""
    from icl_bench.models.prices import given_prices

    return given_prices(value)


Encoder = Annotated[
    str | None,
    NAME,
    Option(
        "Sentence encoder of dense and centroids: a name, a folder or a hub id (all-MiniLM-L6-v2, which is packaged).",
        PROMPTS,
        "NAME",
    ),
]

Score = Annotated[
    Literal["greedy", "exact"],
    Option(
        "greedy: the most probable allowed token at each step. exact: the probability of every label, stored with its "
        "margin (many times slower).",
        PROMPTS,
        "HOW",
    ),
]

Calibrate = Annotated[
    tuple[Calibration, ...] | None,
    read_each("icl_bench.results.calibration:Calibration", "icl_bench.results.calibration:split"),
    Option(
        "With --score exact: how the bias towards some labels is estimated and removed. batch (over the test "
        "rows; always shown); batch,of=pool:N (over N rows of the pool); contextual (inputs without content); "
        "domain (random words of the task); prior=FILE (a stated distribution of labels). Several with commas.",
        PROMPTS,
        "LIST",
        expected="text like batch,of=pool:64, or a list",
    ),
]

Base = Annotated[
    str | None,
    NAME,
    Option(
        "For --model with an adapter (adapter_config.json): its base, instead of the one that the adapter names.",
        MODEL,
        "NAME",
    ),
]

Context = Annotated[int | None, Option("Context window in tokens, instead of the model's own.", MODEL, "TOKENS")]

CountingTokenizer = Annotated[
    str | None,
    NAME,
    Option("Servers: the model (name, folder, hub id) whose tokenizer counts the tokens of prompts.", SERVERS, "NAME"),
]

Price = Annotated[
    Prices | None,
    BeforeValidator(_prices),
    Option(
        "Prices in any currency. For a million tokens: input=0.5,cached=0.05,output=1.5, and write=0.6 if "
        "writing into the server's cache costs more than input. auto: the model's prices in the table of "
        "genai-prices. hour=2: an hour of this machine. plan prints what a run costs.",
        SERVERS,
        "PRICES",
        expected="text like input=0.5,cached=0.05,output=1.5, or a dictionary",
    ),
]

System = Annotated[
    str | None, Option("With --chat: text of the system turn; @FILE reads it from a file.", PROMPTS, "TEXT")
]

ChatArg = Annotated[
    tuple[str, ...],
    BeforeValidator(as_pairs),
    Option(
        "With --chat: a variable of the template, like enable_thinking=false. May be repeated.",
        PROMPTS,
        "NAME=VALUE",
        repeated=True,
        expected="text like enable_thinking=false, or a dictionary",
    ),
]


class RunOptions(BackendSpec):
    """Options of ``run`` and ``plan``, for one task and one model.

    Raises ``UserError`` for an invalid value.
    """

    task: TaskOption
    """A shipped task's name, the path of a task file, or a task with its rows."""
    text: TextColumn = None
    label: LabelColumn = None
    model: ModelOption
    """A registry name, a folder, a hub id, or a loaded model with its tokenizer; for a server, the model's name there.
    """
    k: NumbersOfDemonstrations = None
    per_label: Annotated[
        tuple[int, ...] | None,
        read_with(parse_per_label),
        Option(
            "Instead of --k, with --select balanced: numbers of demonstrations of each label, like 1,2,5.",
            PROMPTS,
            "LIST",
            expected="numbers like 1,2,5",
        ),
    ] = None
    select: Selectors = Field(default="random", validate_default=True)
    encoder: Encoder = None
    long_texts: Annotated[
        Literal["cut", "windows"],
        Option(
            "What text encoders (dense, centroids, BERTScore as a selector and as a metric) read of texts that are "
            "longer than their window: cut (the first window) or windows (all of them, in several windows).",
            PROMPTS,
            "HOW",
        ),
    ] = "cut"
    perturbation: Annotated[
        Perturbation,
        read("icl_bench.demonstrations.perturbations:Perturbation"),
        Option(
            "How prompts change the demonstrations: none; labels:permuted (over the whole train split); "
            "labels:noise=0.3 (30% of the labels are wrong: exactly with random, about with other selectors); "
            "labels:model[,k=N] (those that the model itself gives, asked first with N true ones); "
            "inputs-only[,format=N] (behind a preamble, before N complete ones); labels-only; "
            "nearest-removed:P (without the P percent most similar to the test row, so fewer than k); "
            "farthest-removed:P (without the P percent least similar).",
            PROMPTS,
            "HOW",
            more=PERTURBATIONS.added,
            expected="text like labels:permuted",
        ),
    ] = Field(default="none", validate_default=True)
    order: Annotated[
        tuple[Order, ...] | None,
        read_each("icl_bench.demonstrations.ordering:Order"),
        Option(
            "Order of the demonstrations: drawn (default), shuffled:SEED, by-label, by-length (shortest first), "
            "smooth (each next to its neighbour in embedding space), pool (as in the train file). For retrieval: "
            "relevance (default; most similar last), relevance-reversed. Several with commas.",
            PROMPTS,
            "LIST",
            more=ORDERS.added,
            expected="text like drawn,by-label, or a list",
        ),
    ] = None
    attention: Annotated[
        tuple[Pattern, ...],
        read_each("icl_bench.models.attention_patterns:Pattern", "icl_bench.models.attention_patterns:split"),
        Option(
            "How the model reads the demonstrations: full; block:SIZE[,sink=1,local=2] (blocks of SIZE demonstrations "
            "that attend to themselves, the first and the last blocks; with ,reuse retrieved ones are computed once); "
            "grouped:EVERY,WINDOW; approx:WINDOW,CHUNK; vectors:N. Default: what the model was adapted to, else full.",
            PROMPTS,
            "LIST",
            more=ATTENTION_PATTERNS.added,
            expected="text like full,block:25, or a list",
            default="",
        ),
    ] = Field(default="full", validate_default=True)
    draws: Draws = draws_field()
    seed: Seed = seed_field()
    score: Score = "greedy"
    keep_scores: Annotated[
        KeptScores | None,
        read("icl_bench.results.label_scores:KeptScores"),
        Option(
            "With --score exact: which labels' log-probabilities are stored with each prediction: all, top:N (the N "
            "most probable), or none, which leaves out labels that cannot be among the two most probable and is "
            "several times faster. Default: all of up to 500 labels, top:20 of more.",
            PROMPTS,
            "WHICH",
            expected="all, none or top:N",
        ),
    ] = None
    calibrate: Calibrate = None
    samples: Annotated[
        int | None,
        Option(
            "Self-consistency: sample N answers to each query at --temperature; the prediction is the answer that most "
            "of them give.",
            PROMPTS,
            "N",
        ),
    ] = Field(default=None, ge=1, le=MOST_SAMPLES)
    temperature: Annotated[
        float | None, Option("With --samples: the temperature at which answers are sampled, like 0.7.", PROMPTS, "T")
    ] = Field(default=None, ge=0.01, le=100)
    think: Annotated[
        ThinkOption | None,
        read("icl_bench.tasks.think_option:ThinkOption"),
        Option(
            "Let the model write a thought before its answer, of at most this many tokens (on: the task file's limit; "
            "off: answer at once). The task file says what opens and ends a thought (answer.opens, answer.ends).",
            PROMPTS,
            "TOKENS",
            expected="on, off or a number of tokens",
            default="what the task file says",
        ),
    ] = None
    unconstrained: Annotated[
        bool,
        Option("Let the model write anything; an answer that is not a label counts as wrong and as invalid.", PROMPTS),
    ] = False
    test_size: TestSize = Field(default=None, ge=1)
    test_ids: TestIds = None
    labels: Annotated[
        HalfLabels | None,
        read("icl_bench.tasks.label_subset:HalfLabels"),
        Option(
            "all, or half:SEED: leave out a random half of the labels, with their rows.",
            TASK,
            "PART",
            default="all",
            expected="all or half:SEED",
        ),
    ] = None
    queries: Annotated[
        Queries,
        Option("test rows, or copied: demonstrations of the prompt itself, whose answers it shows.", TASK, "WHICH"),
    ] = "test"
    data_dir: DataDir = None
    base: Base = None
    context: Context = Field(default=None, ge=1)
    tokenizer: CountingTokenizer = None
    price: Price = None
    budget: Annotated[
        float | None,
        Option(
            "Stop before the request that could bring the money spent at the server above this, by --price. Run the "
            "same command again to continue.",
            SERVERS,
            "MONEY",
        ),
    ] = Field(default=None, gt=0)
    batch: Annotated[
        bool,
        Option(
            "Ask in batches, which OpenAI and Anthropic answer within a day at half price. All cells are submitted "
            "first. Run the same command again to continue after an interruption. Give --price the prices of batches.",
            SERVERS,
        ),
    ] = False
    system: System = None
    chat_arg: ChatArg = ()


OF_MONEY = frozenset({"price", "budget", "batch"})
"""Options that limit or estimate the cost of a run and do not change its predictions."""

OF_THE_MODEL = RunOptions.of_group(MODEL, SERVERS) - {"model"} - OF_MONEY | {"chat", "system", "chat_arg", "test_ids"}
"""Options of the model: its engine, its chat format, and the test rows that a study asked it."""


def _patterns(value: Any) -> Any:
    if isinstance(value, str):
        from icl_bench.models.attention_patterns import split

        return split(value)
    return tuple(map(str, value)) if isinstance(value, list | tuple) else value


class PositionOptions(Options):
    """Options of commands that read long texts: the model, and changes of its positions."""

    model: ModelOption
    rope_scale: Annotated[
        float | None,
        Option(
            "Divide positions by X (position interpolation), for sequences beyond the model's window. perplexity: 1 "
            "reads beyond it with the positions as they are.",
            MODEL,
            "X",
        ),
    ] = None
    rope_theta: Annotated[
        float | None, Option("Base of the rotary positions (default: the model's own).", MODEL, "X")
    ] = None

    @property
    def positions(self) -> RotaryPositions:
        """How positions differ from the model's defaults."""
        return RotaryPositions(self.rope_scale, self.rope_theta)


class PerplexitySpec(PositionOptions):
    """Options of ``perplexity``."""

    about: ClassVar[str] = "perplexity"

    texts: Texts
    lengths: Annotated[
        str, BeforeValidator(as_text), Option("Lengths in tokens; windows have the last.", PROMPTS, "LIST")
    ] = "1024,2048,4096,8192,16384,32768"
    attention: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(_patterns),
        Option(
            "full, grouped:EVERY,WINDOW, approx:WINDOW,CHUNK; several with commas. Default: what the model was adapted "
            "to, else full.",
            PROMPTS,
            "LIST",
        ),
    ] = None
    windows: Annotated[int, Option("Windows of each text, at most.", PROMPTS, "N")] = Field(default=1, ge=1)
    dtype: Dtype = "auto"
    device: Device = None
