"""A small model is adapted to a pattern, in full too, and read before and after: one page says what came of it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from support.models import tiny_checkpoint
from support.program import Run, as_words

pytestmark = pytest.mark.slow

PATTERN = "grouped:2,4"
TABLES = ("adaptation_losses", "adaptation_points", "cost", "curves", "perplexity")


def adapting(folder: Path, name: str) -> tuple[str, ...]:
    return as_words(
        f"adapt --model {folder}/base --texts {folder}/learnt --length 64 --tokens 6k --batch 4 "
        f"--learning-rate 5e-3 --dtype float32 --device cpu --out {folder}/{name}"
    )


@pytest.fixture(scope="module")
def folder(program: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models: as it is, adapted to the pattern, trained on in full; texts to learn and to be read."""
    made: Path = tmp_path_factory.mktemp("adapt")
    tiny_checkpoint(made / "base")
    for split, first in (("learnt", 0), ("read", 700)):
        (made / split).mkdir()
        for word in ("river", "stone", "cloud"):
            lines = [f"The {word} is {i * 7 % 11} and then {i * 5 % 9}." for i in range(first, first + 400)]
            (made / split / f"{word}.txt").write_text("\n".join(lines))
    for name, attention in (("sparse", PATTERN), ("full", "full")):
        done = program(*adapting(made, name), "--attention", attention)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
        assert "million parameters" in done.stderr
        assert done.stderr.splitlines()[-1] == f"written: {made / name}"
    return made


def test_perplexity_scores_and_costs_of_all_stand_on_one_page(program: Run, folder: Path):
    results = folder / "results"
    for model, attention in (("base", f"full,{PATTERN}"), ("sparse", None), ("full", None)):
        own = () if attention is None else ("--attention", attention)
        common = ("--model", folder / model, "--dtype", "float32", "--device", "cpu", "--results", results)
        done = program("perplexity", "--texts", folder / "read", "--lengths", "32,64", "--windows", 4, *common, *own)
        assert done.returncode == 0, done.stderr
        done = program("run", "--task", "stdlib_six", "--k", "2,4", "--draws", 1, "--test-size", 6, *common, *own)
        assert done.returncode == 0, done.stderr

    done = program("summary", "--results", results, "--json")
    assert done.returncode == 0, done.stderr
    found = {name: pd.DataFrame(rows) for name, rows in json.loads(done.stdout).items() if name in TABLES}
    losses = found["adaptation_losses"]
    last = losses[losses["length"] == 64].set_index(["attention", "trained"])
    assert last["model"].to_dict() == {
        ("full", "before"): "base",
        (PATTERN, "before"): "base",
        ("full", "after"): "full",
        (PATTERN, "after"): "sparse",
    }
    assert last.loc[(PATTERN, "after"), "loss"] < last.loc[(PATTERN, "before"), "loss"] - 0.5
    whole = found["perplexity"].set_index(["model", "attention", "length"])
    for (attention, _), row in last.iterrows():
        assert row["perplexity"] == pytest.approx(whole.loc[(row["model"], attention, 64), "perplexity"])
    points = found["adaptation_points"]
    assert len(points) == 4 * 2
    assert set(points[points["trained"] == "after"]["model"]) == {"full", "sparse"}
    curves = found["curves"].set_index(["model", "attention", "k"])["score"]
    for _, row in points.iterrows():
        assert row["score"] == curves.loc[(row["model"], row["attention"], row["k"])]
    assert (points["cache_bytes"] > 0).all()
    costs = found["cost"].set_index(["model", "attention", "k"])
    assert costs.loc[("sparse", PATTERN, 4), "training_flops"] > 0

    done = program("report", "--results", results, "--out", folder / "report.html")
    assert done.returncode == 0, done.stderr
    assert "What did adaptation recover?" in (folder / "report.html").read_text()


def test_what_is_there_is_kept_and_other_options_are_refused(program: Run, folder: Path):
    words = adapting(folder, "sparse")
    done = program(*words, "--attention", PATTERN)
    assert (done.returncode, "holds this training already" in done.stderr) == (0, True)
    done = program(*words, "--attention", "approx:8,2")
    assert done.returncode == 2
    assert "holds another training (attention 'grouped:2,4' instead of 'approx:8,2')" in done.stderr
    assert "Traceback" not in done.stderr
