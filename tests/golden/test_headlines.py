"""docs/replication.md shows what the stored predictions on two small models, and the published ones, say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from support.benchmarks import benchmark

from icl_bench.analysis.all_findings import Findings

ROOT = Path(__file__).parents[2]
TASKS = {"trec": "TREC", "banking77": "Banking-77"}


@pytest.fixture(scope="module")
def headlines() -> Iterator[ModuleType]:
    """The program that makes the page's tables."""
    with benchmark("headlines") as module:
        yield module


@pytest.fixture(scope="module")
def found(headlines: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """The findings on the stored predictions."""
    findings: Findings = headlines.findings_on(tmp_path_factory.mktemp("stored"))
    return findings


def shown(heading: str) -> list[str]:
    """The rows of the first table under a heading of the page."""
    page = (ROOT / "docs" / "replication.md").read_text(encoding="utf-8")
    lines = page.split(f"\n## {heading}\n")[1].split("\n## ")[0].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| ---"))
    rows = []
    for line in lines[first + 1 :]:
        if not line.startswith("|"):
            break
        rows.append(line)
    return rows


def test_every_table_of_the_page_is_that_of_the_stored_predictions(headlines: ModuleType, found: Findings):
    for heading, claim in headlines.CLAIMS.items():
        assert shown(heading) == [str(row) for row in claim.table(found)], heading


def test_every_claim_has_the_verdicts_of_its_tables(headlines: ModuleType, found: Findings):
    assert shown("Which of the paper's claims hold") == headlines.claims(found)


def test_the_papers_own_rows_are_those_of_its_published_predictions(
    headlines: ModuleType, data_dir: Path, tmp_path: Path
):
    published = headlines.findings_on(tmp_path, [data_dir / "published" / "predictions.parquet"])
    assert shown("The paper's own predictions by the same rule") == headlines.published(published)
    page = " ".join((ROOT / "docs" / "replication.md").read_text(encoding="utf-8").split())
    assert headlines.order_beside_first(published) in page


def test_small_models_and_the_papers_are_judged_by_the_same_ks(headlines: ModuleType, found: Findings):
    """The verdict on accuracy is that of the intervals at k=10 and at the largest k, not of saturation."""
    curves = headlines.on_gpu(found.curves)
    for row in headlines.accuracy(found):
        points = curves[(curves["task"] == row.task) & (curves["model"] == row.model)].set_index("k")
        first, last = points.loc[10], points.loc[points.index.max()]
        apart = last["ci_low"] > first["ci_high"], last["ci_high"] < first["ci_low"]
        assert row.verdict == {(True, False): "holds", (False, True): "does not hold"}.get(
            apart, "cannot be determined"
        )


def test_what_was_computed_on_two_cores_says_how(headlines: ModuleType):
    origins = headlines.origins().values()
    assert origins
    for origin in origins:
        assert origin.facts.dtype == "bfloat16"
        assert origin.facts.test_rows == 250
        assert {"icl-bench", "torch", "transformers"} <= set().union(*origin.versions)


def test_what_was_computed_in_float32_says_so(headlines: ModuleType):
    for file in (headlines.SORTED, headlines.FLOAT32):
        origins = headlines.origins(file).values()
        assert {(origin.facts.dtype, origin.facts.test_rows) for origin in origins} == {("float32", 250)}


def test_trainings_are_as_the_page_says(headlines: ModuleType):
    origins = headlines.origins(headlines.FINETUNED).values()
    assert {(o.facts.dtype, o.facts.recipe["epochs"], o.facts.test_rows) for o in origins} == {("float32", 5, 250)}
    table = headlines.finetuned()
    assert set(zip(table["task"], table["select"], table["k"], table["draws"], table["rows"], strict=True)) == {
        (task, method, 1000, 3, 250)
        for task in ("trec", "banking77")
        for method in ("lora", "lora-paper", "full", "full-paper")
    }


def test_what_the_page_says_of_summaries_is_that_of_the_stored_ones(headlines: ModuleType, tmp_path: Path):
    origins = headlines.origins(headlines.SAMSUM).values()
    assert {(o.facts.dtype, o.facts.test_rows) for o in origins} == {("float32", 250)}
    findings: Findings = headlines.findings_on(tmp_path, (headlines.SAMSUM,))
    page = " ".join((ROOT / "docs" / "replication.md").read_text(encoding="utf-8").split())
    gain = findings.demonstrations_gain.set_index("k")
    for k in (10, 50):
        low, high = (f"{100 * gain[name][k]:+.1f}" for name in ("ci_low", "ci_high"))
        assert f"{100 * gain['difference'][k]:.1f}" in page
        assert f"({low} to {high}, p {gain['p_holm'][k]:.3f})" in page
    cut = findings.truncated_answers.set_index("k")
    assert (cut["truncated"][0], cut["answers"][0]) == (250, 250)
    assert "{:.0%}, {:.0%} and {:.0%}".format(*cut["share"][[1, 10, 50]]).replace("%", "", 2) in page
    curves = findings.curves.set_index("k")
    zero, *shown = (
        f"{100 * curves[name][k]:.1f}" for name, k in (("score", 0), *(("bertscore", k) for k in (1, 10, 50)))
    )
    assert f"Without demonstrations it is {zero} (" in page
    assert "({}, {} and {})".format(*shown) in page


def test_the_halves_of_labels_are_of_as_many_labels_and_of_the_ks_that_the_page_names(
    headlines: ModuleType, found: Findings
):
    origins = headlines.origins(headlines.HALF)
    assert {origin.facts.label_space for origin in origins.values()} == {"half:0"}
    table = found.curves[found.curves["variant"].isin(list(origins))]
    assert {name: (points["k"].min(), points["k"].max()) for name, points in table.groupby("task")} == {
        "banking77": (10, 1250),
        "clinic150": (10, 1250),
    }
    assert set(table["draws"]) == {3}
    assert not set(headlines.on_gpu(found.curves)["variant"]) & set(origins)


def test_the_table_of_blocks_is_that_of_its_stored_predictions(headlines: ModuleType, tmp_path: Path):
    findings: Findings = headlines.findings_on(tmp_path, (headlines.BLOCKS,))
    page = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")
    section = page.split("\n### On two tasks, with three draws\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert rows == headlines.blocks(findings)
    assert len(rows) == 16
    assert set(findings.attention_patterns["draws"]) == {3}


def test_the_evidence_of_choose_has_the_accuracies_of_its_stored_predictions():
    rows = pd.read_parquet(ROOT / "results" / "choosing.parquet")
    means = (100 * rows.groupby(["task", "select", "k"], observed=True)["correct"].mean()).round(1)
    page = (ROOT / "docs" / "choosing-evidence.md").read_text(encoding="utf-8")

    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]

    def cells(*point: Any, ks: Sequence[int]) -> list[str]:
        return [f"{means[*point, k]:.1f}" if (*point, k) in means else "" for k in ks]

    for task in rows["task"].unique():
        dense = cells(task, "dense", ks=(1, 5, 10, 25, 50, 100, 200))
        assert [TASKS[task], *dense, *cells(task, "encoder-probe", ks=(1000,))] in shown
        random, balanced, hybrid = (
            cells(task, select, ks=(5, 10, 25, 50, 100, 200)) for select in ("random", "balanced", "hybrid:5,by=dense")
        )
        at = shown.index([TASKS[task], "random", *random])
        assert shown[at + 1 : at + 3] == [["", "balanced", *balanced], ["", "`hybrid:5,by=dense`", *hybrid]]


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ((750, 1250), (250, 500), "holds"),
        ((250, 500), (750, 1250), "does not hold"),
        ((250, 750), (750, 1250), "cannot be determined"),
    ],
)
def test_a_saturation_is_earlier_where_the_ranges_are_apart(
    headlines: ModuleType, before: tuple[float, float], after: tuple[float, float], verdict: str
):
    assert headlines.earlier(before, after) == verdict


@pytest.mark.parametrize(
    ("first", "last", "falling", "rising"),
    [
        ((0.5, 0.6), (0.1, 0.2), "holds", "does not hold"),
        ((0.1, 0.2), (0.5, 0.6), "does not hold", "holds"),
        ((0.1, 0.5), (0.5, 0.6), "cannot be determined", "cannot be determined"),
    ],
)
def test_a_claim_on_growing_k_needs_intervals_that_are_apart(
    headlines: ModuleType, first: tuple[float, float], last: tuple[float, float], falling: str, rising: str
):
    points = pd.DataFrame([(100, *last), (50, 0.0, 1.0), (10, *first)], columns=["k", "ci_low", "ci_high"])
    assert headlines.falls(points) == falling
    assert headlines.rises(points) == rising
