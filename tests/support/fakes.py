"""What stands in for a model in unit tests: a small tokenizer, a task of made-up rows, a backend.

The backend is replaced at its narrowest point, token ids in and answers out. Run as a program, this
file is one process of a sweep: ``python fakes.py FOLDER RESULTS LOG PAUSE PROCESSES``. After its
first answers it goes on when so many processes have answered.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from icl_bench.backends.interface import Answer, Counters, Decoding, Exact, Free
from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.perturbations import Perturbation
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.models.registry import Model
from icl_bench.models.text_encoders import Reading, SentenceEncoder
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.calibration import Calibration
from icl_bench.results.store import Store
from icl_bench.sweep.k_values import KValues
from icl_bench.sweep.plan import Plan, make_plan
from icl_bench.sweep.runner import Runner, Watcher
from icl_bench.sweep.tokenized_task import Queries, Scoring, TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.label_subset import HalfLabels
from icl_bench.tasks.task_files import load_task
from icl_bench.text_files import write_whole

ENGINE = {"backend": "fake", "dtype": "float32"}
LABELS = ("card_arrival", "card_lost", "top_up")
WORDS = ("where", "is", "my", "new", "card", "lost", "it", "today", "top", "up", "the", "account")
WINDOW = 4096


class SmallTokenizer:
    """Byte pairs in SentencePiece's spelling, with what a prompt and a constraint ask of one."""

    is_fast = True
    bos_token_id, eos_token_id = 1, 2
    all_special_ids = (0, 1, 2)
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def __init__(self) -> None:
        self.backend_tokenizer = Tokenizer(models.BPE(byte_fallback=True))
        self.backend_tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        self.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("\n|\u2581?[^\u2581\n]+"), "isolated")
        self.backend_tokenizer.decoder = decoders.Replace("\u2581", " ")
        single = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=["<pad>", "<s>", "</s>", *single], show_progress=False
        )
        text = "query: " + " ".join(WORDS) + "\nintent: card arrival lost top up\n==\n"
        self.backend_tokenizer.train_from_iterator([text] * 3, trainer)

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[Any]]:
        found = self.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
        return {
            "input_ids": [encoding.ids for encoding in found],
            "offset_mapping": [encoding.offsets for encoding in found],
        }

    def get_vocab(self) -> dict[str, int]:
        return self.backend_tokenizer.get_vocab()


@cache
def small_tokenizer() -> SmallTokenizer:
    return SmallTokenizer()


# -- a task -------------------------------------------------------------------------------------


def row(number: int) -> dict[str, str]:
    """Row ``number``: one to five words, a different text for each number, and a label."""
    words = [WORDS[(number * 5 + i) % len(WORDS)] for i in range(1 + number % 5)]
    return {"text": " ".join([*words, str(number)]), "label": LABELS[number % 3]}


def write_rows(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    """Whole at once: another process may read the same file meanwhile."""
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return path


def write_task(folder: Path, *, train_rows: int = 40, test_rows: int = 6, **changes: Any) -> Path:
    """A task file with its rows; ``changes`` replace fields of it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "train.jsonl", [row(i) for i in range(train_rows)])
    write_rows(folder / "test.jsonl", [row(1000 + i) for i in range(test_rows)])
    task = {
        "name": "cards",
        "data": {"train": "train.jsonl", "test": "test.jsonl", "fields": {"text": "text", "label": "label"}},
        "template": {"input": "query: {text}", "output": "intent: {label}"},
        "labels": {"style": "words"},
        "metrics": ["accuracy", "macro_f1"],
        **changes,
    }
    path = folder / "cards.yaml"
    write_whole(path, json.dumps(task).encode())  # JSON is YAML
    return path


FREE_TEXT: dict[str, Any] = {"labels": None, "metrics": ["rouge"], "max_answer_tokens": 9}
"""Changes that make the task one of free text."""


def model(context_tokens: int = WINDOW, fingerprint: str = "none") -> Model:
    return Model("small", "small", "small", None, context_tokens, fingerprint)


def tokenized_task(
    folder: Path,
    *,
    context_tokens: int = WINDOW,
    fingerprint: str = "none",
    seed: int = 0,
    scoring: Scoring = "greedy",
    test_size: int | None = None,
    half: HalfLabels | None = None,
    queries: Queries = "test",
    perturbation: str = "none",
    **task: Any,
) -> TokenizedTask:
    """The task, written to a folder and read again, in the small tokenizer's ids."""
    data = load_data(load_task(write_task(folder, **task)), test_size=test_size)
    data, part = (half.of(data), str(half)) if half else (data, None)
    tokenizer: Any = small_tokenizer()
    there = model(context_tokens, fingerprint)
    shown = Perturbation.parse(perturbation)
    return TokenizedTask(data, there, tokenizer, seed, scoring, queries, part, shown)


def plan(folder: Path, k: str = "1,2,4", draws: int | None = 2, **changes: Any) -> Plan:
    """A small sweep; ``changes`` are those of ``tokenized_task`` and of ``planned``."""
    named = ("selects", "orders", "attention", "calibrations")
    own = {name: changes.pop(name) for name in named if name in changes}
    return planned(tokenized_task(folder, **changes), k, draws=draws, **own)


def planned(
    task: TokenizedTask,
    k: str,
    selects: Sequence[str] = ("random",),
    orders: Sequence[str] | None = None,
    attention: Sequence[str] = ("full",),
    draws: int | None = None,
    calibrations: Sequence[str] = (),
) -> Plan:
    """The plan of what the command line would write so."""
    return make_plan(
        task,
        KValues.parse(k),
        list(map(SelectorSpec.parse, selects)),
        orders and list(map(Order.parse, orders)),
        draws,
        list(map(Pattern.parse, attention)),
        calibrations=list(map(Calibration.parse, calibrations)),
    )


class WordEncoder(SentenceEncoder):
    """Embeds a text as the words that it has, and a little of its last one (its number)."""

    window: ClassVar[int] = 99
    """Words, of which it says that it reads no more."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        found = np.full((len(texts), len(WORDS) + 1), 0.01, np.float32)
        for vector, text in zip(found, texts, strict=True):
            *words, last = text.split()
            for word in words:
                vector[WORDS.index(word)] += 1
            vector[-1] += int(last) % 7 / 10
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    def reading(self, texts: Sequence[str]) -> Reading:
        return Reading(sum(len(text.split()) > self.window for text in texts), self.window, 0.0)


# -- a backend ---------------------------------------------------------------------------------


class FakeBackend:
    """Answers by the hash of the prompt's ids, a few at a time.

    ``fails`` is asked before each cell and each pack, and may raise; ``log`` gets a line for each
    answer: process, then the prompt's hash. Where it is ``scored``, exact answers have every label's score.
    """

    name = "fake"

    def __init__(
        self,
        log: Path | None = None,
        pause: float = 0.0,
        fails: Callable[[PromptSet], None] = lambda _: None,
        pack: int = 2,
        scored: bool = False,
    ) -> None:
        self.counters = Counters()
        self.peak_prefix_bytes = None
        self.reserved: list[int] = []
        self._log, self._pause, self._fails, self._pack = log, pause, fails, pack
        self._scored = scored

    def identity(self) -> dict[str, str]:
        return ENGINE

    def answer(
        self,
        prompts: PromptSet,
        todo: Sequence[int],
        decodings: Sequence[Decoding],
        reserve: int,
        pattern: Pattern = FULL,
    ) -> Iterator[list[Answer]]:
        assert pattern == FULL or pattern.reads_vectors or pattern.compares
        self.reserved.append(reserve)
        self.counters.prefix_tokens += len(prompts.prefix)
        for start in range(0, len(todo), self._pack):
            self._fails(prompts)
            time.sleep(self._pause)
            pack = todo[start : start + self._pack]
            self.counters.own_tokens += sum(len(prompts.suffixes[i]) for i in pack)
            self.counters.seconds += 0.5
            yield [self._answered(prompts, i, decodings[i]) for i in pack]

    def _answered(self, prompts: PromptSet, index: int, decoding: Decoding) -> Answer:
        ids, cached = prompts.ids(index), len(prompts.prefix)
        number = int(hashlib.sha256(str(ids).encode()).hexdigest(), 16)
        if self._log is not None:
            with self._log.open("a") as stream:
                stream.write(f"{os.getpid()} {prompts.hashes()[index]}\n")
        if isinstance(decoding, Free):
            return Answer(index, cached, 3, text=f" {WORDS[number % len(WORDS)]} ")
        if isinstance(decoding, Exact):
            count = len(decoding.trie.ends)
            chances = np.full(count, 1e-9)
            chances[(number + 1) % count], chances[number % count] = 0.25, 0.5
            known = {"probability": 0.5, "margin": 0.25, "label_mass": 0.75}
            scores = np.log(chances).astype(np.float32) if self._scored else None
            return Answer(index, cached, 0, label=number % count, scores=scores, **known)
        return Answer(index, cached, 2, label=number % len(decoding.automaton.answers))


def runner(plan: Plan, results: Path, engine: FakeBackend | None = None, watcher: Watcher | None = None) -> Runner:
    """A run of a plan with a backend; without one, none must be needed."""

    def load() -> FakeBackend:
        assert engine is not None, "the backend was loaded"
        return engine

    return Runner(plan, Store(results), ENGINE, load, watcher or Watcher())


def waits_for(processes: int, log: Path) -> Callable[[PromptSet], None]:
    """Waits, after the first answers, until so many processes have written into the log."""

    def wait(_: PromptSet) -> None:
        lines = log.read_text().splitlines() if log.exists() else []
        while any(line.startswith(f"{os.getpid()} ") for line in lines):
            if len({line.split()[0] for line in lines}) >= processes:
                return
            time.sleep(0.02)
            lines = log.read_text().splitlines()

    return wait


if __name__ == "__main__":
    folder, results, log = map(Path, sys.argv[1:4])
    small: Any = small_tokenizer()
    there = TokenizedTask(load_data(load_task(folder / "cards.yaml")), model(), small)
    ready = planned(there, "1,2,4", draws=2)
    (folder / f"ready-{os.getpid()}").touch()
    deadline = time.monotonic() + 300
    while not (folder / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    fails = waits_for(int(sys.argv[5]), log)
    outcome = runner(ready, results, FakeBackend(log, float(sys.argv[4]), fails)).run()
    print(len(outcome.computed), len(outcome.kept), len(outcome.failed))
