"""The options of ``choose``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from icl_bench.backends.spec import BackendSpec
from icl_bench.choosing.spending import EXPECTED, Spend, read_spend
from icl_bench.errors import UserError
from icl_bench.models.in_memory import read_model
from icl_bench.options import (
    MODEL,
    NAMES,
    PROMPTS,
    TASK,
    TRAINING,
    Option,
    as_pairs,
    as_text,
    flag,
    names_in,
    read_with,
)
from icl_bench.registry import TRAINING_METHODS
from icl_bench.sweep.k_values import parse_train_k
from icl_bench.sweep.options import (
    OF_THE_MODEL,
    Base,
    Calibrate,
    ChatArg,
    Context,
    CountingTokenizer,
    DataDir,
    Draws,
    Encoder,
    LabelColumn,
    NumbersOfDemonstrations,
    Price,
    Score,
    Seed,
    Selectors,
    System,
    TaskOption,
    TestSize,
    TextColumn,
    draws_field,
    seed_field,
)
from icl_bench.wording import listed, nearest, plain, short

if TYPE_CHECKING:
    from icl_bench.sweep.run_spec import RunSpec

OF_AN_ENGINE = OF_THE_MODEL - {"test_ids"} | {"price"}
"""Options that a model may have of its own."""

SELECTIONS = "random,balanced,hybrid:5,by=dense,bm25,dense"
"""The default of ``--select``. Those by embeddings do not race where their encoder is not installed."""


def _models(given: Any) -> Any:
    """The models of a text with commas, of a list, or one loaded model."""
    several = isinstance(given, tuple) and all(isinstance(one, str) for one in given)
    found = tuple(map(read_model, names_in(list(given) if several else given)))
    return tuple(dict.fromkeys(found)) if all(isinstance(one, str) for one in found) else found


def _engines(given: Any) -> Any:
    """Options of models as the command line writes them: ``MODEL:NAME=VALUE``."""
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Mapping):
        return given
    texts = []
    for model, options in given.items():
        if not isinstance(options, Mapping):
            raise UserError(f"--engine {short(given)}: expected a dictionary of options for each model")
        texts += [f"{model}:{name}={text}" for name, value in options.items() for text in _texts(str(name), value)]
    return tuple(texts)


def _texts(name: str, value: Any) -> Sequence[Any]:
    """An option's value in Python as the command line writes it: a text for each time that the option is given."""
    declared = ChooseSpec.declared().get(name.replace("-", "_"))
    if declared is not None and declared.option.repeated:
        pairs = as_pairs(value)
        return pairs if isinstance(pairs, list | tuple) else (pairs,)
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={one}" for key, one in value.items())
    return (as_text(value),)


class ChooseSpec(BackendSpec):
    """Options of ``choose``, for one task and one or more models."""

    about: ClassVar[str] = "choose"

    task: TaskOption = ""
    data: Annotated[
        Any,
        Option(
            "Instead of a task: a file of rows (.csv, .xlsx, .jsonl, ...) with a text and a label in each row. Its "
            "task file is written into the results folder.",
            TASK,
            "FILE",
            expected="a file of rows like tickets.csv, or in Python a pandas or polars frame",
        ),
    ] = None
    """Read by :func:`icl_bench.choosing.data.with_task` before these options are made."""
    text: TextColumn = None
    label: LabelColumn = None
    model: Annotated[
        tuple[str, ...],
        BeforeValidator(_models),
        Option(
            "A model's name (icl-bench models lists them), a folder, or a hub id like org/name or "
            "org/name@REVISION. Several with commas race against each other.",
            MODEL,
            "NAME",
            expected="a model's name, a folder, a hub id, a loaded model with its tokenizer, or a list of them",
        ),
    ] = Field(min_length=1)
    """With a server, the server's name of the model."""
    engine: Annotated[
        tuple[str, ...],
        BeforeValidator(_engines),
        Option(
            "An option of one of several models, like gpt-x:backend=openai or gpt-x:base-url=https://host/v1. It "
            "overrides the option of all models. May be repeated.",
            MODEL,
            "MODEL:NAME=VALUE",
            repeated=True,
            expected="text like gpt-x:backend=openai, or a dictionary of options for each model",
        ),
    ] = ()
    spend: Annotated[
        Spend,
        BeforeValidator(read_spend),
        Option(
            "Budget of the search: time (90s, 30m, 1.5h), tokens (500ktokens, 2Mtokens), or money ('$5'), which needs "
            "--price.",
            TASK,
            "BUDGET",
            expected=EXPECTED,
            default="30m",
        ),
    ] = Spend(1800.0, "time")
    margin: Annotated[
        float,
        Option(
            "Accepted loss in points of the score: the choice is at most this much worse than the best setting.",
            TASK,
            "POINTS",
        ),
    ] = Field(default=2.0, gt=0, lt=100)
    queries: Annotated[
        int,
        Option("Number of queries that the choice will answer. They share one-time costs, like a training.", TASK, "N"),
    ] = Field(default=1000, ge=1)
    select: Selectors = Field(default=SELECTIONS, validate_default=True)
    k: NumbersOfDemonstrations = Field(default="0,1,5,10,25,50,100,200", validate_default=True)
    method: Annotated[
        tuple[str, ...],
        NAMES,
        Option(
            "Training methods that race against the prompts, on the same examples: knn, encoder-probe, probe, lora, "
            "full. Several with commas; none: prompts only.",
            TRAINING,
            "LIST",
            more=TRAINING_METHODS.added,
        ),
    ] = ("knn", "encoder-probe", "probe", "lora")
    train_k: Annotated[
        tuple[int, ...],
        read_with(parse_train_k),
        Option(
            "Numbers of training examples: 100,1000. auto: the largest k of the prompts, if at least 25, and a larger "
            "round number of at most 1,000.",
            TRAINING,
            "LIST",
            expected="numbers like 100,1000, or auto",
            default="auto",
        ),
    ] = ()
    encoder: Encoder = None
    draws: Draws = draws_field()
    seed: Seed = seed_field()
    score: Score = "greedy"
    calibrate: Annotated[
        Calibrate,
        Option(
            "With --score exact: batch also races each setting's calibrated answers, from which the bias towards some "
            "labels is removed.",
            PROMPTS,
            "batch",
            expected="batch",
        ),
    ] = None
    test_size: TestSize = Field(default=None, ge=1)
    data_dir: DataDir = None
    base: Base = None
    context: Context = Field(default=None, ge=1)
    tokenizer: CountingTokenizer = None
    price: Price = None
    system: System = None
    chat_arg: ChatArg = ()

    @model_validator(mode="after")
    def _agree(self) -> ChooseSpec:
        from icl_bench.analysis.query_cost import check_queries  # with numpy, which --help does not need

        check_queries(self.queries)
        for one in self.calibrate or ():
            if str(one) != "batch":
                raise UserError(
                    f"--calibrate {plain(str(one))}: choose supports only batch; use run and summary for the others"
                )
        for name in self.methods:
            if name not in TRAINING_METHODS:
                raise UserError(f"--method {plain(name)}: {TRAINING_METHODS.unknown(name)}, or none for prompts alone")
        for model in self.model:
            _ = self.of_model(model)
        return self

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that race beside prompts."""
        return () if self.method == ("none",) else self.method

    def of_model(self, model: str) -> dict[str, Any]:
        """The options of one model that differ from those of all, as :class:`RunSpec` takes them. Raises
        ``UserError``.
        """
        return self._own_options.get(model, {})

    @property
    def _own_options(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for text in self.engine:
            model = max((m for m in self.model if text.startswith(f"{m}:")), key=len, default=None)
            name, sign, value = ("", "", "") if model is None else text[len(model) + 1 :].partition("=")
            name = name.strip().removeprefix("--").replace("-", "_")
            if model is None or not sign:
                models = listed(plain(m) for m in self.model)
                raise UserError(f"--engine {plain(text)}: expected MODEL:NAME=VALUE with one of the models ({models})")
            if name not in OF_AN_ENGINE:
                raise UserError(
                    f"--engine {plain(text)}: {plain(name)} is no option of a model; {nearest(name, OF_AN_ENGINE)}"
                )
            own = found.setdefault(model, {})
            if type(self).declared()[name].option.repeated:
                own[name] = (*own.get(name, ()), value)
            elif name in own:
                raise UserError(f"--engine {plain(text)}: {flag(name)} of {plain(model)} appears twice")
            else:
                own[name] = value
        return found

    @property
    def has_default_selections(self) -> bool:
        """Whether the prompts are those of the default."""
        return ",".join(map(str, self.select)) == SELECTIONS

    @cached_property
    def without_encoder(self) -> tuple[tuple[str, ...], str]:
        """The selections of the default that do not race because their encoder is not installed, and why."""
        from icl_bench.models.text_encoders import SentenceEncoder

        if self.encoder is None and self.has_default_selections:
            try:
                SentenceEncoder.find()
            except UserError as error:
                return tuple(str(one) for one in self.select if one.by == "dense"), str(error)
        return (), ""

    def run_of(self, model: str) -> RunSpec:
        """The run of all settings of a model: a full sweep. Raises ``UserError``."""
        from icl_bench.sweep.run_spec import RunSpec

        options = {name: getattr(self, name) for name in self.declared() if name not in OF_THE_RACE}
        options["select"] = tuple(one for one in self.select if str(one) not in self.without_encoder[0])
        options |= {name: value for name, value in self.of_model(model).items() if name != "price"}
        return RunSpec(**{**options, "model": model})

    def price_of(self, model: str) -> Any:
        """What a model costs as it was given; None without."""
        from icl_bench.models.prices import given_prices

        own = self.of_model(model).get("price")
        return self.price if own is None else given_prices(own)


OF_THE_RACE = frozenset({"data", "spend", "margin", "queries", "price", "engine", "model", "method", "train_k"})
"""Options that decide how settings are raced and what they cost, or that each model has of its own."""
