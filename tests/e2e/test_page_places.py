"""The page in a real browser: its answer, its address, printing, the list of predictions, and who cannot see it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.browser import DOWN, ENTER, drawn, focus, press, set_to, settled, texts, visible, wait
from support.needs import missing

from icl_bench.report import write_report

pytestmark = pytest.mark.slow

AXE = "axe-core@4.10.3"


@pytest.fixture(scope="module")
def page(imports: Path) -> Path:
    return imports / "report.html"


Opened = Callable[..., Any]


@pytest.fixture
def opened(driver: Any, page: Path) -> Opened:
    def open_page(at: str = "#task=*", width: int = 1440, scheme: str = "light") -> Any:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        colours = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": colours})
        driver.get_log("browser")
        driver.get("about:blank")
        driver.get(page.as_uri() + at)
        settled(driver)
        return driver

    return open_page


def hash_of(driver: Any) -> str:
    return "#" + str(driver.current_url).partition("#")[2]


def test_what_to_use_comes_first_and_follows_the_filter(opened: Opened):
    driver = opened()
    assert driver.execute_script("return document.querySelector('main section').id") == "answer"
    cards = visible(driver, "#answer article")
    assert [card.split("\n")[0] for card in cards] == ["cards · one", "cards · two", "travel · one", "travel · two"]
    for card in cards:
        assert "Cost of a query" in card
        assert "computed tokens" in card
        assert "icl-bench summary --task" in card
    opened("#task=cards&model=two")
    (card,) = visible(driver, "#answer article")
    assert card.startswith("cards · two")


def test_a_key_finding_is_a_clause_and_its_details_are_folded(opened: Opened):
    driver = opened()
    clauses = visible(driver, "#findings li summary")
    assert clauses
    assert all("95% interval" not in clause and "test rows" not in clause for clause in clauses)
    assert visible(driver, "#findings li details:not([open]) > :not(summary)") == []
    focus(driver, "e.tagName === 'SUMMARY' && e.closest('#findings li')")
    press(driver, ENTER)
    assert driver.execute_script("return document.activeElement.parentElement.innerText").count("test rows") == 1


def test_everything_that_is_shown_is_in_the_address(opened: Opened):
    """A place is made by hand, and opened afresh from its address alone."""
    driver = opened("#task=cards&model=one")
    picks = "document.querySelector('#confusions figure:not([hidden]) select')"
    driver.execute_script(
        f"const s = {picks}; s.selectedIndex = s.options.length - 1; s.dispatchEvent(new Event('change'))"
    )
    slider = "document.querySelector('#frontier figure:not([hidden]) input[data-slide]')"
    driver.execute_script(f"const s = {slider}; s.value = 5; s.dispatchEvent(new Event('input'))")
    chips = "document.querySelectorAll('#accuracy [data-series]')"
    driver.execute_script(f"[...{chips}].find((chip) => chip.dataset.series === 'random').click()")
    set_to(driver, k="5", correct="wrong")
    word = driver.find_element("css selector", "#reader [type=search]")
    word.send_keys("Ticket")
    wait(driver, "location.hash.includes('word=Ticket')")
    settled(driver)
    driver.execute_script("document.querySelector('#reader [data-sort=question]').click()")
    settled(driver)
    driver.execute_script("document.querySelector('#reader .list').focus()")
    press(driver, DOWN, DOWN, DOWN)
    wait(driver, "location.hash.includes('row=')")

    def shown() -> Any:
        return driver.execute_script(
            f"return [{picks}.value, {slider}.value,"
            f"[...{chips}].map((chip) => chip.getAttribute('aria-pressed')),"
            "[...document.querySelectorAll('#reader .filters :is(select, input)')].map((e) => [e.name, e.value]),"
            "[...document.querySelectorAll('nav .view select')].map((e) => e.value),"
            "document.querySelector('#reader .found').textContent,"
            "document.querySelector('#reader .option[aria-selected=true]').textContent,"
            "document.querySelector('#reader .shown .pairs').textContent]"
        )

    place, before = hash_of(driver), shown()
    opened(place)
    wait(driver, "document.querySelector('#reader .option[aria-selected=true]')")
    assert shown() == before
    wait(driver, "Math.abs(document.querySelector('#reader').getBoundingClientRect().top) < innerHeight")
    assert hash_of(driver) == place


def test_page_and_reader_have_one_filter(opened: Opened):
    driver = opened()
    set_to(driver, task="travel", model="two")
    chosen = driver.execute_script("return [...document.querySelectorAll('nav .view select')].map((e) => e.value)")
    assert chosen == ["travel", "two"]
    assert [text.split("\n")[0] for text in visible(driver, "#answer article")] == ["travel · two"]
    driver.execute_script(
        "const s = document.querySelector('nav .view [name=task]'); s.value = 'cards'; s.dispatchEvent(new Event('change'))"
    )
    settled(driver)
    assert driver.execute_script("return document.querySelector('#reader [name=task]').value") == "cards"
    assert all("cards · two" in text for text in texts(driver, "#reader .option small"))


def test_a_model_filter_leaves_no_chart_without_the_model(opened: Opened):
    driver = opened("#task=cards&model=two")
    drawn(driver)
    rows = driver.execute_script(
        "const { charts } = JSON.parse(document.getElementById('data').textContent);"
        "return [...document.querySelectorAll('figure:not([hidden]) .chart')].map((box) => {"
        "  const chart = charts[box.dataset.chart];"
        "  const of = chart.spec.datasets.rows.filter((r) => r.model === 'two' || r.base_model === 'two').length;"
        "  return [chart.name, chart.model, of, Number(box.dataset.rows), chart.spec.datasets.rows.length]; })"
    )
    assert rows
    several = [row for row in rows if row[1] != "two"]
    assert several, "the cost of both models is in one chart"
    for name, _, of_model, shown, every in several:
        assert 0 < of_model == shown, name
        assert shown < every or "models" in name, name
    chips = visible(driver, "#cost .chip [data-series]")
    assert chips
    assert all(chip.startswith("two, ") for chip in chips)


def test_a_filter_leaves_no_legend_without_a_chart(opened: Opened):
    driver = opened()
    script = "document.querySelector('#accuracy .legend').offsetParent !== null"
    assert driver.execute_script(f"return {script}")
    driver.execute_script(
        "for (const f of document.querySelectorAll('#accuracy figure')) f.dataset.task = 'other';"
        "document.querySelector('nav .view [name=task]').value = 'travel';"
        "document.querySelector('nav .view [name=task]').dispatchEvent(new Event('change'))"
    )
    assert not driver.execute_script(f"return {script}")


def test_failed_cells_of_another_task_leave_no_heading(driver: Any, tmp_path: Path):
    results = Path(__file__).parent.parent / "golden" / "results" / "results"
    write_report(results, tmp_path / "report.html")
    for task, hidden in (("trec", False), ("sst2", True)):
        driver.get("about:blank")
        driver.get((tmp_path / "report.html").as_uri() + f"#task={task}")
        settled(driver)
        assert driver.execute_script("return document.querySelector('#failed').hidden") is hidden


def test_the_prompt_of_an_import_is_not_called_checked(opened: Opened):
    driver = opened("#task=cards&model=one")
    wait(driver, "document.querySelector('#reader .shown code')")
    (shown,) = texts(driver, "#reader .shown")
    assert "icl-bench show" in shown
    assert re.search(r"--test-id '?[^']+'? --results /\S+/results", shown), shown
    assert "checked against" not in shown


def test_a_narrow_page_has_findings_in_line_and_names_within_it(opened: Opened):
    driver = opened("#task=cards&model=one", width=390)
    assert visible(driver, "#findings li.whole")
    left = "[...document.querySelectorAll('#findings article:not([hidden]) .topic')].map((e) => e.getBoundingClientRect().left)"
    assert len(set(driver.execute_script(f"return {left}"))) == 1
    driver.execute_script("document.querySelector('.matrix td').dataset.name = 'model'.repeat(60)")
    assert driver.execute_script("return document.scrollingElement.scrollWidth <= innerWidth")


def test_charts_of_several_models_follow_from_one_model_to_another(opened: Opened):
    driver = opened("#task=cards&model=one")
    drawn(driver)
    figures = "[...document.querySelectorAll('#cost figure:not([hidden])')]"
    names = f"{figures}.flatMap((f) => [...f.querySelectorAll('[aria-label*=random]')].map((e) => e.getAttribute('aria-label')))"

    def of(model: str) -> str:
        return f"{names}.some((label) => label.includes('{model}, random'))"

    assert driver.execute_script(f"return [{of('one')}, {of('two')}]") == [True, False]
    for model, other in (("two", "one"), ("one", "two")):
        driver.execute_script(
            "const s = document.querySelector('nav .view [name=model]'); s.value = arguments[0];"
            "s.dispatchEvent(new Event('change'))",
            model,
        )
        wait(driver, f"{of(model)} && !{of(other)}", seconds=20)


def test_the_list_has_question_right_and_given_answer_and_is_sorted_by_them(opened: Opened):
    driver = opened("#task=cards&model=one&k=5&series=bm25")
    first = visible(driver, "#reader .option")[0]
    assert "Ticket" in first
    assert "label" in first
    for column, selector in (("question", ".question"), ("gold", ".gold"), ("prediction", ".given .name")):
        for direction in ("ascending", "descending"):
            driver.execute_script(f"document.querySelector('#reader [data-sort={column}]').click()")
            settled(driver)
            shown = texts(driver, f"#reader .option {selector}")
            assert len(set(shown)) > 1
            assert shown == sorted(shown, reverse=direction == "descending")
            label = driver.execute_script(
                f"return document.querySelector('#reader [data-sort={column}]').getAttribute('aria-label')"
            )
            assert label.endswith(direction)


def test_print_draws_every_chart_and_opens_every_table(opened: Opened):
    driver = opened(scheme="dark")
    wait(driver, "Boolean(window.vegaEmbed)")
    driver.execute_script(
        "window.seen = null; matchMedia('print').addEventListener('change', () => {});"
        "addEventListener('afterprint', () => { window.seen = ["
        "[...document.querySelectorAll('#report figure:not([hidden]) .chart')].map((c) => c.querySelectorAll('svg .mark-group').length),"
        "[...document.querySelectorAll('#report details:not([hidden]) .table')].map((t) => t.querySelectorAll('tbody tr').length),"
        "document.querySelector('#accuracy .role-axis-label text').getAttribute('fill')]; }, true)"
    )
    made = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(made["data"]).startswith(b"%PDF")
    wait(driver, "window.seen")
    charts, rows, ink = driver.execute_script("return window.seen")
    assert len(charts) >= 8
    assert min(charts) > 0
    assert min(rows) > 0
    assert ink == "#59636e", "dark ink on white paper"
    assert driver.execute_script("return document.querySelectorAll('#report details[open]').length") == 0


def axe(folder: Path) -> str:
    """The program of axe-core, from the npm registry."""
    npm = shutil.which("npm")
    if npm is None:
        missing("npm (apt-get install npm), which brings axe-core")
    done = subprocess.run([npm, "pack", AXE, "--silent"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    with tarfile.open(folder / done.stdout.split()[-1]) as packed:
        member = packed.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


@pytest.fixture(scope="module")
def axe_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe(tmp_path_factory.mktemp("axe"))


FEWER = """
const kind = (e) => [e.tagName, e.getAttribute("class"), e.getAttribute("fill"), e.hidden, e.textContent.trim() === "",
  ...[...e.attributes].map(({ name, value }) => name + (value === "")), ...[...e.children].map(kind)].join();
for (const parent of document.querySelectorAll("tbody, [role=listbox], ul, ol, svg g")) {
  const seen = {};
  for (const child of [...parent.children]) {
    const of = kind(child);
    seen[of] = (seen[of] ?? 0) + 1;
    if (seen[of] > 3) child.remove();
  }
}
"""
"""Leaves three of a kind where rows, options or marks differ in their texts and numbers alone, which axe reads slowly."""


@pytest.mark.parametrize(
    ("width", "scheme", "at"), [(1440, "dark", "task=*"), (390, "light", "task=cards&model=one&cost=money&queries=50")]
)
def test_axe_finds_no_violation(opened: Opened, axe_program: str, width: int, scheme: str, at: str):
    driver = opened(f"#{at}", width=width, scheme=scheme)
    driver.execute_script("document.querySelectorAll('#report details').forEach((d) => { d.open = true; })")
    wait(driver, "document.querySelector('#accuracy tbody tr')")
    drawn(driver)
    driver.execute_script(FEWER)
    driver.execute_script(axe_program)
    found = driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, { resultTypes: ['violations'] }).then((r) => done(r.violations.map((v) => "
        "[v.id, v.help, v.nodes.length, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + ' ' + n.failureSummary)])))"
    )
    assert found == [], json.dumps(found, indent=1)
    assert [entry["message"] for entry in driver.get_log("browser")] == []
