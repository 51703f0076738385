"""Calibrated predictions as cells of their own, derived from stored label scores when a folder is read.

A derived cell has the name of its cell followed by the calibration, ``1a2b3c4d5e6f+batch``. Its variant is named in the
same way, and has the facts of its cell with ``calibration``. So every table treats it as a further setting of the
model, and :func:`base_cell` finds the predictions and the exact prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icl_bench.registry import METRICS
from icl_bench.results.calibration import BATCH, PRIOR, Calibration
from icl_bench.results.cells import AXES, SCORES, digest
from icl_bench.results.facts import FactsOf
from icl_bench.results.label_bias import calibrated, content_bias, mean_bias, normalised, prior_bias
from icl_bench.results.stored_meta import CalibrationMeta, CellMeta, Origin, SpecMeta, TaskMeta

if TYPE_CHECKING:
    import pyarrow as pa

    from icl_bench.results.result_file import ResultFile

OF_QUERIES = ("queries", "test", "test_rows")
"""Facts in which a cell and its calibration queries differ."""

Priors = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Task (:func:`prior_scope`) -> name of a stated prior -> label -> share."""


def base_cell(cell: str) -> str:
    """The cell from which a cell's predictions are derived; the cell itself if they are not derived.

    >>> base_cell("1a2b3c4d5e6f+batch")
    '1a2b3c4d5e6f'
    """
    return cell.partition("+")[0]


def prior_scope(task: str, label_space: str | None) -> str:
    """The name of a task among stated priors. A part of its labels has priors of its own.

    >>> prior_scope("trec", "half:1")
    'trec, half:1'
    """
    return task if label_space is None else f"{task}, {label_space}"


def is_derived(cell: str) -> bool:
    """Whether a cell's predictions are derived and not stored."""
    return base_cell(cell) != cell


def reads_test_inputs(facts: FactsOf) -> bool:
    """Whether some variant's calibration estimates the bias on the inputs of test rows."""
    names = {one.calibration for one in facts.values()} - {None}
    return any(Calibration.parse(str(name)).reads_test_inputs for name in names)


@dataclass(frozen=True)
class CellScores:
    """The label scores of one cell, complete for all its predictions and labels."""

    labels: tuple[str, ...]
    tests: tuple[str, ...]
    """Ids of the test examples, in the order of the scores."""
    golds: tuple[str, ...]
    """The right label of each."""
    raw: np.ndarray
    """Log-probabilities from the model: ``(predictions, labels)`` float32."""
    bias: np.ndarray | None = None
    """The bias that a calibration subtracts: ``(labels,)``."""
    calibration: Calibration | None = None

    @property
    def logs(self) -> np.ndarray:
        """Normalised log-probabilities of the labels, calibrated: ``(predictions, labels)`` float64."""
        return normalised(self.raw.astype(float)) if self.bias is None else calibrated(self.raw, self.bias)


@dataclass
class Derived:
    """A folder's files with their calibrated predictions."""

    files: list[ResultFile] = field(default_factory=list)
    """The files of test rows, without label scores, then the derived ones."""
    scores: dict[str, CellScores] = field(default_factory=dict)
    """Cell -> its scores, including derived cells."""
    pool_scores: dict[str, CellScores] = field(default_factory=dict)
    """Cell -> the scores of the pool rows that calibrate it."""
    lacking: list[str] = field(default_factory=list)
    """Cells that scored every label, but do not store all scores."""
    notes: list[str] = field(default_factory=list)
    """Why calibrations are left out."""


def with_calibrations(files: Iterable[ResultFile], priors: Priors) -> Derived:
    """Derive all calibrated predictions that the files' label scores and calibration queries allow.

    Calibration queries are not test rows and are left out.
    """
    found = Derived()
    asked: dict[str, list[_Asked]] = {}
    tested: list[tuple[ResultFile, CellMeta]] = []
    for file in files:
        bare, meta, scores = _without_scores(file), file.meta, _scores_of(file)
        if meta is not None and file.asked_for is not None:
            if scores is not None:
                asked.setdefault(_pair(meta), []).append(_Asked(file.asked_for, meta, bare.table, scores))
            continue
        found.files.append(bare)
        for exported in _exported_cells(file):
            if exported.meta is not None and (scores_of := _scores_of(exported)) is not None:
                found.scores[exported.meta.cell] = scores_of
                tested.append((_without_scores(exported), exported.meta))
        if meta is not None and scores is not None:
            found.scores[meta.cell] = scores
            tested.append((bare, meta))
        elif meta is not None and meta.facts.scoring == "exact":
            found.lacking.append(meta.cell)
    for file, meta in tested:
        if meta.facts.queries is None and meta.facts.normalize is None:
            _derive(file, meta, asked.get(_pair(meta), ()), priors, found)
    return found


def _exported_cells(file: ResultFile) -> Iterator[ResultFile]:
    """The cells in an import of an export with label scores, with metadata from its origins."""
    if file.imported is None or SCORES not in file.table.column_names:
        return
    codes = file.table["cell"].combine_chunks()
    order = np.argsort(codes.indices.to_numpy(), kind="stable")
    numbers = codes.indices.to_numpy()[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    rows = {
        codes.dictionary[int(numbers[at])].as_py(): part
        for at, part in zip(starts, np.split(order, starts[1:]), strict=True)
    }
    for cell in file.cells():
        origin = file.stated.get(cell["variant"])
        if origin is None or origin.label_order is None:
            continue
        spec = SpecMeta(**{name: cell[name] for name in AXES})
        meta = CellMeta(
            spec=spec,
            facts=origin.facts,
            label_order=origin.label_order,
            task=TaskMeta(metrics=origin.metrics) if origin.metrics else None,
            cell=cell["cell"],
            variant=cell["variant"],
        )
        yield replace(file, table=file.table.take(rows[cell["cell"]]), meta=meta)


class _Asked(NamedTuple):
    """The calibration queries of one cell."""

    calibration: Calibration
    meta: CellMeta
    table: pa.Table
    scores: CellScores


def _derive(file: ResultFile, meta: CellMeta, asked: Iterable[_Asked], priors: Priors, found: Derived) -> None:
    """Add every calibration of one cell."""
    own = found.scores[meta.cell]
    raw = own.raw.astype(float)
    ways: list[tuple[Calibration, np.ndarray, CalibrationMeta | None]] = []
    if len(own.labels) > 1 and len(raw) > 1:
        ways.append((Calibration(BATCH), mean_bias(raw), None))
    for one in _one_of_each(own, meta, file.table, asked, found.notes):
        calibration, of_rows = one.calibration, one.scores
        estimate = mean_bias if calibration.name == BATCH else content_bias
        if calibration.rows is not None and calibration.rows >= len(found.pool_scores.get(meta.cell, of_rows).raw):
            found.pool_scores[meta.cell] = of_rows
        ways.append((calibration, estimate(of_rows.raw.astype(float)), _took(one)))
    for name, shares in priors.get(prior_scope(meta.spec.task, meta.facts.label_space), {}).items():
        if set(shares) <= set(own.labels):
            prior = np.array([shares.get(label, 0.0) for label in own.labels])
            ways.append((Calibration(PRIOR, prior=name), prior_bias(raw, prior), None))
    for calibration, bias, took in ways:
        scores = replace(own, bias=bias, calibration=calibration)
        table, new = _calibrated(file.table, meta, scores, took)
        if file.imported is None:
            found.files.append(replace(file, table=table, meta=new))
        else:  # an import stays one: its cells have no metadata
            found.files.append(replace(file, table=table, meta=None, stated={new.variant: Origin(facts=new.facts)}))
        found.scores[new.cell] = scores


def _one_of_each(
    own: CellScores, meta: CellMeta, table: pa.Table, asked: Iterable[_Asked], notes: list[str]
) -> Iterator[_Asked]:
    """The queries of each calibration that contain no input of a test row and follow the same demonstrations; the first
    by the cell's hash, because different test rows may leave different pool rows.

    Equal inputs after shared demonstrations have equal prompts. Ids are not compared: the files of train and test may
    both number their rows.
    """
    used: set[Calibration] = set()
    prompts = set(table["prompt_hash"].to_pylist())
    for one in sorted(asked, key=lambda one: one.meta.cell):
        of_test = one.calibration.rows is not None and prompts & set(one.table["prompt_hash"].to_pylist())
        if one.calibration in used or one.scores.labels != own.labels or of_test:
            continue
        shown = [of.demonstration_ids for of in (meta, one.meta)]
        if None not in shown and shown[0] != shown[1]:
            notes.append(
                f"cell {one.meta.cell} ({one.calibration}): its queries follow other demonstrations than the test rows "
                f"of cell {meta.cell}; this calibration is left out"
            )
            continue
        used.add(one.calibration)
        yield one


def _pair(meta: CellMeta) -> str:
    """The key that a cell shares with its calibration queries."""
    facts = {name: fact for name, fact in meta.facts.known().items() if name not in OF_QUERIES}
    return digest({"spec": meta.spec.model_dump(), "facts": facts})


def _without_scores(file: ResultFile) -> ResultFile:
    if SCORES not in file.table.column_names:
        return file
    return replace(file, table=file.table.drop_columns([SCORES]))


def _scores_of(file: ResultFile) -> CellScores | None:
    """A cell's scores; None if not all are stored, or rows have their own labels."""
    if file.meta is None or file.meta.label_order is None or SCORES not in file.table.column_names:
        return None
    labels, column = tuple(file.meta.label_order), file.table[SCORES].combine_chunks()
    sizes = np.diff(column.offsets.to_numpy())
    if column.null_count or not len(sizes) or (sizes != len(labels)).any():
        return None
    scores = column.flatten().to_numpy().reshape(len(sizes), len(labels))
    if np.isnan(scores).any():
        return None
    tests, golds = (tuple(file.table[name].to_pylist()) for name in ("test_id", "gold"))
    return CellScores(labels, tests, golds, scores)


def _took(asked: _Asked) -> CalibrationMeta:
    """The cost of a calibration's queries, without the prompt's shared part."""
    import pyarrow.compute as pc

    meta, table = asked.meta, asked.table
    tokens = pc.sum(pc.subtract(table["prompt_tokens"], table["cached_tokens"])).as_py()
    flops = None if meta.compute is None else len(table) * meta.compute.get("query_flops", np.nan)
    seconds = None if meta.seconds is None else max(meta.seconds - (meta.prefill_seconds or 0.0), 0.0)
    return CalibrationMeta(cell=meta.cell, queries=len(table), tokens=float(tokens), flops=flops, seconds=seconds)


def _calibrated(
    table: pa.Table, meta: CellMeta, scores: CellScores, took: CalibrationMeta | None
) -> tuple[pa.Table, CellMeta]:
    """The predictions and the metadata of the derived cell."""
    import pyarrow as pa

    name = str(scores.calibration)
    chances = np.exp(scores.logs)
    best = chances.argmax(axis=1)
    top = chances[np.arange(len(best)), best]
    rest = chances.copy()
    rest[np.arange(len(best)), best] = 0.0
    answers = [scores.labels[place] for place in best.tolist()]
    right = [gold == answer for gold, answer in zip(scores.golds, answers, strict=True)]
    cell, variant = f"{meta.cell}+{name}", f"{meta.variant}+{name}"
    columns: dict[str, pa.Array] = {
        "prediction": pa.array(answers, pa.string()),
        "correct": pa.array(right, pa.bool_()),
        "valid": pa.array([True] * len(best), pa.bool_()),
        "probability": pa.array(top, pa.float64()),
        "margin": pa.array(top - rest.max(axis=1), pa.float64()),
        "label_mass": pa.array(chances.sum(axis=1), pa.float64()),
        "cell": pa.array([cell] * len(best), pa.string()).dictionary_encode(),
        "variant": pa.array([variant] * len(best), pa.string()).dictionary_encode(),
    }
    for column, values in {**columns, **_scored(table, meta, scores.golds, answers)}.items():
        table = table.set_column(table.schema.get_field_index(column), column, values)
    facts = meta.facts.with_more(calibration=name)
    return table, meta.model_copy(update={"facts": facts, "cell": cell, "variant": variant, "calibration": took})


def _scored(table: pa.Table, meta: CellMeta, golds: Sequence[str], answers: Sequence[str]) -> dict[str, pa.Array]:
    """The scores of calibrated answers by those columns of the table that further metrics of the task fill.

    Empty for a metric that fails.
    """
    import pyarrow as pa

    found: dict[str, pa.Array] = {}
    for name in meta.task.metrics if meta.task else ():
        metric = METRICS.get(name)
        own = [one.column for one in metric.measures if one.column != "correct"] if metric else []
        if own := [column for column in own if column in table.column_names and table[column].null_count < len(table)]:
            values: Mapping[str, np.ndarray] = {}
            with METRICS.skipping(name):
                values = metric().score_golds([(gold,) for gold in golds], answers)
            found |= {column: pa.array(values.get(column, [None] * len(answers)), pa.float64()) for column in own}
    return found
