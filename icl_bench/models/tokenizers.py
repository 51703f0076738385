"""A checkpoint's tokenizer, read by transformers once, and from a cache afterwards.

How transformers reads a checkpoint's tokenizer files depends on many of its tables (the class that a config names,
corrections of wrong names, parts that a class builds instead of reading). This takes 15 s for Gemma's vocabulary,
mostly to import libraries that a plan does not need. So the result is cached: the backend in its own format and the ids
of the special tokens. The entry's name is a hash of the files and of both libraries' versions. Ids are equal because
the backend is the same.

Not cached, but always read by transformers: tokenizers without a backend of the tokenizers package,
those whose class overrides encoding or decoding, and those that clean up decoded text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from icl_bench.errors import UserError
from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.fingerprints import key_of_files
from icl_bench.models.made_once import is_whole, made_once
from icl_bench.text_files import json_file

if TYPE_CHECKING:
    import tokenizers

_TOKENIZER_FILES = frozenset({".json", ".model", ".txt", ".tiktoken"})
_BACKEND, _SPECIAL = "tokenizer.json", "special_tokens.json"


class Tokenizer(Protocol):
    """The interface of tokenizers: transformers' own, and :class:`CachedTokenizer`.

    A tokenizer whose ``is_fast`` is true also returns offsets, and its ``backend_tokenizer`` is a
    backend of the tokenizers package.
    """

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins every prompt, if there is one."""

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, if there is one."""

    @property
    def all_special_ids(self) -> Sequence[int]:
        """Ids of the named special tokens."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Tokens that were added to the vocabulary, by id, with an attribute ``special``."""

    @property
    def __call__(self) -> Callable[..., Any]:
        """Returns ``input_ids`` of a text or a list of texts, and further requested fields."""

    def __len__(self) -> int:
        """The number of tokens, including added ones."""

    def get_vocab(self) -> dict[str, int]:
        """Token -> id, including added tokens."""

    def decode(self, token_ids: Any) -> Any:
        """The text of some ids."""


def bos_of(tokenizer: Any) -> int | None:
    """The token that begins every prompt; None if there is none, or ``add_bos_token`` is false."""
    token = None if getattr(tokenizer, _WITHOUT_BOS, False) else tokenizer.bos_token_id
    return None if token is None else int(token)


def special_texts(tokenizer: Tokenizer) -> list[str]:
    """The texts of tokens that are parsed as special tokens."""
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


def check_offsets(tokenizer: Any, option: str) -> None:
    """Raise ``UserError`` if a tokenizer does not return offsets, which ``option`` needs."""
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"{option}: this model's tokenizer does not return offsets; it needs a tokenizer.json")


def with_offsets(
    tokenizer: Any, text: str, *, split_special_tokens: bool
) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Ids of a text, without special tokens around it, and the start and end of each token in characters.

    The tokenizer must return offsets.
    """
    encoding = tokenizer(
        [text],
        add_special_tokens=False,
        split_special_tokens=split_special_tokens,
        return_offsets_mapping=True,
        verbose=False,
    )
    return tuple(encoding["input_ids"][0]), list(encoding["offset_mapping"][0])


_WITHOUT_BOS = "without_bos"
"""The attribute of tokenizers whose config sets that texts do not begin with BOS."""

_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "all_special_ids")


@dataclass(eq=False)
class CachedTokenizer:
    """A backend of the tokenizers package with the interface :class:`Tokenizer`."""

    backend_tokenizer: tokenizers.Tokenizer
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    unk_token_id: int | None
    all_special_ids: list[int]
    without_bos: bool = False
    """Whether texts do not begin with BOS, although there is one."""
    is_fast = True

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
        return_offsets_mapping: bool = False,
        return_attention_mask: bool = False,
        verbose: bool = True,  # noqa: ARG002 - an option of transformers
    ) -> dict[str, Any]:
        """``input_ids`` and, if requested, ``offset_mapping``, ``attention_mask`` of each text."""
        self.backend_tokenizer.encode_special_tokens = split_special_tokens
        texts = [text] if isinstance(text, str) else list(text)
        backend = self.backend_tokenizer
        encode = backend.encode_batch if return_offsets_mapping else backend.encode_batch_fast
        encodings = encode(texts, add_special_tokens=add_special_tokens)
        result: dict[str, list[Any]] = {"input_ids": [encoding.ids for encoding in encodings]}
        if return_offsets_mapping:
            result["offset_mapping"] = [encoding.offsets for encoding in encodings]
        if return_attention_mask:
            result["attention_mask"] = [encoding.attention_mask for encoding in encodings]
        return {name: values[0] for name, values in result.items()} if isinstance(text, str) else result

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """Tokens that were added to the vocabulary, by id."""
        added_tokens: dict[int, Any] = self.backend_tokenizer.get_added_tokens_decoder()
        return added_tokens

    def get_vocab(self) -> dict[str, int]:
        """Token -> id, including added tokens."""
        vocabulary: dict[str, int] = self.backend_tokenizer.get_vocab(with_added_tokens=True)
        return vocabulary

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of some ids, including special tokens."""
        ids = [int(i) for i in token_ids]
        return str(self.backend_tokenizer.decode(ids, skip_special_tokens=False))


def load(source: str, revision: str | None = None) -> Tokenizer:
    """A checkpoint's tokenizer, from the cache if possible.

    Raises any exception of transformers if it cannot read the files.
    """
    tokenizer = _loaded(Path(source), source, revision)
    if _leaves_bos_out(Path(source)):
        setattr(tokenizer, _WITHOUT_BOS, True)
    return tokenizer


def _leaves_bos_out(folder: Path) -> bool:
    """Whether a tokenizer's config has ``add_bos_token: false``."""
    try:
        config = json_file(folder / "tokenizer_config.json")
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("add_bos_token") is False


def _loaded(folder: Path, source: str, revision: str | None) -> Tokenizer:
    entry = entry_of(folder) if folder.is_dir() else None
    if entry is not None and (cached := _read_entry(entry)) is not None:
        return cached
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(source, revision=revision or "main", trust_remote_code=False)
    if entry is None or not _can_be_cached(tokenizer):
        uncacheable: Tokenizer = tokenizer
        return uncacheable
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    tokenizer_to_cache = CachedTokenizer(backend, **{name: getattr(tokenizer, name) for name in _IDS})
    write_entry(tokenizer_to_cache, entry)
    return tokenizer_to_cache


def entry_of(folder: Path) -> Path:
    """The cache entry of a checkpoint's tokenizer. Raises ``OSError``."""
    files = [file for file in folder.iterdir() if file.is_file() and file.suffix in _TOKENIZER_FILES]
    key = key_of_files([version("transformers"), version("tokenizers")], folder, files)
    return cache_dir() / "tokenizers" / key


def write_entry(tokenizer: CachedTokenizer, entry: Path) -> None:
    """Write a tokenizer into the cache folder, atomically."""
    ids = {name: getattr(tokenizer, name) for name in _IDS}

    def write(draft: Path) -> None:
        (draft / _BACKEND).write_text(_state(tokenizer.backend_tokenizer), encoding="utf-8")
        (draft / _SPECIAL).write_text(json.dumps(ids), encoding="utf-8")

    # if it cannot be written, the next run reads the files again
    with suppress(OSError):
        made_once(entry, write)


def _state(backend: tokenizers.Tokenizer) -> str:
    """The backend as JSON, with merges as ``left right``, which takes two thirds of the time to read."""
    state = json.loads(backend.to_str())
    lines = [" ".join(pair) for pair in state["model"].get("merges") or []]
    if all(line.count(" ") == 1 and not line.startswith("#version") for line in lines):
        state["model"] |= {"merges": lines} if lines else {}
    return json.dumps(state, ensure_ascii=False, separators=(",", ":"))


def _read_entry(entry: Path) -> CachedTokenizer | None:
    """The cached tokenizer; None if the entry is missing or damaged."""
    if not is_whole(entry):
        return None
    try:
        return _read_once(entry, *((entry / name).stat().st_mtime_ns for name in (_BACKEND, _SPECIAL)))
    except Exception:  # the package raises plain Exception for a damaged file
        return None


@lru_cache(maxsize=2)
def _read_once(entry: Path, *_written: int) -> CachedTokenizer:
    """An entry's tokenizer. It takes a second to read Gemma's, and a program may need it for several runs."""
    from tokenizers import Tokenizer as Backend

    return CachedTokenizer(Backend.from_file(str(entry / _BACKEND)), **json_file(entry / _SPECIAL))


def _can_be_cached(tokenizer: Any) -> bool:
    from transformers import TokenizersBackend

    if not isinstance(tokenizer, TokenizersBackend):
        return False
    methods = ("__call__", "_encode_plus", "decode", "_decode", "get_vocab", "__len__")
    overrides = any(getattr(type(tokenizer), method) is not getattr(TokenizersBackend, method) for method in methods)
    return not overrides and not tokenizer.clean_up_tokenization_spaces
