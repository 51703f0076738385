"""Thousands of commands with absurd options and damaged files: each ends, and says why.

Every case is made from a seed and its number, so that one can be run again: ``python -m
support.fuzz --only 4711``. A case fails where the command ends in a traceback, with another code
than 0, 1 or 2, with more than a few lines of error, or not at all.
"""

from __future__ import annotations

import argparse
import csv
import faulthandler
import gzip
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from icl_bench.errors import CellError
from support.fakes import FREE_TEXT, FakeBackend, plan, row, runner, write_task
from support.in_process import run_command
from support.models import llama_tokenizer, save_tiny_model, tiny_config

SECONDS = 60.0
"""A command that computes for longer hangs, and so does one that waits for ten times as long: on a
machine that is busy otherwise, little is computed in a minute."""


NASTY = (
    "", " ", ",", ":", "=", "0", "-1", "1", "2", "3", "1.5", "010", "1e999", "nan", "inf", "true", "null", "None",
    "9" * 20, "9" * 5000, "1" + "0" * 400, "a" * 300, "b" * 5000, "a/" * 3000, "[/red]", "[a]", ":tada:",
    "\x1b[2J", "\udcff", "\u202e", "💥", "ß\n", "a,b", "a\tb", "'\"", "../x", "/dev/null", ".", "~", "-", "--",
    "{text}", "{{text}}", "%s", "max", "auto", "1,,2", "half:1", "half:x", "hybrid:5", "hybrid:0", "random",
    "bm25", "balanced", "centroids", "centroids,of=queries", "shuffled:1", "by-label", "relevance", "drawn",
    "block:1", "block:2,sink=1,local=9", "grouped:2,4", "approx:4,2", "block:1,reuse", "labels:permuted",
    "labels:noise=2", "labels:noise=0.3", "nearest-removed:50", "inputs-only", "tokens=2000", "seconds=x", "any",
    "copied", "test", "exact", "greedy", "float32", "cpu", "cuda:99", "openai", "vllm", "transformers",
)  # fmt: skip
OPTIONS: dict[str, tuple[str, ...]] = {
    "sweep": (
        "--k", "--per-label", "--select", "--encoder", "--demonstrations", "--order", "--attention",
        "--draws", "--labels", "--queries", "--score", "--context", "--seed", "--test-size",
        "--data-dir", "--dtype", "--device", "--backend", "--pack", "--tensor-parallel",
        "--max-model-len", "--gpu-memory", "--quantization", "--kv-cache-dtype",
        "--base-url", "--tokenizer",
        "--concurrency", "--task", "--model",
    ),
    "summary": ("--task", "--model", "--base-model", "--advice"),
    "show": ("--task", "--k", "--test-id", "--model", "--select", "--order", "--attention",
             "--demonstrations", "--draw", "--cell", "--data-dir"),
    "check": ("--baseline", "--tolerance", "--alpha"),
    "tasks": ("--check", "--model", "--data-dir", "--test-size"),
    "perplexity": ("--lengths", "--attention", "--windows", "--texts", "--dtype", "--device"),
    "finetune": ("--k", "--method", "--draws", "--head", "--validation", "--epochs", "--batch",
                 "--learning-rate", "--seed", "--test-size", "--dtype", "--device"),
}  # fmt: skip
READERS: tuple[tuple[str, ...], ...] = (
    ("summary",), ("summary", "--json"), ("summary", "--cost"), ("summary", "--advice", "any"),
    *[("leaderboard",), ("export", "--out", "out.csv"), ("export", "--out", "out.parquet"),
      ("show", "--task", "cards", "--k", "1"), ("check", "--baseline", "base.parquet")] * 3,
)  # fmt: skip
"""What looks at results; the dearest, which work out all findings, less often."""


COLUMNS = ("task", "model", "select", "order", "attention", "k", "draw", "test_id", "gold",
           "prediction", "correct", "valid", "probability", "margin", "label_mass", "rouge1",
           "prompt_tokens", "queries", "label_space", "teaching", "variant", "cell",
           "demonstration_ids", "note")  # fmt: skip


@dataclass(frozen=True)
class World:
    """What cases begin with: each has a copy of its own."""

    task: Path
    model: Path
    results: Path
    """Finished cells, an import, a failed cell and a journal."""
    base: Path


@dataclass(frozen=True)
class Failure:
    """A case that did not end as it should."""

    number: int
    kind: str
    words: tuple[str, ...]
    why: str


def make_world(folder: Path) -> World:
    """A task, a tiny model, and results with some of everything."""
    tokenizer = llama_tokenizer()
    tokenizer.save_pretrained(folder / "tiny")
    model = save_tiny_model(tiny_config("llama", len(tokenizer)), folder / "tiny")
    task, results = write_task(folder / "task"), folder / "results"
    runner(plan(folder / "task", "1,3", draws=2), results, FakeBackend()).run()
    runner(plan(folder / "task", "1", selects=["bm25"], scoring="exact"), results,
           FakeBackend()).run()  # fmt: skip
    runner(plan(folder / "text", "1", name="texts", **FREE_TEXT), results, FakeBackend()).run()

    def fails(_: object) -> None:
        raise CellError("out of memory")

    runner(plan(folder / "task", "8", draws=1), results, FakeBackend(fails=fails)).run()
    ended = run_command("export", "--results", results, "--out", folder / "base.parquet")
    assert ended.code == 0
    (folder / "mine.csv").write_bytes(_csv(random.Random(0), nasty=0.0))
    assert run_command("import", folder / "mine.csv", "--results", results).code == 0
    return World(task, model, results, folder / "base.parquet")


# -- kinds of cases: each changes files in its folder and gives the words of its commands ---------


Words = tuple[str, ...]


def _options(rng: random.Random, world: World, here: Path) -> Iterator[Words]:
    """A command with some options that are absurd."""
    command = rng.choice(["plan", "plan", "plan", "run", "summary", "show", "check", "tasks",
                          "perplexity", "finetune", "models", "leaderboard", "export"])  # fmt: skip
    given: dict[str, str] = {}
    if command in ("plan", "run", "finetune"):
        given = {"--task": str(world.task), "--model": str(world.model), "--k": "1,3",
                 "--device": "cpu", "--dtype": "float32", "--draws": "1"}  # fmt: skip
        if command == "finetune":
            given |= {"--method": "none"}  # nothing is trained
    elif command == "show":
        given = {"--task": "cards", "--k": "1"}
    elif command == "check":
        given = {"--baseline": str(world.base)}
    elif command == "perplexity":
        (here / "texts").mkdir()
        (here / "texts" / "a.txt").write_text("word " * rng.randrange(40))
        given = {"--model": str(world.model), "--texts": "texts", "--lengths": "8",
                 "--device": "cpu", "--dtype": "float32"}  # fmt: skip
    elif command == "export":
        given = {"--out": "out.csv"}
    known = OPTIONS.get("sweep" if command in ("plan", "run") else command, ("--results",))
    for _ in range(rng.randrange(1, 4)):
        given[rng.choice(known)] = rng.choice(NASTY)
    words = [command, *(word for pair in given.items() for word in pair)]
    if command not in ("plan", "tasks", "models"):
        shutil.copytree(world.results, here / "results")
    if rng.random() < 0.2:
        words += rng.choice([["--json"], ["--quiet"], ["--unconstrained"], [rng.choice(NASTY)]])
    yield tuple(words)


def _value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that JSON or YAML can hold."""
    kind = rng.randrange(9 if depth < 3 else 7)
    if kind == 7:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == 8:
        return {rng.choice(NASTY): _value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return [None, True, 10 ** rng.randrange(30), -1.5, 1e308, *[rng.choice(NASTY)] * 2][kind]


def _task_file(rng: random.Random, world: World, here: Path) -> Iterator[Words]:
    """A task file of which something is something else."""
    task = json.loads(world.task.read_text())
    shutil.copytree(world.task.parent, here / "task")
    path = here / "task" / "cards.yaml"
    for _ in range(rng.randrange(1, 3)):
        inside = rng.choice([task, *(value for value in task.values() if isinstance(value, dict))])
        names = [*inside, "test", "pool", "hub", "folder", "embedded", "source", "names", "size",
                 "seed", "ids", "separator", rng.choice(NASTY)]  # fmt: skip
        inside[rng.choice(names)] = _value(rng)
    path.write_bytes(_damaged(rng, json.dumps(task).encode(), rng.choice([0.0, 0.0, 0.5])))
    yield ("tasks", "--check", str(path))


def _rows(rng: random.Random, world: World, here: Path) -> Iterator[Words]:
    """Rows of a data set some of which are odd."""
    shutil.copytree(world.task.parent, here / "task")
    rows: list[Any] = [row(number) for number in range(12)]
    for _ in range(rng.randrange(1, 4)):
        rng.choice(rows[:3])[rng.choice(["text", "label", "id", rng.choice(NASTY)])] = _value(rng)
    if rng.random() < 0.2:
        rows.insert(2, _value(rng))
    lines = "".join(json.dumps(one) + "\n" for one in rows).encode("utf-8", "surrogatepass")
    name = rng.choice(["train.jsonl", "test.jsonl"])
    (here / "task" / name).write_bytes(_damaged(rng, lines, rng.choice([0.0, 0.5])))
    path = str(here / "task" / "cards.yaml")
    yield ("tasks", "--check", path)
    if rng.random() < 0.3:
        yield ("plan", "--task", path, "--model", str(world.model), "--k", "1", "--draws", "1",
               "--device", "cpu", "--dtype", "float32")  # fmt: skip


def _csv(rng: random.Random, nasty: float) -> bytes:
    """Predictions as CSV; a share of the cells is odd."""
    names = [*COLUMNS[:10], *rng.sample(COLUMNS[10:], rng.randrange(3))]
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(names)
    for number in range(16):
        usual = ["wines", f"m{number % 2}", "random", "drawn", "full", 1 + number % 4 // 2, 0,
                 number // 4, "ab"[number // 4 % 2], rng.choice("ab")]  # fmt: skip
        cells = list(map(str, usual)) + [""] * (len(names) - len(usual))
        if rng.random() < nasty:
            cells[rng.randrange(len(cells))] = rng.choice(NASTY)
        writer.writerow(cells)
    text = stream.getvalue()
    if nasty and rng.random() < 0.3:  # all of a name, so that the rows agree
        text = text.replace(rng.choice(["wines", "m0", "random", "drawn"]), _quoted(rng))
    return text.encode("utf-8", "backslashreplace")


def _quoted(rng: random.Random) -> str:
    return '"' + rng.choice(NASTY).replace('"', '""') + '"'


def _imports(rng: random.Random, world: World, here: Path) -> Iterator[Words]:
    """A file of predictions some of which are odd, and a look at what became of it."""
    content = _csv(rng, rng.choice([0.0, 0.05, 0.2]))
    name = rng.choice(["mine.csv", "mine.csv", "mine.csv.gz", "mine.parquet"])
    if name.endswith("gz"):
        content = gzip.compress(content)
    elif name.endswith("parquet"):
        content = world.base.read_bytes()
    (here / name).write_bytes(_damaged(rng, content, rng.choice([0.0, 0.0, 0.4])))
    if rng.random() < 0.5:
        shutil.copytree(world.results, here / "results")
    yield ("import", name)
    shutil.copy(world.base, here / "base.parquet")
    yield rng.choice(READERS)


def _results(rng: random.Random, world: World, here: Path) -> Iterator[Words]:
    """A results folder of which parts are damaged, gone, empty or where they do not belong."""
    shutil.copytree(world.results, here / "results")
    shutil.copy(world.base, here / "base.parquet")
    files = sorted(path for path in (here / "results").rglob("*") if path.is_file())
    for _ in range(rng.randrange(1, 4)):
        path = rng.choice([*files, here / "base.parquet"])
        if not path.is_file():
            continue
        match rng.randrange(7):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(b"")
            case 2:
                path.unlink()
                path.mkdir()
            case 3:
                shutil.copy(path, path.with_name("copy-" + path.name))
            case 4:
                path.write_bytes(rng.choice([p for p in files if p.is_file()]).read_bytes())
            case _:
                path.write_bytes(_damaged(rng, path.read_bytes(), 1.0))
    yield rng.choice(READERS)


def _damaged(rng: random.Random, content: bytes, share: float) -> bytes:
    """Bytes of which, in a share of cases, some are others, gone or there twice."""
    if rng.random() >= share or not content:
        return content
    at = rng.randrange(len(content))
    end = min(len(content), at + rng.choice([1, 8, 64]))
    return [
        content[:at],
        content[:at] + content[end:],
        content[:at] + rng.randbytes(end - at) + content[end:],
        content[:end] + content[at:],
        content[:at] + rng.choice(NASTY).encode("utf-8", "replace") + content[at:],
    ][rng.randrange(5)]


KINDS: dict[str, Callable[[random.Random, World, Path], Iterator[Words]]] = {
    "options": _options, "task file": _task_file, "rows": _rows, "import": _imports,
    "results": _results,
}  # fmt: skip


# -- running them -------------------------------------------------------------------------------


class _HangsError(BaseException):
    """Raised where a case takes too long; no handler of the program's takes it for its own."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _HangsError

    timers = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
    before = {name: signal.signal(name, stop) for name in timers.values()}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds)
    faulthandler.dump_traceback_later(20 * seconds, exit=True)  # where no signal comes through
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for name, handler in before.items():
            signal.signal(name, handler)
        faulthandler.cancel_dump_traceback_later()


def run_case(seed: int, number: int, world: World) -> list[Failure]:
    """Run one case in a folder of its own."""
    rng = random.Random(f"{seed} {number}")
    kind = rng.choice([*KINDS])
    found, before = [], Path.cwd()
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        here = Path(name)
        os.chdir(here)
        try:
            for words in KINDS[kind](rng, world, here):
                why = _ended(words)
                if why:
                    found.append(Failure(number, kind, words, why))
        finally:
            os.chdir(before)
    return found


def _ended(words: Words) -> str:
    """What is wrong with how a command ends; empty where nothing is."""
    try:
        with _limited(SECONDS):
            ended = run_command(*words)
    except _HangsError:
        return f"computed for more than {SECONDS:g} s:\n{traceback.format_exc(limit=-6)}"
    except BaseException:
        return traceback.format_exc(limit=-6)
    errors = [line for line in ended.err.splitlines() if not line.startswith("warning: ")]
    if ended.code not in (0, 1, 2):
        return f"exit code {ended.code}"
    if "Traceback" in ended.out + ended.err:
        return f"a traceback: {ended.err[-2000:]}"
    if ended.code == 2 and (len(errors) > 4 or not any(e.startswith("error: ") for e in errors)):
        return f"no clear line of error: {ended.err[-2000:]}"
    if ended.code == 2 and max(map(len, errors)) > 2000:
        return f"an endless line of error: {ended.err[:300]}"
    return ""


def fuzz(seed: int, numbers: range, say: Callable[[str], None]) -> list[Failure]:
    """Run these cases; those that failed."""
    found: list[Failure] = []
    with tempfile.TemporaryDirectory() as name:
        os.environ["ICL_BENCH_CACHE"] = str(Path(name) / "cache")
        os.environ.pop("ICL_BENCH_DATA", None)
        (Path(name) / "world").mkdir()
        world = make_world(Path(name) / "world")
        for number in numbers:
            for failure in run_case(seed, number, world):
                found.append(failure)
                words = " ".join(repr(word[:200]) for word in failure.words)
                say(f"case {number} ({failure.kind}): {words}\n{failure.why}\n")
    return found


def _share(seed: int, numbers: range) -> list[Failure]:
    """The part of one process, which says at once what fails."""
    return fuzz(seed, numbers, lambda text: print(text, flush=True))


def main() -> None:
    """``python -m support.fuzz --cases 10000 --seed 1``; exits with 1 where a case failed."""
    reads = argparse.ArgumentParser(description=__doc__)
    reads.add_argument("--cases", type=int, default=10_000)
    reads.add_argument("--first", type=int, default=0)
    reads.add_argument("--seed", type=int, default=0)
    reads.add_argument("--only", type=int, help="run this case alone")
    reads.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = reads.parse_args()
    first, cases = (asked.first, asked.cases) if asked.only is None else (asked.only, 1)
    jobs = min(asked.jobs, cases)
    shares = [range(first + job, first + cases, jobs) for job in range(jobs)]
    began = time.monotonic()
    os.environ["HF_HUB_OFFLINE"] = "1"  # libraries read it when a process imports them
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        parts = list(pool.map(_share, [asked.seed] * jobs, shares))
    found = [failure for part in parts for failure in part]
    kinds = "".join(f", {n} of {kind}" for kind, n in Counter(f.kind for f in found).items())
    took = time.monotonic() - began
    print(f"{cases:,} cases in {took:.0f} s: {len(found)} failed{kinds}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
