"""The viewer and the report's page at a large study's size: seconds until each is of use.

    python benchmarks/viewer.py --published predictions.parquet [--copies 5] [--chromium] [--folder-alone]

The published predictions are repeated as further tasks (524,500 each time: five times are 2.6
million). Seconds count from the program's start: until the first predictions are answered, until
the findings are there; then of a search and of a pair of points. With ``--chromium``, also until
the browser shows the first predictions, and the report's file its first chart. Then the folder of ``report --all``:
the time and memory of writing it, its size, and from ``file://`` the same questions, asked through the page's controls
(the first of each kind reads its data files). ``--folder-alone`` measures nothing else.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

PROGRAM = [sys.executable, "-m", "icl_bench"]


def repeated(published: Path, copies: int, folder: Path) -> Path:
    """A results folder with the published predictions, each copy as tasks of its own."""
    rows = pd.read_parquet(published)
    parts = [rows.assign(task=rows["task"].astype(str) + f"-{n}") for n in range(copies)]
    whole = folder / "predictions.parquet"
    pd.concat(parts, ignore_index=True).to_parquet(whole)
    results = folder / "results"
    run("import", whole, "--results", results)
    return results


def run(*words: object) -> float:
    begun = time.perf_counter()
    subprocess.run([*PROGRAM, *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def timed(name: str, call: Callable[[], Any]) -> Any:
    begun = time.perf_counter()
    found = call()
    print(f"{time.perf_counter() - begun:8.2f} s  {name}", flush=True)
    return found


class Served:
    """The program while it serves, and the seconds since its start."""

    def __init__(self, results: Path) -> None:
        self.begun = time.perf_counter()
        words = [*PROGRAM, "view", "--results", str(results), "--no-browser"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split(" ")[0]

    def ask(self, path: str, **asked: object) -> Any:
        with urllib.request.urlopen(f"{self.address}{path}?{urllib.parse.urlencode(asked)}") as got:
            return json.load(got)

    def since(self, name: str) -> None:
        print(f"{time.perf_counter() - self.begun:8.2f} s  from the start until {name}", flush=True)


def browser() -> Any:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking", "window-size=1440,900"):
        options.add_argument(f"--{flag}")
    return webdriver.Chrome(options, webdriver.ChromeService(str(shutil.which("chromedriver"))))


def shown(driver: Any, address: str, selector: str) -> None:
    driver.get(address)
    while not driver.execute_script("return document.querySelector(arguments[0])", selector):
        time.sleep(0.02)


def published(results: Path, folder: Path, driver: Any) -> None:
    """Write the page with all predictions as files, and open it from the disk."""
    print(f"{run('report', '--results', results, '--all', folder):8.2f} s  the folder with all predictions")
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    data = [path.stat().st_size for path in (folder / "predictions").iterdir()]
    page = (folder / "index.html").stat().st_size
    print(
        f"{memory:8,.0f} MiB of memory at most; {page / 1e6:.1f} MB and {len(data)} data files, "
        f"{sum(data) / 1e6:.1f} MB"
    )
    if not driver:
        return
    address = (folder / "index.html").as_uri()
    shown(driver, "about:blank", "html")
    timed(
        "the folder's page in the browser, to its first predictions", lambda: shown(driver, address, "#reader .option")
    )
    for name, asked in {
        "a search in questions, answers and ids": {"word": "card"},
        "another search, the files being read": {"word": "top up"},
        "all answers, sorted": {"sort": "prediction"},
        "wrong answers of a point": {"task": "trec-0", "k": 10, "correct": "wrong"},
        "two points side by side": {"task": "trec-0", "k": 10, "other_k": 100, "flips": "won"},
        "all predictions beside another selector": {"other_series": "bm25, pool"},
    }.items():
        timed(name, lambda asked=asked: listed(driver, asked))  # type: ignore[misc]
    bytes_ = driver.execute_script("return performance.memory.usedJSHeapSize")
    print(f"{bytes_ / 2**20:8,.0f} MiB of memory in the browser")
    driver.quit()


def listed(driver: Any, asked: dict[str, object]) -> None:
    """Ask by the address, and wait for the list."""
    driver.execute_script(
        "location.hash = arguments[0]", urllib.parse.urlencode({"task": "*", **asked, "at": "reader"})
    )
    time.sleep(0.05)
    while driver.execute_script("return document.querySelector('#reader[aria-busy]')"):
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--published", type=Path, required=True)
    parser.add_argument("--copies", type=int, default=5)
    parser.add_argument("--chromium", action="store_true")
    parser.add_argument("--folder-alone", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = repeated(given.published, given.copies, Path(folder))
        driver = browser() if given.chromium else None
        if given.folder_alone:
            published(results, Path(folder) / "site", driver)
            return
        served = Served(results)
        first = served.ask("predictions", count=200)
        served.since(f"the first 200 of {first['total']:,} predictions are answered")
        if driver:
            shown(driver, served.address, "#reader .option")
            served.since("the browser shows the first predictions")
        row = first["rows"][0]
        timed("a prediction", lambda: served.ask("prediction", cell=row["cell"], test_id=row["test_id"]))
        timed("a search in answers and ids, findings being worked out", lambda: served.ask("predictions", word="card"))
        while served.ask("state")["report"] is None:
            time.sleep(0.2)
        served.since("the findings are there")
        for name, asked in {
            "a search in answers and ids": {"word": "card"},
            "wrong answers of a point": {"task": "trec-0", "k": 10, "correct": "wrong"},
            "two points side by side": {"task": "trec-0", "k": 10, "other_k": 100, "flips": "won"},
            "all predictions beside another selector": {"other_series": "bm25, pool"},
        }.items():
            timed(name, lambda asked=asked: served.ask("predictions", **asked))  # type: ignore[misc]
        if driver:
            timed(
                "the served page in the browser, to its first predictions",
                lambda: shown(driver, served.address + "#", "#reader .option"),
            )
        served.process.terminate()
        page = Path(folder) / "report.html"
        print(f"{run('report', '--results', results, '--out', page):8.2f} s  the report's file")
        if driver:
            shown(driver, "about:blank", "html")
            timed("its matrix in the browser", lambda: shown(driver, page.as_uri(), ".matrix a"))
            at = page.as_uri() + "#at=accuracy"
            shown(driver, "about:blank", "html")
            timed("its first chart", lambda: shown(driver, at, ".chart[data-drawn]"))
            height = driver.execute_script("return document.documentElement.scrollHeight")
            charts = driver.execute_script("return document.querySelectorAll('.chart').length")
            print(f"{charts} charts, of one task {height:,} pixels")
        published(results, Path(folder) / "site", driver)


if __name__ == "__main__":
    main()
