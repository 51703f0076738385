"""A backend that samples, for tests without a model."""

from __future__ import annotations

from icl_bench.backends.interface import Answer, Decoding, Exact, Free
from icl_bench.prompts.encoding import PromptSet
from icl_bench.sweep.samples import Samples
from support.fakes import WORDS, FakeBackend

THREE = Samples(3, 0.7, seed=4)


class Sampler(FakeBackend):
    """Answers by the prompt and the sample."""

    def _answered(self, prompts: PromptSet, index: int, decoding: Decoding) -> Answer:
        assert not isinstance(decoding, Exact)
        assert decoding.sampling is not None
        assert decoding.sampling.temperature == 0.7
        number = (sum(prompts.ids(index)) + decoding.sampling.request_seed) % 3
        cached = len(prompts.prefix)
        if isinstance(decoding, Free):
            return Answer(index, cached, 3 + number, text=f" {WORDS[number]} ")
        return Answer(index, cached, 1 + number, label=number)
