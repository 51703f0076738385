"""Attention patterns and perplexity from the command line, with the real model and real text."""

from __future__ import annotations

import gzip
import inspect
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.program import Run, as_words

import icl_bench
from icl_bench.results.reading import read_stored

pytestmark = pytest.mark.slow
ASKED = ("--task", "stdlib", "--model", "gemma3-270m", "--draws", 1, "--test-size", 4, "--dtype", "float32")


@pytest.fixture(scope="module")
def read(program_here: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of one prompt of each kind, read in several ways."""
    results = tmp_path_factory.mktemp("read") / "results"
    patterns = "full,block:3,block:3,sink=0,local=0,block:100,grouped:2,64,approx:128,8"
    done = program_here("run", *ASKED, "--k", 12, "--attention", patterns, "--results", results)
    assert done.returncode == 0, done.stderr
    assert "block:3,sink=0,local=0" in done.stdout
    retrieved = as_words(f"--k 4 --test-size 2 --select bm25 --attention full,block:1,reuse --results {results}")
    own = program_here("run", *ASKED, *retrieved)
    assert own.returncode == 0, own.stderr
    return results


def test_patterns_read_the_same_prompts(read: Path):
    frame = icl_bench.read(read).predictions.query("select == 'random'")
    assert frame["attention"].nunique() == 6
    assert (frame.groupby("test_id", observed=True)["prompt_hash"].nunique() == 1).all()


def test_one_block_is_full_attention_and_small_blocks_are_not(read: Path):
    frame = icl_bench.read(read).predictions.query("select == 'random'")
    answers = frame.pivot(index="test_id", columns="attention", values="prediction")
    assert (answers["block:100,sink=1,local=2"] == answers["full"]).all()
    assert (answers["block:3,sink=0,local=0"] != answers["full"]).any()


def test_files_say_what_was_computed_and_held(read: Path):
    cells = read_stored(read).cells.values()
    of = {(c.spec.select, c.spec.attention): c for c in cells}
    full, small = of["random", "full"], of["random", "block:3,sink=0,local=0"]
    assert small.compute["prefix_flops"] < full.compute["prefix_flops"]
    grouped = of["random", "grouped:2,64"]
    for cell in (full, small, grouped, of["random", "approx:128,8"]):
        held, formula = cell.peak_cache_bytes, cell.compute["cache_bytes"]
        assert held == pytest.approx(formula, rel=0.08)
        assert cell.prefill_seconds > 0
    assert grouped.peak_cache_bytes < full.peak_cache_bytes


def test_retrieved_demonstrations_are_computed_once(read: Path):
    frame = icl_bench.read(read).predictions.query("select == 'bm25'")
    cached = frame.groupby("attention", observed=True)["cached_tokens"].sum()
    assert cached["block:1,sink=1,local=0,reuse"] > cached["full"]


def test_show_rebuilds_a_prompt_that_was_read_in_blocks(program_here: Run, read: Path):
    for select, attention in (("random", "block:3"), ("bm25", "block:1,reuse")):
        k = 12 if select == "random" else 4
        words = f"show --task stdlib --k {k} --select {select} --attention {attention} --results {read} --json"
        done = program_here(*as_words(words))
        assert done.returncode == 0, done.stderr
        assert "hash checked" in json.loads(done.stdout)["checked"]


def test_plan_counts_operations_and_cache_by_attention(program_here: Run):
    done = program_here("plan", *ASKED, "--k", "24", "--attention", "full,block:2,grouped:2,64", "--json")
    full, block, grouped = json.loads(done.stdout)
    assert block["attention"] == "block:2,sink=1,local=2"
    assert block["flops"] < full["flops"]
    assert block["cache_bytes"] == full["cache_bytes"]
    assert grouped["cache_bytes"] < full["cache_bytes"]


@pytest.mark.thorough  # the losses of patterns are compared with plain passes elsewhere
def test_perplexity_of_real_text_grows_where_less_is_seen(program_here: Run, tmp_path: Path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text(inspect.getsource(zipfile)[:1000])
    (texts / "b.txt.gz").write_bytes(gzip.compress(inspect.getsource(inspect)[:1000].encode()))
    words = as_words(
        f"perplexity --model gemma3-270m --texts {texts} --lengths 64,192 --attention full,grouped:3,16 "
        f"--dtype float32 --results {tmp_path}"
    )
    done = program_here(*words, "--json")
    assert done.returncode == 0, done.stderr
    rows = {(r["attention"], r["length"]): r for r in json.loads(done.stdout)["perplexity"]}
    assert rows["full", 192]["perplexity"] < rows["full", 64]["perplexity"]
    assert rows["grouped:3,16", 192]["ratio"] > 1
    assert np.isfinite([r["perplexity"] for r in rows.values()]).all()
    again = program_here(*words)
    assert "0 computed, 4 already computed" in again.stderr
