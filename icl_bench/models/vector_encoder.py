"""Texts as vectors for a decoder that reads them (Vec-RA; Chen et al. 2024, section 2.2).

And what a checkpoint of such a decoder says of them.

A BERT-like encoder gives one vector a text: its hidden state at the first token ([CLS], as in the
paper) or the mean over its tokens. It reads a text up to its own window. On the CPU in float32, as
sentence embeddings are, so that vectors do not depend on the machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from icl_bench.errors import UserError
from icl_bench.frozen import Frozen
from icl_bench.models.array_cache import kept
from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.fingerprints import key_of
from icl_bench.models.text_encoders import SentenceEncoder, fingerprint
from icl_bench.quiet_libraries import spare_imports
from icl_bench.wording import first_line, one_line, plain

Pooling = Literal["cls", "mean"]

SETTINGS, WEIGHTS, ENCODER = "vectors.json", "vectors/readers.safetensors", "vectors/encoder"
"""What a checkpoint holds beside the decoder's own files: what its vectors are, the weights that
read them, and the encoder's files where it was trained too. In a folder of their own, because
programs read whatever weights stand beside a config.json."""

BATCH = 32
"""Texts that are encoded in one call."""


class VectorSettings(Frozen):
    """What a decoder was trained to read: ``vectors.json`` of its checkpoint."""

    encoder: str
    """As it was asked for; ``encoder/`` of the checkpoint where that is there."""
    encoder_fingerprint: str
    """Of the files of the encoder that makes them: after training, where that was trained too."""
    pooling: Pooling
    width: int
    """Of a vector."""
    vectors: int
    """How many it was trained with, at most."""
    text: int = 0
    """Demonstrations that were text beside them."""
    parameters: int
    """In the added matrices that every token passes."""
    vector_parameters: int
    """In those that every vector passes."""
    weights: str
    """SHA-256, in hex, of the added weights' file, so that the folder's own hash tells them."""
    trained: Literal["all", "added"]
    model: str
    """The decoder that training began with."""

    def write(self, folder: Path) -> None:
        """Write them into a checkpoint's folder."""
        text = json.dumps(self.model_dump(), indent=2) + "\n"
        (folder / SETTINGS).write_text(text, encoding="utf-8")


def settings_of(source: str) -> VectorSettings | None:
    """What a checkpoint says of vectors; None where it reads none. Raises ``UserError``."""
    file = Path(source) / SETTINGS
    try:
        return VectorSettings.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise UserError(
            f"{file}: cannot be read ({first_line(error)}); give a folder that train-vectors wrote"
        ) from None


@dataclass(frozen=True)
class VectorEncoder:
    """An encoder of whole texts in one vector each."""

    name: str
    source: str
    pooling: Pooling

    @classmethod
    def of(cls, asked: str | None, pooling: Pooling) -> VectorEncoder:
        """Find an encoder: the packaged one (None), a folder, or a model of the hub.

        Raises ``UserError``.
        """
        found = SentenceEncoder.find(asked)
        return cls(found.name, found.source, pooling)

    @classmethod
    def of_checkpoint(cls, source: str, settings: VectorSettings) -> VectorEncoder:
        """The one that a checkpoint was trained with. Raises ``UserError`` where it is not here, or
        is another one now.
        """
        own = Path(source) / ENCODER
        if own.is_dir():
            found = cls(settings.encoder, str(own), settings.pooling)
        else:
            found = cls.of(settings.encoder, settings.pooling)
        if found.fingerprint != settings.encoder_fingerprint:
            raise UserError(
                f"model {source}: was trained with other files of the encoder {settings.encoder} than are here"
            )
        if found.width != settings.width:
            raise UserError(
                f"model {source}: reads vectors of width {settings.width}, and the encoder "
                f"{settings.encoder} makes {found.width}"
            )
        return found

    @property
    def fingerprint(self) -> str:
        """Of its files."""
        return fingerprint(self.source)

    @property
    def width(self) -> int:
        """Of a vector."""
        return int(self.load()[0].config.hidden_size)

    def load(self) -> tuple[Any, Any]:
        """The network, in evaluation mode, and its tokenizer; loaded once. Raises ``UserError``."""
        return _loaded(self.source)

    def encode(self, texts: Sequence[str], network: Any = None) -> Any:
        """Vectors of texts as a tensor ``(texts, width)``, by another network where one is given.

        Gradients flow where they are enabled.
        """
        own, tokenizer = self.load()
        network = own if network is None else network
        window = min(tokenizer.model_max_length, network.config.max_position_embeddings)
        inputs = tokenizer(list(texts), padding=True, truncation=True, max_length=window, return_tensors="pt").to(
            network.device
        )
        hidden = network(**inputs).last_hidden_state
        if self.pooling == "cls":
            return hidden[:, 0]
        mask = inputs["attention_mask"][..., None].to(hidden.dtype)
        return (hidden * mask).sum(1) / mask.sum(1)

    def vectors(self, texts: Sequence[str], folder: Path | None) -> np.ndarray:
        """Vectors of texts, float32 ``(texts, width)``, from the cache folder where they are there.

        ``folder`` None keeps nothing. Equal texts have equal vectors, to the bit.
        """
        unique = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        key = key_of([self.fingerprint, self.pooling, *unique])
        if folder is None:
            found = self._computed(list(unique))
        else:
            found = kept(folder / f"vectors-{key}", lambda: self._computed(list(unique)))
        return found[[unique[text] for text in texts]]

    def tensors(self, texts: Iterable[str]) -> dict[str, Any]:
        """The vector of each text as a tensor ``(width,)``, by the cache folder."""
        import torch

        wanted = list(dict.fromkeys(texts))
        if not wanted:
            return {}
        found = torch.from_numpy(self.vectors(wanted, cache_dir() / "vectors").copy())
        return dict(zip(wanted, found, strict=True))

    def _computed(self, texts: Sequence[str]) -> np.ndarray:
        import torch

        # texts of one length together: padding changes the last bits, and is computed
        order = sorted(range(len(texts)), key=lambda i: (len(texts[i]), i))
        found = np.zeros((len(texts), self.width), np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                part = order[start : start + BATCH]
                found[part] = self.encode([texts[i] for i in part]).numpy()
        return found


@cache
def _loaded(source: str) -> tuple[Any, Any]:
    spare_imports()
    from transformers import AutoModel, AutoTokenizer

    try:
        network = AutoModel.from_pretrained(source, dtype="float32", use_safetensors=True, local_files_only=True).eval()
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    except Exception as error:  # the library raises many kinds, some of dependencies
        raise UserError(
            one_line(
                f"encoder {plain(source)}: cannot be loaded ({first_line(error)}); give the folder of "
                "a BERT-like model with safetensors weights"
            )
        ) from None
    if not getattr(network.config, "max_position_embeddings", None):
        raise UserError(
            f"encoder {plain(source)}: is no BERT-like model (its config states no max_position_embeddings)"
        )
    return network, tokenizer
