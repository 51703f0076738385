"""A GGUF file's metadata and weights, read with numpy and the gguf package's arithmetic.

The gguf package's reader creates several arrays for each of a vocabulary's 262,144 strings, which
takes 20 s. This module reads them in one pass. The format is version 3 of the specification
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Value type -> format of :mod:`struct`."""


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of a file, without its weights."""

    name: str
    shape: tuple[int, ...]
    """The outermost dimension first, as in numpy and PyTorch (it is last in the file)."""
    kind: int
    """The number of its quantization type."""
    offset: int
    """In bytes from the beginning of the file."""


class GgufFile:
    """An open file: ``metadata`` by key, ``tensors``, and :meth:`weights` to read one of them.

    Raises ``ValueError`` for a file of another format or byte order.
    """

    def __init__(self, file: Path) -> None:
        with file.open("rb") as stream:
            self._bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self._place = 0
        magic, version = self._bytes[:4], struct.unpack_from("<I", self._bytes, 4)[0]
        if magic != b"GGUF" or version != 3:
            raise ValueError(f"{file}: not a GGUF file of version 3")
        self._place = 8
        tensors, fields = self._scalar("Q"), self._scalar("Q")
        self.metadata: Mapping[str, Any] = {self._string(): self._value() for _ in range(fields)}
        self.tensors = tuple(self._tensors(tensors))

    def weights(self, tensor: GgufTensor) -> np.ndarray:
        """A tensor's dequantized weights: float32, in the tensor's shape."""
        import gguf

        kind = gguf.GGMLQuantizationType(tensor.kind)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        *outer, width = tensor.shape
        row = width // block * size
        count = row * int(np.prod(outer, dtype=int))
        quantized = np.frombuffer(self._bytes, np.uint8, count, tensor.offset)
        weights: np.ndarray = gguf.dequantize(
            quantized.view(np.float32) if kind == gguf.GGMLQuantizationType.F32 else quantized.reshape(*outer, row),
            kind,
        )
        return weights.reshape(tensor.shape)

    def _tensors(self, count: int) -> Iterator[GgufTensor]:
        headers = []
        for _ in range(count):
            name, dimensions = self._string(), self._scalar("I")
            shape = tuple(self._scalar("Q") for _ in range(dimensions))[::-1]
            headers.append((name, shape, self._scalar("I"), self._scalar("Q")))
        start = -(-self._place // _ALIGNMENT) * _ALIGNMENT
        for name, shape, kind, offset in headers:
            yield GgufTensor(name, shape, kind, start + offset)

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._bytes, self._place)
        self._place += struct.calcsize(f"<{form}")
        return value

    def _string(self) -> str:
        size = self._scalar("Q")
        self._place += size
        return self._bytes[self._place - size : self._place].decode()

    def _value(self, kind: int | None = None) -> Any:
        kind = self._scalar("I") if kind is None else kind
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        item_kind, count = self._scalar("I"), self._scalar("Q")
        if item_kind in {_STRING, _ARRAY}:
            return [self._value(item_kind) for _ in range(count)]
        form = np.dtype(_SCALARS[item_kind]).newbyteorder("<")
        array = np.frombuffer(self._bytes, form, count, self._place)
        self._place += array.nbytes
        return array.tolist()
