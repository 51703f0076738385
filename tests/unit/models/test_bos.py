"""Prompts begin with BOS unless the tokenizer's config says that texts do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.models import Row, llama_tokenizer, qwen_tokenizer

from icl_bench.models.tokenizers import bos_of, load
from icl_bench.prompts.encoding import PromptTokenizer
from icl_bench.prompts.rendering import PlainForm
from icl_bench.tasks.spec import Template

TASK = Template(input="query: {text}", output="intent: {label}")
QUERY = Row("", {"text": "where is my card?"})


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))


def saved(folder: Path, tokenizer: Any, **config: Any) -> str:
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return str(folder)


@pytest.mark.parametrize(
    ("config", "begins"), [({}, True), ({"add_bos_token": True}, True), ({"add_bos_token": False}, False)]
)
def test_bos_is_left_out_where_the_config_says_so(tmp_path: Path, config: dict[str, Any], begins: bool):
    source = saved(tmp_path / "one", llama_tokenizer(), **config)
    for tokenizer in (load(source), load(source)):  # read by the library, and from the cache
        encoder = PromptTokenizer(PlainForm(TASK), tokenizer)
        (prompt,) = [prompts.ids(0) for prompts in encoder.shared_prompts([], [0], [QUERY]).values()]
        assert (prompt[0] == tokenizer.bos_token_id) == begins
        assert encoder.leaves_bos_out != begins
        assert (bos_of(tokenizer) is None) != begins


def test_a_tokenizer_without_bos_leaves_none_out(tmp_path: Path):
    tokenizer = load(saved(tmp_path / "one", qwen_tokenizer(bos_token=None), add_bos_token=False))
    assert bos_of(tokenizer) is None
    assert not PromptTokenizer(PlainForm(TASK), tokenizer).leaves_bos_out
