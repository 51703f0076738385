"""A sample of single predictions for the report's reader, with the end of each prompt.

The sample is the same for the same folder. It takes turns between tasks, models, curves, ks and
right and wrong answers, so that each of them is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.demonstrations.as_vectors import stored_as_text
from icl_bench.errors import UserError
from icl_bench.metrics.scores import SCORES, golds_of, title
from icl_bench.prompts.chat import around_turns
from icl_bench.prompts.rendering import query_text
from icl_bench.report.naming import Naming
from icl_bench.report.prompt_trace import as_shown
from icl_bench.results.reading import IMPORTED
from icl_bench.results.trained_methods import CLASSIFIER
from icl_bench.seeds import generator
from icl_bench.tasks.examples import Example, TaskData, load_data
from icl_bench.tasks.spec import TaskSpec, TestRows
from icl_bench.wording import one_line

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.results.reading import Stored

SEED = 0


MOST = 3000


MOST_BYTES = 2_500_000
"""Of the sample's texts; each is counted once, however many predictions show it."""


SHOWN_DEMONSTRATIONS = 2
"""Demonstrations of the prompt's end."""


LISTED_DEMONSTRATIONS = 40


STRATA = ("task", "model", "select", "order", "attention", "variant", "k", "correct")


FIELDS = ("task", "model", "series", "select", "order", "teaching", "k", "draw", "test_id", "gold",
          "prediction", "correct", "valid", "prompt_tokens", "cached_tokens", "probability",
          "margin", "label_mass", *SCORES,
          "cell", "query", "shown", "listed", "count", "separator", "why", "text",
          "golds")  # fmt: skip


@dataclass
class Texts:
    """Texts by number, each held once."""

    texts: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    bytes: int = 0

    def number(self, text: str) -> int:
        """The text's number, a new one if it is new."""
        if text not in self.numbers:
            self.numbers[text] = len(self.texts)
            self.texts.append(text)
            self.bytes += len(json.dumps(text)) + 1
        return self.numbers[text]


@dataclass(frozen=True)
class Sample:
    """Predictions for the reader, columns of numbers and of numbers of texts."""

    texts: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """One list for each prediction, in the order of ``FIELDS``."""
    total: int
    """Predictions there are."""

    def as_json(self) -> dict[str, Any]:
        """What the page's program reads."""
        scores = [[name, title(name)] for name in SCORES]
        return {
            "fields": FIELDS,
            "scores": scores,
            "texts": self.texts,
            "rows": self.rows,
            "total": self.total,
        }


def sample(
    stored: Stored, naming: Naming, data_dir: Path | None = None, most: int = MOST,
    most_bytes: int = MOST_BYTES,
) -> Sample:  # fmt: skip
    """Choose predictions and rebuild the end of their prompts, where their data is at hand."""
    frame = stored.predictions
    order = in_turns(frame)[:most]
    chosen = naming.named(frame.iloc[order])
    prompts = _Prompts(stored, data_dir)
    texts, rows = Texts(), []
    records: list[Any] = chosen.to_dict("records")
    for position, record in zip(order, records, strict=True):
        row = _row(record, prompts, texts)
        if texts.bytes > most_bytes:
            break
        rows.append((int(position), row))
    return Sample(texts.texts, [row for _, row in sorted(rows, key=lambda r: r[0])], len(frame))


def in_turns(frame: pd.DataFrame) -> np.ndarray:
    """Positions of all predictions, so that any number of the first has some of each stratum."""
    by = [name for name in STRATA if name in frame]
    strata = frame[by].astype({"correct": object}).groupby(by, observed=True, dropna=False)
    mixed = generator(SEED, "report").permutation(len(frame))
    number = strata.ngroup().to_numpy()[mixed]
    first = np.argsort(number, kind="stable")
    starts = np.searchsorted(number[first], number[first])
    turn = np.empty(len(frame), dtype=int)
    turn[first] = np.arange(len(frame)) - starts
    return np.asarray(mixed[np.lexsort((number, turn))])


def _row(record: Mapping[str, Any], prompts: _Prompts, texts: Texts) -> list[Any]:
    found = prompts.end(record)
    values: dict[str, Any] = {**record, "why": texts.number(found.why) if found.why else None}
    for name in ("task", "model", "series", "select", "order", "teaching", "test_id", "gold",
                 "prediction", "cell"):  # fmt: skip
        value = record.get(name)
        values[name] = texts.number("" if _missing(value) else str(value))
    values["query"] = None if found.query is None else texts.number(found.query)
    values["separator"] = texts.number(found.separator)
    values["shown"] = [texts.number(text) for text in found.shown]
    values["listed"] = [[texts.number(name), texts.number(label)] for name, label in found.listed]
    values["count"] = found.count
    written = record.get("text") if prompts.computed(record) else None
    values["text"] = None if _missing(written) else texts.number(str(written))
    golds = golds_of(record.get("golds"), record["gold"])
    values["golds"] = [texts.number(gold) for gold in golds] if len(golds) > 1 else None
    return [_plain(values.get(name)) for name in FIELDS]


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def _plain(value: Any) -> Any:
    """A number of at most six digits, truth as it is, null where something is missing."""
    if isinstance(value, list):
        return value
    if _missing(value):
        return None
    if isinstance(value, bool | np.bool_):
        return bool(value)
    number = float(value)
    return int(number) if number.is_integer() else float(f"{number:.6g}")


# -- prompts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """The end of a prompt, or why it is not there."""

    query: str | None = None
    shown: Sequence[str] = ()
    """Texts of the last demonstrations."""
    listed: Sequence[tuple[str, str]] = ()
    """Ids and answers of the last demonstrations, the last one last."""
    count: int | None = None
    separator: str = ""
    why: str = ""


@dataclass(frozen=True)
class _Task:
    spec: TaskSpec
    train: Mapping[str, Example]
    test: Mapping[str, Example]


class _Prompts:
    """Rebuilds the ends of prompts; reads each task's data once."""

    def __init__(self, stored: Stored, data_dir: Path | None) -> None:
        self._cells, self._variants = stored.cells, stored.variants
        self._data_dir = data_dir
        self._known: dict[str, _Task | str] = {}

    def computed(self, record: Mapping[str, Any]) -> bool:
        """Whether a prediction is of a run, whose further columns are known."""
        return record["cell"] in self._cells

    def end(self, record: Mapping[str, Any]) -> End:
        meta = self._cells.get(record["cell"])
        if meta is None:
            source = self._variants.get(record["variant"], {}).get(IMPORTED, "a file")
            return End(why=f"Imported from {source}: imported predictions carry no prompt.")
        own = record["demonstration_ids"]
        ids = list(meta.get("demonstration_ids") or []) if _missing(own) else list(own)
        if meta["facts"].get("scoring") == CLASSIFIER:
            ids = []  # they were learnt, and stand in no prompt
        task = self._task(meta)
        if isinstance(task, str):
            named = [(str(name), "") for name in ids[-LISTED_DEMONSTRATIONS:]]
            return End(listed=named, count=len(ids), why=task)
        if task.spec.data.passages is None and meta["facts"].get("scoring") != CLASSIFIER:
            # what is read as vectors stands in no prompt
            ids, _ = stored_as_text(ids, record["select"], record["attention"])
        asked = task.train if record.get("queries") == "copied" else task.test
        try:
            query = asked[record["test_id"]]
            last = tuple(task.train[name] for name in ids[-LISTED_DEMONSTRATIONS:])
        except KeyError as error:
            return End(count=len(ids), why=f"The data holds no row {error.args[0]} any more.")
        template = task.spec.template
        last, piece = as_shown(meta, last)
        separator, end = template.separator, ""
        if chat := meta["facts"].get("chat"):
            piece, separator, end = around_turns(chat, template, piece)
        return End(
            query_text(template, query) + end,
            [piece(template, example) for example in last[-SHOWN_DEMONSTRATIONS:]],
            [(example.id, example.answer) for example in last],
            len(ids),
            separator,
        )

    def _task(self, meta: Mapping[str, Any]) -> _Task | str:
        """The cell's task with its rows, or why they are not at hand."""
        stored = meta["facts"]["data"]
        key = json.dumps([meta["task"], stored], sort_keys=True)
        if key not in self._known:
            try:
                self._known[key] = self._read(TaskSpec.model_validate(meta["task"]), stored)
            except (UserError, ValueError) as error:
                self._known[key] = f"No prompt: {one_line(str(error))}"
        return self._known[key]

    def _read(self, spec: TaskSpec, stored: Mapping[str, str]) -> _Task | str:
        hub = spec.data.hub
        if hub and not any(name.startswith(f"{hub.path}@") for name in stored):
            # it was run on local files: a report asks no network for others
            spec = spec.model_copy(update={"data": spec.data.model_copy(update={"hub": None})})
        asked = spec.model_copy(update={"test": TestRows(size=1)})
        data: TaskData = load_data(asked, data_dir=self._data_dir)
        if any(stored.get(name) != digest for name, digest in data.files.items()):
            return f"No prompt: the data has changed since the run ({data.origin})."
        return _Task(spec, {e.id: e for e in data.train}, {e.id: e for e in data.test_pool})
