"""Thoughts before answers: what prompts show, what is asked twice, what is stored, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api_server import chat, completion, serving
from support.fakes import (
    ENGINE,
    FREE_TEXT,
    LABELS,
    FakeBackend,
    plan,
    planned,
    row,
    runner,
    small_tokenizer,
    tokenized_task,
    write_rows,
)
from support.fakes import write_task as fake_task
from support.models import qwen_tokenizer, tiny_checkpoint

from icl_bench.analysis.cell_cost import CellCost
from icl_bench.analysis.findings.cost import cost
from icl_bench.backends.interface import Answer, Decoding, Free
from icl_bench.errors import UserError
from icl_bench.prompts.encoding import PromptSet
from icl_bench.prompts.rendering import PlainForm
from icl_bench.report.prompt_trace import find_prediction
from icl_bench.results.facts import Facts
from icl_bench.results.reading import read_results
from icl_bench.sweep.facts import facts
from icl_bench.sweep.notes import notes
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep
from icl_bench.sweep.thinking import Parts
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.answers import extracted
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.in_memory import Task
from icl_bench.tasks.spec import AnswerRule, TaskSpec
from icl_bench.tasks.task_files import load_task
from icl_bench.tasks.think_option import ThinkOption
from icl_bench.tasks.thoughts import ThoughtRule

THINK: dict[str, Any] = {"think": True, "opens": "Think.", "ends": "So it is ", "limit": 20}
WORKED: dict[str, Any] = {
    "answer": {**THINK, "rationale": "why"},
    "data": {"train": "train.jsonl", "test": "test.jsonl", "fields": {"text": "text", "label": "label", "why": "why"}},
}


def why(number: int) -> str:
    return f"the card number {number} says it."


def write_worked(folder: Path, train_rows: int = 12, **changes: Any) -> Path:
    """The cards with a rationale of each row."""
    path = fake_task(folder, train_rows=train_rows, **{**WORKED, **changes})
    write_rows(folder / "train.jsonl", [{**row(i), "why": why(i)} for i in range(train_rows)])
    write_rows(folder / "test.jsonl", [{**row(1000 + i), "why": ""} for i in range(6)])
    return path


def worked_task(folder: Path, **changes: Any) -> TokenizedTask:
    tokenizer: Any = small_tokenizer()
    found = tokenized_task(folder / "plain")
    return TokenizedTask(load_data(load_task(write_worked(folder, **changes))), found.model, tokenizer)


class Thinker(FakeBackend):
    """Writes a thought where it may write freely, in single tokens of the small tokenizer, and ``after`` behind it.

    ``stops`` is asked before each second prompt, and may raise.
    """

    def __init__(self, thought: str = " well, ", *, ids: bool = True, **more: Any) -> None:
        super().__init__(**more)
        self.thought, self.gives_ids, self.asked = thought, ids, list[str]()

    def _answered(self, prompts: PromptSet, index: int, decoding: Decoding) -> Answer:
        answer = super()._answered(prompts, index, decoding)
        self.asked.append(decoded(prompts.ids(index)).lstrip())
        if isinstance(decoding, Free) and "So it is" in decoding.stops:
            (ids,) = small_tokenizer()([self.thought + "So it is"])["input_ids"]
            return Answer(
                index, 0, len(ids), text=self.thought, truncated=False, ids=tuple(ids) if self.gives_ids else None
            )
        return answer


def decoded(ids: tuple[int, ...]) -> str:
    """The text of ids; the small tokenizer's single bytes are special tokens."""
    text = small_tokenizer().backend_tokenizer.decode(ids, skip_special_tokens=False)
    return re.sub("<0x(..)>", lambda byte: chr(int(byte[1], 16)), text.removeprefix("<s>"))


# -- prompts ------------------------------------------------------------------------------------


def test_demonstrations_show_the_rationale_and_the_query_ends_with_what_opens_one(tmp_path: Path):
    task = worked_task(tmp_path)
    first, query = task.data.train[3], task.data.test[0]
    text = task.form().whole([first], query)
    assert text == (
        f"query: {first.fields['text']}\nintent: Think. {why(3)} So it is {first.answer}\n==\n"
        f"query: {query.fields['text']}\nintent: Think."
    )
    assert task.form().answer("card lost") == " card lost\n"
    assert task.form().before_answer == "So it is"


def test_without_a_rationale_demonstrations_show_answers_alone_and_a_note_says_so(tmp_path: Path):
    task = tokenized_task(tmp_path, answer=THINK)
    first, query = task.data.train[3], task.data.test[0]
    assert task.form().whole([first], query).startswith(f"query: {first.fields['text']}\nintent: {first.answer}\n==\n")
    assert any("only the query is thought about" in note for note in task.data.notes)
    assert not any("thought" in note for note in worked_task(tmp_path / "worked").data.notes)


@given(st.text("ab .\n", max_size=12), st.text("cd #\n", max_size=12), st.sampled_from(["Think. ", "Think.", ""]))
def test_opening_and_mark_stand_once_in_a_demonstration(thought: str, more: str, opens: str):
    rule = ThoughtRule(opens, "So it is ", 9, "why")
    for rationale in (thought, f"{opens}{thought}", f"{opens} {thought} So it is {more}"):
        worked = rule.worked(rationale)
        assert worked.endswith("So it is ")
        assert worked.count("So it is") == 1
        assert worked.count("Think.") == (1 if opens else 0)
        assert thought.strip() in worked


@pytest.mark.parametrize("think", [True, False])
def test_a_right_answer_with_its_thought_is_parted_at_the_mark(tmp_path: Path, think: bool):
    answer = {**THINK, "opens": "", "ends": "\n#### ", "rationale": "why", "extract": r"(\d+)", "think": think}
    changes = {"labels": None, "metrics": ["numeric"], "answer": answer}
    changes["data"] = {**WORKED["data"], "fields": {"text": "text", "label": "label", "why": "label"}}
    path = fake_task(tmp_path, **changes)
    for split in ("train", "test"):
        write_rows(
            tmp_path / f"{split}.jsonl", [{"text": f"q {i}", "label": f"as {i} is {i}\n#### {i}"} for i in range(9)]
        )
    data = load_data(load_task(path))
    assert (data.train[4].answer, data.train[4].golds, data.test[4].golds) == ("4", None, None)
    assert data.train[4].worked == ("as 4 is 4\n#### " if think else "")


def test_what_the_end_mark_alone_holds_is_no_answer():
    rule = AnswerRule(think=True, ends="So the answer is ", limit=9, extract="([a-z]+)")
    assert extracted(rule, "seven") == "seven"
    assert extracted(rule, "7") is None
    assert extracted(rule.model_copy(update={"extract": r"answer is (\d+)"}), "7") == "7"


def test_a_jinja_template_has_rationales_of_its_columns_and_one_file_may_hold_all_rows(tmp_path: Path):
    template = {"engine": "jinja", "input": "Q: {{text}}\nA:", "output": "label", "separator": "\n\n"}
    data = {"file": "all.jsonl", "holdout": {"share": 0.5, "seed": 1}}
    changes = {"template": template, "data": data, "answer": {**THINK, "rationale": "{{why}} So it is {{label}}."}}
    path = fake_task(tmp_path, **changes)
    write_rows(tmp_path / "all.jsonl", [{**row(i), "why": why(i)} for i in range(12)])
    found = load_data(load_task(path))
    names = [int(one.id.rsplit("-", 1)[1]) for one in found.train]
    assert len({*names}) == 6
    form = PlainForm(found.spec.template, thought=found.spec.thought)
    numbers = [
        one.worked.removeprefix("Think. the card number ").removesuffix(" says it. So it is ") for one in found.train
    ]
    assert all(number.isdigit() for number in numbers)
    first = found.train[0]
    assert form.whole([first], found.test[0]).startswith(f"{first.fields['input']} {first.worked}{first.answer}\n\nQ: ")
    assert form.whole([first], found.test[0]).endswith("\nA: Think.")


def test_rows_given_in_python_have_rationales_and_may_be_asked_to_think_or_not():
    rows = [{"text": f"q {i}", "label": "ab"[i % 2], "why": why(i)} for i in range(6)]
    given = {"input": "query: {text}", "output": "intent: {label}", "answer": {**THINK, "rationale": "why"}}
    task = Task(name="mine", train=rows, test=[{**row, "why": None} for row in rows], **given)
    assert load_data(task).train[2].worked == f"Think. {why(2)} So it is "
    assert load_data(ThinkOption.parse("off").of(task)).train[2].worked == ""


# -- two calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [True, False])
def test_the_answer_follows_the_thought_and_its_end_mark(tmp_path: Path, ids: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(small_tokenizer()), "decode", lambda _, ids: decoded(tuple(ids)), raising=False)
    backend = Thinker(ids=ids)
    made = planned(worked_task(tmp_path), "2", draws=1)
    runner(made, tmp_path / "results", backend).run()
    ((_, prompts),) = made.groups[0].group.prompts([2])
    for index in range(6):
        assert prompts.text(index) in backend.asked
        assert f"{prompts.text(index)} well, So it is" in backend.asked
    frame = read_results(tmp_path / "results")
    assert frame["thought"].tolist() == [" well, "] * 6
    assert (frame["thought_tokens"] > 0).all()
    assert not frame["thought_truncated"].any()
    assert frame["answer_tokens"].tolist() == [2] * 6
    assert frame["prompt_tokens"].tolist() == [prompts.size(i) for i in range(6)]
    assert set(frame["prediction"]) <= {label.replace("_", " ") for label in LABELS}


def test_the_tokens_that_were_written_stay_and_the_mark_is_tokenized_behind_them(tmp_path: Path):
    task = worked_task(tmp_path)
    thinking, prompts = task.thinking, task.encoder.own_prompts([[]] * 6, task.data.test)
    assert thinking is not None
    odd = tuple(small_tokenizer()([letter])["input_ids"][0][-1] for letter in "card")  # not as the tokenizer would
    tokenizer = type("Odd", (), {"decode": staticmethod(lambda ids: decoded(tuple(ids)))})()
    thinking = type(thinking)(thinking.rule, thinking.free, thinking.encoder, tokenizer)
    further = thinking.further(prompts, Answer(0, 0, 5, text="card", truncated=True, ids=odd))
    assert further[: len(odd)] == odd
    assert decoded(further) == "card So it is"
    assert further[len(odd) :] == tuple(small_tokenizer()(["\n So it is"])["input_ids"][0][1:])


def stops_at(call: int) -> Callable[[PromptSet], None]:
    """Raises at one call for a pack, counted over thoughts and answers."""
    left = [call]

    def check(_: PromptSet) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    return check


@pytest.mark.parametrize("call", range(1, 7))
def test_a_run_that_is_killed_in_a_thought_goes_on_with_it(tmp_path: Path, call: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(small_tokenizer()), "decode", lambda _, ids: decoded(tuple(ids)), raising=False)
    made = planned(worked_task(tmp_path), "2", draws=1)
    runner(made, tmp_path / "whole", Thinker()).run()
    with pytest.raises(KeyboardInterrupt):
        runner(made, tmp_path / "results", Thinker(fails=stops_at(call))).run()
    again = Thinker()
    runner(made, tmp_path / "results", again).run()
    assert len(again.asked) == 2 * (6 - 2 * ((call - 1) // 2)), "packs of two, each asked twice"
    whole, resumed = (read_results(tmp_path / name).sort_values("test_id") for name in ("whole", "results"))
    columns = ["test_id", "thought", "thought_tokens", "prediction", "prompt_hash", "answer_tokens"]
    assert whole[columns].values.tolist() == resumed[columns].values.tolist()


# -- identity, plan and cost --------------------------------------------------------------------


def test_thinking_is_a_fact_only_where_it_is_on(tmp_path: Path):
    plainly, off = tokenized_task(tmp_path / "a"), tokenized_task(tmp_path / "b", answer={**THINK, "think": False})
    choice = plan(tmp_path / "c").cells[0].choice
    known = [facts(task, choice, {}).known() for task in (plainly, off)]
    assert known[0] == known[1]
    on = facts(worked_task(tmp_path / "d"), choice, {}).known()
    assert on["thoughts"] == {"opens": "Think.", "ends": "So it is ", "limit": 20, "rationale": "why"}
    assert "answer" not in on
    direct, thinking = Facts(**known[0]), Facts(**{**known[0], "thoughts": on["thoughts"]})
    assert direct.agrees(Facts(**known[1]))
    assert not direct.agrees(thinking)


def test_the_window_has_room_for_thought_mark_and_answer(tmp_path: Path):
    task = worked_task(tmp_path)
    cell = planned(task, "2", draws=1).cells[0]
    mark = len(small_tokenizer()(["a So it is"])["input_ids"][0]) - 1
    assert task.answer_tokens + 20 + mark <= cell.answer_tokens <= task.answer_tokens + 24 + mark
    assert task.room == task.model.context_tokens - cell.answer_tokens
    plainly = tokenized_task(tmp_path / "plainly")
    works = [one.planned_answer(100, skips_unread=True) for one in (plainly, task)]
    assert len(works[1].fed) - len(works[0].fed) >= 20 + mark - 1
    assert works[1].logits - works[0].logits == pytest.approx(20 * 100, abs=100)


def test_costs_count_the_tokens_of_thoughts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(small_tokenizer()), "decode", lambda _, ids: decoded(tuple(ids)), raising=False)
    made = planned(worked_task(tmp_path), "2", draws=1)
    outcome = runner(made, tmp_path / "results", Thinker()).run()
    frame = read_results(tmp_path / "results")
    each = frame["thought_tokens"].iloc[0] + 2
    assert outcome.answer_tokens == 6 * each
    assert cost(frame, {str(frame["cell"].iloc[0]): CellCost()})["answer_tokens"].tolist() == [each]


# -- servers ------------------------------------------------------------------------------------


@given(st.text("ab .", max_size=30), st.sampled_from(["card lost", "card lost\nquery: b"]), st.integers(0, 60))
def test_one_text_is_parted_at_the_mark_and_keeps_its_tokens(thought: str, answer: str, tokens: int):
    parts = Parts(ThoughtRule("", "So it is ", 20), ("\n",), small_tokenizer())
    found = parts.of(Answer(0, 0, tokens, text=f"{thought}So it is {answer}", truncated=False))
    assert found.thought is not None
    assert (found.thought.text, found.text, found.reason) == (thought, "card lost", None)
    assert found.thought.tokens + found.answer_tokens == tokens
    assert found.answer_tokens >= 0


@pytest.mark.parametrize(("answer", "truncated"), [("card lost\nquery: b", False), ("card lost", True)])
def test_an_answer_behind_a_thought_that_a_stop_ends_is_not_truncated(answer: str, truncated: bool):
    parts = Parts(ThoughtRule("", "So it is ", 20), ("\n",), small_tokenizer())
    found = parts.of(Answer(0, 0, 30, text=f"so So it is {answer}", truncated=True))
    assert (found.text, found.truncated) == ("card lost", truncated)


def test_a_text_without_the_mark_is_no_answer_and_says_why(tmp_path: Path):
    task = worked_task(tmp_path)
    task.one_request = True
    assert (task.thinking, task.decoding) == (None, Free(("\n==\n",), task.written_tokens))

    class Server(FakeBackend):
        def _answered(self, prompts: PromptSet, index: int, decoding: Decoding) -> Answer:
            assert isinstance(decoding, Free)
            text = " so So it is **Card Lost**\n" if index else " so card lost"
            return Answer(index, 0, 20, text=text, truncated=not index)

    outcome = runner(planned(task, "2", draws=1), tmp_path / "results", Server()).run()
    frame = read_results(tmp_path / "results").set_index("test_id").loc[[row.id for row in task.data.test]]
    assert frame["prediction"].tolist() == ["", *["card lost"] * 5]
    assert frame["valid"].tolist() == [False, *[True] * 5]
    assert frame["reason"].iloc[0] == "no end mark 'So it is' within 20 tokens"
    assert (outcome.invalid, outcome.samples) == (1, ["no end mark 'So it is' within 20 tokens"])
    assert outcome.notes == [
        "1 of 6 thoughts was cut at the limit of tokens (thought_truncated)",
        "1 of 6 thoughts ended without the end mark: these answers are invalid",
    ]
    assert (frame["thought_tokens"] + frame["answer_tokens"]).tolist() == [20] * 6


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_server_is_asked_once_with_room_for_both(tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("openai")
    from support.servers import server_backend

    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    task = worked_task(tmp_path)
    task.one_request = True
    reply = {"completions": completion, "chat": chat}[endpoint]
    with serving(lambda _: reply(" so. So it is: card lost\nquery: more")) as server:
        backend: Any = server_backend(server.url, endpoint=endpoint, identity=ENGINE)
        made = planned(task, "2", draws=1)
        runner(made, tmp_path / "results", backend).run()
    frame = read_results(tmp_path / "results")
    assert frame["prediction"].tolist() == ["card lost"] * 6
    assert frame["thought"].tolist() == [" so. "] * 6
    for body in server.requests:
        text = body["prompt"] if endpoint == "completions" else body["messages"][-1]["content"]
        assert text.endswith("\nintent: Think.")
        assert text.count("Think. the card number") == 2
        assert body["stop"] == ["\n==\n"]
        assert task.written_tokens in body.values()
    assert len(server.requests) == 6


# -- show ---------------------------------------------------------------------------------------


def test_a_prediction_is_shown_with_its_thought_and_both_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(small_tokenizer()), "decode", lambda _, ids: decoded(tuple(ids)), raising=False)
    made = planned(worked_task(tmp_path), "2", draws=1)
    runner(made, tmp_path / "results", Thinker()).run()
    shown = find_prediction(tmp_path / "results", {"task": "cards", "k": 2})
    assert shown.prompt.endswith("\nintent: Think.")
    assert shown.answer_prompt == f"{shown.prompt} well, So it is"
    assert shown.as_json()["answer_prompt"] == shown.answer_prompt


# -- what is asked ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "thinks", "limit"), [("on", True, 20), ("off", False, 20), ("7", True, 7), ("1000000", True, 10**6)]
)
def test_the_option_switches_thoughts_and_sets_their_limit(tmp_path: Path, text: str, thinks: bool, limit: int):
    spec = load_task(fake_task(tmp_path, answer=THINK))
    found = ThinkOption.parse(text).of(spec).answer
    assert found is not None
    assert (found.think, found.limit) == (thinks, limit)


@given(st.text(max_size=9))
def test_any_other_value_is_refused_in_one_line(text: str):
    if text in ("on", "off") or (text.isascii() and text.isdigit() and 1 <= int(text) <= 10**6):
        assert str(ThinkOption.parse(text)) == (text.lstrip("0"))
        return
    with pytest.raises(UserError, match="expected on, off or a number of tokens") as said:
        ThinkOption.parse(text)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"think": True, "limit": 9}, "think: true needs ends, the text that ends a thought"),
        ({"think": True, "ends": "So "}, "think: true needs limit, the most tokens of a thought"),
        ({"think": True, "ends": " ", "limit": 9}, "must be a text that does not occur in thoughts by chance"),
        ({"opens": "Think."}, "need ends, the text that ends a thought"),
        ({**THINK, "extract": "(x)"}, "answer.extract is for free text, not for labels"),
        ({**THINK, "rationale": "why"}, "answer.rationale uses {why}, which data.fields does not name"),
        ({**THINK, "rationale": "text"}, "answer.rationale: text is shown in the template's input already"),
    ],
)
def test_a_task_that_cannot_think_is_refused(tmp_path: Path, answer: dict[str, Any], reason: str):
    with pytest.raises(UserError) as said:
        load_task(fake_task(tmp_path, answer=answer))
    assert reason in str(said.value)
    assert "\n" not in str(said.value)


def test_a_row_without_a_rationale_is_named(tmp_path: Path):
    path = write_worked(tmp_path)
    write_rows(tmp_path / "train.jsonl", [{**row(i), "why": "" if i == 4 else why(i)} for i in range(9)])
    with pytest.raises(UserError, match=r"train\.jsonl:5: why is empty; answer\.rationale is shown"):
        load_data(load_task(path))


def spec_of(path: Path, **options: Any) -> tuple[RunSpec, TaskSpec]:
    made = RunSpec(task=str(path), model="m", k="2", **options)
    task = load_task(path)
    return made, made.think.of(task) if made.think else task


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"think": "on", "attention": "block:1,reuse", "select": "bm25"}, "--attention block:1"),
        ({"think": "on", "attention": "vectors:1"}, "--attention vectors:1"),
    ],
)
def test_a_pattern_that_reads_demonstrations_once_cannot_think(tmp_path: Path, options: dict[str, Any], reason: str):
    made, task = spec_of(fake_task(tmp_path, answer=THINK), **options)
    with pytest.raises(UserError) as said:
        made.check(task, to_run=False)
    assert reason in str(said.value)
    assert "thinks first" in str(said.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"score": "exact", "endpoint": "completions"}, "--score exact:"),
        ({"hold": "json", "endpoint": "chat"}, "--hold json:"),
    ],
)
def test_servers_neither_score_nor_hold_answers_behind_thoughts(tmp_path: Path, options: dict[str, Any], reason: str):
    pytest.importorskip("openai")
    server = {"backend": "openai", "base_url": "http://127.0.0.1:1/v1", "tokenizer": "m"}
    made, task = spec_of(fake_task(tmp_path, answer=THINK), **server, **options)
    with pytest.raises(UserError) as said:
        made.check(task, to_run=False)
    assert reason in str(said.value)
    assert "thinks" in str(said.value)


@pytest.mark.parametrize(
    ("changes", "arguments", "noted"),
    [
        (FREE_TEXT, [], True),
        (FREE_TEXT, ["enable_thinking=false"], False),
        ({}, [], False),
        ({**FREE_TEXT, "answer": THINK}, [], False),
    ],
)
def test_a_free_answer_of_a_model_that_may_think_by_itself_is_noted(
    tmp_path: Path, changes: dict[str, Any], arguments: list[str], noted: bool
):
    tokenizer = qwen_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% if enable_thinking is false %}"
        "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
    )
    folder = tiny_checkpoint(tmp_path / "model", tokenizer=tokenizer)
    task = fake_task(tmp_path / "task", **changes)
    options = {"backend": "transformers", "device": "cpu", "dtype": "float32", "chat_arg": arguments}
    sweep = Sweep.prepare(RunSpec(task=str(task), model=str(folder), k="1", draws=1, chat="turns", **options))
    assert any("with a thought of its own (<think>)" in note for note in notes(sweep)) == noted


def test_a_task_without_an_end_mark_cannot_be_asked_to_think(tmp_path: Path):
    spec = load_task(fake_task(tmp_path))
    with pytest.raises(UserError, match="--think on: task cards does not say what ends a thought; add answer"):
        ThinkOption.parse("on").of(spec)
    assert ThinkOption.parse("off").of(spec) == spec
