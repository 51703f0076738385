"""The documentation site is built without a warning, has every command, and its links out of the pages lead to the repository."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.browser import chromium, press, wait

import icl_bench
from icl_bench.cli import COMMANDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def headings(page: Path) -> list[str]:
    found = re.findall(r"<h[1-6] id=\"([^\"]+)\"", page.read_text(encoding="utf-8"))
    return list(map(str, found))


def test_every_page_is_in_the_site(site: Path):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    assert pages <= {path.stem for path in site.glob("*.html")}


def test_the_command_line_and_the_public_names_have_their_places(site: Path):
    of_commands = headings(site / "reference" / "command-line.html")
    assert {f"icl-bench-{name}" for name in COMMANDS} <= set(of_commands)
    of_names = {name.rsplit(".", 1)[-1] for name in headings(site / "reference" / "api.html")}
    assert set(icl_bench.__all__) - {"__version__"} <= of_names
    text = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert ":class:" not in text


def test_arguments_and_placeholders_of_options_are_shown_as_help_has_them():
    lines = list(runpy.run_path(str(ROOT / "docs" / "site_pages.py"))["command_line"]())
    of_leaderboard = lines[next(i for i, line in enumerate(lines) if "icl-bench leaderboard" in line) :]
    assert next(line for line in of_leaderboard if line.startswith("| `")).startswith("| `[FILE]...` | ")
    assert "**Arguments**\n\n| argument |" in "\n".join(of_leaderboard)
    assert any(line.startswith("| `--out` `FILE` | ") for line in of_leaderboard)
    assert any(line.startswith("| `--anonymous` | ") for line in lines), "a flag has no placeholder"


def test_links_out_of_the_pages_lead_to_the_repository(site: Path):
    for page in set(site.rglob("*.html")) - {site / "404.html"}:  # which a server shows at any address
        for link in re.findall(r"href=\"([^\"#]+)", page.read_text("utf-8")):
            assert re.match("[a-z]+:", link) or (page.parent / link).exists(), f"{page.name}: {link}"
    books = "https://github.com/icl-bench/icl-bench/blob/main/notebooks/01_first_sweep.ipynb"
    assert books in (site / "index.html").read_text("utf-8")


def test_the_site_needs_no_network(site: Path):
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|link rel=\"stylesheet\")[^>]*(?:src|href)=\"(https?:[^\"]+)\"", page.read_text("utf-8")
        )
        assert loaded == [], page.name


BROKEN = "[...document.querySelectorAll('code .name')].filter((n) => n.getClientRects().length > 1)"
"""Names in code within a sentence that are on more than one line."""


def test_a_phone_shows_names_unbroken_and_no_page_scrolls_sideways(site: Path, tmp_path: Path):
    pages = tmp_path / "pages"  # without what they are searched by, which each would work out for itself
    shutil.copytree(site, pages, ignore=shutil.ignore_patterns("search"), copy_function=os.link)
    with chromium(tmp_path / "profile") as driver:
        phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
        named = set()
        for page in sorted(pages.rglob("*.html")):
            driver.get(page.as_uri())
            wait(driver, "document.readyState === 'complete'")
            assert driver.execute_script("return document.documentElement.scrollWidth") <= 390, page.name
            assert driver.execute_script(f"return {BROKEN}.map((n) => n.textContent)") == [], page.name
            named |= set(
                driver.execute_script("return [...document.querySelectorAll('code .name')].map((n) => n.innerText)")
            )
            assert not driver.execute_script("return document.querySelector('pre .name')"), "a block of code scrolls"
        assert {"--data-dir", "gemma3-270m", "nearest-removed:P"} <= named


def test_the_contents_of_a_page_show_options_unbroken(site: Path):
    text = (site / "options.html").read_text("utf-8")
    assert re.search(r'Number of demonstrations: <span class="name">--k</span>\s*</span>', text)
    assert not re.search(r"(?:title|aria-label)=\"[^\"]*<span", text)


def test_a_name_in_code_is_kept_on_one_line_unless_it_is_longer_than_a_phone_is_wide():
    content = runpy.run_path(str(ROOT / "docs" / "site_pages.py"))["on_page_content"]
    page = SimpleNamespace(file=SimpleNamespace(src_uri="options.md"))
    long = f"--{'long' * 8}-name"
    for inside, expected in (
        ("--data-dir DIR", '<span class="name">--data-dir</span> DIR'),
        ("run study", "run study"),
        (long, long),
        ("a -", "a -"),
    ):
        assert content(f"<p><code>{inside}</code></p>", page=page) == f"<p><code>{expected}</code></p>"
    block = "<pre><span></span><code>--data-dir\n</code></pre><pre><code>--data-dir</code></pre>"
    assert content(block, page=page) == block


def test_search_works_in_a_folder_of_files(site: Path, tmp_path: Path):
    with chromium(tmp_path) as driver:
        driver.get((site / "index.html").as_uri())
        wait(driver, "document.readyState === 'complete'")
        press(driver, "/")
        wait(driver, "document.activeElement.matches('.md-search__input')")
        press(driver, "batch calibration")
        wait(driver, "document.querySelector('.md-search-result__item a')")
        found = driver.find_elements("css selector", ".md-search-result__item a")
        assert any("calibration.html" in link.get_attribute("href") for link in found)
