"""Before they are trained, readers of vectors leave real models' losses nearly where they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from icl_bench.backends.transformers.vector_layers import VectorReaders
from icl_bench.models.registry import resolve
from icl_bench.models.vector_encoder import VectorEncoder
from icl_bench.quiet_libraries import spare_imports

pytestmark = pytest.mark.slow

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"
READ = ("query: where is my new card?\nintent: card arrival", "Wilhelm Conrad Röntgen", "a river") * 3


@torch.no_grad()
@pytest.mark.parametrize("name", [pytest.param("gemma3-270m", marks=pytest.mark.thorough), "smollm2-135m-instruct"])
def test_the_loss_on_plain_text_stays_within_a_tenth_of_a_nat(name: str):
    """Of nine vectors of the packaged encoder; many times nearer than a whole copied layer would be."""
    spare_imports()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    source = resolve(name).source
    network = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    text = DESIGN.read_text(encoding="utf-8")
    ids = AutoTokenizer.from_pretrained(source)(text, return_tensors="pt")["input_ids"][:, :80]
    plain = float(network(ids, labels=ids).loss)
    encoder = VectorEncoder.of(None, "mean")
    readers = VectorReaders(network.get_decoder(), encoder.width)
    readers.reading = readers.project(torch.stack(list(encoder.tensors(READ).values()))[None])
    untrained = float(network(ids, labels=ids).loss)
    assert 0 < abs(untrained - plain) < 0.1
    for gate in readers.gates():
        gate.fill_(1.0)
    assert float(network(ids, labels=ids).loss) > plain + 1
