"""Trains a decoder to read vectors (Vec-RA; Chen et al. 2024, sections 2.2, 2.4 and 4.1).

The loss is the language model's, of the answer's tokens or of all tokens (equation 2). The encoder is
frozen, or trained after some epochs: from the beginning, the projectors' random gradients would damage
it (section 4.1). The result is a folder: the decoder as an ordinary checkpoint, and the vector readers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from icl_bench.backends.device import device_name, device_rate, dtype_name
from icl_bench.backends.transformers.checkpoint import load_network
from icl_bench.backends.transformers.vector_layers import VectorReaders
from icl_bench.errors import UserError
from icl_bench.models.architecture import Architecture, architecture_of
from icl_bench.models.registry import load_tokenizer, resolve
from icl_bench.models.text_encoders import PACKAGED
from icl_bench.models.trained import before
from icl_bench.models.vector_encoder import ENCODER, VectorEncoder, VectorSettings
from icl_bench.quiet_libraries import spare_imports
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task
from icl_bench.tasks.think_option import refuse_thoughts
from icl_bench.training.classification_head import pad_token
from icl_bench.training.operations import step_flops
from icl_bench.training.resumable import (
    Course,
    LongTraining,
    Say,
    TrainingFolder,
    prompt_form,
    read_weights,
    save_weights,
    trainer_of,
    watcher,
)
from icl_bench.training.vectors.examples import VectorExamples, VectorRow
from icl_bench.training.vectors.model import COUNTS, VectorModel, collated
from icl_bench.training.vectors.spec import VectorSpec

BEST_WEIGHTS = "best.safetensors"
"""File of the best weights so far, in the folder of unfinished work."""

GATE_RATE = 10.0
"""Learning rate of the gates as a multiple of other weights'; a gate is one number per layer."""

WARM_UP = 0.05


@dataclass(frozen=True)
class _Epochs(torch.utils.data.Dataset[VectorRow]):
    """The rows of all epochs in sequence, each epoch in its own order."""

    examples: VectorExamples
    epochs: int

    def __len__(self) -> int:
        return self.epochs * self.examples.rows

    def __getitems__(self, places: Sequence[int]) -> list[VectorRow]:
        rows = []
        for place in places:
            epoch, row = divmod(place, self.examples.rows)
            rows += self.examples.epoch(epoch, [row])
        return rows


@dataclass
class VectorTraining(LongTraining):
    """A planned training of one task and model."""

    spec: VectorSpec
    task: TokenizedTask
    examples: VectorExamples
    encoder: VectorEncoder
    device: str
    dtype: str
    log: dict[str, Any] = field(default_factory=lambda: {"seconds": 0.0, **dict.fromkeys(COUNTS, 0), "losses": []})
    """Record of the training: seconds, the model's counts, losses on validation rows by step in nats per token."""

    @classmethod
    def prepare(cls, spec: VectorSpec, say: Say = lambda _: None) -> VectorTraining:
        """Load data and tokenizer; nothing is trained yet. Raises ``UserError``."""
        spec.check()
        task_spec = load_task(spec.task)
        refuse_thoughts(task_spec, "training vectors")
        say(f"reading {task_spec.name}")
        data = load_data(task_spec, data_dir=spec.data_dir)
        say(f"preparing {spec.model}")
        model = resolve(spec.model)
        encoder = VectorEncoder.of(spec.encoder, spec.pooling)
        task = TokenizedTask(data, model, load_tokenizer(model), spec.seed)
        device = device_name(spec.device)
        dtype = dtype_name(spec.dtype, device)
        if dtype == "float16":
            raise UserError("--dtype float16: gradients exceed its range; take bfloat16 or float32")
        examples = VectorExamples(
            task, spec.vectors, spec.text, spec.seed, spec.spare_k, spec.spare_draws, spec.rows, spec.without_vectors
        )
        return cls(spec, task, examples, encoder, device, dtype)

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.spec.epochs * self.epoch_steps

    @property
    def epoch_steps(self) -> int:
        """Steps of one epoch; its last step may have fewer rows."""
        return math.ceil(self.examples.rows / self.spec.batch)

    @cached_property
    def folder(self) -> TrainingFolder:
        """Its folder, with the settings that decide the trained weights."""
        settings = {
            **self.spec.decisive(),
            "dtype": self.dtype,
            "data": dict(self.task.data.files),
            "prompt_form": prompt_form(self.task.data.spec),
            "fingerprint": self.task.model.fingerprint,
            "encoder_fingerprint": self.encoder.fingerprint,
        }
        return TrainingFolder(self.spec.out, settings)

    def notes(self) -> list[str]:
        """Notes for the user before the training."""
        spec, examples = self.spec, self.examples
        read = "passages" if examples.has_passages else "demonstrations"
        notes = [
            f"{examples.rows:,} rows of the pool in {self.steps:,} steps of {spec.batch}, each "
            f"with {spec.vectors} {read} as vectors and {spec.text} demonstrations as text"
        ]
        if spec.without_vectors:
            notes.append(f"a share of {spec.without_vectors:g} of these rows is read without vectors")
        if examples.has_passages:
            train = self.task.data.train
            fewer = sum(len(train[i].passages) < spec.vectors for i in self.task.pool.rows)
            if fewer:
                notes.append(f"{fewer:,} of {len(self.task.pool):,} rows have fewer passages")
        return [*self.task.data.notes, *notes]

    # -- training -------------------------------------------------------------------------------

    @property
    def step_size(self) -> str:
        """See ``LongTraining``."""
        return f"batch {self.spec.batch}"

    def set_up(self, unfinished: Path, say: Say) -> Any:
        """See ``LongTraining``."""
        model = self._model(say)
        say(self._needs(model))
        return self._trainer(model, unfinished, say)

    def write(self, trainer: Any, unfinished: Path) -> None:
        """See ``LongTraining``: the best weights."""
        model = trainer.model
        read_weights(unfinished / BEST_WEIGHTS, model)
        self.log["trainable_parameters"] = sum(p.numel() for p in model.learnt().values())
        self.log["flops"] = self._flops(model)
        self.log |= before(self.task.model.source)
        self._write(model, self.spec.out)

    def _model(self, say: Say) -> VectorModel:
        """The decoder with its readers, with initial weights."""
        spare_imports()
        from transformers import AutoModelForCausalLM, set_seed

        set_seed(self.spec.seed)
        # on a card, frozen weights need no more precision than their products, and take less memory
        frozen = self.spec.train == "added" and self.device.startswith("cuda")
        network = load_network(
            AutoModelForCausalLM,
            self.task.model.source,
            revision=self.task.model.revision or "main",
            dtype=self.dtype if frozen else "float32",
            attn_implementation="sdpa",
        )
        readers, known = None, {}
        if self.spec.vectors:
            say("encoding texts")
            known = self.encoder.tensors(self.examples.all_texts())
            readers = VectorReaders(network.get_decoder(), self.encoder.width).float()
        trained = None
        if self.spec.unfreeze_after is not None:
            trained = copy.deepcopy(self.encoder.load()[0]).requires_grad_(False)
        if self.spec.train == "added":
            network.requires_grad_(False)
        return VectorModel(network, readers, self.encoder, trained, known, of_all=self.spec.loss == "sequence")

    def _needs(self, model: VectorModel) -> str:
        """Requirements of the training as text: parameters, memory besides activations, time."""
        learnt = sum(p.numel() for p in model.learnt().values())
        kept = sum(p.numel() * p.element_size() for p in model.parameters())
        # gradients and Adam's two moments, in float32
        held = kept + 12 * learnt
        row = self.examples.epoch(0, [0])[0]
        tokens = (len(row.prompt) + len(row.answer)) * self.spec.batch * self.steps
        passed = self._architecture.parameters + model.added[0]
        seconds = 3 * 2.0 * passed * tokens / device_rate(self.device, self.dtype)
        return (
            f"training {learnt / 1e6:,.1f} million parameters, {held / 2**30:.1f} GiB and "
            f"activations; about {max(1, seconds / 60):,.0f} min by formula"
        )

    def _flops(self, model: VectorModel) -> float:
        """Operations of the training, without the encoder and validation rows.

        The decoder's input has gradients even if it is frozen, because readers precede its first layer. Vectors have
        them only if the encoder is trained.
        """
        shape, count, (of_tokens, of_vectors) = self._architecture, self.log, model.added
        frozen = self.spec.train == "added"
        decoder = step_flops(shape, count["padded_tokens"], count["keys_seen"], frozen=frozen)
        passes = (2 if frozen else 3) + (self.spec.loss == "sequence")  # logits of all tokens are computed twice
        head = shape.logits_flops(count["predicted_tokens"] * shape.vocabulary) * passes
        of_vectors = 3 * of_vectors - (model.projectors if model.trained is None else 0)
        read: float = 2.0 * (3 * of_tokens * count["reading_tokens"] + of_vectors * count["padded_vectors"])
        seen = int(count["vectors_seen"])
        return decoder + head + read + 3 * 4.0 * shape.heads_width * seen

    @cached_property
    def _architecture(self) -> Architecture:
        return architecture_of(self.task.model.source)

    def _trainer(self, model: VectorModel, folder: Path, say: Say) -> Any:
        spec, pad, each = self.spec, pad_token(self.task), self.epoch_steps
        arguments = self.arguments(
            folder,
            each,
            per_device_train_batch_size=spec.batch,
            per_device_eval_batch_size=spec.batch,
            learning_rate=spec.learning_rate,
            weight_decay=0.01,
            lr_scheduler_type="linear",
            warmup_steps=math.ceil(WARM_UP * self.steps),
            seed=spec.seed,
        )
        rows = self.examples.rows
        batches = [
            list(range(epoch * rows + start, epoch * rows + min(start + spec.batch, rows)))
            for epoch in range(spec.epochs)
            for start in range(0, rows, spec.batch)
        ]
        course = Course(self.steps, each, folder, self.log, say)
        unfreeze = partial(self._unfreeze, model)
        return trainer_of(
            batches,
            model=model,
            args=arguments,
            train_dataset=_Epochs(self.examples, spec.epochs),
            eval_dataset=self.examples.validation,
            data_collator=lambda rows: collated(rows, pad, spec.loss),
            callbacks=[
                watcher(course, model, better=lambda: save_weights(model, folder / BEST_WEIGHTS), each_step=unfreeze)
            ],
            optimizers=(self._optimizer(model), None),
        )

    def _unfreeze(self, model: VectorModel, done: int) -> None:
        """Also train the encoder, after the requested number of epochs."""
        after = self.spec.unfreeze_after
        if model.trained is not None and after is not None and done >= after * self.epoch_steps:
            model.trained.requires_grad_(True)

    def _optimizer(self, model: VectorModel) -> torch.optim.Optimizer:
        spec, gates = self.spec, {id(gate) for gate in model.gates}
        own = [p for p in model.network.parameters() if p.requires_grad]
        apart = gates | {id(weight) for weight in own}
        added = [p for p in model.parameters() if p.requires_grad and id(p) not in apart]
        if model.trained is not None:
            added += list(model.trained.parameters())
        rate = spec.learning_rate
        groups: list[dict[str, Any]] = [
            {"params": added, "lr": rate},
            {"params": own, "lr": rate if spec.decoder_rate is None else spec.decoder_rate},
            {"params": model.gates, "lr": GATE_RATE * rate, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW([group for group in groups if group["params"]])

    # -- output ------------------------------------------------------------------------------

    def _write(self, model: VectorModel, out: Path) -> None:
        """Write the decoder's checkpoint, its tokenizer, and the vector readers."""
        model.network.save_pretrained(out)
        self.folder.write_tokenizer(Path(self.task.model.source))
        if model.trained is not None:
            model.trained.save_pretrained(out / ENCODER)
            self.encoder.load()[1].save_pretrained(out / ENCODER)
        if model.readers is not None:
            self._settings(model, model.readers.save(out)).write(out)

    def _settings(self, model: VectorModel, weights: str) -> VectorSettings:
        spec, (of_tokens, of_vectors) = self.spec, model.added
        encoder = self.encoder
        if model.trained is not None:
            encoder = replace(encoder, source=str(spec.out / ENCODER))
        return VectorSettings(
            encoder=spec.encoder or PACKAGED,
            encoder_fingerprint=encoder.fingerprint,
            pooling=spec.pooling,
            width=self.encoder.width,
            vectors=spec.vectors,
            text=spec.text,
            parameters=of_tokens,
            vector_parameters=of_vectors,
            weights=weights,
            trained=spec.train,
            model=self.task.model.name,
            loss=spec.loss,
        )
