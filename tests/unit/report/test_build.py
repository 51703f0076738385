"""The report says what the tables say, in a page that no text of the data can break."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from support.fakes import FREE_TEXT, FakeBackend, model, plan, row, runner, small_tokenizer, write_rows, write_task
from support.in_process import said
from support.predictions import cell, frame, imported

from icl_bench.analysis.all_findings import Findings, find
from icl_bench.analysis.query_cost import QUERIES
from icl_bench.errors import CellError, UserError
from icl_bench.escaping import in_script
from icl_bench.registry import FINDINGS
from icl_bench.report import Written, write_report
from icl_bench.report.build import Report, _overview, make_report
from icl_bench.report.figure_style import PLAIN, FigureStyle
from icl_bench.report.figures import write_figures
from icl_bench.report.headlines import _saturated, headlines
from icl_bench.report.naming import Naming
from icl_bench.report.page import page
from icl_bench.report.prediction_sample import in_turns, sample, sample_fields
from icl_bench.report.sections.over_k import over_k
from icl_bench.report.sections.panels import Drawing
from icl_bench.report.sections.perturbations import perturbations
from icl_bench.report.tables import of_names
from icl_bench.results.facts import Facts
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import Stored, read_some
from icl_bench.results.rows import Rows
from icl_bench.sweep.k_values import KValues
from icl_bench.sweep.plan import make_plan
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task

EVIL = """</script><script>alert(1)</script><img src=x onerror="alert('2')"> & <!-- {{ 7*7 }} \u2028"""


class Parsed(HTMLParser):
    """A page's elements, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.handlers: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found


def sweep(folder: Path, results: Path, k: str = "1,2,4", **changes: Any) -> None:
    runner(plan(folder, k, **changes), results, FakeBackend()).run()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with most of what there is: orders, retrieval, probabilities, texts, a failure."""
    folder = tmp_path_factory.mktemp("report")
    found = folder / "results"
    sweep(folder / "cards", found, orders=["drawn", "shuffled:3", "by-label"])
    sweep(folder / "cards", found, selects=["bm25"])
    sweep(folder / "cards", found, scoring="exact")
    sweep(folder / "texts", found, name="texts", **FREE_TEXT)
    broken = plan(folder / "cards", "8", draws=1)

    def fails(_: object) -> None:
        raise CellError("out of memory <b>4 GB</b>")

    runner(broken, found, FakeBackend(fails=fails)).run()
    return found


@pytest.fixture(scope="module")
def findings(results: Path) -> Findings:
    """What there is to find in it."""
    return find(read_some(results))


@pytest.fixture(scope="module")
def report(results: Path) -> Report:
    """The report of it, which tests only read."""
    return make_report(results)


@pytest.fixture(scope="module")
def parsed(report: Report) -> Parsed:
    return Parsed(page(report))


def table(parsed: Parsed, caption: str) -> pd.DataFrame:
    (found,) = [t for t in parsed.data["tables"] if t["caption"] == caption]
    return pd.DataFrame(found["rows"], columns=[c["name"] for c in found["columns"]])


# -- numbers ------------------------------------------------------------------------------------


def test_the_pages_tables_hold_the_analysis_numbers(findings: Findings, parsed: Parsed):
    for caption, expected, names in (
        ("Score over k", findings.summary.curves, ["k", "accuracy", "ci_low", "ci_high", "draws"]),
        ("Answers changed by reordering", findings.summary.order_sensitivity, ["k", "changed"]),
        ("Sorted less drawn", findings.sorting_penalty, ["k", "difference", "p_holm"]),
        ("Chosen less random", findings.retrieval_gain, ["k", "difference", "ci_low"]),
        ("Cost of a query", findings.cost, ["prompt_tokens", "computed_tokens", "seconds"]),
    ):
        shown = table(parsed, caption)
        if caption == "Cost of a query":
            expected = expected[expected["order"].astype(str) != "shuffled:3"]
        assert len(shown) == len(expected), caption
        for name in names:
            given = pd.to_numeric(shown[name]).to_numpy(dtype=float)
            there = pd.to_numeric(expected[name]).to_numpy(dtype=float)
            np.testing.assert_allclose(given, there, rtol=1e-12, err_msg=f"{caption}: {name}")


def test_the_charts_hold_the_analysis_numbers(findings: Findings, parsed: Parsed):
    curves = findings.summary.curves
    (spec,) = [
        chart["spec"]
        for chart in parsed.data["charts"]
        if chart["spec"]["description"].startswith("accuracy of small on cards")
    ]
    cards = curves[curves["task"].astype(str) == "cards"]
    assert sorted(r["value"] for r in spec["datasets"]["rows"]) == pytest.approx(sorted(cards["accuracy"]))
    assert spec["width"] == "container"
    (free,) = [
        chart["spec"]
        for chart in parsed.data["charts"]
        if chart["spec"]["description"].startswith("ROUGE-1 of small on texts")
    ]
    texts = curves[curves["task"].astype(str) == "texts"]
    assert [r["value"] for r in free["datasets"]["rows"]] == pytest.approx(texts["rouge1"].tolist())


@pytest.mark.parametrize("measure", ["tokens", "seconds"])
def test_the_cost_charts_hold_the_frontiers_costs(findings: Findings, report: Report, measure: str):
    points = findings.frontier
    points = points[points["cascade"].isna() & (points["queries"] == QUERIES)]
    (section,) = [section for section in report.sections if section.name == "cost"]
    rows = [row for panel in section.panels if panel.name.startswith(f"cost-{measure}") for row in panel.rows]
    assert len(rows) > 10
    assert sorted(row["cost"] for row in rows) == pytest.approx(sorted(points[measure]))
    assert "those of the frontier for 1,000 queries" in section.reading


def test_every_chart_is_a_valid_specification(report: Report):
    panels = [panel for section in report.sections for panel in section.panels]
    assert len(panels) > 10
    for panel in panels:
        assert panel.rows
        panel.chart.to_dict(validate=True)


def test_curves_of_one_panel_have_names_of_their_own(results: Path, parsed: Parsed):
    shown = table(parsed, "Score over k")
    assert not shown.duplicated(["task", "model", "series", "k"]).any()
    assert {"random, scoring=exact", "random, scoring=greedy", "bm25, scoring=greedy"} <= set(shown["series"])


def test_a_difference_is_claimed_only_where_the_test_holds_it(tmp_path: Path):
    right, wrong = "a" * 40, "b" * 40
    said = headlines_of(
        tmp_path,
        *(
            made
            for draw in range(3)
            for made in (
                cell(right, right, draw=draw),
                cell(wrong, right, order="by-label", draw=draw),
                cell(right, right, k=9, draw=draw),
                cell("b" + "a" * 39, right, k=9, order="by-label", draw=draw),
            )
        ),
    )
    assert re.search(
        r"worse by 100\.0 points \(.*\) at k = 5; "
        r"not distinguishable at k = 9: -2\.5 points, 95% interval .* "
        r"\(40 test rows, 3 draws beside 3\)\.",
        said["Sorting"],
    )
    assert (
        "the highest of 4 tested points, tied with 1 other (40 test rows, 3 draws); interval corrected" in said["Best"]
    )


def headlines_of(folder: Path, *cells: pd.DataFrame) -> dict[str, str]:
    """The key findings of imported predictions of one task and model, by topic."""
    found = find(read_some(imported(folder, *cells)))
    (of_pair,) = headlines(found, Naming.of(found.summary))
    return {one.topic: one.text for one in of_pair.sentences}


def clauses_of(folder: Path, *cells: pd.DataFrame) -> dict[str, str]:
    """The same as the clauses that the page shows first."""
    found = find(read_some(imported(folder, *cells)))
    (of_pair,) = headlines(found, Naming.of(found.summary))
    return {one.topic: one.clause for one in of_pair.sentences}


@pytest.mark.parametrize(
    ("sorted_answers", "clause"),
    [
        ("b" * 40, "worse than the same as drawn at 2 of 5 tested k (3 have too little data)"),
        ("a" * 40, "not distinguishable from the same as drawn at 2 of 5 tested k (3 have too little data)"),
    ],
)
def test_a_clause_counts_the_points_with_too_little_data_among_the_tested(
    tmp_path: Path, sorted_answers: str, clause: str
):
    """One point has two draws, one few common test rows, one none."""
    right = "a" * 40
    others = cell("b" * 40, right, k=9, order="by-label").assign(test_id=[f"other {i}" for i in range(40)])
    cells = [
        *(cell(right, right, k=k, draw=draw) for k in (2, 3, 5, 7, 9) for draw in range(3)),
        *(cell(sorted_answers, right, k=k, draw=draw, order="by-label") for k in (2, 3) for draw in range(3)),
        *(cell(sorted_answers, right, k=5, draw=draw, order="by-label") for draw in range(2)),
        *(cell(sorted_answers[:19], right[:19], k=7, draw=draw, order="by-label") for draw in range(3)),
        *(others.assign(draw=draw) for draw in range(3)),
    ]
    assert clauses_of(tmp_path, *cells)["Sorting"].endswith(clause)


def test_a_clause_says_every_tested_k_where_all_have_enough_data(tmp_path: Path):
    """k=1 has one order, so it was not tested."""
    right = "a" * 40
    cells = [
        cell(said, right, k=k, draw=draw, order=order)
        for k in (1, 2)
        for draw in range(3)
        for said, order in ((right, "drawn"), ("b" * 40, "by-label"))
    ]
    assert clauses_of(tmp_path, *cells)["Sorting"].endswith("worse than the same as drawn at every tested k")


def test_a_clause_on_the_best_point_names_its_ties(tmp_path: Path):
    right = "a" * 40
    cells = [cell(right, right, k=k, draw=draw) for k in (1, 2) for draw in range(3)]
    assert clauses_of(tmp_path, *cells)["Best"].endswith(", tied with 1 other")


@pytest.mark.parametrize(
    ("certain", "clause"),
    [
        (True, "random is saturated at k = 5"),
        (False, r"random is saturated at k = 5 \(90% of resamples: k = 5 to 9\)\."),
    ],
)
def test_a_clause_on_saturation_keeps_its_certainty(certain: bool, clause: str):
    point = {"series": "random", "spoken": True, "k": 5, "min_k": 1, "max_k": 10, "within_window": True, "chance": 0.8}
    likely = {"likely_low": 5.0, "likely_high": 5.0 if certain else 9.0}
    points, chances = pd.DataFrame([{**point, **likely}]), pd.DataFrame({"series": ["random"] * 4})
    (sentence,) = _saturated(points, chances)
    assert re.fullmatch(clause, sentence.clause)


@pytest.mark.parametrize("draws", [1, 2])
def test_fewer_than_three_draws_are_no_key_finding_and_say_so(tmp_path: Path, draws: int):
    right, wrong = "a" * 40, "b" * 40
    said = headlines_of(
        tmp_path,
        *(
            made
            for draw in range(draws)
            for made in (cell(right, right, draw=draw), cell(wrong, right, order="by-label", draw=draw))
        ),
    )
    few = {1: "1 draw, try --draws 3", 2: "2 draws, try --draws 5"}[draws]
    assert said["Sorting"].endswith(f": too little data at k = 5 ({few}).")
    highest = "the highest, by random at k = 5, has too little data"
    assert said["Best"] == f"undetermined: {highest} ({few})."


def test_a_page_is_made_where_some_points_have_outlying_draws(tmp_path: Path):
    right, wrong = "a" * 40, "b" * 40
    said = headlines_of(
        tmp_path,
        *(
            made
            for draw in range(6)
            for k in (5, 9)
            for made in (
                cell(wrong if draw == 0 and k == 5 else right, right, draw=draw, k=k),
                cell(right, right, order="by-label", draw=draw, k=k),
            )
        ),
    )
    assert "outlying draw of the base: 0 (k = 5)" in said["Sorting"]


def test_fewer_than_half_of_the_larger_sides_rows_are_no_key_finding(tmp_path: Path):
    right = "a" * 40
    said = headlines_of(
        tmp_path,
        *(
            made
            for draw in range(3)
            for made in (cell(right, right, draw=draw), cell("b" * 19, "a" * 19, order="by-label", draw=draw))
        ),
    )
    assert said["Sorting"].endswith(": too little data at k = 5 (19 of 40 test rows in common).")


def test_a_key_finding_names_its_outlying_draws_and_what_was_left_out(tmp_path: Path):
    right, wrong = "a" * 40, "b" * 40
    said = headlines_of(
        tmp_path,
        *(cell(wrong if draw == 7 else right, right, draw=draw) for draw in range(10)),
        *(cell(wrong, right, order="by-label", draw=draw) for draw in range(9)),
    )
    assert "worse by " in said["Sorting"]
    assert said["Sorting"].endswith(
        "(40 test rows, 9 draws beside 9, 40 predictions left out, outlying draw of the base: 7 (k = 5))."
    )


def test_a_training_has_a_finding_beside_each_setting_of_the_prompts():
    right, wrong = "a" * 40, "b" * 40
    made = [
        cell(answers, right, k=k, draw=draw, select=select, variant=variant)
        for draw in range(3)
        for k, prompts in ((10, "ge"), (100, "g"))
        for select, variant, answers in (("lora", "t", right), *(("random", variant, wrong) for variant in prompts))
    ]
    facts = {"g": Facts(scoring="greedy"), "e": Facts(scoring="exact"), "t": Facts(scoring="classifier")}
    found = find(Stored(frame(*made), {}, facts, ()))
    (of_pair,) = headlines(found, Naming.of(found.summary))
    clauses = [one.clause for one in of_pair.sentences if one.topic == "Training"]
    assert clauses == [
        "lora: better than a prompt with the same examples (scoring=exact) at every tested k",
        "lora: better than a prompt with the same examples (scoring=greedy) at every tested k",
    ]
    greedy = next(one.text for one in of_pair.sentences if "(scoring=greedy): better" in one.text)
    assert "at k = 10 and" in greedy
    named = Naming.of(found.summary)
    table = named.against(named.named(found.training_gain), ["task", "model"])
    assert sorted(table["series"]) == ["lora against scoring=exact"] + ["lora against scoring=greedy"] * 2


def test_the_table_of_models_names_the_base_where_it_has_several_settings():
    made = [cell("aabb", variant="v16"), cell("abbb", variant="v32"), cell("aaab", model="n", variant="w")]
    made = [one.assign(cell="c", queries=None, perturbation=None, label_space=None) for one in made]
    facts = {"v16": Facts(dtype="bfloat16"), "v32": Facts(dtype="float32"), "w": Facts(dtype="float16")}
    found = find(Stored(frame(*made), {}, facts, ()), "m")
    drawing = over_k(FINDINGS["models"], found, Naming.of(found.summary))
    assert drawing is not None
    (table,) = (one.as_json() for one in drawing.tables)
    at = [column["name"] for column in table["columns"]].index("series")
    assert sorted(row[at] for row in table["rows"]) == ["random against dtype=bfloat16", "random against dtype=float32"]


def test_tables_hold_stored_values_and_the_unit_that_they_are_shown_in():
    """A file that a reader saves from them has the values of ``--json``."""
    frame = pd.DataFrame([{"training_flops": 3.2e15, "draws_sd": 0.07, "k": 5, "cache_bytes": 1e3}])
    data = of_names(frame, "Costs", "training_flops draws_sd k cache_bytes").as_json()
    assert data["rows"] == [[3.2e15, 0.07, 5, 1e3]]
    assert [column.get("unit") for column in data["columns"]] == [1e12, 0.01, None, 1e6]


def test_the_overview_counts_demonstrations_of_prompts_alone():
    rows = frame(cell("aabb", k=10), cell("abab", k=1000, select="probe")).assign(cell="c")
    assert _overview(Rows(rows), raced=False).endswith("1 model, 1 task, 10 demonstrations in the prompt.")
    assert _overview(Rows(rows[rows["select"] == "probe"]), raced=False).endswith(": 1 model, 1 task.")


def test_a_chart_in_three_formats_is_one_figure():
    files = tuple(Path("f") / f"trec.v1.{kind}" for kind in ("svg", "pdf", "png"))
    assert Written(Path("r.html"), 10**6, files).in_words() == "r.html (1.0 MB) and 1 figure in f"


@pytest.fixture(scope="module")
def of_one_draw(tmp_path_factory: pytest.TempPathFactory) -> Parsed:
    """The page of a selection beside the random one, with one draw of each."""
    made = cell("a" * 40, "a" * 40), cell("b" * 40, "a" * 40, select="balanced")
    return Parsed(page(make_report(imported(tmp_path_factory.mktemp("draw"), *made))))


def test_a_selection_that_retrieves_nothing_is_not_called_retrieval(of_one_draw: Parsed):
    found = of_one_draw
    assert "balanced against random selection: " in " ".join(found.text.split())
    assert "Accuracy with demonstrations chosen in another way, minus that with random" in found.text
    assert len(table(found, "Chosen less random")) == 1
    assert not re.search("retriev", found.text.partition("Method")[0], re.IGNORECASE)


@pytest.mark.parametrize("unsure", ["", "another may be better by 5 points or more"])
def test_the_card_says_beside_the_use_that_another_point_may_be_better(report: Report, unsure: str):
    answer = replace(report.answers[0], why_not="", use="random, k = 4", unsure=unsure)
    shown = page(replace(report, answers=[answer]))
    (use,) = re.findall(r'<p class="use">(.*?)</p>', shown)
    beside = f" (the best found; {unsure})" if unsure else ""
    assert re.sub("<.*?>", "", use) == f"random, k = 4{beside}"


# -- what is there, and what is not -------------------------------------------------------------


def test_sections_without_data_are_left_out_and_named_with_what_gives_them(parsed: Parsed):
    assert 'id="models"' not in str(parsed.tags)
    assert "Models compared (run the same with another --model;" in parsed.text
    assert "Copying (run --queries copied)" in parsed.text
    assert "Calibration (" not in parsed.text


def test_few_draws_failed_cells_and_settings_are_said(parsed: Parsed):
    assert "points with randomly drawn demonstrations have two or three draws" in parsed.text
    assert "1 cell could not be computed" in parsed.text
    assert table(parsed, "Cells that could not be computed")["reason"].tolist() == ["out of memory <b>4 GB</b>"]
    assert "scoring=exact" in parsed.text


def test_tables_of_one_draw_say_what_their_intervals_are_over_and_name_nothing_better(of_one_draw: Parsed):
    found = of_one_draw
    (shown,) = table(found, "Chosen less random").to_dict("records")
    assert (shown["advice"], shown["draws"], shown["base_draws"]) == ("one draw", 1, 1)
    assert shown["interval_over"] == "test examples only"
    assert set(table(found, "Accuracy over k")["interval_over"]) == {"test examples only"}
    assert "one draw: 1 point without a p value" in found.text


def test_that_a_selection_saw_the_queries_is_said_first_and_at_each_of_its_tables(tmp_path: Path):
    saw = "centroids,of=queries: the texts of the test queries were used to choose its demonstrations"
    made = [
        cell("aabb", select="centroids,of=queries"),
        cell("abba", model="other"),
        cell("aaaa", select="hybrid:3", model="other"),
    ]
    report = make_report(imported(tmp_path, *made))
    assert [note for note in report.notes if saw in note]
    tables = {t.caption: t for section in report.sections for t in section.tables}
    assert saw in str(tables["Accuracy over k"].notes)
    assert saw not in str(tables["Chosen less random"].notes)
    assert Parsed(page(report)).text.count(saw) > 1
    # of random and the hybrid: another draw may have other demonstrations
    single = "3 of 3 points with randomly drawn demonstrations have a single draw"
    assert single in str(report.notes)


def drawn_perturbations(results: Path) -> tuple[Findings, Drawing]:
    """The findings of a folder, and its section on changed demonstrations."""
    found = find(read_some(results))
    drawing = perturbations(FINDINGS["perturbations"], found, Naming.of(found.summary))
    assert drawing is not None
    return found, drawing


def test_changed_demonstrations_stand_beside_the_plain_curve(tmp_path: Path):
    for perturbation in ("none", "labels:permuted", "inputs-only"):
        sweep(tmp_path / "cards", tmp_path / "results", "2,6", perturbation=perturbation)
    sweep(tmp_path / "cards", tmp_path / "results", "2,6", selects=["balanced"])
    of_all, drawing = drawn_perturbations(tmp_path / "results")
    summary = of_all.summary
    curves, differences = drawing.panels
    shown = {(row["series"], row["k"]): row["value"] for row in curves.rows}
    assert len(shown) == len(curves.rows) == 6
    plain = summary.curves[summary.curves["select"].astype(str) == "random"]
    for point in plain.itertuples():
        assert shown["unperturbed", point.k] == pytest.approx(point.accuracy)
    for point in summary.perturbed_curves.itertuples():
        assert shown[point.perturbation, point.k] == pytest.approx(point.accuracy)
    for found in differences.rows:
        difference = shown[found["series"], found["k"]] - shown["unperturbed", found["k"]]
        assert found["value"] == pytest.approx(difference)
    assert list(drawing.look.series) == ["unperturbed", "labels:permuted", "inputs-only"]


def test_changed_demonstrations_without_a_test_example_of_the_plain_ones_are_left_out(tmp_path: Path):
    changed = cell("abbb", perturbation="labels:permuted")
    elsewhere = changed.assign(select="balanced", test_id="other " + changed["test_id"])
    imported(tmp_path, cell("aabb"), cell("aabb", select="balanced"), name="plain")
    _, drawing = drawn_perturbations(imported(tmp_path, changed, elsewhere, name="changed"))
    assert [panel.title.split(" · ")[2].split(",")[0] for panel in drawing.panels] == ["random"] * 2


@pytest.fixture(scope="module")
def of_failed_cells(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of a folder of failed cells alone, beside a torn file."""
    folder = tmp_path_factory.mktemp("failed")

    def fails(_: object) -> None:
        raise CellError("no room")

    runner(plan(folder / "cards", "1"), folder / "results", FakeBackend(fails=fails)).run()
    (folder / "results" / "torn.parquet").write_bytes(b"PAR1")
    with pytest.warns(UserWarning, match="torn.parquet"):
        return make_report(folder / "results")


def test_what_reading_warns_of_is_said_on_the_page_too(of_failed_cells: Report):
    assert any("torn.parquet" in note for note in of_failed_cells.notes)


def test_a_folder_of_failed_cells_alone_is_a_page(of_failed_cells: Report):
    found = Parsed(page(of_failed_cells))
    assert found.data["charts"] == []
    assert len(table(found, "Cells that could not be computed")) == 2


# -- the reader ---------------------------------------------------------------------------------


def entries(parsed: Parsed) -> list[dict[str, Any]]:
    reader = parsed.data["reader"]
    return [dict(zip(reader["fields"], row, strict=True)) for row in reader["rows"]]


def sampled(results: Path) -> tuple[Sequence[str], list[dict[str, Any]]]:
    """The texts and entries that the page of a folder has for its reader."""
    found = sample(read_some(results), Naming({}, False))
    return found.texts, [dict(zip(sample_fields(), row, strict=True)) for row in found.rows]


def test_the_reader_shows_the_end_of_the_prompt_that_was_run(results: Path, parsed: Parsed):
    from icl_bench.report.prompt_trace import find_prediction

    texts = parsed.data["reader"]["texts"]
    chosen = [e for e in entries(parsed) if texts[e["task"]] == "cards" and e["k"] == 4]
    for entry in (*chosen[:3], *chosen[-3:]):
        wanted = {"task": "cards", "k": 4, "draw": entry["draw"], "cell": texts[entry["cell"]]}
        shown = find_prediction(results, wanted, texts[entry["test_id"]])
        separator = texts[entry["separator"]]
        pieces = [texts[n] + separator for n in entry["shown"]]
        assert len(pieces) == 2
        assert shown.prompt.endswith("".join([*pieces, texts[entry["query"]]]))
        listed = [(texts[name], texts[answer]) for name, answer in entry["listed"]]
        assert listed == [(d.id, d.answer) for d in shown.demonstrations]
        assert (texts[entry["gold"]], texts[entry["prediction"]]) == (shown.row["gold"], shown.row["prediction"])


def test_probabilities_are_shown_where_they_are_stored(parsed: Parsed):
    found = [(e["probability"], e["margin"], e["label_mass"]) for e in entries(parsed)]
    assert (0.5, 0.25, 0.75) in found
    assert (None, None, None) in found


def test_prompts_are_not_shown_where_the_data_has_changed(tmp_path: Path):
    sweep(tmp_path / "cards", tmp_path / "results", "2", draws=1)
    write_rows(tmp_path / "cards" / "train.jsonl", [row(i) for i in range(39)])
    texts, found = sampled(tmp_path / "results")
    assert all(entry["query"] is None for entry in found)
    assert {texts[entry["why"]].split(" (")[0] for entry in found} == {"No prompt: the data has changed since the run"}


def test_prompts_are_not_shown_where_the_data_is_gone(tmp_path: Path):
    sweep(tmp_path / "cards", tmp_path / "results", "2", draws=1)
    (tmp_path / "cards" / "train.jsonl").unlink()
    texts, found = sampled(tmp_path / "results")
    assert all("train.jsonl" in texts[entry["why"]] for entry in found)
    assert {entry["count"] for entry in found} == {2}


def test_a_sample_says_so_and_has_every_stratum(tmp_path: Path):
    made = frame(
        *(
            cell("ab" * 50, "a" * 100, task=task, k=k, draw=draw)
            for task in "tu"
            for k in (1, 5, 9)
            for draw in range(20)
        )
    )
    stored = Stored(made.assign(cell="c"), {}, {"v": Facts(imported="made")}, [])
    assert stored.predictions["correct"].mean() == 0.5
    few = sample(stored, Naming({}, False), most=24)
    assert (len(few.rows), few.total) == (24, 12_000)
    place = {name: number for number, name in enumerate(sample_fields())}
    kinds = {(few.texts[r[place["task"]]], r[place["k"]], r[place["correct"]]) for r in few.rows}
    assert len(kinds) == 12
    assert few == sample(stored, Naming({}, False), most=24)
    assert sorted(in_turns(made)) == list(range(12_000))


def test_the_reader_names_demonstrations_that_were_changed_and_has_some_of_each(tmp_path: Path):
    ways = ["labels:permuted", "labels:noise=0.5"]
    for perturbation in ("none", *ways):
        sweep(tmp_path / "cards", tmp_path / "results", "2,6", perturbation=perturbation)
    stored = read_some(tmp_path / "results")
    few = sample(stored, Naming({}, False), most=12)
    place = sample_fields().index("perturbation")
    assert {few.texts[row[place]] for row in few.rows} == {"", *ways}
    whole = sample(stored, Naming({}, False))
    told = [whole.texts[row[place]] for row in whole.rows]
    assert told == stored.predictions["perturbation"].astype(object).fillna("").tolist()


def test_a_sample_keeps_to_its_size(tmp_path: Path):
    long = pd.Series([f"{i:05d}" * 100 for i in range(500)])
    made = cell("a" * 500, "a" * 500).assign(gold=long, prediction=long, cell="c")
    stored = Stored(made, {}, {}, [])
    few = sample(stored, Naming({}, False), most_bytes=20_000)
    assert 30 < len(few.rows) < 45
    assert few.total == 500


# -- text from data -----------------------------------------------------------------------------


def evil_results(folder: Path) -> Path:
    """Own and imported predictions whose every name and text is an attack, as far as it may be."""
    results = folder / "results"
    label = f"x{EVIL[:-2]}"
    train = [{"text": f"{EVIL} {i}", "label": label if i % 2 else f"y{label}"} for i in range(20)]
    asked = [{"text": EVIL, "label": label, "id": f"{EVIL}{i}"} for i in range(4)]
    template = {"input": "<script>alert(3)</script>{text}", "output": "<b>: {label}"}
    sweep_rows(folder / "own", results, train, asked, template)
    rows = frame(cell("aabb"), cell("abab", k=7)).drop(columns="variant")
    for name in ("task", "model", "order", "select"):
        rows[name] = f"{name}{EVIL}"
    rows["gold"] = rows["gold"] + EVIL
    rows["prediction"] = rows["prediction"] + EVIL
    rows["test_id"] = rows["test_id"] + EVIL
    source = folder / "<script>alert(4)<!-- & .parquet"
    rows.drop(columns=["correct", "valid"]).to_parquet(source)
    import_predictions(source, results)
    return results


def sweep_rows(folder: Path, results: Path, train: Any, asked: Any, template: Any) -> None:
    """A sweep of a task with these rows."""
    path = write_task(folder, template=template, labels={"style": "as-is"})
    write_rows(folder / "train.jsonl", train)
    write_rows(folder / "test.jsonl", asked)
    tokenizer: Any = small_tokenizer()
    ready = TokenizedTask(load_data(load_task(path)), model(), tokenizer)
    runner(make_plan(ready, KValues.parse("1,3"), draws=2), results, FakeBackend()).run()


def test_no_text_from_data_becomes_markup(tmp_path: Path, parsed: Parsed):
    made = page(make_report(evil_results(tmp_path)))
    found = Parsed(made)
    assert len(found.scripts) == 3
    assert found.tags.count("img") == 0
    assert found.handlers == []
    allowed = set(parsed.tags) | {"noscript"}
    assert set(found.tags) <= allowed
    assert f"task{EVIL}" in found.text  # as it stands, {{ 7*7 }} not computed either
    texts = found.data["reader"]["texts"]
    assert any(text.endswith(EVIL) for text in texts)
    assert "<!--" not in made.partition("</style>")[2].partition("window.vegaEmbed")[0]


def test_control_characters_in_names_are_written_out_in_figures(tmp_path: Path):
    made = frame(cell("aabb"), cell("abab", k=7)).drop(columns=["variant", "correct", "valid"])
    made = made.assign(task="\x1b[2J <b> &\x01", model="m\x00\ufffe", gold="a\x00")
    made.to_parquet(tmp_path / "odd.parquet")
    import_predictions(tmp_path / "odd.parquet", tmp_path / "results")
    style = FigureStyle(formats=("svg",))
    written = write_report(tmp_path / "results", tmp_path / "a.html", figures=tmp_path / "figures", style=style).figures
    texts = [path.read_text("utf-8") for path in written if path.suffix == ".svg"]
    assert all(ElementTree.fromstring(text) is not None for text in texts)
    assert any(r"\x1b[2J &lt;b&gt; &amp;\x01" in text for text in texts)


def test_embedded_json_cannot_end_its_script_and_says_the_same():
    value = {EVIL: [EVIL, 1.5, None, "\u2029"]}
    text = in_script(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


# -- the file -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The page of it as a file, alone in a folder, written by a process of its own."""
    out = tmp_path_factory.mktemp("page") / "report.html"
    code = "import sys; from pathlib import Path; from icl_bench.report import write_report; print(write_report(*map(Path, sys.argv[1:])).size)"
    done = subprocess.run([sys.executable, "-c", code, results, out], check=True, capture_output=True)
    return Written(out, int(done.stdout))


def test_the_same_folder_gives_the_same_bytes(report: Report, written: Written):
    same = written.page.read_bytes() == page(report).encode()
    assert same  # a comparison of megabytes, written out by pytest, takes hours


def test_the_page_is_one_file_that_loads_nothing(written: Written):
    made = written
    text = made.page.read_text(encoding="utf-8")
    assert made.size == len(text.encode()) < 8_000_000
    assert "default-src 'none'" in text
    own = text.replace(Parsed(text).scripts[1], "")
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']*""", own)
    assert [path.name for path in made.page.parent.iterdir()] == ["report.html"]


def test_figures_are_svg_pdf_and_png(report: Report, tmp_path: Path):
    from xml.etree import ElementTree

    from PIL import Image

    kept = [
        replace(section, panels=[panel for panel in section.panels if "cards" in panel.name])
        for section in report.sections
        if section.name in ("accuracy", "cost", "frontier")
    ]
    made = write_figures(replace(report, sections=kept), tmp_path, PLAIN)
    kinds = {path.suffix for path in made}
    assert kinds == {".svg", ".pdf", ".png"}
    assert {p.name for p in made} >= {"accuracy-cards-small.svg", "cost-seconds-cards.pdf"}
    for queries in ("100", "10,000", "1,000,000"):
        (drawn,) = (p for p in made if p.name == f"frontier-cards-small-{queries.replace(',', '-')}-queries.svg")
        assert f"small · {queries} queries" in drawn.read_text()
    for path in made:
        if path.suffix == ".svg":
            root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
            assert root.tag.endswith("svg")
            assert "mark-symbol" in path.read_text() or "mark-rect" in path.read_text()
        elif path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF-")
            assert b"%%EOF" in path.read_bytes()[-32:]
        else:
            with Image.open(path) as image:
                image.load()
                assert image.width > 600
                assert len(image.getcolors(1_000_000) or ()) > 10


# -- the command line ---------------------------------------------------------------------------


def test_the_command_writes_the_page_of_one_task(results: Path, tmp_path: Path):
    out = tmp_path / "page.html"
    assert re.search(r"page\.html \(\d\.\d MB\)", said("report", "--results", results, "--out", out, "--task", "texts"))
    found = Parsed(out.read_text(encoding="utf-8"))
    assert set(table(found, "ROUGE-1 over k")["task"]) == {"texts"}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda t: ["--results", t / "none"], "none: does not exist; run something first"),
        (lambda t: ["--out", t], "is a folder; give a file"),
        (lambda t: ["--out", t / "no" / "r.html"], "there is no folder"),
        (lambda t: ["--figures", t / "file"], "is a file; give a folder"),
        (lambda _: ["--task", "other"], "has no task 'other'"),
        (lambda t: ["--data-dir", t / "none"], "the data folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(results: Path, tmp_path: Path, make: Any, says: str):
    (tmp_path / "file").write_text("")
    words = ["--results", results, "--out", tmp_path / "r.html", *make(tmp_path)]
    (line,) = said("report", *words, code=2).splitlines()
    assert line.startswith("error: ")
    assert says in line
    assert not (tmp_path / "r.html").exists()


def test_missing_libraries_are_named_with_what_installs_them(tmp_path: Path):
    code = (
        "import sys; sys.modules['altair'] = None\n"
        "from pathlib import Path; from icl_bench.report import write_report\n"
        "from icl_bench.errors import UserError\n"
        "try: write_report(Path('r'), Path('o.html'))\n"
        "except UserError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == ("the report needs altair, which is missing: pip install 'icl-bench[report]'\n")


def test_another_error_is_not_taken_for_a_missing_library(results: Path, tmp_path: Path):
    with pytest.raises(UserError, match="has no model"):
        write_report(results, tmp_path / "r.html", only={"model": "none"})


def _curves(*variants: tuple[str, str]) -> Any:
    """A summary of one point for each selector and variant."""
    setting = {"task": "t", "model": "m", "order": "drawn", "attention": "full", "k": 1}
    rows = [{**setting, "select": select, "variant": variant} for select, variant in variants]
    return SimpleNamespace(curves=pd.DataFrame(rows), settings={})


def test_a_variant_is_named_only_where_a_curve_has_another():
    apart = Naming.of(_curves(("random", "a"), ("dense", "b")))
    assert apart.settings == {}
    both = Naming.of(_curves(("random", "a"), ("random", "b"), ("dense", "b")))
    assert both.settings == {"a": "variant a", "b": "variant b"}
