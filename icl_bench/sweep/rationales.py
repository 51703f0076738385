"""Reinforced ICL: rationales that a model writes for pool rows, kept if their answer is right.

Agarwal et al. 2024, section 3.1 (https://arxiv.org/abs/2404.11018). They are written by a run of one cell, whose
queries are pool rows instead of test rows. The cell is stored and resumed like any other, in a folder next to the task
file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.demonstrations.random import draw
from icl_bench.errors import UserError
from icl_bench.models.tokenizers import special_texts
from icl_bench.registry import METRICS
from icl_bench.results.cells import short_hash
from icl_bench.results.facts import FOR_RATIONALES
from icl_bench.results.reading import read_some
from icl_bench.sweep.k_values import KValues
from icl_bench.sweep.options import RunOptions
from icl_bench.sweep.plan import make_plan
from icl_bench.sweep.rationale_options import RationalesOptions
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.data_report import leaking
from icl_bench.tasks.examples import Example, TaskData, load_data
from icl_bench.tasks.near_duplicates import common_words, near_duplicates
from icl_bench.tasks.rationale_files import Rationale, check_out, write_rationales
from icl_bench.tasks.spec import RationaleOrigin, TaskSpec
from icl_bench.wording import counted, plain, short

if TYPE_CHECKING:
    from icl_bench.results.stored_meta import CellMeta

QUERIES = FOR_RATIONALES
"""The kind of queries of such a cell, as stored in its facts."""


def run_of(options: RationalesOptions) -> RunSpec:
    """The run that writes the rationales. Raises ``UserError``."""
    names = options.declared().keys() & RunOptions.model_fields.keys() - {"k"}
    return RunSpec(**{name: getattr(options, name) for name in names}, k=str(options.k), draws=1)


@dataclass
class RationaleRun:
    """A planned run that writes rationales."""

    options: RationalesOptions
    sweep: Sweep
    data: TaskData
    """The data whose train rows are the queries, with the task's test rows."""
    near: int
    """Pool rows excluded as near duplicates of a test row."""
    shown: int
    """Pool rows excluded as near duplicates of a worked example."""

    @classmethod
    def prepare(cls, options: RationalesOptions, say: Callable[[str], None] = lambda _: None) -> RationaleRun:
        """Load data and tokenizer and plan the cell; nothing is computed yet. Raises ``UserError``."""
        check_out(options.out, continued=options.cells.exists())
        sweep = Sweep.prepare(run_of(options), say, results=options.cells)
        task = sweep.task
        check_task(task.data.spec, options.keep)
        say("choosing rows of the pool")
        data, order = rows_to_try(task, options)
        candidates = [data.train[i] for i in order]
        common = common_words(data)
        close = near_rows(candidates, data.test_pool, common)
        shown = near_rows(candidates, task.data.train, common) - close if data is not task.data else set()
        apart = [i for i in order if data.train[i].id not in close | shown]
        chosen = apart[: options.rows]
        if not chosen:
            also = " or a worked example" if shown else ""
            raise UserError(f"task {data.spec.name}: each row to try is nearly a test row{also}; none is left")
        left = np.sort(np.array(apart[options.rows :], dtype=int)) if data is task.data else task.pool.rows
        if options.k > len(left):
            raise UserError(
                f"--k {options.k}: --rows {len(chosen)} leaves {counted(len(left), 'row')} to show; try fewer"
            )
        asking = replace(
            task,
            data=replace(task.data, test=tuple(data.train[i] for i in chosen)),
            asked=QUERIES,
            whole_pool=task.pool,
            _perturbed={},
            _decodings={},
        )
        vars(asking)["pool"] = replace(task.pool, data=asking.data, rows=left)
        plan = make_plan(asking, KValues((options.k,)), draws=1)
        return cls(options, replace(sweep, task=asking, plan=plan), data, len(close), len(shown))

    @property
    def rows(self) -> Sequence[Example]:
        """The pool rows that are the queries."""
        return self.sweep.task.data.test

    def notes(self) -> list[str]:
        """Notes for the user before the run."""
        options, worked = self.options, self.sweep.task.data.spec.pool.file is not None
        of = "of the train split" if worked else "of the pool"
        same = "is the same or nearly the same"
        texts = [
            f"{counted(len(self.rows), 'row')} {of}, {counted(options.samples, 'sample')} each at "
            f"{options.temperature:g}"
        ]
        for count, other in ((self.near, "test row"), (self.shown, "worked example")):
            if count:
                verb = "is" if count == 1 else "are"
                texts.append(f"{counted(count, 'row')} {of} {verb} left out: a {other} {same}")
        return texts

    def write(self) -> tuple[RationaleOrigin, list[Path]]:
        """Select the rationales of a finished cell, and write the pool and its task file.

        Returns the origin of the rationales, and the files. Raises ``UserError`` if none is kept.
        """
        (identity,) = self.sweep.identities()
        stored = read_some(self.options.cells)
        frame = stored.predictions
        frame = frame[frame["cell"].astype(str) == identity.cell].set_index("test_id")
        records: list[Mapping[str, Any]] = [
            dict(zip(frame.columns, frame.loc[row.id], strict=True)) for row in self.rows
        ]
        kept = [
            rationale
            for row, record in zip(self.rows, records, strict=True)
            if (rationale := self._taken(row, record)) is not None
        ]
        if not kept:
            raise self._none_kept(records)
        origin = self._origin(records, kept, stored.cells[identity.cell])
        return origin, write_rationales(self.options.out, self.data, self.options.data_dir, kept, origin)

    def _texts(self, record: Mapping[str, Any]) -> Sequence[str | None]:
        """The text of each sample: its thought, or its whole answer."""
        texts = record.get("sample_texts" if self.data.spec.thought is None else "sample_thoughts")
        return list(texts) if isinstance(texts, Iterable) else []  # a server refused every sample

    @cached_property
    def _special(self) -> list[str]:
        """The texts of special tokens, which a chat template would parse as such in a rationale."""
        return special_texts(self.sweep.task.tokenizer)

    def _taken(self, row: Example, record: Mapping[str, Any]) -> Rationale | None:
        """The rationale of a row; None if no sample qualifies. Complete rationales are preferred to truncated ones."""
        keep = self.options.keep
        texts, answers = self._texts(record), list(record["samples"])
        scores = record.get("sample_scores", ())
        thought = self.data.spec.thought
        sizes: Any = record.get("sample_thought_tokens" if thought is not None else "sample_tokens")
        limit = thought.limit if thought is not None else self.data.spec.max_answer_tokens
        if thought is not None and self.sweep.task.one_request:  # a thought may take the tokens of its answer
            limit = self.sweep.task.written_tokens
        places = []
        for place, text in enumerate(texts):
            if not text or not text.strip() or any(token in text for token in self._special):
                continue
            if answers[place] is None and (keep == "right" or thought is None):
                continue
            if keep != "all" and (scores[place] >= 1) != (keep == "right"):
                continue
            places.append(place)
        if not places:
            return None
        key = sizes.__getitem__ if self.options.take == "shortest" else lambda place: sizes[place] >= limit
        best = min(places, key=key)
        return Rationale(row, str(texts[best]).strip(), answers[best], cut=sizes[best] >= limit)

    def _none_kept(self, records: Sequence[Mapping[str, Any]]) -> UserError:
        """The error message if no rationale is kept, with two of the texts."""
        shown = [short(text) for record in records for text in self._texts(record) if text and text.strip()][:2]
        tried = f"{counted(self.options.samples, 'sample')} of {counted(len(records), 'row')}"
        kept = {"right": "has a right answer", "wrong": "has a wrong answer", "all": "has an answer"}[self.options.keep]
        seen = f"; the first texts are {' and '.join(shown)}" if shown else "; all texts are empty"
        return UserError(
            f"--keep {self.options.keep}: none of {tried} {kept}, so nothing is written{seen}. What was computed is "
            f"kept in {plain(str(self.options.cells))}: try --keep all, --k, more --rows or another model"
        )

    def _origin(
        self, records: Sequence[Mapping[str, Any]], kept: Sequence[Rationale], meta: CellMeta
    ) -> RationaleOrigin:
        options, model, spec = self.options, self.sweep.model, self.data.spec
        samples = self.sweep.task.samples
        assert samples is not None, "rationales are sampled"
        tried, took = Counter(row.answer for row in self.rows), Counter(one.row.answer for one in kept)
        of_label = {label: (took[label], count) for label, count in sorted(tried.items())}
        cost = meta.compute or {}
        query_flops = cost.get("query_flops")
        return RationaleOrigin(
            task=spec.name,
            model=model.name,
            revision=model.revision,
            fingerprint=model.fingerprint,
            demonstrations=options.k,
            samples=samples.count,
            temperature=samples.temperature,
            seed=options.seed,
            keep=options.keep,
            take=options.take,
            prompts=short_hash([str(record["prompt_hash"]) for record in records]),
            tried=len(records),
            kept=len(kept),
            cut=sum(one.cut for one in kept),
            kept_of_label=of_label if self.data.labels else None,
            near_duplicates=self.near,
            prompt_tokens=_sum(records, "prompt_tokens"),
            cached_tokens=_sum(records, "cached_tokens"),
            written_tokens=_sum(records, "answer_tokens") + _sum(records, "thought_tokens"),
            seconds=meta.seconds,
            flops=None if query_flops is None else cost.get("prefix_flops", 0.0) + len(records) * query_flops,
        )


def _sum(records: Sequence[Mapping[str, Any]], column: str) -> int:
    values = [record.get(column) for record in records]
    return sum(int(value) for value in values if value is not None and value == value)


def rows_to_try(task: TokenizedTask, options: RationalesOptions) -> tuple[TaskData, list[int]]:
    """Return data whose train rows are the queries, and these rows in random order.

    The rows are the task's pool. If a file of worked examples replaces the pool (``pool.file``), they are the rows of
    the train split, and prompts show the worked examples.
    """
    spec = task.data.spec
    if spec.pool.file is None:
        return task.data, task.pool.drawn(0).tolist()
    own = load_data(spec.without_worked_examples(), data_dir=options.data_dir, test_ids=options.test_ids)
    return replace(own, test=task.data.test), draw(len(own.train), task.seed, 0).tolist()


def near_rows(pool: Sequence[Example], test: Sequence[Example], common: frozenset[str] = frozenset()) -> set[str]:
    """Ids of pool rows that are near duplicates of a test row (:mod:`icl_bench.tasks.near_duplicates`), apart from
    ``common`` words.
    """
    return {*leaking(pool, test), *near_duplicates(pool, test, common)}


def check_task(spec: TaskSpec, keep: str) -> None:
    """Raise ``UserError`` if no rationale of this task can be checked against a right answer."""
    if spec.thought is None and (spec.is_classification or spec.answer is None or spec.answer.extract is None):
        raise UserError(
            f"task {spec.name}: writes no thoughts; say in its task file how it thinks (answer.think, ends and limit)"
        )
    if not spec.is_classification and not METRICS[spec.metrics[0]].is_right and keep != "all":
        raise UserError(
            f"task {spec.name}: has no right answers to keep rationales by, {spec.metrics[0]} is a degree; "
            "take --keep all"
        )
