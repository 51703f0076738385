"""Base of methods on sentence embeddings, which need no language model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.models.text_encoders import PACKAGED, cost_cached, reading_cached
from icl_bench.results.stored_meta import TrainingMeta
from icl_bench.tasks.examples import Example
from icl_bench.training.examples import Examples
from icl_bench.training.interface import Learned, LearningCost, TrainingMethod
from icl_bench.training.methods.classifiers import Fitted


class OnEmbeddings(TrainingMethod):
    """A classifier of sentence embeddings. Operations are the encoder's, without padding."""

    packages = ("sklearn",)
    has_architecture = False

    def facts(self, select: str) -> Mapping[str, Any]:
        """See ``TrainingMethod``."""
        del select
        return {"sentence_encoder": PACKAGED}

    def notes(self) -> list[str]:
        """See ``TrainingMethod``."""
        data = self.run.task.data
        texts = self._inputs([*data.train, *data.test])
        reading = reading_cached(texts, self.run.embeddings.encoder, self.run.task.pool.cache_dir)
        return reading.notes(PACKAGED, "embeds", hint="")

    def cost(self, examples: Examples) -> LearningCost | None:
        """See ``TrainingMethod``."""
        encoder, folder = self.run.embeddings.encoder, self.run.task.pool.cache_dir
        test = self._inputs(self.run.task.data.test)
        train = cost_cached(self._learned(examples), encoder, folder)
        queries = cost_cached(test, encoder, folder)
        if train is None or queries is None:
            return None
        return LearningCost(
            tokens=train.tokens,
            flops=train.flops,
            query_tokens=queries.tokens / len(test),
            query_flops=queries.flops / len(test),
            flops_of_answers=queries.flops,
        )

    @abstractmethod
    def classify(
        self, train: np.ndarray, labels: np.ndarray, test: np.ndarray, keep: Path | None
    ) -> tuple[Fitted, Mapping[str, Any]]:
        """What it says of the test rows, and the training's record in the cell's file."""

    def learn(self, examples: Examples, keep: Path | None) -> list[Learned]:
        """See ``TrainingMethod``."""
        labels = np.array([row.label for row in examples.train])
        train, embedding_seconds = self.run.embeddings.of(self._learned(examples))
        test, seconds = self.run.embeddings.of(self._inputs(self.run.task.data.test))
        found, further = self.classify(train, labels, test, keep)
        cost = self.cost(examples)
        return [
            Learned(
                self.name,
                found.probabilities,
                seconds + found.answer_seconds,
                TrainingMeta(
                    method=self.name,
                    seconds=round(embedding_seconds + found.fit_seconds, 3),
                    flops=None if cost is None else cost.flops,
                    sentence_encoder=PACKAGED,
                    labels_without_example=list(examples.missing),
                    **further,
                ),
                None if cost is None else cost.query_flops,
            )
        ]

    def _learned(self, examples: Examples) -> list[str]:
        """The texts of the examples to train on. Raises ``CellError`` if they have fewer than two labels."""
        examples.check()
        return self._inputs(examples.shown)

    def _inputs(self, rows: Iterable[Example]) -> list[str]:
        names = self.run.task.data.spec.template.input_fields
        return [" ".join(row.fields[name] for name in names) for row in rows]
