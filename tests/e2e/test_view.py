"""``icl-bench view``: a real server of a real sweep and of imported predictions, in a real browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.browser import ENTER, drawn, focus, press, set_to, settled, texts, visible, wait
from support.program import PROGRAM, Run, heed_interrupts

from icl_bench.results.reading import read_results

pytestmark = pytest.mark.slow

EVIL = """</script><script>document.title = "attacked"</script><img src=x onerror="alert(1)"> & <!--"""


def imported(folder: Path) -> Path:
    """Predictions of two selectors whose every text is an attack."""
    rows = [
        {
            "task": f"task {EVIL}",
            "model": f"model {EVIL}",
            "select": select,
            "order": order,
            "k": k,
            "draw": draw,
            "test_id": f"{test} {EVIL}",
            "gold": f"label {test % 3} {EVIL}",
            "prediction": f"label {(test if (test + k + draw) % 4 else test + 1) % 3} {EVIL}",
        }
        for select, order in (("random", "drawn"), ("bm25", "pool"))
        for k in (1, 5, 20)
        for draw in range(3)
        for test in range(12)
    ]
    path = folder / "made <script>.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


class Server:
    """The program while it serves a folder."""

    def __init__(self, results: Path, *more: object) -> None:
        words = [*PROGRAM, "view", "--results", str(results), "--no-browser", *map(str, more)]
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=heed_interrupts,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.address = self.line.split(" ")[0]
        split = urllib.parse.urlsplit(self.address)
        self.port = split.port or 0
        self.token = split.query.removeprefix("token=")

    def ask(self, path: str, method: str = "GET", **asked: Any) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        host = asked.pop("host", f"127.0.0.1:{self.port}")
        asked_token = asked.pop("cookie", self.token)
        query = f"?{urllib.parse.urlencode(asked)}" if asked else ""
        cookie = {"Cookie": f"icl_bench_{self.port}={asked_token}"} if asked_token else {}
        connection.request(method, f"/{path}{query}", headers={"Host": host, **cookie})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def json(self, path: str, **asked: Any) -> Any:
        status, text = self.ask(path, **asked)
        assert status == 200, text
        return json.loads(text)

    def wait_for_findings(self, revision: int = 0) -> None:
        deadline = time.monotonic() + 240
        while (self.json("state")["report"] or 0) < revision or self.json("state")["report"] is None:
            assert time.monotonic() < deadline, self.json("state")
            time.sleep(0.2)

    def end(self) -> tuple[int, str, str]:
        self.process.send_signal(signal.SIGINT)
        out, error = self.process.communicate(timeout=30)
        return self.process.returncode, out, error


@pytest.fixture(scope="module")
def results(program: Run, swept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viewed")
    shutil.copytree(swept, folder / "results")
    done = program("import", imported(folder), "--results", folder / "results")
    assert done.returncode == 0, done.stderr
    return folder / "results"


@pytest.fixture(scope="module")
def server(results: Path) -> Iterator[Server]:
    found = Server(results)
    yield found
    code, out, error = found.end()
    assert (code, out, error) == (0, "", "")


def test_every_prediction_is_there(server: Server, results: Path):
    rows = read_results(results)
    first = server.json("predictions", first=0, count=1)
    assert first["total"] == len(rows)
    wrong = rows[(rows["task"] == "stdlib") & (rows["k"] == 10) & ~rows["correct"].astype(bool)]
    found = server.json("predictions", task="stdlib", k=10, correct="wrong", count=1000)
    assert [(r["cell"], r["test_id"]) for r in found["rows"]] == list(zip(wrong["cell"], wrong["test_id"], strict=True))
    assert server.json("predictions", first=2, count=3)["rows"] == server.json("predictions")["rows"][2:5]


def test_a_question_is_searched_and_a_prediction_shown_with_its_prompt(server: Server):
    row = server.json("predictions", task="stdlib", k=10, count=1)["rows"][0]
    whole = server.json("prediction", cell=row["cell"], test_id=row["test_id"])
    assert whole["prediction"] == row["prediction"]
    assert whole["count"] == 10
    assert whole["query"].endswith("module:")
    word = max(whole["query"].splitlines(), key=len)[5:40]
    deadline = time.monotonic() + 60
    while not (found := server.json("predictions", word=word.upper(), count=1000))["total"]:
        assert time.monotonic() < deadline, "questions are read behind the predictions"
        time.sleep(0.2)
    assert row["test_id"] in {one["test_id"] for one in found["rows"]}
    assert {one["task"] for one in found["rows"]} == {"stdlib"}


def test_what_is_not_there_is_said(server: Server):
    assert server.ask("prediction", cell="none", test_id="x") == (404, "no such prediction")
    row = server.json("predictions", count=1)["rows"][0]
    assert server.ask("prediction", cell=row["cell"], test_id="none")[0] == 404
    assert server.ask("nothing")[0] == 404
    assert server.json("predictions", k="many")["total"] == 0


def test_the_server_is_of_this_machine_alone_and_answers_to_its_name_alone(server: Server):
    for name in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", ""):
        for path in ("", "state", "predictions"):
            status, text = server.ask(path, host=name)
            assert status == 400, name
            assert "prediction" not in text
    assert server.ask("state", host=f"localhost:{server.port}")[0] == 200
    assert server.ask("predictions", method="POST")[0] == 405
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=5)


def test_other_users_of_the_machine_see_nothing_without_the_token(server: Server):
    assert len(server.token) >= 32
    for wrong in ("", "a", server.token[:-1], server.token[:-1] + "é", server.token + "a"):
        for path in ("", "report", "state", "options", "predictions", "prediction", "library.js"):
            for asked in ({}, {"token": wrong}):
                status, text = server.ask(path, cookie=urllib.parse.quote(wrong), **asked)
                assert (status, text[:16]) == (403, "open the address"), (wrong, path)
    assert server.ask("", cookie="", token=server.token)[0] == 303  # to the page, with a cookie


def test_a_request_that_does_not_come_holds_no_connection(server: Server):
    heads = (b"", b"GET /state HTTP/1.1\r\nHost: 127", b"GET /state HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /st")
    with contextlib.ExitStack() as opened:
        connections = [
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=120)) for _ in heads
        ]
        for connection, head in zip(connections, heads, strict=True):
            connection.sendall(head)
        for connection in connections:
            while connection.recv(65536):  # raises TimeoutError if nobody closes it
                pass


def test_a_taken_port_and_an_empty_folder_are_told_in_a_line(
    server: Server, results: Path, program: Run, tmp_path: Path
):
    done = program("view", "--results", results, "--no-browser", "--port", server.port)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --port {server.port}: Address already in use")
    assert done.stderr.count("\n") == 1
    done = program("view", "--results", tmp_path, "--no-browser")
    assert done.returncode == 2
    assert "no results yet" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def opened(driver: Any, server: Server) -> Any:
    def open_page(at: str = "#task=*") -> Any:
        server.wait_for_findings()
        driver.get("about:blank")
        driver.get_log("browser")
        driver.get(server.address + at)
        wait(driver, "document.querySelector('#accuracy')")
        settled(driver)
        return driver

    return open_page


def test_the_page_lists_all_predictions_and_no_text_of_them_runs(opened: Any, results: Path):
    driver = opened()
    drawn(driver)
    total = len(read_results(results))
    assert texts(driver, "#reader .found")[0].startswith(f"{total:,} of all {total:,} predictions")
    driver.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert any(EVIL in text for text in texts(driver, "figcaption"))
    set_to(driver, task=f"task {EVIL}")
    assert any(EVIL in text for text in texts(driver, "#reader .option"))
    assert driver.title.endswith("icl-bench")
    assert driver.execute_script("return [document.scripts.length, document.images.length]") == [3, 0]
    assert [entry["message"] for entry in driver.get_log("browser")] == []


def test_two_points_stand_side_by_side_with_what_flipped(opened: Any, server: Server):
    driver = opened()
    set_to(driver, task="stdlib", k="1", other_k="10", flips="changed")
    counts = server.json("predictions", task="stdlib", k=1, other_k=10)["pairs"]
    found = texts(driver, "#reader .found")[0]
    assert f"Of {counts['total']} pairs {counts['both']} are right on both sides" in found
    assert 0 < counts["total"] <= 48
    listed = texts(driver, "#reader .option")
    assert listed
    names = texts(driver, "#reader .option .name")
    assert len(names) == 2 * len(listed)
    assert all(here != there for here, there in zip(names[::2], names[1::2], strict=True))
    assert "p of no difference: " in found
    assert "It holds for these demonstrations, not for others, and is not corrected for further comparisons." in found
    assert all(texts(driver, "#reader .option .question")), "the data is at hand"
    sides = texts(driver, "#reader .sides .pairs")
    assert len(sides) == 2
    assert "k1, draw" in sides[0]
    assert "k10, draw" in sides[1]


def test_an_address_leads_to_a_prediction_of_all(opened: Any, server: Server):
    row = server.json("predictions", task="stdlib", first=40, count=1)["rows"][0]
    name = urllib.parse.quote(f"{row['cell']}:{row['test_id']}")
    driver = opened(f"#row={name}")
    assert row["test_id"] in texts(driver, "#reader .shown .pairs")[0]
    # another address in the same page, of one that is not listed, and of none at all
    other = server.json("predictions", task="stdlib", first=3, count=1)["rows"][0]
    name = urllib.parse.quote(f"{other['cell']}:{other['test_id']}")
    driver.execute_script("location.hash = arguments[0]", f"row={name}&k=1&correct=wrong")
    wait(driver, "document.querySelector('#reader [name=correct]').value === 'wrong'")
    settled(driver)
    assert other["test_id"] in texts(driver, "#reader .shown .pairs")[0]
    driver.execute_script("location.hash = 'row=none:x'")
    wait(driver, "document.querySelector('#reader .shown').textContent.includes('not in the')")
    assert "The prediction none:x is not in the results." in texts(driver, "#reader .shown")[0]


def test_an_address_leads_to_a_section(opened: Any):
    driver = opened("#task=stdlib&at=cost")
    time.sleep(3)  # longer than the page waits before it asks for newer findings
    top = driver.execute_script("return document.querySelector('#cost').getBoundingClientRect().top")
    assert 0 <= top < 200
    assert driver.execute_script("return document.querySelector('#cost .chart[data-drawn]') !== null")


def test_predictions_are_shown_before_the_findings_are_worked_out_and_after_the_program_ended(
    driver: Any, results: Path
):
    found = Server(results)
    try:
        row = found.json("predictions", task="stdlib", first=40, count=1)["rows"][0]
        name = urllib.parse.quote(f"{row['cell']}:{row['test_id']}")
        driver.get(f"{found.address}#row={name}")
        wait(driver, "document.querySelector('#reader .option')")
        settled(driver)
        assert not driver.execute_script("return document.querySelector('#accuracy')")
        assert "being" in texts(driver, ".lead")[0]
        wait(driver, "document.querySelector('#accuracy')", 240)
        settled(driver)
        assert "cells: 2 models" in texts(driver, ".lead")[0]
        assert row["test_id"] in texts(driver, "#reader .shown .pairs")[0]
        set_to(driver, correct="wrong")
        assert all(text.startswith("✗") for text in texts(driver, "#reader .option"))
        focus(driver, "e.closest('.matrix') && e.dataset.task === 'stdlib' && e.dataset.model")
        press(driver, ENTER)
        settled(driver)
        assert all("stdlib" in text for text in visible(driver, "figcaption"))
        drawn(driver)
    finally:
        assert found.end()[0] == 0
    wait(driver, "document.querySelector('.following').textContent.includes('has ended')", 30)
    assert texts(driver, "#reader .option")


def test_a_page_follows_a_run(driver: Any, swept: Path, tmp_path: Path):
    growing = tmp_path / "results"
    shutil.copytree(swept, growing)
    rows = read_results(growing)
    later = rows[(rows["task"] == "stdlib") & (rows["k"] == 10) & (rows["draw"] == 1)]["cell"].iloc[0]
    (place,) = growing.rglob(f"*{later}*.parquet")
    held = shutil.move(place, tmp_path / place.name)
    found = Server(growing)
    try:
        found.wait_for_findings()
        driver.get(found.address + "#task=*")
        wait(driver, "document.querySelector('#accuracy')")
        settled(driver)
        before = found.json("state")["predictions"]
        set_to(driver, k="10")
        assert texts(driver, "#reader .found")[0].startswith("24 of")
        shutil.move(held, place)
        wait(driver, "document.querySelector('#reader .found').textContent.startsWith('48 of')", 60)
        assert found.json("state")["predictions"] == before + 24
        found.wait_for_findings(revision=1)
        wait(driver, f"document.querySelector('.lead').textContent.startsWith('{before + 24:,} pred')", 60)
        assert driver.execute_script("return document.querySelector('#reader [name=k]').value") == "10"
    finally:
        assert found.end()[0] == 0
