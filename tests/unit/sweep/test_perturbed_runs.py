"""Runs whose prompts show demonstrations otherwise: their prompts, their cells, their table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import fakes, in_process
from support.fakes import FREE_TEXT, FakeBackend, plan, runner, small_tokenizer, tokenized_task

from icl_bench.analysis.all_findings import read_findings
from icl_bench.analysis.summary import summarise_folder
from icl_bench.demonstrations.ordering import AsDrawn, Order
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.models import registry as models
from icl_bench.prompts.rendering import query_text
from icl_bench.report.leaderboard import leaderboard
from icl_bench.report.prompt_trace import find_prediction
from icl_bench.results.reading import finished_cells, read_results
from icl_bench.sweep.facts import facts
from icl_bench.sweep.prompt_group import PromptGroup
from icl_bench.tasks.spec import Unsupervised

FORMATTED = "inputs-only,format=3"
PERTURBATIONS = ["labels:permuted", "labels:noise=0.5", "inputs-only", "labels-only", "nearest-removed:50", FORMATTED]
PREAMBLE = "You will be provided problems similar to the ones below:"
CELL = {"task": "cards", "k": 6, "draw": 1}

pytestmark = pytest.mark.usefixtures("word_encoder")


@pytest.fixture(autouse=True)
def known_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "resolve", lambda *_, **__: fakes.model())
    monkeypatch.setattr(models, "load_tokenizer", lambda _: small_tokenizer())


def swept(folder: Path, perturbation: str = "none", select: str = "random", k: str = "6") -> Path:
    made = plan(folder / "task", k, selects=[select], perturbation=perturbation)
    assert runner(made, folder / "results", FakeBackend()).run().failed == {}
    return folder / "results"


def prompt(folder: Path, perturbation: str, test: int = 0) -> str:
    row = tokenized_task(folder / "task").data.test[test]
    shown = find_prediction(folder / "results", {**CELL, "perturbation": perturbation}, row.id)
    assert "hash checked" in shown.checked
    return shown.prompt


# -- prompts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("select", ["random", "balanced", "hybrid:2", "bm25"])
@pytest.mark.parametrize("perturbation", PERTURBATIONS)
def test_every_prompt_is_rebuilt_and_its_hash_is_checked(tmp_path: Path, perturbation: str, select: str):
    if perturbation.startswith("nearest") and select in ("hybrid:2", "bm25"):
        with pytest.raises(UserError, match="takes from demonstrations that all queries share"):
            swept(tmp_path, perturbation, select)
        return
    swept(tmp_path, perturbation, select)
    for test in range(6):
        prompt(tmp_path, perturbation, test)


def test_prompts_show_what_was_asked_of_the_same_demonstrations(tmp_path: Path):
    for perturbation in ("none", *PERTURBATIONS):
        swept(tmp_path, perturbation)
    found = tokenized_task(tmp_path / "task")
    shown = [found.data.train[i] for i in found.pool.drawn(1)[:6]]
    end = query_text(found.data.spec.template, found.data.test[0])
    inputs = [f"query: {row.fields['text']}" for row in shown]
    answers = [f"intent: {row.answer}" for row in shown]

    def pieces(perturbation: str) -> list[str]:
        *before, last = prompt(tmp_path, perturbation).split("\n==\n")
        assert last == end
        return before

    whole = ["\n".join(pair) for pair in zip(inputs, answers, strict=True)]
    assert pieces("none") == whole
    assert pieces("inputs-only") == [PREAMBLE, *inputs]
    formatted = [found.data.train[i] for i in found.pool.drawn(1)[::-1][:3]]
    assert pieces(FORMATTED) == [
        PREAMBLE,
        *inputs,
        *(f"query: {row.fields['text']}\nintent: {row.answer}" for row in formatted),
    ]
    assert pieces("labels-only") == answers
    permuted, noisy = pieces("labels:permuted"), pieces("labels:noise=0.5")
    assert [text.split("\n")[0] for text in permuted] == inputs
    assert [text.split("\n")[0] for text in noisy] == inputs
    assert whole not in (permuted, noisy)
    left = pieces("nearest-removed:50")
    assert len(left) == 3
    assert left == [text for text in whole if text in left]


def test_the_nearest_are_removed_for_each_query_apart(tmp_path: Path):
    results = swept(tmp_path, "nearest-removed:50")
    frame = read_results(results)
    found = tokenized_task(tmp_path / "task")
    shown = found.pool.drawn(0)[:6]
    rankings = found.pool.similarity.ranked("dense")
    for ids, ranking in zip(frame.query("draw == 0")["demonstration_ids"], rankings, strict=True):
        scores = ranking.scores[found.pool.places(shown)]
        far = {found.data.train[shown[i]].id for i in np.argsort(-scores, kind="stable")[3:]}
        assert set(ids) == far
    assert len({tuple(ids) for ids in frame["demonstration_ids"]}) > 2
    near = read_results(swept(tmp_path / "farthest", "farthest-removed:50"))
    for one, other in zip(frame["demonstration_ids"], near["demonstration_ids"], strict=True):
        assert not set(one) & set(other), "each of the six is removed by one of both"


def test_runs_without_the_nearest_and_without_the_farthest_have_a_learning_ratio(tmp_path: Path):
    for perturbation in ("none", "nearest-removed:50", "farthest-removed:50"):
        results = swept(tmp_path, perturbation)
    table = read_findings(results).learning_ratio
    assert sorted(set(table["k"])) == [6]
    assert (table["removed"] == 50).all()
    assert table["score"].notna().all()


def test_demonstrations_that_all_share_are_still_one_growing_prefix(tmp_path: Path):
    for perturbation in PERTURBATIONS[:4]:
        group = plan(tmp_path, "2,5", draws=1, perturbation=perturbation).groups[0].group
        smaller, larger = (prompts.prefix for _, prompts in group.prompts([2, 5]))
        assert larger[: len(smaller)] == smaller


def test_what_a_prompt_shows_changes_neither_pool_nor_draw(tmp_path: Path):
    plain = tokenized_task(tmp_path, pool={"drop_longest": 0.3})
    for perturbation in PERTURBATIONS:
        other = tokenized_task(tmp_path, pool={"drop_longest": 0.3}, perturbation=perturbation)
        assert other.pool.rows.tolist() == plain.pool.rows.tolist()
        assert other.pool.drawn(1).tolist() == plain.pool.drawn(1).tolist()
        assert (other.pool.retrieved("bm25", 0, 5) == plain.pool.retrieved("bm25", 0, 5)).all()


def test_every_k_at_random_has_the_share_of_wrong_labels_though_rows_are_not_in_the_pool(tmp_path: Path):
    found = tokenized_task(tmp_path, pool={"drop_longest": 0.3}, perturbation="labels:noise=0.3")
    assert found.pool.dropped
    for draw in range(5):
        drawn, shown = found.pool.drawn(draw), found.perturbed(draw)
        wrong = np.cumsum([shown[i] != found.data.train[i] for i in drawn])
        assert (np.abs(wrong - 0.3 * np.arange(1, len(drawn) + 1)) < 1).all()


@pytest.mark.parametrize("perturbation", ["none", "labels:permuted", "labels:noise=0.5"])
@pytest.mark.parametrize("select", ["random", "bm25"])
def test_by_label_sorts_by_the_labels_that_are_shown(tmp_path: Path, perturbation: str, select: str):
    made = plan(tmp_path, "12", draws=1, selects=[select], orders=["by-label"], perturbation=perturbation)
    (group,) = made.groups
    shown = made.task.perturbed(0)
    for row in np.atleast_2d(group.group.demonstrations(12)):
        labels = [shown[i].answer for i in row]
        assert labels == sorted(labels)


@pytest.mark.parametrize("perturbation", PERTURBATIONS)
def test_max_is_the_largest_k_that_fits_as_it_is_shown(tmp_path: Path, perturbation: str):
    made = plan(tmp_path, "max", draws=1, perturbation=perturbation, context_tokens=250)
    (cell,) = made.cells
    group, k = made.groups[0].group, cell.spec.k
    assert cell.needed_tokens <= 250
    if k < 40:
        ((_, longer),) = group.prompts([k + 1])
        assert longer.longest + group.task.answer_tokens > 250


# -- cells --------------------------------------------------------------------------------------


def test_each_is_a_variant_that_names_itself(tmp_path: Path):
    for perturbation in ("none", *PERTURBATIONS):
        results = swept(tmp_path, perturbation)
    frame = read_results(results)
    assert frame["variant"].nunique() == 7
    named = frame.drop_duplicates("variant")["perturbation"].astype(object)
    assert sorted(named.dropna()) == sorted(PERTURBATIONS)
    assert named.isna().sum() == 1


def test_a_cell_tells_the_datas_labels_and_apart_from_them_what_it_showed(tmp_path: Path):
    results = swept(tmp_path, "labels:permuted")
    found = tokenized_task(tmp_path / "task", perturbation="labels:permuted")
    true = {row.id: row.answer for row in found.data.train}
    for _, meta in finished_cells(results):
        told = {name: label for label, ids in meta.demonstration_labels.items() for name in ids}
        assert told == {name: true[name] for name in meta.demonstration_ids}
        showed = {row.id: row.answer for row in found.perturbed(meta.spec.draw)}
        assert meta.shown_answers == {name: showed[name] for name in meta.demonstration_ids}
        assert meta.shown_answers != told


def test_a_plain_cell_says_nothing_of_it(tmp_path: Path):
    cells = list(finished_cells(swept(tmp_path)))
    assert cells
    for _, meta in cells:
        assert meta.facts.perturbation is None
        assert meta.shown_answers is None


# -- analyses -----------------------------------------------------------------------------------


OF_ALL = ("perturbed_curves", "perturbations", "shown_labels", "provenance")
"""Tables in which perturbed demonstrations stand, too."""


def plain_tables(results: Path) -> dict[str, Any]:
    found = read_findings(results).as_json()
    return {name: table for name, table in found.items() if name not in OF_ALL}


def test_no_plain_table_has_anything_of_them(tmp_path: Path):
    results = swept(tmp_path, k="2,6")
    swept(tmp_path, select="bm25", k="2,6")
    before, board = plain_tables(results), leaderboard(results)
    for perturbation in PERTURBATIONS:
        swept(tmp_path, perturbation, k="2,6")
    swept(tmp_path, "inputs-only", select="dense", k="2,6")
    assert plain_tables(results) == before
    assert leaderboard(results).equals(board)


def test_alone_they_are_nothing_for_a_leaderboard(tmp_path: Path):
    with pytest.raises(UserError, match="nothing for a leaderboard"):
        leaderboard(swept(tmp_path, "inputs-only"))


def test_each_stands_beside_the_plain_prompts_of_its_own_selection(tmp_path: Path):
    results = swept(tmp_path, k="2,6")
    for select in ("balanced", "dense"):
        swept(tmp_path, select=select, k="6")
    for perturbation in PERTURBATIONS:
        swept(tmp_path, perturbation, k="2,6")
        swept(tmp_path, perturbation, select="balanced", k="6")
    swept(tmp_path, "inputs-only", select="dense", k="6")
    swept(tmp_path, "inputs-only", select="bm25", k="6")  # has no plain side
    found = read_findings(results).perturbations
    assert len(found) == 6 * 3 + 1
    frame = read_results(results)
    frame["perturbation"] = frame["perturbation"].astype(object).fillna("none")
    means = frame.groupby(["perturbation", "select", "k"], observed=True)["correct"].mean()
    for row in found.itertuples():
        perturbed = means[row.perturbation, row.select, row.k]
        assert row.difference == pytest.approx(perturbed - means["none", row.select, row.k])
        draws = 1 if row.select == "dense" else 2  # both draws of dense retrieval have the same prompts
        assert (row.draws, row.base_draws, row.rows) == (draws, draws, 6)
        assert row.variant != row.base_variant


def test_plain_prompts_of_another_seed_are_not_beside_them(tmp_path: Path):
    results = swept(tmp_path)
    made = plan(tmp_path / "task", "6", perturbation="inputs-only", seed=1)
    runner(made, results, FakeBackend()).run()
    assert read_findings(results).perturbations.empty


def test_their_own_curves_are_printed_after_a_run_and_in_the_summary(tmp_path: Path):
    def told(*words: str) -> str:
        return in_process.said("summary", "--results", tmp_path / "results", *words)

    results = swept(tmp_path, "labels:permuted")
    assert summarise_folder(results).curves.empty
    alone = told()
    assert "cards · small, perturbed demonstrations: labels:permuted" in alone
    swept(tmp_path)
    assert "minus that of unperturbed ones" in told()
    tables = json.loads(told("--json"))
    for name in ("perturbed_curves", "perturbations", "shown_labels"):
        assert [row["perturbation"] for row in tables[name]] == ["labels:permuted"]


# -- bad requests -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("perturbation", "k", "changes", "said"),
    [
        ("labels:noise=1.5", "6", {}, "share of wrong labels from 0 to 1"),
        ("labels:shuffled", "6", {}, "not known; did you mean"),
        ("nearest-removed:10", "1", {}, "leaves no demonstration of k=1"),
        ("labels:noise=0.3", "6", FREE_TEXT, "answers are free text"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(
    tmp_path: Path, perturbation: str, k: str, changes: dict[str, Any], said: str
):
    with pytest.raises(UserError, match=said) as refused:
        plan(tmp_path, k, perturbation=perturbation, **changes)
    assert "\n" not in str(refused.value)


def test_auto_begins_where_something_is_left(tmp_path: Path):
    made = plan(tmp_path, "auto", draws=1, perturbation="nearest-removed:60")
    assert [cell.spec.k for cell in made.cells] == [5, 10, 25, 40]


# -- inputs without answers -----------------------------------------------------------------------


def unsupervised(folder: Path, perturbation: str, **texts: str) -> Any:
    """A task with these texts around inputs."""
    found = tokenized_task(folder, perturbation=perturbation)
    spec = found.data.spec.model_copy(update={"unsupervised": Unsupervised(**texts)})
    return replace(found, data=replace(found.data, spec=spec))


def test_without_texts_around_them_inputs_alone_are_the_prompt_and_no_fact_is_stored(tmp_path: Path):
    bare = unsupervised(tmp_path, "inputs-only", preamble="")
    group = PromptGroup(bare, SelectorSpec(), AsDrawn(), 0)
    ((_, prompts),) = group.prompts([3])
    inputs = [f"query: {bare.data.train[i].fields['text']}\n==\n" for i in bare.pool.drawn(0)[:3]]
    assert prompts.shared_text == "".join(inputs)
    assert facts(bare, SelectorSpec(), {}).unsupervised is None
    assert facts(unsupervised(tmp_path, "inputs-only"), SelectorSpec(), {}).unsupervised == {"preamble": PREAMBLE}
    assert facts(unsupervised(tmp_path, "labels-only"), SelectorSpec(), {}).unsupervised is None


@pytest.mark.parametrize("select", ["random", "hybrid:2", "bm25"])
def test_an_instruction_stands_between_the_inputs_and_what_is_complete(tmp_path: Path, select: str):
    found = unsupervised(tmp_path, FORMATTED, instruction="Now answer.")
    group = PromptGroup(found, SelectorSpec.parse(select), Order.parse("drawn"), 0)
    assert not group.grows
    for k, prompts in group.prompts([2, 4]):
        for test, query in enumerate(found.data.test[:3]):
            parts = prompts.text(test).split("\n==\n")
            assert [parts[0], parts[k + 1]] == [PREAMBLE, "Now answer."]
            assert ["\nintent: " in part for part in parts[1:-1]] == [*[False] * (k + 1), *[True] * 3]
            assert parts[-1] == query_text(found.data.spec.template, query)
            assert prompts.ids(test) == found.encoder.whole(prompts.text(test))


@pytest.mark.parametrize("select", ["random", "balanced", "bm25", "hybrid:2"])
def test_complete_demonstrations_are_none_of_the_inputs_and_these_are_the_unperturbed_ones(tmp_path: Path, select: str):
    plain = tokenized_task(tmp_path)
    found = unsupervised(tmp_path, FORMATTED)
    most = len(found.pool) - 3
    for k in (4, most):
        shown, bare = (
            np.atleast_2d(PromptGroup(task, SelectorSpec.parse(select), Order.parse("drawn"), 1).demonstrations(k))
            for task in (found, plain)
        )
        assert (shown[:, :k] == bare).all()
        assert all(len(set(row.tolist())) == k + 3 for row in shown)


def test_more_inputs_than_the_complete_ones_leave_are_left_out_or_refused(tmp_path: Path):
    most = len(tokenized_task(tmp_path / "task").pool) - 3
    made = plan(tmp_path / "task", f"4,{most + 1}", perturbation=FORMATTED, draws=1)
    assert [cell.spec.k for cell in made.cells] == [4]
    (reason,) = made.combinations.reasons
    assert f"k={most + 1} and 3 further rows of the pool are {most + 4}, more than the pool's {most + 3}" in reason
    with pytest.raises(UserError, match="more than the pool's"):
        plan(tmp_path / "task", "4", perturbation=f"inputs-only,format={most}", draws=1)
    made = plan(tmp_path / "task", "max", perturbation=FORMATTED, draws=1)
    assert [cell.spec.k for cell in made.cells] == [most]
