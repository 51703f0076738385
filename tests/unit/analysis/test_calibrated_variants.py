"""Calibrated predictions are derived from others: they are compared with the same calibration only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import pytest
from support.predictions import scored

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.context import Context
from icl_bench.analysis.findings.saturation import label_spaces
from icl_bench.results.facts import UNKNOWN, ChatFacts, Facts, agreement
from icl_bench.results.reading import Stored, no_results
from icl_bench.seeds import generator

MADE = Facts(backend="fake", dtype="float32", scoring="exact", fingerprint="of m", test_rows=20, test="rows")


def run(name: str, facts: Facts = MADE, ks: tuple[int, ...] = (1, 2, 4), **axes: object) -> Stored:
    """Predictions of one variant, and the same with Batch Calibration; prompts depend on draw and k alone."""
    frames, known = [no_results()], {}
    for more in ("", "batch"):
        variant = f"{name}+{more}" if more else name
        known[variant] = facts.with_more(calibration=more or None)
        for k in ks:
            right = generator(0, f"{variant} {k}").random((3, 20)) < 0.3 + 0.1 * k
            rows = scored(right, k=k, variant=variant, cell=f"{variant} {k}")
            hashes = [f"{k} {draw} {test}" for draw, test in zip(rows["draw"], rows["test_id"], strict=True)]
            frames.append(rows.assign(prompt_hash=hashes))
    return Stored(pd.concat(frames, ignore_index=True).assign(**axes), {}, known, [])


def together(*parts: Stored) -> Stored:
    frames = [part.predictions for part in parts]
    variants = {variant: facts for part in parts for variant, facts in part.variants.items()}
    return Stored(pd.concat(frames, ignore_index=True), {}, variants, [])


def theirs() -> Stored:
    """An import of predictions that are not calibrated."""
    rows = run("theirs").predictions.query("variant == 'theirs'")
    return Stored(rows, {}, {"theirs": Facts(imported="a.csv")}, [])


COMPARED: Mapping[str, Callable[[], Stored]] = {
    "models": lambda: together(run("m"), run("n", MADE.with_more(fingerprint="of n"), model="n")),
    "replication": lambda: together(run("m"), theirs()),
    "chat_gain": lambda: together(run("m"), run("turns", MADE.with_more(chat=ChatFacts(style="turns")))),
    "retrieval_gain": lambda: together(run("m"), run("bm", MADE.with_more(sentence_encoder="bge"), select="dense")),
    "training_gain": lambda: together(run("m"), run("lora", MADE.with_more(scoring="classifier"), select="lora")),
    "perturbations": lambda: together(
        run("m"), run("wrong", MADE.with_more(perturbation="labels:noise:100"), perturbation="labels:noise:100")
    ),
    "sorting_penalty": lambda: together(run("m"), run("m", order="by-label")),
}
"""Finding -> what makes runs that it compares."""


@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_are_within_one_calibration(name: str):
    stored = COMPARED[name]()
    table = find(stored).context.table(name)
    sides = [[stored.variants[v].calibration for v in table[column]] for column in ("variant", "base_variant")]
    assert len(table)
    assert sides[0] == sides[1]
    plain = [of is None for of in sides[0]]
    assert any(plain), "the plain ones are still compared"
    assert all(plain) == (name == "replication"), "calibrated ones are, too, where both sides have them"


def test_a_calibrated_prediction_is_no_further_run_of_its_prompt():
    assert find(run("m")).noise_floor.empty
    rounded = run("half", MADE.with_more(dtype="bfloat16"))
    table = find(together(run("m"), rounded)).noise_floor
    assert set(zip(table["variant"], table["other_variant"], strict=True)) == {("half", "m")}


def test_a_calibrated_curve_begins_with_its_own_point_without_demonstrations():
    bare = run("bare", ks=(0,))
    found = find(together(bare, run("dense", MADE.with_more(sentence_encoder="bge"), select="dense")))
    curves = found.curves.set_index(["variant", "k"])["accuracy"]
    for variant in ("", "+batch"):
        own = bare.predictions.query(f"variant == 'bare{variant}'")["correct"].mean()
        assert curves[f"dense{variant}", 0] == pytest.approx(own)
    assert curves["dense", 0] != curves["dense+batch", 0]


def test_halves_of_a_label_space_are_beside_the_same_calibration():
    facts = {"all": UNKNOWN, "half": MADE, "also half": MADE.with_more(calibration="batch")}
    shares = pd.DataFrame(
        {
            "task": "t",
            "model": "m",
            "select": "random",
            "order": "drawn",
            "attention": "full",
            "variant": list(facts),
            "label_space": ["all", "half:1", "half:1"],
            "share_of_tested": [0.5, 0.4, 0.1],
        }
    )
    (found,) = label_spaces(shares, {}, facts=facts).itertuples()
    assert (found.half, found.subsets) == (0.4, 1)


def test_training_pays_off_beside_prompts_as_they_are():
    costs = {"training_flops": [1e15, np.nan, np.nan], "prefix_flops": 1e9, "query_flops": 1e9, "seconds": 1.0}
    rows = pd.DataFrame(
        {
            "task": "t",
            "model": "m",
            "select": ["lora", "random", "random"],
            "order": "drawn",
            "attention": "full",
            "variant": ["trained", "m", "m+batch"],
            "k": 4,
            **costs,
        }
    ).reindex(columns=[*find(run("m")).context.table("cost").columns])
    stored = together(run("m"), run("trained", MADE.with_more(scoring="classifier"), select="lora"))
    table = Context(stored, _tables={"cost": rows}).table("break_even")
    assert set(table["base_variant"]) == {"m"}


def test_no_calibration_is_a_fact_of_predictions_that_are_run_and_imported():
    batch = MADE.with_more(calibration="batch")
    assert MADE.agrees(MADE.with_more(sentence_encoder="bge"))
    assert not MADE.agrees(batch)
    assert not batch.agrees(Facts(imported="a.csv"))
    assert agreement({}, {}) == dict.fromkeys(("calibration", "samples", "temperature", "thoughts"), True)
