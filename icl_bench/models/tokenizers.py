"""A checkpoint's tokenizer, read by transformers once and by the tokenizers package ever after.

What transformers makes of a checkpoint's tokenizer files depends on many of its own tables (which
class a config names, which of those names are known to be wrong, what a class builds anew instead
of reading). That takes 15 s for Gemma's vocabulary, most of it for libraries that nothing else of
a plan needs. So what it made of them is kept in the cache folder, under a name made of the files
and of both libraries' versions: the backend in its own format and the ids of the special tokens.
Ids are equal because it is the same backend.

Not kept, and transformers' own each time: tokenizers without a backend of the tokenizers package,
those whose class encodes or decodes in a way of its own, and those that clean up what they decode.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.fingerprints import key_of_files

if TYPE_CHECKING:
    import tokenizers

_FILES = frozenset({".json", ".model", ".txt", ".tiktoken"})
_BACKEND, _SPECIAL = "tokenizer.json", "special_tokens.json"


class Tokenizer(Protocol):
    """What the program asks of a tokenizer: transformers' own has it, and :class:`KeptTokenizer`.

    Beyond this, a tokenizer whose ``is_fast`` is true tells offsets, and ``backend_tokenizer`` is
    its backend of the tokenizers package.
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
        """Tokens that were added to the vocabulary, by id; ``special`` says which are special."""

    @property
    def __call__(self) -> Callable[..., Any]:
        """Gives ``input_ids`` of a text or a list of texts, and what else is asked for by name."""

    def __len__(self) -> int:
        """How many tokens there are, the added ones included."""

    def get_vocab(self) -> dict[str, int]:
        """Ids by spelling, those of added tokens included."""

    def decode(self, token_ids: Any) -> Any:
        """The text of some ids."""


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of special tokens, as transformers names them."""

    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    unk_token_id: int | None
    all_special_ids: tuple[int, ...]


class KeptTokenizer:
    """A backend of the tokenizers package with the part of transformers' interface in use here."""

    is_fast = True

    def __init__(self, backend: tokenizers.Tokenizer, special: SpecialTokens) -> None:
        self.backend_tokenizer = backend
        self.bos_token_id = special.bos_token_id
        self.eos_token_id = special.eos_token_id
        self.pad_token_id = special.pad_token_id
        self.unk_token_id = special.unk_token_id
        self.all_special_ids = list(special.all_special_ids)

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
        return_offsets_mapping: bool = False,
        return_attention_mask: bool = False,
        verbose: bool = True,  # noqa: ARG002 - transformers' option; there is nothing to say here
    ) -> dict[str, Any]:
        """``input_ids`` and, if asked for, ``offset_mapping``, ``attention_mask`` of each text."""
        self.backend_tokenizer.encode_special_tokens = split_special_tokens
        texts = [text] if isinstance(text, str) else list(text)
        backend = self.backend_tokenizer
        encode = backend.encode_batch if return_offsets_mapping else backend.encode_batch_fast
        found = encode(texts, add_special_tokens=add_special_tokens)
        result: dict[str, list[Any]] = {"input_ids": [encoding.ids for encoding in found]}
        if return_offsets_mapping:
            result["offset_mapping"] = [encoding.offsets for encoding in found]
        if return_attention_mask:
            result["attention_mask"] = [encoding.attention_mask for encoding in found]
        return {name: v[0] for name, v in result.items()} if isinstance(text, str) else result

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """Tokens that were added to the vocabulary, by id."""
        found: dict[int, Any] = self.backend_tokenizer.get_added_tokens_decoder()
        return found

    def get_vocab(self) -> dict[str, int]:
        """Ids by spelling, those of added tokens included."""
        found: dict[str, int] = self.backend_tokenizer.get_vocab(with_added_tokens=True)
        return found

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of some ids, special tokens included."""
        ids = [int(i) for i in token_ids]
        return str(self.backend_tokenizer.decode(ids, skip_special_tokens=False))


def load(source: str, revision: str | None = None) -> Tokenizer:
    """A checkpoint's tokenizer, from what is kept where it is there.

    Raises what transformers raises where it cannot read the files.
    """
    folder = Path(source)
    entry = entry_of(folder) if folder.is_dir() else None
    if entry is not None and (found := _read(entry)) is not None:
        return found
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(source, revision=revision or "main")
    if entry is None or not _can_be_kept(tokenizer):
        own: Tokenizer = tokenizer
        return own
    kept = _of_transformers(tokenizer)
    keep(kept, entry)
    return kept


def entry_of(folder: Path) -> Path:
    """Where the tokenizer of a checkpoint is kept. Raises ``OSError``."""
    files = [file for file in folder.iterdir() if file.is_file() and file.suffix in _FILES]
    key = key_of_files([version("transformers"), version("tokenizers")], folder, files)
    return cache_dir() / "tokenizers" / key


def keep(tokenizer: KeptTokenizer, entry: Path) -> None:
    """Write a tokenizer into the cache folder, whole or not at all."""
    ids = {name: getattr(tokenizer, name) for name in SpecialTokens.__dataclass_fields__}
    # without a cache the next run reads it again: no reason to stop this one
    with suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=entry.parent) as name:
            draft = Path(name) / "entry"
            draft.mkdir()
            (draft / _BACKEND).write_text(_state(tokenizer.backend_tokenizer), encoding="utf-8")
            (draft / _SPECIAL).write_text(json.dumps(ids), encoding="utf-8")
            draft.rename(entry)  # fails where another process has kept the same


def _state(backend: tokenizers.Tokenizer) -> str:
    """The backend as JSON; merges as ``left right``, which is read in two thirds of the time."""
    state = json.loads(backend.to_str())
    lines = [" ".join(pair) for pair in state["model"].get("merges") or []]
    if all(line.count(" ") == 1 and not line.startswith("#version") for line in lines):
        state["model"] |= {"merges": lines} if lines else {}
    return json.dumps(state, ensure_ascii=False, separators=(",", ":"))


def _read(entry: Path) -> KeptTokenizer | None:
    """What is kept; None where there is nothing, or nothing that can be read."""
    try:
        ids = json.loads((entry / _SPECIAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    from tokenizers import Tokenizer as Backend

    try:
        special = SpecialTokens(**{**ids, "all_special_ids": tuple(ids["all_special_ids"])})
        return KeptTokenizer(Backend.from_file(str(entry / _BACKEND)), special)
    except Exception:  # the package raises plain Exception for a damaged file
        return None


def _can_be_kept(tokenizer: Any) -> bool:
    from transformers import TokenizersBackend

    if not isinstance(tokenizer, TokenizersBackend):
        return False
    methods = ("__call__", "_encode_plus", "decode", "_decode", "get_vocab", "__len__")
    own = any(getattr(type(tokenizer), method) is not getattr(TokenizersBackend, method) for method in methods)
    return not own and not tokenizer.clean_up_tokenization_spaces


def _of_transformers(tokenizer: Any) -> KeptTokenizer:
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    special = SpecialTokens(
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
        tokenizer.unk_token_id,
        tuple(tokenizer.all_special_ids),
    )
    return KeptTokenizer(backend, special)
