"""A chat model as a user runs it: SmolLM2 135M Instruct, conversations beside plain prompts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.program import Run, as_words

import icl_bench
from icl_bench.models.packaged_smollm2 import SMOLLM2_135M

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SMOLLM2_135M.is_installed(), reason=f"needs {SMOLLM2_135M.install}"),
]

ASKED = as_words("run --task stdlib_six --model smollm2-135m-instruct --k 0,2,6 --draws 1 --test-size 3")
SYSTEM = "Name the module that a sentence is from."


@pytest.fixture(scope="module")
def chats(program_here: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder with plain prompts, turns and single messages."""
    results = tmp_path_factory.mktemp("chats")
    for words in ((), ("--chat", "turns", "--system", SYSTEM), ("--chat", "single")):
        done = program_here(*ASKED, *words, "--results", results)
        assert done.returncode == 0, done.stderr
        assert "3 cells computed" in done.stderr
    return results


def style_of(cell: str, variants: Any) -> str:
    chat = variants[cell].chat
    return chat.style if chat else "plain"


def test_prompts_are_those_of_the_models_template_to_the_token(program_here: Run, chats: Path):
    """As transformers renders and tokenizes the whole conversation."""
    from transformers import AutoTokenizer

    from icl_bench.results.reading import read_stored

    library = AutoTokenizer.from_pretrained(SMOLLM2_135M.prepared())
    stored = read_stored(chats)
    frame = stored.predictions
    styles = frame["variant"].astype(object).map(lambda v: style_of(v, stored.variants))
    assert set(styles) == {"plain", "turns", "single"}
    for (k, style), rows in frame[styles != "plain"].groupby(["k", styles], observed=True):
        row = rows.iloc[0]
        words = as_words(f"show --task stdlib_six --k {k} --cell {row['cell']} --results {chats} --json --test-id")
        shown = json.loads(program_here(*words, row["test_id"]).stdout)
        assert shown["checked"].startswith("the very token ids")
        messages = turns_of(shown["prompt"])
        assert len(messages) == (2 * k + 2 if style == "turns" else 2)
        assert messages[0] == {
            "role": "system",
            "content": SYSTEM
            if style == "turns"
            else "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
        }
        ids = library.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        assert hash_of(ids["input_ids"]) == row["prompt_hash"]
        assert len(ids["input_ids"]) == row["prompt_tokens"]


def turns_of(text: str) -> list[dict[str, str]]:
    """The messages of a ChatML conversation, the last of which is still to be written."""
    *whole, last = text.split("<|im_start|>")[1:]
    assert last == "assistant\n"
    parts = [turn.removesuffix("<|im_end|>\n").partition("\n") for turn in whole]
    return [{"role": role, "content": content} for role, _, content in parts]


def hash_of(ids: list[int]) -> str:
    return hashlib.sha256(np.asarray(ids, dtype="<u4").tobytes()).hexdigest()[:16]


def test_answers_are_held_to_the_labels_and_demonstrations_are_computed_once(chats: Path):
    frame = icl_bench.read(chats).predictions
    assert frame["valid"].all()
    most = frame[frame["k"] == 6]
    assert (most["cached_tokens"] > 0.6 * most["prompt_tokens"]).all()


def test_settings_are_told_apart_by_how_prompts_are_put(program_here: Run, chats: Path):
    said = program_here("summary", "--results", chats).stdout
    for name in ("plain", "single", "turns"):
        assert f": chat={name}" in said
    gain = icl_bench.read(chats).findings.chat_gain
    ways = [f"turns, system: {SYSTEM!r}", "single"]
    assert sorted(zip(gain["chat"], gain["k"], strict=True)) == sorted((way, k) for way in ways for k in (0, 2, 6))
    assert "chat: accuracy minus that of plain prompts, points" in said
    again = program_here(*ASKED, "--chat", "turns", "--system", SYSTEM, "--results", chats)
    assert "0 cells computed, 3 already computed" in again.stderr
    planned = program_here("plan", *ASKED[1:], "--chat", "turns")
    assert planned.returncode == 0, planned.stderr


@pytest.mark.parametrize("words", [("--score", "exact"), ("--unconstrained",)])
def test_labels_are_scored_and_free_answers_end_with_their_turn(
    program_here: Run, tmp_path: Path, words: tuple[str, ...]
):
    asked = [*ASKED[:6], "2", *ASKED[7:], "--chat", "turns", *words, "--results", tmp_path]
    done = program_here(*asked)
    assert done.returncode == 0, done.stderr
    frame = icl_bench.read(tmp_path).predictions
    assert not frame["prediction"].str.contains("<|im_end|>", regex=False).any()
    if words[0] == "--score":
        assert frame["label_mass"].between(0, 1.0001).all()
        assert frame["probability"].gt(0).all()
