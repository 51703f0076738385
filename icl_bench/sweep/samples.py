"""Self-consistency: several sampled answers to each query, and their majority.

Wang et al. 2023, https://arxiv.org/abs/2203.11171: answers are sampled at a temperature, and the most frequent one is
the prediction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from icl_bench.backends.interface import Answer, Decoding, Exact
from icl_bench.backends.sampling import Sampling
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.cells import Prediction

Ask = Callable[[PromptSet, Sequence[int], Sequence[Decoding]], Iterator[list[Answer]]]
"""Answers the prompts with these indices, each with its decoding, a pack at a time."""


@dataclass(frozen=True)
class Samples:
    """The number of samples per query, and how they are sampled."""

    count: int
    temperature: float
    seed: int = 0

    def of(self, decoding: Decoding, row: str, number: int) -> Decoding:
        """The decoding of one sample of a row's answer."""
        assert not isinstance(decoding, Exact), "refused before"
        return replace(decoding, sampling=Sampling(self.temperature, self.seed, (row, number)))


def asked(
    ask: Ask,
    prompts: PromptSet,
    todo: Sequence[int],
    decodings: Sequence[Decoding],
    samples: Samples | None,
    rows: Sequence[str],
) -> Iterator[list[tuple[Answer, ...]]]:
    """All answers to each prompt, in the order of its samples, a pack of prompts at a time.

    ``rows`` are the ids of the prompts' rows. Answers of a pack that were not requested are left out. The samples of a
    prompt are adjacent, so that they are packed together over one prefix. Each computes the prompt's own tokens.
    """
    if samples is None:
        wanted = frozenset(todo)
        for pack in ask(prompts, todo, decodings):
            yield [(answer,) for answer in pack if answer.index in wanted]
        return
    count = samples.count
    places = [(index, number) for index in range(len(prompts)) for number in range(count)]
    each = [samples.of(decodings[index], rows[index], number) for index, number in places]
    indices = [index * count + number for index in todo for number in range(count)]
    waiting: dict[int, list[Answer]] = {index: [] for index in todo}
    for pack in ask(prompts.repeated(count), indices, each):
        whole = []
        for answer in pack:
            index = answer.index // count
            if index not in waiting:
                continue
            waiting[index].append(answer)
            if len(waiting[index]) == count:
                answers = sorted(waiting.pop(index), key=lambda one: one.index)
                whole.append(tuple(replace(one, index=index) for one in answers))
        if whole:
            yield whole


def majority(samples: Sequence[Prediction], form: Callable[[str], str]) -> Prediction:
    """The most frequent prediction among samples; the first one on ties.

    Answers with equal ``form`` are equal. All samples without a valid answer count as one answer. Tokens are summed
    over samples, and the prediction is truncated if one sample is. All other fields are from the first sample with the
    answer.
    """
    votes = [form(one.prediction) if one.valid else None for one in samples]
    counts = Counter(votes)  # in the order of the samples, also for equal counts
    (winner, _), *_ = counts.most_common(1)
    first = {vote: samples[votes.index(vote)] for vote in counts}
    answers = tuple(first[vote].prediction if vote is not None else None for vote in votes)
    thoughts = [one.thought_tokens for one in samples]
    return replace(
        first[winner],
        prompt_tokens=sum(one.prompt_tokens for one in samples),
        cached_tokens=sum(one.cached_tokens for one in samples),
        answer_tokens=sum(one.answer_tokens for one in samples),
        local_prompt_tokens=_sum([one.local_prompt_tokens for one in samples]),
        cache_write_tokens=_sum([one.cache_write_tokens for one in samples]),
        reasoning_tokens=_sum([one.reasoning_tokens for one in samples]),
        truncated=_any([one.truncated for one in samples]),
        thought_truncated=_any([one.thought_truncated for one in samples]),
        samples=answers,
        sample_tokens=tuple(one.answer_tokens for one in samples),
        sample_texts=_known([one.text for one in samples]),
        thought_tokens=_sum(thoughts),
        sample_thoughts=_known([one.thought for one in samples]),
        sample_thought_tokens=tuple(tokens or 0 for tokens in thoughts) if _sum(thoughts) is not None else None,
    )


def singles(prediction: Prediction, limit: int = 0) -> list[Prediction]:
    """Copies of a prediction, one per sample, each with that sample's tokens.

    ``limit`` is the limit of thoughts, in tokens.
    """
    if prediction.sample_tokens is None:
        return [prediction]
    count = len(prediction.sample_tokens)
    thoughts: Sequence[int | None] = prediction.sample_thought_tokens or [None] * count
    return [
        replace(
            prediction,
            answer_tokens=tokens,
            thought_tokens=thought,
            thought_truncated=None if thought is None else thought >= limit,
        )
        for tokens, thought in zip(prediction.sample_tokens, thoughts, strict=True)
    ]


def _known(texts: Sequence[str | None]) -> tuple[str | None, ...] | None:
    """The texts of samples; None if no sample has one."""
    return tuple(texts) if any(text is not None for text in texts) else None


def _sum(counts: Sequence[int | None]) -> int | None:
    """The sum of counts that a server reports; None if it reports none."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _any(cut: Sequence[bool | None]) -> bool | None:
    """Whether one of the samples is truncated; None if unknown for all."""
    known = [one for one in cut if one is not None]
    return any(known) if known else None
