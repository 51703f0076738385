"""A model's folder is data: code in it never runs, whatever the user's terminal would answer."""

import ast
import json
from contextlib import suppress
from pathlib import Path

import pytest
from support.models import tiny_checkpoint

from icl_bench.errors import UserError
from icl_bench.models import architecture, config, registry, tokenizers
from icl_bench.models.text_encoders import SentenceEncoder
from icl_bench.models.vector_encoder import _load_model as load_vector_encoder

PACKAGE = Path(config.__file__).parents[1]

LOADERS = ("from_pretrained", "from_config", "SentenceTransformer")
"""Functions of the libraries that run code which a model's folder names, if they are let."""

CODE = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class Config(LlamaConfig):
    model_type = "theirs"
class Model(LlamaForCausalLM):
    config_class = Config
class Tokenizer(PreTrainedTokenizerFast):
    pass
"""


def calls():
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", None))
                # an adapter's weights are data alone, its library has no such argument
                if name in LOADERS and getattr(getattr(node.func, "value", None), "id", None) != "PeftModel":
                    yield f"{file.relative_to(PACKAGE)}:{node.lineno}", node


def test_every_loading_refuses_a_models_own_code():
    found = dict(calls())
    assert len(found) > 8
    for where, call in found.items():
        refused = [k.value for k in call.keywords if k.arg == "trust_remote_code"]
        assert [node.value for node in refused if isinstance(node, ast.Constant)] == [False], where


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A model whose folder names its own code, and a user who answers every question with yes."""
    folder = tiny_checkpoint(tmp_path / "theirs")
    (folder / "theirs.py").write_text(CODE)
    said = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "Config", **dict.fromkeys(("AutoModel", "AutoModelForCausalLM"), "Model")}
    said |= {"model_type": "theirs", "auto_map": {auto: f"theirs.{name}" for auto, name in names.items()}}
    (folder / "config.json").write_text(json.dumps(said))
    file = folder / "tokenizer_config.json"
    said = json.loads(file.read_text()) if file.exists() else {}
    said |= {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": [None, "theirs.Tokenizer"]}}
    file.write_text(json.dumps(said))
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "theirs.Model"}]))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    return folder


@pytest.mark.parametrize(
    "load",
    [
        config.read_config,
        tokenizers.load,
        architecture.laid_out_parameters,
        load_vector_encoder.__wrapped__,
        lambda folder: SentenceEncoder("theirs", folder).embed(["a"]),
    ],
    ids=["config", "tokenizer", "parameters", "vector encoder", "sentence encoder"],
)
def test_code_in_a_models_folder_never_runs(load, theirs, tmp_path):
    with suppress(UserError, ValueError):  # a tokenizer.json is read without its class
        load(str(theirs))
    assert not list(tmp_path.rglob("ran"))


def test_a_model_that_needs_its_own_code_is_refused_in_words(theirs):
    with pytest.raises(UserError, match=r"Python code from its own folder.*--backend openai"):
        registry.resolve(str(theirs))
