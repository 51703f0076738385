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
        "A task's name (icl-bench tasks lists them), or the path of a task file (.yaml) or of a file of rows (.csv, "
        "...) with a text and a label in each row.",
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
        "A model's name (icl-bench models lists them), a folder, or a hub id like org/name or org/name@REVISION.",
        MODEL,
        "NAME",
        expected="a model's name, a folder, a hub id, or a loaded model with its tokenizer",
    ),
]

Seed = Annotated[int, Option("Random seed of draws and training.", PROMPTS, "N", expected="a whole number of 64 bits")]

TestSize = Annotated[
    int | None, Option("Use only the first N test rows (default: the task file's number, or 250).", TASK, "N")
]

TestIds = Annotated[
    PublishedIds | None,
    Option(
        "For tasks of Bertsch et al. 2025: paper, the test rows of most of its models (default), or paper-mistral, "
        "those of its Mistral.",
        TASK,
        "WHICH",
        expected="paper or paper-mistral",
    ),
]

DataDir = Annotated[
    Path | None,
    Option(
        "Folder with one sub-folder per data set (train.jsonl, test.jsonl). Default: the environment variable "
        "ICL_BENCH_DATA. Without either, data come from the Hugging Face hub.",
        TASK,
        "DIR",
    ),
]

OF_TEXTS = Option(
    "A folder of .txt and .txt.gz files in UTF-8. The last twentieth of each is not used for training.", TASK, "DIR"
)

Texts = Annotated[Path, OF_TEXTS]

Draws = Annotated[
    int | None, Option("Number of random draws of demonstrations (default: 10; 1 if all are retrieved).", PROMPTS, "N")
]


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
        "How demonstrations are selected; several with commas. The same for all test rows, and cached: random, first, "
        "balanced, centroids, diverse:mmr-shared, diverse:bertscore-shared, diverse:dpp-shared. Retrieved for each "
        "test row: bm25, dense, bertscore, diverse:mmr, diverse:bertscore, diverse:dpp, per-label:N. Both: "
        "hybrid:S or hybrid:per-label:N (random ones, then retrieved ones), also after centroids+ or balanced+. "
        "docs/options.md describes them.",
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
        "Sentence encoder of selectors and orders that use embeddings: a name, a folder or a hub id (default: "
        "all-MiniLM-L6-v2, which is packaged).",
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
    Option("For an adapter as --model: its base model, instead of the one in adapter_config.json.", MODEL, "NAME"),
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
        "genai-prices. hour=2: an hour of this machine. plan prints the cost of a run.",
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
            "What sentence encoders and BERTScore read of a text that is longer than their window: cut (the first "
            "window) or windows (the whole text, in several windows).",
            PROMPTS,
            "HOW",
        ),
    ] = "cut"
    perturbation: Annotated[
        Perturbation,
        read("icl_bench.demonstrations.perturbations:Perturbation"),
        Option(
            "A change of the demonstrations: none; labels:permuted; labels:noise=0.3 (30% of the labels are wrong); "
            "labels:model[,k=N] (the model's own labels, given after N demonstrations with true ones); "
            "inputs-only[,format=N] (without answers, then N complete demonstrations); labels-only; nearest-removed:P "
            "or farthest-removed:P (without the P percent most or least similar to the test row, so fewer than k). "
            "docs/options.md describes them.",
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
            "Which earlier tokens a token attends to: full (all); block:SIZE[,sink=1,local=2] (its block of SIZE "
            "demonstrations, the first block (sink) and the two blocks before its own (local); "
            "with ,reuse retrieved demonstrations are "
            "computed once); grouped:EVERY,WINDOW; approx:WINDOW,CHUNK; vectors:N. Default: the pattern to which the "
            "model was adapted, else full. docs/options.md describes them.",
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
            "most probable), or none. none is several times faster, because it does not score labels that cannot be "
            "among the two most probable. Default: all of up to 500 labels and with --calibrate, else top:20.",
            PROMPTS,
            "WHICH",
            expected="all, none or top:N",
        ),
    ] = None
    calibrate: Calibrate = None
    samples: Annotated[
        int | None,
        Option(
            "Self-consistency: sample N answers to each query at --temperature; the prediction is the most frequent "
            "answer.",
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
            "Let the model write a thought before its answer: on (up to the task file's limit), a maximum number of "
            "tokens, or off. The task file defines what opens and ends a thought (answer.opens, answer.ends).",
            PROMPTS,
            "TOKENS",
            expected="on, off or a number of tokens",
            default="the task file's setting",
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
            "all, or half:SEED, which removes a random half of the labels and their rows.",
            TASK,
            "PART",
            default="all",
            expected="all or half:SEED",
        ),
    ] = None
    queries: Annotated[
        Queries,
        Option("test: the test rows. copied: demonstrations of the prompt, which shows their answers.", TASK, "WHICH"),
    ] = "test"
    data_dir: DataDir = None
    base: Base = None
    context: Context = Field(default=None, ge=1)
    tokenizer: CountingTokenizer = None
    price: Price = None
    budget: Annotated[
        float | None,
        Option(
            "Stop before a request that could bring the cost of the server above this amount, in the currency of "
            "--price (auto: US dollars). Run the same command again to continue.",
            SERVERS,
            "MONEY",
        ),
    ] = Field(default=None, gt=0)
    batch: Annotated[
        bool,
        Option(
            "Send requests as batches, which OpenAI and Anthropic answer within a day at half price. All cells are "
            "submitted first. Run the same command again to continue after an interruption. --price takes the prices "
            "of batches.",
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
            "Divide positions by X (position interpolation), for sequences longer than the model's window. With 1, "
            "perplexity reads such sequences with unchanged positions.",
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
        str, BeforeValidator(as_text), Option("Lengths in tokens; a window has the largest one.", PROMPTS, "LIST")
    ] = "1024,2048,4096,8192,16384,32768"
    attention: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(_patterns),
        Option(
            "full, grouped:EVERY,WINDOW, approx:WINDOW,CHUNK; several with commas. Default: the pattern to which the "
            "model was adapted, else full.",
            PROMPTS,
            "LIST",
        ),
    ] = None
    windows: Annotated[int, Option("Maximum number of windows of each text.", PROMPTS, "N")] = Field(default=1, ge=1)
    dtype: Dtype = "auto"
    device: Device = None
