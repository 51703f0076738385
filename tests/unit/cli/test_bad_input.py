"""Whatever a file holds, it loads or is refused with a message of one or two lines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icl_bench.errors import UserError
from icl_bench.tasks.data_report import report_on
from icl_bench.tasks.examples import TaskData, load_data
from icl_bench.tasks.spec import TaskSpec
from icl_bench.tasks.task_files import load_task

TASK: dict[str, Any] = {
    "name": "mine",
    "data": {"train": "train.jsonl", "test": "test.jsonl", "fields": {"text": "t", "label": "l"}},
    "template": {"input": "query: {text}", "output": "intent: {label}"},
    "labels": {"style": "words"},
    "metrics": ["accuracy"],
    "test": {"size": 2},
}
GOOD = b'{"t": "a", "l": "x_y"}\n{"t": "b", "l": "z"}\n'

quiet = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**4400, max_value=10**4401),
    st.floats(),
    st.text(max_size=8),
    st.text(st.characters(codec=None), max_size=4),
    st.sampled_from(["t", "l", "{", "{text}", "{label}", "paper", "a\nb", " ", "x_y", "x y"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


def refused(error: pytest.ExceptionInfo[UserError] | UserError) -> None:
    message = str(error)
    assert message
    assert message.count("\n") <= 1
    assert len(message) < 1_000
    message.encode()


def read_task(path: Path, content: bytes) -> TaskSpec | None:
    path.write_bytes(content)
    for name in ("train.jsonl", "test.jsonl"):
        (path.parent / name).write_bytes(GOOD)
    try:
        spec = load_task(path)
        if spec.data.train is not None:
            load_data(spec)
        return spec
    except UserError as error:
        refused(error)
        return None


def read_rows(folder: Path, content: bytes, name: str) -> TaskData | None:
    (folder / name).write_bytes(content)
    (folder / "test.jsonl").write_bytes(GOOD)
    spec = TaskSpec.model_validate(TASK)
    paths = {"train": folder / name, "test": folder / "test.jsonl"}
    spec = spec.model_copy(update={"data": spec.data.model_copy(update=paths)})
    try:
        rows = load_data(spec)
    except UserError as error:
        refused(error)
        return None
    report_on(rows)
    return rows


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a tree with one branch, at a path of keys, replaced or added."""
    if not path:
        return value
    return {**tree, path[0]: replaced(tree.get(path[0], {}), path[1:], value)}


branches = st.sampled_from(
    [
        *[(name,) for name in [*TASK, "pool", "max_answer_tokens", "license", "nonsense"]],
        *[("data", name) for name in ["train", "fields", "hub", "folder", "embedded", "a\nb"]],
        *[("template", name) for name in ["input", "output", "separator", "\ud800"]],
        *[("test", name) for name in ["ids", "size", "seed"]],
        *[("labels", name) for name in ["names", "style", 3]],
    ]
)


@quiet
@given(st.binary(max_size=200))
def test_any_bytes_are_a_task_or_refused(tmp_path: Path, content: bytes):
    read_task(tmp_path / "mine.yaml", content)


@quiet
@given(st.text("ab:- \n[]{}&*!|>'\"#%@,?<~.=0\t", max_size=60))
def test_anything_that_looks_like_yaml_is_a_task_or_refused(tmp_path: Path, content: str):
    read_task(tmp_path / "mine.yaml", content.encode())


@quiet
@given(branches, values)
def test_a_task_with_any_value_anywhere_is_a_task_or_refused(tmp_path: Path, branch: tuple[Any, ...], value: Any):
    content = json.dumps(replaced(TASK, branch, value)) if not huge(value) else "a: 0x" + "f" * 9999
    read_task(tmp_path / "mine.yaml", content.encode())


def huge(value: Any) -> bool:
    """Whether a value holds a whole number that Python does not print."""
    if isinstance(value, dict | list):
        return any(huge(v) for v in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and value.bit_length() > 10_000


@pytest.mark.parametrize(
    "content",
    [
        "a: !!int x",
        "a: !!int ''",
        "a: !!float ''",
        "a: !!bool x",
        "a: !!timestamp x",
        "a: !!binary '%'",
        "? [1]\n: 2",
        "? {a: 1}\n: 2",
        "a: &x {<<: *x}",
        "<<: 3",
        "1: 2",
        "2001-01-01: 3",
        "a: 0x" + "f" * 9999,
        "max_answer_tokens: 0x" + "f" * 9999,
        "a: " + "9" * 9999,
        "a: !!set {b}",
        "a: &a [&b {c: *a}, *b]",
        "%YAML 9.9\n---\na: 1",
    ],
)
def test_yaml_that_its_own_reader_stumbles_over_is_refused(tmp_path: Path, content: str):
    for whole in (content, yaml.safe_dump(TASK) + content):
        assert read_task(tmp_path / "mine.yaml", whole.encode()) is None


@quiet
@given(st.binary(max_size=200), st.sampled_from(["", ".gz"]), st.booleans())
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_any_bytes_are_rows_or_refused(tmp_path: Path, suffix: str, content: bytes, ending: str, packed: bool):
    content = gzip.compress(content) if packed else content
    read_rows(tmp_path, content, f"train{suffix}{ending}")


@quiet
@given(st.lists(st.text('tl,"\n\r;a ', max_size=12), max_size=6))
def test_anything_that_looks_like_csv_is_rows_or_refused(tmp_path: Path, lines: list[str]):
    read_rows(tmp_path, "\n".join(["t,l", *lines]).encode(), "train.csv")


@quiet
@given(st.lists(st.fixed_dictionaries({"t": values, "l": values}, optional={"id": values}), max_size=4))
def test_any_json_rows_load_unchanged_or_are_refused(tmp_path: Path, rows: list[dict[str, Any]]):
    if huge(rows):
        rows = [{"t": "a", "l": 1e308}]
    content = GOOD + "".join(json.dumps(row) + "\n" for row in rows).encode()
    data = read_rows(tmp_path, content, "train.jsonl")
    if data is None:
        return
    texts = [row["t"] for row in rows if isinstance(row["t"], str) and row["t"].strip()]
    assert [row.fields["text"] for row in data.train] == ["a", "b", *texts]
    assert data.left_out["train"] == len(rows) - len(texts)
    assert all(label == label.strip() and label.splitlines() == [label] for label in data.labels)
