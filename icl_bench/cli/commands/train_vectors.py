"""``icl-bench train-vectors``: a model that reads demonstrations or passages as vectors."""

from __future__ import annotations

from icl_bench.cli import options as o
from icl_bench.training.vectors.spec import VectorSpec


@o.command(VectorSpec)
def train_vectors(options: o.OptionValues, quiet: o.Quiet = False) -> None:
    """Train a model that reads each text as one vector (Vec-RA).

    It trains on the task's pool, not on test rows. Run the same command again to continue after an interruption. Use
    the trained model with icl-bench run --model DIR --attention vectors:N.
    """
    from icl_bench.cli.training import carry_out
    from icl_bench.training.vectors.training import VectorTraining

    carry_out(VectorTraining.prepare, VectorSpec(**options), quiet=quiet)
