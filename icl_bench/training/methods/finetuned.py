"""Fine-tuning methods: LoRA and all weights, each with an upper bound."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from icl_bench.errors import CellError
from icl_bench.results.stored_meta import TrainingMeta
from icl_bench.results.trained_methods import UPPER
from icl_bench.training.classification_head import first_tokens, sharing_rows
from icl_bench.training.examples import VALIDATION_ROWS, Examples
from icl_bench.training.interface import Learned, LearningCost, TrainingMethod
from icl_bench.training.operations import Adapters
from icl_bench.training.trainer import FinetuningResult, Recipe, fine_tune, planned_batches


class FullFinetuning(TrainingMethod):
    """Fine-tuning of all weights, with a classification head (Bertsch et al. 2025, appendix E).

    Each training has two cells: the checkpoint chosen on validation rows, and as an upper bound the
    one chosen on test rows, as in the study.
    """

    name = "full"
    method: Literal["lora", "full"] = "full"
    backend = "trainer"
    selects_checkpoint = True
    has_upper_bound = True

    @property
    def recipe(self) -> Recipe:
        """Settings of the training."""
        spec = self.run.spec
        changes: dict[str, Any] = {"head": spec.head, "epochs": spec.epochs, "batch": spec.batch}
        if spec.learning_rate is not None:
            changes["learning_rate"] = spec.learning_rate
        if self.method == "lora":
            own = {"lora_rank": spec.lora_rank, "lora_alpha": spec.lora_alpha, "rslora": spec.rslora or None}
            changes |= {name: value for name, value in own.items() if value is not None}
        return Recipe.of(self.method, **changes)

    def notes(self) -> list[str]:
        """See ``TrainingMethod``."""
        notes, labels = [], self.run.task.data.labels
        if self.run.spec.head == "lm" and (sharing := sharing_rows(first_tokens(self.run.task))):
            notes.append(
                f"{sharing} of {len(labels)} labels share their first token with others, so "
                "the classification head starts with equal weights for them"
            )
        if self.run.spec.validation == "pool":
            notes.append(
                f"lora and full keep the epoch that is best on {VALIDATION_ROWS} further rows of the pool; "
                "--validation examples takes these rows from the k examples"
            )
        return notes

    def facts(self, select: str) -> Mapping[str, Any]:
        """See ``TrainingMethod``."""
        return {
            "recipe": self.recipe.model_dump(exclude_none=True),
            "checkpoint": "test" if select.endswith(UPPER) else "validation",
        }

    def cost(self, examples: Examples) -> LearningCost:
        """See ``TrainingMethod``. Omits the few operations of the head and of adapters."""
        recipe, shape, pattern, test = self.recipe, self.run.architecture, self.run.pattern, examples.test
        seed = self.run.spec.seed + examples.draw
        planned = FinetuningResult(
            batches=planned_batches([len(row.ids) for row in examples.train], recipe, seed),
            adapters=Adapters(0, 0) if self.method == "lora" else None,
        )
        return LearningCost(
            tokens=sum(map(sum, planned.batches)),
            flops=planned.flops(shape, examples, recipe, pattern),
            query_tokens=float(np.mean([len(row.ids) for row in test])),
            query_flops=planned.prediction_flops(shape, test, 1, pattern) / len(test),
            flops_of_answers=recipe.epochs * planned.prediction_flops(shape, test, 2 * recipe.batch, pattern),
        )

    def learn(self, examples: Examples, keep: Path | None) -> list[Learned]:
        """See ``TrainingMethod``."""
        assert examples.train  # raises before the model is loaded
        done = fine_tune(
            examples,
            self.recipe,
            source=self.run.task.model.source,
            device=self.run.device,
            dtype=self.run.dtype,
            seed=self.run.spec.seed + examples.draw,
            keep=keep,
        )
        if keep is not None and self.method == "full":
            self._keep_tokenizer(keep)
        return [
            self._checkpoint(done, self.name, done.best, examples),
            self._checkpoint(done, f"{self.name}{UPPER}", done.best_on_test, examples),
        ]

    def _keep_tokenizer(self, keep: Path) -> None:
        """Write the tokenizer beside the whole model, which then needs no other folder. Raises ``CellError``."""
        from transformers import AutoTokenizer

        try:
            AutoTokenizer.from_pretrained(self.run.task.model.source, trust_remote_code=False).save_pretrained(keep)
        except OSError as error:
            raise CellError(f"checkpoint: {error.strerror or error}") from None

    def _checkpoint(self, done: FinetuningResult, select: str, epoch: int, examples: Examples) -> Learned:
        logits, recipe = done.logits[epoch], self.recipe
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        tokens = first_tokens(self.run.task) if recipe.head == "lm" else []
        shape, pattern, test = self.run.architecture, self.run.pattern, examples.test
        return Learned(
            select,
            chances,
            done.inference_seconds,
            TrainingMeta(
                method=select,
                seconds=round(done.training_seconds, 3),
                tokens=done.training_tokens,
                flops=done.flops(shape, examples, recipe, pattern),
                padded_tokens=done.padded_tokens,
                trainable_parameters=done.trainable,
                epoch=epoch + 1,
                validation_accuracy=[round(share, 6) for share in done.validation],
                test_accuracy=[round(share, 6) for share in done.test],
                validation_rows=len(examples.held_out),
                labels_without_example=list(examples.missing),
                labels_sharing_a_head_row=sharing_rows(tokens),
            ),
            done.prediction_flops(shape, test, 1, pattern) / len(test),
        )


class Lora(FullFinetuning):
    """Low-rank adapters of the attention layers, by peft."""

    name = "lora"
    method = "lora"
    packages = ("peft",)
