"""Long trainings by transformers' Trainer: they go on where they were stopped, and say how far.

The folder that is written holds unfinished work in :data:`CHECKPOINTS`, and at the end the model
with :data:`LOG`, which is written last: what is there is whole.
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
from icl_bench.models.hub import TOKENIZER_FILES
from icl_bench.models.trained import LOG
from icl_bench.training.trainer import on_one_device

Say = Callable[[str], None]

CHECKPOINTS = "checkpoints"
"""In the folder that is written: unfinished work."""

STARTED, PART = "started.json", "trained.safetensors"
"""Among the unfinished work: what was asked for, and the learnt weights of a checkpoint."""

SAVE_STEPS = 200
"""Steps that are lost at most."""

AGAIN = "take a smaller --learning-rate"


@dataclass(frozen=True)
class TrainingFolder:
    """The folder that a training writes."""

    out: Path
    asked: Mapping[str, Any]
    """All that decides the weights that come out, as JSON has it."""

    @property
    def unfinished(self) -> Path:
        """Where unfinished work is."""
        return self.out / CHECKPOINTS

    def is_done(self) -> bool:
        """Whether it holds what this training gives. Raises ``UserError`` where it holds something
        else; nothing is written.
        """
        out = self.out
        if not out.exists() or not any(out.iterdir()):
            return False
        for file in (out / LOG, self.unfinished / STARTED):
            try:
                there = json.loads(file.read_text(encoding="utf-8"))
                other = there["settings"] if file.name == LOG else there
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if other == self.asked:
                return file.name == LOG
            raise UserError(
                f"--out {out}: holds another training ({self._differs(other)}); "
                "give another folder, or the same options"
            )
        raise UserError(f"--out {out}: is not empty; give a new folder")

    def _differs(self, other: Mapping[str, Any]) -> str:
        """The first thing in which another training differs."""
        for name, value in self.asked.items():
            if other.get(name) != value:
                return f"{name} {other.get(name)!r} instead of {value!r}"
        return "other options"

    def begin(self) -> Path:
        """Make room for unfinished work, and write down whose it is."""
        self.unfinished.mkdir(parents=True, exist_ok=True)
        (self.unfinished / STARTED).write_text(json.dumps(self.asked), encoding="utf-8")
        return self.unfinished

    def last_checkpoint(self) -> tuple[Path | None, int]:
        """Where to go on, and after how many steps."""
        found = {int(p.name.rpartition("-")[2]): p for p in self.unfinished.glob("checkpoint-*")}
        return (found[max(found)], max(found)) if found else (None, 0)

    def write_tokenizer(self, source: Path) -> None:
        """The tokenizer's files of the model that training began with."""
        for pattern in TOKENIZER_FILES:
            for file in source.glob(pattern):
                if not (self.out / file.name).exists():
                    shutil.copy2(file, self.out / file.name)

    def finish(self, log: Mapping[str, Any]) -> None:
        """The model is written: say how the training went, and drop the unfinished work."""
        said = json.dumps({"settings": self.asked, **log}, indent=2)
        (self.out / LOG).write_text(said + "\n", encoding="utf-8")
        shutil.rmtree(self.unfinished)


class Learning(Protocol):
    """A model that is trained."""

    counts: dict[str, int]
    """What it has learnt from so far, ``tokens`` among it."""

    def learnt(self) -> dict[str, Any]:
        """All weights that training changes, now or later, by name."""


def save_weights(model: Learning, file: Path) -> None:
    """Write what was learnt, whole or not at all."""
    from safetensors.torch import save_file

    part = file.with_suffix(".part")
    save_file({name: p.detach().contiguous() for name, p in model.learnt().items()}, part)
    part.replace(file)


def read_weights(file: Path, model: Learning) -> None:
    """Put what was learnt back into the model."""
    from safetensors.torch import load_file
    from torch import no_grad

    found = load_file(file)
    with no_grad():
        for name, weight in model.learnt().items():
            weight.copy_(found[name])


class LongTraining(ABC):
    """A planned training that goes on where it was stopped."""

    device: str
    dtype: str
    log: dict[str, Any]
    """How it went: ``seconds``, ``tokens`` learnt from, ``losses`` on validation rows by step in
    nats a token, and more."""

    @property
    @abstractmethod
    def folder(self) -> TrainingFolder:
        """What it writes."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Of the whole training."""

    @property
    @abstractmethod
    def step_size(self) -> str:
        """What a step takes, for who has no memory for it."""

    @abstractmethod
    def notes(self) -> list[str]:
        """What a user should know before it."""

    @abstractmethod
    def set_up(self, unfinished: Path, say: Say) -> Any:
        """Load the model and make the Trainer; ``unfinished`` is the folder for its work."""

    @abstractmethod
    def write(self, trainer: Any, unfinished: Path) -> None:
        """Write the trained model, and complete the log."""

    def run(self, say: Say = lambda _: None) -> None:
        """Train, or go on where a training was stopped, and write the folder. Raises ``UserError``,
        for lack of memory and losses that are no numbers too.
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
                say(f"going on from step {done:,} of {self.steps:,}")
            trainer.train(resume_from_checkpoint=str(last) if last else None)
        self.write(trainer, unfinished)
        self.folder.finish(self.log)

    def arguments(self, unfinished: Path, look_each: int, **more: Any) -> Any:
        """The Trainer's settings: those that all long trainings have, and ``more``."""
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
    """How a training runs."""

    steps: int
    look_each: int
    """Steps between two looks at the validation rows."""
    folder: Path
    """For unfinished work."""
    log: dict[str, Any]
    """``seconds``, ``losses`` (``step`` and ``validation``, in nats a token) and what the model
    counts: filled while it runs."""
    say: Say


def trainer_of(trainer: Any, batches: Sequence[list[int]]) -> Any:
    """The Trainer class with these batches in their order, whose checkpoints hold what the model
    has learnt.
    """
    from torch.utils.data import DataLoader

    class Resumable(trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(
                DataLoader(self.train_dataset, batch_sampler=batches, collate_fn=self.data_collator)
            )

        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            del state_dict
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            save_weights(self.model, folder / PART)

        def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
            read_weights(Path(resume_from_checkpoint) / PART, model or self.model)

    return Resumable


def watcher(
    course: Course,
    model: Learning,
    *,
    better: Callable[[], None] = lambda: None,
    each_step: Callable[[int], None] = lambda _: None,
) -> Any:
    """A callback that fills the course's log and says how far it is.

    ``better`` is called where the validation loss is the lowest so far, ``each_step`` before every
    step with the number of those that are done. Losses that are no numbers raise ``CellError``.
    """
    from transformers import TrainerCallback

    log, kept, say, steps = course.log, course.folder / LOG, course.say, f"{course.steps:,}"

    class Watcher(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args, control
            if state.global_step:
                log.update(json.loads(kept.read_text(encoding="utf-8")))
                log["losses"] = [at for at in log["losses"] if at["step"] <= state.global_step]
            self.began, self.before = time.perf_counter(), dict(log)
            self.first = state.global_step
            model.counts.update(dict.fromkeys(model.counts, 0))

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args, control
            each_step(state.global_step)

        def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            del args, control
            step, loss = state.global_step, float(more["metrics"]["eval_loss"])
            if not math.isfinite(loss):
                raise CellError(f"the loss on the validation rows is not a number; {AGAIN}")
            if any(at["step"] == step for at in log["losses"]) or step % course.look_each:
                return  # where it goes on is looked at too, and would be one more choice
            if loss < min((at["validation"] for at in log["losses"]), default=math.inf):
                better()
            log["losses"].append({"step": step, "validation": loss})
            say(f"step {step:,} of {steps}: validation loss {loss:.3f}")

        def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            del args, control
            step, loss = state.global_step, (more.get("logs") or {}).get("loss")
            if loss is None:
                return
            if not math.isfinite(float(loss)):
                raise CellError(f"the loss is not a number after step {step:,}; {AGAIN}")
            taken = time.perf_counter() - self.began
            left = taken / max(1, step - self.first) * (course.steps - step)
            rate = model.counts["tokens"] / max(taken, 1e-9)
            say(
                f"step {step:,} of {steps}: loss {float(loss):.3f}, {rate:,.0f} tokens a second, "
                f"{left / 60:,.0f} min left"
            )

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args, state, control
            self.take_stock()
            kept.write_text(json.dumps(log), encoding="utf-8")

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args, state, control
            self.take_stock()

        def take_stock(self) -> None:
            seconds = self.before["seconds"] + time.perf_counter() - self.began
            log["seconds"] = round(seconds, 3)
            for name, count in model.counts.items():
                log[name] = self.before[name] + count

    return Watcher()
