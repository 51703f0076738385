"""The cluster that computes a study: its options, and the interface that runs it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from icl_bench.errors import UserError
from icl_bench.results.storage import Place
from icl_bench.studies.options import MachineOptions
from icl_bench.studies.parts import Listener, Part
from icl_bench.sweep.runner import Outcome
from icl_bench.wording import plain

LOCAL_RAY = "ray"
"""``--on ray``: this machine's cluster, or a new one of this machine alone."""


class Cluster(Protocol):
    """Machines that compute the parts of a study together."""

    def run(self, parts: Sequence[Part], results: Place, listener: Listener) -> Outcome:
        """Compute what is missing in the results. Raises ``UserError``."""


@dataclass(frozen=True)
class ClusterSpec:
    """Options of a cluster: ``--on``, ``--engines``, ``--gpus-per-engine``."""

    address: str
    """``ray``, or ``ray://HOST:10001``."""
    engines: int | None = None
    """Number of processes that hold a model; None for as many as fit."""
    gpus_per_engine: float | None = None
    """None for as many as the study needs."""

    @classmethod
    def of(cls, options: MachineOptions) -> ClusterSpec | None:
        """The cluster that the options specify; None without ``--on``. Raises ``UserError``."""
        on, engines, gpus = options.on, options.engines, options.gpus_per_engine
        if on is None:
            for name, value in (("--engines", engines), ("--gpus-per-engine", gpus)):
                if value is not None:
                    raise UserError(f"{name} {value}: needs a cluster; give --on ray, too")
            return None
        if on != LOCAL_RAY and not on.startswith("ray://"):
            raise UserError(f"--on {plain(on)}: expected ray, or ray://HOST:10001")
        if importlib.util.find_spec("ray") is None:
            raise UserError("--on ray: Ray is not installed; pip install 'icl-bench[ray]'")
        number = None
        if engines is not None and engines != "auto":
            if not (engines.isascii() and engines.isdigit() and int(engines)):
                raise UserError(f"--engines {plain(engines)}: expected a number from 1, or auto")
            number = int(engines)
        if gpus is not None and gpus > 1 and gpus % 1:
            raise UserError(f"--gpus-per-engine {gpus}: expected a whole number, or a share below 1")
        return cls(on, number, gpus)
