"""A cell's file keeps the command, without what is private of the person who ran it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fakes import FakeBackend, plan, runner

from icl_bench.results.reading import finished_cells
from icl_bench.sweep.this_run import cleaned, command, without_home


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ('extra_headers={"Authorization": "Bearer abc.def"}', "abc.def"),
        ("api_key=abcdef", "abcdef"),
        ("API-KEY: abcdef", "abcdef"),
        ("https://host/v1?api-key=abcdef&x=1", "abcdef"),
        ("password=a b c", "a b c"),
        ("x=sk-abcdefghijklmnopqrstuvwx", "abcdefghij"),
        ("hf_abcdefghijklmnopqrstuvwx", "abcdefghij"),
        ("https://me:abcdef@host/v1", "abcdef"),
    ],
)
def test_no_secret_of_the_command_line_is_kept(word: str, kept: str):
    assert kept in word
    said = command(["icl-bench", "run", "--server-arg", word, "--k", "1"])
    assert said is not None
    assert kept not in said
    assert said.endswith("--k 1")


@pytest.mark.parametrize(
    "word", ["max_tokens=900", "author=me", "skip-this-long-name-of-a-model-folder", "--tokenizer"]
)
def test_what_is_no_secret_is_kept(word: str):
    assert command(["icl-bench", "run", word]) == f"icl-bench run {word}"


def test_the_home_folder_is_a_tilde(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/ann")
    words = ["icl-bench", "run", "--model", "/home/ann/m", "--task=/home/ann/t.yaml", "--results", "/home/anna/r"]
    assert command(words) == "icl-bench run --model ~/m '--task=~/t.yaml' --results /home/anna/r"
    assert without_home("/x/home/ann/m") == "/x/home/ann/m"
    assert Path(without_home("/home/ann/m")).expanduser() == Path("/home/ann/m")


def test_a_stored_command_is_whole_and_a_shell_finds_the_home_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/ann")
    words = ["icl-bench", "run", "--model", "/home/ann/a b", "--results", "/home/ann/", "--k", ",".join(["10"] * 200)]
    assert cleaned(words) == f"icl-bench run --model ~/'a b' --results ~/ --k {words[-1]}"
    assert "secret" not in cleaned(["icl-bench", "x" * 380, "https://me:secretsecretsecret@host"])


def test_a_folder_whose_name_is_not_utf_8_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("sys.argv", ["icl-bench", "run", "--data-dir", "\udcff"])
    runner(plan(tmp_path / "task", "1"), tmp_path / "results", FakeBackend()).run()
    assert {meta.run.command for _, meta in finished_cells(tmp_path / "results")} == {
        "icl-bench run --data-dir '\udcff'"
    }
