"""Thousands of commands with absurd options and damaged files: each ends, and says why.

Every case is made from a seed and its number, so that one can be run again: ``python -m
support.fuzz --only 4711``. A case fails where the command ends in a traceback, with another code
than 0, 1 or 2 (or 141, where the reader of its output is gone), with more than a few lines of
error, or not at all.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
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

from transformers.utils import logging

from support.fuzz_cases import DEAR, KINDS, Command, World, make_world
from support.in_process import run_command

SECONDS = 60.0
"""A command that computes for longer hangs, and so does one that waits for ten times as long: on a
machine that is busy otherwise, little is computed in a minute."""


@dataclass(frozen=True)
class Failure:
    """A case that did not end as it should."""

    number: int
    kind: str
    command: Command
    why: str


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
    kind = rng.choices([*KINDS], [1 if name in DEAR else 3 for name in KINDS])[0]
    found, before = [], Path.cwd()
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        here = Path(name)
        os.chdir(here)
        try:
            for step in KINDS[kind](rng, world, here):
                command = step if isinstance(step, Command) else Command(step)
                if why := _ended(command):
                    found.append(Failure(number, kind, command, why))
        except Exception:  # the fuzzer's own fault: told, and the other cases go on
            found.append(Failure(number, kind, Command(()), traceback.format_exc(limit=-6)))
        finally:
            os.chdir(before)
    return found


def _ended(command: Command) -> str:
    """What is wrong with how a command ends; empty where nothing is."""
    try:
        with _limited(SECONDS):
            ended = run_command(*command.words, output=command.output)
    except _HangsError:
        return f"computed for more than {SECONDS:g} s:\n{traceback.format_exc(limit=-6)}"
    except BaseException:
        return traceback.format_exc(limit=-6)
    errors = [line for line in ended.err.splitlines() if not line.startswith("warning: ")]
    if ended.code not in ((0, 1, 2, 141) if command.output == "closed" else (0, 1, 2)):
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
    logging.disable_progress_bar()  # the program says so before it imports the library
    with tempfile.TemporaryDirectory() as name:
        os.environ["ICL_BENCH_CACHE"] = str(Path(name) / "cache")
        os.environ.pop("ICL_BENCH_DATA", None)
        os.environ["COLUMNS"] = "400"  # lines are counted: none is broken
        (Path(name) / "world").mkdir()
        world = make_world(Path(name) / "world")
        for number in numbers:
            for failure in run_case(seed, number, world):
                found.append(failure)
                words = " ".join(repr(word[:200]) for word in failure.command.words)
                say(f"case {number} ({failure.kind}, {failure.command.output}): {words}\n{failure.why}\n")
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
