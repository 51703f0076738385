"""Random numbers of sampled answers: functions of a seed and names, without global state.

A sample is the largest of logits plus temperature times Gumbel noise (Maddison, Tarlow and Minka 2014, A* sampling,
section 2), which has the softmax's distribution. The noise of a token depends on the seed, the row, the sample, the
step and the token, so an answer does not depend on its pack, on other rows or on interruptions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

_SEEDS = 2**31
"""Range of the seeds of requests: every server accepts integers of 31 bits."""


@dataclass(frozen=True)
class Sampling:
    """How one answer is sampled."""

    temperature: float
    seed: int
    names: tuple[str | int, ...] = ()
    """Which sample it is: the row's id, the number of the sample, ..."""

    @cached_property
    def _key(self) -> int:
        """128 bits of the seed and the names."""
        text = "\0".join(["sample", str(self.seed), *map(str, self.names)])
        return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16], "little")

    @property
    def request_seed(self) -> int:
        """A 31-bit seed for an engine or a server that samples itself."""
        return self._key % _SEEDS

    def named(self, *names: str | int) -> Sampling:
        """The sampling of a part of the same sample, with independent noise."""
        return Sampling(self.temperature, self.seed, (*self.names, *names))

    def noise(self, step: int, size: int) -> np.ndarray:
        """Gumbel noise times the temperature, for each token of one step: ``(size,)`` float32.

        Philox (Salmon et al. 2011) is counter-based: a step's numbers follow from its counter. Noise is at most
        22.9 times the temperature, because its smallest exponential variable is 2 ** -33.
        """
        raw = np.random.Philox(key=self._key, counter=step << 64).random_raw((size + 1) // 2)
        bits = raw.astype("<u8", copy=False).view("<u4")[:size].astype(np.float32)
        uniform = np.minimum((bits + np.float32(0.5)) * np.float32(2.0**-32), np.float32(1 - 2.0**-24))
        exponential = -np.log1p(-uniform)  # precise where it is small, that is where the noise is large
        noise: np.ndarray = np.float32(-self.temperature) * np.log(exponential)
        return noise
