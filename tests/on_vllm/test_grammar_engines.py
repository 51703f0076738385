"""The grammar engines of vLLM and SGLang read the regular expression of any labels as these labels alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings, strategies

from icl_bench.backends.label_constraint import one_of

xgrammar: Any = pytest.importorskip("xgrammar")
llguidance: Any = pytest.importorskip("llguidance")

END = 256
ODD = [
    "fianc\u00e9e",
    "\u00fc1",
    "\x7fde",
    'say "hi"',
    "back\\slash",
    "two\nlines",
    "\r",
    "a.b*c+?^$|()[]{}",
    "-x #y & ~z/",
    "\\n",
]

LABELS = strategies.lists(
    strategies.text(strategies.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12),
    min_size=1,
    max_size=5,
    unique=True,
)


def accepted(pattern: str, text: str) -> bool:
    """Whether xgrammar lets a model write this text and end it. Each byte is a token."""
    tokens = [bytes([byte]) for byte in range(END)]
    kind = xgrammar.VocabType.RAW
    info = xgrammar.TokenizerInfo([*tokens, b"</s>"], kind, vocab_size=END + 1, stop_token_ids=[END])
    grammar = xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar(xgrammar.Grammar.from_regex(pattern))
    matcher = xgrammar.GrammarMatcher(grammar)
    return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(END)


@settings(max_examples=30)
@given(LABELS)
@example(ODD)
def test_xgrammar_writes_each_label_and_nothing_longer(labels: list[str]) -> None:
    for label in labels:
        assert accepted(one_of(labels), label)
        assert label + "x" in labels or not accepted(one_of(labels), label + "x")


@settings(max_examples=30)
@given(LABELS)
@example(ODD)
def test_llguidance_reads_the_expression(labels: list[str]) -> None:
    grammar = llguidance.LLMatcher.grammar_from_regex(one_of(labels))
    assert not llguidance.LLMatcher.validate_grammar(grammar)
