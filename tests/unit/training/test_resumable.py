"""The folder of a long training: what is whole in it, whatever moment a process was killed at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from icl_bench.errors import UserError
from icl_bench.models.trained import LOG
from icl_bench.training.resumable import CHECKPOINTS, STARTED, TrainingFolder


@pytest.fixture
def folder(tmp_path: Path) -> TrainingFolder:
    return TrainingFolder(tmp_path / "out", {"rate": 0.1})


def test_a_checkpoint_without_its_log_is_removed_and_not_taken(folder: TrainingFolder):
    unfinished = folder.begin()
    for step in (3, 12, 6):
        (unfinished / f"checkpoint-{step}").mkdir()
        (unfinished / f"checkpoint-{step}" / "trained.safetensors").write_text("half")
    assert (unfinished / f"checkpoint-{3}" / LOG).write_text("{}")
    assert folder.last_checkpoint() == (unfinished / "checkpoint-3", 3)
    assert [path.name for path in unfinished.glob("checkpoint-*")] == ["checkpoint-3"]
    (unfinished / "checkpoint-3" / LOG).unlink()
    assert folder.last_checkpoint() == (None, 0)


def test_a_training_that_was_killed_before_its_first_file_begins_anew(folder: TrainingFolder):
    assert not folder.is_done()
    folder.unfinished.mkdir(parents=True)
    assert not folder.is_done()
    (folder.unfinished / ".writing-0123456789abcdef.json").write_text('{"ra')
    assert not folder.is_done()
    (folder.out / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        folder.is_done()


def test_what_a_kill_left_of_the_settings_is_whole(folder: TrainingFolder, monkeypatch: pytest.MonkeyPatch):
    folder.begin()

    def killed(_: Path, __: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.begin()
    assert json.loads((folder.unfinished / STARTED).read_text()) == {"rate": 0.1}
    assert not folder.is_done()


def test_a_log_that_is_there_says_that_all_is_done_and_leftovers_go(folder: TrainingFolder):
    folder.begin()
    (folder.out / LOG).write_text(json.dumps({"settings": {"rate": 0.1}}))
    assert folder.is_done()
    folder.remove_unfinished()
    folder.remove_unfinished()
    assert [path.name for path in folder.out.iterdir()] == [LOG]
    assert CHECKPOINTS not in {path.name for path in folder.out.iterdir()}


def test_half_of_a_copied_tokenizer_is_never_there(folder: TrainingFolder, monkeypatch: pytest.MonkeyPatch):
    source = folder.out.parent / "base"
    source.mkdir()
    (source / "tokenizer.json").write_text("x" * 1000)
    folder.out.mkdir()

    def killed(_: Path, __: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.write_tokenizer(source)
    assert not (folder.out / "tokenizer.json").exists()
    folder.write_tokenizer(source)
    assert (folder.out / "tokenizer.json").read_text() == "x" * 1000
