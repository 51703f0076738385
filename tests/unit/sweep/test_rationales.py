"""Rationales that a model writes: which rows are tried, which texts are kept, what is written, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import FakeBackend, planned, row, runner, tokenized_task, write_rows, write_task
from support.in_process import Ended, run_command, said
from support.models import llama_tokenizer, tiny_checkpoint
from tokenizers import AddedToken

import icl_bench
from icl_bench.analysis.all_findings import read_findings
from icl_bench.analysis.query_cost import MEASURES, query_costs
from icl_bench.analysis.settings import name_settings
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.errors import CellError, UserError
from icl_bench.models.prices import given_prices
from icl_bench.results.reading import finished_cells, read_results
from icl_bench.sweep.rationale_options import RationalesOptions
from icl_bench.sweep.rationales import RationaleRun, near_rows
from icl_bench.tasks.examples import Example, load_data
from icl_bench.tasks.near_duplicates import near_duplicates
from icl_bench.tasks.task_files import load_task
from icl_bench.tasks.thoughts import ThoughtRule

pytestmark = pytest.mark.usefixtures("loading_once")

THINK = {"think": True, "opens": "Think.", "ends": "So it is ", "limit": 6}
FREE: dict[str, Any] = {"labels": None, "metrics": ["exact_match"], "max_answer_tokens": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rationales") / "tiny"
    return tiny_checkpoint(folder, tokenizer=llama_tokenizer(add_bos_token=True))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("icl_bench.backends.loaders.rate_here", lambda *_: 1e9)
    return


Ask = Callable[..., Ended]


@pytest.fixture
def ask(model: Path, tmp_path: Path) -> Ask:
    """The command, with a tiny model of random weights; a third of its answers among three labels are right."""

    def command(out: str = "own.yaml", task: Any = None, **options: Any) -> Ended:
        if task is None:
            task = write_task(tmp_path / "task", answer=THINK, train_rows=30)
        usual = {"rows": 12, "samples": 3, "temperature": 1.5, "device": "cpu", "dtype": "float32"}
        words = [f"--{name}={value}" for name, value in {**usual, **options}.items() if value is not None]
        return run_command("rationales", "--task", task, "--model", model, "--out", tmp_path / out, *words)

    return command


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# -- what is written -------------------------------------------------------------------------------


def test_rationales_with_a_right_answer_are_a_pool_that_run_reads(ask: Ask, model: Path, tmp_path: Path):
    ended = ask()
    assert ended.code == 0, ended.err
    cell, pool = read_results(tmp_path / "own.cells").set_index("test_id"), lines(tmp_path / "own.pool.jsonl")
    right = {name for name, of_row in cell["sample_scores"].items() if max(of_row) == 1}
    assert {one["row_id"] for one in pool} == right
    assert 0 < len(pool) < 12
    for one in pool:
        record = cell.loc[one["row_id"]]
        samples = zip(record["sample_thoughts"], record["sample_scores"], record["sample_thought_tokens"], strict=True)
        best = min((tokens, place) for place, (_, score, tokens) in enumerate(samples) if score == 1)[1]
        assert one["model_rationale"] == record["sample_thoughts"][best].strip()
        assert one["model_answer"] == one["label"].replace("_", " ")
    values = yaml.safe_load((tmp_path / "own.yaml").read_text(encoding="utf-8"))
    origin = values["rationales"]
    assert (origin["tried"], origin["kept"], origin["samples"], origin["temperature"]) == (12, len(pool), 3, 1.5)
    assert sum(kept for kept, _ in origin["kept_of_label"].values()) == len(pool)
    assert sum(tried for _, tried in origin["kept_of_label"].values()) == 12
    assert origin["written_tokens"] == cell["answer_tokens"].sum() + cell["thought_tokens"].sum()
    assert f"kept: {len(pool)} of 12 rows" in ended.err
    task, own = load_data(load_task(tmp_path / "task" / "cards.yaml")), load_data(load_task(tmp_path / "own.yaml"))
    assert [(e.id, e.fields, e.answer) for e in own.test] == [(e.id, e.fields, e.answer) for e in task.test]
    assert own.labels == task.labels
    options: dict[str, Any] = {"draws": 1, "device": "cpu", "dtype": "float32", "quiet": True}
    found = icl_bench.run(task=tmp_path / "own.yaml", model=model, k=[0, 2], results=tmp_path / "results", **options)
    assert len(found.predictions) == 2 * len(own.test)
    shown = said("show", "--results", tmp_path / "results", "--task", tmp_path / "own.yaml", "--k", "2")
    assert sum(f"Think. {one['model_rationale']} So it is" in shown for one in pool) == 2
    assert {e.worked for e in own.train} == {f"Think. {one['model_rationale']} So it is " for one in pool}


def test_the_task_of_rationales_keeps_labels_that_no_rationale_has(ask: Ask, tmp_path: Path):
    path = write_task(tmp_path / "task", answer=THINK, train_rows=30, labels={"style": "words", "normalize": "bytes"})
    assert ask(rows=1, keep="all", task=path).code == 0
    own, task = load_data(load_task(tmp_path / "own.yaml")), load_data(load_task(path))
    assert len(own.train) == 1
    assert own.labels == task.labels
    assert own.spec.labels is not None
    assert own.spec.labels.normalize == "bytes"


@pytest.mark.parametrize("keep", ["right", "wrong", "all"])
def test_what_is_kept_is_right_wrong_or_all(ask: Ask, tmp_path: Path, keep: str):
    assert ask(keep=keep).code == 0
    pool = lines(tmp_path / "own.pool.jsonl")
    right = {one["model_answer"] == one["label"].replace("_", " ") for one in pool}
    if keep == "all":
        assert len(pool) == 12
    else:
        assert right == {keep == "right"}


def test_all_rows_of_a_pool_may_be_tried_also_of_one_without_its_longest_rows(ask: Ask, tmp_path: Path):
    task = write_task(tmp_path / "task", answer=THINK, train_rows=30, pool={"drop_longest": 0.1})
    ended = ask(task=task, rows=30, keep="all")
    assert ended.code == 0, ended.err
    assert "not in the pool (the longest 10%" in " ".join(ended.err.split())


def test_a_whole_text_is_taken_before_one_that_was_cut_and_cut_ones_are_counted(ask: Ask, tmp_path: Path):
    ended = ask(keep="all", take="first", think=2)
    assert ended.code == 0, ended.err
    cell = read_results(tmp_path / "own.cells").set_index("test_id")
    pool = lines(tmp_path / "own.pool.jsonl")
    whole = {name for name, sizes in cell["sample_thought_tokens"].items() if min(sizes) < 2}
    cut = sum(one["row_id"] not in whole for one in pool)
    assert yaml.safe_load((tmp_path / "own.yaml").read_text())["rationales"].get("cut", 0) == cut > 0
    assert f"{cut} of the kept texts were cut at the token limit" in " ".join(ended.err.split())


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "bb", " ", "c<end>"]), st.booleans(), st.integers(1, 9)), min_size=1, max_size=6
    ),
    st.integers(1, 9),
)
def test_one_text_of_a_row_is_taken(samples: list[tuple[str, bool, int]], limit: int):
    record = {
        "sample_thoughts": [text for text, _, _ in samples],
        "samples": ["x"] * len(samples),
        "sample_scores": [float(right) for _, right, _ in samples],
        "sample_thought_tokens": [tokens for _, _, tokens in samples],
    }
    good = [(tokens, place) for place, (text, right, tokens) in enumerate(samples) if right and text in ("a", "bb")]
    for take in ("shortest", "first"):
        made: Any = RationaleRun.__new__(RationaleRun)
        made.options = RationalesOptions(task="t", model="m", out="o.yaml", take=take)
        made.data = type("Data", (), {"spec": type("Spec", (), {"thought": ThoughtRule("", "So", limit)})})
        added = {0: AddedToken("<end>", special=True), 1: AddedToken("a", special=False)}
        tokenizer = type("Tokenizer", (), {"added_tokens_decoder": added})
        of_task = {"tokenizer": tokenizer, "one_request": False, "written_tokens": 99}
        made.sweep = type("Sweep", (), {"task": type("Task", (), of_task)})
        found = made._taken(Example("row", {}, "x"), record)
        if not good:
            assert found is None
            continue
        whole = [one for one in good if one[0] < limit] or good
        place = min(whole)[1] if take == "shortest" else min(place for _, place in whole)
        assert found.text == samples[place][0].strip()
        assert found.cut == (samples[place][2] >= limit)
        made.sweep.task.one_request = True  # a server's thought may take the tokens of its answer
        assert not made._taken(Example("row", {}, "x"), record).cut


def test_free_texts_with_an_answer_in_them_take_the_place_of_the_solutions(ask: Ask, tmp_path: Path):
    rule = {"extract": "(.+)", "of": "answers"}
    task = write_task(tmp_path / "task", answer=rule, train_rows=30, **FREE)
    ended = ask(task=task, keep="wrong", rows=5)
    assert ended.code == 0, ended.err
    pool, own = lines(tmp_path / "own.pool.jsonl"), load_data(load_task(tmp_path / "own.yaml"))
    assert [one.answer for one in own.train] == [one["model_rationale"] for one in pool]
    assert [one.golds or one.answer for one in own.test] == [
        e.golds or e.answer for e in load_data(load_task(task)).test
    ]


def test_a_template_in_jinja_keeps_its_columns(ask: Ask, tmp_path: Path):
    template = {"engine": "jinja", "input": "query: {{text}}", "output": "label", "delimiter": "\nintent: "}
    data = {"train": "train.jsonl", "test": "test.jsonl"}
    task = write_task(tmp_path / "task", answer=THINK, template=template, data=data, labels={}, train_rows=30)
    ended = ask(task=task, keep="all", rows=4)
    assert ended.code == 0, ended.err
    own, whole = load_data(load_task(tmp_path / "own.yaml")), load_data(load_task(task))
    assert own.labels == whole.labels
    assert [(e.fields, e.answer) for e in own.test] == [(e.fields, e.answer) for e in whole.test]
    rationales = {one["model_rationale"] for one in lines(tmp_path / "own.pool.jsonl")}
    assert {e.worked.removeprefix("Think. ").removesuffix(" So it is ") for e in own.train} == rationales


# -- which rows are tried --------------------------------------------------------------------------


def test_no_test_row_and_no_near_duplicate_of_one_is_tried_or_shown(ask: Ask, tmp_path: Path):
    task = write_task(tmp_path / "task", answer=THINK)
    tested = [row(1000 + i) for i in range(6)]
    near = [{**one, "text": one["text"].upper() + "!"} for one in tested[:3]]
    rows = [*tested, *near, *(row(i) for i in range(14))]
    write_rows(tmp_path / "task" / "train.jsonl", rows)
    ended = ask(task=task, rows=10, keep="all", k=2)
    assert ended.code == 0, ended.err
    own = load_data(load_task(tmp_path / "own.yaml"))
    assert len(own.train) == 10
    assert near_duplicates(own.train, own.test_pool) == ()
    texts = {one["text"] for one in tested} | {one["text"] for one in near}
    assert not texts & {e.fields["text"] for e in own.train}
    cell = read_results(tmp_path / "own.cells")
    whole = {e.id: e.fields["text"] for e in load_data(load_task(task)).train}
    left_out = {name for name, text in whole.items() if text in texts}
    assert not left_out & set(cell["test_id"])
    assert "9 rows of the pool are left out: a test row is the same or nearly the same" in " ".join(ended.err.split())
    assert yaml.safe_load((tmp_path / "own.yaml").read_text())["rationales"]["near_duplicates"] == 9


def test_the_words_of_a_jinja_template_make_no_near_duplicates(ask: Ask, tmp_path: Path):
    instruction = "Say in one or two words what this customer of a bank asks for, and give nothing else but this label."
    template = {"engine": "jinja", "input": instruction + " {{text}}\nintent:", "output": "{{label}}"}
    data = {"train": "train.jsonl", "test": "test.jsonl"}
    task = write_task(tmp_path / "task", answer=THINK, data=data, template=template, labels={})
    ended = ask(task=task, rows=5, keep="all")
    assert ended.code == 0, ended.err
    assert "left out: a test row" not in " ".join(ended.err.split())


@given(st.lists(st.text("ab! ", min_size=1, max_size=6), max_size=6), st.lists(st.text("ab! ", min_size=1, max_size=6)))
def test_near_rows_are_the_equal_ones_and_the_near_duplicates(pool: list[str], test: list[str]):
    of = [[Example(str(i), {"text": text}, "x") for i, text in enumerate(texts)] for texts in (pool, test)]
    equal = {str(i) for i, text in enumerate(pool) if text in test}
    assert near_rows(*of) == equal | set(near_duplicates(*of))


def test_demonstrations_are_rows_that_are_not_tried(ask: Ask, tmp_path: Path):
    assert ask(k=2, keep="all").code == 0
    frame = read_results(tmp_path / "own.cells")
    assert (frame["k"] == 2).all()
    (meta,) = (meta for _, meta in finished_cells(tmp_path / "own.cells"))
    assert len(meta.demonstration_ids or ()) == 2
    assert not set(meta.demonstration_ids or ()) & set(frame["test_id"])
    ended = ask("more.yaml", rows=29, k=2)
    assert ended.code == 2
    assert "--k 2: --rows 29 leaves 1 row to show; try fewer" in ended.err


def test_worked_examples_are_shown_and_rows_of_the_train_split_are_tried(ask: Ask, tmp_path: Path):
    """Of a task whose pool is a file of examples; a row that equals one of them is not tried."""
    fields = {"text": "text", "label": "label", "why": "why"}
    think = {**THINK, "rationale": "why"}
    task = write_task(
        tmp_path / "task",
        data={"train": "train.jsonl", "test": "test.jsonl", "fields": fields},
        answer=think,
        pool={"file": "worked.jsonl"},
        train_rows=10,
    )
    write_rows(tmp_path / "task" / "worked.jsonl", [{**row(i), "why": f"Reason {i}."} for i in (3, 50, 51)])
    ended = ask(task=task, rows=20, k=3, keep="all")
    assert ended.code == 0, ended.err
    frame = read_results(tmp_path / "own.cells")
    tried = {e.fields["text"] for e in load_data(load_task(tmp_path / "own.yaml")).train}
    assert tried == {row(i)["text"] for i in range(10) if i != 3}
    assert len(frame) == 9
    assert "1 row of the train split is left out: a worked example is the same or nearly the same" in " ".join(
        ended.err.split()
    )
    (meta,) = (meta for _, meta in finished_cells(tmp_path / "own.cells"))
    assert len(meta.demonstration_ids or ()) == 3
    values = yaml.safe_load((tmp_path / "own.yaml").read_text())
    assert "pool" not in values
    assert values["rationales"]["demonstrations"] == 3
    refusal = ask("more.yaml", task=task, k=4)
    assert (refusal.code, "k=4 is more than the pool's 3 demonstrations" in " ".join(refusal.err.split())) == (2, True)


# -- interruptions ---------------------------------------------------------------------------------


def test_an_interrupted_command_goes_on_and_writes_the_same_files(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert ask("own.yaml", pack=6).code == 0
    names = ("own.yaml", "own.pool.jsonl", "own.test.jsonl")
    whole = {name: (tmp_path / name).read_bytes() for name in names}
    for name in names:
        (tmp_path / name).unlink()
    cells = tmp_path / "own.cells"
    cells.rename(tmp_path / "whole.cells")
    answer, left = TransformersBackend.answer, iter(range(3))

    def cut(*asked: Any) -> Any:
        for pack in answer(*asked):
            if next(left, None) is None:
                raise CellError("out of something")
            yield pack

    with monkeypatch.context() as broken:
        broken.setattr(TransformersBackend, "answer", cut)
        ended = ask("own.yaml", pack=6)
    assert ended.code == 1
    assert "out of something" in ended.err
    assert not (tmp_path / "own.yaml").exists()
    assert list(cells.rglob("*.journal.jsonl"))
    assert ask("own.yaml", pack=6).code == 0
    again = {name: (tmp_path / name).read_bytes() for name in names}
    seconds = [_without_seconds(files["own.yaml"]) for files in (whole, again)]
    assert seconds[0] == seconds[1]
    assert {**whole, "own.yaml": b""} == {**again, "own.yaml": b""}


def _without_seconds(text: bytes) -> Mapping[str, Any]:
    values = yaml.safe_load(text)
    for name in ("seconds", "cached_tokens"):
        del values["rationales"][name]
    return values


# -- what is refused -------------------------------------------------------------------------------


def refused(ended: Ended) -> str:
    assert ended.code == 2, ended
    (line,) = ended.err.strip().partition("error: ")[2].splitlines()
    return line


def test_a_file_that_is_there_is_kept(ask: Ask, tmp_path: Path):
    for name in ("own.yaml", "own.pool.jsonl", "own.test.jsonl"):
        (tmp_path / name).write_text("mine")
        assert refused(ask()) == f"--out {tmp_path / name}: is there already; give another name"
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    assert not (tmp_path / "own.cells").exists()


def test_a_command_that_was_killed_while_it_wrote_is_repeated_without_asking_again(ask: Ask, tmp_path: Path):
    assert ask().code == 0
    names = ("own.pool.jsonl", "own.test.jsonl", "own.yaml")
    whole = {name: (tmp_path / name).read_text() for name in names}
    for there in (1, 2):  # files are written in this order
        for name in names[there:]:
            (tmp_path / name).unlink()
        ended = ask()
        assert ended.code == 0, ended.err
        assert {name: (tmp_path / name).read_text() for name in names} == whole
    (tmp_path / "own.yaml").unlink()
    (tmp_path / "own.pool.jsonl").write_text(whole["own.pool.jsonl"][:-30])
    assert refused(ask()) == (
        f"--out {tmp_path / 'own.pool.jsonl'}: has rows of another command; delete it and run the same command again "
        "(answers are kept)"
    )
    assert not (tmp_path / "own.yaml").exists()


def test_names_of_groups_are_refused(ask: Ask, tmp_path: Path):
    assert refused(ask(task="bbh")).startswith("bbh: is a group of tasks, and one is needed here: bbh_")
    assert refused(ask(task="bbh.yaml")).startswith("bbh.yaml: there is no such file; the shipped one is named bbh")
    told = refused(ask("bbh.yaml"))
    assert told == f"--out {tmp_path / 'bbh.yaml'}: bbh is the name of a shipped group; give another name"
    told = refused(ask("gsm8k.yaml"))
    assert told == f"--out {tmp_path / 'gsm8k.yaml'}: gsm8k is the name of a shipped task; give another name"
    assert refused(ask("own.txt")) == f"--out {tmp_path / 'own.txt'}: a task file ends in .yaml"
    nowhere = tmp_path / "nowhere" / "own.yaml"
    assert refused(ask("nowhere/own.yaml")) == f"--out {nowhere}: there is no folder {nowhere.parent}"


def test_a_task_without_thoughts_or_without_right_answers_is_refused(ask: Ask, tmp_path: Path):
    told = refused(ask(task=write_task(tmp_path / "labels")))
    assert told.startswith("task cards: writes no thoughts; say in its task file how it thinks")
    graded = {**FREE, "metrics": ["rouge"], "answer": THINK}
    told = refused(ask(task=write_task(tmp_path / "graded", **graded)))
    assert told == "task cards: has no right answers to keep rationales by, rouge is a degree; take --keep all"
    assert ask(task=tmp_path / "graded" / "cards.yaml", keep="all", rows=2).code == 0


def test_where_nothing_is_kept_the_number_tried_and_two_texts_are_shown(ask: Ask, tmp_path: Path):
    task = write_task(tmp_path / "task", answer=THINK, **FREE)
    told = refused(ask(task=task, rows=3, samples=2))
    assert told.startswith("--keep right: none of 2 samples of 3 rows has a right answer, so nothing is written; the ")
    thoughts = [text for texts in read_results(tmp_path / "own.cells")["sample_thoughts"] for text in texts]
    assert (
        sum(repr(text.strip())[1:8] in told for text in thoughts if text.strip()) >= 1 or "all texts are empty" in told
    )
    assert str(tmp_path / "own.cells") in told
    assert not (tmp_path / "own.yaml").exists()
    assert ask(task=task, rows=3, samples=2, keep="wrong").code == 0  # nothing is computed again


def test_options_of_run_that_rationales_do_not_have_are_refused(ask: Ask):
    ended = ask(select="bm25")
    assert ended.code == 2
    assert "--select" in ended.err
    with pytest.raises(UserError, match=r"^--select: not an option of rationales$"):
        RationalesOptions(task="t", model="m", out="o.yaml", select="bm25")


# -- what it costs ---------------------------------------------------------------------------------

MADE = {
    "task": "cards", "model": "small", "fingerprint": "f", "samples": 4, "temperature": 0.7, "seed": 0, "keep": "right",
    "take": "first", "prompts": "p", "tried": 9, "kept": 5, "prompt_tokens": 900, "cached_tokens": 300,
    "written_tokens": 200, "seconds": 30.0, "flops": 1e6,
}  # fmt: skip


def test_making_them_is_paid_once_where_demonstrations_show_them(tmp_path: Path):
    for place, made in (("human", None), ("own", MADE), ("other", {**MADE, "model": "another"})):
        task = tokenized_task(tmp_path / place / "task", **({} if made is None else {"rationales": made}))
        runner(planned(task, "0,2", draws=1), tmp_path / place / "results", FakeBackend()).run()
    found = {place: read_findings(tmp_path / place / "results") for place in ("human", "own", "other")}
    price = given_prices("input=1,cached=0.1,output=10")
    costs = {place: query_costs(one.cost.sort_values("k"), price) for place, one in found.items()}
    assert "rationales_new_tokens" not in found["human"].cost
    for place in ("own", "other"):
        for values, of_human in zip(costs[place].each, costs["human"].each, strict=True):
            assert values == pytest.approx(of_human, nan_ok=True)
        assert costs[place].once[0] == pytest.approx(costs["human"].once[0], nan_ok=True)
        more = dict(zip(MEASURES, costs[place].once[1] - costs["human"].once[1], strict=True))
        assert (more["tokens"], more["seconds"]) == pytest.approx((600 + 200, 30.0))
        if place == "own":
            assert more["money"] == pytest.approx((600 + 300 * 0.1 + 200 * 10) / 1e6)
        else:
            assert more["money"] != more["money"]  # another model has other prices


def test_rationales_are_a_fact_of_the_cells_and_name_their_setting(tmp_path: Path):
    results = tmp_path / "results"
    for place, made in (("human", {}), ("own", {"rationales": MADE})):
        task = tokenized_task(tmp_path / place, **made)
        runner(planned(task, "2", draws=1), results, FakeBackend()).run()
    variants = {facts.rationales for facts in read_findings(results).context.facts.values()}
    assert variants == {None, "right ones of small"}
    assert set(name_settings(read_findings(results).context.facts, read_findings(results).curves).values()) == {
        "rationales=the data's",
        "rationales=right ones of small",
    }


# -- in Python -------------------------------------------------------------------------------------


def test_python_writes_the_same_task_and_says_what_was_kept(ask: Ask, model: Path, tmp_path: Path):
    assert ask().code == 0
    usual: dict[str, Any] = {"rows": 12, "samples": 3, "temperature": 1.5, "device": "cpu", "dtype": "float32"}
    options = {"task": tmp_path / "task" / "cards.yaml", "model": model, "out": tmp_path / "mine.yaml", **usual}
    found = icl_bench.rationales(**options, quiet=True)
    assert lines(tmp_path / "mine.pool.jsonl") == lines(tmp_path / "own.pool.jsonl")
    assert (found["tried"], found["kept"]) == (12, len(lines(tmp_path / "own.pool.jsonl")))
    again = icl_bench.run(
        task=tmp_path / "mine.yaml", model=model, k=1, draws=1, results=tmp_path / "results", quiet=True
    )
    assert len(again.predictions) == 6
    with pytest.raises(UserError, match=r"mine.yaml: is there already; give another name"):
        icl_bench.rationales(**options, quiet=True)
    with pytest.raises(UserError, match="--out: is missing"):
        icl_bench.rationales(**{**options, "out": None}, quiet=True)
    with pytest.raises(UserError, match="order: not an option of rationales"):
        icl_bench.rationales(**options, order="random", quiet=True)
