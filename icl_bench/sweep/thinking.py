"""Thoughts before answers: two backend calls per prompt, so backends need no support for thoughts.

The first call generates the thought up to the end mark, its limit, or an end token. The second call answers the prompt
followed by the thought and the end mark, with the task's decoding. The shared prefix is the same in both, so it stays
in the backend's cache, and the answers of a pack are complete before the next pack begins.

The second prompt contains the generated tokens before the end mark unchanged. The mark is tokenized as their
continuation. The space after it belongs to the answer, as in demonstrations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icl_bench.backends.interface import Answer, Backend, Decoding, Exact, Free, Thought
from icl_bench.models.attention_patterns import Pattern
from icl_bench.prompts.encoding import Ids, PromptSet, PromptTokenizer
from icl_bench.tasks.thoughts import ThoughtRule


@dataclass(frozen=True)
class Thinking:
    """How prompts of one task are answered with thoughts."""

    rule: ThoughtRule
    free: Free
    """The decoding of thoughts."""
    encoder: PromptTokenizer
    tokenizer: Any

    def answer(
        self,
        backend: Backend,
        prompts: PromptSet,
        todo: Sequence[int],
        decodings: Sequence[Decoding],
        reserve: int,
        pattern: Pattern,
    ) -> Iterator[list[Answer]]:
        """See ``Backend.answer``: the answers to the prompts, each with its thought."""
        free = [self._written(decoding) for decoding in decodings]
        for pack in backend.answer(prompts, todo, free, reserve, pattern):
            indices = [written.index for written in pack]
            further = [self.further(prompts, written) for written in pack]
            second, own = prompts.extended(indices, further), [decodings[i] for i in indices]
            answers = backend.answer(second, range(len(pack)), own, reserve, pattern)
            yield [_joined(answer, pack[answer.index]) for answers_of_call in answers for answer in answers_of_call]

    def _written(self, decoding: Decoding) -> Free:
        """The decoding of the thought before an answer: sampled if the answer is, with independent noise."""
        if isinstance(decoding, Exact) or decoding.sampling is None:
            return self.free
        return replace(self.free, sampling=decoding.sampling.named("thought"))

    def further(self, prompts: PromptSet, written: Answer) -> Ids:
        """The tokens between a prompt and its answer: the thought and its end mark."""
        before, thought = prompts.text(written.index), written.text or ""
        kept, text = self._kept(written.ids or (), thought)
        closing = self.encoder.form.closing(before + thought)
        until = self.rule.until_answer(before[-1:], thought, closing)
        return kept + self.encoder.continuation((before + text)[-_CONTEXT:], until[len(text) :])

    def _kept(self, ids: Ids, text: str) -> tuple[Ids, str]:
        """The generated tokens that are completely inside the thought, and their text."""
        for count in range(len(ids), 0, -1):
            kept = self.tokenizer.decode(ids[:count])
            if text.startswith(kept):
                return ids[:count], kept
        return (), ""


NO_MARK = "no end mark"
"""The beginning of the reason for a text without an end mark."""


@dataclass(frozen=True)
class Parts:
    """Splits the text of a server into a thought and its answer."""

    rule: ThoughtRule
    stops: tuple[str, ...]
    """Texts that end the answer."""
    tokenizer: Any

    def of(self, answer: Answer) -> Answer:
        """Return the answer after the end mark, with the thought before it. Without a mark there is no answer.

        Tokens of the thought and its mark are counted by the local tokenizer, up to the server's total. The rest are
        the answer's.
        """
        if answer.reason is not None:
            return answer
        mark = self.rule.mark.strip()
        text, found, rest = (answer.text or "").partition(mark)
        if not found:
            thought = Thought(text, answer.answer_tokens, bool(answer.truncated))
            reason = f"{NO_MARK} {mark!r}" + (f" within {answer.answer_tokens:,} tokens" if answer.truncated else "")
            return replace(answer, text="", answer_tokens=0, raw=None, thought=thought, reason=reason)
        tokens = len(self.tokenizer([f"{text}{mark}"], add_special_tokens=False)["input_ids"][0])
        tokens = min(tokens, answer.answer_tokens)
        written = rest.lstrip()
        ended = Free(self.stops, 1).before_stop(written)
        return replace(
            answer,
            text=written if ended is None else ended,
            truncated=answer.truncated and ended is None,
            answer_tokens=answer.answer_tokens - tokens,
            raw=None if answer.raw is None else rest,
            thought=Thought(text, tokens, truncated=False),
        )


SPARE_TOKENS = 4
"""Extra tokens for the end mark if the last generated token before it is split."""

_CONTEXT = 40
"""Characters before the end mark that decide how it is tokenized."""


def _joined(answer: Answer, written: Answer) -> Answer:
    """The answer to a prompt with what was written before it."""
    thought = Thought(written.text or "", written.answer_tokens, bool(written.truncated))
    return replace(answer, index=written.index, cached_tokens=written.cached_tokens, thought=thought)
