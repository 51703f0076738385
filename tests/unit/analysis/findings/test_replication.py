"""Points beside imported ones: the same within a margin, different, or undetermined."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from support.predictions import AXES

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.findings.replication import in_words, replication, unmatched_imports
from icl_bench.report.headlines import headlines
from icl_bench.report.naming import Naming
from icl_bench.results.facts import Facts
from icl_bench.results.reading import Stored

ROWS = 200
FACTS = {"here": Facts(seed=0, labels="a"), "theirs": Facts(imported="published.csv")}


def drawn(variant: str, share: float, draws: int, seed: int, **changes: object) -> pd.DataFrame:
    """Answers of which a share is right, with rows that are hard for everybody."""
    rng = np.random.default_rng(seed)
    hard = np.random.default_rng(99).normal(0, 0.1, ROWS)
    parts = [
        pd.DataFrame(
            {
                "test_id": [str(i) for i in range(ROWS)],
                "gold": "a",
                "prediction": "a",
                "correct": rng.random(ROWS) < share + hard,
                "valid": True,
            }
        ).assign(**{**AXES, "draw": draw, "variant": variant, **changes})
        for draw in range(draws)
    ]
    return pd.concat(parts, ignore_index=True)


def test_the_same_point_agrees_and_another_does_not():
    frame = pd.concat(
        [
            drawn("here", 0.7, 10, 0, k=10),
            drawn("theirs", 0.7, 10, 1, k=10),
            drawn("here", 0.5, 10, 2, k=50),
            drawn("theirs", 0.7, 10, 3, k=50),
            drawn("here", 0.5, 10, 4, k=100),
        ]
    )
    found = replication(frame, FACTS).set_index("k")
    assert found["agrees"].to_dict() == {10: True, 50: False}
    assert found.loc[50, "difference"] == pytest.approx(-0.2, abs=0.04)
    assert found["base_draws"].tolist() == [10, 10]
    assert set(found["base_made"]) == {"imported"}


def varying(variant: str, shares: tuple[float, ...], seed: int) -> pd.DataFrame:
    """Answers of draws that have these shares of right ones."""
    parts = [drawn(variant, share, 1, seed + draw).assign(draw=draw) for draw, share in enumerate(shares)]
    return pd.concat(parts).assign(k=10)


def test_two_draws_that_are_20_points_apart_are_not_the_same():
    frame = pd.concat([varying("here", (0.4, 0.6), 0), varying("theirs", (0.6, 0.8), 10)])
    (row,) = replication(frame, FACTS).to_dict("records")
    assert row["difference"] == pytest.approx(-0.2, abs=0.07)
    assert row["ci_low"] < 0 < row["ci_high"]
    assert (row["verdict"], row["agrees"]) == ("undetermined", None)


def test_an_interval_within_the_margin_is_the_same_even_if_it_excludes_0():
    same = drawn("here", 0.7, 5, 0, k=10)
    better = same.assign(correct=same["correct"] | same["test_id"].isin(["1", "2", "3", "4"]))
    frame = pd.concat([better, same.assign(variant="theirs")])
    table = replication(frame, FACTS)
    (row,) = table.to_dict("records")
    assert row["ci_low"] > -0.05
    assert row["ci_high"] < 0.05
    assert (row["verdict"], row["agrees"]) == ("same within 5 points", True)


def test_a_sentence_names_the_margin_and_the_interval():
    frame = pd.concat(
        [
            drawn("here", 2.0, 5, 0, k=10),
            drawn("theirs", 2.0, 5, 1, k=10),
            drawn("here", 0.5, 5, 2, k=50),
            drawn("theirs", 0.7, 5, 3, k=50),
            drawn("here", 0.5, 1, 4, k=100),
            drawn("theirs", 0.5, 5, 5, k=100),
        ]
    )
    same, different, undetermined = in_words(replication(frame, FACTS)).split("; ")
    assert same == "same within 5 points at k = 10 (+0.0 points, 95% interval -1.4 to +1.4)"
    assert re.fullmatch(r"different at k = 50 \(-2\d\.\d points, 95% interval -\d+\.\d to -\d+\.\d\)", different)
    assert undetermined.startswith("undetermined whether it is the same within 5 points at k = 100 (")


def test_the_intervals_of_several_points_are_named_as_their_range():
    frame = pd.concat([drawn(v, 2.0, 5, 0, k=k) for v in ("here", "theirs") for k in (10, 1000)])
    assert in_words(replication(frame, FACTS)) == (
        "same within 5 points at k = 10 and 1,000 (95% intervals between -1.6 and +1.6 points)"
    )


def test_one_draw_is_undetermined():
    frame = pd.concat([drawn("here", 0.5, 1, 0, k=10), drawn("theirs", 0.7, 5, 1, k=10)])
    found = replication(frame, FACTS)
    assert found["agrees"].tolist() == [None]
    assert found["verdict"].tolist() == ["undetermined"]
    assert found["withheld"].tolist() == ["one draw"]


def test_without_an_import_there_is_nothing_to_compare_with():
    assert replication(drawn("here", 0.5, 3, 0, k=10), FACTS).empty
    assert replication(drawn("theirs", 0.5, 3, 0, k=10), FACTS).empty


def test_draws_are_each_sides_own_though_they_have_equal_numbers():
    frame = pd.concat([drawn("here", 0.7, 5, 0, k=10), drawn("theirs", 0.7, 3, 1, k=10)])
    (row,) = replication(frame, FACTS).to_dict("records")
    assert (row["draws"], row["base_draws"], row["left_out"]) == (5, 3, 0)
    assert (row["made"], row["base_made"]) == ("here", "imported")
    assert (row["variant"], row["base_variant"]) == ("here", "theirs")


def test_the_same_answers_on_both_sides_agree():
    same = drawn("here", 2.0, 3, 0, k=10)
    frame = pd.concat([same, same.assign(variant="theirs")])
    (row,) = replication(frame, FACTS).to_dict("records")
    assert row["difference"] == 0
    assert row["agrees"] is True


def test_what_is_better_here_does_not_agree_either():
    frame = pd.concat([drawn("here", 0.8, 5, 0, k=10), drawn("theirs", 0.5, 5, 1, k=10)])
    (row,) = replication(frame, FACTS).to_dict("records")
    assert row["ci_low"] > 0
    assert row["agrees"] is False


def test_an_imported_export_of_another_machine_is_compared():
    frame = pd.concat([drawn("here", 0.7, 3, 0, k=10), drawn("theirs", 0.7, 3, 1, k=10)])
    here = FACTS["here"].with_more(dtype="float32", fingerprint="a")
    theirs = FACTS["theirs"].with_more(dtype="bfloat16", fingerprint="b", seed=1, labels="a")
    assert len(replication(frame, {"here": here, "theirs": theirs})) == 1
    for smaller in ({"kv_cache_dtype": "fp8"}, {"quantization": "fp8"}):
        assert len(replication(frame, {"here": here, "theirs": theirs.with_more(**smaller)})) == 1
        assert len(replication(frame, {"here": here.with_more(**smaller), "theirs": theirs})) == 1


def test_what_differs_in_a_fact_that_both_have_is_not_compared():
    frame = pd.concat([drawn("here", 0.7, 3, 0, k=10), drawn("theirs", 0.7, 3, 1, k=10)])
    assert len(replication(frame, FACTS)) == 1
    other = FACTS | {"theirs": FACTS["theirs"].with_more(labels="b")}
    assert replication(frame, other).empty


def test_half_of_the_labels_is_compared_with_the_same_half():
    """It is an easier task, and an import has no facts that say so."""
    here, theirs = drawn("here", 0.9, 3, 0, k=10), drawn("theirs", 0.6, 3, 1, k=10)
    for half, other in (("half:1", None), (None, "half:1"), ("half:2", "half:1")):
        rows = pd.concat([here.assign(label_space=half), theirs.assign(label_space=other)])
        assert replication(rows, FACTS).empty
        (row,) = unmatched_imports(rows, FACTS).to_dict("records")
        assert (row["differs"], row["imported"], row["here"]) == ("labels", other or "all", half or "all")
    both = pd.concat([here, theirs]).assign(label_space="half:1")
    assert len(replication(both, FACTS)) == 1
    assert unmatched_imports(both, FACTS).empty


def test_the_key_findings_name_the_verdict_with_its_interval():
    same = drawn("here", 2.0, 3, 0, k=10)
    rows = pd.concat([same, same.assign(variant="theirs")], ignore_index=True)
    rows = rows.assign(queries=None, perturbation=None, label_space=None, cell="c")
    findings = find(Stored(rows, {}, FACTS, []))
    (found,) = headlines(findings, Naming.of(findings.summary))
    (text,) = [sentence.text for sentence in found.sentences if sentence.topic == "Replication"]
    assert (
        "beside imported predictions: same within 5 points at k = 10 (+0.0 points, 95% interval -1.4 to +1.4)" in text
    )


def test_what_an_import_and_a_run_have_not_in_common_is_named():
    """Published BM25 demonstrations are in the pool's order; a run's are by relevance."""
    theirs = drawn("theirs", 0.7, 2, 1, k=10, select="bm25", order="pool")
    here = drawn("here", 0.7, 1, 0, k=10, select="bm25", order="relevance")
    assert replication(pd.concat([here, theirs]), FACTS).empty
    (row,) = unmatched_imports(pd.concat([here, theirs]), FACTS).to_dict("records")
    assert (row["differs"], row["imported"], row["here"]) == ("order", "pool", "relevance")
    same = here.assign(order="pool")
    assert unmatched_imports(pd.concat([same, theirs]), FACTS).empty
    (row,) = unmatched_imports(pd.concat([same.assign(k=5), theirs]), FACTS).to_dict("records")
    assert (row["differs"], row["imported"], row["here"]) == ("k", "10", "5")
    others = same.assign(test_id="other " + same["test_id"])
    (row,) = unmatched_imports(pd.concat([others, theirs]), FACTS).to_dict("records")
    assert row["differs"] == "test rows"
    assert row["imported"].startswith("0, 1")
    assert unmatched_imports(theirs, FACTS).empty
