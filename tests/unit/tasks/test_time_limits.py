"""What does not end is ended, and the timer and the handler before are there again."""

from __future__ import annotations

import re
import signal
import threading
import time

import pytest

from icl_bench.tasks.time_limits import TookTooLongError, time_limit

SLOW = "a" * 50 + "b"


@pytest.mark.parametrize("endless", [lambda: re.search("(a+)+$", SLOW), lambda: [None for _ in iter(int, 1)]])
def test_a_pattern_and_a_loop_are_ended(endless):
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(TookTooLongError), time_limit(0.05):
        endless()
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)


def test_only_computing_counts():
    with time_limit(0.05):
        time.sleep(0.3)


def test_what_ends_in_time_is_not_stopped_afterwards():
    with time_limit(0.05):
        pass
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass


def test_other_threads_run_without_a_limit():
    done = []

    def work():
        with time_limit(0.01):
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
