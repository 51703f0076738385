"""Samples of another harness's log as a table of predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from icl_bench.errors import UserError
from icl_bench.metrics.scores import score_columns
from icl_bench.results.cells import own_slug, slug
from icl_bench.results.importing.tables import columns_of
from icl_bench.wording import few, listed, plain, short


@dataclass(frozen=True)
class Stated:
    """Values that a user states for a file without them; they override a harness's log."""

    task: str | None = None
    model: str | None = None
    k: int | None = None
    select: str | None = None
    order: str | None = None

    def values(self) -> dict[str, Any]:
        """The stated values, by column."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def digest(self) -> bytes:
        """Bytes that differ between stated values; empty without any."""
        return json.dumps(self.values(), sort_keys=True).encode() if self.values() else b""


NOTHING_STATED = Stated()


@contextmanager
def reading(shown: str, what: str) -> Iterator[None]:
    """Convert errors from logs of another form to a ``UserError``, which names the expected format ``what``."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f"{shown}: not {what} ({error!r})") from None


@dataclass(frozen=True)
class Parsed:
    """The predictions of a file, before checks."""

    table: pa.Table
    judge: str | None = None
    """The program that judged the answers, if the file has its verdicts."""
    notes: tuple[str, ...] = ()
    """Notes on assumptions."""
    curves: Sequence[str] = ()
    """``(rows,)``: the curve of each row; each curve becomes a variant. Empty for one curve."""
    files: tuple[Path, ...] = ()
    """The files with the predictions, if not only the named one."""
    origins: bytes | None = None
    """The origins of the variants of an export of this program, as in a table's metadata."""

    def of_variant(self, variant: str) -> pa.Table:
        """The table, with one variant per curve."""
        if not self.curves:
            return self.table
        return self.table.append_column("variant", pa.array([f"{variant}-{curve}" for curve in self.curves]))


@dataclass(frozen=True)
class Sample:
    """One answer in a harness's log; None for missing values."""

    test_id: str
    gold: str | None
    prediction: str
    correct: bool | None = None
    """The harness's verdict."""
    golds: Sequence[str] = ()
    """All correct answers."""
    k: int | None = None
    draw: int = 0
    perturbation: str | None = None
    question: str | None = None
    text: str | None = None
    """The whole answer, if ``prediction`` was extracted from it."""
    own_choices: bool | None = None
    """Whether the row has its own choices, which were answered as texts."""
    tokens: Mapping[str, int | None] = field(default_factory=dict)
    """Counts by column: ``prompt_tokens`` include cached tokens, ``answer_tokens`` include reasoning."""
    curve: str = ""
    """Distinguishes several judgements of one answer: a filter, a scorer, an epoch."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Further columns: scores of the harness's metrics."""


@dataclass(frozen=True)
class Log:
    """A harness's log of one task and one model."""

    judge: str
    """The harness, for messages."""
    samples: Sequence[Sample]
    task: str | None = None
    model: str | None = None
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    """The files that were read, if not only the named one."""


COLUMNS = ("test_id", "gold", "prediction", "correct", "k", "draw", "perturbation", "question", "text", "own_choices")


def as_table(log: Log, stated: Stated, shown: str) -> Parsed:
    """The table of a log's samples. A column of scores that are not shares of 1 is left out, with a note.

    Raises ``UserError`` if the log is empty, if task, model or k are neither in the log nor stated, or if a sample has
    no other verdict or score than those left out.
    """
    if not log.samples:
        raise UserError(f"{shown}: has no samples")
    of_log = {"task": log.task, "model": log.model, **stated.values()}
    if all(sample.k is None for sample in log.samples) and "k" not in of_log:
        of_log["k"] = None
    if lacking := [name for name in ("task", "model", "k") if name in of_log and of_log[name] is None]:
        options = listed(f"--{name}" for name in lacking)
        raise UserError(f"{shown}: {log.judge}'s samples do not state the {lacking[0]}; set it with {options}")
    several = len({sample.curve for sample in log.samples}) > 1
    graded = {tuple(sample.scores) for sample in log.samples if sample.correct is None and sample.scores}
    not_shares = {name: value for sample in log.samples for name, value in sample.scores.items() if not 0 <= value <= 1}
    rows = []
    for sample in log.samples:
        row: dict[str, Any] = {name: getattr(sample, name) for name in COLUMNS}
        if tuple(sample.scores) in graded:
            row["correct"] = None  # 0 and 1 of a graded score are not verdicts
        row["golds"] = list(sample.golds) if len(sample.golds) > 1 else None
        scores = {name: float(score) for name, score in sample.scores.items() if name not in not_shares}
        if row["correct"] is None and not scores and sample.scores:
            name = min(sample.scores)
            raise UserError(
                f"{shown}: {name} has a score of {short(not_shares[name])}; scores must be shares from 0 to 1, not "
                "percentages"
            )
        rows.append({**row, **sample.tokens, **scores, **of_log})
    present = {name for row in rows for name, value in row.items() if value is not None}
    table = columns_of({name: value for name, value in row.items() if name in present} for row in rows)
    names = short_names(sample.curve for sample in log.samples)
    curves = [names[sample.curve] for sample in log.samples] if several else []
    notes = [
        f"{name} is left out: it has a score of {short(value)}, and scores are shares from 0 to 1, not percentages"
        for name, value in not_shares.items()
    ]
    return Parsed(table, log.judge, (*log.notes, *notes), curves, log.files)


def short_names(texts: Iterable[str]) -> dict[str, str]:
    """Text -> a part of a variant's name, different for each text."""
    names = {text: slug(text) for text in texts}
    return names if len(set(names.values())) == len(names) else {text: own_slug(text) for text in names}


def verdict(value: Any) -> bool | None:
    """Whether a score is right (1, true) or wrong (0, false); None for any other."""
    return bool(value) if isinstance(value, bool | int | float) and value in (0, 1) else None


def own_scores(scores: Mapping[str, Any]) -> dict[str, float]:
    """A harness's scores for which this program has a column; :func:`as_table` leaves out those of no shares of 1."""
    known = score_columns()
    return {
        name: value
        for name, value in scores.items()
        if name in known and (isinstance(value, int) or (isinstance(value, float) and not math.isnan(value)))
    }


def has_share(scores: Mapping[str, float]) -> bool:
    """Whether one of the scores is a share of 1."""
    return any(0 <= score <= 1 for score in scores.values())


def unusable_scores(shown: str, whose: str, scores: Mapping[str, Any]) -> UserError:
    """The error for a sample that has neither a verdict nor a known score."""
    found = few([f"{plain(name)} {short(value)}" for name, value in scores.items()], 5) or "none"
    known = ", ".join(score_columns())
    return UserError(
        f"{shown}: {whose} has scores that are neither right/wrong nor of a known metric ({found}); "
        f"known metrics are {known}, as shares of 1"
    )


def text_in(value: Any) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(value, str):
        return value
    parts: Collection[Any] = value if isinstance(value, list) else ()
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
