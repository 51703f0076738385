"""The ends of prompts, rebuilt from stored ids, for the display of predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from icl_bench.demonstrations.as_vectors import stored_as_text
from icl_bench.errors import UserError
from icl_bench.prompts.chat import around_turns
from icl_bench.prompts.rendering import opening_text, query_text
from icl_bench.report.imported_questions import ImportedQuestions, Rows, rows_of
from icl_bench.report.prompt_trace import as_shown
from icl_bench.results.facts import UNKNOWN, FactsOf
from icl_bench.results.stored_meta import CellMeta
from icl_bench.results.trained_methods import CLASSIFIER
from icl_bench.tasks.spec import TaskSpec
from icl_bench.wording import one_line

SHOWN_DEMONSTRATIONS = 2
"""The maximum number of demonstrations in a prompt's end."""


LISTED_DEMONSTRATIONS = 40


def missing(value: Any) -> bool:
    """Whether a value of a table is missing."""
    return value is None or (isinstance(value, float) and math.isnan(value))


@dataclass(frozen=True)
class End:
    """The end of a prompt, or why it is missing."""

    query: str | None = None
    shown: Sequence[str] = ()
    """Texts of the last demonstrations."""
    listed: Sequence[tuple[str, str]] = ()
    """Ids and answers of the last demonstrations, in order."""
    count: int | None = None
    separator: str = ""
    why: str = ""


@dataclass(frozen=True)
class _BeforeQuery:
    """The prompt before queries. They follow if the task's ``rows`` are known, and are followed by ``opening``."""

    end: End
    rows: Rows | None = None
    opening: str = ""


def _no_row(name: str, count: int | None) -> End:
    return End(count=count, why=f"The data holds no row {name} any more.")


class Prompts:
    """Rebuilds the ends of prompts. Each task's data are read once."""

    def __init__(
        self,
        cells: Mapping[str, CellMeta],
        variants: FactsOf,
        data_dir: Path | None,
        as_shown: Callable[[str], str] = str,
    ) -> None:
        """Arguments as in ``Stored``: metadata of cells' files, and the facts of variants.

        ``as_shown`` converts a message for display, because it may name folders of this machine.
        """
        self._cells, self._variants, self._as_shown = cells, variants, as_shown
        self._data_dir = data_dir
        self._known: dict[str, Rows | str] = {}
        self._questions = ImportedQuestions(cells, data_dir)
        self._of_last: tuple[CellMeta | None, _BeforeQuery] = None, _BeforeQuery(End())

    def of(self, cells: Mapping[str, CellMeta], variants: FactsOf) -> Prompts:
        """Rebuilds prompts of further cells. Known tasks are not read again; missing data are searched once more."""
        prompts = Prompts(cells, variants, self._data_dir, self._as_shown)
        prompts._known = {key: rows for key, rows in self._known.items() if isinstance(rows, Rows)}
        return prompts

    def imported_questions(self, task: str, golds: Mapping[str, str]) -> dict[str, str]:
        """Test id -> question, for imported predictions of a task given by ids with their right answers."""
        records = ((test, {"task": task, "test_id": test, "gold": gold}) for test, gold in golds.items())
        found = {test: self._questions.of(record) for test, record in records}
        return {test: question for test, question in found.items() if question is not None}

    def questions(self, meta: CellMeta) -> Mapping[str, str]:
        """Test id -> question, of a cell's queries; empty if the data are unavailable."""
        if isinstance(rows := self.task(meta), str):
            return {}
        return rows.test_questions if meta.facts.queries is None else rows.train_questions

    def computed(self, record: Mapping[str, Any]) -> bool:
        """Whether a prediction belongs to a run, whose further columns are known."""
        return record["cell"] in self._cells

    def end(self, record: Mapping[str, Any]) -> End:
        """The end of a prediction's prompt, or why there is none."""
        meta = self._cells.get(record["cell"])
        if meta is None:
            source = self._variants.get(record["variant"], UNKNOWN).imported or "a file"
            question = self._questions.of(record)
            what = "" if question is None else " This is the question."
            return End(question, why=f"Imported from {source}: imported predictions carry no prompt.{what}")
        own = record["demonstration_ids"]
        if not missing(own):
            before = self._before_query(meta, list(own), record)
        elif self._of_last[0] is meta:  # rows of a cell follow each other
            before = self._of_last[1]
        else:
            before = self._before_query(meta, list(meta.demonstration_ids or []), record)
            self._of_last = meta, before
        if before.rows is None:
            return before.end
        kind = record.get("queries")
        queries = before.rows.test if missing(kind) else before.rows.train
        if (query := queries.get(record["test_id"])) is None:
            return _no_row(record["test_id"], before.end.count)
        return replace(before.end, query=query_text(before.rows.spec.template, query) + before.opening)

    def _before_query(self, meta: CellMeta, ids: list[str], record: Mapping[str, Any]) -> _BeforeQuery:
        """The prompt before a query with these demonstrations."""
        trained = meta.facts.scoring == CLASSIFIER
        if trained:
            ids = []  # they were training examples and are not in a prompt
        task = self.task(meta)
        if isinstance(task, str):
            named = [(str(name), "") for name in ids[-LISTED_DEMONSTRATIONS:]]
            return _BeforeQuery(End(listed=named, count=len(ids), why=task))
        if task.spec.data.passages is None and not trained:
            # texts that are read as vectors are not in the prompt
            ids, _ = stored_as_text(ids, record["select"], record["attention"])
        try:
            last = tuple(task.train[name] for name in ids[-LISTED_DEMONSTRATIONS:])
        except KeyError as error:
            return _BeforeQuery(_no_row(error.args[0], len(ids)))
        template = task.spec.template
        last, writing = as_shown(meta, last)
        separator, end = template.separator, opening_text(template, task.spec.thought)
        if chat := meta.facts.chat:
            piece, separator, end = around_turns(chat.style, chat.around, template, writing.piece)
            end += task.spec.thought.opens.rstrip(" ") if task.spec.thought else ""
            writing = replace(writing, piece=piece)
        texts = writing.texts(template, separator, last)  # a preamble precedes only the first demonstration of a prompt
        shown = End(
            shown=[text.removesuffix(separator) for text in texts[-SHOWN_DEMONSTRATIONS:]],
            listed=[(example.id, example.answer) for example in last],
            count=len(ids),
            separator=separator,
        )
        return _BeforeQuery(shown, task, end)

    def task(self, meta: CellMeta) -> Rows | str:
        """The cell's task with its rows, or why they are unavailable."""
        stored, spec = meta.facts.data or {}, meta.task_as_given
        key = json.dumps([spec, stored], sort_keys=True)
        if key not in self._known:
            try:
                rows = rows_of(TaskSpec.model_validate(spec), stored, self._data_dir)
            except (UserError, ValueError) as error:
                rows = f"No prompt: {one_line(str(error))}"
            self._known[key] = rows if isinstance(rows, Rows) else self._as_shown(rows)
        return self._known[key]
