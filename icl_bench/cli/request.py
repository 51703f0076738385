"""From a command's options to a run's specification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icl_bench.cli.options import words
from icl_bench.demonstrations import selector_spec as choice
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import split

if TYPE_CHECKING:
    from icl_bench.sweep.sweep import RunSpec


def make_spec(options: dict[str, Any]) -> RunSpec:
    """Take the options that ``run`` and ``plan`` share. Raises ``UserError``."""
    from icl_bench.backends.spec import BackendSpec
    from icl_bench.sweep.sweep import RunSpec

    if options["unconstrained"] and options["score"] == "exact":
        raise UserError("--unconstrained and --score exact exclude each other")
    return RunSpec(
        task=options["task"],
        model=options["model"],
        k=options["k"],
        per_label=options["per_label"],
        select=tuple(choice.split(options["select"])) or ("random",),
        encoder=options["encoder"],
        demonstrations=options["demonstrations"],
        order=words(options["order"]),
        attention=split(options["attention"]),
        draws=options["draws"],
        seed=options["seed"],
        scoring="unconstrained" if options["unconstrained"] else options["score"],
        test_size=options["test_size"],
        labels=options["labels"],
        queries=options["queries"],
        data_dir=options["data_dir"],
        context_tokens=options["context"],
        tokenizer=options["tokenizer"],
        engine=BackendSpec(
            backend=options["backend"],
            dtype=options["dtype"],
            device=options["device"],
            pack_rows=options["pack"],
            tensor_parallel=options["tensor_parallel"],
            max_model_len=options["max_model_len"],
            gpu_memory=options["gpu_memory"],
            quantization=options["quantization"],
            base_url=options["base_url"],
            endpoint="chat" if options["chat"] else "completions",
            concurrency=options["concurrency"],
        ),
    )
