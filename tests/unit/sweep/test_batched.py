"""Batches give the results of single requests, and a killed run goes on without asking anything twice."""

from __future__ import annotations

import json
import random
import ssl
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import fakes
from support.batch_servers import (
    AnthropicServer,
    BatchServer,
    Failure,
    OpenAIServer,
    label_of,
    prompt_of,
    serving_batches,
    tokens_of,
)
from support.in_memory import MemoryJournals, MemoryStorage
from support.needs import packages
from support.servers import server_backend

from icl_bench.backends.servers.batches import Batches, batches_of
from icl_bench.backends.servers.budget import Budget, Purse
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.batches import BatchRecord
from icl_bench.results.cells import BATCHES
from icl_bench.results.reading import finished_cells, read_results
from icl_bench.results.store import OpenCell, Store
from icl_bench.sweep import batched
from icl_bench.sweep.batched import BatchRunner
from icl_bench.sweep.plan import Plan
from icl_bench.sweep.runner import Outcome, Runner, Watcher

packages("openai", "anthropic")


WAYS = [("openai", "completions"), ("openai", "chat"), ("openai", "responses"), ("anthropic", "messages")]
KINDS: dict[str, type[BatchServer]] = {"openai": OpenAIServer, "anthropic": AnthropicServer}


class Killed(BaseException):
    """Stands for a kill between two steps."""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-very-secret")


@pytest.fixture(autouse=True, scope="module")
def one_context() -> Iterator[None]:
    """Clients share the certificates of https, which take most of the time of a new one."""
    context = ssl.create_default_context()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ssl, "create_default_context", lambda *_, **__: context)
        yield


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return fakes.plan(tmp_path / "task", k="0,2,4", draws=2, scoring="unconstrained")


class Results(Store):
    """A results folder in memory, whose journals survive a kill."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage(), MemoryJournals())

    @property
    def batches_left(self) -> list[dict[str, Any]]:
        """Batches in the files beside the journals."""
        files = self.storage.files  # type: ignore[attr-defined]
        return [one for name in files if name.endswith(BATCHES) for one in json.loads(files[name]).get("batches", [])]


def identity_of(way: tuple[str, str]) -> dict[str, str]:
    """A server's identity, wherever it listens."""
    return {"backend": way[0], "server": "http://here/v1"}


def runner(
    plan: Plan, store: Store, server: BatchServer, way: tuple[str, str] = WAYS[0], **options: Any
) -> BatchRunner:
    """A run in batches that does not wait."""
    own = {name: options.pop(name) for name in ("watcher", "budget", "patience_seconds") if name in options}
    return BatchRunner(
        plan,
        store,
        identity_of(way),
        lambda: server_backend(server.url, endpoint=way[1], provider=way[0], identity=identity_of(way), **options),
        **{"settle_seconds": 0.0, "queue_seconds": 0.0, "sleep": lambda _: None, **own},
    )


def single(plan: Plan, store: Store, server: BatchServer, way: tuple[str, str] = WAYS[0], **options: Any) -> Outcome:
    """The same run in single requests."""
    identity = identity_of(way)
    load = lambda: server_backend(server.url, endpoint=way[1], provider=way[0], identity=identity, **options)  # noqa: E731
    return Runner(plan, store, identity, load).run()


def sorted_results(store: Store) -> pd.DataFrame:
    return read_results(store.storage).sort_values(["cell", "test_id"]).reset_index(drop=True)


# -- the results of single requests ---------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_bodies_and_results_are_those_of_single_requests(plan: Plan, way: tuple[str, str]) -> None:
    alone, together = Results(), Results()
    with serving_batches(KINDS[way[0]]()) as first, serving_batches(KINDS[way[0]]()) as second:
        assert single(plan, alone, first, way).failed == {}
        outcome = runner(plan, together, second, way).run()
    assert outcome.failed == {}
    assert second.single == 0
    assert len(second.batches) == len(outcome.computed)
    as_texts = lambda bodies: Counter(json.dumps(body, sort_keys=True) for body in bodies)  # noqa: E731
    assert as_texts(second.bodies) == as_texts(first.bodies)
    pd.testing.assert_frame_equal(sorted_results(together), sorted_results(alone))
    assert together.batches_left == []
    assert not any(name.endswith(BATCHES) for name in together.storage.names())


def test_the_files_of_cells_say_that_answers_came_in_batches_and_have_no_seconds(plan: Plan) -> None:
    store = Results()
    with serving_batches(OpenAIServer()) as server:
        runner(plan, store, server).run()
    metas = [meta for _, meta in finished_cells(store.storage)]
    assert {(meta.batched, meta.seconds) for meta in metas} == {(True, None)}
    assert {json.dumps(meta.served) for meta in metas} == {'{"model": "m"}'}


def test_all_cells_are_submitted_before_the_first_is_read(plan: Plan) -> None:
    seen: list[tuple[int, int, int]] = []

    class Follows(Watcher):
        def following(self, batches: int, done: int, requests: int) -> None:
            seen.append((batches, done, requests))

    with serving_batches(OpenAIServer(looks=3)) as server:
        runner(plan, Results(), server, watcher=Follows()).run()
    cells = sum(len(group.runnable) for group in plan.groups)
    assert seen[0] == (cells, 0, 6 * cells)


def test_a_cell_above_the_servers_limit_is_several_batches(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    from icl_bench.backends.servers.batches import OpenAIBatches

    monkeypatch.setattr(OpenAIBatches, "most_requests", 4)
    store = Results()
    with serving_batches(OpenAIServer(most_requests=4)) as server:
        outcome = runner(plan, store, server).run()
    assert outcome.failed == {}
    assert {len(batch.requests) for batch in server.batches} == {4, 2}
    assert set(server.answered.values()) == {1}


def test_draws_that_share_prompts_are_answered_once(tmp_path: Path) -> None:
    plan = fakes.plan(tmp_path / "task", k="2", draws=3, selects=["bm25"], scoring="unconstrained")
    assert any(cell.same_prompts for cell in plan.cells)
    with serving_batches(OpenAIServer()) as server:
        outcome = runner(plan, Results(), server).run()
    assert len(outcome.computed) == 3
    assert set(server.answered.values()) == {1}


# -- kills ----------------------------------------------------------------------------------------


class Steps:
    """Counts the steps of a run, and kills it before one of them."""

    def __init__(self, kill_at: int = -1) -> None:
        self.taken, self.kill_at = 0, kill_at
        self.done: list[int] = []
        """The steps at which something has just been done: what is left then is what the next step finds."""

    def step(self) -> None:
        self.taken += 1
        if self.taken == self.kill_at:
            raise Killed

    def around(self, do: Callable[..., Any]) -> Callable[..., Any]:
        """A kill before something is done, or when it is done and nobody knows."""

        def stepped(*values: Any, **named: Any) -> Any:
            self.step()
            result = do(*values, **named)
            self.step()
            self.done.append(self.taken)
            return result

        return stepped


ASKED = ("upload", "create", "newest", "find", "progress", "results")
WRITTEN = ("put", "delete", "rename")


def run_with(steps: Steps, monkeypatch: pytest.MonkeyPatch, runs: BatchRunner) -> Outcome:
    """Run with a kill between two steps, at the server or in the results folder."""

    def stepping(*values: Any) -> Batches:
        batches = batches_of(*values)
        for name in ASKED:
            setattr(batches, name, steps.around(getattr(batches, name)))
        return batches

    storage, journals = runs.store.storage, runs.store.journals
    with monkeypatch.context() as patched:
        patched.setattr(batched, "batches_of", stepping)
        for name in WRITTEN:
            patched.setattr(storage, name, steps.around(getattr(storage, name)))
        for name in ("open", "delete"):
            patched.setattr(journals, name, steps.around(getattr(journals, name)))
        append = fakes_append(steps)
        patched.setattr("support.in_memory.MemoryJournal.append", append)
        return runs.run()


def fakes_append(steps: Steps) -> Callable[[Any, bytes], None]:
    def append(self: Any, lines: bytes) -> None:
        self.lines += lines

    return steps.around(append)


def flaky(prompt: str, tries: int) -> Failure | None:
    """A third of the requests fail at first: overloaded, expired, or with an error in the response."""
    kind = sum(map(ord, prompt)) % 9
    if tries or kind > 2:
        return None
    if kind == 0:
        return 500, {"message": "overloaded", "type": "overloaded_error", "code": None}
    if kind == 1:
        return None, {"code": "batch_expired", "message": "not in time", "type": "expired"}
    return 429, {"message": "slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}


@cache
def undisturbed(folder: Path, way: tuple[str, str]) -> tuple[Plan, pd.DataFrame, Counter[str], Steps]:
    """A plan, what it gives without a kill, what is billed for it, and its steps."""
    plan = fakes.plan(folder, k="0,2", draws=1, scoring="unconstrained")
    store, steps = Results(), Steps()
    with serving_batches(KINDS[way[0]](fails=flaky)) as server, pytest.MonkeyPatch.context() as patched:
        assert run_with(steps, patched, runner(plan, store, server, way)).failed == {}
    return plan, sorted_results(store), server.answered, steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("task")


@pytest.mark.parametrize("way", [WAYS[1], WAYS[3]], ids="-".join)
@pytest.mark.parametrize(
    ("part", "most_kills", "random_runs"),
    [
        *((part, 1, 1) for part in range(4)),
        *(pytest.param(part, 3, 13, marks=pytest.mark.thorough) for part in range(4)),
    ],
)
def test_a_run_that_is_killed_between_any_two_steps_asks_nothing_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, way: tuple[str, str], part: int, most_kills: int, random_runs: int
) -> None:
    """Killed after each thing that it does (and, thorough, before each), in four parts, and up to three times at random."""
    plan, expected, billed, undisturbed_steps = undisturbed(folder, way)
    steps, done = undisturbed_steps.taken, undisturbed_steps.done
    assert set(billed.values()) == {1}
    assert len(done) > 25
    first_kills = [*(done if most_kills == 1 else range(1, steps))[part::4], *[0] * random_runs]
    for number, at in enumerate(first_kills):
        chance = random.Random(1000 * part + number)
        store, kills = Results(), 0
        with serving_batches(KINDS[way[0]](fails=flaky, looks=chance.randrange(1, 4))) as server:
            while True:
                limit = at if at and not kills else chance.randrange(1, steps)
                most = most_kills if at else 3
                try:
                    outcome = run_with(
                        Steps(limit if kills < most else -1), monkeypatch, runner(plan, store, server, way)
                    )
                except Killed:
                    kills += 1
                    continue
                break
        assert outcome.failed == {}
        assert server.answered == billed, f"after {kills} kills, the first at step {at}"
        names = [name for batch in server.batches for name in batch.requests]
        assert len(set(names)) == len(names)
        pd.testing.assert_frame_equal(sorted_results(store), expected)
        assert store.batches_left == []


def losing(kind: type[BatchServer]) -> type[BatchServer]:
    """A server whose answer to the creation of a batch is lost three times."""

    class Loses(kind):  # type: ignore[valid-type, misc]
        lost = 0

        def respond(self, method: str, path: str, content: bytes, kind: str) -> Any:
            reply = super().respond(method, path, content, kind)
            if method == "POST" and path.endswith("batches") and self.lost < 3:
                self.lost += 1
                return 503, {"error": {"message": "upstream went away", "type": "api_error"}}
            return reply

    return Loses


@pytest.mark.parametrize("way", [WAYS[1], WAYS[3]], ids="-".join)
def test_a_batch_whose_creation_nobody_heard_of_is_found_again(plan: Plan, way: tuple[str, str]) -> None:
    store = Results()
    with serving_batches(losing(KINDS[way[0]])()) as server:
        outcome = runner(plan, store, server, way).run()
    assert outcome.failed == {}
    assert len(server.batches) == len(outcome.computed)
    assert set(server.answered.values()) == {1}


def test_a_server_that_keeps_no_metadata_is_asked_for_the_batch_of_the_file(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Results()
    with serving_batches(OpenAIServer(keeps_metadata=False)) as server:
        for _ in range(30):
            try:
                run_with(Steps(9), monkeypatch, runner(plan, store, server))
            except Killed:
                continue
            break
        runner(plan, store, server).run()
    assert set(server.answered.values()) == {1}
    assert len(list(finished_cells(store.storage))) == 5


def test_an_unknown_creation_is_not_repeated_before_the_list_has_settled(plan: Plan) -> None:
    store, clock = Results(), [1000.0]
    refused = [True]

    def away(method: str, path: str) -> Any:
        return (503, {"error": {"message": "away"}}) if refused[0] and method == "POST" and "batches" in path else None

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        refused[0] = clock[0] < 1100

    with serving_batches(OpenAIServer(broken=away)) as server:
        runs = runner(plan, store, server)
        runs.settle_seconds, runs.sleep, runs.now = 60.0, sleep, lambda: clock[0]
        assert runs.run().failed == {}
    assert clock[0] >= 1060
    assert set(server.answered.values()) == {1}


def test_another_process_follows_what_the_first_submitted(plan: Plan) -> None:
    store = Results()
    with serving_batches(OpenAIServer(looks=4)) as server:
        first = runner(plan, store, server)
        second = runner(plan, store, server)
        first.sleep = lambda _: outcomes.append(second.run()) if not outcomes else None
        outcomes: list[Outcome] = []
        outcome = first.run()
    assert len(outcomes[0].computed) == len(outcome.kept) == 5
    assert set(server.answered.values()) == {1}


def test_single_requests_do_not_repeat_what_a_batch_asks(plan: Plan) -> None:
    store = Results()

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with serving_batches(OpenAIServer(looks=2)) as server:
        runs = runner(plan, store, server)
        runs.sleep = stop
        with pytest.raises(KeyboardInterrupt):
            runs.run()
        outcome = single(plan, store, server)
        assert len(outcome.failed) == 5
        assert all("add --batch to continue" in reason for reason in outcome.failed.values())
        assert server.single == 0
        assert len(runner(plan, store, server).run().computed) == 5
    assert set(server.answered.values()) == {1}


# -- failures -------------------------------------------------------------------------------------


def test_requests_that_fail_three_times_fail_their_cell_and_are_asked_again_by_the_next_run(plan: Plan) -> None:
    store, healthy = Results(), [False]

    def fails(prompt: str, tries: int) -> Failure | None:
        del tries
        return (500, {"message": "out of order", "code": None}) if "1003" in prompt and not healthy[0] else None

    with serving_batches(OpenAIServer(fails=fails)) as server:
        outcome = runner(plan, store, server).run()
        assert set(outcome.failed.values()) == {"the server failed to answer 1 request in 3 batches (out of order)"}
        assert max(server.tried.values()) == 3
        healthy[0] = True
        assert len(runner(plan, store, server).run().computed) == 5
    assert set(server.answered.values()) == {1}


def test_a_refused_row_is_invalid_and_a_refused_request_fails_the_cell(plan: Plan) -> None:
    def fails(prompt: str, tries: int) -> Failure | None:
        del tries
        if "1003" in prompt:
            return 400, {"message": "filtered", "code": "content_filter"}
        return None

    store = Results()
    with serving_batches(OpenAIServer(fails=fails)) as server:
        assert runner(plan, store, server, WAYS[1]).run().failed == {}
    frame = sorted_results(store)
    assert list(frame.loc[~frame["valid"], "reason"]) == ["content_filter"] * 5
    refuses = lambda _prompt, _tries: (404, {"message": "no model m", "code": "model_not_found"})  # noqa: E731
    with serving_batches(OpenAIServer(fails=refuses)) as server:
        outcome = runner(plan, Results(), server, WAYS[1]).run()
    assert set(outcome.failed.values()) == {"the server refuses the request (no model m)"}


def test_a_refused_argument_is_left_out_of_the_next_batch(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(body: str, tries: int) -> Failure | None:
        del tries
        if '"temperature"' in body:
            return 400, {"message": "Unsupported value", "param": "temperature", "code": "unsupported_value"}
        if '"max_completion_tokens"' in body:
            return 400, {"message": "Unsupported", "param": "max_completion_tokens", "code": "unsupported_parameter"}
        return None

    store = Results()
    with serving_batches(OpenAIServer(fails=fails)) as server:
        for _ in range(40):  # what is refused is known after a kill, too
            try:
                outcome = run_with(Steps(60), monkeypatch, runner(plan, store, server, WAYS[1]))
            except Killed:
                continue
            break
    assert outcome.failed == {}
    assert set(server.answered.values()) == {1}
    assert max(server.tried.values()) == 3


def test_an_answer_that_begins_with_its_end_is_asked_again_without_stops(plan: Plan) -> None:
    def text_of(body: dict[str, Any]) -> str:
        return "\n" if "stop" in body else f"\n\n{label_of(prompt_of(body)).strip()}"

    alone, together = Results(), Results()
    with serving_batches(OpenAIServer(text_of=text_of)) as server:
        single(plan, alone, server)
    with serving_batches(OpenAIServer(text_of=text_of)) as server:
        runs = runner(plan, together, server)
        outcome = runs.run()
    assert outcome.failed == {}
    assert any("asked again without stop texts" in note for note in outcome.notes)
    assert runs._server.counters.answer_tokens == 3 * server.answered.total()
    assert set(server.answered.values()) == {2}
    pd.testing.assert_frame_equal(sorted_results(together), sorted_results(alone))


def test_a_full_queue_is_waited_for_and_a_batch_that_never_fits_is_halved(plan: Plan, tmp_path: Path) -> None:
    store = Results()
    with serving_batches(OpenAIServer(most_enqueued=13)) as server:  # two cells of six
        assert runner(plan, store, server).run().failed == {}
    assert set(server.answered.values()) == {1}
    plan = fakes.plan(tmp_path / "task", k="0,1", draws=1, scoring="unconstrained")
    with serving_batches(OpenAIServer(most_enqueued=2)) as server:
        assert runner(plan, Results(), server).run().failed == {}
    assert set(server.answered.values()) == {1}
    with serving_batches(OpenAIServer(most_enqueued=0)) as server:
        outcome = runner(plan, Results(), server).run()
    assert set(outcome.failed.values()) == {"the server refuses the batch (Enqueued token limit reached for m)"}


def test_a_batch_waits_no_longer_because_the_clock_was_set_back(plan: Plan) -> None:
    runs = runner(plan, Results(), OpenAIServer())
    runs.queue_seconds, runs.now = 300.0, lambda: 1000.0
    waits = {at: runs._waits(BatchRecord(rows=[], not_before=at)) for at in (0.0, 1000.0, 1001.0, 1300.0, 1301.0, 2e9)}
    assert [at for at, does in waits.items() if does] == [1001.0, 1300.0]


def test_a_cancelled_batch_fails_its_cells_and_the_next_run_asks_for_the_rest(plan: Plan) -> None:
    store = Results()
    with serving_batches(OpenAIServer(cancels=True)) as server:
        outcome = runner(plan, store, server).run()
        assert len(outcome.failed) == 5
        assert all("was cancelled at the server" in reason for reason in outcome.failed.values())
        server.cancels = False
        assert len(runner(plan, store, server).run().computed) == 5
    assert set(server.answered.values()) == {1}


def test_a_batch_that_the_server_does_not_have_is_not_asked_again_by_itself(plan: Plan) -> None:
    store = Results()
    with serving_batches(OpenAIServer(looks=99)) as server:
        runs = runner(plan, store, server)
        runs.sleep = lambda _: server.batches.clear()
        outcome = runs.run()
        assert len(outcome.failed) == 5
        assert all("does not have batch batch_" in reason and BATCHES in reason for reason in outcome.failed.values())
        assert len(runner(plan, store, server).run().failed) == 5
    assert server.answered.total() == 0


def test_answers_of_another_model_are_kept_until_the_user_accepts_them(plan: Plan) -> None:
    class Changes(OpenAIServer):
        def completed(self, body: dict[str, Any], text: str) -> dict[str, Any]:
            return super().completed(body, text) | {"model": f"m-{len(self.bodies) // 9}"}

    store = Results()
    with serving_batches(Changes()) as server:
        outcome = runner(plan, store, server).run()
        assert any("a different model answers" in reason for reason in outcome.failed.values())
        assert runner(plan, store, server, on_model_change="mark").run().failed == {}
    assert set(server.answered.values()) == {1}


@pytest.mark.parametrize("run", [single, lambda *given, **more: runner(*given, **more).run()], ids=["single", "batch"])
@pytest.mark.parametrize("retrieved", [False, True], ids=["drawn", "retrieved"])
def test_a_cell_names_the_models_that_answered_it_and_no_earlier_ones(
    run: Callable[..., Outcome], retrieved: bool, plan: Plan, tmp_path: Path
) -> None:
    class Changes(OpenAIServer):
        def completed(self, body: dict[str, Any], text: str) -> dict[str, Any]:
            return super().completed(body, text) | {"model": "old" if self.answered.total() <= 8 else "new"}

    if retrieved:  # the second draw has the prompts of the first
        plan = fakes.plan(tmp_path / "other", k="2,4,6", draws=2, scoring="unconstrained", selects=["bm25"])
    store = Results()
    with serving_batches(Changes()) as server:
        assert run(plan, store, server, on_model_change="mark", concurrency=1).failed == {}
    by_cell = {str(meta.spec): meta.served["model"] for _, meta in finished_cells(store.storage) if meta.served}
    assert len(by_cell) == len(plan.cells)
    assert {"old", "new"} <= {*by_cell.values()}
    # a draw of a retrieval may have a prompt of its own, because of a tie
    assert sum(", " in names for names in by_cell.values()) <= (3 if retrieved else 1)


def test_a_server_that_stays_away_ends_the_run_and_the_next_one_goes_on(plan: Plan) -> None:
    store, away = Results(), [False]
    with serving_batches(
        OpenAIServer(broken=lambda *_: (503, {"error": {"message": "away"}}) if away[0] else None)
    ) as server:
        runs = runner(plan, store, server, patience_seconds=0.0)
        runs.sleep = lambda _: away.__setitem__(0, True)
        outcome = runs.run()
        assert outcome.failed == {}
        (reason,) = outcome.stopped
        assert "the server kept failing" in reason
        assert "5 cells left, run it again to continue" in reason
        away[0] = False
        assert len(runner(plan, store, server).run().computed) == 5
    assert set(server.answered.values()) == {1}


@pytest.mark.parametrize("way", [WAYS[1], WAYS[3]], ids="-".join)
def test_results_that_are_not_handed_out_for_long_end_the_run(plan: Plan, way: tuple[str, str]) -> None:
    store, away, rounds = Results(), [True], count()

    def broken(_: str, path: str) -> Any:
        return (503, {"error": {"message": "away"}}) if away[0] and path.endswith(("/content", "/results")) else None

    def sleep(_: float) -> None:
        assert next(rounds) < 20

    with serving_batches(KINDS[way[0]](broken=broken)) as server:
        runs = runner(plan, store, server, way, patience_seconds=0.0)
        runs.sleep = sleep
        (reason,) = runs.run().stopped
        assert "the server kept failing" in reason
        away[0] = False
        assert len(runner(plan, store, server, way).run().computed) == 5
    assert set(server.answered.values()) == {1}


@pytest.mark.parametrize("content", [b"", b"no json", b"[]", b'{"batches": 1}', b'{"batches": [{"rows": 2}]}'])
def test_a_damaged_file_of_batches_fails_its_cell_with_what_to_do(plan: Plan, content: bytes) -> None:
    store = Results()
    with serving_batches(OpenAIServer(looks=9)) as server:
        runs = runner(plan, store, server)

        def damage(_: float) -> None:
            for name in [name for name in store.storage.names() if name.endswith(BATCHES)]:
                store.storage.put(name, content)

        runs.sleep = damage
        outcome = runs.run()
    assert len(outcome.failed) == 5
    assert all("delete it to ask the cell's requests again" in reason for reason in outcome.failed.values())


ODD_JSON: tuple[Any, ...] = (None, 3, True, "m", [], [3], {}, {"error": "m"}, {"error": [3]}, {"error": {"error": 3}})


@pytest.mark.parametrize("way", [WAYS[1], WAYS[3]], ids="-".join)
@pytest.mark.parametrize("where", ["line", "response", "body", "error", "status", "result", "name"])
def test_results_of_any_json_end_in_a_reason(tmp_path: Path, way: tuple[str, str], where: str) -> None:
    """Each line is odd in another way."""
    plan, store = fakes.plan(tmp_path / "task", k="2", draws=2, scoring="unconstrained"), Results()
    odd = iter(ODD_JSON * 99)

    class Odd(KINDS[way[0]]):  # type: ignore[misc]
        def respond(self, *asked: Any) -> Any:
            status, content = super().respond(*asked)
            if not isinstance(content, bytes):
                return status, content
            return status, b"\n".join(
                json.dumps(self.spoilt(json.loads(line))).encode() for line in content.splitlines()
            )

        def spoilt(self, row: dict[str, Any]) -> Any:
            value = next(odd)
            if where == "line":
                return value
            if where == "name":
                return {**row, "custom_id": value}
            if way[0] == "anthropic":
                result = {"response": value, "result": value, "body": {"type": "succeeded", "message": value}}
                return {**row, "result": result.get(where, {"type": "errored", "error": value})}
            response = {"body": {**row["response"], "body": value}, "status": {**row["response"], "status_code": value}}
            return {**row, "response": response.get(where, value), "error": value if where == "error" else None}

    with serving_batches(Odd()) as server:
        outcome = runner(plan, store, server, way).run()
    assert len(outcome.failed) == 2
    assert all("\n" not in reason for reason in outcome.failed.values())
    if where == "line":
        assert set(outcome.failed.values()) == {"the server answered with results that are not lines of JSON objects"}
        assert len(store.batches_left) == 2  # the next run reads them again
        assert set(server.answered.values()) == {1}


@pytest.mark.parametrize("metadata", [[], [3], "m", 3, True, {"icl-bench": [3]}])
def test_metadata_of_any_json_is_not_that_of_this_batch(tmp_path: Path, metadata: Any) -> None:
    plan = fakes.plan(tmp_path / "task", k="2", draws=1, scoring="unconstrained")

    class Odd(losing(OpenAIServer)):  # type: ignore[misc]
        def shown(self, batch: Any) -> dict[str, Any]:
            shown: dict[str, Any] = super().shown(batch)
            return shown | {"metadata": metadata}

    with serving_batches(Odd()) as server:
        assert runner(plan, Results(), server).run().failed == {}
    assert set(server.answered.values()) == {1}


def test_an_answer_with_half_a_character_fails_its_cell_in_one_line(tmp_path: Path) -> None:
    plan = fakes.plan(tmp_path / "task", k="2", draws=1, scoring="unconstrained")
    with serving_batches(OpenAIServer(text_of=lambda _: " card lost\ud83d")) as server:
        (reason,) = runner(plan, Results(), server).run().failed.values()
    assert "\n" not in reason


# -- truncated prompts ----------------------------------------------------------------------------


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("stops_after", [None, 5])
def test_answers_to_truncated_prompts_are_not_kept_however_often_the_run_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_batches: bool, stops_after: int | None
) -> None:
    """A window of 300 tokens truncates all prompts, and is raised at last."""
    long = lambda number: {"text": "lost " * (number % 1000 + 330) + str(number), "label": fakes.LABELS[number % 3]}  # noqa: E731
    monkeypatch.setattr(fakes, "row", long)
    plan = fakes.plan(tmp_path / "task", k="0", draws=1, scoring="unconstrained", test_rows=20)
    window = [300]

    class Window(OpenAIServer):
        def completed(self, body: dict[str, Any], text: str) -> dict[str, Any]:
            reply = super().completed(body, text)
            reply["usage"]["prompt_tokens"] = min(reply["usage"]["prompt_tokens"], window[0])
            return reply

    store, stopped = Results(), []
    append = OpenCell.append

    def interrupted(self: OpenCell, predictions: Any, *values: Any, **named: Any) -> None:
        append(self, predictions, *values, **named)
        if stops_after is not None and window[0] == 300 and len(self.done) % stops_after == 0:
            stopped.append(1)
            raise KeyboardInterrupt

    monkeypatch.setattr(OpenCell, "append", interrupted)
    run = lambda: (runner if in_batches else single)(plan, store, server, concurrency=1)  # noqa: E731
    reasons = []
    with serving_batches(Window()) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(20):
            with suppress(KeyboardInterrupt):
                outcome = run()
                outcome = outcome.run() if isinstance(outcome, BatchRunner) else outcome
                reasons += outcome.failed.values()
                assert not outcome.computed
                if turn >= 7:  # an interrupted run may keep too few answers to notice it
                    break
        window[0] = 10**6
        outcome = run()
        outcome = outcome.run() if isinstance(outcome, BatchRunner) else outcome
    assert outcome.failed == {}
    assert reasons
    assert all("300 tokens" in reason for reason in reasons)
    assert (sorted_results(store)["prompt_tokens"] > 300).all()


# -- money ----------------------------------------------------------------------------------------


def budget(limit: float) -> Budget:
    """A money unit for each token of the prompt and three of the answer."""
    return Budget(Purse(limit), lambda new, cached, answer, written: new + cached + answer + written)


def test_a_budget_counts_whole_batches_before_they_are_submitted(plan: Plan) -> None:
    store, enough = Results(), budget(10.0**9)
    with serving_batches(OpenAIServer()) as server:
        runner(plan, store, server, budget=enough).run()
    spent = sum(tokens_of(prompt) + 3 for prompt in server.answered)
    assert enough.purse.spent == pytest.approx(spent)
    assert enough.purse.reserved == pytest.approx(0.0)
    assert enough.purse.requests == 30
    store, little = Results(), budget(10.0)
    with serving_batches(OpenAIServer()) as server:
        outcome = runner(plan, store, server, budget=little).run()
        assert server.batches == []
    (reason,) = outcome.stopped
    assert "--budget 10: 0.0000 spent in 0 requests; the next batch may cost" in reason


def test_a_budget_for_some_of_the_cells_is_used_up_and_never_passed(plan: Plan) -> None:
    store = Results()
    with serving_batches(OpenAIServer()) as server:
        some = budget(1500.0)
        outcome = runner(plan, store, server, budget=some).run()
        assert 0 < len(outcome.computed) < 5
        assert some.purse.spent <= 1500
        assert some.purse.spent == pytest.approx(sum(tokens_of(prompt) + 3 for prompt in server.answered))
        assert f"{5 - len(outcome.computed)} cell" in outcome.stopped[0]
        assert len(runner(plan, store, server, budget=budget(10.0**9)).run().computed) == 5 - len(outcome.computed)
    assert set(server.answered.values()) == {1}


@pytest.mark.parametrize("choices", [[{}], 3])
def test_answers_of_a_batch_that_are_rejected_are_billed_and_counted(plan: Plan, choices: Any) -> None:
    class Odd(OpenAIServer):
        def completed(self, body: dict[str, Any], text: str) -> dict[str, Any]:
            return super().completed(body, text) | {"choices": choices}

    store, enough = Results(), budget(10.0**9)
    with serving_batches(Odd()) as server:
        outcome = runner(plan, store, server, budget=enough).run()
    assert len(outcome.failed) == 5
    assert enough.purse.requests == len(server.answered) == 30
    assert enough.purse.reserved == pytest.approx(0.0)
    spent = sum(tokens_of(prompt) + 3 for prompt in server.answered)
    if choices == 3:  # its tokens cannot be read: the most
        assert enough.purse.spent > spent
    else:
        assert enough.purse.spent == pytest.approx(spent)


def test_answers_to_prompts_that_have_changed_are_billed_and_counted(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, enough = Results(), budget(10.0**9)
    with serving_batches(OpenAIServer()) as server:
        runner(plan, store, server, budget=budget(10.0**9)).submit()
        hashes = PromptSet.hashes
        monkeypatch.setattr(PromptSet, "hashes", lambda prompts: [one[::-1] for one in hashes(prompts)])
        with pytest.warns(UserWarning, match="6 answers of a batch had other prompts than now; asked again"):
            assert runner(plan, store, server, budget=enough).run().failed == {}
    assert enough.purse.requests == server.answered.total() == 60
    assert enough.purse.spent > sum(tokens_of(prompt) + 3 for prompt in server.answered.elements())
    assert enough.purse.reserved == pytest.approx(0.0)


def change_a_prompt(store: Results) -> None:
    """Let the first row of each batch have another prompt than when it was uploaded."""
    for name in [name for name in store.storage.names() if name.endswith(BATCHES)]:
        state = json.loads(store.storage.read(name))
        del state["check"]
        for record in state["batches"]:
            (test_id, prompt), *others = record["rows"]
            record["rows"] = [[test_id, "0" * len(prompt)], *others]
        store.storage.put(name, json.dumps(state).encode())


@pytest.mark.parametrize(
    ("way", "status"),
    [
        (WAYS[1], 429),
        (WAYS[3], 503),
        pytest.param(WAYS[1], 503, marks=pytest.mark.thorough),
        pytest.param(WAYS[3], 429, marks=pytest.mark.thorough),
    ],
)
def test_rows_keep_their_answers_if_a_prompt_changes_before_the_batch_is_created(
    plan: Plan, way: tuple[str, str], status: int
) -> None:
    alone, together, refuses = Results(), Results(), [True]

    def busy(method: str, path: str) -> Any:
        creates = method == "POST" and path.endswith("batches")
        return (status, {"error": {"message": "busy"}}) if refuses[0] and creates else None

    def sleep(_: float) -> None:
        if refuses[0]:
            change_a_prompt(together)
        refuses[0] = False

    with serving_batches(KINDS[way[0]]()) as first, serving_batches(KINDS[way[0]](broken=busy)) as second:
        assert single(plan, alone, first, way).failed == {}
        runs = runner(plan, together, second, way)
        runs.sleep = sleep
        assert runs.run().failed == {}
    pd.testing.assert_frame_equal(sorted_results(together), sorted_results(alone))
    assert set(second.answered.values()) == {1}


def test_an_uploaded_file_with_an_argument_that_the_server_refuses_since_is_uploaded_again(plan: Plan) -> None:
    refuses = [True]

    def fails(body: str, _: int) -> Failure | None:
        if '"temperature"' in body:
            return 400, {"message": "Unsupported value", "param": "temperature", "code": "unsupported_value"}
        return None

    def busy(method: str, path: str) -> Any:
        creates = method == "POST" and path.endswith("batches")
        return (429, {"error": {"message": "busy"}}) if refuses[0] and creates else None

    with serving_batches(OpenAIServer(fails=fails, broken=busy)) as server:
        runs = runner(plan, Results(), server, WAYS[1])

        def learn(_: float) -> None:
            refuses[0] = False
            runs._server.leave_out(["temperature"])

        runs.sleep = learn
        assert runs.run().failed == {}
    assert set(server.tried.values()) == {1}


def test_a_batch_of_an_interrupted_run_counts_in_the_next_budget(plan: Plan) -> None:
    store = Results()

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with serving_batches(OpenAIServer()) as server:
        runs = runner(plan, store, server, budget=budget(10.0**9))
        runs.sleep = stop
        with pytest.raises(KeyboardInterrupt):
            runs.run()
        more = budget(10.0**9)
        runner(plan, store, server, budget=more).run()
    assert more.purse.spent == pytest.approx(sum(tokens_of(prompt) + 3 for prompt in server.answered))
    assert more.purse.reserved == pytest.approx(0.0)


def test_cells_of_this_machine_look_for_no_batches(tmp_path: Path) -> None:
    asked: list[str] = []

    class Watched(MemoryStorage):
        def read(self, name: str) -> bytes:
            asked.append(name)
            return super().read(name)

        def delete(self, name: str) -> None:
            asked.append(name)
            super().delete(name)

    done = fakes.runner(fakes.plan(tmp_path / "task"), tmp_path / "results", fakes.FakeBackend())
    done.store = Store(Watched(), MemoryJournals())
    for _ in range(2):  # the second finds all cells done
        assert not done.run().failed
    assert asked
    assert not [name for name in asked if name.endswith(BATCHES)]
