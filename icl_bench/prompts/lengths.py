"""The lengths of a pool's demonstrations in tokens, for pools of millions of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.models.array_cache import cached_array
from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.fingerprints import key_of
from icl_bench.prompts.encoding import PromptTokenizer

if TYPE_CHECKING:
    from icl_bench.models.tokenizers import Tokenizer
    from icl_bench.prompts.chat import PromptForm
    from icl_bench.tasks.examples import Example

AT_ONCE = 20_000
"""Rows that are tokenized together; their ids are not kept."""

CACHED_FROM = 50_000
"""Rows of a pool whose lengths are cached on disk. Fewer are tokenized in about a second."""


def demonstration_lengths(form: PromptForm, tokenizer: Tokenizer, examples: Sequence[Example]) -> np.ndarray:
    """Tokens of each example as a whole demonstration with its separator, inside a prompt: ``(examples,)`` integers."""
    if len(examples) < CACHED_FROM or not getattr(tokenizer, "is_fast", False):
        return _counted(form, tokenizer, examples)
    of_tokenizer = [version("tokenizers"), str(tokenizer.backend_tokenizer.to_str()), form.joint]  # type: ignore[attr-defined]
    key = key_of(chain(of_tokenizer, map(form.demonstration, examples)))
    return cached_array(cache_dir() / "lengths" / key, partial(_counted, form, tokenizer, examples))


def _counted(form: PromptForm, tokenizer: Tokenizer, examples: Sequence[Example]) -> np.ndarray:
    parts = (examples[start : start + AT_ONCE] for start in range(0, len(examples), AT_ONCE))
    counts = [PromptTokenizer(form, tokenizer).demonstration_lengths(part) for part in parts]
    return np.concatenate([np.zeros(0, dtype=int), *counts])
