"""Task files: the shipped ones, a user's own, and what is said about a wrong one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from icl_bench.errors import UserError
from icl_bench.metrics.numeric import number
from icl_bench.prompts.rendering import PlainForm, prompt_text
from icl_bench.tasks import task_files as taskfile
from icl_bench.tasks.answers import extracted
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import known_groups, known_tasks, load_task, tasks_of
from icl_bench.tasks.templates import JinjaTemplate
from icl_bench.tasks.think_option import ThinkOption
from icl_bench.tasks.worked_examples import read_pool

TASK = """\
name: mine
data:
  train: train.jsonl
  test: test.csv
  fields: {text: text, label: label}
template:
  input: "query: {text}"
  output: "intent: {label}"
labels: {style: words}
metrics: [accuracy]
"""


@pytest.fixture
def complaint(tmp_path: Path):
    """Say what is said about a task file, after the file's name."""

    def complain(text: str | bytes) -> str:
        path = tmp_path / "mine.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(UserError) as error:
            load_task(path)
        message = str(error.value)
        assert "\n" not in message
        return message.removeprefix(str(path))

    return complain


FREE = (
    "commonsenseqa_free",
    "complexwebquestions",
    "gsm8k",
    "gsm8k_answers",
    "gsm8k_thoughts",
    "nq_open",
    "nq_open_passage",
    "nq_open_retrieved",
    "nq_open_text_and_vectors",
    "squad2",
    "webquestions",
)

BBH, WORKED = known_groups()["bbh"], known_groups()["bbh_worked"]


def test_the_shipped_tasks_are_the_six_of_the_paper_the_embedded_ones_and_those_of_free_answers():
    others = ("banking77", "clinic150", "commonsenseqa", "nlu", "samsum", "stdlib", "stdlib_six", "trec", "trec_fine")
    assert known_tasks() == tuple(sorted((*others, *FREE, *BBH, *WORKED)))


@pytest.mark.parametrize("name", known_tasks())
def test_a_shipped_task_is_named_like_its_file_and_says_its_license_and_source(name: str):
    spec = load_task(name)
    assert spec.name == name
    assert spec.description
    assert spec.license
    assert spec.source
    assert spec.template.separator == ("\n\n" if name in (*BBH, *WORKED) else "\n==\n")
    assert spec.pool.drop_longest == (0 if name in WORKED else 0.01)
    assert spec.test.size == 250 or name in (*BBH, *WORKED)
    assert spec.test.seed == 43


def test_a_shipped_group_has_its_tasks_and_a_task_is_itself_alone():
    assert known_groups().keys() == {"bbh", "bbh_worked"}
    assert (len(BBH), len(WORKED)) == (27, 22)
    assert tasks_of("bbh") == list(BBH)
    assert tasks_of("trec") == ["trec"]


def test_a_group_where_one_task_is_needed_is_answered_with_its_tasks():
    with pytest.raises(UserError, match=r"^bbh: is a group of tasks, .* bbh_boolean_expressions, .* bbh_word_sorting$"):
        load_task("bbh")
    with pytest.raises(UserError, match=r"^no task 'bhb'; did you mean bbh\?"):
        load_task("bhb")


@pytest.mark.parametrize("name", ["bbh", "trec"])
def test_a_shipped_name_that_is_given_as_a_file_is_answered_with_the_name(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"^{name}.yaml: there is no such file; the shipped one is named {name}$"):
        load_task(f"{name}.yaml")
    (tmp_path / f"{name}.yaml").write_text(TASK)
    assert load_task(f"{name}.yaml").name == "mine"


@pytest.mark.parametrize("name", BBH)
def test_a_task_of_bbh_names_its_file_and_its_configuration_on_the_hub(name: str):
    data, short = load_task(name).data, name.removeprefix("bbh_")
    assert data.hub is not None
    assert (data.file, data.hub.name) == (Path(f"{short}.jsonl"), short)
    assert data.holdout == data.hub.holdout


@pytest.mark.parametrize("name", BBH)
def test_a_task_of_bbh_has_the_authors_prompt_without_its_thoughts(name: str, data_dir: Path):
    short = name.removeprefix("bbh_")
    if not (data_dir / "bbh" / f"{short}.jsonl").is_file():
        pytest.skip("its file is on the hub alone")
    rows = load_data(load_task(name), data_dir=data_dir)
    assert not rows.notes
    template = rows.spec.template
    assert isinstance(template, JinjaTemplate)
    worked = (data_dir / "bbh" / "cot" / f"{short}.txt").read_text("utf-8")
    assert worked.startswith(f"{template.start}Q: ")
    assert len(rows.test) == rows.spec.test.size
    stored = [json.loads(line) for line in (data_dir / "bbh" / f"{short}.jsonl").read_text("utf-8").splitlines()]
    answers = {row["id"]: f"Q: {row['input']}\nA: {row['target']}" for row in stored}
    examples = [*rows.train, *rows.test]
    assert {one.id for one in examples} == answers.keys()
    shown = {one.id: f"{template.shown(one.fields)}{template.answer_link}{one.answer}" for one in examples}
    assert shown == answers


@pytest.mark.parametrize("name", WORKED)
def test_a_task_with_worked_examples_asks_the_same_rows_behind_the_authors_three(name: str, data_dir: Path):
    short = name.removeprefix("bbh_").removesuffix("_worked")
    spec, direct = load_task(name), load_task(f"bbh_{short}")
    same = {"name": "", "description": "", "pool": direct.pool, "answer": None}
    named = {"data": spec.data.model_copy(update={"hub": direct.data.hub})}
    assert spec.model_copy(update={**same, **named}) == direct.model_copy(update=same)
    rows, others = load_data(spec, data_dir=data_dir), load_data(direct, data_dir=data_dir)
    assert [row.id for row in rows.test] == [row.id for row in others.test]
    path = data_dir / "bbh" / "cot" / f"{short}.txt"
    start, *examples = path.read_text("utf-8").strip().split("\n\nQ: ")
    assert len(examples) == len(rows.train) == 3
    targets = [text.rpartition("So the answer is ")[2].removesuffix(".") for text in examples]
    questions = [text.partition("\nA: ")[0] for text in examples]
    answers = "".join(f"Q: {q}\nA: {a}\n\n" for q, a in zip(questions, targets, strict=True))
    query = "Q: " + rows.test[0].fields["input"].removeprefix("Q: ").removesuffix("\nA:") + "\nA:"
    assert prompt_text(spec.template, rows.train, rows.test[0]) == f"{start}\n\n{answers}{query}"
    stored = read_pool(path, {}).rows
    whole = [f"{r.cells['input']}\nA: {r.cells['rationale']}So the answer is {r.cells['target']}." for r in stored]
    assert whole == examples
    assert spec.answer is not None
    thinking = load_data(ThinkOption.parse("on").of(spec), data_dir=data_dir)
    prompt = PlainForm(spec.template, thought=thinking.spec.thought).whole(thinking.train, thinking.test[0])
    worked = "".join(f"Q: {one.removesuffix('.')}\n\n" for one in examples)
    assert prompt.rstrip() == f"{start}\n\n{worked}{query} Let's think step by step."


@pytest.mark.parametrize(
    "name",
    [n for n in known_tasks() if n not in ("commonsenseqa", "samsum", "stdlib", "stdlib_six", *FREE, *BBH, *WORKED)],
)
def test_the_papers_test_rows_are_asked_of_the_tasks_that_have_them(name: str):
    assert load_task(name).test.ids == "paper"


@pytest.mark.parametrize(
    ("name", "asked", "shown"),
    [
        ("gsm8k", "test-0", "18"),
        ("gsm8k_answers", "test-0", "18"),
        ("gsm8k_thoughts", "test-0", "18"),
        ("commonsenseqa_free", "1afa02df02c908a558b4036e80242fac", "bank"),
        ("nq_open_passage", "nq-open-0", "Wilhelm Conrad Röntgen"),
        ("nq_open_retrieved", "nq-open-0", "Wilhelm Conrad Röntgen"),
        ("nq_open_text_and_vectors", "nq-open-0", "Wilhelm Conrad Röntgen"),
        ("complexwebquestions", "WebQTest-832_c334509bb5e02cacae1ba2e80c176499", "2014 World Series"),
        ("nq_open", "nq-open-dev-0", "14 December 1972 UTC"),
        ("squad2", "68cf05f67fd29c6f129fe2fb9", "France"),
        ("webquestions", "wqs000001", "Lawyer"),
    ],
)
def test_a_task_of_free_answers_has_the_right_answer_of_a_known_row(name: str, asked: str, shown: str, data_dir: Path):
    rows = load_data(load_task(name), data_dir=data_dir)
    (row,) = [e for e in (*rows.train, *rows.test_pool) if e.id == asked]
    assert (row.golds or (row.answer,))[0] == shown
    assert len(rows.test) == 250


@pytest.mark.parametrize(
    ("right", "written"),
    [
        *(("5", n) for n in ("5", "5.", "+5", "$5", "5 eggs", "5eggs", "5%", "5.0", "...5", "No.5", "5, not 6")),
        *(("-5", n) for n in ("-5", "-$5", "$-5", "\u22125")),
        *(("0.5", n) for n in (".5", "0.5", "$.50")),
        *(("-0.5", n) for n in ("-.5", "-$.5")),
        *(("3000", n) for n in ("3,000.00", "3'000", "3\u2019000", "3\u00a0000", "3\u202f000", "3e3", "3.0E+3")),
        *(("", n) for n in ("1/2", "\u00bd", "1\u00bd", "1.2.3", "1,2,3")),
    ],
)
@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_answers", "gsm8k_thoughts"])
def test_the_whole_number_of_an_answer_is_read(name: str, right: str, written: str):
    """No part of it, such as the 5 of .5, and nothing behind it. No right answer of the data is a fraction."""
    rule = load_task(name).answer
    assert rule is not None
    begin = "#### " if name == "gsm8k" else ""
    found = number(extracted(rule, begin + written) or "")
    assert found == (number(right) if right else None)


def test_passages_are_five_texts_and_then_vectors(data_dir: Path):
    """Each of a question's twenty passages is shown once: the best five as text, the others as vectors."""
    rows = load_data(load_task("nq_open_text_and_vectors"), data_dir=data_dir)
    all_as_vectors = load_data(load_task("nq_open_retrieved"), data_dir=data_dir)
    passages = {row.id: row.passages for row in (*all_as_vectors.train, *all_as_vectors.test_pool)}
    for row in rows.test:
        prompt = prompt_text(rows.spec.template, [], row)
        shown = [
            f"Title: {title}\nPassage: {text}\n" for title, text in (p.split("\n", 1) for p in passages[row.id][:5])
        ]
        assert prompt.startswith("".join(shown) + f"Question: {row.fields['question']}\n")
        assert row.passages == passages[row.id][5:]
        assert len(row.passages) == 15


@pytest.mark.parametrize("name", ["banking77", "clinic150", "nlu", "trec", "trec_fine"])
def test_a_shipped_task_gives_the_published_prompts_byte_for_byte(name: str, data_dir: Path):
    rows = load_data(load_task(name), data_dir=data_dir)
    train = {row.id: row for row in rows.train}
    test = {row.id: row for row in rows.test}
    for shots in (5, 50):
        path = data_dir / "published" / "prompts" / f"{name}_n{shots}_run0.json"
        published = json.loads(path.read_bytes())
        query = test[published["test_id"]]
        shown = [train[i] for i in published["demonstration_ids"]]
        assert prompt_text(rows.spec.template, shown, query) == published["prompt"]
        assert query.answer == published["answer"]


@pytest.mark.parametrize(
    ("name", "folder", "key", "written"),
    [
        ("banking77", "banking77", "label_key", "label"),
        ("clinic150", "clinic150", "label_key", "label"),
        ("nlu", "nlu", "label_key", "label"),
        ("trec", "trec", "label_key", "label"),
        ("trec_fine", "trec", "fine_label_key", "fine_label"),
    ],
)
def test_the_hubs_label_names_are_written_as_in_the_data_folder(
    name: str, folder: str, key: str, written: str, data_dir: Path
):
    labels = load_task(name).labels
    assert labels is not None
    lines = (data_dir / folder / "train.jsonl").read_text("utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    keys = {row[key] for row in rows}
    assert {row[key]: row[written] for row in rows} == {k: labels.written(k) for k in keys}
    assert set(labels.names) <= keys


def test_an_empty_name_is_no_folder():
    with pytest.raises(UserError, match=r"^no task ''; known: .*banking77"):
        load_task("")


def test_a_mistyped_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"no task 'bankng77'; did you mean banking77\?"):
        load_task("bankng77")


@pytest.mark.parametrize("name", ["tasks/nothing", "nothing.yaml", "nothing.YML"])
def test_a_name_with_a_separator_or_a_yaml_ending_is_a_path(name: str):
    with pytest.raises(UserError, match=f"{name}: cannot be read: No such file"):
        load_task(name)


def test_data_paths_are_relative_to_the_task_file(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(TASK.replace("test.csv", "/elsewhere/test.csv"))
    spec = load_task(str(path))
    assert spec.data.train == tmp_path / "train.jsonl"
    assert spec.data.test == Path("/elsewhere/test.csv")


def test_tasks_are_found_in_the_package_before_the_source_checkout(monkeypatch, tmp_path: Path):
    (tmp_path / "task_files").mkdir()
    (tmp_path / "task_files" / "mine.yaml").write_text(TASK)
    monkeypatch.setattr(taskfile, "package_files", lambda _: tmp_path)
    assert known_tasks() == ("mine",)
    assert load_task("mine").name == "mine"


def test_an_unknown_field_is_named_with_its_line_and_the_nearest_known_one(complaint):
    message = complaint(TASK.replace("template:", "templat:"))
    assert message == ":6: templat: unknown field; did you mean template or test?"


def test_an_unknown_field_inside_another_is_compared_with_the_fields_there(complaint):
    message = complaint(TASK.replace("  train: ", "  trian: "))
    assert message == ":3: data.trian: unknown field; did you mean train?"


@pytest.mark.parametrize("field", ["data", "metrics"])
def test_a_python_function_is_told_as_one(tmp_path: Path, field: str):
    path = tmp_path / "own.yaml"
    path.write_text(f"name: own\n{field}: !function utils.made\n")
    with pytest.raises(
        UserError, match=rf"own\.yaml:2: {field}: a Python function \(utils\.made\), which icl-bench never calls"
    ):
        load_task(path)


def test_a_missing_field_is_named_with_the_line_it_belongs_under(complaint):
    message = complaint(TASK.replace('  output: "intent: {label}"\n', ""))
    assert message == ":6: template.output: is missing"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[accuracy]", "accuracy", ":10: metrics: Input should be a valid tuple, not 'accuracy'"),
        ("[accuracy]", "[speed]", ":10: metrics[0]: 'speed' is not a metric; known: accuracy, "),
        ("[accuracy]", "[rouge]", ":1: metric rouge is for free text"),
        ("[accuracy]", "[]", ":10: metrics: Tuple should have at least 1 item after validation"),
        ("{label}", "{label} x", ":6: template: output must hold one field, the answer, at its"),
        ('{text}"', '{txt}"', ":1: the template uses {txt}, which data.fields does not name"),
        ("name: mine", "name: my task", ":1: name: String should match pattern"),
        ("words", "loud", ":9: labels.style: Input should be 'words', 'as-is' or 'letters', not"),
        ("  test: test.csv\n", "", ":2: data: give both train and test files: test is missing"),
        ("style: words", "names: {a_b: {c: d}}", ":9: labels.names.a_b: Input should be a valid"),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_what_was_expected(complaint, old, new, message):
    assert complaint(TASK.replace(old, new)).startswith(message)


def test_a_wrong_item_of_a_list_of_test_ids_is_named_with_its_place(complaint):
    message = complaint(TASK + "test:\n  ids:\n  - a\n  - 7\n")
    assert message == ":14: test.ids[1]: Input should be a valid string, not 7"


def test_a_key_that_stands_twice_is_an_error_and_not_the_last_one(complaint):
    message = complaint(TASK.replace("labels:", "metrics: [macro_f1]\nlabels:"))
    assert message == ":11: metrics appears twice"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": a task file holds fields (name: …), and this one is empty"),
        ("- a\n- b\n", ": a task file holds fields (name: …), and this one is a list"),
        ("name: [\n", ":2: not YAML: "),
        ("a: 1\n---\nb: 2\n", ":2: not YAML: but found another document"),
        ("name: !!python/name:os.system x\n", ":1: not YAML: could not determine a constructor"),
        ("when: 2001-13-45\n", ": not YAML: month must be in 1..12"),
        (b"name: \xff\n", ":1: not UTF-8 (byte 0xff)"),
        ("a: &a [*a]\n", ":1: an alias is inside its own anchor"),
        ("[" * 500, ": not a task file: nested too deeply"),
    ],
)
def test_what_is_not_a_task_file_is_refused_in_one_line(complaint, text, message):
    assert complaint(text).startswith(message)


@pytest.mark.parametrize("number", ["010", "-010", "0_7", "1:30", "1:30.5"])
def test_a_number_that_yaml_reads_in_another_base_is_refused_with_its_line(complaint, number):
    message = complaint(TASK + f"test:\n  size: {number}\n")
    assert message.startswith(f":12: {number} is another number in YAML than it looks like")


@pytest.mark.parametrize(
    ("field", "line", "place"),
    [
        ("test: {size: true}", 11, "test.size"),
        ("test:\n  seed: yes", 12, "test.seed"),
        ("max_answer_tokens: true", 11, "max_answer_tokens"),
        ("pool: {drop_longest: off}", 11, "pool.drop_longest"),
    ],
)
def test_true_and_false_are_no_numbers(complaint, field, line, place):
    message = complaint(TASK + field + "\n")
    assert message.startswith(f":{line}: {place}: expected a number, not ")


def test_a_template_that_would_show_the_same_query_for_all_rows_is_refused(complaint):
    for same in ("query:", "query: {{text}}"):
        message = complaint(TASK.replace("query: {text}", same))
        assert message.startswith(":6: template: input must show a field of the row, like {text}:")


def test_a_field_whose_braces_are_doubled_is_refused(complaint):
    message = complaint(TASK.replace('query: {text}"', 'query: {text} {{text}}"'))
    assert message.startswith(":1: the template writes {{text}}, which shows the word text in")


def test_braces_that_name_no_field_are_shown(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(TASK.replace("query: {text}", "f() {{return {text}}}"))
    assert load_task(tmp_path / "a.yaml").template.input_fields == ("text",)


BOMBS = {
    "aliases": "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)),
    "merges": "a0: &a0 {x: y}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60)),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_whose_aliases_repeat_each_other_without_measure_is_refused(complaint, bomb):
    message = complaint(BOMBS[bomb])
    assert re.fullmatch(r":\d+: more than 100,000 values, with aliases expanded", message)


def test_anchors_and_merges_are_taken_otherwise(tmp_path: Path):
    merged = TASK.replace("labels: {", "labels: {<<: {names: {a: b}}, ").replace("text: text", "text: &column text")
    (tmp_path / "a.yaml").write_text(merged.replace("label: label", "label: *column"))
    spec = load_task(tmp_path / "a.yaml")
    assert spec.labels is not None
    assert (spec.labels.names, spec.data.fields["label"]) == ({"a": "b"}, "text")


def test_an_unknown_field_that_comes_by_a_merge_is_named(complaint):
    merged = TASK.replace("labels: {", "labels: {<<: {colour: red}, ")
    assert (
        complaint(merged)
        == ":9: labels.colour: unknown field; known: choices, empty, gold, merge, names, normalize, style"
    )
