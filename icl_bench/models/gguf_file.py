"""A GGUF file's metadata and weights, read with numpy and the gguf package's arithmetic.

The gguf package's own reader makes several arrays of each of a vocabulary's 262,144 strings, which
takes 20 s; here they are read in one pass. The format is that of the specification, version 3
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
"""Value types by number, as :mod:`struct` names them."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file, not read yet."""

    name: str
    shape: tuple[int, ...]
    """The outermost dimension first, as numpy and PyTorch have it (the file has it last)."""
    kind: int
    """Its quantization, by the format's number."""
    offset: int
    """In bytes, from the beginning of the file."""


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

    def weights(self, tensor: Tensor) -> np.ndarray:
        """A tensor's weights without their quantization: float32, of the tensor's shape."""
        import gguf

        kind = gguf.GGMLQuantizationType(tensor.kind)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        *outer, width = tensor.shape
        row = width // block * size
        count = row * int(np.prod(outer, dtype=int))
        stored = np.frombuffer(self._bytes, np.uint8, count, tensor.offset)
        found: np.ndarray = gguf.dequantize(
            stored.view(np.float32) if kind == gguf.GGMLQuantizationType.F32 else stored.reshape(*outer, row), kind
        )
        return found.reshape(tensor.shape)

    def _tensors(self, count: int) -> Iterator[Tensor]:
        found = []
        for _ in range(count):
            name, dimensions = self._string(), self._scalar("I")
            shape = tuple(self._scalar("Q") for _ in range(dimensions))[::-1]
            found.append((name, shape, self._scalar("I"), self._scalar("Q")))
        start = -(-self._place // _ALIGNMENT) * _ALIGNMENT
        for name, shape, kind, offset in found:
            yield Tensor(name, shape, kind, start + offset)

    def _scalar(self, form: str) -> Any:
        (found,) = struct.unpack_from(f"<{form}", self._bytes, self._place)
        self._place += struct.calcsize(f"<{form}")
        return found

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
        inner, count = self._scalar("I"), self._scalar("Q")
        if inner in {_STRING, _ARRAY}:
            return [self._value(inner) for _ in range(count)]
        form = np.dtype(_SCALARS[inner]).newbyteorder("<")
        found = np.frombuffer(self._bytes, form, count, self._place)
        self._place += found.nbytes
        return found.tolist()
