"""Long, resumable trainings by transformers' Trainer, with progress messages.

The output folder contains unfinished work in :data:`CHECKPOINTS`, and finally the model with :data:`LOG`, which is
written last: a folder with it is complete. This also applies to each checkpoint.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from icl_bench.errors import CellError, UserError
from icl_bench.models.cache_folder import UNFINISHED
from icl_bench.models.hub import TOKENIZER_FILES
from icl_bench.models.trained import LOG
from icl_bench.results.cells import short_hash
from icl_bench.tasks.spec import TaskSpec
from icl_bench.text_files import write_whole
from icl_bench.training.trainer import on_one_device, with_batches

Say = Callable[[str], None]

CHECKPOINTS = "checkpoints"
"""Folder of unfinished work in the output folder."""

STARTED, LEARNT_WEIGHTS = "started.json", "trained.safetensors"
"""Files of unfinished work: the settings, and a checkpoint's trained weights."""

SAVE_STEPS = 200
"""Maximum number of steps between checkpoints."""

AGAIN = "take a smaller --learning-rate"

LATER = frozenset({"prompt_form"})
"""Settings that earlier versions did not store. A folder without them is accepted."""


@dataclass(frozen=True)
class TrainingFolder:
    """The output folder of a training."""

    out: Path
    settings: Mapping[str, Any]
    """Everything that decides the trained weights, as JSON values."""

    @property
    def unfinished(self) -> Path:
        """The folder of unfinished work."""
        return self.out / CHECKPOINTS

    def is_done(self) -> bool:
        """Whether it contains this training's result. Writes nothing. Raises ``UserError`` if it contains something
        else.
        """
        out = self.out
        if not _has_files(out):
            return False
        for file in (out / LOG, self.unfinished / STARTED):
            try:
                stored = json.loads(file.read_text(encoding="utf-8"))
                other = stored["settings"] if file.name == LOG else stored
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if other == {n: value for n, value in self.settings.items() if n in other or n not in LATER}:
                return file.name == LOG
            raise UserError(
                f"--out {out}: holds another training ({self._differs(other)}); "
                "give another folder, or the same options"
            )
        raise UserError(f"--out {out}: is not empty; give a new folder")

    def _differs(self, other: Mapping[str, Any]) -> str:
        """The first setting in which another training differs."""
        for name in {**self.settings, **other}:
            if (value := self.settings.get(name)) != (before := other.get(name)):
                return f"{name} {before!r} instead of {value!r}"
        return "other options"

    def begin(self) -> Path:
        """Create the folder of unfinished work, and store the settings in it."""
        write_whole(self.unfinished / STARTED, json.dumps(self.settings).encode())
        return self.unfinished

    def last_checkpoint(self) -> tuple[Path | None, int]:
        """The last complete checkpoint and its number of steps; None and 0 without any. Others are removed."""
        by_step = {}
        for folder in self.unfinished.glob("checkpoint-*"):
            if (folder / LOG).is_file():
                by_step[int(folder.name.rpartition("-")[2])] = folder
            else:
                shutil.rmtree(folder)
        return (by_step[max(by_step)], max(by_step)) if by_step else (None, 0)

    def write_tokenizer(self, source: Path) -> None:
        """Copy the tokenizer's files of the original model."""
        for pattern in TOKENIZER_FILES:
            for file in source.glob(pattern):
                if not (self.out / file.name).exists():
                    write_whole(self.out / file.name, file.read_bytes())

    def finish(self, log: Mapping[str, Any]) -> None:
        """Write the log after the model, and remove unfinished work."""
        text = json.dumps({"settings": self.settings, **log}, indent=2)
        write_whole(self.out / LOG, f"{text}\n".encode())
        self.remove_unfinished()

    def remove_unfinished(self) -> None:
        """Remove unfinished work, including leftovers of a process that was killed while removing it."""
        shutil.rmtree(self.unfinished, ignore_errors=True)


def prompt_form(task: TaskSpec) -> str:
    """Hash of the settings of a task that decide its training rows, given its data files."""
    deciding: Any = {"template": True, "labels": True, "answer": True, "pool": True, "data": {"fields", "passages"}}
    return short_hash(task.model_dump(mode="json", include=deciding, exclude_defaults=True))


def _has_files(folder: Path) -> bool:
    """Whether a folder has complete files. A training killed before its first checkpoint has none."""
    return any(path.is_file() and not UNFINISHED.fullmatch(path.name) for path in folder.rglob("*"))


class Learning(Protocol):
    """A model in training."""

    counts: dict[str, int]
    """Amounts of training data so far, including ``tokens``."""

    def learnt(self) -> dict[str, Any]:
        """All weights that training changes, now or later, by name."""


def save_weights(model: Learning, file: Path) -> None:
    """Write the trained weights atomically."""
    from safetensors.torch import save_file

    part = file.with_suffix(".part")
    save_file({name: p.detach().contiguous() for name, p in model.learnt().items()}, part)
    part.replace(file)


def read_weights(file: Path, model: Learning) -> None:
    """Load trained weights into the model."""
    from safetensors.torch import load_file
    from torch import no_grad

    weights = load_file(file)
    with no_grad():
        for name, weight in model.learnt().items():
            weight.copy_(weights[name])


class LongTraining(ABC):
    """A planned, resumable training."""

    device: str
    dtype: str
    log: dict[str, Any]
    """Record of the training: ``seconds``, ``tokens``, ``losses`` on validation rows by step in nats per token, and
    more.
    """

    @property
    @abstractmethod
    def folder(self) -> TrainingFolder:
        """Its output folder."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps of the whole training."""

    @property
    @abstractmethod
    def step_size(self) -> str:
        """The size of a step as text, for the message about a lack of memory."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Notes for the user before the training."""

    @abstractmethod
    def set_up(self, unfinished: Path, say: Say) -> Any:
        """Load the model and create the Trainer; ``unfinished`` is the folder of its checkpoints."""

    @abstractmethod
    def write(self, trainer: Any, unfinished: Path) -> None:
        """Write the trained model, and complete the log."""

    def run(self, say: Say = lambda _: None) -> None:
        """Train, or resume a stopped training, and write the folder.

        Raises ``UserError``, also for a lack of memory and for losses that are not numbers.
        """
        try:
            self._run(say)
        except CellError as error:
            raise UserError(str(error)) from None

    def _run(self, say: Say) -> None:
        from icl_bench.backends.transformers.device_memory import memory_errors_as_cell_errors

        unfinished = self.folder.begin()
        with memory_errors_as_cell_errors(f"on {self.device} while training ({self.step_size})"):
            trainer = self.set_up(unfinished, say)
            last, done = self.folder.last_checkpoint()
            if last is not None:
                say(f"continuing from step {done:,} of {self.steps:,}")
            trainer.train(resume_from_checkpoint=str(last) if last else None)
        self.write(trainer, unfinished)
        self.folder.finish(self.log)

    def arguments(self, unfinished: Path, look_each: int, **more: Any) -> Any:
        """The Trainer's arguments: those of all long trainings, and ``more``."""
        from transformers import TrainingArguments

        return on_one_device(TrainingArguments, self.device)(
            output_dir=str(unfinished),
            report_to="none",
            disable_tqdm=True,
            num_train_epochs=1,
            max_steps=self.steps,
            max_grad_norm=1.0,
            save_strategy="steps",
            save_steps=min(look_each, SAVE_STEPS),
            save_total_limit=2,
            eval_strategy="steps",
            eval_steps=look_each,
            eval_on_start=True,
            logging_strategy="steps",
            logging_steps=max(1, self.steps // 20),
            remove_unused_columns=False,
            label_names=["labels"],
            dataloader_num_workers=0,
            dataloader_pin_memory=False,
            use_cpu=not self.device.startswith("cuda"),
            bf16=self.dtype == "bfloat16",
            **more,
        )


@dataclass(frozen=True)
class Course:
    """Settings of a training's progress: steps, evaluations and log."""

    steps: int
    look_each: int
    """Steps between two evaluations on the validation rows."""
    folder: Path
    """The folder of unfinished work."""
    log: dict[str, Any]
    """``seconds``, ``losses`` (``step``, ``validation`` in nats per token, and the ``tokens`` of the training so far)
    and the model's counts; filled during the training.
    """
    say: Say


def trainer_of(batches: Sequence[list[int]], **parts: Any) -> Any:
    """A Trainer with these batches in this order, whose checkpoints hold trained weights only.

    It prints nothing on standard output. ``parts`` are its other arguments.
    """
    from transformers import Trainer
    from transformers.trainer_callback import PrinterCallback

    class Resumable(with_batches(Trainer, batches)):  # type: ignore[misc]
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:  # noqa: ARG002
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            save_weights(self.model, folder / LEARNT_WEIGHTS)

        def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
            read_weights(Path(resume_from_checkpoint) / LEARNT_WEIGHTS, model or self.model)

    trainer = Resumable(**parts)
    trainer.remove_callback(PrinterCallback)
    return trainer


def watcher(
    course: Course,
    model: Learning,
    *,
    better: Callable[[], None] = lambda: None,
    each_step: Callable[[int], None] = lambda _: None,
) -> Any:
    """A callback that fills the course's log and reports progress.

    ``better`` is called if the validation loss is the lowest so far, ``each_step`` before every step
    with the number of finished steps. Losses that are not numbers raise ``CellError``.
    """
    from transformers import TrainerCallback

    log, say, steps = course.log, course.say, f"{course.steps:,}"

    def kept(step: int) -> Path:
        return course.folder / f"checkpoint-{step}" / LOG

    class Watcher(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            if state.global_step:
                log.update(json.loads(kept(state.global_step).read_text(encoding="utf-8")))
                log["losses"] = [at for at in log["losses"] if at["step"] <= state.global_step]
            self.began, self.before = time.perf_counter(), dict(log)
            self.first = state.global_step
            model.counts.update(dict.fromkeys(model.counts, 0))

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            each_step(state.global_step)

        def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
            step, loss = state.global_step, float(more["metrics"]["eval_loss"])
            if not math.isfinite(loss):
                raise CellError(f"the loss on the validation rows is infinite or NaN; {AGAIN}")
            if any(at["step"] == step for at in log["losses"]) or step % course.look_each:
                return  # resuming evaluates once more, which would count as a further selection
            if loss < min((at["validation"] for at in log["losses"]), default=math.inf):
                better()
            self.take_stock()
            log["losses"].append({"step": step, "validation": loss, "tokens": log["tokens"]})
            say(f"step {step:,} of {steps}: validation loss {loss:.3f}")

        def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
            step, loss = state.global_step, (more.get("logs") or {}).get("loss")
            if loss is None:
                return
            if not math.isfinite(float(loss)):
                raise CellError(f"the loss is infinite or NaN after step {step:,}; {AGAIN}")
            taken = time.perf_counter() - self.began
            left = taken / max(1, step - self.first) * (course.steps - step)
            rate = model.counts["tokens"] / max(taken, 1e-9)
            say(
                f"step {step:,} of {steps}: loss {float(loss):.3f}, {rate:,.0f} tokens a second, "
                f"{left / 60:,.0f} min left"
            )

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.take_stock()
            write_whole(kept(state.global_step), json.dumps(log).encode())

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.take_stock()

        def take_stock(self) -> None:
            seconds = self.before["seconds"] + time.perf_counter() - self.began
            log["seconds"] = round(seconds, 3)
            for name, count in model.counts.items():
                log[name] = self.before.get(name, 0) + count

    return Watcher()
