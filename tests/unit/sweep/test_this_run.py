"""A cell's file keeps the command, without what is private of the person who ran it."""

from __future__ import annotations

from pathlib import Path

import pytest

from icl_bench.sweep.this_run import command, without_home


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
    assert command(words) == "icl-bench run --model '~/m' '--task=~/t.yaml' --results /home/anna/r"
    assert without_home("/x/home/ann/m") == "/x/home/ann/m"
    assert Path(without_home("/home/ann/m")).expanduser() == Path("/home/ann/m")
