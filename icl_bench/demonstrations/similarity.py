"""How similar the pool is to each test row, by each measure, computed once for all that ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.demonstrations.interface import Retriever
from icl_bench.demonstrations.ranking import Ranking
from icl_bench.prompts.rendering import demonstration_text
from icl_bench.registry import SELECTORS
from icl_bench.tasks.examples import Example, TaskData

if TYPE_CHECKING:
    from icl_bench.models.text_encoders import Encoder, SentenceEncoder


@dataclass
class Similarity:
    """Rankings and embeddings of one task's pool and test rows.

    BM25 and BERTScore compare a query with whole demonstrations, answers included (Bertsch et al.
    2025, section 3.1); embeddings are of inputs alone, so that all that uses them shares one set.
    Texts are those of the data, whatever a prompt shows of them, and of the whole train file,
    whatever a tokenizer leaves out of the pool: what is kept on disk then serves every model.
    """

    data: TaskData
    pool: np.ndarray
    """Train indices, ``(pool,)``: places in it are what rankings and embeddings are by."""
    cache_dir: Path
    asked_encoder: str | None = None
    """Name, folder or hub id of the sentence encoder; None for the packaged one."""
    _ranked: dict[str, list[Ranking]] = field(default_factory=dict, repr=False)

    def ranked(self, by: str) -> list[Ranking]:
        """How similar the pool is to each test row. Raises ``UserError`` for lack of an encoder."""
        if by not in self._ranked:
            retriever: Retriever = SELECTORS[by].of(self)
            train, template = self.data.train, self.data.spec.template
            if retriever.compares == "inputs":
                retriever.fit(self._inputs(train))
            else:
                retriever.fit([demonstration_text(template, row) for row in train])
            self._ranked[by] = [
                Ranking(found.scores[self.pool], found.related[self.pool])
                for found in retriever.rank(self._inputs(self.data.test))
            ]
        return self._ranked[by]

    @cached_property
    def pool_embeddings(self) -> np.ndarray:
        """Sentence embeddings of the pool's inputs, ``(pool, width)``. Raises ``UserError``."""
        found: np.ndarray = self._embedded(self.data.train)[self.pool]
        return found

    @cached_property
    def query_embeddings(self) -> np.ndarray:
        """Sentence embeddings of the test rows' inputs, ``(test, width)``. Raises ``UserError``."""
        return self._embedded(self.data.test)

    @cached_property
    def cut(self) -> tuple[int, int]:
        """How many different inputs the sentence encoder reads only the beginning of, and how many
        tokens that is; (0, 0) where it reads all. Raises ``UserError``.
        """
        from icl_bench.models.text_encoders import cut_cached

        texts = self._inputs([*self.data.train, *self.data.test])
        return cut_cached(texts, self.sentence_encoder, self.cache_dir)

    def _embedded(self, examples: Sequence[Example]) -> np.ndarray:
        from icl_bench.models.text_encoders import embed_cached

        return embed_cached(self._inputs(examples), self.sentence_encoder, self.cache_dir)

    def _inputs(self, examples: Sequence[Example]) -> list[str]:
        names = self.data.spec.template.input_fields
        return [" ".join(row.fields[name] for name in names) for row in examples]

    @cached_property
    def bertscore_encoder(self) -> Encoder:
        """What BERTScore compares tokens by. Raises ``UserError``."""
        from icl_bench.models.text_encoders import encoder_default

        return encoder_default()

    @cached_property
    def sentence_encoder(self) -> SentenceEncoder:
        """What embeds whole texts. Raises ``UserError``."""
        from icl_bench.models.text_encoders import SentenceEncoder

        return SentenceEncoder.find(self.asked_encoder)
