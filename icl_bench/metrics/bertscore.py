"""BERTScore of free text (Zhang et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.metrics.interface import Measure, Metric

if TYPE_CHECKING:
    import numpy as np

    from icl_bench.models.bertscore_model import BertScoreModel
    from icl_bench.models.text_encoders import Encoder, Reading


class BertScore(Metric):
    """BERTScore F1 with the default encoder, whose name is part of a cell's identity."""

    answers = "text"
    measures = (Measure("bertscore", "bertscore", "BERTScore"),)

    def __init__(self) -> None:
        self._reading: Reading | None = None
        self._answers: set[str] = set()
        """The model's answers."""

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder that compares tokens. Raises ``UserError`` if none is available."""
        from icl_bench.models.text_encoders import encoder_default

        encoder = encoder_default()
        return replace(encoder, windows=True) if self.windows else encoder

    @property
    def _model(self) -> BertScoreModel:
        return _model_of(self.encoder)

    def fit(self, answers: Sequence[str]) -> None:
        """See ``Metric``."""
        from icl_bench.models.text_encoders import UNKNOWN, mostly_other_scripts

        self._reading, name = self._model.reading(answers), self.encoder.name
        if mostly_other_scripts(answers):
            why = f"{name} is an encoder of English, and the right answers are in another script"
        elif self._reading.unknown >= UNKNOWN:
            why = f"{name} does not know {self._reading.unknown:.0%} of the tokens of the right answers"
        else:
            return
        raise UserError(f"metric bertscore: {why}; leave it out of metrics (rouge and chrf read any script)")

    def facts(self) -> Mapping[str, Any]:
        """See ``Metric``."""
        return {"bertscore": self.encoder.fact}

    def notes(self) -> Sequence[str]:
        """See ``Metric``."""
        return (
            self._reading.notes(f"bertscore: {self.encoder.name}", "compares", "right answer") if self._reading else []
        )

    def notes_on_answers(self) -> Sequence[str]:
        """See ``Metric``."""
        if not self._answers:
            return []
        reading = self._model.reading(self._answers)
        return reading.notes(f"bertscore: {self.encoder.name}", "compares", "model's answer")

    def score(self, gold: Sequence[str], predictions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See ``Metric``."""
        self._answers.update(predictions)
        return {"bertscore": bertscore_f1(gold, predictions, self.encoder)}


def bertscore_f1(gold: Sequence[str], predictions: Sequence[str], encoder: Encoder) -> np.ndarray:
    """Return the BERTScore F1 of each example, ``(test,)``, not rescaled (Zhang et al. 2020).

    Scores of different encoders differ, so store the encoder's name with them.

    An empty text scores 0, as in bert-score, which fails on one with transformers 5. Pairs are
    scored one at a time: in a batch, bert-score counts padding as a token of similarity 0, so a
    score would depend on its neighbours. bert-score truncates texts to the encoder's window; an encoder that reads
    in windows compares all tokens of long ones.
    """
    import numpy as np

    pairs = list(zip(gold, predictions, strict=True))
    nonempty = [i for i, pair in enumerate(pairs) if all(text.strip() for text in pair)]
    f1 = np.zeros(len(pairs))
    if nonempty:
        references, candidates = zip(*(pairs[i] for i in nonempty), strict=True)
        _, _, scores = _scorer(encoder).score(list(candidates), list(references), batch_size=1)
        f1[nonempty] = scores.numpy()
        if encoder.windows:
            f1[nonempty] = _with_long(f1[nonempty], references, candidates, encoder)
    return f1


def _with_long(f1: np.ndarray, references: Sequence[str], candidates: Sequence[str], encoder: Encoder) -> list[float]:
    """The scores, with pairs that have a long text recomputed from all its windows."""
    model = _model_of(encoder)
    pairs = zip(references, candidates, f1, strict=True)
    return [model.f1(a, b) if model.is_long(a) or model.is_long(b) else float(score) for a, b, score in pairs]


@lru_cache(maxsize=1)  # a run scores many cells with one encoder
def _scorer(encoder: Encoder) -> Any:
    from bert_score import BERTScorer

    return BERTScorer(model_type=encoder.model, num_layers=encoder.layers)


@lru_cache(maxsize=1)
def _model_of(encoder: Encoder) -> BertScoreModel:
    from icl_bench.models.bertscore_model import BertScoreModel

    return BertScoreModel(encoder)
