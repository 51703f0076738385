"""Logistic regression on the frozen model's states at each query's last token."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.errors import CellError
from icl_bench.prompts.encoding import Ids
from icl_bench.quiet_libraries import spare_imports
from icl_bench.results.stored_meta import TrainingMeta
from icl_bench.training.classification_head import pad_token
from icl_bench.training.examples import Examples, LabelledQuery, padded
from icl_bench.training.interface import Learned, LearningCost, TrainingMethod
from icl_bench.training.methods.classifiers import fitted, linear_classifier
from icl_bench.training.operations import batch_of, forward_flops

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BATCH_TOKENS = 4096
"""Tokens of a batch, including padding."""


class LastStates:
    """The hidden state after the last layer and norm, at a query's last token."""

    def __init__(self, source: str, pad: int, device: str, dtype: str) -> None:
        import torch

        spare_imports()
        from transformers import AutoModel

        from icl_bench.backends.transformers.checkpoint import load_network
        from icl_bench.training.sparse_attention import as_adapted

        model = load_network(AutoModel, source, new_head=True, dtype=getattr(torch, dtype))
        self.model: PreTrainedModel = as_adapted(model, source).to(device).eval()
        self._pad = pad
        self._known: dict[Ids, tuple[np.ndarray, float]] = {}
        """State and seconds of a query."""

    def of(self, rows: Sequence[LabelledQuery]) -> tuple[np.ndarray, float]:
        """States ``(rows, width)``, and the seconds of the distinct queries; equal queries are computed once.

        The seconds are those of the first computation. Queries are identified by their tokens, because train and test
        files may use the same ids.
        """
        new = [ids for ids in dict.fromkeys(row.ids for row in rows) if ids not in self._known]
        for batch in _batches(new):
            self._compute(batch)
        seconds = sum(self._known[ids][1] for ids in {row.ids for row in rows})
        return np.stack([self._known[row.ids][0] for row in rows]), seconds

    def _compute(self, queries: Sequence[Ids]) -> None:
        import torch

        start = time.perf_counter()
        batch = padded(queries, self._pad)
        inputs = {name: value.to(self.model.device) for name, value in batch.items()}
        with torch.no_grad():
            states = self.model(**inputs, use_cache=False).last_hidden_state
        last = [states[number, len(ids) - 1].float().cpu().numpy() for number, ids in enumerate(queries)]
        if not np.isfinite(last).all():
            raise CellError("the model's states are infinite or NaN; use --dtype float32")
        each = (time.perf_counter() - start) / len(queries)
        self._known.update((ids, (state, each)) for ids, state in zip(queries, last, strict=True))


def _batches(queries: Sequence[Ids]) -> Iterator[Sequence[Ids]]:
    """Queries that are computed together, the longest first."""
    size = max(1, BATCH_TOKENS // max(map(len, queries), default=1))
    order = sorted(queries, key=len, reverse=True)
    for start in range(0, len(order), size):
        yield order[start : start + size]


class Probe(TrainingMethod):
    """Logistic regression on the frozen model's states.

    Operations are those of the states; the regression's are not counted.
    """

    name = "probe"
    backend = "probe"
    packages = ("sklearn",)

    @cached_property
    def _states(self) -> LastStates:
        run = self.run
        return LastStates(run.task.model.source, pad_token(run.task), run.device, run.dtype)

    def cost(self, examples: Examples) -> LearningCost:
        """See ``TrainingMethod``."""
        train, test = examples.train, examples.test
        query = self._flops([row.ids] for row in test) / len(test)
        return LearningCost(
            tokens=sum(len(row.ids) for row in train),
            flops=self._flops(_batches(list(dict.fromkeys(row.ids for row in train)))),
            query_tokens=float(np.mean([len(row.ids) for row in test])),
            query_flops=query,
            flops_of_answers=query * len(test),
        )

    def learn(self, examples: Examples, keep: Path | None) -> list[Learned]:
        """See ``TrainingMethod``."""
        from icl_bench.backends.transformers.device_memory import memory_errors_as_cell_errors

        train, cost = examples.train, self.cost(examples)
        with memory_errors_as_cell_errors(f"on {self.run.device} while reading examples"):
            test, test_seconds = self._states.of(examples.test)
            states, train_seconds = self._states.of(train)
        labels = np.array([row.label for row in train])
        found = fitted(linear_classifier(), states, labels, test, len(self.run.task.data.labels), keep)
        return [
            Learned(
                self.name,
                found.probabilities,
                test_seconds + found.answer_seconds,
                TrainingMeta(
                    method=self.name,
                    seconds=round(train_seconds + found.fit_seconds, 3),
                    tokens=int(cost.tokens),
                    flops=cost.flops,
                    labels_without_example=list(examples.missing),
                ),
                cost.query_flops,
            )
        ]

    def _flops(self, batches: Iterable[Sequence[Ids]]) -> float:
        """Operations of the states of batches of queries, including padding."""
        shape, spans = self.run.architecture, self.run.pattern.spans(self.run.architecture.windows)
        return sum(forward_flops(shape, *batch_of(spans, list(map(len, batch)))) for batch in batches)
