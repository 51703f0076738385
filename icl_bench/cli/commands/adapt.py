"""``icl-bench adapt``: continues the training of a model under an attention pattern."""

from __future__ import annotations

from icl_bench.cli import options as o
from icl_bench.training.adaptation.spec import AdaptationSpec


@o.command(AdaptationSpec)
def adapt(options: o.OptionValues, quiet: o.Quiet = False) -> None:
    """Continue training a model for an attention pattern.

    The model is trained as in Zebra, on long texts, and with --demonstrations-too also on a task's demonstrations. Run
    the same command again to continue after an interruption. The checkpoint contains its pattern: run and perplexity
    apply it with --model DIR.
    """
    from icl_bench.cli.training import carry_out
    from icl_bench.training.adaptation.training import Adaptation

    carry_out(Adaptation.prepare, AdaptationSpec(**options), quiet=quiet)
