"""Packaged models are converted to what transformers makes of their files, to the bit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.program import as_words

from icl_bench.models import tokenizers
from icl_bench.models.fingerprints import sha256_of
from icl_bench.models.gguf_file import GgufFile
from icl_bench.models.packaged import PackagedModel
from icl_bench.models.packaged_gemma import GEMMA3_270M
from icl_bench.models.packaged_smollm2 import SMOLLM2_135M

pytestmark = pytest.mark.slow

MODELS = (GEMMA3_270M, SMOLLM2_135M)


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.name)
def model(request: pytest.FixtureRequest) -> PackagedModel:
    found: PackagedModel = request.param
    if not found.is_installed():
        pytest.skip(f"needs pip install {found.install}")
    return found


@pytest.fixture(scope="module")
def converted(model: PackagedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ICL_BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        return model.prepared()


@pytest.fixture(scope="module")
def file(model: PackagedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.gguf(tmp_path_factory.mktemp("gguf"))


WEIGHTS = {
    GEMMA3_270M: "d9df495ac8121f17441f73a45548b59cd75068fbd5e57ed0883c9e4a443fe908",
    SMOLLM2_135M: "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b",
}
"""SHA-256 of the model.safetensors that transformers 5.19 writes of the file, as bfloat16."""

IDS = {
    GEMMA3_270M: "a5f86fd2c47ff3e307adfbdfefe84e61a0dee5c0dae1be3d6a1838496478361e",
    SMOLLM2_135M: "12789ea815c5f3e580d77a3a0a4877c04461c538adefd8dab7721bdae7dcc395",
}
"""SHA-256 of the ids, as JSON, that its own reading of the file's tokenizer gives some texts."""


def test_the_weights_are_transformers_own_to_the_bit(model: PackagedModel, converted: Path):
    assert sha256_of(converted / "model.safetensors") == WEIGHTS[model]


def test_the_tokenizer_gives_the_ids_of_transformers_own(model: PackagedModel, converted: Path, data_dir: Path):
    """Made anew by transformers it takes a minute: so its ids are told by their hash."""
    tokenizer = tokenizers.load(str(converted))
    rows = (data_dir / "banking77" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [*rows[:500], "caf\u00e9 \u2013 12,345.6 \U0001f600\n\n  three  spaces\tand a tab "]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert hashlib.sha256(json.dumps(ids).encode()).hexdigest() == IDS[model]


def test_the_chat_template_is_the_files(file: Path, converted: Path):
    own = GgufFile(file).metadata.get("tokenizer.chat_template")
    config = json.loads((converted / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config.get("chat_template") == own


def test_the_config_is_transformers_own(model: PackagedModel, converted: Path):
    """What transformers 5.19 makes of the file, which takes it a minute, is stored."""
    from transformers import AutoConfig

    own: dict[str, Any] = json.loads(Path(__file__).with_name(f"{model.name}.config.json").read_text(encoding="utf-8"))
    found = json.loads(AutoConfig.from_pretrained(converted).to_json_string(use_diff=False))
    names = "_name_or_path _model_name_or_path architectures dtype quantization_config transformers_version"
    aside = {*as_words(names), "_sliding_window_pattern"}
    for name in own.keys() | found.keys() - aside:
        if name not in aside:
            assert found.get(name) == own.get(name), name


@pytest.mark.thorough
def test_a_file_is_read_as_the_gguf_package_reads_it(model: PackagedModel, file: Path):
    """Of the smaller vocabulary: the package takes a minute for the other one's."""
    if model is not SMOLLM2_135M:
        pytest.skip("one file is enough: the weights of both are held to the bit above")
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
