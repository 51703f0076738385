"""The report's page in a real browser: a real sweep, and imported predictions that are an attack."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pandas as pd
import pytest
from support.browser import DOWN, END, ENTER, HOME, click, drawn, focus, press, set_to, settled, texts, visible, wait
from support.program import Run, as_words

pytestmark = pytest.mark.slow

EVIL = """</script><script>document.title = "attacked"</script><img src=x onerror="alert(1)"> & <!--"""
PERTURBED = as_words(
    "run --task stdlib --model gemma3-270m --k 1 --draws 1 --test-size 24 --perturbation labels:permuted"
)


def imported(folder: Path) -> Path:
    """Predictions of two models, with reorderings, sorting and retrieval; every text an attack."""
    rows = []
    for model in ("one", "two"):
        for select, order in (("random", "drawn"), ("random", "shuffled:1"), ("random", "by-label"), ("bm25", "pool")):
            for k in (1, 5, 20):
                for draw in range(3):
                    for test in range(12):
                        right = (test * 7 + draw + k + len(order) + len(model)) % 4 > 0
                        rows.append(
                            {
                                "task": f"task {EVIL}",
                                "model": f"{model} {EVIL}",
                                "select": select,
                                "order": order,
                                "k": k,
                                "draw": draw,
                                "test_id": f"{test} {EVIL}",
                                "gold": f"label {test % 3} {EVIL}",
                                "prediction": f"label {(test if right else test + 1) % 3} {EVIL}",
                            }
                        )
    path = folder / "made <script>.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def page(program: Run, swept: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a real sweep, a smaller one with changed demonstrations, and an import."""
    folder = tmp_path_factory.mktemp("page")
    results = folder / "results"
    shutil.copytree(swept, results)
    for words in (
        (*PERTURBED, "--results", results),
        ("import", imported(folder), "--results", results),
        ("report", "--results", results, "--out", folder / "report.html"),
    ):
        done = program(*words)
        assert done.returncode == 0, done.stderr
    return folder / "report.html"


Opened = Callable[..., Any]


@pytest.fixture
def opened(driver: Any, page: Path) -> Opened:
    """Open the page at a width and in a colour scheme, about all unless ``at`` says otherwise, and wait for
    the charts of a section, or all of them: they take most of the time.
    """
    return opening(driver, page)


def opening(driver: Any, page: Path) -> Opened:
    def open_page(width: int = 1280, scheme: str = "light", at: str = "#task=*", charts: str | None = None) -> Any:
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        colours = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": colours})
        driver.get_log("browser")
        driver.get_log("performance")
        driver.get("about:blank")  # another fragment of the same page would not load it anew
        driver.get(page.as_uri() + at)
        if charts is not None:
            wait(driver, "document.querySelector('.chart')")
            drawn(driver, charts)
        settled(driver)
        return driver

    return open_page


EVERY = ""
"""All charts."""


@dataclass
class Whole:
    """What the page has when all its charts are drawn, and then with all its tables open."""

    marks: list[int]
    sections: list[str]
    console: list[str]
    asked: set[str]
    named: bool
    nameless: int
    title: str = ""
    elements: Any = None
    shown: dict[str, list[str]] = field(default_factory=dict)
    widths: Any = None


@pytest.fixture(scope="module")
def whole(driver: Any, page: Path) -> Whole:
    """Read at once: to draw all charts takes seconds."""
    opening(driver, page)(charts=EVERY)
    sent = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    found = Whole(
        marks=driver.execute_script(
            "return [...document.querySelectorAll('.chart')].map((c) => "
            "c.querySelectorAll('svg .mark-symbol path, svg .mark-rect path').length)"
        ),
        sections=driver.execute_script("return [...document.querySelectorAll('section')].map((s) => s.id)"),
        console=[entry["message"] for entry in driver.get_log("browser")],
        asked={event["params"]["request"]["url"] for event in sent if event["method"] == "Network.requestWillBeSent"},
        named=driver.execute_script(
            "return [...document.querySelectorAll('.chart svg')].every((s) => "
            "(s.getAttribute('aria-label') || s.closest('[aria-label]')) !== null)"
        ),
        nameless=driver.execute_script(
            "return [...document.querySelectorAll('button, select, input')].filter((e) => "
            "!(e.textContent.trim() || e.getAttribute('aria-label') || e.closest('label'))).length"
        ),
    )
    found.widths = widths(driver)
    found.title = driver.title
    found.elements = driver.execute_script("return [document.scripts.length, document.images.length, document.title]")
    found.shown = {name: texts(driver, name) for name in ("figcaption", "tbody td", "#reader .option")}
    return found


def widths(driver: Any) -> list[int]:
    """With all tables open: the page's width, its window's, and how many charts are wider than their place."""
    driver.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    wait(driver, "document.querySelector('#accuracy tbody tr')")
    found: list[int] = driver.execute_script(
        "return [document.scrollingElement.scrollWidth, innerWidth, "
        "[...document.querySelectorAll('.chart svg')].filter((s) => "
        "s.getBoundingClientRect().right > s.closest('figure').getBoundingClientRect().right).length]"
    )
    return found


def test_every_chart_has_marks_and_the_console_is_silent(whole: Whole):
    counts = whole.marks
    assert len(counts) >= 12
    assert min(counts) > 0, counts
    assert {
        "accuracy",
        "saturation",
        "order",
        "sorting",
        "retrieval",
        "confusions",
        "bias",
        "presence",
        "cost",
        "reader",
    } <= set(whole.sections)
    assert whole.console == []


def test_nothing_is_asked_of_a_network(whole: Whole, page: Path):
    assert {url for url in whole.asked if not url.startswith(("data:", "blob:"))} == {page.as_uri()}


def test_no_text_of_the_data_runs(whole: Whole):
    assert whole.title.endswith("icl-bench")
    assert whole.elements == [3, 0, whole.title]
    for place, shown in whole.shown.items():
        assert any(EVIL in text for text in shown), place


def test_filters_choose_what_the_reader_lists(opened: Opened):
    driver = opened()
    before = len(texts(driver, "#reader .option"))
    set_to(driver, correct="wrong")
    wrong = texts(driver, "#reader .option")
    assert 0 < len(wrong) <= before
    assert all(text.startswith("✗") for text in wrong)
    set_to(driver, task="stdlib")
    assert all("stdlib" in text for text in texts(driver, "#reader .option"))
    (shown,) = texts(driver, "#reader .shown")
    assert "docstring:" in shown
    assert "Wrong" in shown
    driver.find_element("css selector", "#reader [type=search]").send_keys("no such id")
    settled(driver)
    assert texts(driver, "#reader .option") == []
    assert "none matches" in texts(driver, "#reader .found")[0]


def test_the_reader_names_demonstrations_that_were_changed(opened: Opened):
    driver = opened()
    for way in ("labels:permuted", "unperturbed"):
        set_to(driver, perturbation=way)
        listed = texts(driver, "#reader .option")
        assert listed
        assert all(("· labels:permuted ·" in text) == (way != "unperturbed") for text in listed)
        (shown,) = texts(driver, "#reader .shown .pairs")
        assert ("Perturbationlabels:permuted" in shown) == (way != "unperturbed")


def test_a_prompts_end_is_shown_with_its_demonstrations(opened: Opened):
    driver = opened()
    set_to(driver, task="stdlib", k="10")
    (prompt,) = texts(driver, "#reader pre")
    assert prompt.startswith("[8 more demonstrations before]")
    assert prompt.count("docstring:") == 3
    assert len(texts(driver, "#reader .plain li")) == 10


def test_tables_are_opened_and_sorted_with_the_keyboard_alone(opened: Opened):
    driver = opened()
    focus(driver, "e.tagName === 'SUMMARY' && e.textContent.startsWith('Accuracy over k')")
    press(driver, ENTER)
    wait(driver, "document.querySelector('#accuracy tbody tr')")
    focus(driver, "e.closest('th') && e.textContent.startsWith('accuracy')")
    column = "#accuracy tbody td:nth-child({})"
    place = 1 + [t.strip() for t in texts(driver, "#accuracy th")].index("accuracy")
    for direction in ("ascending", "descending"):
        press(driver, ENTER)
        values = [float(text.rstrip("%")) for text in texts(driver, column.format(place))]
        assert values == sorted(values, reverse=direction == "descending")
        assert len(set(values)) > 1
        assert (
            driver.execute_script("return document.activeElement.closest('th').getAttribute('aria-sort')") == direction
        )


def test_a_table_that_is_longer_than_the_page_says_how_many_rows_it_has(driver: Any, page: Path, tmp_path: Path):
    """Rows of the chosen task and model are counted, whether the page holds them or not."""
    before, start, rest = page.read_text(encoding="utf-8").partition('<script type="application/json" id="data">')
    stored, end, after = rest.partition("</script>")
    data = json.loads(stored)
    number, table = next(
        (number, one) for number, one in enumerate(data["tables"]) if one["caption"].startswith("Accuracy over k")
    )
    column = {one["name"]: place for place, one in enumerate(table["columns"])}
    task, model = (table["rows"][0][column[name]] for name in ("task", "model"))
    table["counts"] = [[task, model, 3000], [task, "another", 500], ["another", model, 70]]
    longer = tmp_path / "longer.html"
    longer.write_text(before + start + json.dumps(data).replace("<", "\\u003c") + end + after, encoding="utf-8")
    opening(driver, longer)()
    box = f"document.querySelector('main .table[data-table=\"{number}\"]')"
    count, told = (
        f"{box}.{part}" for part in ("closest('details').querySelector('.count')", "querySelector('.found')")
    )
    driver.execute_script(f"{box}.closest('details').open = true")
    for chosen, rows in (
        ({"task": "*"}, "3,570"),
        ({"task": task}, "3,500"),
        ({"task": task, "model": model}, "3,000"),
    ):
        driver.execute_script("location.hash = arguments[0]", urlencode(chosen, safe="*"))
        wait(driver, f"{count}.textContent === ' · {rows} rows' && {told} && {told}.textContent")
        shown = driver.execute_script(f"return {box}.querySelector('tbody').rows.length")
        said = driver.execute_script(f"return {told}.textContent")
        assert said == f"{shown:,} of {rows} rows: the first of each task and model."


def test_the_reader_is_read_with_the_keyboard_alone(opened: Opened):
    driver = opened()
    focus(driver, "e.getAttribute('role') === 'listbox'")

    def chosen() -> str:
        active = "document.querySelector('#reader .list').getAttribute('aria-activedescendant')"
        found: str = driver.execute_script(f"return {active}")
        return found

    assert chosen() == "p0"
    press(driver, DOWN, DOWN)
    assert chosen() == "p2"
    press(driver, END)
    last = driver.execute_script("return document.querySelector('#reader .option:last-child').id")
    assert chosen() == last != "p2"
    press(driver, HOME)
    assert chosen() == "p0"
    focus(driver, "e.dataset.step === '1'")
    press(driver, ENTER)
    assert chosen() == "p1"


def test_a_curve_is_switched_off_and_on_in_the_legend(opened: Opened):
    driver = opened(charts="#accuracy")
    count = "document.querySelectorAll('#accuracy .mark-symbol path').length"
    before = driver.execute_script(f"return {count}")
    focus(driver, "e.closest('#accuracy .legend')")
    press(driver, ENTER)
    wait(driver, f"{count} < {before}")
    press(driver, ENTER)
    wait(driver, f"{count} === {before}")


def test_another_point_is_picked(opened: Opened):
    driver = opened(charts="#confusions")
    select = "document.querySelector('#confusions select')"
    bars = "document.querySelector('#confusions .chart').textContent"
    before = driver.execute_script(f"return {bars}")
    driver.execute_script(
        f"{select}.selectedIndex = {select}.options.length - 1; {select}.dispatchEvent(new Event('change'))"
    )
    wait(driver, f"{bars} !== {json.dumps(before)}")


def test_a_slider_says_how_many_queries_and_moves_the_frontier(opened: Opened):
    driver = opened(charts="#frontier")
    slider = "document.querySelector('#frontier input[data-slide]')"
    marks = (
        "[...document.querySelectorAll('#frontier .chart')][0]"
        ".querySelector('.mark-symbol path').getAttribute('transform')"
    )
    assert texts(driver, "#frontier output")[0] == "1,000 queries"
    before = driver.execute_script(f"return {marks}")
    driver.execute_script(f"{slider}.focus()")
    press(driver, HOME)
    assert texts(driver, "#frontier output")[0] == "10 queries"
    wait(driver, f"{marks} !== {json.dumps(before)}")
    assert driver.execute_script(f"return {slider}.getAttribute('aria-valuetext')") == "10 queries"


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_is_no_wider_than_its_window(opened: Opened, whole: Whole, width: int):
    of_page, of_window, beyond = whole.widths if width == 1280 else widths(opened(width, charts=EVERY))
    assert of_window == width
    assert of_page <= width
    assert beyond == 0


def test_charts_follow_the_colour_scheme(opened: Opened):
    def colours(driver: Any) -> tuple[str, str]:
        label = "document.querySelector('#accuracy .role-axis-label text')"
        found: list[str] = driver.execute_script(
            f"return [{label}.getAttribute('fill'), getComputedStyle(document.body).backgroundColor]"
        )
        return found[0], found[1]

    light = colours(opened(scheme="light", charts="#accuracy"))
    driver = opened(scheme="dark", charts="#accuracy")
    dark = colours(driver)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    plain = [{"name": "prefers-color-scheme", "value": "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": plain})
    label = "document.querySelector('#accuracy .role-axis-label text')"
    wait(driver, f"{label} && {label}.getAttribute('fill') === {json.dumps(light[0])}")


def test_charts_and_controls_have_names(whole: Whole):
    assert whole.named
    assert whole.nameless == 0


def test_only_charts_in_view_are_drawn(opened: Opened):
    driver = opened()
    time.sleep(1)
    shown, there = driver.execute_script(
        "return [document.querySelectorAll('.chart[data-drawn]').length, document.querySelectorAll('.chart').length]"
    )
    assert shown < there / 2


def test_a_cell_of_the_matrix_filters_the_page_and_stands_in_its_address(opened: Opened):
    driver = opened()
    every = visible(driver, "figcaption")
    focus(driver, "e.closest('.matrix') && e.dataset.task === 'stdlib' && e.dataset.model")
    press(driver, ENTER)
    # what is shown follows the address when the browser has told of it
    told = "document.querySelector('#shown b').textContent.includes('stdlib')"
    wait(driver, f"location.hash.includes('task=stdlib') && {told}")
    settled(driver)
    chosen = visible(driver, "figcaption")
    assert 0 < len(chosen) < len(every)
    assert all("stdlib" in text for text in chosen)
    assert all("stdlib" in text for text in visible(driver, "#findings h3"))
    assert all("stdlib" in text for text in texts(driver, "#reader .option"))
    driver.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    wait(driver, "document.querySelector('#accuracy tbody tr')")
    assert {row[:6] for row in texts(driver, "#accuracy tbody tr")} == {"stdlib"}
    address = driver.current_url
    driver.execute_script("history.back()")
    wait(driver, f"!location.hash.includes('task=stdlib') && !{told}")
    assert visible(driver, "figcaption") == every
    opened(at="#" + address.partition("#")[2])
    assert visible(driver, "figcaption") == chosen


def test_one_curve_stands_out_and_bands_are_switched(opened: Opened):
    driver = opened(charts="#accuracy")
    strong = (
        "[...document.querySelectorAll('#accuracy .mark-symbol path')]"
        ".filter((p) => Number(p.getAttribute('opacity')) > 0.9).length"
    )
    bands = "document.querySelectorAll('#accuracy .mark-area path').length"
    before = driver.execute_script(f"return {strong}")
    focus(driver, "e.dataset.only && e.closest('#accuracy')")
    press(driver, ENTER)
    wait(driver, f"{strong} < {before}")
    press(driver, ENTER)
    wait(driver, f"{strong} === {before}")
    assert driver.execute_script(f"return {bands}") > 0, "three curves or fewer are shown"
    focus(driver, "e.className === 'bands' && e.closest('#accuracy')")
    press(driver, ENTER)
    wait(driver, f"{bands} === 0")


def test_a_point_of_a_curve_leads_to_its_predictions(opened: Opened):
    driver = opened(at="#task=stdlib", charts="#accuracy")
    point = click(driver, "#accuracy .mark-symbol path")
    label = point.get_attribute("aria-label")
    wait(driver, "location.hash.includes('series=')")
    settled(driver)
    k = label.split("(log scale")[1].split(";")[0].rpartition(":")[2].strip()
    found = texts(driver, "#reader .found")[0]
    assert found.startswith(("24 of", "48 of")), found
    assert all(f"k = {k}" in text for text in texts(driver, "#reader .option"))


def test_a_confusion_leads_to_its_predictions(opened: Opened):
    driver = opened(at="#task=stdlib", charts="#confusions")
    click(driver, "#confusions .mark-rect path")
    wait(driver, "location.hash.includes('prediction=')")
    settled(driver)
    chosen = driver.execute_script(
        "return Object.fromEntries(['gold', 'prediction', 'correct', 'k'].map((name) =>"
        " [name, document.querySelector(`#reader [name=${name}]`).value]))"
    )
    assert chosen["gold"] != chosen["prediction"]
    assert chosen["correct"] == "wrong"
    listed = texts(driver, "#reader .option .name")
    assert listed
    assert set(listed) == {chosen["prediction"]}
    assert f"Right answer{chosen['gold']}" in texts(driver, "#reader .shown .pairs")[0]


def test_an_address_names_a_prediction(opened: Opened):
    driver = opened()
    set_to(driver, task="stdlib")
    own = driver.execute_script("return document.querySelector('#reader .own').getAttribute('href')")
    (said,) = texts(driver, "#reader .shown .pairs")
    opened(at=own)
    assert texts(driver, "#reader .shown .pairs") == [said]
