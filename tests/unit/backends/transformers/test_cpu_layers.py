"""The layers that stand in a decoder on a CPU compute what was there, with less rounding."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.models import FAMILIES, plain_model, qwen_tokenizer, tiny_config
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.activations import ACT2FN
from transformers.models.gemma3.modeling_gemma3 import Gemma3MLP, Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from icl_bench.backends.transformers import cpu_layers
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.backends.transformers.cpu_layers import GatedMlp, Linear, Norm, refit
from icl_bench.backends.transformers.demonstration_cache import RotaryShift

BF16 = torch.bfloat16
bf16_products = pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="needs bfloat16 in oneDNN")


@pytest.fixture(scope="module", autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def exact_norm(x: torch.Tensor, factor: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * factor.double()


@pytest.mark.parametrize("size", [0.1, 60.0])
@pytest.mark.parametrize("made", [LlamaRMSNorm, Gemma3RMSNorm])
def test_a_norm_is_recognised_and_rounded_once(made: Any, size: float):
    """Where Gemma's factors are large, w and 1 + w are nearly the same."""
    module = made(64, eps=1e-6).to(BF16)
    module.weight.copy_(size * (1 + drawn(64, seed=2).abs()))
    found = cpu_layers._norm(module, BF16)
    assert found is not None
    x = 30 * drawn(1, 40, 64).to(BF16)
    factor = module.weight.double() + (made is Gemma3RMSNorm)
    wanted = exact_norm(x, factor, 1e-6)
    assert found(x).dtype == BF16
    apart = (found(x).double() - wanted).abs().mean()
    assert apart <= (module(x).double() - wanted).abs().mean() * 1.01
    torch.testing.assert_close(found(x).double(), wanted, rtol=2**-8, atol=1e-6)


def test_a_norm_leaves_its_input_alone_and_takes_every_stride():
    norm = Norm(drawn(16), 1e-6, torch.float32)
    x = drawn(1, 3, 5, 16)
    before, turned = x.clone(), x.transpose(1, 2)
    torch.testing.assert_close(norm(turned), exact_norm(turned, norm.factor, 1e-6).float())
    assert torch.equal(x, before)


def test_a_norm_of_another_kind_stays():
    class OddRMSNorm(LlamaRMSNorm):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden_states) + 0.5

    class Centred(LlamaRMSNorm):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden_states - hidden_states.mean(-1, keepdim=True))

    assert cpu_layers._norm(OddRMSNorm(64), BF16) is None
    assert cpu_layers._norm(Centred(64), BF16) is None
    assert cpu_layers._norm(nn.Identity(), BF16) is None


@bf16_products
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 28, 600])
def test_a_product_is_the_librarys_to_the_bit(rows: int, bias: bool):
    linear = nn.Linear(64, 96, bias=bias, dtype=BF16)
    x = drawn(1, rows, 64).to(BF16)
    assert torch.equal(Linear(linear)(x), linear(x))


def mlp(activation: str) -> Any:
    config = tiny_config("gemma3_text", 100)
    config.hidden_activation = activation
    torch.manual_seed(0)
    return Gemma3MLP(config).to(BF16)


@bf16_products
@pytest.mark.parametrize("activation", ["gelu_pytorch_tanh", "gelu", "silu"])
def test_a_gated_layer_is_recognised_and_rounded_less(activation: str):
    module = mlp(activation)
    found = cpu_layers._product(module)
    assert isinstance(found, GatedMlp)
    x = 3 * drawn(1, 200, 32).to(BF16)
    gate, up, down = (m.weight.double() for m in (module.gate_proj, module.up_proj, module.down_proj))
    wide = x.double()
    wanted = (ACT2FN[activation](wide @ gate.T) * (wide @ up.T)) @ down.T
    apart = (found(x).double() - wanted).abs().mean()
    assert apart < (module(x).double() - wanted).abs().mean()
    assert apart < 0.01 * wanted.abs().mean()


@bf16_products
def test_a_gated_layer_with_another_activation_keeps_it():
    assert cpu_layers._product(mlp("relu2")) is None
    assert cpu_layers._product(mlp("quick_gelu")) is None


def hidden(model: Any) -> torch.Tensor:
    ids = torch.randint(0, 400, (1, 60), generator=torch.Generator().manual_seed(4))
    states: torch.Tensor = model.get_decoder()(ids, use_cache=False).last_hidden_state
    return states.double()


@pytest.mark.parametrize("kind", FAMILIES)
def test_in_half_precision_a_decoder_is_nearer_to_single_precision_than_before(folders: dict[str, Path], kind: str):
    exact = plain_model(folders[kind]).to(BF16).float()  # the same weights
    half = plain_model(folders[kind]).to(BF16)
    wanted, before = hidden(exact), hidden(half)
    refit(half.get_decoder(), BF16)
    now = hidden(half)
    assert (now - wanted).abs().mean() < 0.8 * (before - wanted).abs().mean()
    left = [type(module).__name__ for module in half.get_decoder().modules()]
    assert not any(name.endswith("RMSNorm") for name in left)


@pytest.mark.parametrize("kind", FAMILIES)
def test_in_single_precision_a_decoder_computes_what_it_did(folders: dict[str, Path], kind: str):
    model = plain_model(folders[kind])
    before = hidden(model)
    refit(model.get_decoder(), torch.float32)
    now = hidden(model)
    torch.testing.assert_close(now, before, atol=1e-5, rtol=1e-5)
    assert any(isinstance(module, Norm) for module in model.modules())


OTHER = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@pytest.mark.parametrize("kind", ["olmo2", "exaone4"])
def test_a_stream_that_products_read_without_a_norm_stays_as_it_was(kind: str, tmp_path: Path):
    """Their norms stand behind attention and MLP alone."""
    tokenizer = qwen_tokenizer()
    own = {"sliding_window": None, "layer_types": ["full_attention"] * 2}
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **OTHER, **(own if kind == "exaone4" else {}))
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).to(BF16).save_pretrained(tmp_path)
    loaded = TransformersBackend.load(tmp_path, tokenizer, dtype="bfloat16", device="cpu").model
    assert any(isinstance(module, Norm) for module in loaded.core.modules())
    assert loaded.core.get_input_embeddings()(torch.zeros(1, 1, dtype=torch.long)).dtype == BF16


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_stream_is_wide_where_norms_read_it(folders: dict[str, Path], kind: str):
    model = plain_model(folders[kind]).to(BF16)
    refit(model.get_decoder(), BF16)
    ids = torch.zeros(1, 3, dtype=torch.long)
    seen = []
    model.get_decoder().layers[-1].register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    model.get_decoder()(ids, use_cache=False)
    assert [stream.dtype for stream in seen] == [torch.float32]


@pytest.mark.parametrize("kind", FAMILIES)
def test_demonstrations_are_shifted_by_angles_in_single_precision(folders: dict[str, Path], kind: str):
    """Within the model angles are rounded to its format; a shift adds up over a whole prompt."""
    core = plain_model(folders[kind]).to(BF16).get_decoder()
    distances = torch.arange(3, 40)
    before = RotaryShift(core).angles(distances)
    refit(core, BF16)
    now = RotaryShift(core).angles(distances)
    for name, (cos, sin) in before.items():
        assert cos.dtype == torch.float32
        assert torch.equal(now[name][0], cos)
        assert torch.equal(now[name][1], sin)


@bf16_products
def test_weights_that_are_laid_out_anew_are_held_once(folders: dict[str, Path]):
    model = plain_model(folders["llama"]).to(BF16)
    decoder = model.get_decoder()
    gone = [id(m) for layer in decoder.layers for m in layer.modules() if type(m) is nn.Linear]
    refit(decoder, BF16)
    gc.collect()
    here = {id(o) for o in gc.get_objects() if type(o) is nn.Linear}
    assert gone
    assert not here & set(gone)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
@pytest.mark.parametrize(("setting", "calls"), [({}, 2), ({"MALLOC_ARENA_MAX": "2"}, 0)])
def test_what_a_user_has_set_for_memory_stays(setting: dict[str, str], calls: int, monkeypatch: pytest.MonkeyPatch):
    said: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *what: said.append(what))
    monkeypatch.setattr(cpu_layers.ctypes, "CDLL", lambda _: library)
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    cpu_layers._keep_freed_memory()
    assert len(said) == calls
