"""LoRA in bfloat16: an epoch of an easy task, whose loss must fall."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from .findings import Finding, Options, at_least, at_most
from .models import TINY, byte_tokenizer, config_of, ids, random_network, saved

LABELS = 4


def lora(options: Options) -> Iterator[Finding]:
    """Mean loss of the last quarter of the steps beside the first's, and accuracy after them."""
    if importlib.util.find_spec("peft") is None:
        yield Finding("lora", "left out", note="peft is not installed")
        return
    from transformers import Trainer

    from icl_bench.training.trainer import Recipe, fine_tune

    losses: list[float] = []
    real = Trainer.training_step

    def training_step(trainer: Any, *step: Any, **more: Any) -> Any:
        loss = real(trainer, *step, **more)
        losses.append(float(loss))
        return loss

    config = config_of("llama", **TINY)
    rows = _rows(160 if options.small else 960)
    recipe = Recipe.of("lora", head="random", epochs=1, batch=8, learning_rate=1e-2)
    with (
        saved(random_network(config, "cpu", "float32")) as folder,
        mock.patch.object(Trainer, "training_step", training_step),
    ):
        done = fine_tune(
            _examples(rows),
            recipe,
            source=str(folder),
            device=options.device,
            dtype="bfloat16" if options.on_card else "float32",
            seed=0,
        )
    quarter = max(1, len(losses) // 4)
    ratio = float(np.mean(losses[-quarter:]) / np.mean(losses[:quarter]))
    yield at_most("lora", "loss of the last steps by the first's", ratio, 0.9)
    yield at_least("lora", "accuracy after an epoch", done.test[-1], 1.5 / LABELS)
    yield Finding("lora", "seconds of an epoch", done.training_seconds, timed=True)


def _rows(count: int) -> tuple[Any, ...]:
    """Texts whose last token says the label."""
    from icl_bench.training.examples import LabelledQuery

    return tuple(LabelledQuery(str(i), (*ids(8 + i % 9, i), 40 + i % LABELS), i % LABELS) for i in range(count))


def _examples(rows: tuple[Any, ...]) -> Any:
    """What training asks of a task's examples."""
    task = SimpleNamespace(tokenizer=byte_tokenizer(), data=SimpleNamespace(labels=[str(i) for i in range(LABELS)]))
    held = len(rows) // 8
    return SimpleNamespace(task=task, train=rows, held_out=rows[:held], test=rows[-held:])
