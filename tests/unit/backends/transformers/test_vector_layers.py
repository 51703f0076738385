"""A decoder that reads vectors: what is added in front of its layers, and how its cells are answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import FAMILIES, plain_model, save_tiny_model, tiny_config
from torch import Tensor

from icl_bench.backends.transformers.vector_layers import GATE, CrossAttention, VectorReaders
from icl_bench.errors import UserError
from icl_bench.models.fingerprints import sha256_of
from icl_bench.models.vector_encoder import WEIGHTS, VectorSettings
from icl_bench.prompts.encoding import Ids

WIDTH = 12
IDS = (5, 9, 3, 11, 4, 8, 2, 7)


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save_tiny_model(tiny_config(request.param, 40), tmp_path / request.param)


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_readers(folder: Path, gate: float | None = None) -> tuple[Any, VectorReaders]:
    torch.manual_seed(4)
    network = plain_model(folder)
    readers = VectorReaders(network.get_decoder(), WIDTH)
    for one in readers.gates():
        if gate is not None:
            one.data.fill_(gate)
    return network, readers


def logits(network: Any, ids: Ids = IDS) -> Tensor:
    found: Tensor = network(torch.tensor([ids]), use_cache=False).logits[0].float()
    return found


# -- the added parts ----------------------------------------------------------------------------


@torch.no_grad()
def test_without_vectors_the_model_is_the_plain_one_to_the_bit(folder: Path):
    plain = logits(plain_model(folder))
    network, readers = with_readers(folder)
    assert torch.equal(logits(network), plain)
    readers.reading = readers.project(drawn(1, 0, WIDTH))
    assert torch.equal(logits(network), plain)


def written_out(network: Any, readers: VectorReaders, place: int, hidden: Tensor, vectors: Tensor) -> Tensor:
    """What one layer's part makes of its input, in plain words: the paper's equations with the layer's
    own norms and residuals.
    """
    layer, reader = network.get_decoder().layers[place], readers.readers[place]
    own, heads = layer.self_attn, network.config.num_attention_heads

    def split(x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, own.head_dim)).transpose(0, 1)

    before = layer.input_layernorm(hidden)
    kv = layer.input_layernorm(vectors @ reader.projector.weight.T + reader.projector.bias)
    q, k, v = split(own.q_proj(before)), split(own.k_proj(kv)), split(own.v_proj(kv))
    if hasattr(own, "q_norm"):
        q, k = own.q_norm(q), own.k_norm(k)
    k, v = (x.repeat_interleave(heads // len(x), 0) for x in (k, v))
    weights = (q @ k.transpose(1, 2) * own.scaling).softmax(-1)
    crossed = own.o_proj((weights @ v).transpose(0, 1).flatten(1))
    if hasattr(layer, "pre_feedforward_layernorm"):  # Gemma's norms stand behind too
        read = hidden + layer.post_attention_layernorm(crossed)
        inner = layer.mlp(layer.pre_feedforward_layernorm(read))
        made = read + layer.post_feedforward_layernorm(inner)
    else:
        read = hidden + crossed
        made = read + layer.mlp(layer.post_attention_layernorm(read))
    return hidden + reader.gate * (made - hidden)


@torch.no_grad()
def test_a_part_is_cross_attention_and_an_mlp_with_the_layers_own_weights(folder: Path):
    network, readers = with_readers(folder, gate=0.7)
    vectors, inputs = drawn(3, WIDTH), []
    layers = network.get_decoder().layers
    hooks = [layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0])) for layer in layers]
    readers.reading = readers.project(vectors[None])
    # hooks run in the order in which they were added: these see what the readers gave
    logits(network)
    entered = list(inputs)
    for hook in hooks:
        hook.remove()
    first = network.get_input_embeddings()(torch.tensor(IDS))
    torch.testing.assert_close(written_out(network, readers, 0, first, vectors), entered[0])
    readers.reading = None
    left = layers[0](entered[0][None], position_embeddings=rotary(network, layers[0]), attention_mask=causal(len(IDS)))
    left = (left[0] if isinstance(left, tuple) else left)[0]
    torch.testing.assert_close(written_out(network, readers, 1, left, vectors), entered[1])


def rotary(network: Any, layer: Any) -> Any:
    places = torch.arange(len(IDS))[None]
    core, kind = network.get_decoder(), getattr(layer.self_attn, "layer_type", None)
    told = (kind,) if network.config.model_type == "gemma3_text" else ()
    return core.rotary_emb(drawn(1), places, *told)


def causal(tokens: int) -> Tensor:
    return torch.full((tokens, tokens), float("-inf")).triu(1)[None, None]


@torch.no_grad()
def test_vectors_are_a_set(folder: Path):
    network, readers = with_readers(folder, gate=0.5)
    vectors = drawn(1, 4, WIDTH)
    readers.reading = readers.project(vectors)
    one = logits(network)
    readers.reading = readers.project(vectors[:, [2, 0, 3, 1]])
    torch.testing.assert_close(logits(network), one, rtol=1e-4, atol=1e-4)
    readers.reading = readers.project(vectors[:, :3])
    assert (logits(network) - one).abs().max() > 1e-2


@torch.no_grad()
def test_what_is_not_seen_changes_nothing_and_who_sees_nothing_passes(folder: Path):
    network, readers = with_readers(folder, gate=0.5)
    vectors = drawn(2, 3, WIDTH)
    seen = torch.tensor([[True, True, False], [False, False, False]])[:, None]
    readers.reading = readers.project(vectors, seen)
    both = network(torch.tensor([IDS, IDS]), use_cache=False).logits
    readers.reading = readers.project(vectors[:1, :2])
    torch.testing.assert_close(both[0], logits(network), rtol=1e-4, atol=1e-4)
    readers.reading = None
    torch.testing.assert_close(both[1], logits(network), rtol=1e-4, atol=1e-4)


def loss_of(network: Any) -> Tensor:
    ids = torch.tensor([IDS])
    found: Tensor = network(ids, labels=ids, use_cache=False).loss
    return found


def test_gradients_reach_every_added_weight_and_the_vectors(folder: Path):
    network, readers = with_readers(folder)
    vectors = drawn(1, 3, WIDTH).requires_grad_()
    readers.reading = readers.project(vectors)
    loss_of(network).backward()
    without = [n for n, p in readers.named_parameters() if p.grad is None or not p.grad.any()]
    assert not without
    assert vectors.grad is not None
    assert vectors.grad.ne(0).all()


@torch.no_grad()
def test_untrained_it_is_near_the_plain_model_and_nearer_with_smaller_gates(folder: Path):
    """The tiny models' weights are large on purpose; real ones are in tests/differential."""
    plain = loss_of(plain_model(folder))
    apart = {}
    for gate in (GATE, 10 * GATE, 1.0):
        network, readers = with_readers(folder, gate)
        readers.reading = readers.project(drawn(1, 3, WIDTH))
        apart[gate] = abs(float(loss_of(network) - plain))
    assert apart[GATE] < 0.05
    assert apart[GATE] < apart[10 * GATE]


def test_a_model_whose_attention_is_made_otherwise_is_refused():
    class Fused(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv_proj = torch.nn.Linear(4, 12)

    with pytest.raises(UserError, match="Fused cannot read vectors: its attention is not made of q_proj, k_proj"):
        CrossAttention(Fused())


# -- checkpoints --------------------------------------------------------------------------------


def settings(readers: VectorReaders, weights: str, **changes: Any) -> VectorSettings:
    of_tokens, of_vectors = readers.counts()
    return VectorSettings(
        **{
            "encoder": "all-MiniLM-L6-v2",
            "encoder_fingerprint": "none",
            "pooling": "mean",
            "width": WIDTH,
            "vectors": 3,
            "parameters": of_tokens,
            "vector_parameters": of_vectors,
            "weights": weights,
            "trained": "added",
            "model": "tiny",
            **changes,
        }
    )


@torch.no_grad()
def test_what_was_saved_reads_as_before(folder: Path):
    network, readers = with_readers(folder, gate=0.3)
    told = settings(readers, readers.save(folder))
    vectors = drawn(1, 3, WIDTH)
    readers.reading = readers.project(vectors)
    wanted = logits(network)
    again = plain_model(folder)
    loaded = VectorReaders.load(again.get_decoder(), str(folder), told)
    loaded.reading = loaded.project(vectors)
    assert torch.equal(logits(again), wanted)


def test_parameters_are_counted_by_what_passes_them(folder: Path):
    network, readers = with_readers(folder)
    of_tokens, of_vectors = readers.counts()
    assert of_tokens + of_vectors == sum(p.numel() for p in readers.parameters())
    config, layers = network.config, len(readers.readers)
    projected = WIDTH * config.hidden_size + config.hidden_size
    key_heads = config.num_key_value_heads * network.get_decoder().layers[0].self_attn.head_dim
    least = layers * (projected + 2 * config.hidden_size * key_heads)
    assert least <= of_vectors <= least + layers * 4 * (config.hidden_size + key_heads)


def test_damaged_or_other_weights_are_refused(folder: Path):
    network, readers = with_readers(folder)
    told, file = settings(readers, readers.save(folder)), folder / WEIGHTS
    core = network.get_decoder()
    content = file.read_bytes()
    file.write_bytes(content[:-4] + b"\0\0\0\1")
    with pytest.raises(UserError, match="differs from the file that training wrote"):
        VectorReaders.load(core, str(folder), told)
    file.write_bytes(content[:50])
    cut = told.model_copy(update={"weights": sha256_of(file)})
    with pytest.raises(UserError, match="cannot be read"):
        VectorReaders.load(core, str(folder), cut)
    file.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        VectorReaders.load(core, str(folder), told)
