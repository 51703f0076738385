"""Which texts of a prompt are read as vectors: demonstrations, or the query's own passages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fakes import FakeBackend, plan, runner, tokenized_task, write_rows

from icl_bench.analysis.all_findings import read_findings
from icl_bench.cli.output.lists import write_prompt
from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.models.architecture import Architecture
from icl_bench.models.attention_patterns import FULL, Pattern, Vectors
from icl_bench.prompts.encoding import PromptSet
from icl_bench.report.prompt_trace import find_prediction
from icl_bench.results.reading import read_results
from icl_bench.sweep.compute_cost import AnswerWork, PromptLayout, cost_of
from icl_bench.sweep.k_values import KValues
from icl_bench.sweep.plan import make_plan
from icl_bench.sweep.prompt_group import PromptGroup
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task

ROWS = [
    {
        "id": f"r{i}",
        "question": f"what is {i}",
        "answer": "yes" if i % 2 else "no",
        "ctxs": [{"title": f"t{i}.{n}", "text": f"passage {n} of {i}"} for n in range(1 + i % 4)],
    }
    for i in range(30)
]
PASSAGES = {"column": "ctxs", "text": "{title}: {text}"}


def passages_task(folder: Path, rows: Any = ROWS, passages: Any = PASSAGES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        write_rows(folder / f"{split}.jsonl", rows)
    task = {
        "name": "asked",
        "data": {
            "train": "train.jsonl",
            "test": "test.jsonl",
            "passages": passages,
            "fields": {"question": "question", "answer": "answer"},
        },
        "template": {"input": "Q: {question}", "output": "A: {answer}"},
        "labels": {},
        "metrics": ["accuracy"],
        "test": {"size": 5},
    }
    (folder / "asked.yaml").write_text(json.dumps(task))
    return folder / "asked.yaml"


def group(task: Any, select: str, pattern: Any, order: str = "drawn") -> PromptGroup:
    return PromptGroup(task, SelectorSpec.parse(select), Order.parse(order), 0, pattern)


def prompts_of(made: PromptGroup, k: int) -> PromptSet:
    ((_, found),) = made.prompts([k])
    return found


# -- demonstrations -----------------------------------------------------------------------------


def test_the_first_of_a_draw_stay_text(tmp_path: Path):
    task = tokenized_task(tmp_path)
    found = prompts_of(group(task, "random", Vectors(4)), 6)
    shown = [task.data.train[i] for i in task.pool.drawn(0)[:6]]
    text = prompts_of(group(task, "random", FULL), 2)
    assert (found.prefix, found.suffixes) == (text.prefix, text.suffixes)
    assert found.vector_texts == (tuple(map(task.vector_text, shown[2:])),)
    assert found.vectors_of(3)[0] == f"query: {shown[2].fields['text']}\nintent: {shown[2].answer}"


@pytest.mark.parametrize("order", ["relevance", "relevance-reversed", "shuffled:3"])
def test_the_most_similar_that_are_retrieved_stay_text(tmp_path: Path, order: str):
    task = tokenized_task(tmp_path)
    found = prompts_of(group(task, "bm25", Vectors(4), order), 6)
    text = prompts_of(group(task, "bm25", FULL, order), 2)
    assert [found.ids(i) for i in range(6)] == [text.ids(i) for i in range(6)]
    ranked = task.pool.retrieved("bm25", 0, 6)  # most similar first
    for row, read in zip(ranked, found.vector_texts, strict=True):
        others = [task.vector_text(task.data.train[i]) for i in row[2:]]
        assert sorted(read) == sorted(others)


def test_an_order_is_of_the_text(tmp_path: Path):
    task = tokenized_task(tmp_path)
    sorted_ = prompts_of(group(task, "random", Vectors(4), "by-label"), 9)
    text = prompts_of(group(task, "random", FULL, "by-label"), 5)
    assert sorted_.prefix == text.prefix
    drawn = prompts_of(group(task, "random", Vectors(4)), 9)
    assert drawn.vector_texts == sorted_.vector_texts


def test_a_hybrid_keeps_the_querys_own_as_text(tmp_path: Path):
    task = tokenized_task(tmp_path)
    made = group(task, "hybrid:2", Vectors(4))
    found, whole = prompts_of(made, 8), group(task, "hybrid:2", FULL).demonstrations(8)
    assert len(found.vector_texts) == 1  # what all queries share
    assert (np.sort(made.demonstrations(8)) == np.sort(whole)).all()
    assert (made.demonstrations(8)[:, -2:] == whole[:, -2:]).all()


def test_all_of_them(tmp_path: Path):
    task = tokenized_task(tmp_path)
    found = prompts_of(group(task, "random", Vectors(None)), 6)
    bare = prompts_of(group(task, "random", FULL), 0)
    assert [found.ids(i) for i in range(6)] == [bare.ids(i) for i in range(6)]
    assert len(found.vectors_of(0)) == 6


def test_prompts_with_other_vectors_are_other_prompts():
    one = PromptSet((1, 2), ((3,), (4,)))
    both = [
        one,
        one.with_vectors([("a", "b")] * 2),
        one.with_vectors([("ab",)] * 2),
        one.with_vectors([("b", "a")] * 2),
    ]
    assert len({p.hashes()[0] for p in both}) == 4
    own = one.with_vectors([("a", "b"), ("c",)])
    assert own.hashes()[0] == both[1].hashes()[0]
    assert (own.prefix, own.suffixes) == ((), ((1, 2, 3), (1, 2, 4)))
    assert one.with_vectors([(), ()]) == one


@pytest.mark.parametrize("select", ["random", "bm25", "hybrid:2"])
def test_a_prediction_shows_its_prompt_and_its_vectors(tmp_path: Path, select: str):
    made = plan(tmp_path / "task", "6", draws=1, selects=[select], attention=["vectors:3"])
    runner(made, tmp_path / "results", FakeBackend()).run()
    frame = read_results(tmp_path / "results")
    assert set(frame["attention"]) == {"vectors:3"}
    prompts = prompts_of(made.groups[0].group, 6)
    for i, row in enumerate(made.task.data.test):
        wanted = {"task": "cards", "k": 6, "draw": 0}
        found = find_prediction(tmp_path / "results", wanted, row.id)
        assert found.vectors == prompts.vectors_of(i)
        assert found.prompt == prompts.text(i)
        assert found.as_json()["vectors"] == list(found.vectors)
        hashes = frame.loc[frame["test_id"] == row.id, "prompt_hash"]
        assert hashes.tolist() == [prompts.hashes()[i]]
    with pytest.raises(UserError, match="the model read 3 texts as vectors, which a text file cannot contain"):
        write_prompt(found, tmp_path / "prompt.txt")
    assert not (tmp_path / "prompt.txt").exists()


def test_the_largest_k_has_vectors_beyond_the_window(tmp_path: Path):
    task = tokenized_task(tmp_path, context_tokens=60)
    text = group(task, "random", FULL).largest()
    assert 1 < text < 10
    assert group(task, "random", Vectors(5)).largest() == text + 5
    assert group(task, "random", Vectors(None)).largest() == len(task.pool)


def test_the_largest_k_of_vectors_can_be_chosen(tmp_path: Path):
    made = plan(tmp_path, "max", draws=1, selects=["balanced"], attention=["vectors:5"])
    assert [cell.spec.k for cell in made.cells] == [39], "each of three labels has 13 or more"


@pytest.mark.parametrize(
    "attention", [["full", "vectors:5"], ["vectors:5", "full"], ["vectors:all", "vectors:5", "full"]]
)
def test_the_largest_k_fits_with_every_pattern_in_any_order(tmp_path: Path, attention: list[str]):
    task = tokenized_task(tmp_path / "task", context_tokens=60)
    made = plan(tmp_path, "max", draws=1, attention=attention, context_tokens=60)
    assert made.problems == []
    assert {cell.spec.k for cell in made.cells} == {group(task, "random", FULL).largest()}


@pytest.mark.parametrize(
    ("pattern", "more", "said"),
    [
        ("vectors:7", {}, "k=6 has 6 demonstrations; take at most vectors:6"),
        ("vectors:2", {"perturbation": "inputs-only"}, "a vector is of a whole demonstration"),
    ],
)
def test_what_cannot_be_read_so_is_refused(tmp_path: Path, pattern: str, more: Any, said: str):
    task = tokenized_task(tmp_path, **more)
    with pytest.raises(UserError, match=said):
        make_plan(task, KValues((6,)), attention=[Pattern.parse(pattern)], draws=1)


@pytest.mark.parametrize("words", ["vectors:0", "vectors:", "vectors", "vectors:-1", "vectors:2,3", "vectors:x"])
def test_what_is_no_pattern_is_refused(words: str):
    with pytest.raises(UserError, match=r"--attention vectors"):
        Pattern.parse(words)


@pytest.mark.parametrize("words", ["vectors:7", "vectors:all"])
def test_a_pattern_is_written_as_it_is_read(words: str):
    assert str(Pattern.parse(words)) == words


# -- passages -----------------------------------------------------------------------------------


def of_passages(folder: Path, **changes: Any) -> Any:
    from dataclasses import replace

    data = load_data(load_task(str(passages_task(folder, **changes))))
    return replace(tokenized_task(folder / "other"), data=data)


def test_passages_are_read_in_their_order(tmp_path: Path):
    task = of_passages(tmp_path)
    row = next(row for row in task.data.train if row.id == "r7")
    assert row.passages == tuple(f"t7.{n}: passage {n} of 7" for n in range(4))
    skipped = of_passages(tmp_path / "skip", passages={**PASSAGES, "skip": 3}).data.train
    assert next(row for row in skipped if row.id == "r7").passages == ("t7.3: passage 3 of 7",)
    assert next(row for row in skipped if row.id == "r4").passages == ()


def test_a_querys_first_passages_are_its_vectors_and_demonstrations_stay_text(tmp_path: Path):
    task = of_passages(tmp_path)
    found = prompts_of(group(task, "random", Vectors(2)), 3)
    text = prompts_of(group(task, "random", FULL), 3)
    for i, row in enumerate(task.data.test):
        assert found.ids(i) == text.ids(i)
        assert found.vectors_of(i) == row.passages[:2]


def test_without_demonstrations_both_ways_are_cells_of_their_own(tmp_path: Path):
    task = of_passages(tmp_path)
    made = make_plan(task, KValues((0,)), attention=[FULL, Vectors(1), Vectors(None)])
    assert [cell.spec.attention for cell in made.cells] == ["full", "vectors:1", "vectors:all"]
    runner(made, tmp_path / "results", FakeBackend()).run()
    for pattern, count in (("full", 0), ("vectors:1", 1)):
        wanted = {"task": "asked", "k": 0, "draw": 0, "attention": pattern}
        if pattern != "full":
            shown = find_prediction(tmp_path / "results", wanted)
            assert len(shown.vectors) == count


def test_passages_are_compared_without_demonstrations_and_lend_no_point(tmp_path: Path):
    """full at k=0 begins its own curve, not that of vectors, which have passages to read there too."""
    task = of_passages(tmp_path)
    made = make_plan(task, KValues((0, 3)), attention=[FULL, Vectors(1)], draws=3)
    runner(made, tmp_path / "results", FakeBackend()).run()
    found = read_findings(tmp_path / "results")
    compared = found.attention_patterns
    assert sorted(zip(compared["attention"], compared["k"], strict=True)) == [
        ("full", 0),
        ("full", 3),
        ("vectors:1", 0),
        ("vectors:1", 3),
    ]
    assert compared.loc[compared["attention"] == "vectors:1", "difference"].notna().all()

    only = tmp_path / "only"
    runner(make_plan(task, KValues((0, 3)), attention=[FULL], draws=3), only, FakeBackend()).run()
    runner(make_plan(task, KValues((3,)), attention=[Vectors(1)], draws=3), only, FakeBackend()).run()
    curves = read_findings(only).curves
    assert curves.groupby("attention")["k"].agg(list).to_dict() == {"full": [0, 3], "vectors:1": [3]}


def test_demonstrations_as_vectors_begin_with_the_common_point(tmp_path: Path):
    made = plan(tmp_path / "task", "0,6", draws=3, attention=["full", "vectors:3"])
    runner(made, tmp_path / "results", FakeBackend()).run()
    found = read_findings(tmp_path / "results")
    curves = found.curves.groupby("attention")["k"].agg(list).to_dict()
    assert curves == {"full": [0, 6], "vectors:3": [0, 6]}
    assert set(found.attention_patterns["k"]) == {6}
    assert set(found.attention_patterns["kind"]) == {"full", "vectors"}


def test_the_automatic_ks_begin_where_there_are_enough(tmp_path: Path):
    task = tokenized_task(tmp_path)
    assert group(task, "random", Vectors(4)).smallest == 4
    assert group(of_passages(tmp_path / "passages"), "random", Vectors(4)).smallest == 1


@pytest.mark.parametrize("text", ["{", "{0}", "{text.upper}", "{text!r}", "{text:>5}", "no field", "{}"])
def test_how_a_passage_is_written_names_plain_fields(tmp_path: Path, text: str):
    with pytest.raises(UserError, match=r"data\.passages"):
        of_passages(tmp_path, passages={"column": "ctxs", "text": text})


@pytest.mark.parametrize(
    ("ctxs", "said"),
    [
        ("none", "ctxs must be a list"),
        ([3], "which is neither a text nor an object"),
        ([{"title": "t"}], "has no text text"),
        ([{"title": " ", "text": ""}], None),
    ],
)
def test_passages_that_are_none_are_refused_by_row(tmp_path: Path, ctxs: Any, said: str | None):
    rows = [*ROWS[:3], {**ROWS[3], "ctxs": ctxs}, *ROWS[4:]]
    if said is None:
        task = of_passages(tmp_path, rows=rows, passages={"column": "ctxs", "text": "{title}{text}x"})
        assert task.data.train[3].passages == (" x",)
        return
    with pytest.raises(UserError, match=rf"train.jsonl:4: .*{said}"):
        of_passages(tmp_path, rows=rows)


# -- what it costs ------------------------------------------------------------------------------

TWO = [AnswerWork((1.0, 1.0))]
SHAPE = Architecture(1000, 32, (None, 8), 16, reader_parameters=700, vector_parameters=300)


def test_a_vector_is_one_key_in_each_layer():
    prompts = PromptSet((1,) * 10, ((2,) * 4, (3,) * 6))
    plain = cost_of(PromptLayout.of(prompts, FULL), SHAPE, TWO, "float32")
    shared = prompts.with_vectors([("a", "b", "c")] * 2)
    read = cost_of(PromptLayout.of(shared, Vectors(3)), SHAPE, TWO, "float32")
    each = 2 * 700 + 4 * 32 * 3 * 2
    assert read.prefix_flops - plain.prefix_flops == 10 * each + 3 * 2 * 300
    assert read.query_flops - plain.query_flops == pytest.approx((5 + 2) * each)
    assert read.cache_bytes - plain.cache_bytes == 2 * 16 * 4 * 3 * 2
    own = prompts.with_vectors([("a", "b"), ("c",)])
    found = cost_of(PromptLayout.of(own, Vectors(3)), SHAPE, TWO, "float32")
    assert found.prefix_flops == 0
    added = [(14 + 2) * (2 * 700 + 4 * 32 * 2 * 2) + 2 * 600, (16 + 2) * (2 * 700 + 4 * 32 * 2) + 600]
    assert found.query_flops - plain.whole_flops == pytest.approx(np.mean(added))
    assert found.query_flops == found.whole_flops


def test_other_models_say_nothing_of_vectors():
    assert set(Architecture(1, 1, (None,), 1).as_json()) == {"parameters", "heads_width", "windows", "key_width"}
    assert Architecture.of(SHAPE.as_json()) == SHAPE
