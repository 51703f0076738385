"""Imported answers are compared as this program's own labels are, however a table writes them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icl_bench.analysis.summary import summarise_folder
from icl_bench.errors import UserError
from icl_bench.prompts.written_labels import number_in
from icl_bench.results.importing import Import, Stated, import_predictions
from icl_bench.results.importing.answers import Labels
from icl_bench.results.reading import read_results

GOLDS = ("red", "white", "red")


def table(golds: Sequence[Any], predictions: Sequence[Any], /, **more: Any) -> pd.DataFrame:
    ids = [f"row {i}" for i in range(len(golds))]
    named = {"task": "wines", "model": "tiny", "k": 2}
    return pd.DataFrame({"test_id": ids, "gold": golds, "prediction": predictions}).assign(**named | more)


def write(frame: pd.DataFrame, path: Path) -> Path:
    match path.name.partition(".")[2]:
        case "parquet":
            frame.to_parquet(path, index=False)
        case "json":
            frame.to_json(path, orient="records")
        case "jsonl" | "jsonl.gz":
            frame.to_json(path, orient="records", lines=True)
        case "tsv":
            frame.to_csv(path, index=False, sep="\t")
        case _:
            frame.to_csv(path, index=False)
    return path


def imported(folder: Path, frame: pd.DataFrame, name: str = "mine.csv") -> pd.DataFrame:
    import_predictions(write(frame, folder / name), folder / "results")
    return read_results(folder / "results")


ALL = ("mine.csv", "mine.tsv", "mine.json", "mine.jsonl", "mine.jsonl.gz", "mine.parquet", "mine.csv.gz")


@pytest.mark.parametrize("name", ALL)
def test_a_table_of_any_format_needs_no_select_order_and_draw(tmp_path: Path, name: str):
    found = imported(tmp_path, table(GOLDS, ["red", "red", ""]), name)
    assert found["correct"].tolist() == [True, False, False]
    assert found["prediction"].tolist() == ["red", "red", ""]
    assert set(found["select"]) == set(found["order"]) == {"unknown"}
    assert set(found["draw"]) == {0}
    (point,) = summarise_folder(tmp_path / "results").curves.to_dict("records")
    assert (point["k"], point["draws"], point["test_rows"]) == (2, 1, 3)


def test_what_is_the_same_in_all_rows_may_be_stated(tmp_path: Path):
    file = write(table(GOLDS, GOLDS)[["test_id", "gold", "prediction"]], tmp_path / "mine.csv")
    with pytest.raises(UserError, match=r"lacks the columns task, model, k; .* set it with --task, --model, --k$"):
        import_predictions(file, tmp_path / "results")
    stated = Stated("wines", "tiny", 4, "random", "drawn")
    done = import_predictions(file, tmp_path / "results", stated)
    found = read_results(tmp_path / "results")
    assert found[["task", "model", "k", "select", "order"]].drop_duplicates().to_numpy().tolist() == [
        ["wines", "tiny", 4, "random", "drawn"]
    ]
    assert import_predictions(file, tmp_path / "results", stated).before
    assert import_predictions(file, tmp_path / "results", Stated("wines", "other", 4)).where != done.where
    file = write(table(GOLDS, GOLDS), tmp_path / "whole.csv")
    with pytest.raises(UserError, match=r"^--model tiny: .*whole.csv has a column model$"):
        import_predictions(file, tmp_path / "results", Stated(model="tiny"))


@pytest.mark.parametrize("name", ALL)
def test_a_row_without_correct_is_compared_where_others_have_it(tmp_path: Path, name: str):
    frame = table(["red", "white"] * 6, ["red", "white", "white", "red"] * 3)
    correct = [True, True, False, None] * 3
    found = imported(tmp_path, frame.assign(correct=correct), name)
    assert found["correct"].tolist() == [True, True, False, False] * 3
    assert summarise_folder(tmp_path / "results").curves["accuracy"].tolist() == [0.5]


NUMBERS: list[tuple[list[Any], list[Any]]] = [
    (["1", "0"], ["1.0", "1.0"]),
    ([1, 0], [1.0, 1.0]),
    ([1.0, 0.0], ["1", "1"]),
    (["1.50", "007"], [1.5, 1.5]),
    (["+1", "-1"], ["1", "1"]),
]


@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet", "mine.jsonl"])
@pytest.mark.parametrize(("golds", "predictions"), NUMBERS)
def test_a_number_is_the_same_label_in_any_form(tmp_path: Path, golds: list[Any], predictions: list[Any], name: str):
    assert imported(tmp_path, table(golds, predictions), name)["correct"].tolist() == [True, False]


def test_a_label_is_the_same_in_any_form_of_unicode(tmp_path: Path):
    golds = ["caf\u00e9", "th\u00e9", "12", "caf\u00e9"]
    said = ["cafe\u0301", "The\u0301.", "\uff11\uff12", "\uff43af\u00e9"]
    assert imported(tmp_path, table(golds, said))["prediction"].tolist() == golds
    both = ["caf\u00e9", "cafe\u0301", "x"]
    assert imported(tmp_path / "results", table(both, [*both[:2], "CAFE\u0301"]))["correct"].tolist() == [
        True,
        True,
        False,
    ]


def test_a_sign_decides_a_number(tmp_path: Path):
    assert imported(tmp_path, table(["1", "2"], ["-1", "2."]))["correct"].tolist() == [False, True]


@pytest.mark.parametrize(
    ("golds", "predictions"),
    [(["true", "false"], [True, True]), ([True, False], ["True", "true"]), ([True, False], [True, True])],
)
@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet", "mine.jsonl"])
def test_truth_values_are_labels(tmp_path: Path, golds: list[Any], predictions: list[Any], name: str):
    assert imported(tmp_path, table(golds, predictions), name)["correct"].tolist() == [True, False]


@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet", "mine.jsonl"])
def test_blanks_and_line_breaks_around_an_answer_do_not_count(tmp_path: Path, name: str):
    said = [" red", "red\r\n", "\twhite\n"]
    found = imported(tmp_path, table(GOLDS, said), name)
    assert found["correct"].tolist() == [True, False, False]
    assert found["prediction"].tolist() == ["red", "red", "white"]
    assert found["text"].tolist() == said
    point = summarise_folder(tmp_path / "results").curves.iloc[0]
    assert point["macro_f1"] == pytest.approx((2 * 1 / (2 + 1 + 1) + 0) / 2)


@pytest.mark.parametrize(
    "said", ["Red", "**red**", "Label: red", '{"label": "red"}', "<think>white?</think>red", "red."]
)
def test_an_answer_is_read_as_a_runs_own_answers_are(tmp_path: Path, said: str):
    found = imported(tmp_path, table(["red", "white"], [said, "white"]))
    assert found["correct"].tolist() == [True, True]
    assert found["prediction"].tolist() == ["red", "white"]


def test_a_spelling_of_two_labels_is_neither(tmp_path: Path):
    found = imported(tmp_path, table(["No", "NO"], ["no", "NO"]))
    assert found["correct"].tolist() == [False, True]
    assert found["prediction"].tolist() == ["no", "NO"]


def test_labels_of_another_task_are_none(tmp_path: Path):
    frame = pd.concat([table(["red", "red"], ["red", "A."]), table(["a", "a"], ["a", "a"], task="letters")])
    assert imported(tmp_path, frame)["prediction"].tolist() == ["red", "A.", "a", "a"]


def test_a_right_answer_may_be_spelled_otherwise_and_a_wrong_one_is_said(tmp_path: Path):
    found = imported(tmp_path, table(GOLDS, [" red", "white", "red"], correct=[True, True, True]))
    assert found["correct"].all()
    file = write(table(GOLDS, [" red", "white", "Red"], correct=[False, True, False]), tmp_path / "b.csv")
    said = (
        r"b\.csv: column correct counts 2 answers as wrong that are the correct answer except for its spelling "
        r"\(' red' for 'red' and 'Red' for 'red', the first in row 1\); kept as stated; omit the column"
    )
    with pytest.warns(UserWarning, match=said):
        import_predictions(file, tmp_path / "other")
    assert read_results(tmp_path / "other")["correct"].tolist() == [False, True, False]


def test_several_correct_answers_are_all_right(tmp_path: Path):
    golds = [["red", "rouge"], ["white", "blanc"], ["red", "rouge"]]
    found = imported(tmp_path, table(GOLDS, ["rouge", "red", "Rouge\n"], golds=golds), "mine.parquet")
    assert found["correct"].tolist() == [True, False, True]
    found = imported(tmp_path / "results", table(GOLDS, ["rouge", "x", "red"], golds=[json.dumps(g) for g in golds]))
    assert found["correct"].tolist() == [True, False, True]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "golds", [["red", 'rouge, "it\'s"', "white"], [1, 2, 3], [1.0, 2.5, 3.0]], ids=["texts", "integers", "floats"]
)
def test_several_correct_answers_may_be_lists_of_any_form(tmp_path: Path, name: str, golds: list[Any]):
    frame = table([golds[0]] * 3, golds, golds=[golds[:2]] * 3)
    found = imported(tmp_path, frame, name)
    assert found["correct"].tolist() == [True, True, False]
    assert all(list(texts) == found["prediction"].tolist()[:2] for texts in found["golds"])


@pytest.mark.parametrize("name", ALL)
def test_several_correct_answers_may_be_truth_values(tmp_path: Path, name: str):
    frame = table([True, True], [True, False], golds=[[True, False], [True]])
    found = imported(tmp_path, frame, name)
    assert found["correct"].tolist() == [True, False]
    assert [list(texts) for texts in found["golds"]] == [found["prediction"].tolist(), found["prediction"].tolist()[:1]]


def test_a_row_may_lack_further_correct_answers(tmp_path: Path):
    frame = table(GOLDS, ["rouge", "white", "red"], golds=["['red', 'rouge']", None, "[]"])
    assert imported(tmp_path, frame)["correct"].tolist() == [True, True, True]
    frame = table(GOLDS, ["rouge", "white", "red"], golds=[float("nan")] * 3)
    assert imported(tmp_path / "results", frame, "mine.parquet")["correct"].tolist() == [False, True, True]


@pytest.mark.parametrize(
    "golds",
    [
        "red;rouge",
        "red",
        7,
        "7",
        "{'red': 1}",
        "['red' 'rouge']",
        "['red', None]",
        '["red", ["rouge"]]',
        "['red', ",
        "[{{1, 2}}]",
    ],
)
@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet", "mine.jsonl"])
def test_correct_answers_that_are_no_list_are_refused(tmp_path: Path, golds: Any, name: str):
    frame = table(GOLDS, ["red", "white", "rouge"], golds=[None, golds, golds])
    expected = r'column golds: .* in row 2; expected a JSON list of texts or numbers, like \["red", "crimson"\]$'
    with pytest.raises(UserError, match=f"{name}: {expected}"):
        imported(tmp_path, frame, name)


def test_few_predictions_among_the_correct_answers_are_said_with_samples(tmp_path: Path):
    frame = table([*GOLDS, "white"], ["It is red", "red", "rosé", "no idea"])
    said = (
        "mine.csv: task wines: 1 of 4 predictions is among the correct answers; others are 'It is red', 'rosé', "
        "'no idea', correct answers are 'red', 'white'; write predictions as gold is written"
    )
    with pytest.warns(UserWarning, match=said):
        imported(tmp_path, frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        imported(tmp_path / "results", table(GOLDS, ["It is red", "red", "white"]))
        imported(tmp_path / "results", table(GOLDS, ["It is red"] * 3, rouge1=0.5), "text.csv")


def test_free_text_with_scores_stays_as_it_is(tmp_path: Path):
    found = imported(tmp_path, table(GOLDS, [" red", "Red", "x"], f1=[1, 1, 0]))
    assert found["prediction"].tolist() == [" red", "Red", "x"]
    assert found["correct"].isna().all()
    assert "text" not in found


def test_free_text_of_which_a_score_is_missing_is_no_label(tmp_path: Path):
    found = imported(tmp_path, table(GOLDS, ["red", "white", "red"], rouge1=[0.5, None, None]))
    assert found["correct"].isna().all()
    (metric,) = summarise_folder(tmp_path / "results").curves["metric"]
    assert metric == "rouge1"


def test_rows_of_unequal_types_in_json_are_texts(tmp_path: Path):
    rows: list[dict[str, Any]] = [
        {"test_id": 1, "gold": 1, "prediction": "1", "note": [1]},
        {"test_id": "b", "gold": "x", "prediction": 2.5, "note": {"a": 1}},
        {"test_id": True, "gold": "x", "prediction": "x"},
    ]
    file = tmp_path / "mine.json"
    file.write_text("\n".join(json.dumps({"task": "t", "model": "m", "k": 1, **row}) for row in rows))
    import_predictions(file, tmp_path / "results")
    found = read_results(tmp_path / "results")
    assert found["test_id"].tolist() == ["1", "b", "true"]
    assert found["correct"].tolist() == [True, False, True]
    assert found["note"].tolist()[:2] == ["[1]", '{"a": 1}']


REFUSED = {
    "no JSON": ("mine.json", "{", r"mine\.json:1: not JSON"),
    "no object": ("mine.json", "[1]", r"mine\.json item 1: expected a JSON object, not 1"),
    "no objects": ("mine.jsonl", '{"a": 1}\n7\n', r"mine\.jsonl:2: expected a JSON object, not 7"),
    "a key twice": ("mine.jsonl", '{"a": 1, "a": 2}', "not JSON: the key 'a' appears twice"),
    "no rows": ("mine.json", "[]", "lacks the columns task"),
    "a column twice": ("mine.tsv", "a\ta\n1\t2\n", "column a appears twice"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_table_that_cannot_be_read_is_refused_with_its_place(tmp_path: Path, what: str):
    name, text, said = REFUSED[what]
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said):
        import_predictions(tmp_path / name, tmp_path / "results")


labels = st.sampled_from(["red", "Red", "a b", "a_b", "1", "1.0", "-1", "", " red ", "é", "x"])


@settings(max_examples=60)
@given(st.lists(st.tuples(labels, labels, st.sampled_from([None, " ", "\n"])), min_size=1, max_size=8))
def test_an_answer_that_is_a_label_is_never_taken_for_another(rows: list[tuple[str, str, str | None]]):
    known = Labels([gold for gold, _, _ in rows])
    for gold, prediction, blank in rows:
        assert known.label_in(gold) == gold
        read = known.label_in(prediction if blank is None else f"{blank}{prediction}{blank}")
        assert read is None or read in {gold for gold, _, _ in rows}
        if read is not None and (number := number_in(prediction)) is not None:
            assert number_in(read) == number


def test_an_import_says_what_it_has_done(tmp_path: Path):
    done = import_predictions(write(table(GOLDS, GOLDS), tmp_path / "a.csv"), tmp_path / "results")
    assert done == Import(done.where, 3)
