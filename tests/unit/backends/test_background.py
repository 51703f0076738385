"""Threads that wait at the same time and work one at a time."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from icl_bench.backends.background import Together, packs


def coroutine_of(seconds: float, values: list[int]) -> Callable[[Callable[[int], None]], Any]:
    async def hand(take: Callable[[int], None]) -> None:
        for value in values:
            await asyncio.sleep(seconds)
            take(value)

    return hand


def test_threads_wait_at_the_same_time_and_work_one_at_a_time():
    found: dict[int, list[int]] = {}
    at_work = [0]

    def worker(name: int) -> Callable[[], None]:
        def work() -> None:
            for pack in packs(coroutine_of(0.1, [name, name + 100]), together):
                at_work[0] += 1
                assert at_work[0] == 1
                time.sleep(0.005)
                at_work[0] -= 1
                found.setdefault(name, []).extend(pack)

        return work

    start = time.monotonic()
    with Together.of(4) as together:
        together.run([worker(name) for name in range(8)])
    assert found == {name: [name, name + 100] for name in range(8)}
    assert time.monotonic() - start < 8 * 0.2
    assert together.threads == 0


def test_the_first_exception_is_raised_once_all_have_ended():
    ended = []

    def fails() -> None:
        raise ValueError("at once")

    def works() -> None:
        for _ in packs(coroutine_of(0.1, [1]), together):
            ended.append(1)

    with Together.of(2) as together, pytest.raises(ValueError, match="at once"):
        together.run([fails, works])
    assert ended == [1]


def test_an_interruption_cancels_what_all_wait_for():
    errors: list[BaseException] = []

    def works() -> None:
        try:
            for _ in packs(coroutine_of(60, [1]), together):
                raise AssertionError("nothing comes")
        except CancelledError as error:
            errors.append(error)
            raise

    began: list[bool] = []

    def works_on() -> None:
        with pytest.raises(CancelledError):
            works()
        began.append(True)
        works()

    start = time.monotonic()
    with Together.of(2) as together:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            together.run([works, works, works_on])
        assert len(errors) == 3 + len(began)  # one of them waits again, and is cancelled again
    assert began
    assert time.monotonic() - start < 10


def test_a_coroutine_is_cancelled_where_nobody_takes_its_results():
    ended = threading.Event()

    async def hand(take: Callable[[int], None]) -> None:
        try:
            take(1)
            await asyncio.sleep(60)
        finally:
            ended.set()

    def works() -> None:
        for _ in packs(hand, together):
            raise RuntimeError("no place for it")

    with Together.of(2) as together:
        with pytest.raises(RuntimeError, match="no place"):
            together.run([works])
        assert ended.wait(5)
