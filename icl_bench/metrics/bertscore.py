"""BERTScore of free text (Zhang et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from icl_bench.metrics.interface import Measure, Metric

if TYPE_CHECKING:
    import numpy as np

    from icl_bench.models.text_encoders import Encoder


class BertScore(Metric):
    """BERTScore F1 with the default encoder, whose name is part of a cell's identity."""

    answers = "text"
    measures = (Measure("bertscore", "bertscore", "BERTScore"),)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder that compares tokens. Raises ``UserError`` if none is available."""
        from icl_bench.models.text_encoders import encoder_default

        return encoder_default()

    def facts(self) -> Mapping[str, Any]:
        """See ``Metric``."""
        return {"bertscore": self.encoder.name}

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        return {"bertscore": bertscore_f1(gold, predictions, self.encoder)}


def bertscore_f1(gold: Sequence[str], predictions: Sequence[str], encoder: Encoder) -> np.ndarray:
    """Return the BERTScore F1 of each example, ``(test,)``, not rescaled (Zhang et al. 2020).

    Scores of different encoders differ, so store the encoder's name with them.

    An empty text scores 0, as in bert-score, which fails on one with transformers 5. Pairs are
    scored one at a time: in a batch, bert-score counts padding as a token of similarity 0, so a
    score would depend on its neighbours.
    """
    import numpy as np

    pairs = list(zip(gold, predictions, strict=True))
    nonempty = [i for i, pair in enumerate(pairs) if all(text.strip() for text in pair)]
    f1 = np.zeros(len(pairs))
    if nonempty:
        references, candidates = zip(*(pairs[i] for i in nonempty), strict=True)
        _, _, scores = _scorer(encoder).score(list(candidates), list(references), batch_size=1)
        f1[nonempty] = scores.numpy()
    return f1


@lru_cache(maxsize=1)  # a run scores many cells with one encoder
def _scorer(encoder: Encoder) -> Any:
    from bert_score import BERTScorer

    return BERTScorer(model_type=encoder.model, num_layers=encoder.layers)
