"""Fine-tuning a decoder with a classification head, by ``transformers.Trainer`` and ``peft``."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from icl_bench.errors import CellError
from icl_bench.frozen import Frozen
from icl_bench.models.architecture import Architecture
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.seeds import generator
from icl_bench.training.classification_head import first_tokens, load_classifier, pad_token
from icl_bench.training.examples import Examples, LabelledQuery, batches, padded
from icl_bench.training.operations import Adapters, batch_of, forward_flops, step_flops
from icl_bench.training.spec import HeadInit
from icl_bench.wording import one_line

if TYPE_CHECKING:
    import torch

Method = Literal["lora", "full"]

JITTER = math.log(1.25)

LEARNING_RATE = {"lora": 1e-3, "full": 5e-5}
"""LoRA: the paper's (appendix E). Full fine-tuning, for which the paper gives none: the Trainer's default."""


class Recipe(Frozen):
    """Settings of fine-tuning; defaults are the paper's (Bertsch et al. 2025, appendix E)."""

    method: Method
    head: HeadInit = "lm"
    epochs: int = 30
    batch: int = 32
    learning_rate: float
    weight_decay: float = 0.01
    lora_rank: int = 8
    lora_alpha: int = 32
    lora_dropout: float = 0.1
    rslora: Literal[True] | None = None
    """Scale by alpha / sqrt(rank) instead of alpha / rank (Kalajdzievski 2023). None is not stored."""

    @classmethod
    def of(cls, method: Method, **changes: Any) -> Recipe:
        """The paper's recipe with changes."""
        return cls(method=method, **{"learning_rate": LEARNING_RATE[method], **changes})


@dataclass
class FinetuningResult:
    """The result of a fine-tuning, filled during the training."""

    logits: list[np.ndarray] = field(default_factory=list)
    """Logits of the test rows after each epoch: ``(test, labels)``."""
    validation: list[float] = field(default_factory=list)
    """Accuracy on the validation rows after each epoch."""
    test: list[float] = field(default_factory=list)
    """Accuracy on the test rows after each epoch."""
    training_seconds: float = 0.0
    """Time of the training, including predictions on validation rows."""
    inference_seconds: float = 0.0
    """Mean time of answering the test rows once."""
    training_tokens: int = 0
    """Tokens of all epochs, without padding."""
    padded_tokens: int = 0
    """Tokens of all epochs, with padding."""
    trainable: int = 0
    """Number of trained parameters."""
    batches: list[tuple[int, ...]] = field(default_factory=list)
    """Tokens of the rows of each batch of all epochs."""
    head_parameters: int = 0
    """Parameters of the classification head, which is computed for every token."""
    adapters: Adapters | None = None
    """The adapters, if they are trained instead of the model's own weights."""
    recomputes: bool = False
    """Whether layers are computed a second time for the backward pass, to save memory."""

    def flops(self, shape: Architecture, examples: Examples, recipe: Recipe, pattern: Pattern = FULL) -> float:
        """Operations of the training, including predictions on validation rows.

        ``pattern`` is the attention pattern that the model was adapted to.
        """
        steps, spans = 0.0, pattern.spans(shape.windows)
        for lengths in self.batches:
            tokens, keys = batch_of(spans, lengths)
            steps += step_flops(shape, tokens, keys, frozen=self.adapters is not None, input_learns=False)
            steps += 3 * 2.0 * self.head_parameters * tokens
            if self.adapters is not None:
                steps += self.adapters.step(tokens)
            if self.recomputes:
                steps += self._forward(shape, tokens, keys)
        return steps + recipe.epochs * self.prediction_flops(shape, examples.held_out, 2 * recipe.batch, pattern)

    def prediction_flops(
        self, shape: Architecture, rows: Sequence[LabelledQuery], batch: int, pattern: Pattern = FULL
    ) -> float:
        """Operations of :func:`predict` for some rows, ``batch`` at a time. One at a time has no padding."""
        total = 0.0
        for places in batches(rows, batch):
            tokens, keys = batch_of(pattern.spans(shape.windows), [len(rows[i].ids) for i in places])
            total += self._forward(shape, tokens, keys) + 2.0 * self.head_parameters * tokens
        return total

    def _forward(self, shape: Architecture, tokens: float, keys: float) -> float:
        return forward_flops(shape, tokens, keys) + (self.adapters.forward(tokens) if self.adapters else 0.0)

    @property
    def best(self) -> int:
        """The first epoch with the best accuracy on validation rows."""
        return int(np.argmax(self.validation))

    @property
    def best_on_test(self) -> int:
        """The first epoch with the best accuracy on test rows: an upper bound, as in the paper."""
        return int(np.argmax(self.test))


def fine_tune(
    examples: Examples, recipe: Recipe, *, source: str, device: str, dtype: str, seed: int, keep: Path | None = None
) -> FinetuningResult:
    """Train on the examples, and predict validation and test rows after every epoch.

    ``keep`` is a folder for the weights of the epoch selected on validation rows. The same seed gives the same
    predictions on the same machine. Raises ``CellError`` if the training fails.
    """
    from transformers import Trainer, TrainingArguments, set_seed
    from transformers.trainer_callback import PrinterCallback

    from icl_bench.backends.transformers.device_memory import memory_errors_as_cell_errors

    train, held_out, test = examples.train, examples.held_out, examples.test
    task = examples.task
    pad = pad_token(task)
    set_seed(seed)
    tokens = first_tokens(task) if recipe.head == "lm" else None
    cuda = device.startswith("cuda")
    weights = base_weights(recipe.method, device, dtype)
    done = FinetuningResult()
    with (
        memory_errors_as_cell_errors(f"on {device} while training ({recipe.method}, batch {recipe.batch})"),
        tempfile.TemporaryDirectory(prefix="icl-bench-") as folder,
    ):
        model: Any = load_classifier(source, len(task.data.labels), tokens, pad, weights)
        done.head_parameters = model.score.weight.numel()
        if recipe.method == "lora":
            model = _with_lora(model, recipe)
        done.trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        done.adapters = Adapters.of(model.named_parameters()) if recipe.method == "lora" else None
        done.recomputes = cuda and _is_tight(model, device)
        arguments = on_one_device(TrainingArguments, device)(
            output_dir=folder,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            num_train_epochs=recipe.epochs,
            per_device_train_batch_size=recipe.batch,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            dataloader_num_workers=0,
            dataloader_pin_memory=cuda,
            logging_strategy="epoch",
            logging_nan_inf_filter=False,
            seed=seed,
            data_seed=seed,
            use_cpu=not cuda,
            bf16=dtype == "bfloat16",
            fp16=dtype == "float16",
            gradient_checkpointing=done.recomputes,
        )
        watcher = _watcher(done, held_out, test, pad, recipe.batch, keep, dtype)
        lengths = [len(row.ids) for row in train]
        trainer = with_batches(Trainer, LengthBatches(lengths, recipe.batch, generator(seed, "batches")))(
            model=model,
            args=arguments,
            train_dataset=[{"input_ids": list(row.ids), "labels": row.label} for row in train],
            data_collator=lambda rows: _joined(rows, pad, done),
            callbacks=[watcher],
        )
        trainer.remove_callback(PrinterCallback)  # it prints on standard output, which is reserved for results
        start = time.perf_counter()
        try:
            trainer.train()
        except OSError as error:
            raise CellError(f"checkpoint: {one_line(str(error))}") from None
        elapsed = time.perf_counter() - start
    done.training_seconds = elapsed - watcher.test_seconds
    done.inference_seconds = watcher.test_seconds / max(1, len(done.test))
    return done


def base_weights(method: Method, device: str, dtype: str) -> str:
    """The number format in which weights are loaded.

    Trained weights stay in float32, and products are in ``dtype``. On a GPU, weights that LoRA freezes need no more
    precision than the products, and float32 would double their memory. float16 is used only for products, because
    states between layers exceed its range.
    """
    frozen = method == "lora" and device.startswith("cuda") and dtype == "bfloat16"
    return "bfloat16" if frozen else "float32"


def on_one_device(arguments: Any, device: str) -> Any:
    """The Trainer's arguments class, restricted to the requested device.

    By default the Trainer uses all visible cards at once (``DataParallel``), beginning with the first.
    """
    import torch

    requested = torch.device(device)
    if requested.type != "cuda":
        return arguments

    class OnOneDevice(arguments):  # type: ignore[misc]
        @cached_property
        def _setup_devices(self) -> torch.device:
            from accelerate import PartialState
            from accelerate.state import AcceleratorState

            AcceleratorState._reset_state(reset_partial_state=True)
            self.distributed_state = PartialState()
            where = torch.device("cuda", torch.cuda.current_device() if requested.index is None else requested.index)
            self.distributed_state.device, self._n_gpu = where, 1
            torch.cuda.set_device(where)
            return where

    return OnOneDevice


def _with_lora(model: Any, recipe: Recipe) -> Any:
    from peft import LoraConfig, TaskType, get_peft_model

    settings = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=recipe.lora_rank,
        lora_alpha=recipe.lora_alpha,
        lora_dropout=recipe.lora_dropout,
        use_rslora=bool(recipe.rslora),
    )
    try:
        model = get_peft_model(model, settings)
    except ValueError as error:  # peft does not know which layers of this model to adapt
        raise CellError(f"LoRA: {one_line(str(error))}") from None
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    return model


def _is_tight(model: Any, device: str) -> bool:
    """Whether weights, gradients and Adam's state take more than half of the card's free memory."""
    import torch

    held = sum(p.numel() * (16 if p.requires_grad else p.element_size()) for p in model.parameters())
    return bool(held > 0.5 * torch.cuda.mem_get_info(torch.device(device))[0])


@dataclass
class LengthBatches:
    """Batches of similar lengths in random order, different in each epoch.

    The Trainer's own grouping sorts within random portions of many batches, which has no effect on a
    few hundred rows. Here rows are sorted by length times a random factor of 0.8 to 1.25, so batches
    differ between epochs.
    """

    lengths: Sequence[int]
    size: int
    rng: np.random.Generator

    def __len__(self) -> int:
        return math.ceil(len(self.lengths) / self.size)

    def __iter__(self) -> Iterator[list[int]]:
        factor = np.exp(self.rng.uniform(-JITTER, JITTER, len(self.lengths)))
        order = np.argsort(np.asarray(self.lengths) * factor, kind="stable")
        parts = [order[i : i + self.size].tolist() for i in range(0, len(order), self.size)]
        for place in self.rng.permutation(len(parts)):
            yield parts[place]


def planned_batches(lengths: Sequence[int], recipe: Recipe, seed: int) -> list[tuple[int, ...]]:
    """Tokens of the rows of each batch of all epochs in :func:`fine_tune`."""
    order = LengthBatches(lengths, recipe.batch, generator(seed, "batches"))
    return [tuple(lengths[i] for i in batch) for _ in range(recipe.epochs) for batch in order]


def with_batches(trainer: Any, batches_of_rows: Iterable[list[int]]) -> Any:
    """A Trainer class with these batches of rows."""
    from torch.utils.data import DataLoader

    class WithBatches(trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(
                DataLoader(
                    self.train_dataset,
                    batch_sampler=batches_of_rows,
                    collate_fn=self.data_collator,
                    pin_memory=self.args.dataloader_pin_memory,
                )
            )

    return WithBatches


def _joined(rows: Sequence[dict[str, Any]], pad: int, done: FinetuningResult) -> dict[str, torch.Tensor]:
    """Join rows into a batch, padded on the right, and count tokens with and without padding."""
    import torch

    batch = padded([row["input_ids"] for row in rows], pad)
    done.training_tokens += sum(len(row["input_ids"]) for row in rows)
    done.padded_tokens += batch["input_ids"].numel()
    done.batches.append(tuple(len(row["input_ids"]) for row in rows))
    return batch | {"labels": torch.tensor([row["labels"] for row in rows])}


def predict(model: Any, rows: Sequence[LabelledQuery], pad: int, batch: int, dtype: str = "float32") -> np.ndarray:
    """Logits of each row, ``(rows, labels)``, in the order of the rows; products are in ``dtype``."""
    import torch

    was_training = model.training
    model.eval()
    logits_of_all = np.empty((len(rows), int(model.config.num_labels)))
    products = torch.autocast(model.device.type, getattr(torch, dtype), enabled=dtype != "float32")
    with torch.no_grad(), products:
        for places in batches(rows, batch):
            inputs = padded([rows[i].ids for i in places], pad)
            logits = model(**{name: value.to(model.device) for name, value in inputs.items()}).logits
            logits_of_all[places] = logits.float().cpu().numpy()
    model.train(was_training)
    return logits_of_all


def accuracy(logits: np.ndarray, rows: Sequence[LabelledQuery]) -> float:
    """Share of rows with the largest logit at their label."""
    return float((logits.argmax(axis=1) == np.array([row.label for row in rows])).mean())


def _watcher(
    done: FinetuningResult,
    held_out: Sequence[LabelledQuery],
    test: Sequence[LabelledQuery],
    pad: int,
    batch: int,
    keep: Path | None,
    dtype: str,
) -> Any:
    """A callback of the Trainer that predicts both sets of rows after each epoch."""
    from transformers import TrainerCallback

    class Watcher(TrainerCallback):
        test_seconds = 0.0

        def on_epoch_end(self, *_: Any, **more: Any) -> None:
            model = more["model"]
            chosen = accuracy(predict(model, held_out, pad, 2 * batch, dtype), held_out)
            start = time.perf_counter()
            logits = predict(model, test, pad, 2 * batch, dtype)
            self.test_seconds += time.perf_counter() - start
            if not np.isfinite(logits).all():
                raise CellError(f"after epoch {len(done.test) + 1} the logits are infinite or NaN")
            if keep is not None and chosen > max(done.validation, default=-1.0):
                model.save_pretrained(keep)
            done.validation.append(chosen)
            done.test.append(accuracy(logits, test))
            done.logits.append(logits)

        def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
            loss = (more.get("logs") or {}).get("loss")
            if loss is not None and not math.isfinite(float(loss)):
                after = f"after epoch {state.epoch:.0f}"
                raise CellError(f"the loss is infinite or NaN {after}; take a smaller --learning-rate")

    return Watcher()
