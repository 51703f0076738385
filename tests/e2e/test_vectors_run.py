"""A model is trained to read vectors, is asked what stands in them alone, and every prediction shows them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.program import Run, as_words

import icl_bench

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from vectors import write_decoder, write_task

pytestmark = pytest.mark.slow


def training(folder: Path) -> tuple[str, ...]:
    return as_words(
        f"train-vectors --task {folder}/colours.yaml --model {folder}/decoder --train all --epochs 4 --batch 64 "
        f"--learning-rate 5e-4 --dtype float32 --out {folder}/reader"
    )


@pytest.fixture(scope="module")
def trained(program: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small decoder that was trained on texts of two assignments, drawn anew for every question."""
    folder: Path = tmp_path_factory.mktemp("vectors")
    write_task(folder, 2, 2100)
    write_decoder(folder / "decoder", 256, 2)
    done = program(*training(folder), "--vectors", 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    said = done.stderr.splitlines()
    assert "2,000 rows of the pool in 128 steps of 64, each with 2 passages as vectors" in done.stderr
    assert said[-1] == f"written: {folder / 'reader'}"
    return folder


def run(program: Run, folder: Path, *more: object) -> list[str]:
    words = f"run --task {folder}/colours.yaml --model {folder}/reader --k 0 --draws 1 --test-size 100"
    done = program(*as_words(f"{words} --dtype float32 --device cpu --results {folder}/results"), *more)
    return [str(done.returncode), done.stdout, done.stderr]


def test_what_stands_in_vectors_alone_is_answered(program: Run, trained: Path):
    """Colours and words are assigned anew in every test row; by chance one of eight is right."""
    for pattern in ("vectors:2", "full"):
        code, _out, err = run(program, trained, "--attention", pattern)
        assert code == "0", err
    frame = icl_bench.read(trained / "results").predictions
    right = frame.groupby("attention")["correct"].mean()
    assert right["vectors:2"] >= 0.9
    assert right["full"] < 0.25

    costs = icl_bench.read(trained / "results").findings.cost.set_index("attention")
    assert costs.loc["vectors:2", "training_flops"] > costs.loc["vectors:2", "query_flops"] > 0
    assert costs.loc["vectors:2", "training_seconds"] > 0
    # the decoder was trained too: its answers without vectors rest on that as well
    assert costs.loc["full", "training_flops"] == costs.loc["vectors:2", "training_flops"]

    row = frame[frame["attention"] == "vectors:2"].iloc[0]
    words = as_words(f"show --task {trained}/colours.yaml --k 0 --attention vectors:2 --results {trained}/results")
    done = program(*words, "--test-id", row["test_id"], "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["checked"].startswith("the very token ids")
    assert len(shown["vectors"]) == 2
    asked = shown["prompt"].splitlines()[0]
    assert f"word: {asked} / colour: {row['gold']}" in shown["vectors"]


def test_training_again_does_nothing_and_other_options_are_refused(program: Run, trained: Path):
    done = program(*training(trained), "--vectors", 2)
    assert (done.returncode, "holds this training already" in done.stderr) == (0, True)
    done = program(*training(trained), "--vectors", 3)
    assert done.returncode == 2
    assert "holds another training (vectors 2 instead of 3)" in done.stderr
