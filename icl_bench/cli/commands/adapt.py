"""``icl-bench adapt``: continues the training of a model under an attention pattern."""

from __future__ import annotations

from icl_bench.cli import options as o
from icl_bench.training.adaptation.spec import AdaptationSpec


@o.command(AdaptationSpec)
def adapt(options: o.OptionValues, quiet: o.Quiet = False) -> None:
    """Continue training a model for an attention pattern.

    The training of Zebra: on long texts, and with --demonstrations-too on a task's demonstrations. A stopped
    training continues where it was. The checkpoint states its pattern: run, perplexity and report take it as
    --model DIR and read it as it was trained.
    """
    from icl_bench.cli.training import carry_out
    from icl_bench.training.adaptation.training import Adaptation

    carry_out(Adaptation.prepare, AdaptationSpec(**options), quiet=quiet)
