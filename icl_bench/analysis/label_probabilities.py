"""Stored label scores as probabilities, and measures of each prediction from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.columns import POINT
from icl_bench.analysis.statistics.grid import partition
from icl_bench.results.derived import CellScores
from icl_bench.results.facts import UNKNOWN, FactsOf
from icl_bench.wording import counted

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.results.reading import Stored

NUMBERS = ("labels", "rank", "probability", "log_loss", "brier")


def label_probabilities(frame: pd.DataFrame, scores: Mapping[str, CellScores], facts: FactsOf) -> pd.DataFrame:
    """The labelled predictions whose cells have the scores of all labels, with measures of their probabilities.

    Probabilities are normalised over labels, and calibrated if the cell is. Cells whose answers are chosen by
    length-normalised scores are left out, because their answer may not be the most probable label.

    Columns: the setting, k, draw, test_id, cell and gold; ``labels``, their number; ``answer``, the most probable
    label, the first on ties; ``correct``, whether it is the right one; ``probability``, that of the answer; ``rank``,
    the number of labels before the right one; ``log_loss`` of the right label in nats, infinite if a stated prior
    excludes it; and ``brier``, the Brier score of the prediction: the sum over labels of the squared difference between
    probability and outcome, from 0 to 2 (Brier 1950, Mon. Weather Rev. 78:1). A right answer that is not among the
    labels, because no train row has it, ranks behind all and has no log-loss.
    """
    frame = frame[frame["correct"].notna()]
    keys, parts = partition(frame, ["cell"])
    ids, variants = frame["test_id"].to_numpy(), frame["variant"].astype(object).to_numpy()
    numbers, answers = np.full((len(frame), len(NUMBERS)), np.nan), np.full(len(frame), None, dtype=object)
    for cell, rows in zip(keys["cell"].astype(str), parts, strict=True):
        of_cell = scores.get(cell)
        if of_cell is None or facts.get(variants[rows[0]], UNKNOWN).normalize is not None:
            continue
        place = {test: at for at, test in enumerate(of_cell.tests)}
        at = np.array([place[test] for test in ids[rows]])
        numbers[rows] = measures(of_cell.logs, of_cell.labels, of_cell.golds)[at]
        answers[rows] = np.array(of_cell.labels, dtype=object)[of_cell.logs.argmax(axis=1)][at]
    columns = dict(zip(NUMBERS, numbers.T, strict=True))
    table = frame[[*POINT, "draw", "test_id", "cell", "gold"]].assign(
        **columns, answer=answers, correct=columns["rank"] == 0
    )
    return table[table["labels"].notna()].reset_index(drop=True)


def without_scores(stored: Stored) -> list[str]:
    """Cells of test rows that scored labels common to all rows, but did not store all scores."""
    present = stored.rows.names("cell") if stored.without_scores else set()
    facts = {cell: stored.cells[cell].facts for cell in stored.without_scores if cell in present}
    return [cell for cell, of in facts.items() if of.choice_style is None and of.queries is None]


def missing_scores(stored: Stored) -> list[str]:
    """Notes on the cells that are missing in tables of label probabilities, if any."""
    notes, lost = [], "no top-n accuracy, log-loss, Brier score, temperature or abstention of these"
    if count := len(without_scores(stored)):
        notes.append(
            f"{counted(count, 'cell')} scored every label, but not all scores are stored (by an earlier version, or "
            f"with --keep-scores): {lost}; run them again in another folder"
        )
    if count := len(_exported_without_scores(stored)):
        notes.append(
            f"{counted(count, 'imported cell')} scored every label, but the import has no scores: {lost}; import a "
            "Parquet file of export --scores"
        )
    return notes


def _exported_without_scores(stored: Stored) -> list[str]:
    """Cells of imported exports that scored labels common to all rows, without the scores."""
    scored = {
        variant
        for variant, of in stored.variants.items()
        if of.imported is not None and of.scoring == "exact" and of.choice_style is None and of.queries is None
    }
    if not scored:
        return []
    cells = stored.rows.distinct(["cell", "variant"]).astype(object)
    cells = cells[cells["variant"].isin(scored) & ~cells["cell"].isin(list(stored.label_scores))]
    return cells["cell"].tolist()


def measures(logs: np.ndarray, labels: tuple[str, ...], golds: tuple[str, ...]) -> np.ndarray:
    """The ``NUMBERS`` of predictions from log-probabilities ``(predictions, labels)``: ``(predictions, numbers)``.

    A right answer that is not among the labels has the probability 0 and ranks behind all of them; its log-loss is NaN.
    """
    place = {label: at for at, label in enumerate(labels)}
    gold = np.array([place.get(label, -1) for label in golds])
    known = gold >= 0
    own = np.where(known, np.take_along_axis(logs, gold[:, None], axis=1)[:, 0], -np.inf)
    before = (logs > own[:, None]) | ((logs == own[:, None]) & (np.arange(len(labels)) < gold[:, None]))
    chances = np.exp(logs)
    return np.stack(
        [
            np.full(len(gold), len(labels)),
            np.where(known, before.sum(axis=1), len(labels)),
            chances.max(axis=1),
            np.where(known, -own, np.nan),
            ((chances**2).sum(axis=1) + 1 - 2 * np.exp(own)).clip(0, 2),
        ],
        axis=1,
    )
