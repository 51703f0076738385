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
from icl_bench.training.methods.classifiers import fitted_probabilities, linear_classifier
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
        self._known: dict[Ids, np.ndarray] = {}

    def of(self, rows: Sequence[LabelledQuery]) -> np.ndarray:
        """States ``(rows, width)``; equal queries are computed once.

        Queries are identified by their tokens, because train and test files may use the same ids.
        """
        new = [ids for ids in dict.fromkeys(row.ids for row in rows) if ids not in self._known]
        for batch in _batches(new):
            self._compute(batch)
        return np.stack([self._known[row.ids] for row in rows])

    def _compute(self, queries: Sequence[Ids]) -> None:
        import torch

        batch = padded(queries, self._pad)
        inputs = {name: value.to(self.model.device) for name, value in batch.items()}
        with torch.no_grad():
            states = self.model(**inputs, use_cache=False).last_hidden_state
        for number, ids in enumerate(queries):
            state = states[number, len(ids) - 1].float().cpu().numpy()
            if not np.isfinite(state).all():
                raise CellError("the model's states are infinite or NaN; use --dtype float32")
            self._known[ids] = state


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

    @cached_property
    def _test_states(self) -> tuple[np.ndarray, float]:
        """States of the test rows, and the seconds to compute them."""
        states, rows = self._states, Examples(self.run.task, 0, 0).test
        start = time.perf_counter()
        test = states.of(rows)
        return test, time.perf_counter() - start

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
            test, inference = self._test_states
            start = time.perf_counter()
            states = self._states.of(train)
        labels = np.array([row.label for row in train])
        probabilities = fitted_probabilities(
            linear_classifier(), states, labels, test, len(self.run.task.data.labels), keep
        )
        return [
            Learned(
                self.name,
                probabilities,
                inference,
                TrainingMeta(
                    method=self.name,
                    seconds=round(time.perf_counter() - start, 3),
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
