"""Cells: their identity and the columns of their files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icl_bench.frozen import Frozen
from icl_bench.models.attention_patterns import FULL
from icl_bench.results.facts import Facts

if TYPE_CHECKING:
    import pyarrow as pa

PROTOCOL = 1
"""Increased when a change of the program changes predictions."""


FINISHED, JOURNAL, FAILED, BATCHES = ".parquet", ".journal.jsonl", ".failed.json", ".batches.json"
"""Suffixes of a finished cell's file, an unfinished cell's journal, a failed cell's mark and a cell's batches."""


PRIORS = "_calibration"
"""Folder of stated distributions of labels; no task has this name."""


LONGEST = 200
"""Maximum letters of a folder's name; file systems allow 255."""


AXES = ("task", "model", "select", "order", "attention", "k", "draw")
"""The fields that identify a cell among those with the same facts."""


ALWAYS = (
    *AXES,
    "test_id",
    "gold",
    "prediction",
    "correct",
    "valid",
    "prompt_tokens",
    "cached_tokens",
    "answer_tokens",
    "backend",
    "prompt_hash",
    "cell",
    "variant",
)
"""Columns of every file of predictions; further columns are stored only if they have a value."""


@dataclass(frozen=True)
class Identity:
    """A cell and everything that decides its predictions."""

    spec: CellSpec
    facts: Facts
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Settings of its task that decide answers, but are no facts, by their path in the task file; and ``metrics``. A
    finished cell with other settings is not taken as this one.
    """

    @property
    def variant(self) -> str:
        """Hash (8 hex digits) of the facts: cells of one variant differ only in their axes."""
        return digest(self.facts.known())[:8]

    @property
    def cell(self) -> str:
        """Hash (12 hex digits) that names the cell's file."""
        return digest({"spec": self.spec.model_dump(), "facts": self.facts.known()})[:12]

    @property
    def name(self) -> str:
        """Name of the cell's files without suffix: ``TASK/MODEL/...-CELL``."""
        spec = self.spec
        kind = "-".join(map(slug, (spec.select, spec.order, spec.attention)))
        file = f"{kind}-k{spec.k:05d}-d{spec.draw:02d}-{self.cell}"
        return f"{folder_name(spec.task)}/{folder_name(spec.model)}/{file}"


def curve_name(name: str) -> str:
    """The part of a cell's name that the cells of one curve have in common: without k, draw and hash."""
    return re.sub(r"-k\d+-d\d+-[0-9a-f]+$", "", name)


def slug(text: str) -> str:
    """A part of a file name: letters, digits, dots and underscores are kept."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "-"


def own_slug(text: str) -> str:
    """A part of a file name that no other text has: a changed one ends in a hash."""
    part = slug(text)
    return part if part == text else f"{part}-{digest(text)[:8]}"


def folder_name(name: str) -> str:
    """A name as a folder name; a name that is too long becomes its beginning and a hash."""
    folder = slug(name)
    return folder if len(folder) <= LONGEST else f"{folder[:LONGEST]}-{digest(name)[:12]}"


def digest(value: Any) -> str:
    """SHA-256, in hex, of a JSON value under this protocol. Texts may have lone surrogates, as file names do."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(f"{PROTOCOL}\n{text}".encode(errors="surrogatepass")).hexdigest()


def short_hash(value: Any) -> str:
    """SHA-256 (16 hex digits) of a JSON value, for long facts like lists of ids."""
    return digest(value)[:16]


@dataclass(frozen=True)
class Prediction:
    """One test example's outcome in one cell."""

    test_id: str
    gold: str
    prediction: str
    correct: bool | None
    """None for free text, which is scored by the columns of ``scores``."""
    valid: bool
    """Whether the answer is one of the labels (always, under a constraint), or an answer could be
    extracted from free text."""
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    prompt_hash: str
    probability: float | None = None
    margin: float | None = None
    label_mass: float | None = None
    label_scores: str | None = None
    """Each label's log-probability, as in a journal (:func:`icl_bench.results.label_scores.as_line`)."""
    demonstration_ids: tuple[str, ...] | None = None
    """Ids, if each test example has its own demonstrations."""
    truncated: bool | None = None
    """Whether ``max_answer_tokens`` truncated a free-text answer; None for other answers."""
    text: str | None = None
    """The whole answer, if ``prediction`` was extracted from it."""
    golds: tuple[str, ...] | None = None
    """All correct answers, beginning with ``gold``, if there are several."""
    read_blocks: tuple[int, ...] | None = None
    """Blocks of demonstrations that the query read, counted from 0, if it did not read all."""
    reason: str | None = None
    """Why a server gave no answer: refused, filtered, out of tokens."""
    local_prompt_tokens: int | None = None
    """The prompt's tokens by the local tokenizer, if ``prompt_tokens`` is counted and billed by a server."""
    cache_write_tokens: int | None = None
    """Prompt tokens that were written into a server's cache, if the server counts them."""
    reasoning_tokens: int | None = None
    """Tokens of thoughts among ``answer_tokens``, if a server counts them."""
    samples: tuple[str | None, ...] | None = None
    """The answer of each sample, if the prediction is the majority of several; None for one without a valid answer.
    Equal answers have the spelling of the first.
    """
    sample_tokens: tuple[int, ...] | None = None
    """The tokens of each sample's answer; ``answer_tokens`` is their sum."""
    sample_texts: tuple[str | None, ...] | None = None
    """The whole text of each sample, if its answer was extracted from it."""
    sample_thoughts: tuple[str | None, ...] | None = None
    """The thought of each sample, if the task thinks before it answers."""
    sample_thought_tokens: tuple[int, ...] | None = None
    """The tokens of each sample's thought; ``thought_tokens`` is their sum."""
    sample_scores: tuple[float, ...] | None = None
    """The score of each sample's answer by the task's first measure."""
    thought: str | None = None
    """The text that the model generated before the end mark, if the task thinks before it answers."""
    thought_tokens: int | None = None
    """Tokens generated for the thought; ``answer_tokens`` are those of the answer after it."""
    thought_truncated: bool | None = None
    """Whether the thought was truncated at its limit."""


def cell_hash(axes: Mapping[str, Any], variant: str) -> str:
    """Hash (12 hex digits) of a cell that was computed elsewhere, by its axes and its variant."""
    return digest({"spec": dict(axes), "variant": variant})[:12]


def prediction_schema() -> pa.Schema:
    """The columns of predictions in memory; columns other than ``ALWAYS`` may be empty."""
    import pyarrow as pa

    words = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            *((name, pa.int32() if name in ("k", "draw") else words) for name in AXES),
            ("test_id", pa.string()),
            ("gold", pa.string()),
            ("prediction", pa.string()),
            ("correct", pa.bool_()),
            ("valid", pa.bool_()),
            ("prompt_tokens", pa.int32()),
            ("cached_tokens", pa.int32()),
            ("answer_tokens", pa.int32()),
            ("backend", words),
            ("probability", pa.float64()),
            ("margin", pa.float64()),
            ("label_mass", pa.float64()),
            ("prompt_hash", pa.string()),
            ("demonstration_ids", pa.list_(pa.string())),
            ("label_space", words),
            ("queries", words),
            ("perturbation", words),
            ("cell", words),
            ("variant", words),
        ]
    )


SCORES = "label_scores"
"""The column of label scores. Only its own readers read it, because it is larger than all others."""


QUESTION = "question"
"""The column with the question of an imported prediction, without demonstrations."""


def further_fields() -> list[pa.Field]:
    """Optional columns of label scores, free-text answers, queries that read a part of the demonstrations, a server's
    reports on answers, and samples.

    They precede the columns of the task's metrics.
    """
    import pyarrow as pa

    return [
        pa.field(SCORES, pa.list_(pa.float32())),
        pa.field("truncated", pa.bool_()),
        pa.field("text", pa.string()),
        pa.field("golds", pa.list_(pa.string())),
        pa.field("read_blocks", pa.list_(pa.int32())),
        pa.field("reason", pa.string()),
        pa.field("local_prompt_tokens", pa.int32()),
        pa.field("cache_write_tokens", pa.int32()),
        pa.field("reasoning_tokens", pa.int32()),
        pa.field("samples", pa.list_(pa.string())),
        pa.field("sample_tokens", pa.list_(pa.int32())),
        pa.field("sample_texts", pa.list_(pa.string())),
        pa.field("sample_thoughts", pa.list_(pa.string())),
        pa.field("sample_thought_tokens", pa.list_(pa.int32())),
        pa.field("sample_scores", pa.list_(pa.float64())),
        pa.field("thought", pa.string()),
        pa.field("thought_tokens", pa.int32()),
        pa.field("thought_truncated", pa.bool_()),
    ]


class CellSpec(Frozen):
    """One point of a sweep."""

    task: str
    model: str
    select: str
    order: str
    attention: str
    k: int
    draw: int

    def __str__(self) -> str:
        read = "" if self.attention == str(FULL) else f"{self.attention} "
        where = f"{self.task} {self.model} {self.select} {self.order} {read}"
        return f"{where}k={self.k} draw={self.draw}"


SETTING = ["task", "model", "select", "order", "attention", "variant"]
"""Columns that are equal along one curve."""
