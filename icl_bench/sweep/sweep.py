"""A sweep from a user's request to finished cells: the program's main entry as a library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from icl_bench.backends.choice import ChosenBackend, check_patterns
from icl_bench.backends.interface import Backend, BackendLoader
from icl_bench.backends.servers.budget import Budget
from icl_bench.demonstrations.balanced import shots_per_label
from icl_bench.errors import ChoiceError, UserError
from icl_bench.models.architecture import Architecture, architecture_of, check_family
from icl_bench.models.registry import Model, commit_in, load_tokenizer, resolve, served
from icl_bench.models.trained import training_of
from icl_bench.results.calibration import checked_prior
from icl_bench.results.cells import Identity
from icl_bench.results.chat_days import day_of, keep_day
from icl_bench.results.derived import prior_scope
from icl_bench.results.hub_commits import commits_of, keep_commit
from icl_bench.results.label_scores import KEEP_ALL, KeptScores
from icl_bench.results.reading import state_prior
from icl_bench.results.storage import Place
from icl_bench.results.store import Store
from icl_bench.sweep.batched import BatchRunner
from icl_bench.sweep.combinations import Combination, CombinationCheck
from icl_bench.sweep.compute_cost import ComputeCost, cost_of
from icl_bench.sweep.facts import Identities, versions
from icl_bench.sweep.k_values import KValues
from icl_bench.sweep.plan import CellPlan, Plan, PlannedGroup, make_plan, room_for
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.runner import Outcome, Runner, Watcher
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import TaskData, load_data
from icl_bench.tasks.task_files import load_task
from icl_bench.tasks.yaml_files import read_yaml
from icl_bench.text_files import read_file

EMBEDDING = ("sentence-transformers", "scikit-learn")
"""Packages that compute embeddings and clusters; their versions are stored if they are used."""


@dataclass
class Sweep:
    """A planned run of one task and model."""

    spec: RunSpec
    model: Model
    task: TokenizedTask
    plan: Plan
    backend: ChosenBackend
    priors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The stated distribution of labels, by name."""
    window_is_known: bool = True
    """Whether the window is the model's own. If not, it is the window of the model whose tokenizer counts its tokens.
    """
    budget: Budget | None = None
    """The money that it may spend. Other sweeps may share the same budget."""

    @classmethod
    def prepare(
        cls,
        spec: RunSpec,
        say: Callable[[str], None] = lambda _: None,
        *,
        to_run: bool = True,
        results: Place | None = None,
    ) -> Sweep:
        """Load data and tokenizer and create the plan; nothing is computed yet.

        ``say`` receives the current step in words. The engine must be installed only if ``to_run``. Chat templates use
        the date of ``results``, or today's if it has none, and a model of the hub its commit. Raises ``UserError``.
        """
        spec_of_task = load_task(spec.task, spec.text, spec.label)
        if spec.think is not None:
            spec_of_task = spec.think.of(spec_of_task)
        chosen, combinations = spec.check(spec_of_task, to_run=to_run)
        say(f"reading {spec_of_task.name}")
        data = load_data(spec_of_task, data_dir=spec.data_dir, test_size=spec.test_size, test_ids=spec.test_ids)
        if spec.labels:
            data = spec.labels.of(data)
        priors = _priors(spec, data)
        say(f"preparing {spec.model}")
        if spec.tokenizer is None:
            model = resolve(spec.model, spec.context, base=spec.base, commit_of=commits_of(results))
        else:
            window = spec.context or chosen.loader.window(spec.model)
            model = served(spec.model, spec.tokenizer, window)
        combinations.refuse(lambda combination: check_family(combination.attention, model))
        combinations.require_some()
        loader = chosen.loader
        task = TokenizedTask(
            data,
            model,
            load_tokenizer(model),
            spec.seed,
            spec.scoring if loader.constrained or spec.scoring == "exact" else "unconstrained",
            spec.queries,
            str(spec.labels) if spec.labels else None,
            spec.perturbation,
            spec.encoder,
            spec.chat_settings and spec.chat_settings.model_copy(update={"day": day_of(results)}),
            windows=spec.long_texts == "windows",
            samples=spec.several_samples,
            every_score=spec.keep_scores is None or spec.keep_scores.most != 0,
            one_request=not loader.constrained,
        ).without_too_long()
        _ = task.metrics  # refuses a metric that does not support the answers' script
        say("choosing demonstrations and counting tokens")
        k_values, refused = _k_values(spec, task)
        able = _able(loader, model, refused)
        calibrations = spec.calibrate or ()
        plan = make_plan(task, k_values, spec.select, spec.order, spec.draws, spec.attention, able, calibrations, say)
        narrowed = spec.narrowed(plan.combinations)
        # excluded combinations must not decide the backend
        backend = chosen if narrowed == spec else narrowed.backend_for(spec_of_task)
        if backend.name == chosen.name:
            backend = replace(backend, loader=chosen.loader)  # final from here on
        known = spec.tokenizer is None or window is not None
        return cls(narrowed, model, task, plan, backend, priors, window_is_known=known)

    @property
    def loader(self) -> BackendLoader:
        """The backend, not loaded yet."""
        return self.backend.loader

    @property
    def room(self) -> int:
        """The longest prompt with its answer in tokens, for which the backend needs room."""
        return room_for(self.plan, self.model.context_tokens)

    def load_backend(self) -> Backend:
        """Load the model, or connect to its server."""
        return self.loader.load(self.model, self.task.tokenizer, self.room)

    def only(
        self, wanted: Callable[[CellPlan], bool], combinations: Callable[[Combination], bool] = lambda _: True
    ) -> Sweep:
        """The sweep with only the wanted cells, possibly none. ``combinations`` filters the plan's combinations."""
        groups = [replace(group, cells=[cell for cell in group.cells if wanted(cell)]) for group in self.plan.groups]
        part = self.of_groups([group for group in groups if group.cells])
        part.plan.combinations = self.plan.combinations.only(combinations)
        return part

    def of_groups(self, groups: list[PlannedGroup]) -> Sweep:
        """The sweep with only these groups of cells."""
        part = copy(self)  # keeps the model's cached properties
        part.plan = replace(self.plan, groups=groups)
        vars(part).pop("_costs", None)
        return part

    def continued(self, finished: Sequence[bool | None]) -> Sweep:
        """The sweep of which these cells are ``finished``: the others compute what they share with them again."""
        part = copy(self)  # keeps the costs of cells, too
        part.plan = self.plan.continued(finished)
        return part

    def identities(self) -> list[Identity]:
        """The identities of the runnable cells."""
        return [self._identities(cell) for group in self.plan.groups for cell in group.runnable]

    @cached_property
    def _identities(self) -> Identities:
        return Identities(self.loader.identity())

    def costs(self) -> Sequence[ComputeCost | None]:
        """Cost of each cell of the plan by formula; None if unknown."""
        if self.spec.tokenizer or "dtype" not in self.loader.identity():
            return [None] * len(self.plan.cells)
        return self._costs

    @cached_property
    def _costs(self) -> list[ComputeCost | None]:
        """Cost of each runnable cell, with answers of half the maximum length, or with all labels if each is scored:
        ``(cells,)``.
        """
        dtype = self.loader.identity().get("dtype", "float32")  # decides only cached bytes
        shape = self._architecture
        answer = [self.task.planned_answer(shape.vocabulary, skips_unread=self.loader.skips_unread)]
        return [
            None if cell.problem else cost_of(cell.prompt_layout, shape, answer, dtype).times(cell.samples)
            for cell in self.plan.cells
        ]

    @cached_property
    def _architecture(self) -> Architecture:
        """The model's architecture as the backend computes it, read once without weights."""
        shape = architecture_of(self.model.source)
        return shape if self.loader.skips_unread else shape.with_whole_layers()

    def estimates(self) -> Sequence[float | None]:
        """Estimated seconds of each cell of the plan; None if a server computes them."""
        from icl_bench.sweep.time_estimate import seconds

        rate = self.loader.rate()
        if rate is None:
            return [None] * len(self.plan.cells)
        return seconds(self._architecture, rate, self.plan.cells, self._costs)

    def finished(self, results: Place) -> list[bool]:
        """Whether each cell of the plan has a file in a results folder. The file may be damaged."""
        store = Store(results)
        exists = store.storage.exists()
        return [exists and not cell.problem and store.has(self._identities(cell)) for cell in self.plan.cells]

    def run(self, results: Place, watcher: Watcher | None = None, load: Callable[[], Backend] | None = None) -> Outcome:
        """Compute what is missing in the results folder; ``load`` may return a shared backend.

        Raises ``UserError``.
        """
        runner = self.runner(results, watcher, load)
        outcome = runner.run()
        scope = prior_scope(self.task.data.spec.name, self.task.label_space)
        for name, shares in self.priors.items():
            try:
                state_prior(results, scope, name, shares)
            except OSError as error:
                raise runner.store.unwritable(error) from None
        return outcome

    def submit(self, results: Place) -> None:
        """With ``batch``: submit the batches of missing predictions; :meth:`run` follows them. Raises ``UserError``."""
        runner = self.runner(results)
        assert isinstance(runner, BatchRunner), "only batches are submitted"
        runner.submit()

    def runner(
        self, results: Place, watcher: Watcher | None = None, load: Callable[[], Backend] | None = None
    ) -> Runner:
        """The runner that computes the cells into a results folder. Raises ``UserError``."""
        store = Store(results)
        if commit_in(self.model.fingerprint):
            store.prepare()
            keep_commit(results, self.model.fingerprint)
        if (day := self.task.chat_day) is not None:
            store.prepare()
            keep_day(results, day)
        kind = BatchRunner if self.spec.batch else Runner
        return kind(
            self.plan,
            store,
            self.loader.identity(),
            load or self.load_backend,
            watcher or Watcher(),
            versions=versions(*(EMBEDDING if self.spec.embeds else ())),
            architecture=None if self.spec.tokenizer else lambda: self._architecture,
            skips_unread=self.loader.skips_unread,
            trained=training_of(self.model.source),
            keep_scores=self.kept_scores,
            requested_scores=self.requested_scores,
            budget=self.budget,
        )

    @property
    def kept_scores(self) -> KeptScores:
        """Which labels' scores are stored."""
        return self.requested_scores or KeptScores.default(self.most_labels)

    @property
    def requested_scores(self) -> KeptScores | None:
        """The scores that are asked for; None without a request. A calibration needs all."""
        return self.spec.keep_scores or (KEEP_ALL if self.spec.calibrate else None)

    @property
    def most_labels(self) -> int:
        """The largest number of labels among the queries."""
        data = self.task.data
        return max((len(row.choices or data.labels) for row in data.test), default=0)


def _priors(spec: RunSpec, data: TaskData) -> dict[str, Mapping[str, float]]:
    """The stated priors by the name of their file. Raises ``UserError``, also for a single label."""
    calibrations = spec.calibrate or ()
    if calibrations and len(data.labels) < 2:
        raise UserError(
            f"--calibrate {calibrations[0]}: task {data.spec.name} has one label, so there is no label bias"
        )
    priors: dict[str, Mapping[str, float]] = {}
    for one in calibrations:
        asked = "test" if one.rows is None else "test and train"
        rows = data.test if one.rows is None else (*data.test, *data.train)
        own = data.spec.labels is not None and data.spec.labels.own is not None
        if differing := [row for row in rows if own and len(row.choices) != len(data.labels)]:
            raise UserError(
                f"--calibrate {one}: needs scores of the same letters for all {asked} rows; task {data.spec.name} has "
                f"{len(data.labels)} letters, row {differing[0].id} has {len(differing[0].choices)}; leave it out"
            )
        if one.prior is not None:
            path = Path(one.prior)
            if path.stem in priors:
                raise UserError(f"--calibrate {one}: another prior is called {path.stem}, too; rename one of the files")
            shares, _ = read_yaml(read_file(path), str(path))
            priors[path.stem] = checked_prior(shares, list(data.labels), str(path))
    return priors


def _able(loader: BackendLoader, model: Model, refused: Mapping[int, str]) -> CombinationCheck:
    """Return a check that refuses patterns that backend or model do not support, and ``refused`` values of k."""

    def check(combination: Combination) -> None:
        check_patterns(loader, [combination.attention])
        check_family(combination.attention, model)
        if combination.k is not None and combination.k in refused:
            raise UserError(refused[combination.k])

    return check


def _k_values(spec: RunSpec, task: TokenizedTask) -> tuple[KValues, Mapping[int, str]]:
    """The values of ``--k`` or ``--per-label``, and the impossible ones with their reasons."""
    if spec.per_label is None:
        return spec.k or KValues(), {}
    drawn, labels = task.pool.drawn(0), task.pool.answers
    refused, numbers = {}, [each * len(task.pool.labels) for each in spec.per_label]
    for each, k in zip(spec.per_label, numbers, strict=True):
        try:
            shots_per_label(each, drawn, labels)
        except ChoiceError as error:
            refused[k] = str(error)
    return KValues(tuple(numbers)), refused
