"""Which unit comes next, and when one is given up."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from icl_bench.studies.parts import Unit
from icl_bench.studies.scheduling import Queue


def unit(number: int, engine: str = "a", seconds: float | None = 1.0) -> Unit:
    return Unit(0, number, f"unit {number}", engine, 2, 10, seconds)


def numbers(queue: Queue, loaded: object) -> list[int]:
    """All that an engine gets that takes one unit after another."""
    found = []
    while (taken := queue.take(loaded)) is not None:
        ticket, one = taken
        queue.done(ticket)
        found.append(one.number)
        loaded = one.engine
    return found


def test_long_ones_come_first_and_the_time_that_is_not_known_is_long():
    queue = Queue.of([unit(0, seconds=1), unit(1, seconds=None), unit(2, seconds=7)])
    assert numbers(queue, None) == [1, 2, 0]
    assert len(queue) == 0


def test_an_engine_goes_on_with_what_it_has_loaded():
    units = [unit(0, "a", 9), unit(1, "b", 1), unit(2, "a", 8), unit(3, "b", 2)]
    assert numbers(Queue.of(units), "b") == [3, 1, 0, 2]


def test_engines_go_to_the_model_of_which_there_is_most_to_do_for_each():
    units = [unit(n, "a", 2) for n in range(4)] + [unit(n, "b", 1) for n in range(4, 9)]
    queue = Queue.of(units)
    taken = [queue.take() for _ in range(4)]
    assert [one[1].engine for one in taken if one] == ["a", "b", "a", "b"]


def test_a_unit_is_given_up_after_two_failures_without_progress():
    queue, machines = Queue.of([unit(0)]), {"a", "b"}

    def fails(cells_done: int, machine: str = "a") -> bool:
        ticket, _ = queue.take() or (0, None)
        return queue.failed(ticket, cells_done, machine, machines)

    assert not fails(0)
    assert not fails(1), "a cell was finished in between"
    assert not fails(1, "c"), "its machine went away"
    assert not fails(2, "b")
    machines = {"a"}
    assert not fails(2), "of the two failures' machines, one is not there any more"
    assert fails(2)
    assert len(queue) == 0
    assert queue.take() is None


def test_a_unit_that_failed_is_for_another_machine_where_there_is_one():
    queue, both = Queue.of([unit(0, seconds=9), unit(1, seconds=1)]), {"a", "b"}
    ticket, first = queue.take(None, "a", both) or (0, unit(9))
    assert first.number == 0
    assert not queue.failed(ticket, 0, "a", both)
    _, other = queue.take(None, "a", both) or (0, unit(9))
    assert other.number == 1
    assert queue.take(None, "a", both) is None
    _, again = queue.take(None, "b", both) or (0, unit(9))
    assert again.number == 0
    alone = Queue.of([unit(0)])
    ticket, _ = alone.take(None, "a", {"a"}) or (0, None)
    assert not alone.failed(ticket, 0, "a", {"a"})
    assert alone.take(None, "a", {"a"}) is not None


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.floats(0, 1e4)), max_size=12),
    st.lists(st.sampled_from(["take", "done", "failed", "gone"]), max_size=60),
)
def test_whatever_happens_each_unit_ends_once(given_units: list[tuple[str, float | None]], events: list[str]):
    units = [unit(n, engine, seconds) for n, (engine, seconds) in enumerate(given_units)]
    queue, ended, at_work = Queue.of(units), Counter[int](), []
    for event in [*events, *["take", "done"] * 2 * len(units)]:
        if event == "take" and (taken := queue.take()) is not None:
            at_work.append(taken)
        elif event != "take" and at_work:
            ticket, one = at_work.pop(0)
            if event == "done":
                queue.done(ticket)
            elif not queue.failed(ticket, 0, event, {"failed"}):
                continue
            ended[one.number] += 1
        assert len(queue) == len(units) - sum(ended.values())
    for ticket, one in at_work:
        queue.done(ticket)
        ended[one.number] += 1
    while (taken := queue.take()) is not None:
        queue.done(taken[0])
        ended[taken[1].number] += 1
    assert ended == Counter(range(len(units)))
