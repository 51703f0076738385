"""The work that :mod:`faults` kills: commands with tiny models, and parts of the program that keep files."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from faults import Work
from support.batch_servers import OpenAIServer, serving_batches
from support.fakes import FakeBackend, plan, row, runner, write_rows, write_task
from support.in_process import run_command
from support.models import llama_tokenizer, tiny_checkpoint
from support.servers import server_backend
from unit.sweep.test_vectors_of_prompts import passages_task

from icl_bench.models import registry
from icl_bench.models.array_cache import cached_array
from icl_bench.models.made_once import made_once
from icl_bench.results.reading import read_results
from icl_bench.results.store import Store
from icl_bench.sweep.batched import BatchRunner
from icl_bench.training import resumable

THINK = {"think": True, "opens": "Think.", "ends": "So it is ", "limit": 6}
ON_CPU = ("--device", "cpu", "--dtype", "float32")
OPEN = ExitStack()
"""Servers that stand until this process ends."""
TIMES = ("seconds", "finished", "command", "hardware")
"""Fields of logs that differ between two runs of the same command."""


def command(folder: Path, *words: object) -> None:
    """Run a command; an error is an ``AssertionError``."""
    folder.mkdir(exist_ok=True)
    ended = run_command(*words)
    assert ended.code == 0, ended.err


def rows(results: Path) -> list[tuple[object, ...]]:
    """All predictions of a results folder, sorted."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = read_results(results)
    return sorted(frame[["cell", "test_id", "prediction"]].astype(str).itertuples(index=False, name=None))


def files(folder: Path, *, exactly: bool = True) -> dict[str, str]:
    """The files below a folder with their hashes, or without them; those that a kill left half written have no name."""
    found = (p for p in sorted(folder.rglob("*")) if p.is_file() and not p.name.startswith(".writing-"))
    return {str(p.relative_to(folder)): _contents(p) if exactly else "" for p in found}


def _contents(path: Path) -> str:
    if path.name == resumable.LOG:
        log = {name: value for name, value in json.loads(path.read_text()).items() if name not in TIMES}
        log["settings"].pop("out", None)
        return json.dumps(log, sort_keys=True)
    if path.name == "vectors.json":
        return ""
    without_time = re.sub(rb'"retrieved_timestamp": "\d+"', b"", path.read_bytes())
    return sha256(without_time).hexdigest()


class World:
    """What the works begin with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        os.environ["ICL_BENCH_CACHE"] = str(folder / "cache")
        self.task = write_task(folder / "task", train_rows=30)
        self.tiny = tiny_checkpoint(folder / "tiny", tokenizer=llama_tokenizer(add_bos_token=True))
        self.planned = plan(folder / "planned", "1,2", draws=1)
        self.results = folder / "results"
        runner(self.planned, self.results, FakeBackend()).run()
        (folder / "texts").mkdir()
        for word in ("river", "stone"):
            lines = [f"The {word} number {i} is {i * 7 % 11}." for i in range(120)]
            (folder / "texts" / f"{word}.txt").write_text("\n".join(lines))
        (folder / "import.csv").write_text("task,model,k,draw,test_id,gold,prediction\nt,m,1,0,a,x,x\nt,m,1,0,b,x,y\n")

    def works(self) -> Mapping[str, Callable[[], Work]]:
        """Each work by name."""
        return {
            "sweep": lambda: (lambda folder: runner(self.planned, folder, FakeBackend()).run(), rows),
            "run": self.run,
            "export": lambda: self.export("all.csv"),
            "export_parquet": lambda: self.export("all.parquet"),
            "evaluations": lambda: self.export("every", "--format", "every-eval-ever"),
            "import": self.imported,
            "conversion": self.conversion,
            "arrays": self.arrays,
            "adapter": self.adapter,
            "finetune": self.finetune,
            "adapt": self.adapt,
            "train_vectors": self.train_vectors,
            "rationales": self.rationales,
            "choose": self.choose,
            "report": self.report,
            "leaderboard": self.leaderboard,
            "batches": self.batches,
            "draft": self.draft,
        }

    def run(self) -> Work:
        """A sweep of a tiny model, by the command."""
        words = ("run", "--task", self.task, "--model", self.tiny, "--k", "1,2", "--draws", 1, *ON_CPU, "--quiet")
        return lambda folder: command(folder, *words, "--results", folder / "r"), lambda folder: rows(folder / "r")

    def export(self, name: str, *more: object) -> Work:
        """All predictions in other files."""
        words = ("export", "--results", self.results, *more)
        return lambda folder: command(folder, *words, "--out", folder / "out" / name), lambda f: files(f / "out")

    def imported(self) -> Work:
        """A table of another program."""
        words = ("import", self.folder / "import.csv")
        return lambda folder: command(folder, *words, "--results", folder / "r"), lambda folder: rows(folder / "r")

    def conversion(self) -> Work:
        """A folder of the cache that is made once."""

        def do(folder: Path) -> None:
            made_once(folder / "models" / "m", lambda new: [(new / f"{i}").write_text(f"{i}") for i in range(3)])

        def seen(folder: Path) -> dict[str, str]:
            return {path.name: path.read_text() for path in sorted((folder / "models" / "m").glob("[0-9]"))}

        return do, seen

    def arrays(self) -> Work:
        """An array of the cache."""

        def seen(folder: Path) -> list[float]:
            found: list[float] = cached_array(folder / "arrays-x", lambda: np.arange(5.0)).tolist()
            return found

        return seen, seen

    def adapter(self) -> Work:
        """A model and an adapter, merged in the cache."""
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_pretrained(self.tiny)
        shape = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear", init_lora_weights=False)
        get_peft_model(network, shape).save_pretrained(self.folder / "adapter")

        def do(folder: Path) -> None:
            folder.mkdir(exist_ok=True)
            os.environ["ICL_BENCH_CACHE"] = str(folder / "cache")
            merged = registry.resolve(str(self.folder / "adapter"))
            shutil.copytree(merged.source, folder / "merged", dirs_exist_ok=True)

        return do, lambda folder: {n: h for n, h in files(folder / "merged").items() if not n.startswith(".")}

    def finetune(self) -> Work:
        """Trainings, with their weights kept."""
        words = (
            "finetune",
            "--task",
            self.task,
            "--model",
            self.tiny,
            "--method",
            "lora,probe",
            "--k",
            9,
            "--draws",
            1,
        )
        more = ("--epochs", 2, *ON_CPU, "--quiet")

        def do(folder: Path) -> None:
            kept = ("--keep-checkpoints", folder / "kept")
            command(folder, *words, *more, "--results", folder / "r", *kept)

        return do, lambda folder: (rows(folder / "r"), files(folder / "kept", exactly=False))

    def adapt(self) -> Work:
        """A model that is adapted to an attention pattern, with checkpoints after every third step."""
        words = ("adapt", "--model", self.tiny, "--attention", "grouped:2,9", "--texts", self.folder / "texts")
        more = ("--length", 32, "--tokens", 500, "--batch", 2, "--learning-rate", 1e-2, *ON_CPU, "--quiet")
        return self.trained(*words, *more)

    def train_vectors(self) -> Work:
        """A model that is trained to read vectors."""
        task = passages_task(self.folder / "passages")
        words = ("train-vectors", "--task", task, "--model", self.tiny, "--vectors", 2, "--epochs", 2, "--batch", 4)
        return self.trained(*words, "--learning-rate", 1e-2, *ON_CPU, "--quiet")

    def trained(self, *words: object) -> Work:
        """A long training."""

        def do(folder: Path) -> None:
            resumable.SAVE_STEPS = 3
            command(folder, *words, "--out", folder / "out")

        return do, lambda folder: files(folder / "out")

    def rationales(self) -> Work:
        """Thoughts that a model writes, and the task file of them."""
        task = write_task(self.folder / "thoughts", answer=THINK, train_rows=30)
        words = ("rationales", "--task", task, "--model", self.tiny, "--rows", 6, "--samples", 2, "--keep", "all")
        more = ("--temperature", 1.5, *ON_CPU, "--quiet")

        def seen(folder: Path) -> Any:
            written = {n: text for n, text in files(folder).items() if n.startswith("own.") and "/" not in n}
            text = (folder / "own.yaml").read_text()
            written["own.yaml"] = "\n".join(line for line in text.splitlines() if "seconds:" not in line)
            return rows(folder / "own.cells"), written

        def do(folder: Path) -> None:
            if not (folder / "own.yaml").exists():  # a second run refuses what is there
                command(folder, *words, *more, "--out", folder / "own.yaml")

        return do, seen

    def choose(self) -> Work:
        """A race of two settings."""
        words = ("choose", "--task", self.task, "--model", self.tiny, "--select", "random", "--k", "0,1", "--draws", 2)

        def seen(folder: Path) -> Any:
            # the race itself is decided by answers alone: it asks as many again as there are
            own = {}
            for path in sorted((folder / "r").rglob("*.jsonl")) + sorted((folder / "r").rglob("*.journal")):
                lines = [json.loads(line) for line in path.read_text().splitlines()]
                assert len({line["test_id"] for line in lines}) == len(lines), "a row was asked twice"
                own[path.name] = sorted((line["test_id"], line["prediction"]) for line in lines)
            return own, rows(folder / "r") if list((folder / "r").rglob("*.parquet")) else []

        return lambda folder: command(folder, *words, *ON_CPU, "--quiet", "--results", folder / "r"), seen

    def report(self) -> Work:
        """A page, and its charts as figures."""
        words = ("report", "--results", self.results)

        def do(folder: Path) -> None:
            (folder / "out").mkdir(parents=True, exist_ok=True)
            command(folder, *words, "--out", folder / "out" / "report.html", "--figures", folder / "out" / "figures")

        return do, lambda folder: files(folder / "out", exactly=False)

    def leaderboard(self) -> Work:
        """A table of models."""
        words = ("leaderboard", "--results", self.results)
        return lambda f: command(f, *words, "--out", f / "out" / "board.csv"), lambda f: files(f / "out")

    def draft(self) -> Work:
        """A task file that the program drafts for a file of rows."""
        source = write_rows(self.folder / "mine.jsonl", [row(i) for i in range(40)])
        words = ("tasks", "--from-csv", source)

        def do(folder: Path) -> None:
            out = folder / "own.yaml"
            if not out.exists():  # a second run refuses what is there
                command(folder, *words, "--out", out)

        return do, lambda folder: (folder / "own.yaml").read_text()

    def batches(self) -> Work:
        """A run in batches at a server, which counts what it is asked."""
        server = OPEN.enter_context(serving_batches(OpenAIServer()))
        planned = plan(self.folder / "asked", k="0,2", draws=1, scoring="unconstrained")
        identity = {"backend": "openai", "server": "http://here/v1"}
        os.environ["OPENAI_API_KEY"] = "sk-none"
        context = ssl.create_default_context()
        ssl.create_default_context = lambda *_, **__: context  # its certificates take most of the time

        def do(folder: Path) -> None:
            load = lambda: server_backend(server.url, endpoint="completions", provider="openai", identity=identity)  # noqa: E731
            own = {"settle_seconds": 0.0, "queue_seconds": 0.0, "sleep": lambda _: None}
            BatchRunner(planned, Store(folder), identity, load, **own).run()  # type: ignore[arg-type]

        return do, Asked(server)


class Asked:
    """The rows of a folder, and how many requests a server got for them."""

    def __init__(self, server: Any) -> None:
        self._server, self._before = server, 0

    def __call__(self, folder: Path) -> tuple[list[tuple[object, ...]], int]:
        return rows(folder), self.skipped()

    def skipped(self) -> int:
        """Requests since the last look."""
        asked = sum(len(batch.requests) for batch in self._server.batches)
        new, self._before = asked - self._before, asked
        return new


def works(folder: Path, only: Sequence[str] = ()) -> dict[str, Work]:
    """Work by name; ``folder`` is for what they begin with."""
    torch.set_num_threads(1)
    pd.options.mode.copy_on_write = True
    made = World(folder / "world").works()
    return {name: make() for name, make in made.items() if not only or name in only}
