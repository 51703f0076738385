"""Lengths of a pool's demonstrations: counted in parts, cached by content."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from support.models import Row, gpt2_tokenizer, llama_tokenizer

from icl_bench.models.fingerprints import key_of
from icl_bench.prompts import lengths
from icl_bench.prompts.encoding import PromptTokenizer
from icl_bench.prompts.lengths import demonstration_lengths
from icl_bench.prompts.rendering import PlainForm
from icl_bench.tasks.spec import Template

TEMPLATE = Template(input="query: {text}", output="intent: {label}")
ROWS = [Row("card arrival", {"text": f"where is my {'very ' * (number % 7)}card {number}"}) for number in range(50)]


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the parts that are tokenized, where pools of 20 rows are large."""
    sizes: list[int] = []
    count = PromptTokenizer.demonstration_lengths

    def observed(self: PromptTokenizer, examples: list[object]) -> np.ndarray:
        sizes.append(len(examples))
        return count(self, examples)  # type: ignore[arg-type]

    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(PromptTokenizer, "demonstration_lengths", observed)
    monkeypatch.setattr(lengths, "AT_ONCE", 16)
    monkeypatch.setattr(lengths, "CACHED_FROM", 20)
    return sizes


def test_lengths_are_counted_in_parts_and_once(counted: list[int], tmp_path: Path) -> None:
    form, tokenizer = PlainForm(TEMPLATE), gpt2_tokenizer()
    encoder = PromptTokenizer(form, tokenizer)
    expected = [len(encoder.whole(form.demonstration(row))) - len(encoder.bos) for row in ROWS]
    found = demonstration_lengths(form, tokenizer, ROWS)
    assert found.tolist() == expected
    assert counted == [16, 16, 16, 2]
    assert demonstration_lengths(form, tokenizer, ROWS).tolist() == expected
    (stored,) = (tmp_path / "cache" / "lengths").glob("*/array.npy")
    assert counted == [16, 16, 16, 2]
    stored.write_bytes(stored.read_bytes()[:-8] + bytes(8))
    assert demonstration_lengths(form, tokenizer, ROWS).tolist() == expected  # a damaged entry is made again
    assert counted == [16, 16, 16, 2] * 2


def test_other_rows_templates_and_tokenizers_have_lengths_of_their_own(counted: list[int]) -> None:
    other = Template(input="q: {text}", output="a: {label}")
    longer = Template(input="query: {text}", output="intent: {label}", separator="\n\n====\n\n")
    asked = [(TEMPLATE, llama_tokenizer()), (other, llama_tokenizer()), (longer, llama_tokenizer())]
    for number, (template, tokenizer) in enumerate([*asked, (TEMPLATE, gpt2_tokenizer())], 1):
        demonstration_lengths(PlainForm(template), tokenizer, ROWS)
        assert len(counted) == 4 * number
    demonstration_lengths(PlainForm(TEMPLATE), gpt2_tokenizer(), ROWS[1:])
    assert len(counted) == 5 * 4


def test_lengths_of_small_pools_are_not_stored(counted: list[int], tmp_path: Path) -> None:
    for _ in range(2):
        demonstration_lengths(PlainForm(TEMPLATE), gpt2_tokenizer(), ROWS[:10])
    assert counted == [10, 10]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("count", [0, 1, 9_999, 10_000, 25_001])
def test_the_hash_of_a_list_is_that_of_its_json(count: int) -> None:
    parts = ["ä\n", 3, *map(str, range(count))][:count]
    assert key_of(iter(parts)) == hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
