"""Runs a plan: computes or resumes its cells one after another, and stores the predictions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.backends.background import Together
from icl_bench.backends.interface import Answer, Backend, Decoding
from icl_bench.backends.servers.backend import ServerBackend
from icl_bench.backends.servers.budget import Budget
from icl_bench.backends.servers.cut_prompts import CutPrompts
from icl_bench.errors import CellError, StopRunError, UserError
from icl_bench.models.architecture import Architecture
from icl_bench.models.trained import TrainingRecord
from icl_bench.prompts.encoding import PromptSet
from icl_bench.prompts.written_labels import label_in
from icl_bench.results.cells import FINISHED, JOURNAL, SCORES, CellSpec, Identity, Prediction
from icl_bench.results.label_scores import KEEP_ALL, KeptScores, as_line, of_line
from icl_bench.results.reading import read_rows
from icl_bench.results.store import OpenCell, Store
from icl_bench.results.stored_meta import TrainingMeta
from icl_bench.sweep.compute_cost import PromptLayout, cost_of
from icl_bench.sweep.facts import Identities, cell_meta
from icl_bench.sweep.label_queries import ModelLabels
from icl_bench.sweep.plan import CellPlan, Plan, PlannedGroup
from icl_bench.sweep.prompt_group import PromptGroup
from icl_bench.sweep.samples import asked, majority, singles
from icl_bench.sweep.scoring_again import score_again
from icl_bench.sweep.thinking import NO_MARK
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.answers import SlowPatternError, extracted
from icl_bench.tasks.examples import Example
from icl_bench.wording import counted

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLES = 3
"""Number of invalid answers that are kept as samples."""

POLL_SECONDS = 2.0
"""Interval at which an idle process checks whether others have finished their cells."""


class Watcher:
    """Progress callbacks; the default does nothing."""

    def cell_started(self, cell: CellPlan, already: int) -> None:
        """A cell begins; ``already`` predictions come from its journal."""

    def backend_loading(self) -> None:
        """The backend starts to load, which takes a while."""

    def backend_ready(self) -> None:
        """The backend is loaded."""

    def predicted(self, predictions: int, computed_tokens: int) -> None:
        """A pack was answered; ``computed_tokens`` prompt tokens were computed for it."""

    def scored(self, cell: CellPlan, measure: str, scores: Sequence[float]) -> None:
        """A cell was computed; ``scores`` are its answers' scores (0 to 1) by the task's first measure."""

    def cell_ended(self, cell: CellPlan, outcome: str) -> None:
        """A cell ended: ``done``, ``kept`` (finished before) or the reason of its failure."""

    def following(self, batches: int, done: int, requests: int) -> None:
        """Batches are being processed at a server; ``done`` of their requests are complete."""

    def waiting(self, cells: int) -> None:
        """Only cells that other processes compute remain."""


@dataclass
class Tally:
    """Answers and their tokens."""

    answers: int = 0
    answer_tokens: int = 0
    """Tokens of answers and of thoughts before them."""
    cached_tokens: int = 0
    """Prompt tokens that were cached or shared."""
    prompt_tokens: int = 0
    local_prompt_tokens: int = 0
    """The same by the local tokenizer."""

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)


class Answered(NamedTuple):
    """The stored answers of a cell."""

    names: set[str]
    """Ids of the answered test rows."""
    tally: Tally


@dataclass
class Outcome:
    """The result of a run: its cells by outcome, and token counts."""

    computed: list[CellSpec] = field(default_factory=list)
    kept: list[CellSpec] = field(default_factory=list)
    """Cells finished before this run, or by another process."""
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons by file name, because a cell and the queries that calibrate it have one ``CellSpec``."""
    stopped: list[str] = field(default_factory=list)
    """Why runs ended early, and what remains."""
    spent: float | None = None
    """Money spent by requests of this run, by ``--price``."""
    names: dict[str, CellSpec] = field(default_factory=dict)
    """All these cells by file name, without suffixes."""
    unfinished: set[str] = field(default_factory=set)
    """Names of cells that were opened and have not ended."""
    prompt_tokens: int = 0
    """Prompt tokens of this run's predictions."""
    notes: list[str] = field(default_factory=list)
    """Notes of the backend for the user, each once."""
    answers: int = 0
    """Predictions of this run."""
    asked: Tally = field(default_factory=Tally)
    """Those that were not copied from an earlier draw."""
    invalid: int = 0
    """Predictions that are not a label, or from which no answer can be extracted."""
    samples: list[str] = field(default_factory=list)
    """A few of these answers, or the reasons why there is no answer."""
    thoughts: int = 0
    """Predictions with a thought before the answer."""
    cut_thoughts: int = 0
    """Predictions whose thought was truncated at its limit."""
    unmarked: int = 0
    """Predictions without an answer, because the server's text has no end mark."""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were cached, shared or copied."""
        return self.asked.cached_tokens + self.prompt_tokens - self.asked.prompt_tokens

    @property
    def answer_tokens(self) -> int:
        """Tokens of answers and of thoughts before them."""
        return self.asked.answer_tokens

    @property
    def has_results(self) -> bool:
        """Whether a cell has ended and results can be shown."""
        return bool(self.computed or self.kept or self.failed)

    def of(self, cells: Collection[str]) -> Outcome:
        """Only these cells, by file name, without token counts."""
        names = {name: spec for name, spec in self.names.items() if name in cells}
        specs = set(names.values())
        return Outcome(
            [spec for spec in self.computed if spec in specs],
            [spec for spec in self.kept if spec in specs],
            {name: reason for name, reason in self.failed.items() if name in names},
            list(self.stopped),
            self.spent,
            names,
        )

    def check(self, store: Store) -> None:
        """Add finished cells whose files were removed since to the reasons why the run is incomplete.

        Raises ``UserError`` if the storage fails.
        """
        done, others = {*self.computed, *self.kept}, self.unfinished | self.failed.keys()
        if gone := store.gone([name for name, spec in self.names.items() if spec in done and name not in others]):
            where = store.storage.where()
            removed = f"results folder {where}: {counted(len(gone), 'finished cell')} removed during the run"
            self.stopped.append(
                f"{removed} (the first is {gone[0]}{FINISHED}); run it again to compute what is missing"
            )

    def count(self, predictions: Sequence[Prediction], copied: bool = False) -> None:
        """Add the tokens of these predictions. ``copied`` predictions needed no computation."""
        self.prompt_tokens += sum(p.prompt_tokens for p in predictions)
        self.answers += len(predictions)
        if not copied:
            self.asked.add(_tally(map(vars, predictions)))
        invalid = [p.reason or p.text or p.prediction for p in predictions if not p.valid]
        self.invalid += len(invalid)
        self.samples = list(dict.fromkeys([*self.samples, *invalid]))[:SAMPLES]
        self.thoughts += sum(p.thought is not None for p in predictions)
        self.cut_thoughts += sum(bool(p.thought_truncated) for p in predictions)
        self.unmarked += sum((p.reason or "").startswith(NO_MARK) for p in predictions)

    @property
    def notes_on_thoughts(self) -> list[str]:
        """Notes on truncated thoughts and on texts without an end mark."""
        of, notes = f"of {counted(self.thoughts, 'thought')}", []
        if cut := self.cut_thoughts:
            notes.append(f"{cut:,} {of} {'was' if cut == 1 else 'were'} cut at the limit of tokens (thought_truncated)")
        if self.unmarked:
            notes.append(f"{self.unmarked:,} {of} ended without the end mark: these answers are invalid")
        return notes

    def add(self, other: Outcome) -> None:
        """Add another outcome to this one."""
        self.computed += other.computed
        self.kept += other.kept
        self.failed |= other.failed
        self.stopped += other.stopped
        if other.spent is not None:
            self.spent = (self.spent or 0.0) + other.spent
        self.names |= other.names
        self.unfinished |= other.unfinished
        self.prompt_tokens += other.prompt_tokens
        self.answers += other.answers
        self.asked.add(other.asked)
        self.invalid += other.invalid
        self.samples = list(dict.fromkeys([*self.samples, *other.samples]))[:SAMPLES]
        self.thoughts += other.thoughts
        self.cut_thoughts += other.cut_thoughts
        self.unmarked += other.unmarked
        self.notes += [note for note in other.notes if note not in self.notes]


class Timed(NamedTuple):
    """The answer or all samples to a prompt, with their time."""

    answers: tuple[Answer, ...]
    seconds: float
    prefix_seconds: float | None = None
    """The part of ``seconds`` for shared tokens; None if unknown."""
    model: str | None = None
    """The models that a server reported."""


@dataclass
class SameAnswers:
    """Answers of this run to prompts that later draws of the same point repeat.

    Retrieval selects the same demonstrations in every draw, except for ties.
    """

    points: frozenset[CellSpec]
    """The points with such prompts (:attr:`CellPlan.curve_point`)."""
    _answers: dict[tuple[CellSpec, str, str], Timed] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> SameAnswers:
        """The repeated prompts of a plan."""
        return cls(frozenset(cell.curve_point for cell in plan.cells if cell.same_prompts))

    def find(self, cell: CellPlan, row: str, prompt: str) -> Timed | None:
        """The answers to a test example's prompt, by its hash."""
        return self._answers.get((cell.curve_point, row, prompt))

    def keep(self, cell: CellPlan, row: str, prompt: str, found: Timed) -> None:
        """Keep the answer or all samples to a prompt, if a later draw may have the same prompt."""
        if cell.curve_point in self.points:
            self._answers[cell.curve_point, row, prompt] = found


@dataclass
class Runner:
    """Computes the cells of one plan with one backend."""

    plan: Plan
    store: Store
    identity_of_backend: Mapping[str, str]
    """The backend's settings that decide answers, known before loading."""
    load: Callable[[], Backend]
    """Loads the backend when the first cell needs it."""
    watcher: Watcher = field(default_factory=Watcher)
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that compute predictions. They are provenance, not facts."""
    architecture: Callable[[], Architecture] | None = None
    """Returns the model's architecture; None if its files are not available."""
    skips_unread: bool = False
    """Whether the backend skips what is not read (``BackendLoader.skips_unread``)."""
    trained: TrainingRecord | None = None
    """The training of the model by this program; None without one."""
    keep_scores: KeptScores = KEEP_ALL
    """Which labels' scores are stored, if every label is scored."""
    requested_scores: KeptScores | None = None
    """The scores without which stored answers are not kept."""
    budget: Budget | None = None
    """The budget for servers."""
    _cut_prompts: CutPrompts = field(default_factory=CutPrompts)
    """The server's counts of prompts, also those of stored answers."""
    _backend: Backend | None = None
    _refusal: str | None = None
    """Why the backend did not load. Loading is not retried."""
    _ended: dict[str, str | None] = field(default_factory=dict)
    """The names of the cells that this run has ended, with the reason of a failure or None."""
    _labels: dict[str, dict[str, str]] = field(default_factory=dict)
    """The model's labels of pool rows by row id, by the name of the labelling cell."""
    _labelled: ModelLabels = field(default_factory=ModelLabels)

    @cached_property
    def _same_answers(self) -> SameAnswers:
        return SameAnswers.of(self.plan)

    @cached_property
    def identity(self) -> Identities:
        """The identity of a cell."""
        return Identities(self.identity_of_backend)

    def run(self) -> Outcome:
        """Compute every cell that is not done, sharing the work with other processes.

        A process prefers groups that no other process computes, so that prefixes are computed once. Then it computes
        cells of other groups. When only cells of other processes remain, it waits, and takes over cells whose process
        died.
        """
        self.store.prepare()
        outcome = Outcome()
        before = self.budget.purse.spent if self.budget else 0.0
        try:
            self._run_all(outcome)
        except StopRunError as error:
            cells = sum(len(group.runnable) for group in self.plan.groups)
            left = cells - len(outcome.computed) - len(outcome.kept) - len(outcome.failed)
            outcome.stopped.append(f"{error}; {counted(left, 'cell')} left, run it again to continue")
        outcome.check(self.store)
        if self.budget is not None:
            outcome.spent = self.budget.purse.spent - before
        outcome.notes += [note for metric in self.plan.task.metrics for note in metric.notes_on_answers()]
        outcome.notes += outcome.notes_on_thoughts
        outcome.notes += [self._labelled.note] * bool(self._labels)
        return outcome

    def ask(self, group: PlannedGroup, cell: CellPlan, rows: Collection[str], outcome: Outcome) -> dict[str, float]:
        """Answer some rows of a cell, selected by id. Returns their scores (0 to 1) by the task's first measure.

        Answers stay in the cell's journal, so that neither another part nor a run of the whole cell computes them
        again. Once all rows are answered, the cell's file is written. Only the requested rows are computed, not the
        packs in which a run computes them, so in 16 bits few answers may differ from those of a run by rounding. Raises
        ``CellError`` if the cell cannot be computed, another process computes it, or its answers have no scores.
        """
        if group.labels is not None:
            raise CellError("the model's labels for its demonstrations are unknown; run the whole cell")
        identity = self.identity(cell)
        outcome.names[identity.name] = identity.spec
        with self.store.claim(identity, cell.queries) as opened:
            if opened is not None:
                outcome.unfinished.add(identity.name)
                if self._compute(group, cell, opened, outcome, frozenset(rows)):
                    outcome.computed.append(cell.spec)
                    outcome.unfinished.discard(identity.name)
                found = [opened.done[name] for name in rows]
                scored = cell.task.first_scores(found, cell.task.scores(found))
                if scored is None:
                    raise CellError("its single answers have no scores")
                return dict(zip(rows, scored[1], strict=True))
        if not self.store.has(identity):
            raise CellError("another process computes it")
        score_again(self.store, identity, cell.task)
        if cell.spec not in outcome.kept:
            outcome.kept.append(cell.spec)
        table = read_rows(self.store.storage, f"{identity.name}{FINISHED}")
        column = cell.task.first_column
        if column not in table.column_names:
            raise CellError("its single answers have no scores")
        stored = dict(zip(table["test_id"].to_pylist(), table[column].to_pylist(), strict=True))
        return {name: float(stored[name]) for name in rows}

    def stored(self, cell: CellPlan) -> dict[str, np.ndarray | None]:
        """The answered rows of a cell by id, with the scores of all labels; None if not all scores are stored.

        Raises ``CellError`` if another process computes the cell.
        """
        found = self._stored(cell)
        if not isinstance(found, Mapping):
            names = found["test_id"].to_pylist()
            if SCORES not in found.column_names:
                return dict.fromkeys(names)
            rows = zip(names, found[SCORES].to_pylist(), strict=True)
            return {name: None if row is None else _whole(np.array(row)) for name, row in rows}
        lines = {name: row.label_scores for name, row in found.items()}
        return {name: None if line is None else _whole(of_line(line)) for name, line in lines.items()}

    def answered(self, cell: CellPlan) -> Answered:
        """The answered rows of a cell and their tokens. Raises ``CellError`` if another process computes the cell."""
        found = self._stored(cell)
        if isinstance(found, Mapping):
            return Answered(set(found), _tally(map(vars, found.values())))
        named = ("answer_tokens", "thought_tokens", "cached_tokens", "prompt_tokens", "local_prompt_tokens")
        rows = found.select([name for name in named if name in found.column_names]).to_pylist()
        return Answered(set(found["test_id"].to_pylist()), _tally(rows))

    def _stored(self, cell: CellPlan) -> Mapping[str, Prediction] | pa.Table:
        """The answered rows of an unfinished cell by id, or the table of a finished one.

        Raises ``CellError`` if another process computes the cell.
        """
        identity = self.identity(cell)
        with self.store.claim(identity, cell.queries) as opened:
            if opened is not None:
                return opened.done
        if not self.store.has(identity):
            raise CellError("another process computes it")
        return read_rows(self.store.storage, f"{identity.name}{FINISHED}")

    def at_a_time(self) -> int:
        """How many requests to its server may run at a time. Raises ``CellError``."""
        return self._server.concurrency

    def beside(self, together: Together) -> Runner:
        """A runner of the same cells at the same server, for one of several threads. Raises ``CellError``."""
        _ = self._same_answers, self.identity, self._architecture  # shared
        other = copy(self)
        other._backend = self._server.beside(together)
        return other

    @property
    def is_loaded(self) -> bool:
        """Whether the backend is loaded."""
        return self._backend is not None

    def release(self) -> None:
        """Release the loaded model. It is loaded again on demand."""
        self._backend = None

    def _run_all(self, outcome: Outcome) -> None:
        """Compute cells until all are done."""
        open_groups = [(group, list(group.runnable)) for group in self.plan.groups]
        mine_first = os.getpid() % 7919  # processes start with different groups
        apart = True
        while open_groups := [(g, cells) for g, cells in open_groups if cells]:
            before = sum(len(cells) for _, cells in open_groups)
            several = len(open_groups) > 1 and self.store.journals.others_at_work()
            start = mine_first % len(open_groups) if several else 0
            for group, cells in open_groups[start:] + open_groups[:start]:
                cells[:] = self._run_group(group, cells, outcome, apart)
            left = sum(len(cells) for _, cells in open_groups)
            apart, stuck = left < before, left == before and not apart
            if left and stuck:
                self.watcher.waiting(left)
                time.sleep(POLL_SECONDS)

    def _run_group(
        self, group: PlannedGroup, cells: Sequence[CellPlan], outcome: Outcome, apart: bool
    ) -> list[CellPlan]:
        """Run the cells of one group. Returns the cells that are left.

        These are the cells that another process computes, with ``apart`` also all cells after one, and cells whose
        files turn out to be damaged before the model's labels are read.
        """
        busy: list[CellPlan] = []
        missing: str | None = None
        labelled = group.labels is None
        if group.labels is not None and any(not self.store.has(self.identity(cell)) for cell in cells):
            left = self._run_group(group.labels, group.labels.runnable, outcome, apart)
            if left:
                return list(cells)
            missing, labelled = self._take_labels(group, group.labels), True
        for i, cell in enumerate(cells):
            identity = self.identity(cell)
            if identity.name in self._ended:
                continue
            outcome.names[identity.name] = identity.spec
            with self.store.claim(identity, cell.queries) as opened:
                if opened is None:
                    if self.store.has(identity):
                        reason = lacks_scores(self.store, identity, self.requested_scores)
                        self._ended[identity.name] = reason
                        if reason is None:
                            score_again(self.store, identity, cell.task)
                            outcome.kept.append(cell.spec)
                        else:
                            outcome.failed[identity.name] = reason
                        self.watcher.cell_ended(cell, reason or "kept")
                    elif apart:
                        return list(cells[i:])
                    else:
                        busy.append(cell)
                    continue
                if not labelled:
                    busy.append(cell)  # its file is damaged or gone; the next round takes the labels first
                    continue
                self._run_cell(group, cell, opened, outcome, missing)
        return busy

    def _take_labels(self, group: PlannedGroup, asked: PlannedGroup) -> str | None:
        """Set a group's demonstrations to the labels that the model predicted. Returns why labels are missing."""
        labels: dict[str, str] = {}
        try:
            for cell in asked.runnable:
                identity = self.identity(cell)
                if (reason := self._ended.get(identity.name)) is not None:
                    raise CellError(reason)
                if identity.name not in self._labels:
                    self._labels[identity.name] = self._labelled.read(self.store, identity, cell.task, cell.queries)
                labels |= self._labels[identity.name]
        except CellError as error:
            return f"the model's labels of its demonstrations are missing: {error}"
        group.group.task.take_labels(group.group.draw, labels)
        group.group.forget()
        return None

    def _run_cell(
        self, group: PlannedGroup, cell: CellPlan, opened: OpenCell, outcome: Outcome, missing: str | None = None
    ) -> bool:
        """Compute a cell, unless ``missing`` gives a reason not to. Returns whether it has ended. A cell in batches
        ends with its last batch.
        """
        name = opened.identity.name
        outcome.unfinished.add(name)
        try:
            if missing is not None:
                raise CellError(missing)
            ended = self._compute(group, cell, opened, outcome)
        except StopRunError:
            raise
        except CellError as error:
            self._ended[name] = str(error)
            opened.fail(str(error))
            outcome.failed[name] = str(error)
            self.watcher.cell_ended(cell, str(error))
            return True
        if ended:
            outcome.unfinished.discard(name)
            self._ended[name] = None
            outcome.computed.append(cell.spec)
            self.watcher.cell_ended(cell, "done")
        return ended

    def _compute(
        self,
        group: PlannedGroup,
        cell: CellPlan,
        opened: OpenCell,
        outcome: Outcome,
        only: Collection[str] | None = None,
    ) -> bool:
        """Compute a cell's missing predictions, restricted to the rows ``only``. Returns whether it is complete."""
        task = cell.task
        queries = group.group.queries(cell.spec.k)
        try:
            ((_, prompts),) = group.group.prompts([cell.spec.k])
        except UserError as error:  # of a text that the model generated
            raise CellError(str(error)) from None
        if group.labels is not None:  # it was planned with different labels
            cell = replace(cell, prompt_layout=PromptLayout.of(prompts, cell.pattern))
        if prompts.longest + task.written_tokens > task.model.context_tokens:
            raise CellError(f"needs {prompts.longest + task.written_tokens:,} tokens")
        maker = PredictionMaker(task, group.group, cell.spec.k, prompts, self.keep_scores)
        opened.keep(maker.hashes, maker.golds)
        self._drop_truncated(opened)
        if (reason := lacks_scores(self.store, opened.identity, self.requested_scores, opened)) is not None:
            raise CellError(reason)
        self._begin(cell, len(opened.done))
        todo = [i for i, row in enumerate(queries) if row.id not in opened.done and (only is None or row.id in only)]
        measured: dict[str, Any] = {}
        if todo:
            try:
                answered = self._answer(prompts, todo, group, cell, maker, opened, outcome, alone=only is not None)
            except CellError:
                self._drop_truncated(opened)  # answers that came before truncation was noticed
                raise
            if answered is None:
                return False
            measured = answered
        if any(row.id not in opened.done for row in queries):
            return False
        if opened.model is not None:
            measured = measured | {"served": measured.get("served", {}) | {"model": opened.model}}
        meta = cell_meta(
            opened.identity,
            task,
            maker.shown,
            self.versions,
            demonstration_ids=maker.shared_ids,
            shown_answers=maker.shown_answers,
            prefix_tokens=len(prompts.prefix),
            architecture=self._architecture,
            training=self._training(cell),
            compute=self._cost(cell, queries, [opened.done[row.id] for row in queries]),
            batched=True if opened.batches() is not None else None,
            **measured,
        )
        for pattern, reason in maker.slow.items():
            if not any(pattern in note for note in outcome.notes):
                outcome.notes.append(f"answers are invalid because {reason}")
        names = [row.id for row in queries]
        if task.samples is not None:
            opened.done |= {name: task.with_sample_scores(opened.done[name]) for name in names}
        rows = [opened.done[name] for name in names]
        scores = task.scores(rows)
        opened.finish(names, meta, scores)
        if task.asked is None and (first := task.first_scores(rows, scores)) is not None:
            self.watcher.scored(cell, *first)
        return True

    def _drop_truncated(self, opened: OpenCell) -> None:
        """Drop the stored answers to prompts that the server truncated."""
        counts = {name: found for name, row in opened.done.items() if (found := _counts(row)) is not None}
        for local, said in counts.values():
            self._cut_prompts.recall(local, said)
        opened.discard([name for name, (_, said) in counts.items() if self._cut_prompts.suspects(said)])

    def _begin(self, cell: CellPlan, already: int) -> None:
        """Report that a cell begins, with the number of existing predictions."""
        self.watcher.cell_started(cell, already)

    def _answer(
        self,
        prompts: PromptSet,
        todo: Sequence[int],
        group: PlannedGroup,
        cell: CellPlan,
        maker: PredictionMaker,
        opened: OpenCell,
        outcome: Outcome,
        *,
        alone: bool,
    ) -> dict[str, Any] | None:
        """Answer the remaining queries; if ``alone``, without the others of their packs.

        Returns measurements other than seconds; None if batches are still running. Raises ``CellError`` if the backend
        leaves out an answer.
        """
        if (batches := opened.batches()) is not None and batches.batches:
            file = opened.batches_file
            raise CellError(f"has an unfinished batch at the server; add --batch to continue it, or delete {file}")
        queries, same = group.group.queries(cell.spec.k), self._same_answers
        todo = self._copy(todo, queries, cell, maker, opened, outcome)
        if not todo:
            return {}
        backend, decodings = self._loaded(), cell.task.decodings(queries)
        if isinstance(backend, ServerBackend):
            backend.begin(opened.model)
        counters, reports = backend.counters, backend.peak_prefix_bytes is not None
        start, tokens, before = counters.seconds, counters.prompt_tokens, counters.prefix_seconds
        answer = backend.answer if (thinking := cell.task.thinking) is None else partial(thinking.answer, backend)

        def ask(those: PromptSet, at: Sequence[int], how: Sequence[Decoding]) -> Iterator[list[Answer]]:
            if not alone:
                return answer(those, at, how, group.reserve, cell.pattern)
            packs = answer(those.at(at), range(len(at)), [how[i] for i in at], group.reserve, cell.pattern)
            return ([replace(one, index=at[one.index]) for one in pack] for pack in packs)

        for pack in asked(ask, prompts, todo, decodings, cell.task.samples, [row.id for row in queries]):
            seconds, prefix = counters.seconds - start, counters.prefix_seconds - before
            predictions = [maker.make(*answers) for answers in pack]
            model = backend.answering if isinstance(backend, ServerBackend) else None
            opened.append(predictions, seconds, prefix if reports else None, model)
            for answers, prediction in zip(pack, predictions, strict=True):
                each = seconds / len(pack), prefix / len(pack) if reports else None
                same.keep(cell, prediction.test_id, prediction.prompt_hash, Timed(answers, *each, model))
            outcome.count(predictions)
            self.watcher.predicted(len(pack), counters.prompt_tokens - tokens)
            start, tokens, before = counters.seconds, counters.prompt_tokens, counters.prefix_seconds
        if left := sum(queries[index].id not in opened.done for index in todo):
            raise CellError(f"the backend left out {counted(left, 'answer')}")
        outcome.notes += [note for note in counters.notes if note not in outcome.notes]
        if not reports:
            return served_by(backend)
        return {"peak_cache_bytes": backend.peak_prefix_bytes, "packs": dict(counters.packs) or None}

    def _copy(
        self,
        todo: Sequence[int],
        queries: Sequence[Example],
        cell: CellPlan,
        maker: PredictionMaker,
        opened: OpenCell,
        outcome: Outcome,
    ) -> list[int]:
        """Copy answers to prompts of earlier draws. Returns the remaining queries.

        Copies have the original's seconds, so that a query's cost is the cost of computing it.
        """
        hashes, names = maker.hashes, [queries[index].id for index in todo]
        known = [self._same_answers.find(cell, name, hashes[name]) for name in names]
        cut = self._cut_prompts.suspects
        known = [None if one and any(cut(a.prompt_tokens or 0) for a in one.answers) else one for one in known]
        copied = [(index, found) for index, found in zip(todo, known, strict=True) if found is not None]
        if copied:
            predictions = [maker.make(*(replace(a, index=index) for a in found.answers)) for index, found in copied]
            prefix = [found.prefix_seconds for _, found in copied if found.prefix_seconds is not None]
            opened.append(
                predictions,
                sum(found.seconds for _, found in copied),
                sum(prefix) if len(prefix) == len(copied) else None,
                ", ".join(dict.fromkeys(found.model for _, found in copied if found.model)) or None,
            )
            outcome.count(predictions, copied=True)
            self.watcher.predicted(len(predictions), 0)
        return [index for index, found in zip(todo, known, strict=True) if found is None]

    @cached_property
    def _architecture(self) -> Architecture | None:
        return self.architecture() if self.architecture else None

    def _training(self, cell: CellPlan) -> TrainingMeta | None:
        """The training of the model, if a cell's answers depend on it."""
        trained = self.trained
        if trained is None or not (trained.decoder or cell.pattern.reads_vectors):
            return None
        return TrainingMeta(**trained.cost)

    def _cost(
        self, cell: CellPlan, queries: Sequence[Example], answers: Sequence[Prediction]
    ) -> dict[str, float] | None:
        """Operations and cache bytes of a cell by formula, for answers of these lengths, or for all labels if each is
        scored. A query's operations include all its samples.
        """
        dtype, shape = self.identity_of_backend.get("dtype"), self._architecture
        if shape is None or dtype is None:
            return None
        count, rule = cell.samples, cell.task.data.spec.thought
        single = [one for row in answers for one in singles(row, rule.limit if rule else 0)]
        each = [row for row in queries for _ in range(count)]
        works = cell.task.works_of(each, single, shape.vocabulary, skips_unread=self.skips_unread)
        return asdict(cost_of(cell.prompt_layout.repeated(count), shape, works, dtype).times(count))

    @property
    def _server(self) -> ServerBackend:
        backend = self._loaded()
        assert isinstance(backend, ServerBackend), "refused before"
        return backend

    def _loaded(self) -> Backend:
        if self._refusal is not None:
            raise CellError(self._refusal)
        if self._backend is None:
            self.watcher.backend_loading()
            try:
                self._backend = self.load()
                if isinstance(self._backend, ServerBackend):
                    self._backend.cut_prompts = self._cut_prompts
                if self.budget is not None:
                    assert isinstance(self._backend, ServerBackend), "refused before"
                    self._backend.budget = self.budget
            except CellError as error:
                self._refusal = str(error)
                raise
            self.watcher.backend_ready()
            assert self._backend.identity() == dict(self.identity_of_backend), (
                "the loaded backend differs from the planned one"
            )
        return self._backend


def lacks_scores(
    store: Store, identity: Identity, requested: KeptScores | None, unfinished: OpenCell | None = None
) -> str | None:
    """Why stored answers of a cell are not kept: they lack requested scores. None if they have them."""
    if requested is None:
        return None
    if unfinished is not None:
        lines = [row.label_scores for row in unfinished.done.values()]
        name, rows = f"{identity.name}{JOURNAL}", [None if line is None else of_line(line) for line in lines]
    else:
        name = f"{identity.name}{FINISHED}"
        table = read_rows(store.storage, name)
        rows = table[SCORES].to_pylist() if SCORES in table.column_names else [None] * len(table)
    if requested.are_in(rows):
        return None
    return (
        f"{store.storage.where(name)}: lacks label scores that this run needs (--keep-scores {requested}); delete it "
        "and run again, which asks for its answers again, or use another --results"
    )


def served_by(backend: Backend) -> dict[str, Any]:
    """What a server reports, as metadata of a cell; which models answered it is stored with its answers."""
    served = {name: said for name, said in backend.counters.served.items() if name != "model"}
    return {"served": served} if served else {}


class PredictionMaker:
    """Turns a backend's answers into predictions that can be traced to their prompts."""

    def __init__(
        self, task: TokenizedTask, group: PromptGroup, k: int, prompts: PromptSet, keep_scores: KeptScores
    ) -> None:
        self._keep_scores, self._parts, self._tokenizer = keep_scores, task.parts, task.tokenizer
        self._samples, self._form = task.samples, task.answer_form
        self._queries, self._labels = group.queries(k), task.data.labels
        rule = task.data.spec.answer
        self._classes, self._rule = task.data.spec.is_classification, rule if rule and rule.compares else None
        self._prompts, self._hashes = prompts, prompts.hashes()
        train, chosen = task.data.train, group.demonstrations(k)
        shown = np.unique(chosen)
        self.shown = [train[i] for i in shown]
        self.shown_answers: dict[str, str] | None = None
        """Answers that prompts show instead of those in the data, by demonstration id."""
        if task.perturbation.changes_answers:
            perturbed = task.perturbed(group.draw)
            self.shown_answers = {train[i].id: perturbed[i].answer for i in shown}
        self.slow: dict[str, str] = {}
        """Regular expressions that timed out on an answer, with the first message of each."""
        self._read_blocks = None
        if prompts.similar is not None:
            self._read_blocks = [group.pattern.read_blocks(row) for row in prompts.similar]
        self.shared_ids: list[str] | None = None
        self._own_ids: list[tuple[str, ...]] | None = None
        if group.shared:
            self.shared_ids = [train[i].id for i in chosen]
        else:
            self._own_ids = [tuple(train[i].id for i in row) for row in chosen]

    @property
    def hashes(self) -> dict[str, str]:
        """The hash of each query's prompt, by its test id."""
        return {row.id: name for row, name in zip(self._queries, self._hashes, strict=True)}

    @property
    def golds(self) -> dict[str, Sequence[str]]:
        """The right answers of each query, by its test id."""
        return {row.id: row.golds or (row.answer,) for row in self._queries}

    def make(self, *answers: Answer) -> Prediction:
        """The prediction of one answer, or of all its samples."""
        if self._samples is None:
            (answer,) = answers
            return self._single(answer)
        return majority([self._single(answer) for answer in answers], self._form)

    def _single(self, answer: Answer) -> Prediction:
        """The prediction of one answer."""
        row = self._queries[answer.index]
        if answer.raw and not answer.answer_tokens:  # a server that does not report them
            ids = self._tokenizer([answer.raw], add_special_tokens=False)["input_ids"][0]
            answer = replace(answer, answer_tokens=len(ids))
        if self._parts is not None:
            answer = self._parts.of(answer)
        among = row.choices or self._labels
        whole = answer.text if answer.raw is None else answer.raw
        text = among[answer.label] if answer.label is not None else str(answer.text).strip()
        reason, valid, written = answer.reason, True, None if whole is None or whole.strip() == text else whole
        if self._classes and answer.label is None:
            label = label_in(str(answer.text), among) if answer.reason is None else None
            if answer.truncated and label is not None and label_in(str(answer.text), among, cut=True) is None:
                label, reason = None, "the limit of tokens ended the answer, and another label begins alike"
            valid = label is not None
            if label is not None and label != text:
                text, written = label, str(whole)
        elif answer.reason is not None:
            valid = False
        elif self._rule is not None:
            written = str(whole)
            try:
                answer_text = extracted(self._rule, str(answer.text))
            except SlowPatternError as error:
                answer_text, reason = None, str(error)
                self.slow.setdefault(error.pattern, reason)
            text, valid = answer_text or "", answer_text is not None
        golds = row.golds or (row.answer,)
        own = self._own_ids[answer.index] if self._own_ids is not None else None
        scores = self._keep_scores.of(answer.scores)
        local, thought = self._prompts.size(answer.index), answer.thought
        return Prediction(
            test_id=row.id,
            gold=golds[0],
            prediction=text,
            correct=valid and text == row.answer if self._classes else None,
            valid=valid,
            prompt_tokens=local if answer.prompt_tokens is None else answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            answer_tokens=answer.answer_tokens,
            prompt_hash=self._hashes[answer.index],
            probability=answer.probability,
            margin=answer.margin,
            label_mass=answer.label_mass,
            label_scores=None if scores is None else as_line(scores),
            demonstration_ids=own,
            truncated=None if self._classes else answer.truncated,
            text=written,
            golds=golds if len(golds) > 1 else None,
            read_blocks=self._read_blocks[answer.index] if self._read_blocks else None,
            reason=reason,
            local_prompt_tokens=None if answer.prompt_tokens is None else local,
            cache_write_tokens=answer.written_tokens,
            reasoning_tokens=answer.reasoning_tokens,
            thought=None if thought is None else thought.text,
            thought_tokens=None if thought is None else thought.tokens,
            thought_truncated=None if thought is None else thought.truncated,
        )


def _tally(rows: Iterable[Mapping[str, Any]]) -> Tally:
    """The tally of predictions by column."""
    tally = Tally()
    for row in rows:
        prompt, local = row["prompt_tokens"], row.get("local_prompt_tokens")
        written = row["answer_tokens"] + (row.get("thought_tokens") or 0)
        tally.add(Tally(1, written, row["cached_tokens"], prompt, prompt if local is None else local))
    return tally


def _counts(row: Prediction) -> tuple[int, int] | None:
    """The tokens of a generated answer's prompt by the local tokenizer and by the server; None if one is unknown."""
    if row.local_prompt_tokens is None or row.probability is not None:  # all labels are scored in several requests
        return None
    samples = len(row.sample_tokens or (0,))
    return row.local_prompt_tokens // samples, row.prompt_tokens // samples


def _whole(scores: np.ndarray) -> np.ndarray | None:
    """The scores of all labels ``(labels,)``; None if some were not kept."""
    return None if np.isnan(scores).any() else scores
