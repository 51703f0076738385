"""Made-up label scores: stored ones of cells, with their predictions."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pandas as pd

from icl_bench.backends.interface import Answer, Decoding, Exact
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.calibration import Calibration
from icl_bench.results.derived import CellScores
from icl_bench.results.facts import Facts
from icl_bench.results.reading import Stored, no_results
from support.fakes import FakeBackend
from support.predictions import AXES


def letters(count: int) -> tuple[str, ...]:
    """Names of labels."""
    return tuple(f"label {number:02}" for number in range(count))


def cell_scores(raw: np.ndarray, gold: np.ndarray, bias: np.ndarray | None = None) -> CellScores:
    """Scores ``(tests, labels)`` of one cell, and the place of each right label."""
    labels = letters(raw.shape[1])
    tests = tuple(f"row {number:03}" for number in range(len(raw)))
    calibration = None if bias is None else Calibration("batch")
    return CellScores(labels, tests, tuple(labels[at] for at in gold), raw.astype(np.float32), bias, calibration)


def predictions(name: str, of: CellScores, **axes: Any) -> pd.DataFrame:
    """The predictions of a cell: the likeliest labels."""
    answers = [of.labels[at] for at in of.logs.argmax(axis=1)]
    chance = np.exp(of.logs).max(axis=1)
    rows = {"test_id": of.tests, "gold": of.golds, "prediction": answers, "probability": chance, "cell": name}
    right = [gold == answer for gold, answer in zip(of.golds, answers, strict=True)]
    return pd.DataFrame({**AXES, **axes, **rows, "label_mass": 1.0, "valid": True, "correct": right})


def stored(cells: dict[str, tuple[CellScores, dict[str, Any]]], facts: dict[str, Facts] | None = None) -> Stored:
    """A folder of cells with scores; the axes of each are given."""
    frames = [predictions(name, of, **axes) for name, (of, axes) in cells.items()]
    scores = {name: of for name, (of, _) in cells.items()}
    frame = pd.concat([no_results(), *frames], ignore_index=True)
    return Stored(frame, {}, facts or {}, [], label_scores=scores)


def drawn(seed: int, draws: int = 3, tests: int = 40, labels: int = 6, sure: float = 2.0) -> Stored:
    """A point of several draws, whose right labels are likelier than others."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(labels, size=tests)
    cells = {}
    for draw in range(draws):
        raw = rng.normal(0, 1.5, (tests, labels)) - 3
        raw[np.arange(tests), gold] += rng.exponential(sure, tests)
        cells[f"cell {draw}"] = (cell_scores(raw, gold), {"draw": draw})
    return stored(cells)


class ScoringBackend(FakeBackend):
    """Scores every label by the hash of the prompt's ids."""

    def _answered(self, prompts: PromptSet, index: int, decoding: Decoding) -> Answer:
        if not isinstance(decoding, Exact):
            return super()._answered(prompts, index, decoding)
        seed = int(hashlib.sha256(str(prompts.ids(index)).encode()).hexdigest()[:8], 16)
        scores = np.random.default_rng(seed).normal(-3, 2, len(decoding.trie.ends))
        return Answer.of_scores(index, scores, decoding.sizes, len(prompts.prefix))
