"""Prompts as text and token ids: exact, with BOS once, nested, whatever the tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.models import Row, gpt2_tokenizer, llama_tokenizer, qwen_tokenizer, tokenized

from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL, Pattern, Ranges
from icl_bench.prompts.encoding import PromptSet, PromptTokenizer, parts, shared_prefix
from icl_bench.prompts.rendering import (
    PlainForm,
    Writing,
    answer_line,
    answer_text,
    demonstration_text,
    input_text,
    prompt_text,
    query_text,
)
from icl_bench.tasks.spec import Template
from icl_bench.tasks.task_files import known_tasks, load_task
from icl_bench.tasks.templates import JinjaTemplate

FEW = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
SHIPPED = {name: template for name in known_tasks() if isinstance(template := load_task(name).template, Template)}
TEMPLATES = {
    **SHIPPED,
    "bare": Template(input="{text}", output="{label}", separator="\n\n"),
    "blank-line": Template(input="Q: {text}", output="A: {label}", separator="\n\n"),
    "no-space": Template(input="<{text}>", output="label:{label}", separator="\n"),
    "markdown": Template(input="## {text}\r\n", output="- {label}", separator="\n\n---\n\n "),
}
NASTY = [
    "",
    " ",
    "two  spaces, a tail ",
    " a lead",
    "\n",
    "\n\n\nlines\n\n",
    "\r\n\t",
    "==\n==",
    "<bos>",
    "<s></s><|endoftext|><|im_start|>",
    "\u2581",
    "<0x0A>",
    "naïve 中文 🙂 e\u0301 \u0301",
    "{text} {0} {{",
    "\x00\x7f\ufeff\u200b",
    "a" * 40,
]
texts = st.lists(st.sampled_from([*NASTY, "where is my card?"]) | st.text(max_size=8), max_size=3)
texts = texts.map("".join)


def rows_of(template: Template, pairs: Sequence[tuple[str, str]]) -> list[Row]:
    """Examples whose every input field is the first of a pair and whose answer is the second."""
    return [Row(answer, dict.fromkeys(template.input_fields, text)) for text, answer in pairs]


ORDINARY = [
    ("where is my card?", "card arrival"),
    ("What is a thyroid ?", "description"),
    ("Amanda: I baked cookies.\r\nJerry: Sure! 🙂", "order status"),
    ("Return the number of bytes", "io"),
    ("naïve {brace} 中文", "état"),
]


def bos_of(tokenizer: Any) -> tuple[int, ...]:
    return () if tokenizer.bos_token_id is None else (tokenizer.bos_token_id,)


def assert_exact(tokenizer: Any, template: Template, shown: Sequence[Row], queries: Sequence[Row]) -> None:
    encoder = PromptTokenizer(PlainForm(template), tokenizer)
    sets = encoder.shared_prompts(shown, range(1, len(shown) + 1), queries)
    own = encoder.own_prompts([shown[i:] for i, _ in enumerate(queries)], queries)
    for i, query in enumerate(queries):
        for k, prompts in sets.items():
            text = prompt_text(template, shown[:k], query)
            assert prompts.ids(i) == bos_of(tokenizer) + tokenized(tokenizer, text)
            assert prompts.suffixes[i]
        text = prompt_text(template, shown[i:], query)
        assert own.ids(i) == bos_of(tokenizer) + tokenized(tokenizer, text) == encoder.whole(text)
    for count in range(len(shown) + 1):
        assert_mixed_exact(tokenizer, encoder, shown[:count], shown[count:], queries)
    for smaller, larger in pairwise(sets[k] for k in sorted(sets)):
        begun = len(smaller.prefix)
        # but where a tokenizer joins empty demonstrations with the query, so that no prompt has both
        if all(larger.ids(i)[:begun] == smaller.prefix for i in range(len(queries))):
            assert larger.prefix[:begun] == smaller.prefix


def assert_mixed_exact(
    tokenizer: Any, encoder: PromptTokenizer, shared: Sequence[Row], rest: Sequence[Row], queries: Sequence[Row]
) -> None:
    """Each query has as many of the rest as its own, in an order of its own."""
    own = [[*rest[i % len(rest) :], *rest[: i % len(rest)]] if rest else [] for i in range(len(queries))]
    mixed = encoder.mixed_prompts(shared, own, queries)
    for i, query in enumerate(queries):
        text = prompt_text(encoder.form.template, [*shared, *own[i]], query)
        assert mixed.text(i) == text
        assert mixed.ids(i) == bos_of(tokenizer) + tokenized(tokenizer, text)
        assert mixed.suffixes[i]


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_equal_tokenizing_the_whole_text(tokenizer, name):
    template = TEMPLATES[name]
    shown = rows_of(template, ORDINARY)
    assert_exact(tokenizer, template, shown, shown[:3])
    for awkward in NASTY[list(TEMPLATES).index(name) % 5 :: 5]:  # each with a fifth of the templates
        odd = rows_of(template, [(awkward, "x"), ("x", f"y{awkward}")])
        assert_exact(tokenizer, template, [shown[0], *odd, shown[1]], [shown[0], *odd[:1]])


@FEW
@given(
    name=st.sampled_from(sorted(TEMPLATES)),
    shown=st.lists(st.tuples(texts, texts), min_size=1, max_size=4),
    queries=st.lists(st.tuples(texts, texts), min_size=1, max_size=3),
)
def test_ids_equal_tokenizing_the_whole_text_for_any_text(tokenizer, name, shown, queries):
    template = TEMPLATES[name]
    assert_exact(tokenizer, template, rows_of(template, shown), rows_of(template, queries))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_tasks_prefix_is_all_of_its_demonstrations(tokenizer, name):
    """Every join holds, so that queries share all demonstrations and the next k extends them."""
    template = TEMPLATES[name]
    shown = rows_of(template, ORDINARY)
    encoder = PromptTokenizer(PlainForm(template), tokenizer)
    for k, prompts in encoder.shared_prompts(shown, [1, 2, 5], shown).items():
        assert prompts.prefix == encoder.whole("".join(map(encoder.form.demonstration, shown[:k])))
    mixed = encoder.mixed_prompts(shown[:3], [shown[3:], shown[:3:-1]], shown[:2])
    assert mixed.prefix == encoder.whole("".join(map(encoder.form.demonstration, shown[:3])))


def test_a_mixed_prompt_tells_where_all_of_its_demonstrations_end(tokenizer):
    template = TEMPLATES["banking77"]
    shown = rows_of(template, ORDINARY)
    encoder = PromptTokenizer(PlainForm(template), tokenizer)
    own = [shown[3:], shown[:3:-1]]
    mixed = encoder.mixed_prompts(shown[:3], own, shown[:2], ends=True)
    assert encoder.mixed_prompts(shown[:3], own, shown[:2]).ends == ()
    for i, behind in enumerate(own):
        pieces = list(map(encoder.form.demonstration, [*shown[:3], *behind]))
        starts = ["".join(pieces[: n + 1]) for n in range(len(pieces))]
        assert mixed.ends_of(i) == tuple(len(encoder.whole(start)) for start in starts)
    assert mixed.ends[0][:3] == encoder.shared_prompts(shown, [3], shown)[3].ends[0]


def test_a_prompt_of_its_own_demonstrations_tells_where_they_end(tokenizer):
    template = TEMPLATES["banking77"]
    shown = rows_of(template, ORDINARY)
    encoder = PromptTokenizer(PlainForm(template), tokenizer)
    own = [shown[1:4], shown[3:]]
    found = encoder.own_prompts(own, shown[:2], ends=True)
    assert encoder.mixed_prompts([], own, shown[:2], ends=True) == found
    assert encoder.own_prompts(own, shown[:2]).ends == ()
    assert found.lead == len(bos_of(tokenizer))
    for i, behind in enumerate(own):
        pieces = list(map(encoder.form.demonstration, behind))
        ends = [len(encoder.whole("".join(pieces[: n + 1]))) for n in range(len(pieces))]
        assert found.ends_of(i) == tuple(ends)
        bounds = pairwise([found.lead, *ends])
        assert parts(found, i) == [found.ids(i)[start:end] for start, end in bounds]
        assert parts(found, i, sink=2) == parts(found, i)[2:]


def test_a_token_that_spans_the_end_of_a_demonstration_belongs_to_it():
    tokenizer = gpt2_tokenizer()
    template = Template(input="is it {text}", output="intent: {label}", separator="\n==\n ")
    rows = rows_of(template, ORDINARY)
    encoder = PromptTokenizer(PlainForm(template), tokenizer)
    pieces = list(map(encoder.form.demonstration, rows[:3]))
    offsets = tokenizer("".join(pieces), return_offsets_mapping=True)["offset_mapping"]
    cuts = np.cumsum([*map(len, pieces)])
    ends = [1 + sum(start < cut for start, _ in offsets) for cut in cuts]  # behind BOS
    (found,) = encoder.shared_prompts(rows, [3], rows[:2]).values()
    assert len(found.prefix) < ends[-1]  # the last one is the query's
    assert found.ends == ((*ends[:2], len(found.prefix)),)


def test_a_tokenizer_that_does_not_tell_where_tokens_stand_is_refused_where_it_is_asked():
    known = gpt2_tokenizer()

    class Slow:
        bos_token_id = known.bos_token_id

        def __call__(self, *args: Any, **options: Any) -> Any:
            return known(*args, **options)

    template = Template(input="is it {text}", output="intent: {label}", separator="\n==\n ")
    rows = rows_of(template, ORDINARY)
    slow: Any = Slow()
    (found,) = PromptTokenizer(PlainForm(template), slow).shared_prompts(rows, [3], rows[:2]).values()
    (fast,) = PromptTokenizer(PlainForm(template), known).shared_prompts(rows, [3], rows[:2]).values()
    assert found.ends == ((),)
    assert (found.prefix, found.suffixes) == (fast.prefix, fast.suffixes)
    with pytest.raises(UserError, match=r"^--attention block: .* it needs a tokenizer\.json$"):
        PromptTokenizer(PlainForm(template), slow).own_prompts([rows], rows[:1], ends=True)


def test_where_every_join_holds_no_tokenizer_has_to_tell_where_demonstrations_end():
    known = gpt2_tokenizer()

    class Slow:
        bos_token_id = known.bos_token_id

        def __call__(self, *args: Any, **options: Any) -> Any:
            return known(*args, **options)

    template = TEMPLATES["banking77"]
    rows = rows_of(template, ORDINARY)
    slow: Any = Slow()
    found = PromptTokenizer(PlainForm(template), slow).shared_prompts(rows, [2], rows)[2]
    encoder = PromptTokenizer(PlainForm(template), known)
    first, second = map(encoder.form.demonstration, rows[:2])
    assert found.ends == ((len(encoder.whole(first)), len(encoder.whole(first + second))),)


@pytest.mark.parametrize("name", SHIPPED)
def test_lengths_of_demonstrations_add_up_to_the_prefix(tokenizer, name):
    template = TEMPLATES[name]
    shown = rows_of(template, ORDINARY)
    encoder = PromptTokenizer(PlainForm(template), tokenizer)
    lengths = encoder.demonstration_lengths(shown)
    sets = encoder.shared_prompts(shown, range(1, 6), shown)
    dummy = (
        len(tokenized(tokenizer, template.input))
        - len(tokenized(tokenizer, f"\n{template.input}"))
        + len(tokenized(tokenizer, "\n"))
    )
    for k, total in enumerate(np.cumsum(lengths), start=1):
        # a dummy prefix counts for the first demonstration only
        assert len(sets[k].prefix) == len(encoder.bos) + total + min(dummy, 1)


@pytest.mark.parametrize(
    "make", [llama_tokenizer, lambda **s: llama_tokenizer(legacy=True, **s)], ids=["llama", "llama-legacy"]
)
@pytest.mark.parametrize("adds_bos", [True, False])
def test_bos_stands_once_whatever_the_tokenizers_own_setting(make, adds_bos):
    tokenizer = make(add_bos_token=adds_bos)
    bos = tokenizer.bos_token_id
    assert (tokenizer("hi")["input_ids"][0] == bos) is adds_bos  # the setting is a real one
    template = TEMPLATES["banking77"]
    shown = rows_of(template, [("<s>", "</s>"), *ORDINARY])
    encoder = PromptTokenizer(PlainForm(template), tokenizer)
    sets = [*encoder.shared_prompts(shown, [1, 3], shown).values()]
    sets.append(encoder.own_prompts([shown for _ in shown], shown))
    sets.append(encoder.own_prompts([[] for _ in shown], shown))
    for prompts in sets:
        for i, _ in enumerate(shown):
            assert prompts.ids(i)[0] == bos
            assert prompts.ids(i).count(bos) == 1


def test_gemma_gets_bos_although_its_tokenizer_adds_none(gemma_tokenizer):
    assert gemma_tokenizer("hi")["input_ids"][0] != gemma_tokenizer.bos_token_id
    encoder = PromptTokenizer(PlainForm(TEMPLATES["trec"]), gemma_tokenizer)
    row = rows_of(TEMPLATES["trec"], [("<bos>", "<bos>")])
    ids = encoder.shared_prompts(row, [1], row)[1].ids(0)
    assert (ids[0], ids.count(2)) == (2, 1)


def test_a_tokenizer_without_bos_gets_none():
    tokenizer = qwen_tokenizer()
    rows = rows_of(TEMPLATES["trec"], ORDINARY)
    encoder = PromptTokenizer(PlainForm(TEMPLATES["trec"]), tokenizer)
    text = prompt_text(TEMPLATES["trec"], rows[:2], rows[2])
    assert encoder.shared_prompts(rows, [2], rows[2:])[2].ids(0) == tokenized(tokenizer, text)


def test_text_that_looks_like_a_special_token_stays_text(tokenizer):
    spelled = {number: token for token, number in tokenizer.get_vocab().items()}
    special = [spelled[number] for number in tokenizer.all_special_ids]
    template = TEMPLATES["clinic150"]
    rows = rows_of(template, [(f"{token} and{token}", f"x {token}") for token in special])
    prompts = PromptTokenizer(PlainForm(template), tokenizer).shared_prompts(rows, [len(rows)], rows)[len(rows)]
    for i, query in enumerate(rows):
        ids = prompts.ids(i)[len(bos_of(tokenizer)) :]
        assert not set(ids) & set(tokenizer.all_special_ids)
        assert tokenizer.decode(ids) == prompt_text(template, rows, query)


@pytest.mark.parametrize(("separator", "lead"), [("\n\n", "query:"), ("\n==\n ", "is it")])
def test_a_separator_that_merges_with_its_neighbours_is_still_exact_and_nested(separator, lead):
    """GPT-2 reads the white space before a word otherwise than that at a text's end."""
    tokenizer = gpt2_tokenizer()
    template = Template(input=f"{lead} {{text}}", output="intent: {label}", separator=separator)
    rows = rows_of(template, ORDINARY)
    encoder = PromptTokenizer(PlainForm(template), tokenizer)
    apart = [tokenized(tokenizer, piece) for piece in map(encoder.form.demonstration, rows)]
    whole = tokenized(tokenizer, "".join(map(encoder.form.demonstration, rows)))
    assert sum(apart, ()) != whole  # the case that this test is about
    assert_exact(tokenizer, template, rows, rows[:3])
    assert_exact(tokenizer, template, rows, rows[:1])
    sets = encoder.shared_prompts(rows, [1, 3, 5], rows[:3])
    for k, prompts in sets.items():  # and nearly all demonstrations are still shared
        pieces = list(map(encoder.form.demonstration, rows[:k]))
        assert len(prompts.prefix) >= len(encoder.whole("".join(pieces))) - 2


def test_one_row_that_does_not_join_leaves_the_prefixes_nested(tokenizer):
    template = TEMPLATES["banking77"]
    shown = rows_of(template, [*ORDINARY, ("x", "y\n\n\n"), *ORDINARY])
    queries = rows_of(template, [("a", ""), ("a", ""), ("ab", "")])
    assert_exact(tokenizer, template, shown, queries)


def test_the_prefix_leaves_every_query_a_token_of_its_own():
    assert shared_prefix([(1, 2, 3), (1, 2, 3)]).suffixes == ((3,), (3,))
    assert shared_prefix([(1, 2), (1, 2, 3)]).prefix == (1,)
    assert shared_prefix([(5,)]).ids(0) == (5,)
    assert shared_prefix([(1, 2, 3, 4)], within=(1, 2, 9)).prefix == (1, 2)
    assert shared_prefix([(1, 2, 3, 4)], within=(1,)).prefix == (1,)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), min_size=1),
    st.none() | st.lists(st.integers(0, 2), max_size=6).map(tuple),
)
def test_the_shared_prefix_is_the_longest_that_leaves_a_token(prompts, within):
    found = shared_prefix(prompts, within)
    assert [found.ids(i) for i, _ in enumerate(prompts)] == prompts
    longest = min(map(len, prompts)) - 1
    texts = prompts if within is None else [*prompts, within]
    common = next(
        n for n in range(longest, -1, -1) if len({t[:n] for t in texts}) == 1 and all(len(t) >= n for t in texts)
    )
    assert len(found.prefix) == common


def test_tokens_are_counted_once_for_each_prompt():
    prompts = shared_prefix([(1, 2, 3), (1, 2, 4, 5)])
    assert (prompts.longest, prompts.prompt_tokens, prompts.own_tokens) == (4, 7, 3)


def test_without_queries_the_longest_prompt_is_the_prefix():
    prompts = PromptSet((1, 2), ())
    assert (len(prompts), prompts.longest, prompts.prompt_tokens) == (0, 2, 0)


def test_a_hash_is_that_of_the_whole_prompts_ids_however_it_is_split():
    prompts = [(1, 2, 70_000), (1, 2, 4, 5)]
    found = shared_prefix(prompts)
    expected = [
        hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in ids)).hexdigest()[:16] for ids in prompts
    ]
    assert found.hashes() == expected == shared_prefix(prompts, within=(1,)).hashes()


def test_the_text_is_demonstrations_separators_and_the_query_up_to_its_answer():
    template = TEMPLATES["banking77"]
    shown, query = (rows_of(template, [("a ", "card arrival"), ("b", "top up")]), Row("", {"text": "c"}))
    assert prompt_text(template, shown, query) == (
        "query: a \nintent: card arrival\n==\nquery: b\nintent: top up\n==\nquery: c\nintent:"
    )
    assert answer_text(template, "top up") == " top up\n"
    assert demonstration_text(template, shown[1]) == "query: b\nintent: top up"


def test_braces_of_a_template_and_of_a_text_stay_as_they_are():
    template = Template(input="{{q}} {text}", output="{{{label}", separator="\n")
    row = Row("{label}", {"text": "{text}"})
    assert demonstration_text(template, row) == "{q} {text}\n{{label}"
    assert query_text(template, row) == "{q} {text}\n{"


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answers_ids_continue_its_query(tokenizer, name):
    """Query and answer together are the text's own tokens, wherever these part between them."""
    template = TEMPLATES[name]
    encoder = PromptTokenizer(PlainForm(template), tokenizer)
    (query,) = rows_of(template, [("where is my card?", "")])
    labels = ["card arrival", "card", "état", "[x] (y)", "中文", "a.b", "x "]
    start = query_text(template, query)
    for label, ids in zip(labels, encoder.answers(labels), strict=True):
        text = start + answer_text(template, label)
        prompt, whole = tokenized(tokenizer, start), tokenized(tokenizer, text)
        if whole[: len(prompt)] == prompt:
            assert prompt + ids == whole
        assert tokenizer.decode(prompt + ids) == text


# -- what a prompt tells of itself --------------------------------------------------------------


def test_plain_prompts_are_one_message_of_the_user_whatever_is_shown_of_demonstrations(tokenizer):
    template = Template(input="query: {text}", output="intent: {label}", separator="\n==\n")
    shown, query = rows_of(template, [("a", "x"), ("b", "y")]), Row("z", {"text": "c"})
    expected = {
        demonstration_text: "query: a\nintent: x\n==\nquery: b\nintent: y\n==\nquery: c\nintent:",
        input_text: "query: a\n==\nquery: b\n==\nquery: c\nintent:",
        answer_line: "intent: x\n==\nintent: y\n==\nquery: c\nintent:",
    }
    for piece, text in expected.items():
        form = PlainForm(template, Writing(piece))
        said = [{"role": "user", "content": text}]
        assert form.whole(shown, query) == text
        assert form.messages(shown, query) == said
        prompts = PromptTokenizer(form, tokenizer).shared_prompts(shown, [2], [shown[0], query])[2]
        assert prompts.messages(1) == said


def test_texts_that_are_read_as_vectors_stand_behind_a_prompt_of_its_own_tokens():
    one = PromptSet((1, 2), ((3,), (4,)), "ab", ("c", "d"))
    assert one.vectors_of(1) == ()
    assert one.with_vectors([(), ()]) == one
    alike = one.with_vectors([("x", "y")] * 2)
    assert (alike.prefix, alike.vector_texts) == ((1, 2), (("x", "y"),))
    assert alike.vectors_of(0) == alike.vectors_of(1) == ("x", "y")
    assert alike.with_vectors([(), ()]) == one
    own = one.with_vectors([("x",), ("y",)])
    assert (own.prefix, own.suffixes) == ((), ((1, 2, 3), (1, 2, 4)))
    assert (own.vectors_of(0), own.vectors_of(1), own.text(1)) == (("x",), ("y",), "abd")
    behind = [b"\0" + hashlib.sha256(text).digest() for text in (b"x", b"y")]
    ids = [b"".join(token.to_bytes(4, "little") for token in own.ids(i)) for i in range(2)]
    assert own.hashes() == [hashlib.sha256(ids[i] + behind[i]).hexdigest()[:16] for i in range(2)]
    assert alike.hashes()[1] == hashlib.sha256(ids[1] + b"".join(behind)).hexdigest()[:16]


class Nearest(Pattern):
    """Each query reads its most similar demonstration."""

    compares = "bm25"

    def read(self, ends: Sequence[int], similar: np.ndarray) -> Ranges | None:
        best = int(similar.argmax())
        return (([1, *ends][best], ends[best]),)


def test_each_query_reads_what_its_pattern_makes_of_its_own_ends_and_similarities():
    similar = np.array([[0.1, 0.9], [0.8, 0.2]])
    own = PromptSet((), ((1,), (2,)), ends=((3, 5), (4, 7)), similar=similar)
    assert own.read_by(Nearest()) == (((3, 5),), ((1, 4),))
    shared = PromptSet((), ((1,), (2,)), ends=((3, 5),), similar=similar)
    assert shared.read_by(Nearest()) == (((3, 5),), ((1, 3),))
    assert own.read_by(FULL) == ()
    assert PromptSet((), ((1,),), ends=((3, 5),)).read_by(Nearest()) == ()


@pytest.mark.parametrize("start", ["", "Answer with one word.\n\n"])
@pytest.mark.parametrize("separator", ["\n", "\n==\n "])
@pytest.mark.parametrize("make", [gpt2_tokenizer, qwen_tokenizer])
def test_a_lesson_tells_where_answers_begin_and_end_in_tokens(make: Any, separator: str, start: str):
    tokenizer = make()
    template = JinjaTemplate(engine="jinja", input="{{x}}", output="y", start=start, separator=separator)
    rows = [Row(answer, {"input": f"is it {text}\nintent:"}) for text, answer in ORDINARY]
    encoder = PromptTokenizer(PlainForm(template), tokenizer)
    ids, ends, answers = encoder.lesson(rows)
    text, begins, stops = start, [], []
    for one in rows:
        begins.append(len(text) + len(query_text(template, one)))
        text += demonstration_text(template, one) + separator
        stops.append(len(text))
    assert ids == bos_of(tokenizer) + tokenized(tokenizer, text)
    offsets = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    spans, lead = offsets["offset_mapping"], len(bos_of(tokenizer))
    first = [lead + next(n for n, (a, b) in enumerate(spans) if a <= at < b) for at in begins]
    last = [lead + sum(a < at for a, _ in spans) for at in stops]
    assert (ends, answers) == (tuple(last), list(zip(first, last, strict=True)))


@given(
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from(["", "Before."]),
    st.sampled_from(["", "Now."]),
)
def test_the_texts_of_a_prompts_demonstrations_do_not_depend_on_where_one_begins_to_read(
    count: int, complete: int, skip: int, preamble: str, instruction: str
):
    template = Template(input="query: {text}", output="intent: {label}", separator="\n==\n")
    rows = rows_of(template, [(f"t{i}", "x") for i in range(count)])
    writing = Writing(input_text, preamble, instruction, complete)
    texts = writing.texts(template, "|", rows)
    assert writing.texts(template, "|", rows, skip) == texts[skip:]
    inputs, whole = rows[: max(count - complete, 0)], rows[max(count - complete, 0) :]
    pieces = [
        *([preamble] if preamble and count else []),
        *(input_text(template, row) for row in inputs),
        *([instruction] if instruction and inputs else []),
        *(demonstration_text(template, row) for row in whole),
    ]
    assert "".join(texts) == "".join(piece + "|" for piece in pieces)
    if writing.nested:
        assert all("".join(texts).startswith("".join(writing.texts(template, "|", rows[:n]))) for n in range(count))
