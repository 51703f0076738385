"""Methods that learn from the examples, as candidates of a race: a draw is one training on one sample of k rows.

A training answers all test rows, so a candidate is dear to begin and free to ask further. Its cells are those of
``icl-bench finetune``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from icl_bench.choosing.options import ChooseSpec
from icl_bench.errors import CellError, UserError
from icl_bench.models.prices import Prices
from icl_bench.models.registry import Model, as_in
from icl_bench.registry import TRAINING_METHODS
from icl_bench.results.cells import FINISHED, Identity
from icl_bench.results.reading import read_rows
from icl_bench.results.store import Store
from icl_bench.sweep.plan_money import paid_by_hour
from icl_bench.sweep.runner import Outcome
from icl_bench.sweep.sweep import Sweep
from icl_bench.training.examples import VALIDATION_ROWS
from icl_bench.training.finetune import Finetuning
from icl_bench.training.interface import LearningCost
from icl_bench.training.spec import FinetuneSpec
from icl_bench.wording import counted, one_line, plain

DRAWS = 3
"""Trainings of a candidate where no prompt is drawn and ``--draws`` does not say."""
LEAST = 25
"""The smallest k of ``--train-k auto``: fewer examples have few of a label."""
ROUND = (100, 200, 500, 1000)
"""Numbers of examples of ``--train-k auto`` that are no k of the prompts."""
LARGEST_SHARE = 0.5
"""The trainings of a candidate, or its first answers, may take this share of what is left of the budget."""


@dataclass(frozen=True)
class Learner:
    """A method at one k, with a training for each draw."""

    finetuning: Finetuning
    method: str
    k: int
    draws: int
    cost: LearningCost
    """Of the first draw, by formula."""

    def identity(self, draw: int) -> Identity:
        """The identity of a draw's cell."""
        return self.finetuning.identity(self.method, self.finetuning.examples(self.method, self.k, draw))

    @property
    def needs_model(self) -> bool:
        """Whether it computes with the language model."""
        return bool(TRAINING_METHODS[self.method].has_architecture)

    def answers(self, store: Store, draw: int) -> dict[str, float] | None:
        """The score (0 to 1) of each test row of a draw, by id; None where it is not trained.

        Raises ``CellError`` if single answers have no scores.
        """
        identity, task = self.identity(draw), self.finetuning.task
        if not store.is_done(identity, len(task.data.test)):
            return None
        table = read_rows(store.storage, f"{identity.name}{FINISHED}")
        if task.first_column not in table.column_names:
            raise CellError("its single answers have no scores")
        scores = map(float, table[task.first_column].to_pylist())
        return dict(zip(table["test_id"].to_pylist(), scores, strict=True))

    def train(self, store: Store, draw: int) -> Outcome:
        """Train a draw and answer its test rows."""
        return self.finetuning.train(store, self.method, self.finetuning.examples(self.method, self.k, draw))


def learners_of(
    spec: ChooseSpec, model: str, sweep: Sweep, prices: Prices | None, rows: Collection[str], draws: int
) -> tuple[list[Learner], list[str]]:
    """The candidates of a model that can learn, and why the others cannot.

    ``rows`` are the ids of the race's test rows.
    """
    possible, reasons = _possible(spec, model, sweep, prices)
    found: list[Learner] = []
    if possible:
        sizes = sizes_of(spec, len(sweep.task.pool))
        try:
            finetuning = _prepared(spec, sweep.model, model, possible, sizes, draws, rows)
        except UserError as error:
            return [], list(_merged(reasons | dict.fromkeys(possible, str(error))))
        for method, k in product(possible, sizes):
            try:
                found.append(Learner(finetuning, method, k, draws, _cost(finetuning, method, k, draws)))
            except (CellError, UserError) as error:
                reasons[f"{method}, k={k}"] = str(error).removeprefix(f"k={k}: ")
    return found, list(_merged(reasons))


def sizes_of(spec: ChooseSpec, pool: int) -> tuple[int, ...]:
    """The numbers of examples to train on. By default two: the largest k of the prompts that the pool has, and a
    larger round one that leaves validation rows.
    """
    if spec.train_k:
        return spec.train_k
    shown = max((k for k in (spec.k.numbers if spec.k else ()) if LEAST <= k < pool), default=0)
    larger = max((k for k in ROUND if shown < k <= pool - VALIDATION_ROWS), default=0)
    return tuple(k for k in (shown, larger) if k)


def _possible(spec: ChooseSpec, model: str, sweep: Sweep, prices: Prices | None) -> tuple[list[str], dict[str, str]]:
    """The methods that can train a model, and why the others cannot."""
    reasons: dict[str, str] = {}
    priced = prices is None or paid_by_hour(sweep, prices)
    for method in spec.methods:
        kind = TRAINING_METHODS[method]
        try:
            kind.check_installed()
        except UserError as error:
            reasons[method] = str(error)
            continue
        if sweep.loader.spends:
            reasons[method] = f"{plain(model)} is behind a server"
        elif spec.run_of(model).base is not None:
            reasons[method] = "is not trained on a model with --base"
        elif kind.has_architecture and sweep.loader.name != "transformers":
            reasons[method] = f"trains with --backend transformers alone, not {sweep.loader.name}"
        elif not priced:
            reasons[method] = "a training has no price of tokens; add hour= to --price"
        elif all(cost is None for cost in sweep.costs()):
            reasons[method] = f"the operations of {plain(model)} are not known, so that costs do not compare"
    return [method for method in spec.methods if method not in reasons], reasons


def _prepared(
    spec: ChooseSpec,
    prompted: Model,
    model: str,
    methods: list[str],
    sizes: tuple[int, ...],
    draws: int,
    rows: Collection[str],
) -> Finetuning:
    """The trainings of these methods, on the weights that are prompted.

    Raises ``UserError`` if the task or the model cannot be trained on.
    """
    run = spec.run_of(model)
    own = {name: getattr(run, name) for name in OF_A_RUN}
    finetune = FinetuneSpec(**own, model=model, method=tuple(methods), k=[1, *sizes], draws=draws)
    finetuning = Finetuning.prepare(finetune, commit_of=as_in(prompted.fingerprint))
    if not sizes:
        pool = len(finetuning.task.pool)
        raise UserError(
            f"--train-k auto: --k has no number from {LEAST} below the pool's {pool:,} rows, and the pool is too small "
            f"for {ROUND[0]} rows and {VALIDATION_ROWS} for validation; give --train-k"
        )
    if missing := {*rows} - {row.id for row in finetuning.task.data.test}:
        raise UserError(f"{counted(len(missing), 'test row')} of the race cannot be asked after a training")
    return finetuning


OF_A_RUN = ("task", "text", "label", "seed", "test_size", "data_dir", "device", "dtype")
"""Options that a training has of the run of its model."""


def _cost(finetuning: Finetuning, method: str, k: int, draws: int) -> LearningCost:
    """What a training takes. Raises ``CellError`` if a draw cannot be trained, or no formula gives it."""
    if k > len(finetuning.task.pool):
        raise CellError(f"the pool has {len(finetuning.task.pool):,} examples")
    for draw in range(draws):
        finetuning.examples(method, k, draw).check()
    cost = finetuning.methods[method].cost(finetuning.examples(method, k, 0))
    if cost is None:
        raise CellError("what it takes is not known by formula")
    return cost


def _merged(reasons: Mapping[str, str]) -> Iterator[str]:
    """A line for each reason, with the names that have it."""
    for why in dict.fromkeys(reasons.values()):
        yield f"{', '.join(name for name, reason in reasons.items() if reason == why)}: {one_line(why)}"
