"""A sweep from what a user asks for to finished cells: the program's main entry as a library."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import Field

from icl_bench.backends.base import Backend
from icl_bench.data import load_data
from icl_bench.errors import UserError, nearest
from icl_bench.experiment import Experiment, Scoring
from icl_bench.models import Model, load_tokenizer, resolve
from icl_bench.plan import Plan, check_request, make_plan
from icl_bench.runner import Outcome, Runner, Watcher
from icl_bench.shots import Shots
from icl_bench.spec import Frozen, TaskSpec
from icl_bench.store import Store
from icl_bench.taskfile import load_task

BACKENDS = {"transformers": "PyTorch on the CPU or CUDA; packs queries over one prefix cache"}
DTYPES = ("auto", "float32", "bfloat16", "float16")


class RunSpec(Frozen):
    """Everything that a user asks of a run."""

    task: str
    """A shipped task's name, or the path of a task file."""
    model: str
    """A registry name, a folder or a hub id."""
    k: str
    select: tuple[str, ...] = ("random",)
    order: tuple[str, ...] | None = None
    """Orders of the demonstrations; by default ``drawn``, and ``relevance`` for retrieval."""
    draws: int | None = None
    seed: int = 0
    scoring: Scoring = "greedy"
    test_size: int | None = None
    data_dir: Path | None = None
    context_tokens: int | None = None
    backend: str = "transformers"
    dtype: str = "auto"
    device: str | None = None
    pack_rows: int | None = Field(default=None, ge=1)
    """Queries per call of the model, at most; chosen by the backend unless given."""


@dataclass
class Sweep:
    """A planned run of one task and model."""

    spec: RunSpec
    model: Model
    experiment: Experiment
    plan: Plan

    @classmethod
    def prepare(cls, spec: RunSpec, say: Callable[[str], None] = lambda _: None) -> Sweep:
        """Load data and tokenizer and lay out the plan; nothing is computed yet.

        ``say`` is told, in a few words, what is being done. Raises ``UserError``.
        """
        shots = Shots.parse(spec.k)
        task = load_task(spec.task)
        check(spec, task)
        say(f"reading {task.name}")
        data = load_data(task, data_dir=spec.data_dir, test_size=spec.test_size)
        say(f"preparing {spec.model}")
        model = resolve(spec.model, spec.context_tokens)
        experiment = Experiment(data, model, load_tokenizer(model), spec.seed, spec.scoring)
        say("counting tokens")
        plan = make_plan(experiment, shots, spec.select, spec.order, spec.draws)
        return cls(spec, model, experiment, plan)

    def engine(self) -> dict[str, str]:
        """The engine's identity, known without loading it."""
        from icl_bench.backends.transformers import choose_device, choose_dtype

        dtype = choose_dtype(self._dtype, choose_device(self.spec.device))
        return {"backend": self.spec.backend, "dtype": str(dtype).removeprefix("torch.")}

    @property
    def _dtype(self) -> str:
        return self.model.dtype if self.spec.dtype == "auto" else self.spec.dtype

    def load_backend(self) -> Backend:
        """Load the model."""
        from icl_bench.backends.transformers import TransformersBackend

        return TransformersBackend(
            self.model.source,
            self.experiment.tokenizer,
            revision=self.model.revision,
            dtype=self._dtype,
            device=self.spec.device,
            pack_rows=self.spec.pack_rows,
        )

    def estimates(self) -> list[float]:
        """Estimated seconds of each cell of the plan, in its order."""
        from icl_bench.backends.transformers import choose_device
        from icl_bench.estimate import device_rate, seconds, shape_of

        rate = device_rate(str(choose_device(self.spec.device)), self.engine()["dtype"])
        rows = len(self.experiment.data.test)
        return seconds(shape_of(self.model.source), rate, self.plan.cells, rows)

    def run(self, results: Path, watcher: Watcher | None = None) -> Outcome:
        """Compute what is not in the results folder yet. Raises ``UserError``."""
        runner = Runner(
            self.plan,
            Store(results),
            self.engine(),
            self.load_backend,
            watcher or Watcher(),
            about=versions(),
        )
        return runner.run()


def check(spec: RunSpec, task: TaskSpec) -> None:
    """Raise ``UserError`` for what can be told without data and model."""
    if spec.backend not in BACKENDS:
        raise UserError(
            f"--backend {spec.backend}: not an engine; {nearest(spec.backend, BACKENDS)}"
        )
    if spec.dtype not in DTYPES:
        raise UserError(f"--dtype {spec.dtype}: not a dtype; {nearest(spec.dtype, DTYPES)}")
    if spec.scoring != "greedy" and not task.is_classification:
        option = "--unconstrained" if spec.scoring == "unconstrained" else "--score exact"
        raise UserError(f"{option}: task {task.name} is free text, it has no labels")
    check_request(spec.select, spec.order, spec.draws, labelled=task.is_classification)
    if spec.device is not None:
        from icl_bench.backends.transformers import choose_device

        choose_device(spec.device)


def versions() -> dict[str, str]:
    """Versions of what computes predictions, stored beside them."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("icl-bench", "torch", "transformers", "outlines_core", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
