"""Files of demonstrations that were written by hand, and the pools that they make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icl_bench.demonstrations.pool import DemonstrationPool
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task
from icl_bench.tasks.worked_examples import MARK, read_pool

TASK = """\
name: mine
data:
  {data}
template: {{engine: jinja, input: "Q: {{{{input}}}}\\nA:", output: target, separator: "\\n\\n"}}
labels: {{choices: ["yes", "no"]}}
metrics: [accuracy]
pool: {{file: {file}}}
"""
WORKED = """\
Is it so?

Q: b?
is it?
A: Let's think. b is so. So the answer is yes.

Q: a?
A: no
"""


def rows_file(path: Path) -> Path:
    rows = [{"id": f"r{i}", "input": f"q{i}?", "target": ["yes", "no"][i % 2]} for i in range(8)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def task(folder: Path, file: str, content: str | None) -> Path:
    rows_file(folder / "rows.jsonl")
    if content is not None:
        (folder / file).write_text(content)
    path = folder / "mine.yaml"
    path.write_text(TASK.format(data="file: rows.jsonl\n  holdout: {share: 0.5, seed: 1}", file=file))
    return path


# -- reading ------------------------------------------------------------------------------------


def test_an_example_is_a_question_a_thought_and_an_answer(tmp_path: Path):
    (tmp_path / "worked.txt").write_text(WORKED)
    first, second = read_pool(tmp_path / "worked.txt", {}).rows
    assert first.cells == {"input": "b?\nis it?", "target": "yes", "rationale": "Let's think. b is so. "}
    assert first.where.endswith("worked.txt:3")
    assert second.cells == {"input": "a?", "target": "no", "rationale": ""}


plain = st.text(st.characters(codec="utf-8", exclude_characters="\r\n", exclude_categories=["Cc", "Z"]), min_size=1)
examples = st.lists(st.tuples(plain, plain, plain), min_size=1, max_size=5)


@given(examples, st.sampled_from(["", "A task.\n\n"]), st.sampled_from(["\n", "\r\n"]))
def test_what_is_written_is_read_again(tmp_path_factory, rows, start, end):
    path = tmp_path_factory.mktemp("worked") / "a.txt"
    text = start + "\n\n".join(f"Q: {q}\nA: {thought} {MARK}{answer}." for q, thought, answer in rows) + "\n"
    path.write_bytes(text.replace("\n", end).encode())
    found = [tuple(row.cells[name] for name in ("input", "rationale", "target")) for row in read_pool(path, {}).rows]
    assert found == [(q, f"{thought} ", answer) for q, thought, answer in rows]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "Nothing here.\n", r'a\.txt: holds no example; expected examples of "Q: "'),
        ("a.txt", "Q: one?\nB: two\n", r"a\.txt:1: expected examples"),
        ("a.txt", "Q: one?\nA: yes\n\nQ: two?\nA: \n", r"a\.txt:4: expected examples"),
        (
            "a.txt",
            "Q: a or b?\nA: red\nB: blue\nA: yes\n",
            r'a\.txt:1: this example has several lines that begin with "A:"',
        ),
        ("a.txt", "Q: one?\nA: yes\n\nQ:two?\nA: no\n", r"a\.txt:1: this example has several lines"),
        ("a.md", "Q: one?\nA: yes\n", r"a\.md: pool\.file is a file of rows, or a prompt in text \(\.txt\)"),
        ("a.txt", "Q: one?\nA: perhaps\n", "perhaps"),
        ("a.txt", None, r"a\.txt"),
    ],
)
def test_what_is_no_file_of_examples_is_refused_in_one_line(tmp_path: Path, name, content, message):
    with pytest.raises(UserError, match=message) as error:
        load_data(load_task(task(tmp_path, name, content)))
    assert "\n" not in str(error.value)


# -- the pool -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["worked.txt", "worked.jsonl"])
def test_the_pool_is_the_file_and_the_test_rows_stay(tmp_path: Path, name: str):
    lines = '{"input": "b?\\nis it?", "target": "yes", "note": 1}\n{"input": "a?", "target": "no"}\n'
    spec = load_task(task(tmp_path, name, WORKED if name.endswith("txt") else lines))
    data = load_data(spec)
    bare = load_data(spec.model_copy(update={"pool": spec.pool.model_copy(update={"file": None})}))
    assert [row.answer for row in data.train] == ["yes", "no"]
    assert [row.fields["input"] for row in data.train] == ["Q: b?\nis it?\nA:", "Q: a?\nA:"]
    assert data.test == bare.test
    assert data.files != bare.files
    assert name in data.files


def test_a_file_in_the_data_folder_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ICL_BENCH_DATA", raising=False)
    path = tmp_path / "mine.yaml"
    path.write_text(TASK.format(data="embedded: stdlib", file="w.txt"))
    with pytest.raises(UserError, match=r"w\.txt"):
        load_data(load_task(path))
    rows_file(tmp_path / "data" / "set" / "rows.jsonl")
    (tmp_path / "data" / "set" / "w.txt").write_text(WORKED)
    spec = "folder: set\n  file: rows.jsonl\n  holdout: {share: 0.5, seed: 1}"
    path.write_text(TASK.format(data=spec, file="w.txt"))
    assert len(load_data(load_task(path), data_dir=tmp_path / "data").train) == 2


def test_first_is_the_pool_in_its_own_order_and_has_one_draw(tmp_path: Path):
    data = load_data(load_task(task(tmp_path, "worked.txt", WORKED)))
    import numpy as np

    pool, spec = DemonstrationPool(data, np.arange(2), 0, tmp_path), SelectorSpec.parse("first")
    assert [pool.shared(spec, draw, 2).tolist() for draw in (0, 5)] == [[0, 1], [0, 1]]
    assert (str(spec), spec.shared, spec.nested, spec.drawn) == ("first", True, True, False)
    assert (SelectorSpec.parse("first+hybrid:1").drawn, SelectorSpec.parse("hybrid:1").drawn) == (False, True)
