"""The card in a kept folder has a program that gives the stored predictions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fakes import row, write_rows, write_task
from support.models import gpt2_tokenizer, qwen_tokenizer, tiny_checkpoint

from icl_bench import __version__
from icl_bench.models import registry
from icl_bench.models.trained import ADAPTED_PATTERN
from icl_bench.results.cells import Identity
from icl_bench.results.reading import read_results
from icl_bench.training import finetune
from icl_bench.training.card import CARD, card, snippet
from icl_bench.training.examples import Examples
from icl_bench.training.finetune import LABELS, Finetuning
from icl_bench.training.interface import TrainingRun
from icl_bench.training.spec import FinetuneSpec

METHODS = ("knn", "encoder-probe", "probe", "lora", "full")


def prepared(tmp_path: Path, model: Path, method: str, task: Path | None = None, **changes: Any) -> Finetuning:
    """A training of a classifier that is kept in the folder ``kept``."""
    task = task or write_task(tmp_path / "task", train_rows=120, test_rows=30)
    options: dict[str, Any] = {"k": "60", "draws": 1, "epochs": 3, "device": "cpu", "dtype": "float32", **changes}
    options |= {"method": (method,), "keep_checkpoints": tmp_path / "kept"}
    return Finetuning.prepare(FinetuneSpec(task=str(task), model=str(model), **options))


def stored(made: Finetuning, tmp_path: Path) -> list[str]:
    """Train; the method's stored predictions, in the order of the test rows."""
    assert not made.run(tmp_path / "results").failed
    frame = read_results(tmp_path / "results")
    frame = frame[frame["select"] == made.spec.method[0]].set_index("test_id")
    expected = [str(frame.loc[example.id, "prediction"]) for example in made.task.data.test]
    assert len(set(expected)) > 1, "else any program would pass"
    return expected


def kept(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "kept").iterdir()
    return folder


def program(folder: Path, model: Path) -> str:
    """The only program of the card, with the path of a model's folder instead of its name."""
    (_, after) = (folder / CARD).read_text(encoding="utf-8").split("```python\n")
    text, _, _ = after.partition("```\n")
    return text.replace(f"MODEL = {model.name!r}  # the name of a folder", f"MODEL = {str(model)!r}  #")


def classifier(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any]], list[str]]:
    """The function of the card's program, which runs in the folder."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(compile(program(folder, model), CARD, "exec"), names)
    classify: Callable[[list[Any]], list[str]] = names["classify"]

    def checked(of: list[Any]) -> list[str]:
        rows, found = names["probabilities"](of), classify(of)
        assert [sum(row.values()) for row in rows] == pytest.approx([1] * len(of), abs=1e-5)
        assert all(row[label] == max(row.values()) for row, label in zip(rows, found, strict=True))
        return found

    return checked


def texts(made: Finetuning, field: str = "text") -> list[str]:
    return [example.fields[field] for example in made.task.data.test]


def run_of(made: Finetuning) -> TrainingRun:
    return made.methods[made.spec.method[0]].run


def identity_of(made: Finetuning) -> Identity:
    return made.identity(made.spec.method[0], Examples(made.task, 0, 60))


@pytest.mark.parametrize("method", METHODS)
def test_the_program_gives_the_stored_predictions(
    tmp_path: Path, tiny: Path, method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    made = prepared(tmp_path, tiny, method)
    expected = stored(made, tmp_path)
    assert classifier(kept(tmp_path), tiny, monkeypatch)(texts(made)) == expected
    first, second = capsys.readouterr().out.splitlines()
    for line, text in ((first, "first text"), (second, "second text")):
        shown = re.fullmatch(rf"(.+) \((0\.\d\d|1\.00)\): {text}", line)
        assert shown is not None
        assert shown[1] in made.task.data.labels


@pytest.mark.parametrize(
    ("family", "tokenizer", "method"),
    [
        ("gemma3_text", gpt2_tokenizer, "probe"),
        ("gemma3_text", gpt2_tokenizer, "lora"),
        ("gemma3_text", gpt2_tokenizer, "full"),
        ("qwen2", qwen_tokenizer, "lora"),
        pytest.param("qwen2", qwen_tokenizer, "probe", marks=pytest.mark.thorough),
        pytest.param("qwen2", qwen_tokenizer, "full", marks=pytest.mark.thorough),
    ],
)
def test_the_program_gives_them_with_other_models(
    tmp_path: Path, family: str, tokenizer: Callable[[], Any], method: str, monkeypatch: pytest.MonkeyPatch
):
    model = tiny_checkpoint(tmp_path / "other", family, tokenizer())
    made = prepared(tmp_path, model, method)
    expected = stored(made, tmp_path)
    assert classifier(kept(tmp_path), model, monkeypatch)(texts(made)) == expected


@pytest.mark.parametrize("method", ["probe", "lora"])
def test_in_a_16_bit_format_rounding_changes_few_answers(
    tmp_path: Path, tiny: Path, method: str, monkeypatch: pytest.MonkeyPatch
):
    made = prepared(tmp_path, tiny, method, dtype="bfloat16")
    expected = stored(made, tmp_path)
    found = classifier(kept(tmp_path), tiny, monkeypatch)(texts(made))
    assert sum(one == other for one, other in zip(found, expected, strict=True)) >= 0.8 * len(expected)
    assert "bfloat16" in program(kept(tmp_path), tiny)


@pytest.mark.parametrize("method", ["encoder-probe", "probe"])
def test_a_task_of_several_fields_is_asked_for_rows(
    tmp_path: Path, tiny: Path, method: str, monkeypatch: pytest.MonkeyPatch
):
    template = {"input": "{{query}}: {class} - {text}", "output": "{{intent}}: {label}"}
    fields = {"class": "class", "text": "text", "label": "label"}
    data = {"train": "train.jsonl", "test": "test.jsonl", "fields": fields}
    task = write_task(tmp_path / "task", template=template, data=data)
    for name, rows in (("train", range(200)), ("test", range(1000, 1030))):
        write_rows(task.with_name(f"{name}.jsonl"), [{**row(i), "class": f"class {{{i % 7}}}"} for i in rows])
    made = prepared(tmp_path, tiny, method, task)
    expected = stored(made, tmp_path)
    rows: list[Mapping[str, str]] = [example.fields for example in made.task.data.test]
    assert classifier(kept(tmp_path), tiny, monkeypatch)(rows) == expected
    assert "texts = [{'class': 'first class', 'text': 'first text'}, {" in program(kept(tmp_path), tiny)


@pytest.mark.parametrize("method", ["knn", "probe"])
def test_a_jinja_template_has_rendered_its_input_before(
    tmp_path: Path, tiny: Path, method: str, monkeypatch: pytest.MonkeyPatch
):
    template = {"engine": "jinja", "start": "{Sort} it.\n", "input": "Q: {{text}}\nA:", "output": "label"}
    changes = {"template": template, "data": {"train": "train.jsonl", "test": "test.jsonl"}}
    made = prepared(tmp_path, tiny, method, write_task(tmp_path / "task", train_rows=200, test_rows=30, **changes))
    expected = stored(made, tmp_path)
    assert classifier(kept(tmp_path), tiny, monkeypatch)(texts(made, "input")) == expected
    assert "\n    'Q: {{text}}\\nA:'\n" in (kept(tmp_path) / CARD).read_text()


@pytest.mark.parametrize("method", ["probe", "lora", "full"])
def test_an_adapted_model_keeps_its_attention_pattern(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch):
    model = tiny_checkpoint(tmp_path / "adapted")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, ADAPTED_PATTERN: "approx:2,2"}))
    made = prepared(tmp_path, model, method)
    expected = stored(made, tmp_path)
    assert classifier(kept(tmp_path), model, monkeypatch)(texts(made)) == expected
    plain = program(kept(tmp_path), model).replace("model = as_adapted(", "as_other = (")
    names: dict[str, Any] = {}
    exec(compile(plain, CARD, "exec"), names)
    assert names["classify"](texts(made)) != expected, "else the pattern would not matter here"


def test_a_model_of_the_hub_is_loaded_from_there_at_its_commit(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny, "lora")
    made.task.model = replace(made.task.model, name="org/name", fingerprint="hub:org/name@0ab1")
    found = card(run_of(made), identity_of(made))
    assert found is not None
    assert "\nbase_model: org/name\n" in found
    assert "\nMODEL, REVISION = 'org/name', '0ab1'\n" in found
    assert found.count("from_pretrained(MODEL, revision=REVISION)") == 1
    assert "    MODEL, revision=REVISION, num_labels=len(labels)" in found
    assert "icl_bench" not in found
    compile(snippet(run_of(made), "lora"), CARD, "exec")


def test_an_adapter_is_merged_again_with_its_base_of_the_same_commit(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny, "probe")
    fingerprint = "adapter:files-sha256:12+base:hub:org/name@0ab1"
    made.task.model = replace(made.task.model, name="tuned", requested_name="/my/tuned", fingerprint=fingerprint)
    found = card(run_of(made), identity_of(made))
    assert found is not None
    program = "MODEL = resolve('tuned', commit_of={'org/name': '0ab1'}.get).source"
    assert f"\n{program}  # the name of a folder: give its path instead\n" in found


def test_a_packaged_model_is_prepared_by_icl_bench(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch):
    made = prepared(tmp_path, tiny, "probe")
    made.task.model = replace(made.task.model, name="gemma3-270m", requested_name="gemma3-270m")
    expected = stored(made, tmp_path)
    monkeypatch.setattr(registry, "resolve", lambda name: SimpleNamespace(source={"gemma3-270m": str(tiny)}[name]))
    assert classifier(kept(tmp_path), tiny, monkeypatch)(texts(made)) == expected
    assert (
        "the Python environment of icl-bench (`pip install 'icl-bench[gemma]'`)." in (kept(tmp_path) / CARD).read_text()
    )


@pytest.mark.parametrize("method", ["knn", "probe", "lora"])
def test_the_card_names_the_cell_and_no_path(tmp_path: Path, tiny: Path, method: str):
    made = prepared(tmp_path, tiny, method)
    stored(made, tmp_path)
    text = (kept(tmp_path) / CARD).read_text()
    network = "all-MiniLM-L6-v2" if method == "knn" else f"tiny, {made.task.model.fingerprint}"
    for fact in ("cards, 3 labels", f"{method}: ", network, "60 examples", "0, counted from 0", __version__):
        assert f" | {fact}" in text
    assert f"| cell | {identity_of(made).cell} |" in text
    assert kept(tmp_path).name.endswith(identity_of(made).cell)
    for path in (tmp_path, tiny.parent, Path.home()):
        assert str(path) not in text


def test_the_labels_are_written_after_the_card(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch):
    written: list[str] = []
    monkeypatch.setattr(finetune, "write_whole", lambda path, _: written.append(path.name))
    prepared(tmp_path, tiny, "probe").run(tmp_path / "results")
    assert written == [CARD, LABELS]


def test_a_method_of_another_package_describes_its_folder_itself(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny, "knn")
    named = identity_of(made)
    other = replace(named, spec=named.spec.model_copy(update={"select": "majority"}))
    assert card(run_of(made), other) is None
