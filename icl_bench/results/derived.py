"""Calibrated predictions as cells of their own, derived from stored label scores when a folder is read.

A derived cell has the name of its cell with the calibration behind it, ``1a2b3c4d5e6f+batch``, and a
variant likewise, whose facts are those of its cell with ``calibration``. So every table treats it as one
more setting of the model, and :func:`base_cell` leads back to the predictions and the exact prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.results.calibration import BATCH, Calibration, of_queries
from icl_bench.results.cells import SCORES, digest
from icl_bench.results.facts import FactsOf
from icl_bench.results.label_bias import calibrated, content_bias, mean_bias, normalised, prior_bias
from icl_bench.results.stored_meta import CalibrationMeta, CellMeta

if TYPE_CHECKING:
    from icl_bench.results.result_file import ResultFile

OF_QUERIES = ("queries", "test", "test_rows")
"""Facts in which a cell and the queries that are asked to calibrate it differ."""

Priors = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Task -> name of a stated prior -> label -> share."""


def base_cell(cell: str) -> str:
    """The cell whose stored predictions a cell's are derived from; the cell itself if they are not.

    >>> base_cell("1a2b3c4d5e6f+batch")
    '1a2b3c4d5e6f'
    """
    return cell.partition("+")[0]


def is_derived(cell: str) -> bool:
    """Whether a cell's predictions are derived, in no file."""
    return base_cell(cell) != cell


def reads_test_inputs(facts: FactsOf) -> bool:
    """Whether some variant's calibration estimates the bias on the inputs of test rows."""
    names = {one.calibration for one in facts.values()} - {None}
    return any(Calibration.parse(str(name)).reads_test_inputs for name in names)


@dataclass(frozen=True)
class CellScores:
    """The label scores of one cell, of all its predictions and labels."""

    labels: tuple[str, ...]
    tests: tuple[str, ...]
    """Ids of the test examples, in the order of the scores."""
    golds: tuple[str, ...]
    """The right label of each."""
    raw: np.ndarray
    """Log-probabilities as the model gives them: ``(predictions, labels)`` float32."""
    bias: np.ndarray | None = None
    """What a calibration subtracts: ``(labels,)``."""
    calibration: Calibration | None = None

    @property
    def logs(self) -> np.ndarray:
        """Log-probabilities among the labels, calibrated: ``(predictions, labels)`` float64."""
        return normalised(self.raw.astype(float)) if self.bias is None else calibrated(self.raw, self.bias)


@dataclass
class Derived:
    """What a folder's files are with their calibrated predictions."""

    files: list[ResultFile] = field(default_factory=list)
    """Those of test rows, without label scores, then the derived ones."""
    scores: dict[str, CellScores] = field(default_factory=dict)
    """Cell -> its scores; also of derived cells."""
    pool_scores: dict[str, CellScores] = field(default_factory=dict)
    """Cell -> the scores of the rows of the pool that were asked to calibrate it."""
    lacking: list[str] = field(default_factory=list)
    """Cells that scored every label, but have not all scores stored."""


def with_calibrations(files: Iterable[ResultFile], priors: Priors) -> Derived:
    """Derive what the files' label scores and the queries asked for calibrations allow.

    Queries asked for a calibration are no test rows, and are left out.
    """
    found = Derived()
    asked: dict[str, list[ResultFile]] = {}
    tested: list[ResultFile] = []
    for file in files:
        calibration = of_queries(file.meta.facts.queries) if file.meta is not None else None
        bare = _without_scores(file)
        scores = _scores_of(file)
        if file.meta is not None and scores is not None:
            found.scores[file.meta.cell] = scores
        if calibration is not None and file.meta is not None:
            asked.setdefault(_pair(file.meta), []).append(bare)
        else:
            found.files.append(bare)
            if file.meta is not None and scores is not None:
                tested.append(bare)
            elif file.meta is not None and file.meta.facts.scoring == "exact":
                found.lacking.append(file.meta.cell)
    for file in tested:
        assert file.meta is not None, "imports have no scores"
        if file.meta.facts.queries is None and file.meta.facts.normalize is None:
            _derive(file, file.meta, asked.get(_pair(file.meta), ()), priors, found)
    for files_asked in asked.values():
        for file in files_asked:
            assert file.meta is not None, "only cells are asked for calibrations"
            found.scores.pop(file.meta.cell, None)
    return found


def _derive(file: ResultFile, meta: CellMeta, asked: Iterable[ResultFile], priors: Priors, found: Derived) -> None:
    """Add every calibration of one cell."""
    own = found.scores[meta.cell]
    raw = own.raw.astype(float)
    ways: list[tuple[Calibration, np.ndarray, CalibrationMeta | None]] = []
    if len(own.labels) > 1 and len(raw) > 1:
        ways.append((Calibration(BATCH), mean_bias(raw), None))
    for calibration, scores, other in _one_of_each(own, asked, found):
        estimate = mean_bias if calibration.name == BATCH else content_bias
        if calibration.rows is not None and calibration.rows >= len(found.pool_scores.get(meta.cell, scores).raw):
            found.pool_scores[meta.cell] = scores
        ways.append((calibration, estimate(scores.raw.astype(float)), _took(other)))
    for name, shares in priors.get(meta.spec.task, {}).items():
        if set(shares) <= set(own.labels):
            prior = np.array([shares.get(label, 0.0) for label in own.labels])
            ways.append((Calibration("prior", prior=name), prior_bias(raw, prior), None))
    for calibration, bias, took in ways:
        new = _as_derived(file, meta, replace(own, bias=bias, calibration=calibration), took)
        assert new.meta is not None, "it has its cell's metadata"
        found.files.append(new)
        found.scores[new.meta.cell] = replace(own, bias=bias, calibration=calibration)


def _one_of_each(
    own: CellScores, asked: Iterable[ResultFile], found: Derived
) -> Iterator[tuple[Calibration, CellScores, ResultFile]]:
    """For each calibration the queries that were asked, none of them a test row; the first by the cell's hash,
    as other test rows may have left other rows of the pool to ask.
    """
    used: set[Calibration] = set()
    for file in sorted(asked, key=lambda one: one.meta.cell if one.meta is not None else ""):
        assert file.meta is not None, "only cells are asked for calibrations"
        calibration, scores = of_queries(file.meta.facts.queries), found.scores.get(file.meta.cell)
        if scores is None or calibration is None or calibration in used or scores.labels != own.labels:
            continue
        if calibration.rows is None or not set(scores.tests) & set(own.tests):
            used.add(calibration)
            yield calibration, scores, file


def _pair(meta: CellMeta) -> str:
    """What a cell and the queries that are asked to calibrate it have in common."""
    facts = {name: fact for name, fact in meta.facts.known().items() if name not in OF_QUERIES}
    return digest({"spec": meta.spec.model_dump(), "facts": facts})


def _without_scores(file: ResultFile) -> ResultFile:
    if SCORES not in file.table.column_names:
        return file
    return replace(file, table=file.table.drop_columns([SCORES]))


def _scores_of(file: ResultFile) -> CellScores | None:
    """A cell's scores; None if not all are stored, or rows have labels of their own."""
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


def _took(asked: ResultFile) -> CalibrationMeta:
    """What asking the queries of a calibration took beside the prompt that all queries share."""
    import pyarrow.compute as pc

    assert asked.meta is not None, "only cells are asked for calibrations"
    meta, table = asked.meta, asked.table
    tokens = pc.sum(pc.subtract(table["prompt_tokens"], table["cached_tokens"])).as_py()
    flops = None if meta.compute is None else len(table) * meta.compute.get("query_flops", np.nan)
    seconds = None if meta.seconds is None else max(meta.seconds - (meta.prefill_seconds or 0.0), 0.0)
    return CalibrationMeta(cell=meta.cell, queries=len(table), tokens=float(tokens), flops=flops, seconds=seconds)


def _as_derived(file: ResultFile, meta: CellMeta, scores: CellScores, took: CalibrationMeta | None) -> ResultFile:
    """The cell of calibrated predictions."""
    import pyarrow as pa

    name = str(scores.calibration)
    chances = np.exp(scores.logs)
    best = chances.argmax(axis=1)
    top = chances[np.arange(len(best)), best]
    rest = chances.copy()
    rest[np.arange(len(best)), best] = 0.0
    answers = [scores.labels[place] for place in best.tolist()]
    right = [gold == answer for gold, answer in zip(file.table["gold"].to_pylist(), answers, strict=True)]
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
    table = file.table
    for column, values in columns.items():
        table = table.set_column(table.schema.get_field_index(column), column, values)
    facts = meta.facts.with_more(calibration=name)
    new = meta.model_copy(update={"facts": facts, "cell": cell, "variant": variant, "calibration": took})
    return replace(file, table=table, meta=new)
