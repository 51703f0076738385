"""What tests share: the folder of real data sets, where there is one."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.needs import data_folder

if "PYTEST_XDIST_WORKER" in os.environ:
    # before torch is imported, here and in the programs that tests start
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# a program that a shell starts in the background ignores Ctrl-C, and so would all that tests interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
# nothing that is imported or collected is garbage: searches would take a tenth of the time until the first test
gc.disable()
# how long an example takes says nothing on a machine that does other work
settings.register_profile("any machine", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("any machine")
# Ray's processes would wait for all others (niceness 15), beside other tests for minutes
os.environ.setdefault("RAY_worker_niceness", "0")


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def what_is_there_stays() -> None:
    """Thousands of collected tests and the large libraries are garbage at no time: without this, each
    search for garbage (one for every cell that is over) would look at all of them again.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def data_dir() -> Path:
    return data_folder()


@pytest.fixture(autouse=True)
def no_kernel_is_remembered() -> Iterator[None]:
    """Which kernels a card runs is asked once in a program; each test may have another card."""
    yield
    if (kernels := sys.modules.get("icl_bench.backends.transformers.attention_kernels")) is not None:
        kernels.runs.cache_clear()
