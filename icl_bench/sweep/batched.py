"""Runs a plan in batches at a server: all cells are submitted first, then followed, and stored when they are ready.

Each step of a cell runs under the cell's lock, and is recorded before the next step (:mod:`icl_bench.results.batches`).
So a run can be killed between any two steps and restarted, and several processes can follow the same cells. No request
is sent twice.

A batch is created in three steps: its token is stored, the batch is created, and its id is stored. If a token has no
id, the batch may exist, so it is looked up in the server's list. Answers are written to the cell's journal before the
batch is removed from its file.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

from icl_bench.backends.interface import Answer, Decoding, Free
from icl_bench.backends.servers.backend import RETRY_SECONDS, AnotherModelError
from icl_bench.backends.servers.batches import Batches, Intent, NotThereError, PassingError, Progress, batches_of
from icl_bench.backends.servers.failures import RowError
from icl_bench.backends.servers.replies import Billed
from icl_bench.errors import CellError, StopRunError
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.batches import BatchRecord, CellBatches
from icl_bench.results.cells import CellSpec
from icl_bench.results.reading import warn
from icl_bench.results.store import OpenCell
from icl_bench.sweep.plan import CellPlan, PlannedGroup
from icl_bench.sweep.runner import Outcome, PredictionMaker, Runner, Timed, served_by
from icl_bench.sweep.scoring_again import score_again
from icl_bench.wording import counted

MOST_ATTEMPTS = 3
"""The number of batches that may return no answer to a request before its cell fails."""

SETTLE_SECONDS = 60.0
"""Seconds after its creation for which a batch may be missing from the server's list."""

QUEUE_SECONDS = 300.0
"""Seconds before a batch is submitted again that the server refused because its queue is full."""

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0
"""Seconds between two polls of the batches. The pause grows while nothing changes."""

_MARGIN = 0.95
"""Fraction of the maximum batch size that is used."""


_Planned = tuple[PlannedGroup, CellPlan]
"""A cell with its group."""


@dataclass
class _Work:
    """The state of a cell: its prompts and its requests."""

    cell: CellPlan
    prompts: PromptSet
    decodings: Sequence[Decoding]
    maker: PredictionMaker
    opened: OpenCell
    outcome: Outcome
    indices: dict[str, int]
    """Test id -> index of its prompt."""
    hashes: dict[str, str]
    """Test id -> hash of its prompt."""
    state: CellBatches

    def counted(self, index: int) -> int:
        """Tokens of a prompt by the local tokenizer."""
        return self.prompts.size(index)

    def decoding(self, index: int) -> Free:
        """How a prompt is answered."""
        decoding = self.decodings[index]
        assert isinstance(decoding, Free), "a server's answers cannot be constrained"
        return decoding

    def keep(self) -> None:
        """Write the batches to their file."""
        self.opened.keep_batches(self.state)


@dataclass
class BatchRunner(Runner):
    """Computes the cells of a plan in batches."""

    settle_seconds: float = SETTLE_SECONDS
    queue_seconds: float = QUEUE_SECONDS
    patience_seconds: float = RETRY_SECONDS
    pauses: tuple[float, float] = (FIRST_PAUSE, LONGEST_PAUSE)
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    _known: set[str] = field(default_factory=set)
    """Ids of all batches of this plan's cells."""
    _begun: set[CellSpec] = field(default_factory=set)
    _polled: dict[str, Progress] = field(default_factory=dict)
    """Progress by batch id, as polled in this round."""
    _under_way: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Completed and total requests of each batch by its token, in this round."""
    _accepted: set[str] = field(default_factory=set)
    """Tokens of the batches that the server is processing."""
    _steps: int = 0
    """The number of steps that changed something."""
    _succeeded: bool = False
    """Whether the server answered in this round and the run can continue."""
    _passing: PassingError | None = None
    """The temporary error of this round, if any."""
    _short: CellError | None = None
    """Why a batch does not fit the budget in this round."""

    def submit(self) -> None:
        """Submit the batches that can be submitted now; :meth:`run` follows them."""
        self.store.prepare()
        self._round(self._cells, Outcome())

    @property
    def _cells(self) -> list[_Planned]:
        return [(group, cell) for group in self.plan.groups for cell in group.runnable]

    def _run_all(self, outcome: Outcome) -> None:
        """Advance all cells in turn until every cell has ended."""
        left = self._cells
        pause = self.pauses[0]
        failing_since: float | None = None
        while True:
            steps = self._steps
            self._polled.clear()
            self._under_way.clear()
            self._succeeded, self._passing, self._short = False, None, None
            left = self._round(left, outcome)
            if not left:
                return
            idle = self._steps == steps
            self._check_budget(idle)
            failing_since = self._check_patience(failing_since)
            requests = list(self._under_way.values())
            self.watcher.following(len(requests), sum(done for done, _ in requests), sum(all_ for _, all_ in requests))
            pause = min(1.5 * pause, self.pauses[1]) if idle else self.pauses[0]
            self.sleep(pause)

    def _round(self, cells: Sequence[_Planned], outcome: Outcome) -> list[_Planned]:
        """Advance each of these cells once. Returns those that have not ended."""
        left: list[_Planned] = []
        unended: set[CellSpec] = set()
        for group, cell in cells:
            # draws that share prompts are adjacent, so that equal prompts are answered once
            waits = bool(cell.same_prompts) and cell.curve_point in unended
            if waits or not self._advance(group, cell, outcome):
                left.append((group, cell))
                unended.add(cell.curve_point)
        return left

    def _check_budget(self, idle: bool) -> None:
        """Raise ``OutOfBudgetError`` if a batch does not fit the budget and no running batch can free any of it."""
        if self._short is not None and idle and not self._under_way:
            raise self._short

    def _check_patience(self, since: float | None) -> float | None:
        """Return when the server began to fail in every round; None if it answers.

        Raises ``StopRunError`` if it has failed for too long.
        """
        if self._succeeded or self._passing is None:
            return None
        now = time.monotonic()
        since = now if since is None else since
        if now - since >= self.patience_seconds:
            raise StopRunError(f"the server kept failing ({self._passing})")
        return since

    def _advance(self, group: PlannedGroup, cell: CellPlan, outcome: Outcome) -> bool:
        """Take the possible steps of a cell. Returns whether it has ended."""
        identity = self.identity(cell)
        outcome.names[identity.name] = identity.spec
        try:
            if not self._is_due(cell):
                return False
            with self.store.claim(identity, cell.queries) as opened:
                if opened is not None:
                    return self._run_cell(group, cell, opened, outcome)
                if not self.store.has(identity):
                    return False  # another process is advancing it
                score_again(self.store, identity, cell.task)
                outcome.kept.append(cell.spec)
                self.watcher.cell_ended(cell, "kept")
                return True
        except PassingError as error:
            self._passing = error
            return False

    def _waits(self, record: BatchRecord) -> bool:
        """Whether a batch must not be created yet. If the clock was set back, the wait is never longer than planned."""
        return 0 < record.not_before - self.now() <= self.queue_seconds

    def _is_due(self, cell: CellPlan) -> bool:
        """Whether a cell has more to do than wait for its batches. Needs no lock."""
        try:
            state = self.store.batches(self.identity(cell))
            if state is None or not state.batches:
                return True
            self._register(state)
            created = [record for record in state.batches if record.id is not None]
            waiting = [record for record in state.batches if record.id is None and self._waits(record)]
            if len(created) + len(waiting) < len(state.batches):
                return True
            ended = [self._progress(record).ended for record in created]
        except CellError:
            return True  # which appears again under the lock
        return any(ended)

    def _begin(self, cell: CellPlan, already: int) -> None:
        """Report a cell that begins, and once, its predictions from earlier runs."""
        self.watcher.cell_started(cell, 0 if cell.spec in self._begun else already)
        self._begun.add(cell.spec)

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
        alone: bool,  # noqa: ARG002  # a server has no packs
    ) -> dict[str, Any] | None:
        """Advance the batches of a cell. See ``Runner._answer``."""
        queries = group.group.queries(cell.spec.k)
        todo = self._copy(todo, queries, cell, maker, opened, outcome)
        state = opened.batches() or CellBatches()
        indices = {row.id: at for at, row in enumerate(queries)}
        work = _Work(cell, prompts, cell.task.decodings(queries), maker, opened, outcome, indices, maker.hashes, state)
        self._register(state)
        self._server.leave_out(state.refused)
        self._server.begin(opened.model)
        queue = deque(state.batches)
        asked = {row for record in state.batches for row in record.rows}
        unanswered = [(queries[at].id, work.hashes[queries[at].id]) for at in todo]
        queue.extend(self._planned(work, [row for row in unanswered if row not in asked]))
        while queue:
            record = queue.popleft()
            if record.id is None:
                self._submit(work, record)
            elif (progress := self._progress_of(work, record)).ended:
                queue.extend(self._read(work, record, progress))
        outcome.notes += [note for note in self._server.counters.notes if note not in outcome.notes]
        return None if state.batches else served_by(self._server)

    @cached_property
    def _batches(self) -> Batches:
        return batches_of(self._server.interface, self._server.connection)

    def _register(self, state: CellBatches) -> None:
        """Register batches that exist or may exist, and reserve their cost."""
        for record in state.batches:
            if record.id is not None:
                self._known.add(record.id)
            purse = self.budget.purse if self.budget else None
            if record.reserved is not None and purse is not None and record.token not in purse.batches:
                purse.batches.add(record.token)
                purse.reserved += record.reserved
            if record.creating is not None:
                self._under_way[record.token] = (0, len(record.rows))

    def _progress(self, record: BatchRecord) -> Progress:
        """Progress of a batch, requested once in a round."""
        assert record.id is not None
        if record.id not in self._polled:
            self._polled[record.id] = self._batches.progress(record.id)
            self._succeeded |= not self._polled[record.id].ended  # else its results are due
        progress = self._polled[record.id]
        if progress.ended:
            self._accepted.discard(record.token)
        else:
            self._accepted.add(record.token)
        self._under_way[record.token] = (progress.done, len(record.rows))
        return progress

    def _progress_of(self, work: _Work, record: BatchRecord) -> Progress:
        """Progress of a batch, uncached. Raises ``CellError`` if the server does not have the batch."""
        try:
            return self._progress(record)
        except NotThereError as error:
            raise CellError(
                f"the server does not have batch {record.id} ({error}); take the key of the account that created it, "
                f"or delete {work.opened.batches_file} to ask its requests again"
            ) from None

    # -- submitting ---------------------------------------------------------------------------------

    def _planned(self, work: _Work, rows: Sequence[tuple[str, str]]) -> list[BatchRecord]:
        """Divide requests into batches within the server's limits, and store them."""
        if not rows:
            return []
        kind = self._batches
        parts: list[list[tuple[str, str]]] = [[]]
        size = 0
        for row, line in zip(rows, self._lines(work, BatchRecord(rows=list(rows))), strict=True):
            size += len(line) + 2
            if len(parts[-1]) >= kind.most_requests or (parts[-1] and size > _MARGIN * kind.most_bytes):
                parts.append([])
                size = len(line) + 2
            parts[-1].append(row)
        records = [BatchRecord(rows=part) for part in parts]
        work.state.batches += records
        work.keep()
        return records

    def _lines(self, work: _Work, record: BatchRecord) -> list[bytes]:
        """The requests of a batch in the server's format."""
        todo = [work.indices[test_id] for test_id, _ in record.rows]
        bodies = self._server.bodies(work.prompts, todo, work.decodings, bare=record.bare)
        record.sent = self._server.own_arguments(bodies[0])
        return [self._batches.line(record.name(row), body) for row, body in zip(record.rows, bodies, strict=True)]

    def _submit(self, work: _Work, record: BatchRecord) -> None:
        """Create a batch unless it exists, may exist, must wait or exceeds the budget."""
        if record.creating is not None:
            found = self._batches.find(_intent(record), self._known - {record.id})
            self._succeeded = True
            if found.id is not None:
                self._created(work, record, found.id)
                return
            if not found.is_sure or abs(self.now() - record.creating) < self.settle_seconds:
                return
        # if its prompt has changed since, the request goes into another batch
        rows = [(test_id, prompt) for test_id, prompt in record.rows if work.hashes.get(test_id) == prompt]
        if not rows:
            self._remove(work, record)
            return
        if rows != record.rows or (record.file is not None and self._first_sent(work, record) != record.sent):
            record = self._replaced(work, record, rows)
        if self._waits(record) or not self._is_paid(work, record):
            return
        lines = self._lines(work, record)
        if record.file is None:
            record.file = self._batches.upload(record.token, lines)
        if record.creating is None:
            record.after = self._batches.newest()
        record.creating = self.now()
        work.keep()
        try:
            created = self._batches.create(_intent(record), lines)
        except PassingError as error:
            if error.nothing_done:
                record.creating = None
                work.keep()
            raise
        except CellError:
            self._remove(work, record)
            raise
        self._created(work, record, created)

    def _first_sent(self, work: _Work, record: BatchRecord) -> list[str]:
        """The program's own arguments that the requests of a batch would have now."""
        first = record.model_copy(update={"rows": record.rows[:1]})
        self._lines(work, first)
        return first.sent

    def _replaced(self, work: _Work, record: BatchRecord, rows: Sequence[tuple[str, str]]) -> BatchRecord:
        """Replace a batch that does not exist: its file, if uploaded, has other requests than these rows now."""
        kept = {"attempt": record.attempt, "bare": record.bare, "not_before": record.not_before}
        fresh = BatchRecord(rows=list(rows), **kept)
        self._remove(work, record, fresh)
        return fresh

    def _created(self, work: _Work, record: BatchRecord, batch: str) -> None:
        record.id = batch
        self._known.add(batch)
        self._under_way[record.token] = (0, len(record.rows))
        self._succeeded = True
        self._steps += 1
        work.keep()

    def _is_paid(self, work: _Work, record: BatchRecord) -> bool:
        """Reserve the maximum cost of a batch. Returns whether it fits the budget."""
        if self.budget is None or record.reserved is not None:
            return True
        each = []
        for test_id, _ in record.rows:
            index = work.indices[test_id]
            each.append(self._server.most(work.counted(index), work.decoding(index), bare=record.bare))
        reserved = self.budget.reserve_all(each)
        if reserved is None:
            self._short = self.budget.passed("batch", sum(self.budget.most(*one) for one in each))
            return False
        record.reserved = reserved
        self.budget.purse.batches.add(record.token)
        return True

    def _remove(self, work: _Work, record: BatchRecord, *more: BatchRecord) -> None:
        """Remove a batch that is read or does not exist from the cell's file, and add further batches."""
        purse = self.budget.purse if self.budget else None
        if record.reserved is not None and purse is not None and record.token in purse.batches:
            purse.reserved = max(purse.reserved - record.reserved, 0.0)
            purse.batches.discard(record.token)
        work.state.batches.remove(record)
        work.state.batches += more
        work.state.refused = self._server.refused
        self._under_way.pop(record.token, None)
        self._steps += 1
        work.keep()

    # -- reading ------------------------------------------------------------------------------------

    def _read(self, work: _Work, record: BatchRecord, progress: Progress) -> list[BatchRecord]:
        """Read a batch that has ended. Returns the batches of the requests to repeat."""
        assert record.id is not None
        if progress.failure is not None:
            return self._refused(work, record, progress)
        results = self._batches.results(record.id)
        self._succeeded = True
        share = (record.reserved or 0.0) / len(record.rows)
        again: dict[tuple[int, bool], list[tuple[str, str]]] = {}
        answers: list[Answer] = []
        problem: CellError | None = None
        reason, stale = "", 0

        def bill(tokens: int, billed: Billed) -> None:
            if self.budget is not None:
                self.budget.settle(share, tokens, billed)
                record.reserved = record.reserved and max(record.reserved - share, 0.0)

        for number, row in enumerate(record.rows):
            test_id, prompt = row
            content = results.of(record.name(row), record.numbered_name(number))
            if work.hashes.get(test_id) != prompt:
                stale += 1
                if not isinstance(content, RowError):
                    bill(0, Billed())
                continue
            if test_id in work.opened.done:
                continue  # the run was killed after it had written the journal
            index = work.indices[test_id]
            decoding, tokens = work.decoding(index), work.counted(index)
            try:
                reply = self._server.batch_reply(
                    index, content, decoding, tokens, partial(bill, tokens), bare=record.bare, sent=record.sent
                )
            except AnotherModelError:
                raise  # the answers are valid if the user allows the change
            except CellError as error:
                problem = problem or error
                continue
            if isinstance(reply, Answer):
                answers.append(reply)
                continue
            reason = reply.reason
            again.setdefault((record.attempt + reply.is_failure, record.bare or reply.bare), []).append(row)
        if stale:
            where = work.opened.batches_file
            warn(f"{where}: {counted(stale, 'answer')} of a batch had other prompts than now; asked again")
        self._journal(work, answers)
        failed = [row for (attempt, _), rows in again.items() if attempt > MOST_ATTEMPTS for row in rows]
        if failed and problem is None:
            count = counted(len(failed), "request")
            problem = CellError(f"the server failed to answer {count} in {MOST_ATTEMPTS} batches ({reason})")
        more = []
        if problem is None:
            more = [BatchRecord(rows=rows, attempt=attempt, bare=bare) for (attempt, bare), rows in again.items()]
        self._remove(work, record, *more)
        if problem is not None:
            raise problem
        return more

    def _journal(self, work: _Work, answers: Sequence[Answer]) -> None:
        """Write answers to the cell's journal."""
        if not answers:
            return
        predictions = [work.maker.make(answer) for answer in answers]
        model = self._server.answering
        work.opened.append(predictions, model=model)
        for answer, prediction in zip(answers, predictions, strict=True):
            self._same_answers.keep(
                work.cell, prediction.test_id, prediction.prompt_hash, Timed((answer,), 0.0, model=model)
            )
        work.outcome.count(predictions)
        computed = sum(one.prompt_tokens - one.cached_tokens for one in predictions)
        self.watcher.predicted(len(predictions), computed)

    def _refused(self, work: _Work, record: BatchRecord, progress: Progress) -> list[BatchRecord]:
        """Plan a batch again that the server refused because its queue is full. Raises ``CellError`` otherwise.

        If no other batch of this run is in the queue, this batch alone is too large and is halved.
        """
        alone, size = not self._accepted, len(record.rows)
        if not progress.queue_is_full or (alone and size == 1):
            self._remove(work, record)
            raise CellError(f"the server refuses the batch ({progress.failure})")
        cuts = [0, size // 2, size] if alone and size > 1 else [0, size]
        wait = self.now() + self.queue_seconds
        more = [
            BatchRecord(rows=record.rows[start:end], attempt=record.attempt, bare=record.bare, not_before=wait)
            for start, end in pairwise(cuts)
        ]
        self._remove(work, record, *more)
        return more


def _intent(record: BatchRecord) -> Intent:
    return Intent(record.token, len(record.rows), record.file, record.after)
