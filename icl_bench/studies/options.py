"""Options for computing with several processes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from icl_bench.options import MACHINES, MODEL, Option, Options, as_text


class MachineOptions(Options):
    """The machines that compute a run, a training or a study."""

    workers: Annotated[
        str | None,
        BeforeValidator(as_text),
        Option(
            "transformers on a CPU: number of processes that share the model's weights and this machine's cores; auto "
            "takes several where they are faster.",
            MODEL,
            "N|auto",
            default="one process",
        ),
    ] = None
    on: Annotated[
        str | None,
        Option(
            "ray: this machine's Ray cluster, or several processes on this machine if there is none. ray://HOST:10001: "
            "another cluster.",
            MACHINES,
            "CLUSTER",
        ),
    ] = None
    engines: Annotated[
        str | None,
        Option(
            "With --on: number of processes with a loaded model (default: as many as the GPUs allow, or one per "
            "machine).",
            MACHINES,
            "N|auto",
        ),
    ] = None
    gpus_per_engine: Annotated[
        float | None,
        Option("With --on: GPUs of each process (default: 1, or the number of --tensor-parallel).", MACHINES, "N"),
    ] = Field(default=None, ge=0)
