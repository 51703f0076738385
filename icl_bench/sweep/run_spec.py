"""The options of a run, validated together before data are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from pydantic import model_validator

from icl_bench.backends.choice import ChosenBackend, Needs, check_able, check_backend, check_patterns, choose
from icl_bench.backends.interface import BackendLoader
from icl_bench.backends.spec import BackendSpec
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL
from icl_bench.models.in_memory import read_model
from icl_bench.models.trained import own_pattern
from icl_bench.prompts.chat import ChatSettings, read_settings
from icl_bench.registry import SELECTORS
from icl_bench.results.calibration import Calibration
from icl_bench.sweep.calibration_queries import check_task
from icl_bench.sweep.combinations import Circumstances, Combinations
from icl_bench.sweep.options import RunOptions
from icl_bench.sweep.samples import Samples
from icl_bench.sweep.tokenized_task import Scoring
from icl_bench.tasks.spec import TaskSpec
from icl_bench.wording import plain


class RunSpec(RunOptions):
    """A request for a run of one task and one model.

    Values may be text as on the command line, or Python values: ``k=[1, 10, "max"]``,
    ``select=["random", "hybrid:5,by=dense"]``, ``draws=3``. Raises ``UserError`` for an invalid value.
    """

    about: ClassVar[str] = "run"

    @model_validator(mode="before")
    @classmethod
    def _as_adapted(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("attention") is not None:
            return values
        model = read_model(values.get("model"))  # the folder of a loaded model
        return {**values, "model": model, "attention": (own_pattern(str(model)),)}

    @model_validator(mode="after")
    def _agree(self) -> RunSpec:
        if self.unconstrained and self.score == "exact":
            raise UserError("--unconstrained and --score exact exclude each other")
        if self.batch and self.score == "exact":
            raise UserError("--batch: batches do not return the scores of every label; leave out one of the two")
        self._check_samples()
        if self.batch and self.perturbation.asks_model:
            raise UserError(
                f"--batch: --perturbation {self.perturbation} needs the answers to the pool before its prompts can be "
                "written; leave --batch out"
            )
        if self.budget is not None and not (self.price is not None and self.price.pays_tokens):
            raise UserError(
                f"--budget {self.budget:g}: needs what tokens cost; add --price input=..,cached=..,output=.. or auto"
            )
        if self.batch and self.price is not None and self.price.auto:
            raise UserError(
                "--batch: --price auto has the prices of single requests; give the prices of batches: "
                "--price input=..,cached=..,output=.."
            )
        if self.keep_scores is not None and self.score != "exact":
            raise UserError(f"--keep-scores {self.keep_scores}: --score exact has scores; add it, or leave this out")
        if self.calibrate is not None:
            self._check_calibrations(self.calibrate)
        if self.base is not None and self.tokenizer is not None:
            raise UserError(f"--base {plain(self.base)}: applies to adapters on this machine, not to servers")
        _ = self.chat_settings  # refuses chat options without --chat
        return self

    def _check_samples(self) -> None:
        if self.samples is None:
            if self.temperature is not None:
                raise UserError(f"--temperature {self.temperature:g}: applies to samples; add --samples N")
            return
        if self.temperature is None:
            raise UserError(
                f"--samples {self.samples}: needs --temperature above 0, like 0.7; without it all samples are the same"
            )
        if self.score == "exact":
            raise UserError("--samples and --score exact exclude each other: scores of every label need no samples")
        if self.batch:
            raise UserError("--samples and --batch exclude each other: samples are asked in single requests")

    def _check_calibrations(self, calibrations: Sequence[Calibration]) -> None:
        shown = f"--calibrate {','.join(map(str, calibrations))}"
        if self.score != "exact":
            raise UserError(f"{shown}: needs every label's score; add --score exact")
        if self.keep_scores is not None and self.keep_scores.most is not None:
            raise UserError(f"{shown}: needs every label's score stored; leave out --keep-scores {self.keep_scores}")
        if self.queries != "test":
            raise UserError(f"{shown}: calibrates answers to test rows; leave out --queries {self.queries}")

    @cached_property
    def chat_settings(self) -> ChatSettings | None:
        """The chat format of prompts; None for plain text."""
        return read_settings(self.chat, self.system, self.chat_arg)

    @property
    def scoring(self) -> Scoring:
        """How an answer is decoded and scored."""
        return "unconstrained" if self.unconstrained else self.score

    @property
    def several_samples(self) -> Samples | None:
        """The samples of each answer; None without sampling."""
        if self.samples is None or self.temperature is None:
            return None
        return Samples(self.samples, self.temperature, self.seed)

    @property
    def engine(self) -> BackendSpec:
        """The options of the engine alone."""
        return BackendSpec(**{name: getattr(self, name) for name in BackendSpec.model_fields})

    def backend_for(self, task: TaskSpec) -> ChosenBackend:
        """The requested backend, not loaded. Raises ``UserError`` for an unknown name."""
        needs = Needs(
            patterns=self.attention,
            exact=self.scoring == "exact",
            free=self.scoring == "unconstrained" or not task.is_classification,
            shares=not all(spec.retrieves for spec in self.select),
        )
        return choose(self.engine, needs)

    @property
    def embeds(self) -> bool:
        """Whether the request needs a sentence encoder."""
        embeds = any(getattr(SELECTORS.get(name), "embeds", False) for name in self._retrievers)
        embeds = embeds or self.perturbation.embeds or any(order.embeds for order in self.order or ())
        return embeds or any(spec.embeds for spec in self.select)

    @property
    def compares_tokens(self) -> bool:
        """Whether the request needs BERTScore's encoder to select demonstrations."""
        return "bertscore" in self._retrievers

    @property
    def counts_words(self) -> bool:
        """Whether the request compares demonstrations by BM25."""
        return "bm25" in self._retrievers

    @property
    def _retrievers(self) -> set[str]:
        """The names of the similarities that select demonstrations, or blocks that a query reads."""
        patterns = (pattern.compares for pattern in self.attention)
        shared = (spec.base.similarity for spec in self.select if spec.base is not None)
        return {by for by in (*(spec.by for spec in self.select), *shared, *patterns) if by is not None}

    def check(self, task: TaskSpec, *, to_run: bool = True) -> tuple[ChosenBackend, Combinations]:
        """Validate the request without data and model. Returns the backend and the combinations.

        The engine must be installed only if ``to_run``. Impossible combinations are left out; at least one possible
        combination must remain. Raises ``UserError``.
        """
        backend = self.backend_for(task)
        self._check_backend(task, backend.loader, to_run=to_run)
        if to_run:
            backend = replace(backend, loader=backend.loader.settled(str(self.model), exact=self.scoring == "exact"))
        if self.labels and not task.is_classification:
            raise UserError(f"--labels {self.labels}: task {task.name} is free text, without labels")
        if self.labels and task.labels and task.labels.own:
            raise UserError(
                f"--labels {self.labels}: each row of task {task.name} has choices of its own; "
                "there is no set of labels to leave some out of"
            )
        for calibration in self.calibrate or ():
            check_task(calibration, task)
        self._check_numbers()
        combinations = self._combinations(task, backend.loader)
        combinations.require_some()
        if self.encoder is not None and not self.embeds:
            raise UserError(
                f"--encoder {plain(self.encoder)}: nothing in this request embeds texts; "
                "it applies to dense, centroids, diverse:mmr, diverse:dpp (also -shared), smooth and nearest-removed"
            )
        if self.long_texts != "cut" and not (self.embeds or self.compares_tokens or "bertscore" in task.metrics):
            raise UserError(
                f"--long-texts {self.long_texts}: nothing in this request reads texts with an encoder; it applies to "
                "dense, centroids, diverse selectors, smooth, nearest-removed and bertscore (selector or metric)"
            )
        return backend, combinations

    def _combinations(self, task: TaskSpec, loader: BackendLoader) -> Combinations:
        """The combinations of this request that are known without data."""
        return Combinations.of(
            self.select,
            self.order,
            self.attention,
            self.k.numbers if self.k else (),
            Circumstances(task, self.perturbation, self.queries, self.chat == "turns"),
            unsaid=self.per_label is not None or bool(self.k and self.k.largest),
            able=lambda combination: check_patterns(loader, [combination.attention]),
        )

    def narrowed(self, combinations: Combinations) -> RunSpec:
        """This request without selectors, orders and patterns that have no possible combination."""
        left = combinations.possible
        orders = {combination.order for combination in left}
        select = tuple(dict.fromkeys(combination.select for combination in left))
        attention = tuple(dict.fromkeys(combination.attention for combination in left))
        order = self.order and tuple(order for order in self.order if order in orders)
        return self.model_copy(update={"select": select, "attention": attention, "order": order})

    def _check_backend(self, task: TaskSpec, loader: BackendLoader, *, to_run: bool) -> None:
        if FULL not in self.attention:  # else full attention remains possible, and unsupported patterns are left out
            check_patterns(loader, self.attention)
        check_backend(loader, to_run=to_run)
        if self.scoring != "greedy" and not task.is_classification:
            option = "--unconstrained" if self.scoring == "unconstrained" else "--score exact"
            raise UserError(f"{option}: task {task.name} is free text, it has no labels")
        if self.hold is not None and not task.is_classification:
            raise UserError(
                f"--hold {self.hold}: task {task.name} is free text, it has no labels to restrict answers to"
            )
        if task.thought is not None and not loader.constrained:
            if self.scoring == "exact":
                raise UserError(
                    f"--score exact: --backend {loader.name} cannot continue a thought, and task {task.name} thinks "
                    "before it answers; leave it out, or add --think off"
                )
            if self.hold is not None:
                raise UserError(
                    f"--hold {self.hold}: restricts a whole answer, and task {task.name} thinks before it answers; "
                    "leave it out, or add --think off"
                )
        if self.budget is not None and not loader.spends:
            raise UserError(f"--budget {self.budget:g}: is for models behind a server; this is --backend {loader.name}")
        if self.budget is not None:
            loader.check_budget()
        check_able(loader, self.tokenizer, exact=self.scoring == "exact")
        if self.price is not None and self.budget is None and loader.spends and self.scoring == "exact":
            raise UserError(
                "--price: what scores of labels cost depends on the server, which may need the whole prompt for each "
                "label; leave --price or --score exact out (run --budget counts each request)"
            )
        always = "end of turn" if self.chat else task.template.separator
        if loader.most_stops and len(stops := task.stops_beside(always)) > loader.most_stops:
            raise UserError(
                f"--backend {loader.name}: takes at most {loader.most_stops} texts that end an "
                f"answer; task {task.name} has {len(stops)} (stop, and what ends its prompts' "
                "answers); leave some of stop out"
            )
        if self.temperature is not None:
            loader.check_samples(self.temperature)
        if self.batch:
            loader.check_batches(to_run=to_run)

    def _check_numbers(self) -> None:
        """Raise ``UserError`` unless exactly one option gives the numbers of demonstrations."""
        if self.k is None and self.per_label is None and all(s.says_k for s in self.select):
            return
        if (self.k is None) == (self.per_label is None):
            raise UserError("give --k, or else --per-label: numbers of demonstrations, like 1,10,100")
        others = [spec for spec in self.select if str(spec) != "balanced"]
        if self.per_label is not None and others:
            raise UserError(f"--per-label: needs --select balanced, not {others[0]}; give --k")
