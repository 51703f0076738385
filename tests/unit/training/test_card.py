"""The card in a kept folder has a program that gives the stored predictions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fakes import row, write_rows, write_task
from support.models import gpt2_tokenizer, qwen_tokenizer, tiny_checkpoint

from icl_bench import __version__
from icl_bench.models import registry
from icl_bench.results.reading import finished_cells, read_results
from icl_bench.training.card import CARD
from icl_bench.training.finetune import LABELS, Finetuning
from icl_bench.training.spec import FinetuneSpec

METHODS = ("knn", "encoder-probe", "probe", "lora", "full")


def trained(tmp_path: Path, model: Path | str, method: str, task: Path | None = None, **changes: Any) -> Finetuning:
    """A training whose classifier is in the only folder of ``kept``."""
    task = task or write_task(tmp_path / "task", train_rows=200, test_rows=30)
    options: dict[str, Any] = {"k": "60", "draws": 1, "epochs": 3, "device": "cpu", "dtype": "float32", **changes}
    spec = FinetuneSpec(
        task=str(task), model=str(model), method=(method,), keep_checkpoints=tmp_path / "kept", **options
    )
    made = Finetuning.prepare(spec)
    assert not made.run(tmp_path / "results").failed
    return made


def kept(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "kept").iterdir()
    return folder


def program_in(card: str) -> str:
    (_, found) = card.split("```python\n")
    return found.split("```\n")[0]


def classifies(folder: Path, model: Path | str, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Any]], list[str]]:
    """The function of the card's program, run as a user would: in the folder, with the model's path."""
    program = program_in((folder / CARD).read_text())
    placeholder = f"MODEL = {Path(model).name!r}  # replace it by the path of this folder"
    program = program.replace(placeholder, f"MODEL = {str(model)!r}")
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(compile(program, str(folder / CARD), "exec"), names)
    classify: Callable[[list[Any]], list[str]] = names["classify"]
    return classify


def stored(made: Finetuning, tmp_path: Path) -> list[str]:
    """The stored predictions of the method, in the order of the test rows."""
    frame = read_results(tmp_path / "results")
    frame = frame[frame["select"] == made.spec.method[0]].set_index("test_id")
    return [str(frame.loc[example.id, "prediction"]) for example in made.task.data.test]


def texts(made: Finetuning) -> list[str]:
    return [example.fields["text"] for example in made.task.data.test]


@pytest.mark.parametrize("method", METHODS)
def test_the_cards_program_gives_the_stored_predictions(
    tmp_path: Path, tiny: Path, method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    made = trained(tmp_path, tiny, method)
    expected = stored(made, tmp_path)
    assert len(set(expected)) > 1, "else any program would pass"
    classify = classifies(kept(tmp_path), tiny, monkeypatch)
    assert classify(texts(made)) == expected
    printed = capsys.readouterr().out
    assert printed.startswith("['") and printed.count("', '") == 1


