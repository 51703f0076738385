"""The packaged model is converted to what transformers makes of its file, to the bit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icl_bench.models import packaged
from icl_bench.models.fingerprints import sha256_of
from icl_bench.models.gguf_file import GgufFile

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip(packaged.PACKAGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ICL_BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        return packaged.prepared()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = pytest.importorskip(packaged.PACKAGE)
    found: Path = package.assemble(tmp_path_factory.mktemp("gguf") / "model.gguf")
    return found


WEIGHTS = "d9df495ac8121f17441f73a45548b59cd75068fbd5e57ed0883c9e4a443fe908"
"""SHA-256 of the model.safetensors that transformers 5.19 writes of the file, as bfloat16."""

TOKENIZER = "c5a7b7aa08d5c8eef0d90f0a66fd197ebc5d16f682a1c9e080c678aaf8805059"
"""The same of the tokenizer.json that it writes, as JSON with sorted keys."""


def test_the_weights_are_transformers_own_to_the_bit(converted: Path):
    assert sha256_of(converted / "model.safetensors") == WEIGHTS


def test_the_tokenizer_is_transformers_own(converted: Path):
    """Made anew by transformers it takes a minute: so it is told by its hash."""
    content = json.loads((converted / "tokenizer.json").read_text(encoding="utf-8"))
    text = json.dumps(content, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == TOKENIZER


def test_the_config_is_transformers_own(converted: Path, file: Path):
    from transformers import AutoConfig

    own: dict[str, Any] = AutoConfig.from_pretrained(file.parent, gguf_file=file.name).to_dict()
    found = AutoConfig.from_pretrained(converted).to_dict()
    aside = {"_name_or_path", "_model_name_or_path", "architectures", "dtype", "quantization_config",
             "transformers_version", "_sliding_window_pattern"}  # fmt: skip
    for name in own.keys() | found.keys() - aside:
        if name not in aside:
            assert found.get(name) == own.get(name), name


def test_a_file_is_read_as_the_gguf_package_reads_it(file: Path):
    import gguf

    own, found = gguf.GGUFReader(str(file)), GgufFile(file)
    assert [tensor.name for tensor in found.tensors] == [tensor.name for tensor in own.tensors]
    for mine, theirs in zip(found.tensors, own.tensors, strict=True):
        assert mine.shape == tuple(theirs.shape[::-1])
        assert mine.offset == theirs.data_offset
        if mine.name.startswith("blk.0."):
            wanted = gguf.dequantize(theirs.data, theirs.tensor_type)
            np.testing.assert_array_equal(found.weights(mine), wanted)
    for name, field in own.fields.items():
        if not name.startswith(("GGUF.", "tokenizer.ggml.")):
            assert found.metadata[name] == field.contents(), name


def test_another_format_is_refused(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"GGML" + bytes(20))
    with pytest.raises(ValueError, match="not a GGUF file of version 3"):
        GgufFile(tmp_path / "file")
