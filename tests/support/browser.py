"""Pages in a real browser: headless Chromium, what it shows, and its keyboard."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icl_bench.report.page import SCRIPTS, own_file
from support.needs import missing
from support.program import as_words

FLAGS = as_words(
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
SOURCE = "\n".join(own_file(f"{name}.js") for name in SCRIPTS if name != "start")
"""The program of the page, without what starts it."""

TAB, ENTER, DOWN, END, HOME = "\ue004", "\ue007", "\ue015", "\ue010", "\ue011"


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """Headless Chromium; in CI it must be there."""
    browser, chauffeur = shutil.which("chromium"), shutil.which("chromedriver")
    if not browser or not chauffeur:
        missing("chromium and chromedriver (apt-get install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options, webdriver.ChromeService(chauffeur))
    try:
        found.set_script_timeout(120)
        yield found
    finally:
        found.quit()


def wait(driver: Any, condition: str, seconds: float = 90) -> None:
    """Wait until an expression of the page is true."""
    deadline = time.monotonic() + seconds
    while not driver.execute_script(f"return {condition}"):
        assert time.monotonic() < deadline, condition
        time.sleep(0.05)


def drawn(driver: Any, within: str = "") -> None:
    """Bring every chart (of a section) into view, and wait until it is drawn; then back to the top."""
    left = f"[...document.querySelectorAll('{within} .chart:not([data-drawn])')].find((c) => c.offsetParent)"
    while driver.execute_script(f"const c = {left}; if (c) c.scrollIntoView(); return Boolean(c)"):
        wait(driver, f"!({left}) || {left}.getBoundingClientRect().top > innerHeight")
    driver.execute_script("scrollTo(0, 0)")


def settled(driver: Any) -> None:
    """Wait until the reader lists what was asked for."""
    wait(driver, "!document.querySelector('#reader[aria-busy]')")


def set_to(driver: Any, **values: str) -> None:
    """Choose these values in the reader's filters."""
    driver.execute_script(
        "for (const [name, value] of Object.entries(arguments[0])) {"
        "const s = document.querySelector(`#reader [name=${name}]`); s.value = value;"
        "s.dispatchEvent(new Event('input', { bubbles: true })) }",
        values,
    )
    settled(driver)


def texts(driver: Any, selector: str) -> list[str]:
    found: list[str] = driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector
    )
    return found


def focus(driver: Any, condition: str, most: int = 400) -> None:
    """Press Tab until the focused element fulfils a condition on ``e``."""
    from selenium.webdriver import ActionChains

    for _ in range(most):
        ActionChains(driver).send_keys(TAB).perform()
        if driver.execute_script(f"const e = document.activeElement; return {condition}"):
            ring = driver.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
            assert ring != "none"
            return
    raise AssertionError(f"Tab does not lead to: {condition}")


def click(driver: Any, selector: str, seconds: float = 90) -> Any:
    """Click on the first mark that this selects, as soon as it stands still under the mouse: charts
    that come into view move what is below them.
    """
    from selenium.webdriver import ActionChains

    mark = driver.find_element("css selector", selector)
    deadline = time.monotonic() + seconds
    still = 0
    while still < 5:
        assert time.monotonic() < deadline, selector
        before = driver.execute_script(STANDS, mark)
        time.sleep(0.05)
        still = still + 1 if before and driver.execute_script(STANDS, mark) == before else 0
        if not before:
            driver.execute_script("arguments[0].scrollIntoView({ block: 'center', behavior: 'instant' })", mark)
    ActionChains(driver).move_to_element(mark).click().perform()
    return mark


STANDS = """
const { x, y, width, height } = arguments[0].getBoundingClientRect();
const there = document.elementFromPoint(x + width / 2, y + height / 2);
return there === arguments[0] ? [x, y, scrollY] : null;
"""


def press(driver: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def visible(driver: Any, selector: str) -> list[str]:
    found: list[str] = driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].filter((e) => e.offsetParent)"
        ".map((e) => e.textContent.trim())",
        selector,
    )
    return found
