"""Prompts as conversations: the ids of ``apply_chat_template``, whatever the template does."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.models import Row, llama_tokenizer, qwen_tokenizer

from icl_bench.backends.interface import Free
from icl_bench.errors import UserError
from icl_bench.prompts.chat import ChatForm, ChatSettings, around_turns, chat_form, read_settings
from icl_bench.prompts.chat_template import ChatTemplate
from icl_bench.prompts.encoding import PromptTokenizer
from icl_bench.prompts.rendering import PlainForm, Writing, demonstration_text, query_text
from icl_bench.tasks.spec import Template
from icl_bench.tasks.templates import JinjaTemplate
from icl_bench.tasks.thoughts import ThoughtRule

TASK = Template(input="query: {text}", output="intent: {label}")
ROWS = [
    Row("card arrival", {"text": "where is my card?"}),
    Row("order", {"text": "naïve {brace} 中文"}),
    Row("order status", {"text": "two  spaces and 12,345"}),
    Row("", {"text": "an empty answer"}),
]
QUERIES = [Row("", {"text": "and mine?"}), Row("", {"text": "card"})]

CHATML = """{% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ '<|im_start|>system
Be brief.<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + m['role'] + '
' + m['content'] + '<|im_end|>
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
THINKING = CHATML.replace(
    "{{ '<|im_start|>assistant\n' }}",
    "{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}",
)
LLAMA = """{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system turn, please') }}{% endif %}
{%- for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'] + ' [/INST]' }}
{%- else %}{{ ' ' + m['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"""
TRIMMED = CHATML.replace("m['content']", "m['content'] | trim")
NUMBERED = CHATML.replace("m['role'] + '\n", "m['role'] + ' ' ~ loop.index ~ '\n")
FORGETFUL = CHATML.replace("{% for m in messages %}", "{% for m in messages[-3:] %}")
ENDLESS = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + ' ' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"

TEMPLATES = {
    "chatml": (CHATML, qwen_tokenizer, {}),
    "thinking off": (THINKING, qwen_tokenizer, {"enable_thinking": False}),
    "llama": (LLAMA, llama_tokenizer, {}),
    "trimmed": (TRIMMED, qwen_tokenizer, {}),
    "numbered": (NUMBERED, qwen_tokenizer, {}),
}


class Model:
    """A tokenizer with a chat template, in a folder."""

    def __init__(self, folder: Path, source: str, make: Any) -> None:
        self.tokenizer = make()
        self.tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
        self.tokenizer.chat_template = source
        self.tokenizer.save_pretrained(folder)
        self.folder = folder

    def form(self, settings: ChatSettings, **options: Any) -> ChatForm:
        chat = ChatTemplate.of_folder(self.folder, "mine", dict(settings.arguments), day=settings.day, **options)
        special = [t.content for t in self.tokenizer.added_tokens_decoder.values() if t.special]
        return ChatForm(TASK, settings, chat, special)

    def theirs(self, messages: Sequence[Mapping[str, str]], **arguments: Any) -> tuple[int, ...]:
        """Ids of the whole conversation, as the library makes them."""
        found = self.tokenizer.apply_chat_template(
            [dict(m) for m in messages], add_generation_prompt=True, tokenize=True, return_dict=True, **arguments
        )
        return tuple(found["input_ids"])


@pytest.mark.parametrize("style", ["turns", "single"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_are_those_of_the_library_for_every_k_and_query(tmp_path: Path, name: str, style: Any):
    source, make, arguments = TEMPLATES[name]
    model = Model(tmp_path, source, make)
    form = model.form(ChatSettings(style=style, arguments=tuple(arguments.items())))
    encoder = PromptTokenizer(form, model.tokenizer)
    sets = encoder.shared_prompts(ROWS, range(len(ROWS) + 1), QUERIES)
    for k, prompts in sets.items():
        for i, query in enumerate(QUERIES):
            messages = form.messages(ROWS[:k], query)
            assert len(messages) == (2 * k + 1 if style == "turns" else 1)
            assert prompts.ids(i) == model.theirs(messages, **arguments)
            assert prompts.text(i) == form.whole(ROWS[:k], query)
            assert prompts.messages(i) == messages
    own = encoder.own_prompts([ROWS[1:], ROWS[:2]], QUERIES)
    mixed = encoder.mixed_prompts(ROWS[:1], [ROWS[1:3], ROWS[2:]], QUERIES)
    for i, (mine, behind) in enumerate(((ROWS[1:], ROWS[1:3]), (ROWS[:2], ROWS[2:]))):
        alone = form.messages(mine, QUERIES[i])
        both = form.messages([*ROWS[:1], *behind], QUERIES[i])
        assert own.ids(i) == model.theirs(alone, **arguments)
        assert mixed.ids(i) == model.theirs(both, **arguments)
        assert (own.messages(i), mixed.messages(i)) == (alone, both)


def test_demonstrations_are_shared_where_the_template_treats_turns_alike(tmp_path: Path):
    model = Model(tmp_path, CHATML, qwen_tokenizer)
    form = model.form(ChatSettings(style="turns"))
    sets = PromptTokenizer(form, model.tokenizer).shared_prompts(ROWS, [1, 4], QUERIES)
    one, four = sets[1].prefix, sets[4].prefix
    assert four[: len(one)] == one
    assert max(map(len, sets[4].suffixes)) < 40
    assert sets[4].ends[0][-1] == len(four)


@pytest.mark.parametrize(
    ("source", "rows", "pieced"),
    [
        (CHATML, ROWS, True),
        (NUMBERED, ROWS, False),
        (TRIMMED, ROWS, True),
        (TRIMMED, [Row(" led by a blank", {"text": "x"})], False),
    ],
)
def test_what_a_template_changes_is_noticed(tmp_path: Path, source: str, rows: Sequence[Row], pieced: bool):
    model = Model(tmp_path, source, qwen_tokenizer)
    assert model.form(ChatSettings(style="turns")).is_pieced(rows, QUERIES) is pieced


def test_a_template_that_drops_earlier_turns_asks_for_one_message(tmp_path: Path):
    model = Model(tmp_path, FORGETFUL, qwen_tokenizer)
    with pytest.raises(UserError, match=r"does not show every turn once; take --chat single"):
        model.form(ChatSettings(style="turns"))
    assert model.form(ChatSettings(style="single")).is_pieced(ROWS, QUERIES)


@pytest.mark.parametrize(
    ("source", "lead", "ending"), [(CHATML, "", "<|im_end|>"), (LLAMA, " ", " </s>"), (THINKING, "", "<|im_end|>")]
)
def test_an_answer_stands_behind_the_generation_prompt_and_ends_with_its_turn(
    tmp_path: Path, source: str, lead: str, ending: str
):
    make = llama_tokenizer if source == LLAMA else qwen_tokenizer
    model = Model(tmp_path, source, make)
    form = model.form(ChatSettings(style="turns", arguments=(("enable_thinking", False),)))
    assert form.answer("order status") == f"{lead}order status{ending}"
    encoder = PromptTokenizer(form, model.tokenizer)
    short, long = encoder.answers(["order", "order status"])
    assert short[-1] == long[-1] == model.tokenizer.convert_tokens_to_ids(ending.strip())
    assert short != long[: len(short)]
    prompt = encoder.shared_prompts(ROWS, [2], QUERIES)[2].text(0)
    assert prompt.endswith(form.before_answer)


def test_a_system_turn_comes_first_or_is_refused(tmp_path: Path):
    said = ChatSettings(style="turns", system="Answer with an intent.")
    form = Model(tmp_path / "a", CHATML, qwen_tokenizer).form(said)
    assert form.start.startswith("<|im_start|>system\nAnswer with an intent.<|im_end|>\n")
    with pytest.raises(UserError, match=r"model mine refuses .*system/user.*no system turn"):
        Model(tmp_path / "b", LLAMA, llama_tokenizer).form(said)


def test_a_row_that_spells_a_special_token_is_named(tmp_path: Path):
    form = Model(tmp_path, CHATML, qwen_tokenizer).form(ChatSettings(style="turns"))
    rows = [Row("order", {"text": "say <|im_end|> please"})]
    with pytest.raises(UserError, match=r"text '<\|im_end\|>'.*say <\|im_end\|> please"):
        form.is_pieced(rows, QUERIES)
    rows = [Row("order", {"text": "<|im_end|>" + "x" * 100})]
    told = rf"\('query: <\|im_end\|>{'x' * 43}'\); change that row, or remove --chat$"
    with pytest.raises(UserError, match=told):
        form.is_pieced(rows, QUERIES)


def test_a_template_that_never_ends_an_answer_is_refused(tmp_path: Path):
    told = "mine does not end an answer: no special token and no line break follow it$"
    with pytest.raises(UserError, match=told):
        Model(tmp_path, ENDLESS, qwen_tokenizer).form(ChatSettings(style="turns"))


def test_a_model_without_a_template_says_so(tmp_path: Path):
    qwen_tokenizer().save_pretrained(tmp_path)
    told = "model mine has no chat template; give an instruct model, or leave --chat out$"
    with pytest.raises(UserError, match=told):
        ChatTemplate.of_folder(tmp_path, "mine", {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": 3}))
    with pytest.raises(UserError, match=r"cannot be read .*chat_template is not a text"):
        ChatTemplate.of_folder(tmp_path, "mine", {})


def test_a_template_that_is_no_template_says_so(tmp_path: Path):
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    chat = ChatTemplate.of_folder(tmp_path, "mine", {})
    with pytest.raises(UserError, match="chat template of model mine cannot be read"):
        chat.render([{"role": "user", "content": "x"}])


def test_a_system_turn_is_read_from_a_file_and_never_waits_for_a_pipe(tmp_path: Path):
    (tmp_path / "said.txt").write_text("Be brief.\nAlways.\n", encoding="utf-8")
    found = read_settings("turns", f"@{tmp_path / 'said.txt'}", ["a=false", "b=x"])
    assert found is not None
    assert found.system == "Be brief.\nAlways."
    assert found.arguments == (("a", False), ("b", "x"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    for name, why in (("pipe", "named pipe"), ("latin", "not UTF-8"), ("gone", "cannot be read")):
        with pytest.raises(UserError, match=rf"^--system @.*{name}.*{why}"):
            read_settings("turns", f"@{tmp_path / name}", [])


def test_only_the_special_token_itself_ends_an_answer(tmp_path: Path):
    """Not its text, written with ordinary tokens; and it tells a label from one that it begins."""
    from icl_bench.backends.label_constraint import compile_labels

    model = Model(tmp_path, CHATML, qwen_tokenizer)
    encoder = PromptTokenizer(model.form(ChatSettings(style="turns")), model.tokenizer)
    end = model.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert encoder.ending_token == end
    held = compile_labels(["order", "order status"], model.tokenizer, end)
    ids = tuple(model.tokenizer("order", add_special_tokens=False)["input_ids"])
    assert held.read(ids) == -1
    assert held.read((*ids, end)) == 0
    assert not {model.tokenizer("<")["input_ids"][0]} & set(held.vocabulary.tolist())
    assert end in held.vocabulary


def test_an_answer_that_a_line_break_ends_is_ended_by_no_special_token(tmp_path: Path):
    model = Model(tmp_path, CHATML.replace("<|im_end|>", ""), qwen_tokenizer)
    form = model.form(ChatSettings(style="turns"))
    assert form.answer("order") == "order\n"
    for written in (form, PlainForm(TASK)):
        assert PromptTokenizer(written, model.tokenizer).ending_token is None
    twice = Model(tmp_path / "twice", CHATML.replace("<|im_end|>\n", " \n\n"), qwen_tokenizer)
    form = twice.form(ChatSettings(style="turns"))
    assert (form.answer("order"), form.stop) == ("order \n", "<|im_start|>")


ALPACA = """{% for m in messages %}{% if m['role'] == 'user' %}{{ '### Instruction:\n' + m['content'] + '\n\n' }}
{%- else %}{{ '### Response:\n' + m['content'] + '\n\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"""
BARE = "{% for m in messages %}{{ m['content'] + '\n' }}{% endfor %}"
NAMED = BARE.replace("m['content']", "m['role'] | capitalize + ': ' + m['content']")


@pytest.mark.parametrize("style", ["turns", "single"])
@pytest.mark.parametrize(("source", "stop"), [(ALPACA, "### Instruction:"), (NAMED, "User:")])
def test_the_next_turn_ends_an_answer_after_whose_turn_only_blanks_stand(
    tmp_path: Path, source: str, stop: str, style: Any
):
    form = Model(tmp_path, source, qwen_tokenizer).form(ChatSettings(style=style))
    assert form.ending == "\n"
    assert form.ends_at_next_turn
    assert (form.stop, form.thought_stops) == (stop, (stop,))
    free = Free((form.stop,), 9)
    assert free.before_stop("Paris, in\n\nFrance") is None
    assert free.before_stop(f"Paris\n\n{stop}\n") == "Paris\n\n"


@pytest.mark.parametrize("style", ["turns", "single"])
def test_free_answers_need_something_printable_at_the_end_of_a_turn_and_labels_do_not(tmp_path: Path, style: Any):
    form = Model(tmp_path, BARE, qwen_tokenizer).form(ChatSettings(style=style))
    assert form.answer("order") == "order\n"
    for ask in (lambda: form.stop, lambda: form.thought_stops):
        with pytest.raises(
            UserError, match=r"^--chat: the chat template of model mine ends a turn .* leave --chat out$"
        ):
            ask()


def test_an_empty_stop_is_refused():
    with pytest.raises(ValueError, match="an empty text ends no answer"):
        Free(("\n", ""), 9)


@pytest.mark.parametrize(("source", "rows"), [(NUMBERED, ROWS), (TRIMMED, [Row(" led by a blank", {"text": "x"})])])
def test_turns_that_a_template_changes_are_no_lesson(tmp_path: Path, source: str, rows: Sequence[Row]):
    model = Model(tmp_path, source, qwen_tokenizer)
    encoder = PromptTokenizer(model.form(ChatSettings(style="turns")), model.tokenizer)
    with pytest.raises(UserError, match=r"^demonstrations to learn from must not depend on each"):
        encoder.lesson(rows)


def test_prompts_that_are_rendered_whole_tell_no_ends_and_pair_up(tmp_path: Path):
    model = Model(tmp_path, NUMBERED, qwen_tokenizer)
    encoder = PromptTokenizer(model.form(ChatSettings(style="turns")), model.tokenizer)
    found = encoder.own_prompts([ROWS[:2], ROWS[2:]], QUERIES, ends=True)
    assert (found.ends, found.lead) == ((), 0)
    for count in (1, 3):
        with pytest.raises(ValueError, match=r"argument 2 is (longer|shorter) than argument 1"):
            encoder.own_prompts([ROWS[:2]] * count, QUERIES)


@pytest.mark.parametrize(
    ("style", "system", "arguments", "said"),
    [
        (None, "x", ["a=1"], r"^--system: needs a chat; add --chat turns or --chat single$"),
        (None, None, ["a=1"], r"^--chat-arg: needs a chat; add --chat turns or"),
        ("turn", None, [], r"^--chat turn: expected turns or single$"),
        ("turns", None, ["a"], r"^--chat-arg a: expected NAME=VALUE$"),
        ("turns", None, ["a b=1"], r"^--chat-arg a b=1: expected NAME=VALUE$"),
    ],
)
def test_what_is_asked_of_a_chat_and_is_none_is_refused(
    style: str | None, system: str | None, arguments: Sequence[str], said: str
):
    with pytest.raises(UserError, match=said):
        read_settings(style, system, arguments)


def test_settings_of_a_chat_are_read_as_they_were_given():
    assert read_settings(None, None, []) is None
    assert read_settings("single", "", []) == ChatSettings(style="single", system="")
    found = read_settings("turns", "x@y", ['a={"b": [1]}', "c=1=2", "d="])
    assert found == ChatSettings(style="turns", system="x@y", arguments=(("a", {"b": [1]}), ("c", "1=2"), ("d", "")))


@pytest.mark.parametrize("style", ["turns", "single"])
def test_facts_tell_how_a_prompt_was_written(tmp_path: Path, style: Any):
    model = Model(tmp_path, CHATML, qwen_tokenizer)
    form = model.form(ChatSettings(style=style, system="Hi.", arguments=(("a", 1),)))
    facts = form.facts()
    start, end = "<|im_start|>system\nHi.<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n"
    answer = f"{end}<|im_start|>assistant\n"
    joint = f"{end}<|im_start|>user\n" if style == "turns" else ""
    assert facts["around"] == [start, answer, joint, answer, end]
    assert (facts["style"], facts["system"], facts["arguments"]) == (style, "Hi.", {"a": 1})
    assert len(facts["template"]) == 16
    other = Model(tmp_path / "other", CHATML + "\n", qwen_tokenizer).form(form.settings).facts()
    assert other["template"] != facts["template"]

    piece, between, behind = around_turns(facts["style"], facts["around"], TASK, demonstration_text)
    parts = [piece(TASK, row) + between for row in ROWS[:2]]
    written = start + "".join(parts) + query_text(TASK, QUERIES[0]) + behind
    assert written == form.whole(ROWS[:2], QUERIES[0])


def test_a_tasks_own_beginning_stands_in_the_systems_turn(tmp_path: Path):
    model = Model(tmp_path, CHATML, qwen_tokenizer)
    chat = ChatTemplate.of_folder(model.folder, "mine", {})
    for start, system, said in (
        ("Name the intent.", None, "Name the intent."),
        ("Name the intent.", "Be brief.", "Be brief.\n\nName the intent."),
        ("Name it.", "Be brief. ", "Be brief. Name it."),
        ("\nName it.", "Be brief.", "Be brief.\nName it."),
        ("", "", ""),
    ):
        task = JinjaTemplate(engine="jinja", input="{{x}}", output="y", start=start)
        form = ChatForm(task, ChatSettings(style="turns", system=system), chat, [])
        asked = form.messages([], Row("", {"input": "q"}))
        assert asked == [{"role": "system", "content": said}, {"role": "user", "content": "q"}]


SILENT = CHATML.replace("{% for m in messages %}", "{% for m in messages if m['role'] != 'system' %}")


@pytest.mark.parametrize("style", ["turns", "single"])
@pytest.mark.parametrize(("source", "make"), [(LLAMA, llama_tokenizer), (SILENT, qwen_tokenizer)])
def test_without_system_turns_a_tasks_beginning_stands_in_the_first_users(
    tmp_path: Path, source: str, make: Any, style: Any
):
    """For a template that refuses system turns, and for one that leaves them out."""
    model = Model(tmp_path, source, make)
    chat = ChatTemplate.of_folder(model.folder, "mine", {})
    task = JinjaTemplate(engine="jinja", input="Q: {{x}}", output="y", start="Name the intent.\n\n")
    form = ChatForm(task, ChatSettings(style=style), chat, ["<|im_end|>", "</s>"])
    shown, query = [Row("a", {"input": "one"}), Row("b", {"input": "two"})], Row("", {"input": "three"})
    turns = form.messages(shown, query)
    assert turns[0]["content"].startswith("Name the intent.\n\none")
    assert [turn["role"] for turn in turns] == (["user", "assistant"] * 2 + ["user"] if style == "turns" else ["user"])
    text = chat.render(turns)
    assert text.count("Name the intent.") == 1
    assert form.is_pieced(shown, [query])
    assert "".join([form.start, *map(form.demonstration, shown), form.query(query)]) == text
    assert form.messages([], query) == [{"role": "user", "content": "Name the intent.\n\nthree"}]


def test_a_system_turn_that_the_template_leaves_out_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"^--system: the chat template of model mine ignores system turns"):
        Model(tmp_path, SILENT, qwen_tokenizer).form(ChatSettings(style="turns", system="Be brief."))


def test_rows_of_a_chat_are_looked_at_behind_the_first(tmp_path: Path):
    """A special token in an answer or in a later query, and one in a template that has no turns."""
    form = Model(tmp_path, CHATML, qwen_tokenizer).form(ChatSettings(style="single"))
    bad = Row("say <|im_end|>", {"text": "x"})
    for shown, queries in (([*ROWS, bad], QUERIES), (ROWS, [*QUERIES, bad])):
        with pytest.raises(UserError, match=r"^--chat: a row has the text '<\|im_end\|>'"):
            form.is_pieced(shown, queries)


def test_the_first_special_token_ends_an_answer(tmp_path: Path):
    model = Model(tmp_path, CHATML.replace("<|im_end|>\n", "~<|im_end|><|im_start|>"), qwen_tokenizer)
    form = model.form(ChatSettings(style="turns"))
    assert (form.ending, form.stop) == ("~<|im_end|>", "~<|im_end|>")


def test_a_models_form_has_its_template_its_special_tokens_and_its_name(tmp_path: Path):
    model = Model(tmp_path, CHATML, qwen_tokenizer)
    model.tokenizer.add_tokens(["<plain>"])
    named: Any = SimpleNamespace(source=str(tmp_path), name="my model")
    settings = ChatSettings(style="single", arguments=(("enable_thinking", False),))
    form = chat_form(TASK, settings, named, model.tokenizer)
    assert form.facts() == model.form(settings).facts()
    assert form.whole(ROWS, QUERIES[0]) == model.form(settings).whole(ROWS, QUERIES[0])
    assert form.is_pieced([Row("<plain>", {"text": "x"})], QUERIES)
    with pytest.raises(UserError, match=r"has the text '<\|im_start\|>'"):
        form.is_pieced([Row("<|im_start|>", {"text": "x"})], QUERIES)

    def shouted(task: Any, row: Any) -> str:
        return demonstration_text(task, row).upper()

    loud = chat_form(TASK, settings, named, model.tokenizer, Writing(shouted))
    assert loud.demonstration(ROWS[0]) == form.demonstration(ROWS[0]).upper()
    (tmp_path / "chat_template.jinja").write_text(LLAMA)
    said = ChatSettings(style="turns", system="x")
    with pytest.raises(UserError, match=r"chat template of model my model refuses"):
        chat_form(TASK, said, named, model.tokenizer)


# -- a template's language and its files ----------------------------------------------------------


def rendered(folder: Path, source: str, **arguments: Any) -> str:
    (folder / "chat_template.jinja").write_text(source, encoding="utf-8")
    chat = ChatTemplate.of_folder(folder, "mine", arguments)
    messages = [{"role": "user", "content": "é"}, {"role": "user", "content": "b"}]
    again: ChatTemplate = pickle.loads(pickle.dumps(chat))
    assert again.render(messages) == chat.render(messages) == again.render(messages)
    pickle.dumps(chat)  # compiled by now
    return chat.render(messages)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages | tojson }}", '[{"role": "user", "content": "é"}, {"role": "user", "content": "b"}]'),
        ("{{ messages[0] | tojson(indent=1) }}", '{\n "role": "user",\n "content": "é"\n}'),
        ("{{ messages[0].content | tojson(ensure_ascii=True) }}", '"\\u00e9"'),
        ("  {% for m in messages %}\n{{ m.content }}{% break %}{% endfor %}", "é"),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}!", "b!"),
        ("{{ strftime_now('%Y') }}", str(datetime.now().year)),
        ("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}", "True True True"),
        ("{{ mine }}", "7"),
    ],
)
def test_the_language_of_templates(tmp_path: Path, source: str, text: str):
    assert rendered(tmp_path, source, mine=7) == text


def test_special_tokens_and_templates_are_read_as_configs_have_them(tmp_path: Path):
    config: dict[str, Any] = {
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "pad_token": None,
        "chat_template": [
            {"name": "tools", "template": "no"},
            {"name": "default", "template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}"},
        ],
    }
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    chat = ChatTemplate.of_folder(tmp_path, "mine", {})
    assert chat.arguments == {"bos_token": "<s>", "eos_token": "</s>"}
    assert chat.render([]) == "<s></s>"
    # a file beside it goes first, and what is asked for before what the config says
    assert rendered(tmp_path, "{{ bos_token }}", bos_token="<b>") == "<b>"
    (tmp_path / "chat_template.jinja").unlink()
    for wrong, why in (("[]", "tokenizer_config.json is not an object"), ("{", "Expecting property name")):
        file.write_text(wrong, encoding="utf-8")
        with pytest.raises(UserError, match=rf"^model mine: its chat template cannot be read \({why}"):
            ChatTemplate.of_folder(tmp_path, "mine", {})
    file.write_text(json.dumps({"chat_template": [{"name": "tools", "template": "x"}, 3]}))
    with pytest.raises(UserError, match=r"^--chat: model mine has no chat template"):
        ChatTemplate.of_folder(tmp_path, "mine", {})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('not so') }}", r"refuses a conversation of system/user turns \(not so\)"),
        ("{{ 1 / 0 }}", r"refuses .* \(division by zero\)"),
        ("{{ messages[0].content.x() }}", "refuses"),
        ("{{ 'a' + 1 }}", "refuses"),
        ("{{ [1, 2] | random }}", r"cannot be read \(No filter named 'random'"),
        ("{{ lipsum() }}", r"refuses .* \('lipsum' is undefined\)"),
        (
            f"{{% for i in {[*range(300)]} %}}{{% for j in range(99999) %}}{{% endfor %}}{{% endfor %}}",
            "takes more than",
        ),
    ],
)
def test_what_a_template_refuses_is_told_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
):
    monkeypatch.setattr("icl_bench.prompts.chat_template.SECONDS", 0.2)
    (tmp_path / "chat_template.jinja").write_text(source)
    chat = ChatTemplate.of_folder(tmp_path, "mine", {})
    talk = [{"role": role, "content": "x"} for role in ("system", "user", "user")]
    with pytest.raises(UserError, match=rf"^--chat: the chat template of model mine {said}"):
        chat.render(talk)


# -- dates and thoughts -------------------------------------------------------------------------

DATED = CHATML.replace("Be brief.", "It is ' + strftime_now('%d %b %Y, %H:%M') + '.")
OPENED = {
    "<think>\n": "<think>\n\n</think>\n\n",
    "<think>": "<think>\n\n</think>\n\n",
    "[THINK]": "[THINK]\n\n[/THINK]\n\n",
    "<thought>\n": "<thought>\n\n</thought>\n\n",
    "<seed:think>": "<seed:think>\n\n</seed:think>\n\n",
    "<|START_THINKING|>": "<|START_THINKING|><|END_THINKING|>",
}
CLOSED = (
    "",
    "<think>\n\n</think>\n\n",
    "<think></think>",
    "I think",
    "<b>\n",
    "<|START_THINKING|><|END_THINKING|>",
    "<|begin_of_thought|>\n<|end_of_thought|>",
    "<end_of_thought>",
    "[END_THINK]\n",
)


def test_a_template_writes_the_date_that_it_is_given_whatever_the_clock_says(tmp_path: Path):
    model = Model(tmp_path, DATED, qwen_tokenizer)
    one, same, other = (
        model.form(ChatSettings(style="turns", day=day)) for day in ("2026-01-31", "2026-01-31", "2026-02-01")
    )
    assert "It is 31 Jan 2026, 00:00." in one.start
    assert one.facts() == same.facts() != other.facts()
    assert one.notes() == ["the chat template may write a date: 2026-01-31, kept for this results folder"]
    today = datetime.now().strftime("%d %b %Y")
    assert today in model.form(ChatSettings(style="turns")).start
    assert Model(tmp_path / "none", CHATML, qwen_tokenizer).form(ChatSettings(style="turns")).notes() == []


@pytest.mark.parametrize("style", ["turns", "single"])
@pytest.mark.parametrize("opened", OPENED)
def test_a_thought_that_the_generation_prompt_begins_is_closed_before_a_label(tmp_path: Path, opened: str, style: Any):
    source = CHATML.replace("<|im_start|>assistant\n'", "<|im_start|>assistant\n" + opened.replace("\n", "\\n") + "'")
    model = Model(tmp_path, source, qwen_tokenizer)
    left, form = (model.form(ChatSettings(style=style), closes_thoughts=closes) for closes in (False, True))
    assert left.query(QUERIES[0]).endswith(opened)
    assert form.query(QUERIES[0]).endswith("assistant\n" + OPENED[opened])
    assert form.facts() != left.facts()
    assert form.answer("order") == "order<|im_end|>"
    assert form.whole(ROWS[:2], QUERIES[0]).endswith(OPENED[opened])
    prompts = PromptTokenizer(form, model.tokenizer).shared_prompts(ROWS, [2], QUERIES)[2]
    assert prompts.text(0) == form.whole(ROWS[:2], QUERIES[0])
    mark = opened.strip()
    assert form.notes() == [
        f"the chat template begins a thought ({mark}) before each answer: it is closed, and labels follow it"
    ]
    assert left.notes() == [f"the chat template begins a thought ({mark}) before each answer: answers begin inside it"]


@pytest.mark.parametrize("written", CLOSED)
def test_a_generation_prompt_that_begins_no_thought_is_left_as_it_is(tmp_path: Path, written: str):
    source = CHATML.replace("<|im_start|>assistant\n'", "<|im_start|>assistant\n" + written.replace("\n", "\\n") + "'")
    model = Model(tmp_path, source, qwen_tokenizer)
    left, form = (model.form(ChatSettings(style="turns"), closes_thoughts=closes) for closes in (False, True))
    assert form.facts() == left.facts()
    assert form.notes() == []


# -- thoughts before answers ----------------------------------------------------------------------

THOUGHT = ThoughtRule("Think.", "So it is ", 9, "why")
OWN_THOUGHT = (
    CHATML.replace("{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>assistant\n<think>\n' }}") + "{# </think> #}"
)
WORKED = [replace(row, worked=THOUGHT.worked(f"because {n}")) for n, row in enumerate(ROWS[:2])]


def thinking_form(folder: Path, source: str, style: Any) -> ChatForm:
    chat = ChatTemplate(source, "m", {"eos_token": "<|im_end|>"})
    return ChatForm(TASK, ChatSettings(style=style), chat, ["<|im_start|>", "<|im_end|>"], thought=THOUGHT)


@pytest.mark.parametrize("style", ["turns", "single"])
def test_a_thought_begins_the_assistants_turn_and_demonstrations_show_theirs(tmp_path: Path, style: Any):
    form = thinking_form(tmp_path, CHATML, style)
    text = form.whole(WORKED, QUERIES[0])
    assert text.endswith("and mine?\nintent:<|im_end|>\n<|im_start|>assistant\nThink.")
    shown = "Think. because 0 So it is card arrival"
    assert shown in text
    assert form.is_pieced(WORKED, QUERIES)
    pieces = [form.start, *map(form.demonstration, WORKED), form.query(QUERIES[0])]
    assert "".join(pieces) == text
    assert form.answer("order") == " order<|im_end|>"
    assert form.before_answer == "So it is"
    assert form.messages(WORKED, QUERIES[0])[-1]["content"].endswith("and mine?\nintent: Think.")
    assert (form.thought_stops, form.closing(text)) == (("<|im_end|>",), "")


def test_a_thought_of_the_models_own_ends_and_is_closed_before_the_answer(tmp_path: Path):
    form = thinking_form(tmp_path, OWN_THOUGHT, "turns")
    text = form.whole([], QUERIES[0])
    assert text.endswith("<think>\nThink.")
    assert form.thought_stops == ("</think>", "<|im_end|>")
    assert form.closing(f"{text} so") == "\n</think>\n\n"
    assert form.closing(f"{text} so</think>") == ""
    assert THOUGHT.until_answer(text, " so", form.closing(f"{text} so")) == " so\n</think>\n\nSo it is"
