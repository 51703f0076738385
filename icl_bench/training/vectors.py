"""Trains a decoder to read vectors (Vec-RA; Chen et al. 2024, sections 2.2, 2.4 and 4.1).

The loss is the language model's on the answer (equation 2). The encoder is frozen, or trained from
some epoch on: from the beginning, the projectors' random gradients would spoil it (section 4.1).
What comes out is a folder: the decoder as an ordinary checkpoint, and beside it what reads vectors.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from icl_bench.backends.checkpoint import load_network
from icl_bench.backends.device import device_name, device_rate, dtype_name
from icl_bench.backends.device_memory import memory_told
from icl_bench.backends.vector_layers import Reading, VectorReaders
from icl_bench.errors import CellError, UserError
from icl_bench.models.architecture import Architecture, architecture_of
from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.hub import TOKENIZER_FILES
from icl_bench.models.registry import load_tokenizer, resolve
from icl_bench.models.text_encoders import PACKAGED
from icl_bench.models.vector_encoder import ENCODER, LOG, VectorEncoder, VectorSettings
from icl_bench.quiet_libraries import spare_imports
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task
from icl_bench.training.classification_head import pad_token
from icl_bench.training.trainer import on_one_device
from icl_bench.training.vector_examples import VectorExamples, VectorRow
from icl_bench.training.vector_spec import VectorSpec

Say = Callable[[str], None]

CHECKPOINTS = "checkpoints"
"""In the folder that is written: unfinished work."""

STARTED, BEST, PART = "started.json", "best.safetensors", "trained.safetensors"
"""Among the unfinished work: what was asked for, the best weights so far, those of a checkpoint."""

GATE_RATE = 10.0
"""How much faster than other weights the gates learn: they are one number a layer."""

WARM_UP, SAVE_STEPS, IGNORED = 0.05, 200, -100


class VectorModel(nn.Module):
    """A decoder, what reads vectors in front of its layers, and the encoder where it is trained."""

    def __init__(
        self, network: Any, readers: VectorReaders, encoder: VectorEncoder, trained: Any | None,
        known: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        """``trained`` is a copy of the encoder's network, ``known`` what it gave for each text."""
        super().__init__()
        self.network, self.readers, self.trained = network, readers, trained
        self._encoder, self._known = encoder, known
        self.tokens = self.vectors_read = 0
        """What was learnt from so far: tokens without padding, and vectors."""

    def _vectors(self, texts: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Vectors of each row, ``(rows, vectors, width)``, and which are there."""
        device, width = self.readers.readers[0].gate.device, self.readers.width
        most = max(map(len, texts))
        seen = torch.tensor([[i < len(row) for i in range(most)] for row in texts], device=device)
        flat = [text for row in texts for text in row]
        if self.trained is not None and next(self.trained.parameters()).requires_grad:
            found = self._encoder.encode(flat, self.trained)
        else:
            found = torch.stack([self._known[text] for text in flat])
        vectors = torch.zeros(len(texts), most, width, device=device)
        vectors[seen] = found.to(device).float()
        return vectors, seen

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        texts: Sequence[Sequence[str]],
    ) -> dict[str, Tensor]:
        """The mean loss of the answers' tokens.

        ``(rows, tokens)`` padded on the left, answers last; ``labels`` are theirs, ``(rows,
        longest answer)``, :data:`IGNORED` before them.
        """
        if self.training:
            self.tokens += int(attention_mask.sum())
            self.vectors_read += sum(map(len, texts))
        self.readers.reading = None
        if any(texts):
            vectors, seen = self._vectors(texts)
            self.readers.reading = Reading(self.readers.project(vectors), seen[:, None])
        positions = (attention_mask.cumsum(-1) - 1).clamp_min(0)
        logits = self.network(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=positions,
            use_cache=False, logits_to_keep=labels.shape[1] + 1,
        ).logits[:, :-1]  # fmt: skip
        loss = nn.functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED
        )
        return {"loss": loss}


def collated(rows: Sequence[VectorRow], pad: int) -> dict[str, Any]:
    """A batch as :class:`VectorModel` takes it."""
    whole = [(*row.prompt, *row.answer) for row in rows]
    width, length = max(map(len, whole)), max(len(row.answer) for row in rows)
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    labels = torch.full((len(rows), length), IGNORED)
    for place, (row, both) in enumerate(zip(rows, whole, strict=True)):
        ids[place, width - len(both) :] = torch.tensor(both)
        mask[place, width - len(both) :] = 1
        labels[place, length - len(row.answer) :] = torch.tensor(row.answer)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels,
            "texts": [list(row.texts) for row in rows]}  # fmt: skip


@dataclass(frozen=True)
class _Epochs(torch.utils.data.Dataset[VectorRow]):
    """The rows of all epochs one behind another, each epoch in an order of its own."""

    examples: VectorExamples
    epochs: int

    def __len__(self) -> int:
        return self.epochs * self.examples.rows

    def __getitems__(self, places: Sequence[int]) -> list[VectorRow]:
        made = []
        for place in places:
            epoch, row = divmod(place, self.examples.rows)
            made += self.examples.epoch(epoch, [row])
        return made


@dataclass
class VectorTraining:
    """A planned training of one task and model."""

    spec: VectorSpec
    task: TokenizedTask
    examples: VectorExamples
    encoder: VectorEncoder
    device: str
    dtype: str
    log: dict[str, Any] = field(
        default_factory=lambda: {"seconds": 0.0, "tokens": 0, "vectors_read": 0, "losses": []}
    )
    """How it went: seconds, tokens and vectors learnt from, losses on validation rows by step in
    nats a token."""

    @classmethod
    def prepare(cls, spec: VectorSpec, say: Say = lambda _: None) -> VectorTraining:
        """Load data and tokenizer; nothing is trained yet. Raises ``UserError``."""
        spec.check()
        asked = load_task(spec.task)
        say(f"reading {asked.name}")
        data = load_data(asked, data_dir=spec.data_dir)
        say(f"preparing {spec.model}")
        model = resolve(spec.model)
        encoder = VectorEncoder.of(spec.encoder, spec.pooling)
        task = TokenizedTask(data, model, load_tokenizer(model), spec.seed)
        device = device_name(spec.device)
        dtype = dtype_name(spec.dtype, device)
        if dtype == "float16":
            raise UserError("--dtype float16: gradients leave its range; take bfloat16 or float32")
        examples = VectorExamples(
            task, spec.vectors, spec.text, spec.seed, spec.spare_k, spec.spare_draws
        )
        return cls(spec, task, examples, encoder, device, dtype)

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.spec.epochs * self.epoch_steps

    @property
    def epoch_steps(self) -> int:
        """Of one epoch, whose last step may have fewer rows."""
        return math.ceil(self.examples.rows / self.spec.batch)

    @cached_property
    def _started(self) -> dict[str, Any]:
        """What decides the weights that come out."""
        return {
            **self.spec.decisive(),
            "dtype": self.dtype,
            "data": dict(self.task.data.files),
            "fingerprint": self.task.model.fingerprint,
            "encoder_fingerprint": self.encoder.fingerprint,
        }

    # -- the folder -----------------------------------------------------------------------------

    def is_done(self) -> bool:
        """Whether the folder holds what this training gives. Raises ``UserError`` where it holds
        something else, before anything is written.
        """
        out = self.spec.out
        if not out.exists() or not any(out.iterdir()):
            return False
        for file in (out / LOG, out / CHECKPOINTS / STARTED):
            try:
                there = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if (there.get("asked") if file.name == LOG else there) == self._started:
                return file.name == LOG
            raise UserError(f"--out {out}: holds another training ({self._other(there)}); "
                            "give another folder, or the same options")  # fmt: skip
        raise UserError(f"--out {out}: is not empty; give a new folder")

    def _other(self, there: Mapping[str, Any]) -> str:
        """The first thing in which another training differs."""
        other = there.get("asked", there)
        for name, value in self._started.items():
            if other.get(name) != value:
                return f"{name} {other.get(name)!r} instead of {value!r}"
        return "other options"

    def notes(self) -> list[str]:
        """What a user should know before the training."""
        spec, examples = self.spec, self.examples
        read = "passages" if examples.has_passages else "demonstrations"
        found = [
            f"{examples.rows:,} rows of the pool in {self.steps:,} steps of {spec.batch}, each "
            f"with {spec.vectors} {read} as vectors and {spec.text} demonstrations as text"
        ]
        if examples.has_passages:
            train = self.task.data.train
            fewer = sum(len(train[i].passages) < spec.vectors for i in self.task.pool.rows)
            if fewer:
                found.append(f"{fewer:,} of {len(self.task.pool):,} rows have fewer passages")
        return [*self.task.data.notes, *found]

    # -- training -------------------------------------------------------------------------------

    def run(self, say: Say = lambda _: None) -> None:
        """Train, or go on where a training was stopped, and write the folder. Raises ``UserError``,
        for lack of memory and losses that are no numbers too.
        """
        try:
            self._run(say)
        except CellError as error:
            raise UserError(str(error)) from None

    def _run(self, say: Say) -> None:
        out = self.spec.out
        folder = out / CHECKPOINTS
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STARTED).write_text(json.dumps(self._started), encoding="utf-8")
        said = f"on {self.device} while training (batch {self.spec.batch})"
        with memory_told(said):
            model = self._model(say)
            say(self._needs(model))
            trainer = self._trainer(model, folder, say)
            last = max(folder.glob("checkpoint-*"), key=_step_of, default=None)
            if last is not None:
                say(f"going on from step {_step_of(last):,} of {self.steps:,}")
            trainer.train(resume_from_checkpoint=str(last) if last else None)
        _read(folder / BEST, model)
        self.log["trainable_parameters"] = sum(p.numel() for p in _learnt(model).values())
        self.log["flops"] = self._flops(model)
        self._write(model, out)
        shutil.rmtree(folder)

    def _model(self, say: Say) -> VectorModel:
        """The decoder with its readers, in the weights that training begins with."""
        spare_imports()
        from transformers import AutoModelForCausalLM, set_seed

        set_seed(self.spec.seed)
        # what is frozen need not be more precise than its products, on a card whose memory it takes
        frozen = self.spec.train == "added" and self.device.startswith("cuda")
        network = load_network(
            AutoModelForCausalLM, self.task.model.source,
            revision=self.task.model.revision or "main",
            dtype=self.dtype if frozen else "float32", attn_implementation="sdpa",
        )  # fmt: skip
        say("encoding texts")
        known = self._known_vectors()
        readers = VectorReaders(network.get_decoder(), self.encoder.width).float()
        trained = None
        if self.spec.unfreeze_after is not None:
            trained = copy.deepcopy(self.encoder.load()[0]).requires_grad_(False)
        if self.spec.train == "added":
            network.requires_grad_(False)
        return VectorModel(network, readers, self.encoder, trained, known)

    def _needs(self, model: VectorModel) -> str:
        """What training takes, in words: parameters, memory beside activations, time."""
        learnt = sum(p.numel() for p in _learnt(model).values())
        kept = sum(p.numel() * p.element_size() for p in model.parameters())
        # gradients and Adam's two moments, in float32
        held = kept + 12 * learnt
        row = self.examples.epoch(0, [0])[0]
        tokens = (len(row.prompt) + len(row.answer)) * self.spec.batch * self.steps
        passed = self._architecture.parameters + model.readers.counts()[0]
        seconds = 3 * 2.0 * passed * tokens / device_rate(self.device, self.dtype)
        return (
            f"training {learnt / 1e6:,.1f} million parameters, {held / 2**30:.1f} GiB and "
            f"activations; about {max(1, seconds / 60):,.0f} min by formula"
        )

    def _flops(self, model: VectorModel) -> float:
        """Operations of the training, without those of the encoder and of validation rows.

        Going back takes twice a forward pass for what is trained, and once for the decoder where it
        is frozen: the readers of its first layers learn through the others.
        """
        shape, (of_tokens, of_vectors) = self._architecture, model.readers.counts()
        tokens, read = int(self.log["tokens"]), int(self.log["vectors_read"])
        rows = self.spec.epochs * self.examples.rows
        passes = 3 if self.spec.train == "all" else 2
        added = 2.0 * (of_tokens * tokens + of_vectors * read)
        return passes * shape.flops(tokens, tokens / rows / 2) + 3 * added

    @cached_property
    def _architecture(self) -> Architecture:
        return architecture_of(self.task.model.source)

    def _known_vectors(self) -> dict[str, Tensor]:
        """What the frozen encoder gives for every text that may be read."""
        texts = list(dict.fromkeys(self.examples.all_texts()))
        found = torch.from_numpy(self.encoder.vectors(texts, cache_dir() / "vectors").copy())
        return dict(zip(texts, found, strict=True))

    def _trainer(self, model: VectorModel, folder: Path, say: Say) -> Any:
        from transformers import Trainer, TrainingArguments
        from transformers.trainer_callback import PrinterCallback

        spec, cuda = self.spec, self.device.startswith("cuda")
        pad = pad_token(self.task)
        each = self.epoch_steps
        arguments = on_one_device(TrainingArguments, self.device)(
            output_dir=str(folder), report_to="none", disable_tqdm=True,
            per_device_train_batch_size=spec.batch, per_device_eval_batch_size=spec.batch,
            num_train_epochs=1, max_steps=self.steps, learning_rate=spec.learning_rate,
            weight_decay=0.01, max_grad_norm=1.0, lr_scheduler_type="linear",
            warmup_steps=math.ceil(WARM_UP * self.steps),
            save_strategy="steps", save_steps=min(each, SAVE_STEPS), save_total_limit=2,
            eval_strategy="steps", eval_steps=each, eval_on_start=True,
            logging_strategy="steps", logging_steps=max(1, self.steps // 20),
            remove_unused_columns=False, label_names=["labels"], seed=spec.seed,
            dataloader_num_workers=0, dataloader_pin_memory=False, use_cpu=not cuda,
            bf16=self.dtype == "bfloat16",
        )  # fmt: skip
        rows = self.examples.rows
        batches = [
            list(range(epoch * rows + start, epoch * rows + min(start + spec.batch, rows)))
            for epoch in range(spec.epochs)
            for start in range(0, rows, spec.batch)
        ]
        trainer = _of_vectors(Trainer, batches)(
            model=model,
            args=arguments,
            train_dataset=_Epochs(self.examples, spec.epochs),
            eval_dataset=self.examples.validation,
            data_collator=lambda rows: collated(rows, pad),
            callbacks=[_watcher(self, model, folder, say)],
            optimizers=(self._optimizer(model), None),
        )
        trainer.remove_callback(PrinterCallback)
        return trainer

    def _optimizer(self, model: VectorModel) -> torch.optim.Optimizer:
        rate, gates = self.spec.learning_rate, {id(gate) for gate in model.readers.gates()}
        learnt = [p for p in model.parameters() if p.requires_grad and id(p) not in gates]
        if model.trained is not None:
            learnt += list(model.trained.parameters())
        return torch.optim.AdamW(
            [
                {"params": learnt, "lr": rate},
                {"params": model.readers.gates(), "lr": GATE_RATE * rate, "weight_decay": 0.0},
            ]
        )

    # -- what comes out -------------------------------------------------------------------------

    def _write(self, model: VectorModel, out: Path) -> None:
        """The decoder's own checkpoint, its tokenizer, and what reads vectors; the log last."""
        model.network.save_pretrained(out)
        source = Path(self.task.model.source)
        for pattern in TOKENIZER_FILES:
            for file in source.glob(pattern):
                if not (out / file.name).exists():
                    shutil.copy2(file, out / file.name)
        weights = model.readers.save(out)
        of_tokens, of_vectors = model.readers.counts()
        name = self.task.model.name
        if model.trained is not None:
            model.trained.save_pretrained(out / ENCODER)
            self.encoder.load()[1].save_pretrained(out / ENCODER)
        spec = self.spec
        VectorSettings(
            encoder=spec.encoder or PACKAGED, encoder_fingerprint=self.encoder.fingerprint,
            pooling=spec.pooling, width=self.encoder.width, vectors=spec.vectors, text=spec.text,
            parameters=of_tokens, vector_parameters=of_vectors, weights=weights,
            trained=spec.train, model=name,
        ).write(out)  # fmt: skip
        log = {"asked": self._started, **self.log}
        (out / LOG).write_text(json.dumps(log, indent=2) + "\n", encoding="utf-8")


# -- the Trainer --------------------------------------------------------------------------------


def _step_of(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def _learnt(model: VectorModel) -> dict[str, Tensor]:
    """All weights that training changes, now or later."""
    found: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if model.trained is not None:
        found |= {f"trained.{name}": p for name, p in model.trained.named_parameters()}
    return found


def _save(model: VectorModel, file: Path) -> None:
    """Write what was learnt, whole or not at all."""
    from safetensors.torch import save_file

    part = file.with_suffix(".part")
    save_file({name: p.detach().contiguous() for name, p in _learnt(model).items()}, part)
    part.replace(file)


def _read(file: Path, model: VectorModel) -> None:
    """Put what was learnt back into the model."""
    from safetensors.torch import load_file

    found = load_file(file)
    with torch.no_grad():
        for name, weight in _learnt(model).items():
            weight.copy_(found[name])


def _of_vectors(trainer: Any, batches: Sequence[list[int]]) -> Any:
    """The Trainer with these batches in their order, and checkpoints of what is learnt alone."""

    class OfVectors(trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(
                torch.utils.data.DataLoader(
                    self.train_dataset,
                    batch_sampler=batches,
                    collate_fn=self.data_collator,
                )
            )

        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            del state_dict
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            _save(self.model, folder / PART)

        def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
            _read(Path(resume_from_checkpoint) / PART, model or self.model)

    return OfVectors


def _watcher(training: VectorTraining, model: VectorModel, folder: Path, say: Say) -> Any:
    """A callback that keeps the best weights, unfreezes the encoder and says how far it is."""
    from transformers import TrainerCallback

    spec, log = training.spec, training.log
    each = training.epoch_steps
    kept = folder / LOG

    class Watcher(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args, control
            if state.global_step:
                log.update(json.loads(kept.read_text(encoding="utf-8")))
                log["losses"] = [at for at in log["losses"] if at["step"] <= state.global_step]
            self.began, self.before = time.perf_counter(), dict(log)
            self.first = state.global_step
            model.tokens = model.vectors_read = 0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            del args, control
            after = spec.unfreeze_after
            if (
                model.trained is not None
                and after is not None
                and state.global_step >= after * each
            ):
                model.trained.requires_grad_(True)

        def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            del args, control
            loss = float(more["metrics"]["eval_loss"])
            if not math.isfinite(loss):
                raise CellError(
                    "the loss on the validation rows is not a number; "
                    "take a smaller --learning-rate"
                )
            again = any(at["step"] == state.global_step for at in log["losses"])
            if again or state.global_step % each:
                return  # where it goes on is looked at too, and would be one more choice
            if loss < min((at["validation"] for at in log["losses"]), default=math.inf):
                _save(model, folder / BEST)
            log["losses"].append({"step": state.global_step, "validation": loss})
            say(f"step {state.global_step:,} of {training.steps:,}: validation loss {loss:.3f}")

        def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            del args, control
            loss = (more.get("logs") or {}).get("loss")
            if loss is None:
                return
            if not math.isfinite(float(loss)):
                raise CellError(
                    f"the loss is not a number after step {state.global_step:,}; "
                    "take a smaller --learning-rate"
                )
            done = state.global_step - self.first
            left = (time.perf_counter() - self.began) / max(1, done)
            left *= training.steps - state.global_step
            say(f"step {state.global_step:,} of {training.steps:,}: loss {float(loss):.3f}, "
                f"{left / 60:,.0f} min left")  # fmt: skip

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
            log["tokens"] = self.before["tokens"] + model.tokens
            log["vectors_read"] = self.before["vectors_read"] + model.vectors_read

    return Watcher()
