"""Everything that a user asks of adapting a model to an attention pattern, read once."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Literal

from icl_bench.backends.spec import check_dtype
from icl_bench.errors import UserError
from icl_bench.frozen import Frozen
from icl_bench.models.attention_patterns import Pattern, parse
from icl_bench.wording import plain

LEARNING_RATE = {"full": 1e-4, "lora": 1e-3}
"""At most: of all weights the paper's (004, section 3.1), of LoRA that of fine-tuning here."""

LEAST_RATE = 0.1
"""What the learning rate falls to, as a share of the highest (004, section 3.1)."""


def parse_tokens(text: str) -> int:
    """Read a number like 500k or 1M. Raises ``UserError``."""
    found = re.fullmatch(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?([kKmMbB]?)", text)
    size = float(found[1] + "." + (found[2] or "0")) if found else 0.0
    tokens = int(size * {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}[found[3].lower()] if found else 0)
    if tokens < 1:
        raise UserError(f"--tokens {plain(text)}: give a number like 500k, 1M or 2000000")
    return tokens


class AdaptationSpec(Frozen):
    """Everything that a user asks of ``adapt``."""

    model: str
    attention: str
    texts: Path
    """A folder of ``.txt`` and ``.txt.gz`` files in UTF-8."""
    out: Path
    length: int = 2048
    """Tokens of a sequence."""
    tokens: int = 1_000_000
    """To learn from, sequences rounded up to whole steps."""
    method: Literal["full", "lora"] = "full"
    batch: int = 8
    """Sequences of a step."""
    learning_rate: float | None = None
    rope_scale: float | None = None
    """Positions are divided by it (position interpolation)."""
    rope_theta: float | None = None
    tasks: tuple[str, ...] = ()
    """Whose pools' demonstrations are learnt from too."""
    share: float = 0.25
    """Of the sequences that are demonstrations, where there are tasks."""
    recompute: bool = False
    """Layers are computed again on the way back, instead of kept (gradient checkpointing)."""
    lora_rank: int = 8
    seed: int = 0
    data_dir: Path | None = None
    device: str | None = None
    dtype: str = "auto"

    @property
    def pattern(self) -> Pattern:
        """The pattern. Raises ``UserError``."""
        return parse(self.attention)

    @property
    def rate(self) -> float:
        """The highest learning rate."""
        return LEARNING_RATE[self.method] if self.learning_rate is None else self.learning_rate

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return math.ceil(self.tokens / (self.length * self.batch))

    def check(self) -> None:
        """Raise ``UserError`` for what can be told without data and model."""
        check_dtype(self.dtype)
        pattern = self.pattern
        if pattern.reads_vectors:
            raise UserError(f"--attention {pattern}: is learnt by icl-bench train-vectors")
        if pattern.compares:
            raise UserError(
                f"--attention {pattern}: which blocks a query reads is not learnt; take the same "
                "pattern without top, which can be run with it"
            )
        if pattern.reuses:
            raise UserError(
                f"--attention {pattern}: demonstrations that are put into prompts as they were "
                "computed are not learnt from; take block without reuse"
            )
        if pattern.blocks and (not self.tasks or self.share < 1):
            raise UserError(
                f"--attention {pattern}: counts demonstrations, and a text has none; add "
                "--demonstrations-too TASK --share 1"
            )
        if self.length < 2:
            raise UserError(f"--length {self.length}: expected 2 or more")
        if self.tokens < self.length * self.batch:
            raise UserError(
                f"--tokens {self.tokens:,}: less than one step of {self.batch} sequences of "
                f"{self.length:,}; give more, or a smaller --length or --batch"
            )
        if not 0 < self.rate < math.inf:
            raise UserError(f"--learning-rate {self.rate}: expected more than 0, like 1e-4")
        if not 0 < self.share <= 1:
            raise UserError(f"--share {self.share}: expected more than 0, up to 1")
        for name, value in (("scale", self.rope_scale), ("theta", self.rope_theta)):
            if value is not None and not 1 <= value < math.inf:
                raise UserError(f"--rope-{name} {value}: expected 1 or more")
        if self.out.exists() and not self.out.is_dir():
            raise UserError(f"--out {self.out}: is a file; give a folder")

    def decisive(self) -> dict[str, object]:
        """What decides the weights that come out, beside texts, data and model."""
        left_out = {"out", "data_dir", "device", "recompute", "texts"}
        return {**self.model_dump(mode="json", exclude=left_out), "attention": str(self.pattern)}
