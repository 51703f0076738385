"""Filters, search and pairs of the viewer against plain loops over the same predictions."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from support.predictions import cell, frame

from icl_bench.report.viewer.predictions import MOST_SHOWN, SORTED_BY, Predictions
from icl_bench.results.facts import Facts

WORDS = ("aa", "ab", "Card", "ärger", "%_", "")


def index(rows: pd.DataFrame, **questions: dict[str, str]) -> Predictions:
    """``questions`` are those of a task in each of its variants."""
    table = pa.Table.from_pandas(rows.assign(perturbation=rows.get("perturbation")), preserve_index=False)
    found = Predictions.of(table, {})
    known = {(task, variant): questions[task] for task, variant in found.sources if task in questions}
    return Predictions.of(table, {}, known)


def sweep() -> pd.DataFrame:
    """Two models, random in two draws and BM25 in one, two ks."""
    return frame(
        *(
            cell(said, model=model, select=select, order=order, k=k, draw=draw, cell=f"{number}")
            for number, (model, select, order, k, draw, said) in enumerate(
                [
                    ("m", "random", "drawn", 1, 0, "aabb"),
                    ("m", "random", "drawn", 1, 1, "abab"),
                    ("m", "random", "drawn", 5, 0, "bbbb"),
                    ("m", "bm25", "relevance", 1, 0, "bbba"),
                    ("n", "random", "drawn", 1, 0, "babb"),
                ]
            )
        )
    )


def test_filters_are_those_of_the_options_and_no_other_value_lets_anything_through():
    found = index(sweep())
    assert found.options() == {
        "task": ["t"],
        "model": ["m", "n"],
        "series": ["bm25", "random"],
        "gold": ["a", "b"],
        "prediction": ["a", "b"],
        "perturbation": ["unperturbed"],
        "k": ["1", "5"],
        "correct": ["wrong", "right"],
    }
    assert len(found.find({})) == 20
    for name in found.options():
        assert len(found.find({name: "neither"})) == 0
        parts = [len(found.find({name: value})) for value in found.options()[name]]
        assert sum(parts) == 20
    assert len(found.find({"k": "1.0"})) == len(found.find({"k": "-1"})) == len(found.find({"k": "9" * 5000})) == 0
    assert len(found.find({"unknown": "x"})) == 20


@settings(max_examples=60)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS), st.integers(0, 3)), min_size=1, max_size=30
    ),
    word=st.sampled_from((*WORDS, "a", "AB", "Ä", "test", "3", "%")),
    k=st.sampled_from(("0", "1", "2", "")),
)
def test_a_search_finds_what_a_loop_finds(rows: Any, word: str, k: str):
    table = pd.DataFrame(
        [{"test_id": f"test {i}", "gold": gold, "prediction": said, "k": k} for i, (gold, said, k) in enumerate(rows)]
    ).assign(task="t", model="m", select="random", order="drawn", attention="full", variant="v", draw=0, cell="c")
    table["correct"] = table["gold"] == table["prediction"]
    asked = {"test 3": "What does Angst mean?"}
    found = index(table, t=asked).find({"word": word, **({"k": k} if k else {})})
    expected = [
        i
        for i, row in enumerate(table.to_dict("records"))
        if (not k or row["k"] == int(k))
        and any(
            word.lower() in text.lower()
            for text in (row["test_id"], row["gold"], row["prediction"], asked.get(row["test_id"], ""))
        )
    ]
    assert found.tolist() == expected


def test_a_question_is_found_in_its_own_task_alone():
    rows = frame(sweep(), sweep().assign(task="u"))
    found = index(rows, t={"2": "Where is my card?"}).find({"word": "MY CARD"})
    listed = index(rows).rows(found)
    assert {(row["task"], row["test_id"]) for row in listed} == {("t", "2")}
    assert len(found) == 5


POINT = {"model": "m", "series": "random", "k": "1"}


def test_pairs_are_of_the_same_example_and_draw():
    found = index(sweep())
    pairs = found.pairs({"model": "m", "series": "random"}, {"k": "5"})
    counts = {"total": 4, "both": 2, "neither": 0, "lost": 2, "won": 0, "without_verdict": 0}
    assert pairs.counts == {**counts, "unpaired": 4, "flipped": 2}
    here, there = found.rows(pairs.here), found.rows(pairs.there)
    assert [row["k"] for row in here] == [1] * 4
    assert [row["k"] for row in there] == [5] * 4
    assert [row["test_id"] for row in here] == [row["test_id"] for row in there]
    assert {row["draw"] for row in here} == {0}


def test_what_is_not_drawn_stands_beside_every_draw():
    found = index(sweep())
    pairs = found.pairs(POINT, {"series": "bm25"})
    counts = {"total": 8, "both": 1, "neither": 1, "lost": 5, "won": 1, "without_verdict": 0}
    assert pairs.counts == {**counts, "unpaired": 0, "flipped": 4}
    assert {row["cell"] for row in found.rows(pairs.there)} == {"3"}
    back = found.pairs({**POINT, "series": "bm25"}, {"series": "random"})
    assert back.counts["total"] == 4
    assert {row["draw"] for row in found.rows(back.there)} == {0}


@pytest.mark.parametrize(
    ("flips", "ids"), [("lost", ["0"]), ("won", []), ("changed", ["0"]), ("", ["0", "1", "2", "3"])]
)
def test_flips_are_what_is_right_on_one_side_alone(flips: str, ids: list[str]):
    found = index(sweep())
    pairs = found.pairs({**POINT, "word": ""} | {}, {"model": "n"}, flips)
    of_draw = [row for row in found.rows(pairs.here) if row["draw"] == 0]
    assert [row["test_id"] for row in of_draw] == ids
    assert pairs.counts["lost"] == 1
    assert pairs.counts["unpaired"] == 4, "draw 1 of the other model was not run"


def test_imported_rows_of_other_right_answers_are_no_partners():
    rows = frame(
        *(
            cell("abab", gold, model=model, variant=variant, k=1, cell=model)
            for model, variant, gold in (("m1", "v1", "abab"), ("m2", "v2", "abba"))
        )
    )
    facts = {name: Facts(imported="a file") for name in ("v1", "v2")}
    found = Predictions.of(pa.Table.from_pandas(rows.assign(perturbation=None), preserve_index=False), facts)
    here, there = (found.texts["series"].at(int(found.find({"model": model})[0])) for model in ("m1", "m2"))
    pairs = found.pairs({"model": "m1", "series": here or ""}, {"model": "m2", "series": there or ""})
    assert (pairs.counts["total"], pairs.counts["unpaired"]) == (2, 2)
    assert [row["test_id"] for row in found.rows(pairs.here)] == ["0", "1"]


@pytest.mark.parametrize(("hashes", "paired"), [("12", 0), ("11", 4), ("1?", 4)])
def test_rows_of_other_versions_of_the_data_are_no_partners(hashes: str, paired: int):
    """Their ids may name other rows. Of an import without facts, the data are unknown."""
    rows = frame(cell("abab", k=1, cell="one", variant="v"), cell("bbab", k=5, cell="two", variant="w"))
    data = [None if one == "?" else {"test.csv": one} for one in hashes]
    facts = {name: Facts(data=of, seed=0) for name, of in zip("vw", data, strict=True)}
    found = Predictions.of(pa.Table.from_pandas(rows.assign(perturbation=None), preserve_index=False), facts)
    series = {k: found.texts["series"].at(int(found.find({"k": k})[0])) or "" for k in "15"}
    pairs = found.pairs({"k": "1", "series": series["1"]}, {"k": "5", "series": series["5"]})
    assert (pairs.counts["total"], pairs.counts["unpaired"]) == (paired, 4 - paired)


def test_filters_of_rows_say_nothing_of_the_other_side():
    found = index(sweep())
    pairs = found.pairs({**POINT, "correct": "wrong", "prediction": "b"}, {"series": "bm25"})
    assert [row["test_id"] for row in found.rows(pairs.here)] == ["1"]
    assert [row["prediction"] for row in found.rows(pairs.there)] == ["b"]
    assert pairs.p is None, "rows that were chosen because they are wrong here cannot be tested for a difference"


def test_free_text_is_neither_right_nor_wrong():
    rows = sweep().assign(correct=None)
    found = index(rows)
    assert found.options()["correct"] == ["free text"]
    assert found.rows([0])[0]["correct"] is None


def test_curves_are_called_as_in_the_charts():
    rows = frame(sweep(), sweep().assign(attention="block:5"), sweep().assign(order="by-label"))
    names = index(rows).options()["series"]
    assert "random, by-label, full attention" in names
    assert "bm25, block:5" in names


def test_missing_answers_are_empty_texts():
    rows = sweep()
    rows.loc[0, "prediction"] = None
    found = index(rows)
    assert found.rows([0])[0]["prediction"] == ""
    assert found.options()["prediction"] == ["(nothing)", "a", "b"]
    assert found.find({"prediction": "(nothing)"}).tolist() == [0]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["both", "neither", "lost", "won"]), min_size=1, max_size=60))
def test_flips_of_one_draw_are_tested_as_mcnemars_exact_test_does(pairs: list[str]):
    here = ["a" if pair in ("both", "lost") else "b" for pair in pairs]
    there = ["a" if pair in ("both", "won") else "b" for pair in pairs]
    gold = "a" * len(pairs)
    rows = frame(cell("".join(here), gold, k=1, cell="1"), cell("".join(there), gold, k=5, cell="2"))
    lost, won = pairs.count("lost"), pairs.count("won")
    expected = binomtest(won, lost + won).pvalue if lost + won else 1.0
    assert index(rows).pairs({"k": "1"}, {"k": "5"}).p == pytest.approx(expected)


def test_draws_of_one_example_are_no_further_examples():
    """Ten draws that flip the same example alike are as much evidence as one."""
    rows = [cell("ab", "aa", k=k, draw=draw, cell=f"{k}.{draw}") for k, draw in [(1, d) for d in range(10)]]
    rows += [cell("bb", "aa", k=5, draw=draw, cell=f"5.{draw}") for draw in range(10)]
    found = index(frame(*rows)).pairs({"k": "1"}, {"k": "5"})
    assert found.counts["lost"] == 10
    assert found.counts["flipped"] == 1
    assert found.p == 1.0
    free = index(frame(*rows).assign(correct=None)).pairs({"k": "1"}, {"k": "5"})
    assert free.p is None


def test_answers_without_a_verdict_are_not_counted_as_wrong_and_not_tested():
    here, there = cell("aaaaaa", "aaaaaa", k=1, cell="1"), cell("bbbbab", "aaaaaa", k=5, cell="2")
    here, there = (one.astype({"correct": object}) for one in (here, there))
    there.loc[:2, "correct"] = None
    here.loc[4, "correct"] = None
    found = index(frame(here, there))
    pairs = found.pairs({"k": "1"}, {"k": "5"})
    counts = {"total": 6, "both": 0, "neither": 0, "lost": 2, "won": 0, "without_verdict": 4}
    assert pairs.counts == {**counts, "unpaired": 0, "flipped": 2}
    assert pairs.p == pytest.approx(binomtest(0, 2).pvalue)
    assert [row["test_id"] for row in found.rows(found.pairs({"k": "1"}, {"k": "5"}, "lost").here)] == ["3", "5"]
    assert not len(found.pairs({"k": "1"}, {"k": "5"}, "won").here)
    never_both = frame(here.head(3), there.tail(3).assign(test_id=["0", "1", "2"]))
    never_both.loc[:2, "correct"] = None
    assert index(never_both).pairs({"k": "1"}, {"k": "5"}).p is None


@pytest.mark.parametrize("name", SORTED_BY)
@pytest.mark.parametrize("minus", ["", "-"])
def test_predictions_are_sorted_by_what_the_list_shows(name: str, minus: str):
    rows = sweep().assign(question=None)
    rows.loc[3, "question"] = "A question of its own"
    asked = {"0": "zebra", "1": "Apple", "2": "banana"}
    found = index(rows, t=asked)
    places = found.find({"model": "m"})
    order = places[found.order(places, minus + name)]
    shown = [row[name] for row in found.rows(order)]
    keys = [value.casefold() if isinstance(value, str) else value for value in shown]
    assert keys == sorted(keys, reverse=bool(minus))
    assert sorted(order.tolist()) == places.tolist()
    same = places[found.order(places, name)]
    assert all(a < b for a, b, x, y in zip(same, same[1:], keys, keys[1:], strict=False) if minus == "" and x == y)
    assert found.order(places, "no such column").tolist() == list(range(len(places)))


def test_rows_have_their_questions_own_ones_first():
    rows = sweep().assign(question=None)
    rows.loc[3, "question"] = "of the import"
    found = index(rows, t={"3": "of the task", "0": "long " * 200})
    listed = found.rows(range(4))
    assert [row["question"] for row in listed[1:]] == ["", "", "of the import"]
    assert len(listed[0]["question"]) == MOST_SHOWN
    assert found.find({"word": "OF THE import"}).tolist() == [3]
    assert found.golds_of("t", "v") == {"0": "a", "1": "a", "2": "b", "3": "b"}


def test_a_question_is_that_of_its_variants_data():
    rows = frame(sweep(), sweep().assign(variant="w", cell="other"))
    table = pa.Table.from_pandas(rows.assign(perturbation=None), preserve_index=False)
    known = {("t", "v"): {"0": "Where is my card?"}, ("t", "w"): {"0": "What is a bank?"}}
    found = Predictions.of(table, {}, known)
    asked = {(found.texts["variant"].at(place), found.question(place)) for place in range(len(rows)) if place % 4 == 0}
    assert asked == {("v", "Where is my card?"), ("w", "What is a bank?")}
    assert {row["cell"] for row in found.rows(found.find({"word": "bank"}))} == {"other"}
    places = found.find({"word": "?"})
    first = places[found.order(places, "question")][0]
    assert found.texts["variant"].at(first) == "w"
