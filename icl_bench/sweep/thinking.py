"""Thoughts before answers: each prompt is answered twice by a backend that knows nothing of thoughts.

First the model writes freely, up to the end mark, its limit, or the end of its text. Then the prompt, followed
by the thought and the end mark, is answered as the task says. The shared prefix is the same in both, so it stays
in the backend's cache, and the answers of a pack are complete before the next pack begins.

The second prompt has the very tokens that the model wrote, as far as they lie before the end mark. The mark is
tokenized as a continuation of them, and the space after it belongs to the answer, as in demonstrations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icl_bench.backends.interface import Answer, Backend, Decoding, Free, Thought
from icl_bench.models.attention_patterns import Pattern
from icl_bench.prompts.encoding import Ids, PromptSet, PromptTokenizer
from icl_bench.tasks.thoughts import ThoughtRule


@dataclass(frozen=True)
class Thinking:
    """How the prompts of one task are thought about and answered."""

    rule: ThoughtRule
    free: Free
    """How thoughts are written."""
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
        for pack in backend.answer(prompts, todo, [self.free] * len(prompts), reserve, pattern):
            indices = [written.index for written in pack]
            further = [self.further(prompts, written) for written in pack]
            second, own = prompts.extended(indices, further), [decodings[i] for i in indices]
            answers = backend.answer(second, range(len(pack)), own, reserve, pattern)
            yield [_joined(answer, pack[answer.index]) for answers_of_call in answers for answer in answers_of_call]

    def further(self, prompts: PromptSet, written: Answer) -> Ids:
        """The tokens between a prompt and its answer: the thought and its end mark."""
        before, thought = prompts.text(written.index), written.text or ""
        kept, text = self._kept(written.ids or (), thought)
        closing = self.encoder.form.closing(before + thought)
        until = self.rule.until_answer(before[-1:], thought, closing)
        return kept + self.encoder.continuation((before + text)[-_CONTEXT:], until[len(text) :])

    def _kept(self, ids: Ids, text: str) -> tuple[Ids, str]:
        """The generated tokens that lie in the thought as a whole, and their text."""
        for count in range(len(ids), 0, -1):
            kept = self.tokenizer.decode(ids[:count])
            if text.startswith(kept):
                return ids[:count], kept
        return (), ""


@dataclass(frozen=True)
class Parts:
    """How a thought and its answer are told apart in one text, as a server writes them."""

    rule: ThoughtRule
    stops: tuple[str, ...]
    """Texts that end the answer."""
    tokenizer: Any

    def of(self, answer: Answer) -> Answer:
        """The answer behind the end mark, with the thought before it. Without a mark there is no answer.

        The tokens of the thought and its mark are those of the local tokenizer, at most all; the answer has the rest.
        """
        if answer.reason is not None:
            return answer
        mark = self.rule.mark.strip()
        text, found, rest = (answer.text or "").partition(mark)
        if not found:
            thought = Thought(text, answer.answer_tokens, bool(answer.truncated))
            reason = f"no end mark {mark!r}" + (f" within {answer.answer_tokens:,} tokens" if answer.truncated else "")
            return replace(answer, text="", answer_tokens=0, raw=None, thought=thought, reason=reason)
        tokens = len(self.tokenizer([f"{text}{mark}"], add_special_tokens=False)["input_ids"][0])
        tokens = min(tokens, answer.answer_tokens)
        written = rest.lstrip()
        ended = Free(self.stops, 1).before_stop(written)
        return replace(
            answer,
            text=written if ended is None else ended,
            answer_tokens=answer.answer_tokens - tokens,
            raw=None if answer.raw is None else rest,
            thought=Thought(text, tokens, truncated=False),
        )


SPARE_TOKENS = 4
"""Tokens that the end mark may take beyond its own, where the model's last token before it is split."""

_CONTEXT = 40
"""Characters before the end mark that decide how it is tokenized."""


def _joined(answer: Answer, written: Answer) -> Answer:
    """The answer to a prompt with what was written before it."""
    thought = Thought(written.text or "", written.answer_tokens, bool(written.truncated))
    return replace(answer, index=written.index, cached_tokens=written.cached_tokens, thought=thought)
