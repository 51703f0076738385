"""Every way to choose demonstrations gives the prompts that it promises, to an engine as well."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from support import fakes
from support.fakes import ENGINE, FREE_TEXT, FakeBackend, plan, planned, runner, small_tokenizer, tokenized_task

from icl_bench.cli.output.lists import print_shown
from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import ChoiceError, UserError
from icl_bench.models import registry as models
from icl_bench.models import text_encoders
from icl_bench.models.attention_patterns import Pattern
from icl_bench.report.prompt_trace import find_prediction
from icl_bench.results.cells import Identity
from icl_bench.results.reading import finished_cells, read_results
from icl_bench.sweep.facts import Identities, facts
from icl_bench.sweep.options import Queries
from icl_bench.sweep.plan import DEFAULT_DRAWS
from icl_bench.sweep.prompt_group import PromptGroup
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task

SHARED = ["random", "balanced", "centroids"]
HYBRID = ["hybrid:3", "hybrid:3,by=dense", "balanced+hybrid:3", "centroids+hybrid:3"]
RETRIEVED = ["bm25", "dense"]
PER_LABEL = ["per-label:2", "hybrid:per-label:1", "balanced+hybrid:per-label:1,by=bm25"]
DRAWN = Order.parse("drawn")

pytestmark = pytest.mark.usefixtures("word_encoder")


def group(folder: Path, select: str, draw: int = 0, order: Order = DRAWN, **task: Any) -> PromptGroup:
    return PromptGroup(tokenized_task(folder, **task), SelectorSpec.parse(select), order, draw)


def swept(folder: Path, select: str, k: str = "6", **changes: Any) -> Path:
    made = plan(folder / "task", k, draws=1, selects=[select], **changes)
    assert runner(made, folder / "results", FakeBackend()).run().failed == {}
    return folder / "results"


# -- what is chosen -----------------------------------------------------------------------------


@pytest.mark.parametrize("select", HYBRID)
def test_a_hybrid_begins_with_its_base_and_ends_with_the_most_similar_others(tmp_path: Path, select: str):
    found = group(tmp_path, select)
    base = SelectorSpec(found.choice.base)
    shared = PromptGroup(found.task, base, DRAWN, 0).demonstrations(5)
    shown = found.demonstrations(8)
    assert (shown[:, :5] == shared).all()
    by = found.choice.by
    ranked = found.task.pool.retrieved(by, 0, len(found.task.pool))
    for own, most_similar_first in zip(shown[:, 5:], ranked, strict=True):
        others = [i for i in most_similar_first if i not in shared]
        assert own.tolist() == others[:3][::-1]


@pytest.mark.parametrize("order", ["shuffled:1", "by-label", "by-length", "smooth"])
def test_an_order_arranges_what_is_shared_and_leaves_the_own_ones_last(tmp_path: Path, order: str):
    drawn = group(tmp_path, "hybrid:3").demonstrations(9)
    other = group(tmp_path, "hybrid:3", order=Order.parse(order)).demonstrations(9)
    assert (drawn[:, 6:] == other[:, 6:]).all()
    assert (drawn[:, :6] != other[:, :6]).any()
    assert (np.sort(drawn[:, :6]) == np.sort(other[:, :6])).all()


@pytest.mark.parametrize("select", ["random", "balanced", *HYBRID[:3]])
def test_what_is_shared_for_k_begins_what_is_shared_for_a_larger_k(tmp_path: Path, select: str):
    found = group(tmp_path, select)
    sets = [prompts for _, prompts in found.prompts([4, 6, 15])]
    for smaller, larger in itertools.pairwise(sets):
        assert len(smaller.prefix) < len(larger.prefix)
        assert larger.prefix[: len(smaller.prefix)] == smaller.prefix
    assert found.grows


@pytest.mark.parametrize("select", ["centroids", "centroids+hybrid:3", "bm25"])
def test_where_nothing_is_nested_nothing_counts_as_computed_before(tmp_path: Path, select: str):
    order = "relevance" if select == "bm25" else "drawn"
    made = plan(tmp_path, "4,9", draws=1, selects=[select], orders=[order])
    assert not made.groups[0].group.grows
    for cell in made.cells:
        own = cell.prompt_tokens - cell.prefix_tokens * cell.queries
        assert cell.new_tokens == cell.prefix_tokens + own


def test_balanced_ones_have_every_label_equally_often(tmp_path: Path):
    found = group(tmp_path, "balanced")
    train = found.task.data.train
    labels = [train[i].answer for i in found.demonstrations(9)]
    assert {labels.count(label) for label in labels} == {3}
    assert found.demonstrations(9).tolist() != group(tmp_path, "balanced", 1).demonstrations(9).tolist()


def test_centroids_are_of_the_pool_or_of_the_queries(tmp_path: Path):
    of_pool = group(tmp_path, "centroids").demonstrations(4)
    of_queries = group(tmp_path, "centroids,of=queries").demonstrations(4)
    assert len({*of_pool}) == len({*of_queries}) == 4
    assert sorted(of_pool) != sorted(of_queries)


def test_a_hybrid_of_its_own_alone_shares_nothing_but_begins_no_worse(tmp_path: Path):
    found = group(tmp_path, "hybrid:3")
    reversed_ = found.task.pool.retrieved("bm25", 0, 3)[:, ::-1]
    assert (found.demonstrations(3) == reversed_).all()


@pytest.mark.parametrize("select", PER_LABEL)
def test_prompts_end_with_the_nearest_of_each_label_the_most_similar_label_last(tmp_path: Path, select: str):
    order = "drawn" if "hybrid" in select else "relevance"
    found = group(tmp_path, select, order=Order.parse(order))
    shown, train, each = found.demonstrations(6), found.task.data.train, found.choice.each
    assert shown.shape == (len(found.task.data.test), 6)
    by = found.choice.by
    ranked = found.task.pool.retrieved(by, 0, len(found.task.pool))
    for row, most_similar_first in zip(shown.tolist(), ranked.tolist(), strict=True):
        own, shared = row[-3 * each :], row[: -3 * each]
        nearest: dict[str, list[int]] = {}
        for i in most_similar_first:
            if i not in shared:
                nearest.setdefault(train[i].answer, []).append(i)
        assert own[::-1] == [i for of_label in nearest.values() for i in of_label[:each]]


def test_a_number_of_each_label_says_k_itself(tmp_path: Path):
    made = plan(tmp_path, "1,4", draws=1, selects=["per-label:2", "random"], orders=None)
    assert [(c.spec.select, c.spec.k) for c in made.cells] == [("per-label:2", 6), ("random", 1), ("random", 4)]
    assert not made.problems
    beside = plan(tmp_path, "max", draws=1, selects=["hybrid:per-label:1"])
    assert beside.cells[0].spec.k > 3
    assert not beside.problems


def test_a_label_with_too_few_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"--select per-label:30: label .* has [0-9]+ different"):
        plan(tmp_path, "1", draws=1, selects=["per-label:30"], orders=None)
    with pytest.raises(UserError, match=r"k=5 has no room for 6 .*2 of each of 3 labels"):
        plan(tmp_path, "5", draws=1, selects=["hybrid:per-label:2"])


@pytest.mark.parametrize("order", ["drawn", "by-label"])
@pytest.mark.parametrize("by", ["bm25", "dense"])
def test_prompts_say_how_similar_each_demonstration_is_to_each_query(tmp_path: Path, by: str, order: str):
    made = plan(tmp_path, "4,9", draws=2, attention=[f"block:2,sink=0,local=0,top=1,by={by}"], orders=[order])
    found = made.groups[1].group
    pool = found.task.pool
    for k, prompts in found.prompts([4, 9]):
        shown = found.demonstrations(k)
        for row, ranking in zip(prompts.similar, pool.similarity.ranked(by), strict=True):
            for train, similar in zip(shown, row, strict=True):
                place = list(pool.rows).index(train)
                related = ranking.related[place]
                assert similar == (ranking.scores[place] if related else -np.inf)
    layout = made.cells[-1].prompt_layout
    assert layout.read == prompts.read_by(found.pattern)
    assert len({*layout.read}) > 1, "all queries read the same"


def test_the_blocks_that_a_query_read_are_stored_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(models, "resolve", lambda *_, **__: fakes.model())
    monkeypatch.setattr(models, "load_tokenizer", lambda _: small_tokenizer())
    made = plan(tmp_path / "task", "9", draws=1, attention=["block:2,sink=1,local=0,top=2", "full"])
    assert runner(made, tmp_path / "results", FakeBackend()).run().failed == {}
    found = made.groups[0].group
    ((_, prompts),) = found.prompts([9])
    for row, similar in zip(found.task.data.test, prompts.similar, strict=True):
        wanted = {"task": "cards", "attention": str(found.pattern)}
        shown = find_prediction(tmp_path / "results", wanted, row.id)
        assert tuple(shown.row["read_blocks"]) == found.pattern.read_blocks(similar)
        assert len(shown.row["read_blocks"]) == 3
    print_shown(shown, Console(width=200))
    blocks = ", ".join(map(str, shown.row["read_blocks"]))
    assert f"top=2; blocks read, from 0: {blocks}" in capsys.readouterr().out
    whole = find_prediction(tmp_path / "results", {"task": "cards", "attention": "full"}, row.id)
    assert whole.row.get("read_blocks") is None


def test_what_a_query_reads_by_is_part_of_what_decides_a_cell(tmp_path: Path):
    task, backend = tokenized_task(tmp_path), {"backend": "fake"}
    plain, bm25, dense = (
        facts(task, SelectorSpec(), backend, Pattern.parse(text))
        for text in ("block:2", "block:2,top=1", "block:2,top=1,by=dense")
    )
    assert plain == bm25
    assert plain.with_more(sentence_encoder=task.pool.similarity.sentence_encoder.name) == dense


def repeating(folder: Path, select: str, test: int = 3) -> PromptGroup:
    """A choice from 40 rows of which the last 20 are the first 20 again, two of another label."""
    path = fakes.write_task(folder, test_rows=test)
    rows = [fakes.row(i) for i in range(20)] * 2
    rows[38:] = [{**again, "label": "top_up"} for again in rows[38:]]
    fakes.write_rows(folder / "train.jsonl", rows)
    data, tokenizer = load_data(load_task(path)), small_tokenizer()
    made = TokenizedTask(data, fakes.model(), tokenizer)  # type: ignore[arg-type]
    return PromptGroup(made, SelectorSpec.parse(select), DRAWN, 0)


@pytest.mark.parametrize("select", HYBRID)
def test_the_own_part_of_a_hybrid_repeats_no_text_and_label(tmp_path: Path, select: str):
    found = repeating(tmp_path, select)
    train = found.task.data.train
    for k in (3, 6, 12):
        shown = found.demonstrations(k)
        assert {len({*row}) for row in shown} == {k}
        for ids in shown:
            texts = [(*train[i].fields.values(), train[i].answer) for i in ids]
            assert len({*texts[-3:]} - {*texts[:-3]}) == 3
    shared = found.task.pool.shared(found.choice, 0, 9)
    assert (found.demonstrations(12)[:, :9] == shared).all()


def test_a_text_of_two_labels_is_two_demonstrations_and_retrieval_repeats_rows(tmp_path: Path):
    train = (hybrid := repeating(tmp_path / "a", "hybrid:21")).task.data.train
    texts = [[train[i].fields["text"] for i in ids] for ids in hybrid.demonstrations(21)]
    assert {len({*row}) for row in texts} <= {19, 20}
    alone = repeating(tmp_path / "b", "dense").demonstrations(4)
    assert {len({train[i].fields["text"] for i in ids}) for ids in alone} == {2}


def test_a_hybrid_ends_where_the_pool_has_no_more_that_are_different(tmp_path: Path):
    found = repeating(tmp_path, "hybrid:15")
    different = len({(*row.fields.values(), row.answer) for row in found.task.data.train})
    assert found.largest() == different < 40
    with pytest.raises(
        UserError,
        match=r"hybrid:15: at k=39 the pool has [0-9] demonstrations "
        rf"that are not shown already.*ask for at most {different}$",
    ):
        found.demonstrations(39)


# -- what an engine gets ------------------------------------------------------------------------


@pytest.mark.parametrize("select", [*SHARED, *HYBRID, *PER_LABEL[1:]])
def test_what_is_shared_is_computed_once(tmp_path: Path, select: str):
    results = swept(tmp_path, select)
    frame = read_results(results)
    made = plan(tmp_path / "task", "6", draws=1, selects=[select])
    found = made.groups[0].group
    count = found.choice.shared_count(6, 3)
    train = found.task.data.train
    shown = np.atleast_2d(found.demonstrations(6))[0, :count]
    pieces = [found.task.encoder.form.demonstration(train[i]) for i in shown]
    assert set(frame["cached_tokens"]) == {len(found.task.encoder.whole("".join(pieces)))}


@pytest.mark.parametrize("select", [*SHARED, *HYBRID, *RETRIEVED, *PER_LABEL, "centroids,of=queries"])
def test_every_prompt_is_rebuilt_and_its_hash_is_checked(tmp_path: Path, select: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "resolve", lambda *_, **__: fakes.model())
    monkeypatch.setattr(models, "load_tokenizer", lambda _: small_tokenizer())
    results = swept(tmp_path, select)
    for row in tokenized_task(tmp_path / "task").data.test:
        shown = find_prediction(results, {"task": "cards", "k": 6, "draw": 0}, row.id)
        assert "hash checked" in shown.checked
        assert len(shown.demonstrations) == 6


@pytest.mark.parametrize("select", HYBRID)
def test_a_prediction_of_a_hybrid_tells_all_of_its_demonstrations(tmp_path: Path, select: str):
    results = swept(tmp_path, select)
    ids = read_results(results)["demonstration_ids"].tolist()
    assert {len({*row}) for row in ids} == {6}
    assert len({tuple(row[:3]) for row in ids}) == 1 < len({tuple(row[3:]) for row in ids})


def test_random_parts_are_drawn_ten_times_by_default(tmp_path: Path):
    made = plan(tmp_path, "6", draws=None, selects=["hybrid:3", "balanced", "centroids", "dense"])
    of = [cell.spec.select for cell in made.cells]
    assert [of.count(name) for name in dict.fromkeys(of)] == [*[DEFAULT_DRAWS] * 3, 1]


@pytest.mark.parametrize(
    ("select", "order", "perturbation", "said"),
    [
        ("random", "drawn", "none", None),
        ("balanced", "drawn", "labels-only", None),
        ("bm25", "relevance", "none", None),
        ("centroids", "drawn", "none", "centroids: all queries share all demonstrations; between"),
        (
            "random",
            "shuffled:1",
            "none",
            "random, shuffled: all queries share all demonstrations; between different k nothing is shared",
        ),
        (
            "hybrid:3",
            "drawn",
            "none",
            "hybrid:3: the first k - 3 demonstrations are shared by all queries, the last 3 are the query's own",
        ),
        ("centroids+hybrid:3", "by-label", "none", "the query's own; between different k nothing"),
        (
            "random",
            "drawn",
            "nearest-removed:10",
            "random: nearest-removed:10 leaves each query its own demonstrations; nothing is shared except by chance",
        ),
        ("centroids", "drawn", "nearest-removed:10", "centroids: nearest-removed:10 leaves each query its own dem"),
    ],
)
def test_a_plan_is_told_what_is_shared_where_it_is_not_all_of_it_by_all_k(
    tmp_path: Path, select: str, order: str, perturbation: str, said: str | None
):
    found = group(tmp_path, select, order=Order.parse(order), perturbation=perturbation)
    assert (found.sharing is None) if said is None else (said in str(found.sharing))
    smaller, larger = (prompts.prefix for _, prompts in found.prompts([5, 9]))
    nested = len(smaller) < len(larger) and larger[: len(smaller)] == smaller
    if perturbation != "nearest-removed:10":  # by chance, queries can begin alike
        assert nested == (select != "bm25" and "nothing is shared" not in str(found.sharing))


# -- what it is called --------------------------------------------------------------------------


def test_the_names_of_cells_do_not_change_unnoticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    encoder = text_encoders.Encoder("enc", "nowhere", 6)
    monkeypatch.setattr(text_encoders, "encoder_default", lambda: encoder)
    found = tokenized_task(tmp_path)
    spec = plan(tmp_path, "2", draws=1).cells[0].spec
    for select, order, cell in [
        ("random", "drawn", "93ff718b33f2"),
        ("bm25", "relevance", "98065fcdee10"),
        ("bertscore", "relevance", "6a697800dc13"),
    ]:
        decided = facts(found, SelectorSpec.parse(select), ENGINE)
        named = Identity(spec.model_copy(update={"select": select, "order": order}), decided)
        assert (select, named.cell) == (select, cell)


@pytest.mark.parametrize("order", ["by-length", "smooth"])
def test_own_demonstrations_are_arranged_for_each_query(tmp_path: Path, order: str):
    ranked = group(tmp_path, "bm25", order=Order.parse("relevance")).demonstrations(5)
    found = group(tmp_path, "bm25", order=Order.parse(order))
    shown, arranging = found.demonstrations(5), Order.parse(order).of(found.task.pool)
    for own, most_similar_last in zip(shown, ranked, strict=True):
        assert own.tolist() == arranging.arrange(most_similar_last[::-1], ["x"] * 5).tolist()
    assert (shown != ranked).any()
    if order == "smooth":
        assert (shown[:, -1] == ranked[:, -1]).all()


@pytest.mark.parametrize("order", ["by-length", "smooth"])
def test_prompts_of_an_order_that_does_not_grow_are_those_of_each_k_alone(tmp_path: Path, order: str):
    found = group(tmp_path, "random", order=Order.parse(order))
    assert not found.grows
    for k, prompts in found.prompts([4, 6, 15]):
        alone = dict(group(tmp_path, "random", order=Order.parse(order)).prompts([k]))[k]
        assert list(prompts.prefix) == list(alone.prefix)
        assert sorted(found.demonstrations(k)) == sorted(group(tmp_path, "random").demonstrations(k))


def test_a_cell_names_the_encoder_that_arranged_its_demonstrations(tmp_path: Path):
    cells = plan(tmp_path, "0,2", draws=1, orders=["drawn", "by-length", "smooth"]).cells
    named = {(cell.spec.k, cell.spec.order): Identities(ENGINE)(cell).facts.sentence_encoder for cell in cells}
    assert named == {(0, "drawn"): None, (2, "drawn"): None, (2, "by-length"): None, (2, "smooth"): "words"}


def test_a_cell_names_the_encoder_that_chose_its_demonstrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    encoder = text_encoders.Encoder("enc", "nowhere", 6)
    monkeypatch.setattr(text_encoders, "encoder_default", lambda: encoder)
    found = tokenized_task(tmp_path)

    def named(select: str) -> tuple[Any, Any]:
        decided = facts(found, SelectorSpec.parse(select), ENGINE)
        return decided.bertscore_encoder, decided.sentence_encoder

    for select in ("random", "bm25", "balanced", "hybrid:3"):
        assert named(select) == (None, None)
    for select in ("dense", "centroids", "hybrid:3,by=dense", "centroids+hybrid:3"):
        assert named(select) == (None, "words")
    assert named("hybrid:3,by=bertscore") == named("bertscore") == ("enc", None)
    assert named("centroids+hybrid:3,by=bertscore") == ("enc", "words")


def test_a_choice_is_the_same_however_it_is_written(tmp_path: Path):
    made = plan(tmp_path, "6", draws=1, selects=["hybrid:03,by=bm25", "random+hybrid:3"])
    assert [cell.spec.select for cell in made.cells] == ["hybrid:3"]


# -- what cannot be had -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("select", "k", "said"),
    [
        ("hybrid:7", "6", r"--select hybrid:7: k=6 has no room for 7"),
        ("centroids", "41", r"--select centroids: 41 centroids are more than the pool's 40"),
        ("centroids,of=queries", "7", r"7 centroids are more than the 6 queries"),
        ("balanced", "40", r"40 demonstrations need more than the 13 examples in the pool of label"),
        ("balanced", "99", r"99 demonstrations need more"),
        ("hybrid:3,by=cosine", "6", r"by=cosine: not a similarity"),
        ("hybrid:3", "50", r"nothing fits: k=50 is more than the pool's 40"),
        ("centroids+hybrid:3", "42", r"nothing fits: k=42 is more than the pool's 40"),
    ],
)
def test_what_cannot_be_chosen_is_refused_by_name(tmp_path: Path, select: str, k: str, said: str):
    with pytest.raises(UserError, match=said) as refused:
        plan(tmp_path, k, draws=1, selects=[select])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("select", "largest"), [("hybrid:7", 40), ("balanced", 39), ("centroids,of=queries", 6), ("centroids", 40)]
)
def test_auto_begins_and_ends_where_a_choice_does(tmp_path: Path, select: str, largest: int):
    numbers = [cell.spec.k for cell in plan(tmp_path, "auto", draws=1, selects=[select]).cells]
    least = 7 if select == "hybrid:7" else 1
    assert numbers == [k for k in (1, 5, 10, 25) if least <= k < largest] + [largest]


def test_a_row_that_is_too_long_for_the_pool_leaves_no_room_for_itself_as_a_copy(tmp_path: Path):
    def largest(folder: Path, longest: int) -> int:
        path = fakes.write_task(folder, pool={"drop_longest": 0.05})
        with (folder / "train.jsonl").open("a") as rows:
            rows.write(json.dumps({"text": "card " * longest, "label": "top_up"}) + "\n")
        tokenizer: Any = small_tokenizer()
        task = TokenizedTask(load_data(load_task(path)), fakes.model(600), tokenizer, queries="copied")
        return PromptGroup(task, SelectorSpec.parse("random"), DRAWN, 0).largest()

    assert largest(tmp_path / "long", 300) == largest(tmp_path / "short", 30) > 10


def with_duplicates(folder: Path, window: int, queries: Queries, seed: int = 0) -> TokenizedTask:
    """A task with short and long rows, every second one twice."""
    path = fakes.write_task(folder, test_rows=1)
    rows = [{**fakes.row(n), "text": f"{n} " + "card " * (1 + n * 7 % 13 + 20 * (n == 9))} for n in range(20)]
    fakes.write_rows(folder / "train.jsonl", [*rows, *rows[::2]])
    tokenizer: Any = small_tokenizer()
    return TokenizedTask(load_data(load_task(path)), fakes.model(window), tokenizer, seed, queries=queries)


@pytest.mark.parametrize(
    ("select", "queries"),
    [("random", "copied"), ("balanced", "copied"), ("hybrid:2", "test"), ("hybrid:per-label:1,by=bm25", "test")],
)
@pytest.mark.parametrize("window", [60, 150, 1000])
def test_the_largest_k_is_that_of_trying_all(tmp_path: Path, select: str, queries: Queries, window: int):
    task = with_duplicates(tmp_path, window, queries)
    for draw in range(3):
        found, fitting = PromptGroup(task, SelectorSpec.parse(select), DRAWN, draw), [0]
        for k in range(found.smallest, len(task.pool) + 1):
            with suppress(ChoiceError):
                ((_, prompts),) = found.prompts([k])
                if prompts.longest + task.written_tokens <= window:
                    fitting.append(k)
        assert PromptGroup(task, SelectorSpec.parse(select), DRAWN, draw).largest() == max(fitting)


@pytest.mark.parametrize("window", [145, 175, 190])
def test_the_largest_k_of_copied_queries_fits_in_every_draw(tmp_path: Path, window: int):
    task = with_duplicates(tmp_path, window, "copied", seed=6)
    each = [PromptGroup(task, SelectorSpec.parse("random"), DRAWN, draw).largest() for draw in range(6)]
    found = planned(task, "max", draws=6)
    assert [cell.problem for cell in found.cells] == [None] * 6
    assert {cell.spec.k for cell in found.cells} == {found.cells[0].spec.k}
    assert found.cells[0].spec.k < min(each), "another query is copied at that k, which is too long in one draw"


def test_orders_and_readings_for_what_is_all_retrieved_are_refused_for_a_hybrid(tmp_path: Path):
    with pytest.raises(UserError, match="already puts the query's own last, the most similar last; write drawn"):
        plan(tmp_path, "6", selects=["hybrid:3"], orders=["relevance"])
    with pytest.raises(UserError, match=r"reuse is for demonstrations that are all the query's"):
        plan(tmp_path, "6", selects=["hybrid:3"], attention=["block:1,reuse"])


def test_free_text_cannot_be_balanced(tmp_path: Path):
    with pytest.raises(UserError, match="--select balanced: this task's answers are free text"):
        plan(tmp_path, "6", selects=["balanced"], **FREE_TEXT)


def test_stored_cells_say_what_labels_the_data_gave_their_demonstrations(tmp_path: Path):
    results = swept(tmp_path, "hybrid:3")
    ((_, meta),) = finished_cells(results)
    train = {row.id: row.answer for row in tokenized_task(tmp_path / "task").data.train}
    told = {name: label for label, ids in meta.demonstration_labels.items() for name in ids}
    shown = {name for row in read_results(results)["demonstration_ids"] for name in row}
    assert told == {name: train[name] for name in shown}
