"""Attention patterns as text and as rules: what is written is what is meant."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import planned, tokenized_task

from icl_bench.errors import UserError
from icl_bench.models.architecture import Architecture
from icl_bench.models.attention_patterns import FULL, Approx, Block, Grouped, Pattern, ReceptiveSpan, keys_seen, split
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.tasks.task_files import load_task

NUMBERS = st.integers(1, 10**6)
PATTERNS = st.one_of(
    st.just(FULL),
    st.builds(Block, NUMBERS, st.integers(0, 9), st.integers(0, 9)),
    st.builds(Block, st.just(1), st.integers(0, 1), st.just(0), st.just(True)),
    st.builds(
        Block,
        NUMBERS,
        st.integers(0, 9),
        st.integers(0, 9),
        st.just(False),
        NUMBERS | st.integers(1, 10**9).map(lambda n: n / 10**9),
        st.sampled_from(["bm25", "dense"]),
    ),
    st.builds(Grouped, NUMBERS, NUMBERS),
    st.builds(Approx, NUMBERS, NUMBERS),
)
ENDS = st.lists(st.integers(1, 9), min_size=1, max_size=30).map(lambda x: np.cumsum(x).tolist())


@given(st.lists(PATTERNS, min_size=1, max_size=5))
def test_a_list_of_patterns_is_split_at_the_patterns(patterns: list[Pattern]) -> None:
    for comma in (",", ", "):
        assert [Pattern.parse(text) for text in split(comma.join(map(str, patterns)))] == patterns


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("block:0", "size 0; must be at least 1"),
        ("grouped:4,0", "WINDOW 0; must be at least 1"),
        ("grouped:0,4", "EVERY 0; must be at least 1"),
        ("approx:0,4", "WINDOW 0; must be at least 1"),
        ("approx:4,0", "CHUNK 0; must be at least 1"),
        ("block", "is written block:SIZE"),
        ("block:5,sinc=1", "is written block:SIZE"),
        ("block:5,sink=1,sink=2", "is written block:SIZE"),
        ("grouped:4", "is written grouped:EVERY,WINDOW"),
        ("block:-3", "is written block:SIZE"),
        ("blocks:3", "not an attention pattern; did you mean block?"),
        ("block:5,reuse", "has no neighbours there"),
        ("block:1,local=1,reuse", "has no neighbours there"),
        ("block:1,sink=2,reuse", "the sink is one demonstration, or 0"),
        ("block:5,top=0", "top is a number of blocks from 1, or a share of them above 0"),
        ("block:5,top=0.0", "top is a number of blocks from 1, or a share of them above 0"),
        ("block:5,top=1.5", "above 0 and up to 1.0, like 0.3"),
        ("block:5,top=-1", "is written block:SIZE"),
        ("block:5,top=3,top=4", "is written block:SIZE"),
        ("block:5,by=dense", "is written block:SIZE"),
        ("block:1,top=3,reuse", "leave one of them out"),
    ],
)
def test_mistakes_say_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        Pattern.parse(text)
    assert said in str(caught.value)
    assert f"--attention {text.partition(':')[0]}" in str(caught.value)
    assert "\n" not in str(caught.value)


@given(ENDS, st.integers(1, 7), st.integers(0, 3), st.integers(0, 3))
def test_a_layout_is_the_blocks_of_the_definition(ends: list[int], size: int, sink: int, local: int) -> None:
    layout = Block(size, sink, local).layout(ends)
    block = np.repeat(np.arange(len(ends)) // size, np.diff([0, *ends]))
    for token, mine in enumerate(block):
        seen = {
            key
            for key in range(token + 1)
            if block[key] == mine or block[key] < sink or mine - local <= block[key] < mine
        }
        start = int(layout.starts[token])
        assert seen == set(range(start, token + 1)) | set(range(min(layout.sink_end, start)))
    assert (np.diff(layout.starts) >= 0).all()
    positions = np.array([ends[-1], ends[-1] + 7])
    assert layout.first(positions).tolist() == [0, 0]  # the query sees everything


@given(ENDS, st.integers(1, 7), st.integers(0, 3), st.integers(0, 3), st.none() | st.integers(1, 3), st.data())
def test_blocks_are_full_attention_if_every_token_and_query_sees_all(
    ends: list[int], size: int, sink: int, local: int, top: int | None, data: Any
) -> None:
    pattern = Block(size, sink, local, top=top)
    scores = np.array(data.draw(st.lists(st.floats(0, 1), min_size=len(ends), max_size=len(ends))))
    layout = replace(pattern.layout(ends), read=pattern.read(ends, scores))
    tokens = ends[-1] + 3
    seen = keys_seen(ReceptiveSpan(), layout, 0, tokens)
    assert pattern.is_full(len(ends)) == (seen == tokens * (tokens + 1) // 2)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 4), st.integers(0, 30))
def test_a_window_is_full_attention_for_texts_that_it_holds(every: int, window: int, chunk: int, tokens: int) -> None:
    for pattern in (Grouped(every, window), Approx(window, chunk)):
        seen = [keys_seen(span, None, 0, tokens) for span in pattern.spans([None] * 9)]
        chunks = any(span.chunk and span.first(np.arange(tokens)).any() for span in pattern.spans([None] * 9))
        assert pattern.is_full_within(tokens) == (set(seen) == {tokens * (tokens + 1) // 2} and not chunks)
    assert FULL.is_full_within(tokens)
    assert not Block(50).is_full_within(tokens)


def test_other_patterns_are_not_full_attention_whatever_k_is() -> None:
    assert FULL.is_full(5)
    assert Block(50).is_full(200)
    assert not Block(50).is_full(201)
    assert not any(pattern.is_full(1) for pattern in (Block(1, reuse=True, local=0), Grouped(2, 64), Approx(4, 2)))


@given(
    ENDS,
    st.integers(1, 7),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, 9) | st.sampled_from([0.1, 0.3, 0.5, 1.0]),
    st.data(),
)
def test_a_query_reads_the_sink_the_last_blocks_and_the_most_similar_of_the_others(
    ends: list[int], size: int, sink: int, local: int, top: int | float, data: Any
) -> None:
    scores = data.draw(st.lists(st.sampled_from([-np.inf, 0.0, 0.5, 2.0]), min_size=len(ends), max_size=len(ends)))
    pattern = Block(size, sink, local, top=top)
    block = np.repeat(np.arange(len(ends)) // size, np.diff([0, *ends]))
    count = int(block[-1]) + 1
    best = [max(scores[b * size : (b + 1) * size]) for b in range(count)]
    always = {b for b in range(count) if b < sink or b >= count - local}
    others = sorted(set(range(count)) - always, key=lambda b: (best[b], b), reverse=True)
    wanted = top if isinstance(top, int) else -(-round(top * 1000) * count // 1000)
    read = always | set(others[:wanted])
    assert pattern.read_blocks(np.array(scores)) == tuple(sorted(read))
    found = pattern.read(ends, np.array(scores))
    assert found is not None
    tokens = {t for first, last in found for t in range(first, last)}
    assert tokens == {t for t, b in enumerate(block.tolist()) if b in read}
    assert all(a < b for pair in found for a, b in [pair])
    assert all(a[1] < b[0] for a, b in pairwise(found))
    assert Block(size, sink, local).read(ends, np.array(scores)) is None


@given(ENDS, st.integers(1, 7), st.none() | st.integers(1, 40), st.data())
def test_keys_of_a_query_are_those_that_it_reads_within_the_window(
    ends: list[int], size: int, window: int | None, data: Any
) -> None:
    pattern = Block(size, 1, 1, top=2)
    scores = np.array(data.draw(st.lists(st.floats(0, 1), min_size=len(ends), max_size=len(ends))))
    read, first = pattern.read(ends, scores), ends[-1] + data.draw(st.integers(0, 3))
    assert read is not None
    layout, last = replace(pattern.layout(ends), read=read), first + 5
    there = {t for a, b in read for t in range(a, b)} | set(range(ends[-1], last))
    expected = sum(
        key in there and key <= token and (window is None or token - key < window)
        for token in range(first, last)
        for key in range(last)
    )
    assert keys_seen(ReceptiveSpan(window), layout, first, last) == expected
    before = keys_seen(ReceptiveSpan(window), layout, 0, ends[-1])
    assert before == keys_seen(ReceptiveSpan(window), pattern.layout(ends), 0, ends[-1])


@given(ENDS, st.integers(1, 7), st.integers(0, 3), st.integers(0, 3), st.data())
def test_the_layout_of_fewer_demonstrations_begins_that_of_more(
    ends: list[int], size: int, sink: int, local: int, data: Any
) -> None:
    pattern, count = Block(size, sink, local), data.draw(st.integers(1, len(ends)))
    few, more = pattern.layout(ends[:count]), pattern.layout(ends)
    assert more.begins(few, ends[count - 1])
    other = Block(size, sink, local + 1).layout(ends)
    if not np.array_equal(other.starts, more.starts):
        assert not more.begins(other, ends[-1])


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 80))
def test_what_is_kept_is_all_that_a_later_token_sees(window: int, chunk: int, tokens: int) -> None:
    for span in (ReceptiveSpan(), ReceptiveSpan(window), ReceptiveSpan(window, chunk)):
        first = int(span.first(np.array([tokens]))[0])
        means = first // chunk if span.chunk else 0
        assert span.kept(tokens) == tokens - first + means
        # a token of its own sees what is kept, and itself
        assert keys_seen(span, None, tokens, tokens + 1) == span.kept(tokens) + 1
    assert ReceptiveSpan(window).kept(tokens) == min(tokens, window - 1)


def test_groups_are_counted_over_the_layers_that_are_global() -> None:
    everywhere = Grouped(4, 512).spans([None] * 6)
    assert [span.window for span in everywhere] == [None, 512, 512, 512, None, 512]
    gemma = [128, 128, None] * 4
    windows = [span.window for span in Grouped(2, 512).spans(gemma)]
    assert windows == [128, 128, None, 128, 128, 512] * 2


def test_the_complexities_of_zebras_table_9_are_the_formulas() -> None:
    tokens, width, every, chunk = 20_000, 64, 4, 16
    shape = Architecture(0, width, (None,) * 8, width)

    def pairs(pattern: Pattern) -> float:
        layers = pattern.spans(shape.windows)
        return sum(keys_seen(span, None, 0, tokens) for span in layers) / len(layers)

    # of the causal half: N²/2, W·N, N²/(2 C²) · C and N²/(2 L) with W·N in the other layers
    assert pairs(FULL) == pytest.approx(tokens**2 / 2, rel=1e-3)
    assert pairs(Grouped(10**6, 512)) == pytest.approx((tokens**2 / 2 + 7 * 512 * tokens) / 8, rel=0.02)
    group = tokens**2 / 2 / every + (every - 1) / every * 512 * tokens
    assert pairs(Grouped(every, 512)) == pytest.approx(group, rel=0.02)
    approx = tokens**2 / 2 / chunk + 512 * tokens
    assert pairs(Approx(512, chunk)) == pytest.approx(approx, rel=0.05)


# -- what may be asked ----------------------------------------------------------------------------


def spec(**more: Any) -> RunSpec:
    return RunSpec(**{"task": "stdlib", "model": "gemma3-270m", "k": "5", **more})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"attention": ("block:0",)}, "size 0"),
        ({"attention": ("block:1,reuse",)}, "reuse is for demonstrations that are all the query's own"),
        (
            {"attention": ("block:5,top=0.3",), "select": ("bm25",)},
            "top chooses among demonstrations that all queries share; bm25 has none",
        ),
        ({"attention": ("block:5,top=0.3",), "select": ("hybrid:1",)}, "hybrid:1 has none"),
        ({"attention": ("block:5,top=0.3",), "perturbation": "nearest-removed:10"}, "nearest-removed:10 has none"),
        ({"attention": ("block:5,top=0.3,by=bm",)}, "by=bm: not a similarity; did you mean bm25"),
        ({"attention": ("block:5,top=0.3",), "queries": "copied"}, "leave top out"),
        ({"attention": ("block:5,top=3",), "k": "10"}, "k=10 has 2 blocks of 5; ask for top=2 at most, or for a share"),
        (
            {"attention": ("block:1,reuse",), "select": ("bm25",), "order": ("by-label",)},
            "order by-label needs demonstrations that attend to each other",
        ),
        (
            {"attention": ("block:5",), "backend": "openai", "base_url": "http://x/v1", "tokenizer": "gemma3-270m"},
            "runs on --backend transformers, not openai",
        ),
    ],
)
def test_what_does_not_apply_is_refused_before_anything_is_read(
    asked: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(UserError, match=said):
        spec(**asked).check(load_task("stdlib"))


def test_cells_of_a_plan_are_named_by_their_attention_and_counted_by_it(tmp_path: Any) -> None:
    found = tokenized_task(tmp_path)
    plan = planned(found, "5,20", draws=2, attention=["full", "block:5", "block:5"])
    named = [(c.spec.attention, c.spec.draw, c.spec.k) for c in plan.cells]
    texts = ("full", "block:5,sink=1,local=2")
    assert named == [(text, draw, k) for text in texts for draw in (0, 1) for k in (5, 20)]
    layout = plan.cells[-1].prompt_layout.layout(0)
    assert layout is not None
    assert len(layout.starts) == plan.cells[-1].prefix_tokens


def test_with_reuse_the_sink_is_the_draws_first_and_stands_first_in_every_prompt(tmp_path: Any) -> None:
    found = tokenized_task(tmp_path)
    plan = planned(found, "4", ["bm25"], attention=["full", "block:1,reuse"])
    plain, reused = (group.group.demonstrations(4) for group in plan.groups)
    sink = found.pool.drawn(0)[0]
    assert (reused[:, 0] == sink).all()
    for mine, own in zip(reused, plain, strict=True):
        assert len(set(mine.tolist())) == 4
        others = [i for i in own[::-1].tolist() if i != sink][:3]  # most similar last
        assert mine[1:].tolist() == others[::-1]
    (cell,) = plan.groups[1].cells
    ((_, prompts),) = plan.groups[1].group.prompts([4])
    for i in range(len(prompts)):
        bounds = [prompts.lead, *prompts.ends_of(i)]
        assert all(start < end for start, end in pairwise(bounds))
    assert cell.new_tokens < plan.groups[0].cells[0].prompt_tokens
