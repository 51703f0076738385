"""All tables of a folder together: what ``summary`` prints and its JSON are these and no others."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.fakes import FREE_TEXT, FakeBackend, plan, runner
from support.predictions import cell, frame

from icl_bench.analysis.all_findings import Findings, find, read_findings
from icl_bench.analysis.cell_cost import CellCost
from icl_bench.analysis.context import CellFacts, Context
from icl_bench.analysis.findings.cost import break_even, cost
from icl_bench.analysis.words import cautions_of
from icl_bench.cli import main
from icl_bench.errors import CellError, UserError
from icl_bench.models.architecture import Architecture
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.reading import finished_cells, read_results, read_some


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two tasks and their results."""
    folder = tmp_path_factory.mktemp("runs")
    plans = [
        plan(folder / "cards", "1,4", orders=["drawn", "by-label", "shuffled:1", "shuffled:2"]),
        plan(folder / "cards", "1,4", selects=["bm25"]),
        plan(folder / "cards", "2,4", scoring="exact"),
        plan(folder / "texts", "2", name="texts", **FREE_TEXT),
    ]
    for made in plans:
        runner(made, folder / "results", FakeBackend()).run()
    return folder


@pytest.fixture
def results(runs: Path, tmp_path: Path) -> Path:
    """A copy, in which no summary has kept anything."""
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    return tmp_path / "results"


@pytest.fixture(scope="module")
def found(runs: Path) -> Findings:
    """What there is to find, which tests only read."""
    return find(read_some(runs / "results"))


EMPTY = {
    "group_means",
    "demonstrations_gain",
    "calibration_gain",
    "self_consistency",
    "frontier_across_models",
    "models",
    "label_spaces",
    "copying",
    "training_gain",
    "attention_patterns",
    "adaptation_losses",
    "adaptation_points",
    "adaptation_course",
    "races",
    "race_rounds",
    "study_points",
    "replication",
    "unmatched_imports",
    "break_even",
    "perplexity",
    "perturbed_curves",
    "perturbations",
    "truncated_answers",
    "chat_gain",
    "retrieval_order",
    "shown_labels",
    "learning_ratio",
    "probability_scores",
    "temperature",
    "abstention",
    "risk_coverage",
    "label_thresholds",
}


def test_every_table_has_rows_where_there_are_runs_for_it(found: Findings):
    sizes = {name: len(table) for name, table in found.tables()}
    assert {name for name, size in sizes.items() if not size} == EMPTY


def test_another_way_of_scoring_is_no_noise(found: Findings):
    """One prompt of k=1 stands in the cells of all orders; k=4 is scored in two ways."""
    noise = found.noise_floor
    assert (noise["variant"] == noise["other_variant"]).all()
    assert noise.loc[noise["k"] == 1, "predictions"].item() >= 2 * 6 * 3
    assert (noise["changed"] == 0).all()


def test_the_json_has_every_table_under_its_name(found: Findings):
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert told.keys() == {name for name, _ in found.tables()} | {"settings", "failed", "partial", "without_scores"}
    for name, table in found.tables():
        assert len(told[name]) == len(table)
        if len(table):
            assert list(told[name][0]) == list(table.columns)


@pytest.mark.thorough  # which those of the command, in the next test, are as well
def test_the_same_folder_gives_the_same_numbers(results: Path, found: Findings):
    assert json.dumps(find(read_some(results)).as_json()) == json.dumps(found.as_json())


def test_what_is_known_of_cells_is_what_their_files_say(results: Path):
    known = CellFacts.of(read_some(results))
    assert known.windows["small"] == 4096
    assert known.windows["llama2"] == 4096  # the registry's
    for _, meta in finished_cells(results):
        ids = meta.demonstration_ids
        assert known.shared.get(meta.cell) == ids
        assert known.costs[meta.cell].seconds == meta.seconds
        if ids and meta.spec.task == "cards":
            assert set(ids) <= known.labels[meta.variant].keys()


def test_demonstrations_labels_are_those_of_the_data(results: Path, tmp_path: Path):
    rows = [json.loads(line) for line in (tmp_path / "cards" / "train.jsonl").open()]
    known = CellFacts.of(read_some(results))
    checked = 0
    for labels in known.labels.values():
        for name, label in labels.items():
            assert label == rows[int(name.rpartition("-")[2])]["label"].replace("_", " ")
            checked += 1
    assert checked > 10


def test_presence_counts_each_prediction_of_a_label_once(results: Path, found: Findings):
    labelled = read_results(results)["correct"].notna().sum()
    assert found.by_presence["predictions"].sum() == labelled
    assert found.by_distance["predictions"].sum() == labelled


def test_equal_ids_of_two_tasks_are_not_mixed_up(tmp_path: Path):
    """Row 3 has another label in the other task."""
    for name, style in (("cards", "words"), ("others", "as-is")):
        made = plan(tmp_path / name, "4", name=name, labels={"style": style})
        runner(made, tmp_path / "results", FakeBackend()).run()
    stored = read_some(tmp_path / "results")
    whole = find(stored).by_presence
    for task in ("cards", "others"):
        alone = find(read_some(tmp_path / "results", {"task": task})).by_presence
        part = whole[whole["task"] == task].reset_index(drop=True)
        assert part["accuracy"].tolist() == alone["accuracy"].tolist()
        assert part["present"].tolist() == alone["present"].tolist()


def test_models_are_compared_with_the_one_that_is_asked_for(tmp_path: Path):
    stored = read_some_of(tmp_path)
    assert find(stored).models["base_model"].unique().tolist() == ["a"]
    assert find(stored, "b").models["model"].unique().tolist() == ["a"]
    with pytest.raises(UserError, match=r"--base-model c: not in the results; known: a, b"):
        find(stored, "c")


def read_some_of(tmp_path: Path):
    from icl_bench.results.importing import import_predictions

    made = frame(*(cell("aabb", model=m, order=o, k=k) for m in "ab" for k in (1, 5) for o in ("drawn", "shuffled:1")))
    made.drop(columns=["variant", "valid"]).to_csv(tmp_path / "some.csv", index=False)
    import_predictions(tmp_path / "some.csv", tmp_path / "imported")
    return read_some(tmp_path / "imported")


@pytest.mark.filterwarnings("ignore:model small")
def test_two_checkpoints_of_one_name_are_two_models_and_no_noise(tmp_path: Path):
    for fingerprint in ("files-sha256:aaaa1111", "files-sha256:bbbb2222"):
        runner(plan(tmp_path / "task", fingerprint=fingerprint), tmp_path / "results", FakeBackend()).run()
    found = find(read_some(tmp_path / "results"))
    names = ["small@aaaa1111", "small@bbbb2222"]
    assert (found.noise_floor["variant"] == found.noise_floor["other_variant"]).all()
    assert found.curves["model"].unique().tolist() == names
    assert found.models[["model", "base_model"]].drop_duplicates().to_numpy().tolist() == [names[::-1]]
    assert found.provenance["model"].tolist() == names
    assert found.provenance["cells"].gt(0).all()


def test_shuffled_orders_are_not_compared_between_models(tmp_path: Path):
    table = find(read_some_of(tmp_path)).models
    assert table["order"].unique().tolist() == ["drawn"]
    assert table["k"].tolist() == [1, 5]


# -- cost ---------------------------------------------------------------------------------------


SHAPE = Architecture(parameters=50, heads_width=2, windows=(None, 4))


def test_cost_is_the_mean_of_a_query():
    rows = frame(cell("aabb", cell="one"), cell("aabb", cell="two", draw=1))
    rows["prompt_tokens"] = [10, 20, 30, 40, 10, 20, 30, 40]
    rows["cached_tokens"] = 5
    rows["answer_tokens"] = 2
    (found,) = cost(rows, {"one": CellCost(seconds=8.0)}).itertuples()
    assert (found.predictions, found.prompt_tokens, found.computed_tokens) == (8, 25, 20)
    assert found.seconds == 2.0  # eight for the four predictions whose time is known
    assert math.isnan(found.query_flops)  # no shape, no operations


def test_operations_count_what_is_cached_once():
    """Two per parameter and token, four per key that is seen and head width (8 in all here)."""
    rows = frame(cell("aabb", cell="one"))
    rows["prompt_tokens"], rows["answer_tokens"] = 30, 0
    known = {"one": CellCost(prefix_tokens=20, architecture=SHAPE)}
    (found,) = cost(rows, known).itertuples()
    assert found.prefix_flops == 20 * (100 + 8 * (10 + 4))
    assert found.query_flops == 10 * (100 + 8 * (25 + 4))
    assert found.whole_flops == 30 * (100 + 8 * (15 + 4))


def test_what_was_not_counted_has_no_cost():
    (found,) = cost(frame(cell("aabb")), {}).itertuples()
    assert math.isnan(found.prompt_tokens)
    assert math.isnan(found.seconds)
    assert cost(frame(cell("aabb")).iloc[:0], {}).empty


def costed(**changes: object) -> pd.DataFrame:
    """Costs at one point: a prompt, the same retrieved, and a training."""
    rows = [
        {
            "select": "random",
            "order": "drawn",
            "prefix_flops": 100.0,
            "query_flops": 7.0,
            "whole_flops": 107.0,
            "seconds": 0.5,
        },
        {
            "select": "bm25",
            "order": "relevance",
            "prefix_flops": 3.0,
            "query_flops": 99.0,
            "whole_flops": 102.0,
            "seconds": 4.0,
        },
        {
            "select": "lora",
            "order": "drawn",
            "prefix_flops": 0.0,
            "query_flops": 5.0,
            "whole_flops": 5.0,
            "seconds": 0.25,
            "training_flops": 1000.0,
            "training_seconds": 60.0,
        },
    ]
    same = {"task": "t", "model": "m", "attention": "full", "variant": "v", "k": 5}
    table = pd.DataFrame([{**same, **row} for row in rows])
    for name, value in changes.items():
        table.loc[table["select"] == "lora", name] = value
    return table


def test_training_pays_once_its_savings_are_more_than_it_took():
    found = break_even(costed()).set_index("beside")
    # 1000 + 5 n < 100 + 7 n from n = 451; < 107 n from 10; < 102 n from 11
    assert found["queries"].to_dict() == {"random, cached": 451, "random, not cached": 10, "bm25": 11}
    assert found.loc["random, cached", "queries_by_seconds"] == 241  # 60 s, a quarter saved each
    assert found.loc["bm25", "queries_by_seconds"] == 17
    assert math.isnan(found.loc["random, not cached", "queries_by_seconds"])


def test_two_trainings_of_one_method_are_told_apart_by_their_variants():
    other = costed(variant="w").query("select == 'lora'")
    found = break_even(pd.concat([costed(), other]))
    assert found.groupby("variant").size().to_dict() == {"v": 3, "w": 3}
    assert set(found["base_variant"]) == {"v"}


def test_training_that_saves_nothing_never_pays():
    found = break_even(costed(query_flops=7.0, seconds=0.5)).set_index("beside")
    assert math.isnan(found.loc["random, cached", "queries"])
    assert math.isnan(found.loc["random, cached", "queries_by_seconds"])


def test_training_that_is_cheaper_than_the_prefix_pays_at_once():
    assert break_even(costed(training_flops=90.0)).set_index("beside")["queries"].iloc[0] == 0


def test_other_ks_tasks_and_models_are_not_compared():
    table = costed()
    for name, value in (("k", 9), ("task", "u"), ("model", "n")):
        other = table.assign(**{name: table[name].where(table["select"] != "lora", value)})
        assert break_even(other).empty


def test_the_engines_seconds_are_those_of_its_cells(results: Path, found: Findings):
    seconds = sum(meta.seconds for _, meta in finished_cells(results))
    table = found.cost
    assert np.dot(table["seconds"], table["predictions"]) == pytest.approx(seconds)


# -- on the command line ------------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code
    return capsys.readouterr().out


def test_summary_prints_what_follows_from_the_curves(results: Path, capsys):
    text = told(capsys, "summary", "--results", str(results))
    for title in ("order:", "noise:", "sorting:", "selection:", "calibration:"):
        assert title in text
    for title in ("models:", "copying:", "half of the labels:"):
        assert title not in text


def test_rows_of_several_settings_name_theirs_by_the_numbers_of_the_curves(tmp_path: Path, word_encoder: Any, capsys):
    for scoring in ("greedy", "exact"):
        for select in ("random", "bm25", "dense"):
            made = plan(tmp_path / "cards", "4", draws=1, selects=[select], scoring=scoring)
            runner(made, tmp_path / "results", FakeBackend()).run()
    text = told(capsys, "summary", "--results", str(tmp_path / "results"))
    curves, gains = text.split("selection: accuracy")
    # an encoder alone, which random selection has no use for, makes no other setting
    numbers, settings = zip(*re.findall(r"setting (\d): (scoring=\w+)", curves), strict=True)
    assert numbers == ("1", "2")
    assert sorted(settings) == ["scoring=exact", "scoring=greedy"]
    assert sorted(re.findall(r"^(bm25|dense) +(\d) +4", gains, re.M)) == [
        ("bm25", "1"),
        ("bm25", "2"),
        ("dense", "1"),
        ("dense", "2"),
    ]


def test_summary_json_is_that_of_the_findings(results: Path, found: Findings, capsys):
    text = told(capsys, "summary", "--results", str(results), "--json")
    assert json.loads(text) == json.loads(json.dumps({**found.as_json(), "cautions": []}))


def test_that_a_selection_saw_the_queries_is_said_below_each_table_that_has_it(tmp_path: Path, capsys, monkeypatch):
    from icl_bench.results.importing import import_predictions

    monkeypatch.setenv("COLUMNS", "200")
    made = frame(
        *(
            cell("aabb", select=select, order=order, attention=attention)
            for select in ("random", "centroids,of=queries")
            for order in ("drawn", "by-label")
            for attention in ("full", "block:1", "block:2")
            if order == "drawn" or select == "random"
        )
    )
    made.drop(columns=["variant", "valid"]).to_csv(tmp_path / "some.csv", index=False)
    import_predictions(tmp_path / "some.csv", tmp_path / "imported")
    words = ("summary", "--results", str(tmp_path / "imported"))
    saw = "centroids,of=queries: the texts of the test queries were used to choose its demonstrations"
    text = told(capsys, *words, "--cost")
    parts = re.split(r"^(?=sorting:|selection:|attention:|cost of)", text, flags=re.MULTILINE)
    tables: dict[str, str] = {}
    for part in parts:  # parts of one table begin alike
        name = part.split(":")[0].split(" ")[0]
        tables[name] = tables.get(name, "") + part
    assert {name: part.count(saw) for name, part in tables.items()} == {
        "what": 1,
        "sorting": 0,
        "selection": 1,
        "attention": 1,
        "cost": 1,
    }
    (caution,) = json.loads(told(capsys, *words, "--json"))["cautions"]
    assert caution.startswith(saw)


def test_a_training_beside_a_selection_that_saw_the_queries_says_so():
    selects = ["random", "centroids,of=queries"]
    beside = break_even(
        pd.concat([costed(), *(costed().query("select == 'random'").assign(select=select) for select in selects)])
    )
    assert "centroids,of=queries, cached" in set(beside["beside"])
    assert len(cautions_of(beside)) == 1
    assert cautions_of(break_even(costed())) == []


def test_a_folder_of_failed_cells_alone_has_nothing_to_find(tmp_path: Path, capsys):
    def fail(_: PromptSet) -> None:
        raise CellError("no memory")

    runner(plan(tmp_path / "task", "1"), tmp_path / "results", FakeBackend(fails=fail)).run()
    text = told(capsys, "summary", "--results", str(tmp_path / "results"))
    assert "2 cells failed" in text


def test_each_task_has_a_base_model_of_its_own(tmp_path: Path):
    from icl_bench.results.importing import import_predictions

    tasks = {"t": "ab", "u": "bc"}
    made = frame(*(cell("aabb", task=t, model=m) for t, models in tasks.items() for m in models))
    made.drop(columns=["variant", "valid"]).to_csv(tmp_path / "some.csv", index=False)
    import_predictions(tmp_path / "some.csv", tmp_path / "imported")
    stored = read_some(tmp_path / "imported")
    table = find(stored).models
    assert table[["task", "base_model", "model"]].to_numpy().tolist() == [["t", "a", "b"], ["u", "b", "c"]]
    assert find(stored, "c").models["task"].tolist() == ["u"]


def imported(tmp_path: Path) -> Path:
    from icl_bench.results.importing import import_predictions

    made = frame(*(cell("aabb", task=t, model=m) for t in "tu" for m in "ab"))
    made.drop(columns=["variant", "valid"]).to_csv(tmp_path / "some.csv", index=False)
    import_predictions(tmp_path / "some.csv", tmp_path / "imported")
    return tmp_path / "imported"


def test_a_folder_is_read_for_one_task_or_model_and_all_that_is_asked_is_kept(tmp_path: Path):
    folder = imported(tmp_path)
    for only, points in [
        ({}, [("t", "a"), ("t", "b"), ("u", "a"), ("u", "b")]),
        ({"task": "u"}, [("u", "a"), ("u", "b")]),
        ({"model": "b"}, [("t", "b"), ("u", "b")]),
        ({"task": "t", "model": "a"}, [("t", "a")]),
    ]:
        found = read_findings(folder, base_model="b" if "model" not in only else None, **only)
        curves = found.curves
        assert list(zip(curves["task"], curves["model"], strict=True)) == points
        context = found.context
        assert (context.task, context.model) == (only.get("task"), only.get("model"))
        assert context.results == folder
        assert context.wanted is None
        assert context.base_model == ("b" if "model" not in only else None)
    assert read_findings(folder, wanted=0.5).context.wanted == 0.5
    with pytest.raises(UserError, match="has no task 'v'"):
        read_findings(folder, task="v")


def test_what_was_read_is_found_with_all_that_is_asked(tmp_path: Path):
    stored = read_some(imported(tmp_path))
    context = find(stored, "b", results="somewhere", model="m", task="x", wanted=0.25).context
    assert context.stored is stored
    assert (context.base_model, context.results, context.model, context.task, context.wanted) == (
        "b",
        "somewhere",
        "m",
        "x",
        0.25,
    )
    assert find(stored).context == Context(stored)


def test_that_tables_are_worked_out_is_told_by_number_and_name(tmp_path: Path):
    found = find(read_some(imported(tmp_path)))
    said: list[str] = []
    found.work_out(["curves", "noise_floor"], said.append)
    assert said == ["computing findings: 1 of 2, curves", "computing findings: 2 of 2, noise floor"]
    assert {"curves", "context", "summary"} <= set(dir(found))


def test_the_folder_is_called_results_where_nothing_else_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    imported(tmp_path).rename(tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    found = read_findings()
    assert found.context.results == "results"
    assert len(found.curves) == 4
