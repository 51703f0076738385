"""BERTScore selection: demonstrations whose tokens cover the meaning of the test example's tokens.

Recall R = mean over the query's tokens of the largest cosine similarity to any token of the
demonstration (Zhang et al. 2020, section 3; chosen for retrieval by Gupta et al. 2023, section 3):
the query is BERTScore's reference, the demonstration its candidate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.demonstrations.interface import Encoders, Retriever
from icl_bench.demonstrations.ranking import Ranking
from icl_bench.models.array_cache import draft, load_arrays
from icl_bench.models.bertscore_model import BertScoreModel
from icl_bench.models.fingerprints import key_of, sha256_of
from icl_bench.models.text_encoders import Encoder, encoder_default

if TYPE_CHECKING:
    import torch

ENCODER_BATCH_TOKENS = 8192
"""Tokens of a batch of the encoder, including padding."""

SIMILARITIES = 2**25
"""Token pairs compared at once: 128 MiB of float32."""


class Packed(NamedTuple):
    """The concatenated token vectors of many texts, shortest text first."""

    tokens: np.ndarray
    """``(tokens, width)`` float16 unit vectors. Rounding changes a recall by about 1e-5."""
    lengths: np.ndarray
    """``(rows,)`` the number of tokens of each row, ascending; 0 for an empty text."""
    rows: np.ndarray
    """``(texts,)`` the row of each text; equal texts share a row."""


class BertScoreRecall(Retriever):
    """BERTScore recall of queries against whole demonstrations, as the library bert-score computes it.

    As by default there, all tokens have the same weight, except that the query's special tokens have none. An empty
    text scores 0. Text beyond the encoder's window is not compared, unless it reads in windows. Scores equal those of
    bert-score for one pair at a time: in a batch it counts padding as a token of similarity 0, so a score would depend
    on its neighbours.

    The pool's vectors are computed once and cached in ``cache_dir``, if given.
    """

    name = "bertscore"

    def __init__(self, encoder: Encoder | None = None, cache_dir: Path | None = None) -> None:
        self.encoder = encoder or encoder_default()
        self._cache_dir = cache_dir
        self._pool: Packed

    @classmethod
    def of(cls, encoders: Encoders) -> BertScoreRecall:
        """See ``Retriever``."""
        return cls(encoders.bertscore_encoder, encoders.cache_dir)

    @classmethod
    def facts(cls, encoders: Encoders) -> Mapping[str, Any]:
        """See ``Retriever``."""
        return {"bertscore_encoder": encoders.bertscore_encoder.fact}

    @cached_property
    def _model(self) -> _BertScoreModel:
        return _BertScoreModel(self.encoder)

    def fit(self, demonstrations: Sequence[str]) -> None:
        """Encode the pool, or load its vectors from the cache."""
        if self._cache_dir is None:
            self._pool = self._model.pack(demonstrations)
        else:
            self._pool = _cached_vectors(self._model, demonstrations, self._cache_dir)

    def rank(self, queries: Sequence[str]) -> Iterator[Ranking]:
        """Score the pool for each query. Every demonstration is related."""
        for batch in token_batches(map(self._model.tokenize, queries)):
            for scores in self._recall(batch)[:, self._pool.rows]:
                yield Ranking(scores.astype(np.float64), np.ones(len(scores), dtype=bool))

    def _recall(self, queries: Sequence[list[int]]) -> np.ndarray:
        """Return the recall of tokenized queries by the pool's rows: float32 ``(queries, rows)``."""
        import torch

        recall = np.zeros((len(queries), len(self._pool.lengths)), dtype=np.float32)
        vectors, owner = self._weighed(queries)
        share = torch.zeros(len(vectors), len(queries))  # each query's mean over its own tokens
        share[torch.arange(len(vectors)), torch.from_numpy(owner)] = 1
        share = share / share.sum(0).clamp(min=1)
        for rows, best in self._best(vectors):
            recall[:, rows] = (best @ share).T.numpy()
        return recall

    def token_similarities(self, queries: Sequence[str]) -> Iterator[np.ndarray]:
        """For each query, the largest cosine of each of its tokens to any token of each demonstration.

        Float32 ``(pool, tokens)``; the recall is the mean over the tokens. Special tokens of the query
        are left out, as in the recall. An empty demonstration has 0.
        """
        for ids in map(self._model.tokenize, queries):
            vectors, _ = self._weighed([ids])
            similar = np.zeros((len(self._pool.lengths), len(vectors)), dtype=np.float32)
            for rows, best in self._best(vectors):
                similar[rows] = best.numpy()
            yield similar[self._pool.rows]

    def _weighed(self, queries: Sequence[list[int]]) -> tuple[torch.Tensor, np.ndarray]:
        """The weighted tokens of tokenized queries: their vectors ``(tokens, width)``, and the query of each,
        ``(tokens,)``.
        """
        import torch

        owner = np.repeat(np.arange(len(queries)), [len(ids) for ids in queries])
        weighs = ~np.isin([token for ids in queries for token in ids], self._model.special)
        if not weighs.any():
            return torch.zeros(0, self._model.width), owner[:0]
        return self._model.encode([ids for ids in queries if ids])[torch.from_numpy(weighs)], owner[weighs]

    def _best(self, vectors: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """The largest cosine of each vector to each row of the pool, in blocks: the rows, and ``(rows, vectors)``.

        Yields nothing without vectors.
        """
        import torch

        if not len(vectors):
            return
        for rows, places, length in row_blocks(self._pool.lengths, len(vectors)):
            tokens = torch.from_numpy(np.array(self._pool.tokens[places]))
            similar = tokens.float() @ vectors.T
            yield rows, similar.view(-1, length, len(vectors)).amax(1)


def token_batches(tokenized: Iterable[list[int]]) -> Iterator[list[list[int]]]:
    """Group tokenized texts, in order, into batches of at most ``ENCODER_BATCH_TOKENS`` when padded."""
    batch: list[list[int]] = []
    longest = 0
    for ids in tokenized:
        longest = max(longest, len(ids))
        if batch and (len(batch) + 1) * longest > ENCODER_BATCH_TOKENS:
            yield batch
            batch, longest = [], len(ids)
        batch.append(ids)
    if batch:
        yield batch


def row_blocks(lengths: np.ndarray, query_tokens: int) -> Iterator[tuple[slice, slice, int]]:
    """Split packed rows into blocks of equal length, small enough to compare at once.

    Yields the rows, the positions of their tokens, and the length. Skips empty rows.
    """
    starts = np.concatenate([[0], np.cumsum(lengths)])
    edges = np.flatnonzero(np.diff(lengths, prepend=0, append=-1)).tolist()
    for begin, end in pairwise(edges):
        length = int(lengths[begin])
        step = max(1, SIMILARITIES // (length * query_tokens))
        for first in range(begin, end, step):
            last = min(first + step, end)
            yield slice(first, last), slice(starts[first], starts[last]), length


class _BertScoreModel(BertScoreModel):
    """bert-score's tokenizer and encoder, and the vectors of many texts."""

    def pack(self, texts: Sequence[str], file: Path | None = None) -> Packed:
        """Encode texts, equal ones once. The vectors are written to ``file``, if given."""
        unique = list(dict.fromkeys(texts))
        tokenized = sorted(((self.tokenize(text), text) for text in unique), key=lambda row: len(row[0]))
        lengths = np.array([len(ids) for ids, _ in tokenized], dtype=np.int64)
        row = {text: place for place, (_, text) in enumerate(tokenized)}
        shape = (int(lengths.sum()), self.width)
        if file is None or shape[0] == 0:
            tokens = np.empty(shape, np.float16)
        else:
            tokens = np.lib.format.open_memmap(file, "w+", np.float16, shape)
        written = 0
        for batch in token_batches(ids for ids, _ in tokenized if ids):
            vectors = self.encode(batch).numpy()
            tokens[written : written + len(vectors)] = vectors
            written += len(vectors)
        return Packed(tokens, lengths, np.array([row[text] for text in texts], dtype=np.int64))

    def fingerprint(self) -> str:
        """Return a hash of the model's files and of the versions of the libraries that read them."""
        from huggingface_hub import hf_hub_download

        model = self.encoder.model
        config = Path(model) / "config.json"
        if not config.is_file():
            config = Path(hf_hub_download(model, "config.json", local_files_only=True))
        parts = [str(self.encoder.layers), "cpu", "float32", version("bert-score"), version("transformers")]
        parts += ["windows"] if self.encoder.windows else []
        for file in sorted(config.parent.iterdir()):
            if file.suffix in {".json", ".txt", ".model", ".safetensors", ".bin"}:
                parts += [file.name, sha256_of(file)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _cached_vectors(model: _BertScoreModel, texts: Sequence[str], cache_dir: Path) -> Packed:
    """Return the vectors of texts from the cache. Computes and stores missing ones.

    The entry's name has a hash of the texts and of the model, so it cannot become stale.
    """
    entry = cache_dir / f"bertscore-{key_of([model.fingerprint(), *texts])}"
    if (arrays := load_arrays(entry, Packed._fields)) is not None:
        return Packed(*arrays)
    with draft(entry) as folder:
        packed = model.pack(texts, folder / "tokens.npy")
        if isinstance(packed.tokens, np.memmap):
            packed.tokens.flush()
            np.save(folder / "lengths.npy", packed.lengths)
            np.save(folder / "rows.npy", packed.rows)
    return packed
