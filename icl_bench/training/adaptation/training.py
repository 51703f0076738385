"""Continues training a model under an attention pattern (Zebra; Song et al. 2023, section 3).

The loss is the language model's on long texts and, on request, on the answers of a task's
demonstrations; or on the answers of conversations. Only positions that the pattern attends to are
computed. The result is an ordinary checkpoint whose config names the pattern.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from icl_bench.backends.device import device_name, device_rate, dtype_name
from icl_bench.backends.transformers.checkpoint import load_network
from icl_bench.errors import UserError
from icl_bench.models.architecture import Architecture, architecture_of, check_family
from icl_bench.models.attention_patterns import BlockLayout, Pattern
from icl_bench.models.config import layer_windows
from icl_bench.models.registry import Model, load_tokenizer, resolve
from icl_bench.models.trained import ADAPTED_PATTERN, adapted_to, before
from icl_bench.quiet_libraries import spare_imports
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task
from icl_bench.tasks.think_option import refuse_thoughts
from icl_bench.training.adaptation.examples import (
    AdaptationExamples,
    DemonstrationSequences,
    Lesson,
    PackedTexts,
    Source,
)
from icl_bench.training.adaptation.instructions import Instructions
from icl_bench.training.adaptation.spec import LEAST_RATE, AdaptationSpec
from icl_bench.training.head_loss import HEAD_TOKENS, IGNORED, summed_loss
from icl_bench.training.operations import Adapters, forward_flops, keys_of_layers, step_flops
from icl_bench.training.resumable import Course, LongTraining, Say, TrainingFolder, prompt_form, trainer_of, watcher
from icl_bench.training.sparse_attention import Sparsity, use_sparse_attention

WARM_UP, LOOKS = 100, 10
"""Warm-up steps (at most a tenth of all steps), and number of evaluations on held-out texts."""

REACHED = 0.5
"""Share of a matrix product's rate that a training step reaches (measured: 0.4 to 0.5 on two kinds of
CPU)."""

COUNTS = ("tokens", "keys_seen", "predicted_tokens")
"""Tokens of a training, pairs of a token and a key in all layers, and tokens whose logits are computed."""


class AdaptedModel(nn.Module):
    """A decoder in training under a pattern."""

    def __init__(self, network: Any, pattern: Pattern, wrapped: Any | None = None) -> None:
        """``network`` has been changed by :func:`use_sparse_attention`; ``wrapped`` is its peft model, if
        low-rank adapters are trained.
        """
        super().__init__()
        self.network = network
        self._wrapped = [wrapped]  # in a list, so that the network's weights are not registered twice
        self.counts = dict.fromkeys(COUNTS, 0)
        self._pattern, self._windows = pattern, layer_windows(network.config.get_text_config())
        self._plain = Sparsity.of(pattern, self._windows)

    def merged(self) -> Any:
        """The network with all trained weights."""
        (wrapped,) = self._wrapped
        return self.network if wrapped is None else wrapped.merge_and_unload()

    def learnt(self) -> dict[str, Tensor]:
        """All trained weights, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def forward(
        self, input_ids: Tensor, labels: Tensor, ends: Sequence[int] = (), *, apart: bool = False
    ) -> dict[str, Tensor]:
        """Mean loss of the labelled tokens of sequences of equal length, ``(rows, tokens)``.

        ``labels`` are the token ids, or :data:`IGNORED`; ``ends`` are the ends of demonstrations, or with ``apart``, of
        parts that see only themselves, each from position 0.
        """
        sparsity, positions = self._plain, None
        if apart:
            sizes = np.diff([0, *ends])
            begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
            sparsity = Sparsity(self._plain.spans, BlockLayout(begins, 0))
            positions = torch.from_numpy(np.arange(len(begins)) - begins).to(input_ids.device)[None]
        elif ends and self._pattern.blocks:
            sparsity = Sparsity.of(self._pattern, self._windows, ends)
        decoder = self.network.get_decoder()
        hidden = decoder(
            input_ids=input_ids, position_ids=positions, use_cache=False, sparsity=sparsity
        ).last_hidden_state
        states, targets = hidden[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        taken = targets != IGNORED
        if self.training:
            rows, width = input_ids.shape
            keys = keys_of_layers(sparsity.spans, sparsity.layout, width)
            for name, count in zip(COUNTS, (rows * width, rows * keys, int(taken.sum())), strict=True):
                self.counts[name] += count
        states, targets = states[taken], targets[taken]
        return {"loss": summed_loss(self.network, states, targets) / len(targets)}


def collated(lessons: Sequence[Lesson]) -> dict[str, Any]:
    """A batch of one sequence for :class:`AdaptedModel`."""
    (lesson,) = lessons
    ids = torch.tensor([lesson.ids])
    labels = ids.clone()
    if lesson.learnt is not None:
        labels[:] = IGNORED
        for first, last in lesson.learnt:
            labels[:, first:last] = ids[:, first:last]
    return {"input_ids": ids, "labels": labels, "ends": list(lesson.ends), "apart": lesson.apart}


@dataclass(frozen=True)
class _Sequences(torch.utils.data.Dataset[Lesson]):
    """All training sequences as a data set."""

    examples: AdaptationExamples
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Lesson:
        return self.examples.sequence(number)


@dataclass
class Adaptation(LongTraining):
    """A planned adaptation of one model."""

    spec: AdaptationSpec
    model: Model
    tokenizer: Any
    examples: AdaptationExamples
    device: str
    dtype: str
    log: dict[str, Any] = field(default_factory=lambda: {"seconds": 0.0, **dict.fromkeys(COUNTS, 0), "losses": []})
    """Record of the training: seconds, the model's counts, losses on held-out texts by step in nats per token."""

    @classmethod
    def prepare(cls, spec: AdaptationSpec, say: Say = lambda _: None) -> Adaptation:
        """Load texts, data and tokenizer; nothing is trained yet. Raises ``UserError``."""
        spec.check()
        say(f"preparing {spec.model}")
        model = resolve(spec.model)
        check_family(spec.pattern, model)
        reach = spec.positions.reach(model.context_tokens)
        if spec.length > reach:
            scale = math.ceil(spec.length / model.context_tokens)
            raise UserError(
                f"--length {spec.length:,}: {model.name} reads up to {reach:,} tokens within the positions of its "
                f"training; take a smaller length, or add --rope-scale {scale}"
            )
        if (former := adapted_to(model.source)) is not None and former != spec.pattern:
            raise UserError(
                f"--attention {spec.pattern}: {model.name} was adapted to {former}; continue with "
                "that pattern, or begin with the original model"
            )
        tokenizer = load_tokenizer(model)
        texts = _source(spec, model, tokenizer, say)
        tasks = []
        for name in spec.demonstrations_too:
            say(f"reading {name}")
            task_spec = load_task(name)
            refuse_thoughts(task_spec, "adaptation")
            data = load_data(task_spec, data_dir=spec.data_dir)
            sequences = DemonstrationSequences(TokenizedTask(data, model, tokenizer, spec.seed), spec.length, spec.seed)
            sequences.check()
            tasks.append(sequences)
        device = device_name(spec.device)
        dtype = dtype_name(spec.dtype, device)
        if dtype == "float16":
            raise UserError("--dtype float16: gradients exceed its range; take bfloat16 or float32")
        examples = AdaptationExamples(texts, tuple(tasks), spec.share if tasks else 0.0)
        return cls(spec, model, tokenizer, examples, device, dtype)

    @cached_property
    def folder(self) -> TrainingFolder:
        """Its folder, with the settings that decide the trained weights."""
        tasks = [of.task.data for of in self.examples.tasks]
        settings = {
            **self.spec.decisive(),
            "dtype": self.dtype,
            "instructions" if self.spec.instructions else "texts": list(self.examples.texts.hashes),
            "data": [dict(data.files) for data in tasks],
            "prompt_form": [prompt_form(data.spec) for data in tasks],
            "fingerprint": self.model.fingerprint,
        }
        return TrainingFolder(self.spec.out, settings)

    @property
    def sequences(self) -> int:
        """Sequences of the whole training."""
        return self.steps * self.spec.batch

    @property
    def tokens(self) -> int:
        """Tokens of the whole training: at least ``--tokens``; for conversations approximately."""
        return round(self.sequences * self.examples.texts.mean_tokens)

    def notes(self) -> list[str]:
        """Notes for the user before the training."""
        spec = self.spec
        about, at_most = ("about ", "at most ") if spec.instructions else ("", "")
        notes = [
            f"{about}{self.tokens:,} tokens in {self.steps:,} steps of {spec.batch} sequences of "
            f"{at_most}{spec.length:,} under {spec.pattern}",
            *self.examples.texts.notes(self.sequences * (1 - self.examples.share)),
        ]
        for of in self.examples.tasks:
            notes += of.task.data.notes
        return notes

    @property
    def steps(self) -> int:
        """See ``LongTraining``: the number that reads the tokens of ``--tokens``."""
        return math.ceil(self.spec.tokens / (self.examples.texts.mean_tokens * self.spec.batch))

    @property
    def step_size(self) -> str:
        """See ``LongTraining``."""
        return f"sequences of {self.spec.length:,}"

    def set_up(self, unfinished: Path, say: Say) -> Any:
        """See ``LongTraining``."""
        model = self._model()
        say(self._needs(model))
        return self._trainer(model, unfinished, say)

    def write(self, trainer: Any, unfinished: Path) -> None:
        """See ``LongTraining``: the last weights."""
        del unfinished
        model = trainer.model
        self.log |= {
            "method": "adaptation",
            "base": self.model.name,
            "base_fingerprint": self.model.fingerprint,
            "attention": str(self.spec.pattern),
            "trainable_parameters": sum(p.numel() for p in model.learnt().values()),
            "flops": self._flops(model, self.log),
            **before(self.model.source),
        }
        network = model.merged()
        setattr(network.config, ADAPTED_PATTERN, str(self.spec.pattern))
        network.save_pretrained(self.spec.out)
        self.folder.write_tokenizer(Path(self.model.source))

    def _model(self) -> AdaptedModel:
        """The model, prepared for training."""
        spare_imports()
        from transformers import AutoModelForCausalLM, set_seed

        set_seed(self.spec.seed)
        source, revision = self.model.source, self.model.revision or "main"
        config = self.spec.positions.config(source, revision)
        lora = self.spec.method == "lora"
        network = load_network(
            AutoModelForCausalLM,
            source,
            revision=revision,
            config=config,
            dtype=self.dtype if lora and self.device.startswith("cuda") else "float32",
        )
        use_sparse_attention(network)
        wrapped = None
        if lora:
            from peft import LoraConfig, get_peft_model

            rank = self.spec.lora_rank
            settings = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=4 * rank, target_modules="all-linear")
            wrapped = get_peft_model(network, settings)
        if self.spec.recompute:
            network.gradient_checkpointing_enable({"use_reentrant": False})
            network.enable_input_require_grads()
        return AdaptedModel(network, self.spec.pattern, wrapped)

    @cached_property
    def _architecture(self) -> Architecture:
        return architecture_of(self.model.source)

    def _flops(self, model: AdaptedModel, counts: Mapping[str, int]) -> float:
        """Operations of a training with these ``COUNTS``.

        Logits are computed a second time for the backward pass, and with ``--recompute`` so are layers.
        """
        shape, (tokens, keys, predicted) = self._architecture, (counts[name] for name in COUNTS)
        frozen, recompute = self.spec.method == "lora", self.spec.recompute
        total = step_flops(shape, tokens, keys, frozen=frozen, input_learns=recompute)
        total += shape.logits_flops(predicted * shape.vocabulary) * (3 if frozen else 4)
        again = forward_flops(shape, tokens, keys) if recompute else 0.0
        if frozen:
            adapters = Adapters.of(model.network.named_parameters())
            total += replace(adapters, first=0 if recompute else adapters.first).step(tokens)
            again += adapters.forward(tokens) if recompute else 0.0
        return total + again

    def _needs(self, model: AdaptedModel) -> str:
        """Requirements of the training in words: parameters, memory, time.

        In the forward pass a layer keeps about 34 bytes per token and unit of its width in 16 bits (Korthikanti et al.
        2023, equation 2, without attention scores), or only its input if it is recomputed.
        """
        spec, config = self.spec, model.network.config.get_text_config()
        learnt = sum(p.numel() for p in model.learnt().values())
        kept = sum(p.numel() * p.element_size() for p in model.parameters()) + 12 * learnt
        if self.dtype == "bfloat16":  # autocast's copies
            kept += 2 * sum(p.numel() for p in model.parameters() if p.dtype == torch.float32)
        # logits, normalised logits and gradients, in 32 bits
        head = 12 * HEAD_TOKENS * len(model.network.get_output_embeddings().weight)
        size = 1 if self.dtype == "bfloat16" else 2
        wide, layers = config.hidden_size * spec.length, config.num_hidden_layers
        activations = size * wide * (2 * layers + 34 if spec.recompute else 34 * layers)
        tokens, spans = self.tokens, spec.pattern.spans(self._architecture.windows)
        keys = self.sequences * keys_of_layers(spans, None, round(self.examples.texts.mean_tokens))
        operations = self._flops(model, dict(zip(COUNTS, (tokens, keys, tokens), strict=True)))
        seconds = operations / (REACHED * device_rate(self.device, self.dtype))
        return (
            f"training {learnt / 1e6:,.1f} million parameters; about "
            f"{(kept + activations + head) / 2**30:.1f} GiB and {max(1, seconds / 60):,.0f} min"
        )

    def _trainer(self, model: AdaptedModel, folder: Path, say: Say) -> Any:
        spec, steps = self.spec, self.steps
        each = max(1, steps // LOOKS)
        arguments = self.arguments(
            folder,
            each,
            per_device_train_batch_size=1,
            per_device_eval_batch_size=1,
            gradient_accumulation_steps=spec.batch,
            learning_rate=spec.rate,
            adam_beta1=0.9,
            adam_beta2=0.95,
            adam_epsilon=1e-5,
            weight_decay=0.1,
            lr_scheduler_type="cosine_with_min_lr",
            lr_scheduler_kwargs={"min_lr": LEAST_RATE * spec.rate},
            warmup_steps=min(WARM_UP, math.ceil(steps / 10)),
            seed=spec.seed,
        )
        return trainer_of(
            [[number] for number in range(self.sequences)],
            model=model,
            args=arguments,
            train_dataset=_Sequences(self.examples, self.sequences),
            eval_dataset=self.examples.texts.held_lessons(),
            data_collator=collated,
            callbacks=[watcher(Course(steps, each, folder, self.log, say), model)],
        )


def _source(spec: AdaptationSpec, model: Model, tokenizer: Any, say: Say) -> Source:
    """The source of training data: texts or conversations. Raises ``UserError``."""
    if spec.instructions is not None:
        say("reading conversations")
        return Instructions.read(spec.instructions, model, tokenizer, spec.length, spec.seed)
    assert spec.texts is not None, "checked"
    say("reading texts")
    return PackedTexts.read(spec.texts, tokenizer, spec.length, spec.seed)
