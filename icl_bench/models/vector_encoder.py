"""Encodes texts as vectors for a decoder that reads them (Vec-RA; Chen et al. 2024, section 2.2).

Also reads the settings of such a decoder's checkpoint.

A BERT-like encoder gives one vector for each text: its hidden state at the first token ([CLS], as in
the paper) or the mean over its tokens. Texts are truncated to its window. Vectors are computed on
the CPU in float32, like sentence embeddings, so they do not depend on the machine.
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
from icl_bench.models.array_cache import cached_array
from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.fingerprints import key_of
from icl_bench.models.text_encoders import Reading, SentenceEncoder, fingerprint
from icl_bench.quiet_libraries import spare_imports
from icl_bench.wording import first_line, one_line, plain

Pooling = Literal["cls", "mean"]

SETTINGS, WEIGHTS, ENCODER = "vectors.json", "vectors/readers.safetensors", "vectors/encoder"
"""The files of a checkpoint in addition to the decoder's: the settings of its vectors, the weights that read them, and
the encoder, if it was trained too. They have separate folders, because programs read all weights next to a config.json.
"""

BATCH = 32
"""Texts encoded in one call."""


class VectorSettings(Frozen):
    """The vectors that a decoder was trained to read: ``vectors.json`` of its checkpoint."""

    encoder: str
    """The requested name. If the checkpoint has ``encoder/``, that is used."""
    encoder_fingerprint: str
    """The fingerprint of the encoder's files, after training if it was trained too."""
    pooling: Pooling
    width: int
    """The width of a vector."""
    vectors: int
    """The largest number of vectors in training."""
    text: int = 0
    """The number of demonstrations as text next to the vectors in training."""
    parameters: int
    """Parameters of the added matrices that every token passes through."""
    vector_parameters: int
    """Parameters of the added matrices that every vector passes through."""
    weights: str
    """The SHA-256, in hex, of the added weights' file, so that the folder's hash covers them."""
    trained: Literal["all", "added"]
    model: str
    """The decoder before training."""
    loss: Literal["answer", "sequence"] = "answer"
    """The tokens whose loss was minimised: the answer's, or those of prompt and answer."""

    def write(self, folder: Path) -> None:
        """Write the settings into a checkpoint's folder, whose fingerprint covers them.

        The default loss is left out, so that it does not change the fingerprint.
        """
        left_out = {"loss"} if self.loss == "answer" else set()
        text = json.dumps(self.model_dump(exclude=left_out), indent=2) + "\n"
        (folder / SETTINGS).write_text(text, encoding="utf-8")


def vector_settings_of(source: str) -> VectorSettings | None:
    """The vector settings of a checkpoint; None if it does not read vectors. Raises ``UserError``."""
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
    """An encoder of texts as one vector each."""

    name: str
    source: str
    pooling: Pooling

    @classmethod
    def of(cls, name: str | None, pooling: Pooling) -> VectorEncoder:
        """Find an encoder: the packaged one (None), a folder, or a model of the hub.

        Raises ``UserError``.
        """
        encoder = SentenceEncoder.find(name)
        return cls(encoder.name, encoder.source, pooling)

    @classmethod
    def of_checkpoint(cls, source: str, settings: VectorSettings) -> VectorEncoder:
        """The encoder that a checkpoint was trained with. Raises ``UserError`` if it is missing or has
        changed.
        """
        folder = Path(source) / ENCODER
        if folder.is_dir():
            encoder = cls(settings.encoder, str(folder), settings.pooling)
        else:
            encoder = cls.of(settings.encoder, settings.pooling)
        if encoder.fingerprint != settings.encoder_fingerprint:
            raise UserError(
                f"model {source}: was trained with other files of the encoder {settings.encoder} than "
                "the ones found here"
            )
        if encoder.width != settings.width:
            raise UserError(
                f"model {source}: reads vectors of width {settings.width}, and the encoder "
                f"{settings.encoder} makes {encoder.width}"
            )
        return encoder

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its files."""
        return fingerprint(self.source)

    @property
    def width(self) -> int:
        """The width of a vector."""
        return int(self.load()[0].config.hidden_size)

    def load(self) -> tuple[Any, Any]:
        """The network, in evaluation mode, and its tokenizer, loaded once. Raises ``UserError``."""
        return _load_model(self.source)

    def encode(self, texts: Sequence[str], network: Any = None) -> Any:
        """Vectors of texts as a tensor ``(texts, width)``, by ``network`` if given.

        Gradients are computed if enabled.
        """
        loaded_network, tokenizer = self.load()
        network = loaded_network if network is None else network
        window = _window(network, tokenizer)
        inputs = tokenizer(list(texts), padding=True, truncation=True, max_length=window, return_tensors="pt").to(
            network.device
        )
        hidden = network(**inputs).last_hidden_state
        if self.pooling == "cls":
            return hidden[:, 0]
        mask = inputs["attention_mask"][..., None].to(hidden.dtype)
        return (hidden * mask).sum(1) / mask.sum(1)

    def reading(self, texts: Sequence[str]) -> Reading:
        """How much of the texts is encoded in vectors. Raises ``UserError`` if the encoder cannot be loaded."""
        network, tokenizer = self.load()
        if not texts:
            return Reading(0, 0, 0.0)
        window = _window(network, tokenizer)
        return Reading.of(tokenizer(list(texts), verbose=False)["input_ids"], tokenizer, window, windows=False)

    def tensors(self, texts: Iterable[str]) -> dict[str, Any]:
        """The vector of each text as a float32 tensor ``(width,)``, cached."""
        import torch

        unique = list(dict.fromkeys(texts))
        if not unique:
            return {}
        entry = cache_dir() / "vectors" / f"vectors-{key_of([self.fingerprint, self.pooling, *unique])}"
        vectors = cached_array(entry, lambda: self._computed(unique))
        return dict(zip(unique, torch.from_numpy(vectors.copy()), strict=True))

    def _computed(self, texts: Sequence[str]) -> np.ndarray:
        import torch

        # batches of similar length: padding changes the last bits, and costs time
        order = sorted(range(len(texts)), key=lambda i: (len(texts[i]), i))
        vectors = np.zeros((len(texts), self.width), np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                part = order[start : start + BATCH]
                vectors[part] = self.encode([texts[i] for i in part]).numpy()
        return vectors


def _window(network: Any, tokenizer: Any) -> int:
    """Maximum tokens of a text that is read completely."""
    return int(min(tokenizer.model_max_length, network.config.max_position_embeddings))


@cache
def _load_model(source: str) -> tuple[Any, Any]:
    spare_imports()
    from transformers import AutoModel, AutoTokenizer

    try:
        network = AutoModel.from_pretrained(
            source, dtype="float32", use_safetensors=True, local_files_only=True, trust_remote_code=False
        ).eval()
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises many kinds of errors, some from dependencies
        raise UserError(
            one_line(
                f"encoder {plain(source)}: cannot be loaded ({first_line(error)}); give the folder of "
                "a BERT-like model with safetensors weights"
            )
        ) from None
    if not getattr(network.config, "max_position_embeddings", None):
        raise UserError(
            f"encoder {plain(source)}: is not a BERT-like model (its config states no max_position_embeddings)"
        )
    return network, tokenizer
