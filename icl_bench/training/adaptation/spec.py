"""The options of ``adapt``."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from icl_bench.backends.spec import Device, Dtype, check_dtype
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import Pattern
from icl_bench.options import NAMES, TASK, TRAINING, Option, read_with
from icl_bench.sweep.options import OF_TEXTS, DataDir, PositionOptions, Seed, seed_field
from icl_bench.training.spec import OutFolder
from icl_bench.wording import plain

LEARNING_RATE = {"full": 1e-4, "lora": 1e-3}
"""Highest learning rate: Zebra's for all weights (section 3.1), ``finetune``'s for LoRA."""

INSTRUCTION_RATE = 2e-5
"""Highest learning rate for instruction tuning of all weights (Zebra, section 4.2)."""

LEAST_RATE = 0.1
"""Final learning rate as a share of the highest (Zebra, section 3.1)."""


def parse_tokens(text: str) -> int:
    """Parse a number like 500k or 1M. Raises ``UserError``."""
    match = re.fullmatch(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?([kKmMbB]?)", text)
    size = float(match[1] + "." + (match[2] or "0")) if match else 0.0
    tokens = int(size * {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}[match[3].lower()] if match else 0)
    if tokens < 1:
        raise UserError(f"--tokens {plain(text)}: give a number like 500k, 1M or 2000000")
    return tokens


class AdaptationSpec(PositionOptions):
    """Options of ``adapt``."""

    about: ClassVar[str] = "adapt"

    attention: Annotated[
        str,
        Option(
            "Pattern to train with: grouped:EVERY,WINDOW, approx:WINDOW,CHUNK, block:SIZE (demonstrations only), "
            "or full for comparison.",
            TRAINING,
            "PATTERN",
        ),
    ]
    texts: Annotated[Path | None, OF_TEXTS] = None
    instructions: Annotated[
        Path | None,
        Option(
            "A file of conversations instead of texts (instruction tuning): JSONL whose rows have messages, or "
            "instruction and output. Only the answers are targets.",
            TASK,
            "FILE",
        ),
    ] = None
    """Any file of rows."""
    out: OutFolder
    length: Annotated[int, Option("Number of tokens of a sequence.", TRAINING, "N")] = 2048
    tokens: Annotated[
        int,
        read_with(parse_tokens),
        Option(
            "Number of tokens to train on, like 500k or 1M.",
            TRAINING,
            "N",
            expected="a number like 500k or 1M",
            default="1M",
        ),
    ] = 1_000_000
    """Sequences are rounded up to whole steps."""
    method: Annotated[
        Literal["full", "lora"], Option("full: all weights; lora: added weights, merged at the end.", TRAINING, "NAME")
    ] = "full"
    batch: Annotated[int, Option("Sequences per step.", TRAINING, "N")] = Field(default=8, ge=1)
    learning_rate: Annotated[
        float | None,
        Option(
            "Highest learning rate, which decays to a tenth (default: 1e-4; 2e-5 with --instructions; 1e-3 for lora).",
            TRAINING,
            "RATE",
        ),
    ] = None
    demonstrations_too: Annotated[
        tuple[str, ...],
        NAMES,
        Option(
            "Also train on these tasks: many demonstrations of the pool in a sequence, with their answers as targets.",
            TRAINING,
            "LIST",
        ),
    ] = ()
    share: Annotated[float, Option("Share of the sequences that are demonstrations.", TRAINING, "SHARE")] = 0.25
    recompute: Annotated[
        bool,
        Option(
            "Recompute layers in the backward pass (gradient checkpointing): less memory, a third more time.", TRAINING
        ),
    ] = False
    lora_rank: Annotated[int, Option("Rank of the added weights of lora.", TRAINING, "N")] = Field(default=8, ge=1)
    seed: Seed = seed_field()
    data_dir: DataDir = None
    device: Device = None
    dtype: Dtype = "auto"

    @property
    def pattern(self) -> Pattern:
        """The parsed pattern. Raises ``UserError``."""
        return Pattern.parse(self.attention)

    @property
    def rate(self) -> float:
        """The highest learning rate."""
        if self.learning_rate is not None:
            return self.learning_rate
        return INSTRUCTION_RATE if self.instructions and self.method == "full" else LEARNING_RATE[self.method]

    def check(self) -> None:
        """Raise ``UserError`` for options that are wrong regardless of data and model."""
        check_dtype(self.dtype)
        pattern = self.pattern
        if pattern.reads_vectors:
            raise UserError(f"--attention {pattern}: needs icl-bench train-vectors")
        if pattern.compares:
            raise UserError(
                f"--attention {pattern}: training does not learn which blocks a query reads; train "
                "without top, and run with top"
            )
        if pattern.reuses:
            raise UserError(
                f"--attention {pattern}: reused demonstrations cannot be trained on; take block without reuse"
            )
        self._check_sources(pattern)
        if pattern.blocks and (not self.demonstrations_too or self.share < 1):
            raise UserError(
                f"--attention {pattern}: block patterns need demonstrations; add --demonstrations-too TASK --share 1"
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
        self.positions.check()
        if self.out.exists() and not self.out.is_dir():
            raise UserError(f"--out {self.out}: is a file; give a folder")

    def _check_sources(self, pattern: Pattern) -> None:
        """Raise ``UserError`` unless texts or instructions are given, and the pattern can learn from them."""
        if self.instructions is None:
            if self.texts is None:
                raise UserError("--texts: is missing; give a folder of texts, or --instructions FILE")
            return
        for name, given in (("--texts", self.texts), ("--demonstrations-too", self.demonstrations_too)):
            if given:
                raise UserError(f"--instructions: cannot be combined with {name}; train on {name} first")
        if pattern.blocks or any(span.chunk for span in pattern.spans((None,))):
            raise UserError(
                f"--attention {pattern}: cannot keep the conversations of a sequence apart, as --instructions needs; "
                "take full or grouped"
            )

    def decisive(self) -> dict[str, object]:
        """Settings that decide the trained weights, besides texts, data and model."""
        left_out = {"out", "data_dir", "device", "recompute", "texts", "instructions"}
        return {**self.model_dump(mode="json", exclude=left_out), "attention": str(self.pattern)}
