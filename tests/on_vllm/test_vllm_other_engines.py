"""vLLM in half precision, and an engine that does not start.

An engine that is started ends the one before it in the process: so these are apart from the tests
that share one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from on_vllm.test_vllm_backend import compared, engine_of, on_transformers, on_vllm, prepared

pytestmark = pytest.mark.slow


@pytest.mark.thorough
def test_in_half_precision_few_answers_differ_and_all_of_them_are_near_ties(data_dir: Path):
    """Two backends round differently: 12 of 495 differed where this was measured."""
    sweep = prepared("banking77", "10", data_dir, rows=25)
    with engine_of("bfloat16", max_model_len=2048) as one:
        found = compared(sweep, one, on_transformers("bfloat16"), "bfloat16")
    assert found.differing <= 0.12 * found.total


def test_prompts_beyond_the_configs_window_are_refused_before_the_engine_starts():
    from icl_bench.errors import CellError

    with pytest.raises(CellError, match=r"40,000 tokens were requested, but the model's config covers 32,768; use"):
        on_vllm("float32", max_model_len=40000)


def test_an_engine_that_does_not_start_says_so_in_one_line():
    from icl_bench.errors import CellError

    with pytest.raises(CellError, match=r"vLLM did not start.*--max-model-len") as raised:
        on_vllm("float32", max_model_len=32768, kv_cache_memory_bytes=2**22)
    print(raised.value)
    assert "\n" not in str(raised.value)
