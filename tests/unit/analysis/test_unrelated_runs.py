"""A finding keeps its rows whatever else is in the results folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.fakes import FREE_TEXT, FakeBackend, plan, runner
from support.predictions import scored

from icl_bench.analysis.all_findings import find
from icl_bench.results.facts import ChatFacts, Facts
from icl_bench.results.reading import Stored, no_results, read_some
from icl_bench.tasks.label_subset import HalfLabels

KS = (1, 2, 4, 8)
ALL_KS = ",".join(map(str, KS))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of most kinds."""
    folder = tmp_path_factory.mktemp("runs")
    run_here(folder, orders=["drawn", "by-label", "shuffled:1"])
    run_here(folder, selects=["bm25"], orders=["relevance", "by-label"])
    run_here(folder, half=HalfLabels(1))
    run_here(folder, scoring="exact", k="2,4")
    run_here(folder, queries="copied", k="4")
    for perturbation in ("labels:permuted", "nearest-removed:25", "farthest-removed:25"):
        run_here(folder, perturbation=perturbation, k="8")
    run_here(folder, name="texts", k="2", **FREE_TEXT)
    return folder


def run_here(folder: Path, results: Path | None = None, k: str = ALL_KS, **changes: Any) -> Stored:
    """Run a sweep of the folder's task, and read the results folder."""
    results = results or folder / "results"
    made = plan(folder / str(changes.get("name", "cards")), k, **changes)
    runner(made, results, FakeBackend()).run()
    return read_some(results)


MADE = Facts(backend="fake", dtype="float32", scoring="greedy", fingerprint="of m", test_rows=20, test="rows")


def made(seed: int, ks: tuple[int, ...] = KS, facts: Facts = MADE, draws: int = 3, **axes: object) -> Stored:
    """Made-up predictions of one variant, with its facts."""
    rng, variant = np.random.default_rng(seed), f"made {seed}"
    cells = [
        scored(rng.random((draws, 20)) < 0.4 + 0.1 * at, k=k, task="made", variant=variant, cell=f"{variant} {k}")
        for at, k in enumerate(ks)
    ]
    frame = pd.concat([no_results(), *cells], ignore_index=True).assign(**axes)
    return Stored(frame, {}, {variant: facts}, [])


def together(*parts: Stored) -> Stored:
    """Several folders' results as one."""
    return Stored(
        pd.concat([part.predictions for part in parts], ignore_index=True),
        {cell: meta for part in parts for cell, meta in part.cells.items()},
        {variant: facts for part in parts for variant, facts in part.variants.items()},
        [],
    )


def of_most_kinds() -> Stored:
    """Made-up runs of the other kinds."""
    conversation = MADE.with_more(chat=ChatFacts(style="turns"))
    trained = MADE.with_more(scoring="classifier", recipe={"learning_rate": 1e-4})
    return together(
        made(1),
        made(1, attention="block:1"),
        made(2, facts=MADE.with_more(fingerprint="of n"), model="n"),
        made(3, facts=conversation),
        made(4, facts=trained, select="lora"),
        made(5, facts=Facts(imported="theirs.csv")),
    )


UNRELATED: Mapping[str, Callable[[], Stored]] = {
    "another precision": lambda: made(11, facts=MADE.with_more(dtype="bfloat16")),
    "another way of scoring": lambda: made(12, facts=MADE.with_more(scoring="unconstrained")),
    "a model first by name, at one k": lambda: made(13, (2,), MADE.with_more(fingerprint="of a"), model="a"),
    "a model first by name, of one selector": lambda: made(
        14, KS, MADE.with_more(fingerprint="of b"), model="b", select="bm25"
    ),
    "another test set": lambda: made(15, facts=MADE.with_more(test="others", test_rows=9)),
    "another task": lambda: made(16, facts=MADE, task="another"),
    "another import": lambda: made(17, facts=Facts(imported="others.csv")),
    "a conversation with instructions": lambda: made(
        18, facts=MADE.with_more(chat=ChatFacts(style="one", system="Be brief."))
    ),
    "another training": lambda: made(19, facts=MADE.with_more(scoring="classifier"), select="probe"),
    "calibrated predictions": lambda: made(21, facts=MADE.with_more(calibration="batch")),
    "another attention": lambda: made(20, facts=MADE, attention="block:2"),
}


Keys = Mapping[str, set[tuple[Any, ...]]]
"""Finding -> what its rows are about."""


def keys(stored: Stored) -> Keys:
    about = ["task", "model", "select", "order", "attention", "variant", "k", "perturbation", "chat", "beside"]
    of: dict[str, set[tuple[Any, ...]]] = {}
    for name, table in find(stored).tables():
        if name == "best_points":  # of all that there is
            table = table[["task", "model"]]
        columns = [column for column in about if column in table]
        of[name] = set(table[columns].astype(object).itertuples(index=False, name=None))
    return of


def lost(before: Keys, after: Stored) -> list[str]:
    """The rows that are no longer there."""
    now = keys(after)
    return [f"{name}: {row}" for name, rows in before.items() for row in sorted(rows - now[name], key=str)]


@pytest.fixture(scope="module")
def computed(runs: Path) -> Keys:
    return keys(read_some(runs / "results"))


@pytest.fixture(scope="module")
def made_up() -> Keys:
    return keys(of_most_kinds())


APART = [
    [
        *("another precision", "a model first by name, at one k", "another task"),
        *("another training", "calibrated predictions"),
    ],
    [
        *("another way of scoring", "a model first by name, of one selector", "another import"),
        *("another test set", "a conversation with instructions", "another attention"),
    ],
]


@pytest.mark.parametrize(
    "names", [*APART, *(pytest.param([name], marks=pytest.mark.thorough) for name in UNRELATED)], ids=" and ".join
)
def test_findings_on_made_up_runs_keep_their_rows(made_up: Keys, names: list[str]):
    """Some kinds of other runs at a time; each alone is asked by ``make test-thorough``."""
    assert sorted(name for each in APART for name in each) == sorted(UNRELATED)
    assert not lost(made_up, together(of_most_kinds(), *(UNRELATED[name]() for name in names)))


def test_made_up_and_computed_runs_have_rows_in_most_findings(computed: Keys, made_up: Keys):
    """Else that no row is lost would say little."""
    without = {name for name, rows in computed.items() if not rows and not made_up[name]}
    assert without == {
        "abstention",
        "adaptation_course",
        "adaptation_losses",
        "adaptation_points",
        "break_even",
        "calibration_gain",
        "self_consistency",
        "demonstrations_gain",
        "frontier_across_models",
        "group_means",
        "label_thresholds",
        "perplexity",
        "probability_scores",
        "race_rounds",
        "races",
        "risk_coverage",
        "study_points",
        "temperature",
        "truncated_answers",
        "unmatched_imports",
    }


@pytest.mark.parametrize(
    "unrelated",
    [
        pytest.param([{"scoring": "unconstrained"}], marks=pytest.mark.thorough),
        [{"scoring": "unconstrained", "half": HalfLabels(1)}],
        pytest.param([{"seed": 5}, {"test_size": 3}], marks=pytest.mark.thorough),
        [{"perturbation": "inputs-only"}, {"name": "others"}, {"selects": ["hybrid:1"]}, {"half": HalfLabels(2)}],
    ],
    ids=str,
)
def test_findings_on_computed_runs_keep_their_rows(
    runs: Path, tmp_path: Path, computed: Keys, unrelated: list[dict[str, Any]]
):
    there = read_some(runs / "results")
    for changes in unrelated:
        other = run_here(runs, tmp_path / "others", **changes)
    cells = {cell: meta for cell, meta in other.cells.items() if cell not in there.cells}
    new = other.predictions["cell"].isin(cells)
    other = replace(other, given=other.predictions[new], cells=cells)
    assert not lost(computed, together(there, other))
