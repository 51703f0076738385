"""``icl-bench adapt``: goes on training a model under an attention pattern."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from icl_bench.cli import options as o

if TYPE_CHECKING:
    from icl_bench.training.adaptation.spec import AdaptationSpec

Attention = Annotated[
    str,
    typer.Option(
        "--attention",
        metavar="PATTERN",
        help="What to adapt to: grouped:EVERY,WINDOW, approx:WINDOW,CHUNK, block:SIZE (of "
        "demonstrations alone), or full, to compare with.",
        show_default=False,
    ),
]


Texts = Annotated[
    Path,
    typer.Option(
        "--texts",
        metavar="DIR",
        help="A folder of .txt and .txt.gz files in UTF-8; the last twentieth of each is held back.",
        show_default=False,
    ),
]


Length = Annotated[int, typer.Option("--length", metavar="N", help="Tokens of a sequence.")]


Tokens = Annotated[str, typer.Option("--tokens", metavar="N", help="To learn from, like 500k, 1M.")]


Method = Annotated[
    Literal["full", "lora"],
    typer.Option("--method", metavar="NAME", help="full: all weights; lora: added ones, merged."),
]


Batch = Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Sequences of a step.")]


Rate = Annotated[
    float | None,
    typer.Option(
        "--learning-rate",
        metavar="RATE",
        help="The highest (1e-4; of lora 1e-3); it falls to a tenth.",
        show_default=False,
    ),
]


RopeScale = Annotated[
    float | None,
    typer.Option(
        "--rope-scale",
        metavar="X",
        help="Divide positions by X, for sequences longer than the model was trained on.",
        show_default=False,
    ),
]


RopeTheta = Annotated[
    float | None,
    typer.Option(
        "--rope-theta",
        metavar="X",
        help="The base of the rotary positions; the model's own unless given.",
        show_default=False,
    ),
]


DemonstrationsToo = Annotated[
    str | None,
    typer.Option(
        "--demonstrations-too",
        metavar="LIST",
        help="Tasks whose pools' demonstrations are learnt from too: many in a sequence, their answers as targets.",
        show_default=False,
    ),
]


Share = Annotated[
    float, typer.Option("--share", metavar="SHARE", help="Of the sequences that are such demonstrations.")
]


Recompute = Annotated[
    bool,
    typer.Option(
        "--recompute",
        help="Compute layers again on the way back instead of keeping them (gradient "
        "checkpointing): less memory, a third more time.",
    ),
]


LoraRank = Annotated[int, typer.Option("--lora-rank", metavar="N", min=1, help="Of lora.")]


@dataclass(frozen=True, kw_only=True)
class AdaptOptions:
    """What ``adapt`` is told."""

    model: o.Model
    attention: Attention
    texts: Texts
    out: o.OutFolder
    length: Length = 2048
    tokens: Tokens = "1M"
    method: Method = "full"
    batch: Batch = 8
    learning_rate: Rate = None
    rope_scale: RopeScale = None
    rope_theta: RopeTheta = None
    demonstrations_too: DemonstrationsToo = None
    share: Share = 0.25
    recompute: Recompute = False
    lora_rank: LoraRank = 8
    seed: o.Seed = 0
    data_dir: o.DataDir = None
    dtype: o.Dtype = "auto"
    device: o.Device = None

    def spec(self) -> AdaptationSpec:
        """Read them. Raises ``UserError``."""
        from icl_bench.training.adaptation.spec import AdaptationSpec, parse_tokens
        from icl_bench.wording import comma_list

        told = dict(vars(self))
        tasks = comma_list(told.pop("demonstrations_too") or "")
        told["tokens"] = parse_tokens(self.tokens)
        return AdaptationSpec(**told, tasks=tuple(dict.fromkeys(tasks)))


@o.taking(AdaptOptions)
def adapt(options: AdaptOptions, quiet: o.Quiet = False) -> None:
    """Go on training a model under an attention pattern (Zebra).

    On long texts, and on a task's demonstrations where that is asked for. What was stopped goes on
    where it was. The checkpoint says its pattern: run, perplexity and report take it by --model DIR
    and read as it was trained.
    """
    from icl_bench.cli.training import carry_out
    from icl_bench.training.adaptation.training import Adaptation

    carry_out(Adaptation.prepare, options.spec(), quiet=quiet)
