"""Templates in Jinja: what they make of rows, and what is said of rows that they fail on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.models import qwen_tokenizer

from icl_bench.errors import UserError
from icl_bench.prompts.chat import ChatForm, ChatSettings
from icl_bench.prompts.encoding import PromptTokenizer
from icl_bench.prompts.rendering import PlainForm
from icl_bench.tasks import examples
from icl_bench.tasks.choices import read_list
from icl_bench.tasks.examples import TaskData, load_data
from icl_bench.tasks.task_files import load_task

ROWS: list[dict[str, Any]] = [
    {"id": "a", "q": "is 2 > 1", "label": 1, "list": ["no", "yes"], "right": "yes"},
    {"id": "b", "q": "is 1 > 2", "label": 0, "list": ["nope", "sure"], "right": "nope"},
    {"id": "c", "q": "  naïve {braces}\n", "label": 1, "list": ["x", "yz"], "right": "yz"},
]


def loaded(folder: Path, rows: Any = ROWS, fields: Any = None, **template: Any) -> TaskData:
    """A task of these rows, all of them train and test rows."""
    found = {"engine": "jinja", "input": "Q: {{q.strip()}}?\nA:", "output": "label", **template}
    spec = {
        "name": "own",
        "data": {"train": "rows.jsonl", "test": "rows.jsonl"},
        "template": found,
        "metrics": ["accuracy"],
        "labels": {"choices": ["no", "yes"], "gold": "index"},
        **(fields or {}),
    }
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "rows.jsonl").write_text(lines, encoding="utf-8")
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in spec.items() if v is not ...}))
    return load_data(load_task(path))


def complaint(folder: Path, **changes: Any) -> str:
    """What is said of a task, without the folder's name."""
    with pytest.raises(UserError) as error:
        loaded(folder, **changes)
    return str(error.value).replace(f"{folder}/", "")


FREE = {"labels": ..., "metrics": ["exact_text"]}


def test_a_prompt_is_its_start_then_demonstrations_then_the_input_alone(tmp_path):
    data = loaded(tmp_path, start="Yes or no.\n\n", delimiter="\n", separator="\n\n\n")
    form = PlainForm(data.spec.template)
    text = form.whole(data.train[:2], data.train[2])
    assert text == ("Yes or no.\n\nQ: is 2 > 1?\nA:\nyes\n\n\nQ: is 1 > 2?\nA:\nno\n\n\nQ: naïve {braces}?\nA:")
    assert form.answer("yes") == "\nyes\n\n\n"
    assert form.whole((), data.train[2]) == "Yes or no.\n\nQ: naïve {braces}?\nA:"


@pytest.mark.parametrize("k", [0, 1, 2])
def test_ids_are_those_of_the_whole_text(tmp_path, k):
    data = loaded(tmp_path, start="Yes or no.\n\n")
    form, tokenizer = PlainForm(data.spec.template), qwen_tokenizer()
    encoder = PromptTokenizer(form, tokenizer)
    prompts = encoder.shared_prompts(data.train[:2], [k], data.train[2:])[k]
    assert prompts.ids(0) == encoder.whole(form.whole(data.train[:k], data.train[2]))
    assert prompts.text(0) == form.whole(data.train[:k], data.train[2])


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("template.input", {"input": "qq"}),
        ("template.output", {"output": "rihgt", "fields": FREE}),
        ("template.output", {"output": "lable", "fields": {"labels": {}}}),
        ("labels.choices", {"fields": {"labels": {"choices": "lisst", "gold": "index"}}}),
        (
            "answer.rationale",
            {"fields": {"answer": {"think": True, "ends": "So it is ", "limit": 9, "rationale": "rationale"}}},
        ),
    ],
)
def test_a_word_that_is_no_column_is_not_the_text_of_all_rows(tmp_path, field: str, changes: dict[str, Any]):
    said = complaint(tmp_path, **changes)
    assert said.startswith(f"rows.jsonl:1: {field}: no column '")
    assert said.endswith("columns: id, q, label, list, right")


def test_a_row_without_the_column_of_the_answer_is_named(tmp_path):
    rows = [*ROWS, {"id": "d", "q": "is it"}]
    said = complaint(tmp_path, rows=rows, output="right", fields=FREE)
    assert said == "rows.jsonl:4: template.output: no column 'right'; columns: id, q"
    data = loaded(tmp_path, output="yes", fields={"labels": {"choices": ["no", "yes"]}})  # of all rows, as in lm-eval
    assert {row.answer for row in data.train} == {"yes"}


def test_the_name_of_a_column_stands_for_its_value_with_its_blanks(tmp_path):
    data = loaded(tmp_path, input="q")
    assert [row.fields["input"] for row in data.train] == [row["q"] for row in ROWS]
    assert data.spec.template.before_answer == ":"  # not the column's name


def test_labels_that_all_rows_share_are_those_of_the_task_file(tmp_path):
    data = loaded(tmp_path, fields={"labels": {"choices": ["no", "yes", "maybe"], "gold": "index"}})
    assert data.labels == ("maybe", "no", "yes")
    assert [row.answer for row in data.train] == ["yes", "no", "yes"]
    assert not any(row.choices for row in data.train)


@pytest.mark.parametrize("choices", ["list", "{{list}}", "{{ [list[0], list[1]] }}"])
@pytest.mark.parametrize("output", ["label", "{{label}}", "right", "{{right}}"])
def test_choices_of_a_row_are_named_by_their_place_or_their_text(tmp_path, choices, output):
    labels = {"choices": choices, "gold": "index or text"}
    data = loaded(tmp_path, output=output, fields={"labels": labels})
    assert [row.choices for row in data.train] == [tuple(row["list"]) for row in ROWS]
    assert [row.answer for row in data.train] == [row["right"] for row in ROWS]


@pytest.mark.parametrize("column", ["input", "output", "choices"])
def test_columns_may_have_the_names_of_parts_of_a_template(tmp_path, column):
    rows = [{"q": row["q"], column: row["list"], "right": row["right"]} for row in ROWS]
    labels = {"choices": column, "gold": "index or text"}
    data = loaded(tmp_path, rows, input="{{q}}", output="right", fields={"labels": labels})
    assert [row.fields for row in data.train] == [{"input": row["q"]} for row in ROWS]
    assert [row.answer for row in data.train] == [row["right"] for row in ROWS]
    assert [row.choices for row in data.train] == [tuple(row["list"]) for row in ROWS]


def test_choices_that_all_rows_share_are_read_once(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(examples, "read_list", lambda *a: read.append(a) or read_list(*a))
    assert [row.answer for row in loaded(tmp_path).train] == ["yes", "no", "yes"]
    assert len(read) == 1


def test_a_free_answer_may_be_several(tmp_path):
    data = loaded(tmp_path, output="{{list}}", fields=FREE)
    assert [row.answer for row in data.train] == ["no", "nope", "x"]
    assert data.train[0].golds == ("no", "yes")
    # what looks like a list and is none is a text
    rows = [{"q": "x", "label": "[sic]"}]
    assert loaded(tmp_path, rows, output="{{label}}", fields=FREE).train[0].answer == "[sic]"


@pytest.mark.parametrize("text", ["[{{1,2}}]", "[{[1]: 2}]", "²", "[²]", "[1" + "0" * 5000 + "]"])
def test_what_looks_like_a_list_or_a_number_and_is_none_is_a_text(tmp_path, text):
    rows = [{"q": text, "label": text}, {"q": "y", "label": "m"}]
    shared = {"labels": {"choices": [text, "m"], "gold": "index or text"}}
    for fields in (FREE, shared):
        data = loaded(tmp_path, rows, input="{{q}}", output="{{label}}", fields=fields)
        assert [row.answer for row in data.train] == [text, "m"]
        assert data.train[0].fields == {"input": text}


def test_blanks_around_a_right_answer_do_not_count(tmp_path):
    (row,) = loaded(tmp_path, ROWS[:1], output=" {{right}}", delimiter="", fields=FREE).train
    assert (row.answer, row.golds) == (" yes", ("yes",))


def test_in_a_chat_the_start_is_the_system_s_turn(tmp_path):
    data = loaded(tmp_path, start="Yes or no.")
    template: Any = data.spec.template

    class Echo:
        source, whose = "", "echo"

        def render(self, messages, *, answer_follows=True):
            turns = "".join(f"<{m['role']}>{m['content']}</s>" for m in messages)
            return turns + "<assistant>" * answer_follows

    def said(system):
        chat: Any = Echo()
        form = ChatForm(template, ChatSettings(style="turns", system=system), chat, ["</s>"])
        return [(m["role"], m["content"]) for m in form.messages(data.train[:1], data.train[1])]

    assert said(None) == [
        ("system", "Yes or no."),
        ("user", "Q: is 2 > 1?\nA:"),
        ("assistant", "yes"),
        ("user", "Q: is 1 > 2?\nA:"),
    ]
    assert said("Be brief.")[0] == ("system", "Be brief.\n\nYes or no.")
    assert said("Be brief.\n")[0] == ("system", "Be brief.\nYes or no.")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input": "{{nothing}}"}, "rows.jsonl:1: template.input fails on this row: 'nothing' is undefined"),
        (
            {"input": "{{q.missing}}"},
            "rows.jsonl:1: template.input fails on this row: 'str object' has no attribute 'missing'",
        ),
        (
            {"input": "{{1 // label}} {{q}}"},
            "rows.jsonl:2: template.input fails on this row: integer division or modulo by zero",
        ),
        (
            {"input": "{{q.__class__.__mro__}}"},
            "rows.jsonl:1: template.input fails on this row: access to attribute '__class__' of 'str' object is unsafe.",
        ),
        (
            {"input": "{% for i in range(10**9) %}{{q}}{% endfor %}"},
            "rows.jsonl:1: template.input fails on this row: Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).",
        ),
        ({"input": "label"}, "rows.jsonl:1: template.input must give text, not 1"),
        (
            {"input": "{{label}}"},
            "rows.jsonl:1: template.input gives the number '1'; tasks that choose among several inputs are not supported",
        ),
        (
            {"output": "{{label + 1}}"},
            "rows.jsonl:1: output is 2, not the index, from 0, of one of the row's choices ('0', '1')",
        ),
        ({"fields": {"labels": {"choices": "{{q}}"}}}, "rows.jsonl:1: labels.choices must give a list, not 'is 2 > 1'"),
        (
            {"fields": {"labels": {"choices": "[{[1]: {{label}}}]"}}},
            "rows.jsonl:1: labels.choices must give a list, not '[{[1]: 1}]'",
        ),
        ({"fields": {"labels": {"choices": "label"}}}, "rows.jsonl:1: labels.choices must give a list, not 1"),
        ({"fields": {"labels": {"choices": "{{[]}}"}}}, "rows.jsonl:1: choices has no choice; expected several"),
        ({"output": "{{''}}", "fields": FREE}, "rows.jsonl:1: output is empty"),
    ],
)
def test_a_row_that_a_template_fails_on_is_named(tmp_path, changes, said):
    assert complaint(tmp_path, **changes) == said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input": "Q: {{q"}, "template.input: not a Jinja template: unexpected end of template"),
        ({"input": "{% if q %}"}, "template.input: not a Jinja template: Unexpected end of template"),
        ({"input": "Q: and nothing else"}, "template: input must show a column of the row"),
        ({"separator": " | "}, "template.separator: must begin with a line break"),
        ({"joiner": "x"}, "template.joiner: unknown field; did you mean"),
        ({"engine": "mako"}, "template.engine: Input should be 'jinja', not 'mako'"),
        ({"fields": {"labels": {"choices": "{{q"}}}, "not a Jinja template"),
        ({"fields": {"labels": {"choices": "list", "style": "letters"}}}, "letters is for a template in braces"),
        ({"fields": {"labels": {"choices": ["a", "a"]}}}, "choices has 'a' twice"),
        ({"fields": {"labels": {"choices": ["a", "b"], "gold": "key"}}}, "gold: key is for choices of each row"),
        (
            {"fields": {"data": {"train": "rows.jsonl", "test": "rows.jsonl", "fields": {"q": "q"}}}},
            "data.fields are for a template in braces",
        ),
    ],
)
def test_what_no_row_could_be_written_with_is_refused_when_the_file_is_read(tmp_path, changes, said):
    assert said in complaint(tmp_path, **changes)


def test_a_template_in_braces_still_needs_fields(tmp_path):
    plain = {"engine": ..., "input": "{q}", "output": "{label}"}
    fields = {"template": {k: v for k, v in plain.items() if v is not ...}, "labels": {}}
    assert "the template uses {label}, which data.fields does not name" in complaint(tmp_path, fields=fields)


def test_a_parquet_file_is_read_with_all_columns(tmp_path):
    import pandas as pd

    loaded(tmp_path)
    pd.DataFrame(ROWS).to_parquet(tmp_path / "rows.parquet")
    found = yaml.safe_load((tmp_path / "own.yaml").read_text())
    found["data"] = {"train": "rows.parquet", "test": "rows.parquet"}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(found))
    data = load_data(load_task(tmp_path / "own.yaml"))
    assert [row.answer for row in data.train] == ["yes", "no", "yes"]


def test_numbers_of_classes_on_the_hub_stay_numbers(tmp_path):
    import datasets

    names = datasets.ClassLabel(names=["no", "yes"])
    features = datasets.Features({"q": datasets.Value("string"), "label": names})
    table = datasets.Dataset.from_list([{"q": row["q"], "label": row["label"]} for row in ROWS], features=features)
    (tmp_path / "hub").mkdir()
    for split in ("train", "test"):
        table.to_parquet(tmp_path / "hub" / f"{split}.parquet")
    hub = {"path": str(tmp_path / "hub"), "revision": "main"}
    data = loaded(tmp_path, fields={"data": {"hub": hub}})
    assert f"{tmp_path}/hub@main may change: pin a revision" in data.notes
    assert [row.answer for row in data.train] == ["yes", "no", "yes"]


@pytest.mark.parametrize("name", ["random", "lipsum"])
@pytest.mark.parametrize("field", ["input", "output"])
def test_what_makes_another_prompt_in_every_run_is_refused(tmp_path, name, field):
    source = {"random": "{{ q }}{{ [1, 2] | random }}", "lipsum": "{{ q }}{{ lipsum(1) }}"}[name]
    said = complaint(tmp_path, **{field: source})
    assert said.endswith(f"template.{field}: uses {name}, which makes a different prompt in every run (got {source!r})")


def test_random_choices_and_random_by_another_name_are_refused(tmp_path):
    labels = {"labels": {"choices": "{{ ['a', 'b'] | random }}"}}
    assert "labels.choices" not in loaded(tmp_path).notes
    assert "uses random, which makes a different prompt" in complaint(tmp_path, fields=labels)
    assert "No filter named 'random'" in complaint(tmp_path, input="{{ [q] | map('random') | list }}")


def test_columns_may_have_the_names_of_what_is_random(tmp_path):
    rows = [{**row, "random": "r", "lipsum": "l"} for row in ROWS]
    assert loaded(tmp_path, rows, input="{{ random }} {{ lipsum }}").train[0].fields == {"input": "r l"}


@pytest.mark.parametrize(
    "source",
    [
        "{{ q }}{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{{ ('a' * 40 ~ 'b') | regex_replace('(a+)+$', q) }}",
    ],
)
def test_a_template_that_does_not_end_is_named_with_its_row(tmp_path, monkeypatch, source):
    monkeypatch.setattr("icl_bench.tasks.jinja.SECONDS", 0.05)
    said = complaint(tmp_path, input=source)
    assert said.startswith("rows.jsonl:1: template.input takes more than 0.05 s on this row: ")
    assert source[:30] in said


def test_a_function_is_no_text(tmp_path):
    rows = [{**row, "deep": {"items": 3}} for row in ROWS]
    said = (
        "rows.jsonl:1: template.input fails on this row: items is a function: write items(), or ['items'] for a value"
    )
    assert complaint(tmp_path, rows=rows, input="{{ deep.items }}").startswith(said)
    assert loaded(tmp_path, rows, input="n {{ deep['items'] }}").train[0].fields == {"input": "n 3"}


@pytest.mark.parametrize(("value", "answer"), [(True, "yes"), (False, "no")])
def test_a_truth_value_is_an_index_of_choices_as_in_python(tmp_path, value, answer):
    rows = [{**row, "label": value} for row in ROWS]
    gold = {"labels": {"choices": ["no", "yes"], "gold": "index or text"}}
    assert loaded(tmp_path, rows, gold).train[0].answer == answer
    assert loaded(tmp_path, rows, FREE).train[0].answer == str(value)
