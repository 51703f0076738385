"""The label constraint accepts the labels with their ends, nothing else, and knows when to stop."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.models import llama_tokenizer, qwen_tokenizer, tokenized
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from icl_bench.backends.label_constraint import (
    LabelAutomaton,
    _can_write,
    check_told_apart,
    compile_labels,
    label_trie,
    token_bytes,
)
from icl_bench.errors import UserError

FEW = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
LABEL_SETS = {
    "one label begins another": ["order", "order status", "order status late", "or"],
    "labels share an ending": ["transfer fee", "card fee", "fee", "cash fee", "e"],
    "one letter each": ["a", "b", "c"],
    "letters that are no ASCII": ["état", "étage", "中文", "中", "naïve", "🙂", "🙃", "é", "e\u0301"],
    "signs of regular expressions": ["a.b*c", "a.b", "(x|y)", "[a-z]+", "^$", "\\d{2}", "{", "?", "#"],
    "looks special": ["<s>", "</s>", "<bos>", "<0x41>", "<|endoftext|>"],
    "white space": ["a  b", "a b", " a", "a ", "a\tb"],
    "only one": ["card arrival"],
}
fragments = st.sampled_from(["a", "ab", "order", " ", " status", "é", "中", ".", "*", "(", "|", "\\"])
label_sets = st.lists(
    st.lists(fragments, min_size=1, max_size=4).map("".join)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5),
    min_size=1,
    max_size=8,
    unique=True,
)


def answers_of(labels: Sequence[str]) -> list[str]:
    return [f" {label}\n" for label in labels]


def spellings(spelled: dict[int, bytes]) -> dict[bytes, list[int]]:
    found = defaultdict(list)
    for token, text in spelled.items():
        found[text].append(token)
    return found


def texts_of(automaton: LabelAutomaton, spelled: dict[int, bytes]) -> dict[int, bytes]:
    """What has been written in each state, found by walking."""
    texts = {0: b""}
    waiting = [0]
    for state in waiting:
        for token, target in zip(automaton.tokens[state], automaton.targets[state], strict=True):
            text = texts[state] + spelled[int(token)]
            if int(target) not in texts:
                waiting.append(int(target))
            assert texts.setdefault(int(target), text) == text  # a state is one text
    return texts


def assert_language(automaton: LabelAutomaton, answers: Sequence[str], tokenizer: Any) -> None:
    """Compare with brute force: in each state, every token after which an answer is possible."""
    spelled = token_bytes(tokenizer)
    by_text = spellings(spelled)
    encoded = [answer.encode() for answer in answers]
    texts = texts_of(automaton, spelled)
    assert set(texts) == set(range(len(automaton.tokens)))
    assert len(set(texts.values())) == len(texts)
    for state, text in texts.items():
        rests = [answer[len(text) :] for answer in encoded if answer.startswith(text)]
        pieces = {rest[:end] for rest in rests for end in range(1, len(rest) + 1)}
        expected = sorted(token for piece in pieces for token in by_text[piece])
        assert automaton.tokens[state].tolist() == expected
        assert (len(expected) == 0) == (text in encoded)
        possible = [i for i, answer in enumerate(encoded) if answer.startswith(text)]
        assert automaton.decided[state] == (possible[0] if len(possible) == 1 else -1)
    assert set(encoded) <= set(texts.values())
    every = sorted({int(token) for tokens in automaton.tokens for token in tokens})
    assert automaton.vocabulary.tolist() == every


def walked(automaton: LabelAutomaton, rng: np.random.Generator) -> tuple[list[int], int, int]:
    """Tokens of a greedy walk to the very end on random logits, the label and when it was clear."""
    state, tokens, decided_at = 0, [], -1
    while len(automaton.tokens[state]):
        token, state = automaton.choose(state, rng.normal(size=len(automaton.vocabulary)))
        tokens.append(token)
        if decided_at < 0 and automaton.decided[state] >= 0:
            decided_at = state
    return tokens, int(automaton.decided[decided_at]), state


EVERY_LABEL = list(dict.fromkeys(label for labels in LABEL_SETS.values() for label in labels))


@pytest.mark.parametrize("name", LABEL_SETS)
@pytest.mark.parametrize("kind", ["gpt2", "qwen", "llama"])
def test_the_constraint_allows_the_labels_with_their_ends_and_nothing_else(small_tokenizers, kind, name):
    answers = answers_of(LABEL_SETS[name])
    automaton = compile_labels(answers, small_tokenizers[kind])
    assert_language(automaton, answers, small_tokenizers[kind])


def test_the_constraint_is_exact_in_a_large_vocabulary(gemma_tokenizer):
    answers = answers_of(EVERY_LABEL)
    assert_language(compile_labels(answers, gemma_tokenizer), answers, gemma_tokenizer)


@FEW
@given(kind=st.sampled_from(["gpt2", "qwen", "llama"]), labels=label_sets)
def test_the_constraint_is_exact_for_any_labels(small_tokenizers, kind, labels):
    answers = answers_of(labels)
    automaton = compile_labels(answers, small_tokenizers[kind])
    assert_language(automaton, answers, small_tokenizers[kind])


@FEW
@given(labels=label_sets, seed=st.integers(0, 2**32))
def test_any_logits_end_in_one_label(small_tokenizers, labels, seed):
    answers, rng = answers_of(labels), np.random.default_rng(seed)
    for tokenizer in (small_tokenizers["qwen"], small_tokenizers["llama"]):
        automaton, spelled = compile_labels(answers, tokenizer), token_bytes(tokenizer)
        for _ in range(5):
            tokens, label, end = walked(automaton, rng)
            assert b"".join(spelled[token] for token in tokens) == answers[label].encode()
            assert automaton.decided[end] == label


@FEW
@given(labels=label_sets, seed=st.integers(0, 2**32))
def test_tokens_are_read_back_as_the_label_they_decide_on(small_tokenizers, labels, seed):
    """Generation may stop at any token of ``deciding``: what is read is what would have been."""
    answers, rng = answers_of(labels), np.random.default_rng(seed)
    for tokenizer in (small_tokenizers["qwen"], small_tokenizers["llama"]):
        automaton = compile_labels(answers, tokenizer)
        for _ in range(5):
            tokens, label, _ = walked(automaton, rng)
            assert automaton.read(tokens) == label
            stops = [i for i, token in enumerate(tokens) if token in automaton.deciding]
            if stops:
                assert automaton.read(tokens[: stops[0] + 1]) == label
        for tokens, targets in zip(automaton.tokens, automaton.targets, strict=True):
            clear = dict(zip(tokens.tolist(), automaton.decided[targets] >= 0, strict=True))
            assert all(clear[token] for token in clear if token in automaton.deciding)


def test_the_token_that_decides_in_one_place_only_does_not_stop_generation(small_tokenizers):
    automaton = compile_labels(answers_of(["b", "a b c", "a b d"]), small_tokenizers["gpt2"])
    spelled = token_bytes(small_tokenizers["gpt2"])
    assert " b" not in {spelled[token].decode() for token in automaton.deciding}


def test_tokens_outside_the_labels_are_not_read_and_an_unfinished_label_is_none(tokenizer):
    automaton = compile_labels([" order\n", " order status\n"], tokenizer)
    assert automaton.read([]) == -1
    with pytest.raises(ValueError, match="not allowed in state 0"):
        automaton.read([max(automaton.vocabulary) + 1])


def test_every_label_can_be_the_answer(tokenizer):
    """The likeliest tokens being a label's own, that label is the outcome."""
    answers = answers_of(LABEL_SETS["one label begins another"])
    automaton, spelled = compile_labels(answers, tokenizer), token_bytes(tokenizer)
    for i, answer in enumerate(answers):
        state, written = 0, b""
        while automaton.decided[state] < 0:
            rest = answer.encode()[len(written) :]
            wish = [float(rest.startswith(spelled[int(t)])) for t in automaton.vocabulary]
            token, state = automaton.choose(state, np.array(wish))
            written += spelled[token]
        assert automaton.decided[state] == i


def test_the_shorter_label_is_clear_only_at_its_end(tokenizer):
    automaton = compile_labels([" order\n", " order status\n"], tokenizer)
    texts = texts_of(automaton, token_bytes(tokenizer))
    found = {text: int(automaton.decided[state]) for state, text in texts.items()}
    assert found[b" order"] == -1
    assert found[b" order\n"] == 0
    assert {label for text, label in found.items() if text.startswith(b" order s")} == {1}


def test_the_likeliest_allowed_token_is_taken_and_a_likelier_forbidden_one_is_not(small_tokenizers):
    tokenizer = small_tokenizers["qwen"]
    automaton = compile_labels(answers_of(["ab", "b"]), tokenizer)
    spelled = token_bytes(tokenizer)
    logits = np.array([float(spelled[int(t)] == b"b") * 9 for t in automaton.vocabulary])
    token, state = automaton.choose(0, logits)
    assert spelled[token][:1] == b" "
    token, state = automaton.choose(state, logits)
    assert automaton.decided[state] == 1


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_what_is_allowed_is_what_an_automaton_over_the_whole_vocabulary_allows(small_tokenizers, kind):
    """Compiled over the few tokens that occur in some answer; here over all of them."""
    from outlines_core import Index, Vocabulary

    answers, tokenizer = answers_of(EVERY_LABEL), small_tokenizers[kind]
    automaton = compile_labels(answers, tokenizer)
    end = len(tokenizer)
    every = Vocabulary(end, dict(spellings(token_bytes(tokenizer))))
    whole = Index(f"({'|'.join(map(re.escape, answers))})", every)
    moves, reached = whole.get_transitions(), {0: whole.get_initial_state()}
    for state, (tokens, targets) in enumerate(zip(automaton.tokens, automaton.targets, strict=True)):
        there = {t: to for t, to in moves.get(reached[state], {}).items() if t != end}
        assert sorted(there) == tokens.tolist()
        for token, target in zip(tokens.tolist(), targets.tolist(), strict=True):
            assert reached.setdefault(target, there[token]) == there[token]


def test_a_label_that_the_tokenizer_cannot_write_is_an_error():
    from transformers import PreTrainedTokenizerFast

    letters = models.BPE(vocab={c: i for i, c in enumerate("\u2581ab\n")}, merges=[])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(letters))
    assert compile_labels([" ab\n", " ba\n"], tokenizer).answers == (" ab\n", " ba\n")
    with pytest.raises(UserError, match="label 'xb': this model's tokenizer cannot write it") as refused:
        compile_labels([" ab\n", " xb\n"], tokenizer)
    assert "\n" not in str(refused.value)


def test_a_label_that_a_token_begins_and_none_goes_on_with_is_an_error():
    from transformers import PreTrainedTokenizerFast

    pieces = models.Unigram([(piece, -1.0) for piece in ("<unk>", "\u2581", "a", "ab", "c", "\n")], 0, False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(pieces))
    assert compile_labels([" abc\n", " ac\n"], tokenizer).answers == (" abc\n", " ac\n")
    with pytest.raises(UserError, match=r"^label 'abc': .* and none that continues it; .*--score exact") as refused:
        compile_labels([" c\n", " abc\n"], tokenizer)
    assert "\n" not in str(refused.value)


def lower_case_tokenizer() -> Any:
    """A tokenizer that knows no case."""
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate("abcĠĊ")}, merges=[]))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_the_refusal_of_a_label_names_it_and_what_the_tokenizer_makes_of_it():
    with pytest.raises(UserError) as refused:
        compile_labels([" abc\n", " ab\n", " cbA\n"], lower_case_tokenizer())
    assert str(refused.value) == (
        "label 'cbA': this model's tokenizer cannot write it; spell it as the tokenizer does ('cba'), "
        "or take --score exact"
    )


@pytest.mark.parametrize(
    ("tokenizer", "labels", "named"),
    [
        (qwen_tokenizer(), ["order", "\u00e9tat", "e\u0301tat"], "labels '\u00e9tat' and 'e.u0301tat': .*same tokens"),
        (lower_case_tokenizer(), ["b", "abc", "ABC"], "labels 'abc' and 'ABC': .*same tokens"),
        (lower_case_tokenizer(), ["Abc", "b", "ABC"], "labels 'Abc' and 'ABC': .*same tokens"),
    ],
)
def test_two_labels_of_the_same_tokens_are_refused_by_name(tokenizer, labels, named):
    ids = [tokenized(tokenizer, answer) for answer in answers_of(labels)]
    with pytest.raises(UserError, match=named) as refused:
        check_told_apart(labels, ids)
    assert "\n" not in str(refused.value)


def test_a_label_whose_end_has_no_token_is_refused_beside_one_that_continues_it():
    with pytest.raises(UserError, match=r"labels 'a' and 'a b': .*continuation of the first"):
        check_told_apart(["b", "a b", "a"], [(2,), (1, 2), (1,)])


ids_of_labels = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple), min_size=1, max_size=6)


@given(ids_of_labels)
def test_labels_are_refused_where_they_make_no_tree_and_nowhere_else(ids):
    labels = [f"label {i}" for i in range(len(ids))]
    try:
        label_trie(ids)
    except ValueError:
        with pytest.raises(UserError, match=r"^labels 'label \d' and 'label \d': "):
            check_told_apart(labels, ids)
    else:
        check_told_apart(labels, ids)


@given(st.text(alphabet="abÄ\n", min_size=1, max_size=6), st.sets(st.text(alphabet="abÄ\n", min_size=1, max_size=3)))
def test_what_tokens_can_write_is_what_a_pattern_of_them_matches(text, tokens):
    spelled = {token.encode(): [i] for i, token in enumerate(sorted(tokens))}
    pattern = f"(?:{'|'.join(map(re.escape, tokens))})+"
    assert _can_write(text.encode(), spelled) == bool(tokens and re.fullmatch(pattern, text))


# -- what tokens write --------------------------------------------------------------------------


texts = st.lists(st.text(max_size=30) | st.sampled_from(EVERY_LABEL), min_size=40, max_size=40)


@settings(max_examples=5, suppress_health_check=list(HealthCheck))
@given(texts)
def test_a_texts_tokens_write_its_bytes(tokenizer, texts):
    spelled = token_bytes(tokenizer)
    for text in texts:
        written = b"".join(spelled[token] for token in tokenized(tokenizer, f"x{text}"))
        whole = f"x{text}"
        if "NFC" in repr(tokenizer.backend_tokenizer.normalizer):
            whole = unicodedata.normalize("NFC", whole)
        assert written in (whole.encode(), b" " + whole.encode())  # a dummy prefix writes a space


def test_special_tokens_write_nothing(tokenizer):
    spelled = token_bytes(tokenizer)
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    assert special >= set(tokenizer.all_special_ids)
    assert not special & set(spelled)
    assert len(spelled) == len(tokenizer) - len(special)


@pytest.mark.parametrize("kind", ["qwen", "llama"])
def test_a_users_own_token_writes_its_own_text(kind):
    tokenizer = qwen_tokenizer() if kind == "qwen" else llama_tokenizer()
    tokenizer.add_tokens(["naïve tok"])
    token = tokenizer.convert_tokens_to_ids("naïve tok")
    assert token in tokenized(tokenizer, "a naïve tok")
    assert token_bytes(tokenizer)[token] == "naïve tok".encode()


def test_every_byte_can_be_written(tokenizer):
    assert {bytes([byte]) for byte in range(256)} <= set(token_bytes(tokenizer).values())


# -- labels as a tree ---------------------------------------------------------------------------

ids = st.lists(st.integers(0, 3), min_size=1, max_size=5).map(lambda x: (*x, 9))


@given(st.lists(ids, min_size=1, max_size=12, unique=True))
def test_each_path_of_the_tree_is_one_answer(answers):
    trie = label_trie(answers)
    for answer, end in zip(answers, trie.ends, strict=True):
        path, node = [], int(end)
        while node:
            path.append(int(trie.tokens[node]))
            assert trie.parents[node] < node
            assert trie.ancestors[end, node]
            node = int(trie.parents[node])
        assert tuple(reversed(path)) == answer
        assert trie.depths[end] == len(answer)
        assert trie.ancestors[end].sum() == len(answer) + 1
    beginnings = {answer[:size] for answer in answers for size in range(len(answer) + 1)}
    assert len(trie.tokens) == len(beginnings)
    assert trie.inner[0] == 0
    assert set(trie.inner) == set(range(len(trie.tokens))) - set(trie.ends)
    follow: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for answer in answers:
        for size in range(len(answer)):
            follow[answer[:size]].add(answer[size])
    assert {path: {*trie.tokens[children].tolist()} for path, children in trie.branches} == follow
    assert trie.branches[0][0] == ()


@given(st.lists(ids, min_size=1, max_size=12, unique=True))
def test_an_answers_sum_is_that_of_its_path(answers):
    trie = label_trie(answers)
    each = np.random.default_rng(0).normal(size=(2, len(trie.tokens)))
    each[:, 0] = 0
    for row, sums in zip(each, trie.sums(each), strict=True):
        expected = [row[trie.ancestors[end]].sum() for end in trie.ends]
        np.testing.assert_allclose(sums, expected)
        np.testing.assert_allclose(trie.sums(row), expected)


@pytest.mark.parametrize("answers", [[(1,), (1, 2)], [(1, 2), (1,)], [(1, 2), (1, 2)]])
def test_an_answer_that_begins_another_is_no_tree(answers):
    with pytest.raises(ValueError, match="begin"):
        label_trie(answers)
