"""The similarity of the pool to each test row, computed once for each retriever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from icl_bench.demonstrations.bm25 import needs_unicode
from icl_bench.demonstrations.interface import Retriever
from icl_bench.demonstrations.ranking import Ranking
from icl_bench.models import text_encoders
from icl_bench.models.bertscore_model import BertScoreModel
from icl_bench.models.text_encoders import Encoder, Reading, SentenceEncoder
from icl_bench.prompts.rendering import demonstration_text
from icl_bench.registry import SELECTORS
from icl_bench.tasks.examples import Example, TaskData


@dataclass
class Similarity:
    """Rankings and embeddings of one task's pool and test rows.

    BM25 and BERTScore compare a query with whole demonstrations, including answers (Bertsch et al. 2025, section 3.1).
    Embeddings are of inputs only, so one set serves all uses. The texts are those of the data, not of the prompts, and
    of the whole train file, not of the pool. So a cache on disk serves all models.
    """

    data: TaskData
    pool: np.ndarray
    """Train indices, ``(pool,)``. Rankings and embeddings are in this order."""
    cache_dir: Path
    encoder_name: str | None = None
    """Name, folder or hub id of the sentence encoder; None for the packaged one."""
    windows: bool = False
    """Whether encoders read long texts in windows, instead of truncating them."""
    _ranked: dict[str, list[Ranking]] = field(default_factory=dict, repr=False)

    def ranked(self, by: str) -> list[Ranking]:
        """The ranking of the pool for each test row. Raises ``UserError`` if there is no encoder."""
        if by not in self._ranked:
            self._ranked[by] = [
                Ranking(ranking.scores[self.pool], ranking.related[self.pool])
                for ranking in self.fitted(by).rank(self.queries)
            ]
        return self._ranked[by]

    def fitted(self, by: str) -> Retriever:
        """See ``Encoders``. Raises ``UserError`` if there is no encoder."""
        retriever: Retriever = SELECTORS[by].of(self)
        inputs = retriever.compares == "inputs"
        retriever.fit(self._inputs(self.data.train) if inputs else self.demonstrations)
        return retriever

    @cached_property
    def queries(self) -> list[str]:
        """See ``Encoders``."""
        return self._inputs(self.data.test)

    @cached_property
    def pool_inputs(self) -> list[str]:
        """See ``Encoders``."""
        return self._inputs([self.data.train[i] for i in self.pool])

    @cached_property
    def demonstrations(self) -> list[str]:
        """The text of each train row as a whole demonstration: ``(train,)``."""
        return [demonstration_text(self.data.spec.template, row) for row in self.data.train]

    @cached_property
    def unicode_words(self) -> bool:
        """See ``Encoders``."""
        return needs_unicode(self.demonstrations)

    @cached_property
    def pool_embeddings(self) -> np.ndarray:
        """Sentence embeddings of the pool's inputs, ``(pool, width)``. Raises ``UserError``."""
        embeddings: np.ndarray = self._embedded(self.data.train)[self.pool]
        return embeddings

    @cached_property
    def query_embeddings(self) -> np.ndarray:
        """Sentence embeddings of the test rows' inputs, ``(test, width)``. Raises ``UserError``."""
        return self._embedded(self.data.test)

    @cached_property
    def sentence_reading(self) -> Reading:
        """The share of the inputs that the sentence encoder reads. Raises ``UserError``."""
        texts = self._inputs([*self.data.train, *self.data.test])
        return text_encoders.reading_cached(texts, self.sentence_encoder, self.cache_dir)

    @cached_property
    def bertscore_reading(self) -> Reading:
        """The share of demonstrations and inputs that BERTScore's encoder reads. Raises ``UserError``."""
        return BertScoreModel(self.bertscore_encoder).reading([*self.demonstrations, *self._inputs(self.data.test)])

    def _embedded(self, examples: Sequence[Example]) -> np.ndarray:
        return text_encoders.embed_cached(self._inputs(examples), self.sentence_encoder, self.cache_dir)

    def _inputs(self, examples: Sequence[Example]) -> list[str]:
        names = self.data.spec.template.input_fields
        return [" ".join(row.fields[name] for name in names) for row in examples]

    @cached_property
    def bertscore_encoder(self) -> Encoder:
        """The encoder of BERTScore. Raises ``UserError``."""
        encoder = text_encoders.encoder_default()
        return replace(encoder, windows=True) if self.windows else encoder

    @cached_property
    def sentence_encoder(self) -> SentenceEncoder:
        """The encoder of whole texts. Raises ``UserError``."""
        encoder = SentenceEncoder.find(self.encoder_name)
        return replace(encoder, windows=True) if self.windows else encoder
