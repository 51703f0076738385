"""``report --all`` in a real browser, opened from a disk: the list, and each of its answers against the server's."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.browser import SOURCE, click, set_to, settled, texts, visible, wait
from support.fakes import FREE_TEXT, FakeBackend, plan, runner

from icl_bench.report import write_report
from icl_bench.report.published import details, lists
from icl_bench.report.viewer.folder import Folder
from icl_bench.report.viewer.predictions import SORTED_BY, flip_p
from icl_bench.results.importing import import_predictions

pytestmark = pytest.mark.slow

EVIL = """</script><script>document.title = "attacked"</script><img src=x onerror="alert(1)"> & <!--"""
ASK = f"""
const [name, given, done] = arguments;
(async () => {{
  window.asked ??= new Function({json.dumps(SOURCE)} + "; return {{ ...published(data.reader), flipP }};")();
  const answers = [];
  for (const one of given) {{
    const {{ first = 0, count = 200, ...filters }} = name === "page" ? one : {{}};
    if (name === "page") answers.push(await window.asked.page(filters, first, count));
    else if (name === "detail") answers.push(await window.asked.one(...one).then((row) => row && window.asked.detail(row)));
    else answers.push(window.asked.flipP(one));
  }}
  return answers;
}})().then(done, (error) => done(String(error.stack)));
"""
"""Ask the program of the page, as its reader does."""

FREE_POINT = """
document.querySelector('#accuracy figure:not([hidden]) .chart').scrollIntoView({ block: 'center', behavior: 'instant' });
[...document.querySelectorAll('#accuracy figure:not([hidden]) .mark-symbol path')].find((path) => {
  const { x, y, width, height } = path.getBoundingClientRect();
  return document.elementFromPoint(x + width / 2, y + height / 2) === path;
}).id = 'free';
"""
"""Name a point that no other one covers."""


def imports(folder: Path) -> Path:
    """Predictions of two tasks, with answers that are missing, empty or attacks."""
    rows = [
        {
            "task": task,
            "model": model,
            "select": select,
            "order": "drawn" if select == "random" else "relevance",
            "k": k,
            "draw": draw,
            "test_id": f"row {test}",
            "question": f"{word} {(test * 17) % 12:02}: what is wrong with my {task}?",
            "gold": f"label {test % 3}",
            "prediction": [f"label {(test * 7 + draw + k + len(model + select)) % 3}", "", None, EVIL][said],
        }
        for task, word in (("cards", "Ticket"), ("travel", "ärger"))
        for model in ("one", "two")
        for select, draws in (("random", 3), ("bm25", 1))
        for k in (0, 1, 5)
        for draw in range(draws if k else 1)
        for test in range(12)
        for said in [max(0, (test * 5 + draw + k) % 11 - 7)]
        if k or select == "random"
    ]
    pd.DataFrame(rows).to_csv(folder / "made.csv", index=False)
    return folder / "made.csv"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    for made in (
        plan(folder / "cards", "1,2,6", selects=("random", "bm25"), name="queries"),
        plan(folder / "free", "1,2", name="texts", **FREE_TEXT, answer={"extract": "(\\w+)", "of": "answers"}),
    ):
        runner(made, folder / "results", FakeBackend()).run()
    import_predictions(imports(folder), folder / "results")
    return folder / "results"


@pytest.fixture(scope="module")
def site(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written with small files, so that a list needs many of them."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists, "ROWS", 17)
        patch.setattr(details, "ROWS", 7)
        write_report(results, folder, with_all=True)
    assert len(list((folder / "predictions").glob("rows-*"))) > 20
    return folder


@pytest.fixture(scope="module")
def folder(results: Path) -> Folder:
    found = Folder(results, {})
    found.read()
    return found


Opened = Callable[..., Any]


@pytest.fixture
def opened(driver: Any, site: Path) -> Opened:
    def open_page(at: str = "#task=*", page: Path = site) -> Any:
        driver.get("about:blank")
        driver.get_log("browser")
        driver.get((page / "index.html").as_uri() + at)
        settled(driver)
        return driver

    return open_page


def ask(driver: Any, name: str, given: list[Any]) -> Any:
    answers = driver.execute_async_script(ASK, name, given)
    assert isinstance(answers, list), answers
    return answers


def plain(found: Any) -> Any:
    """An answer without what the page alone needs."""
    if isinstance(found, dict):
        return {name: plain(value) for name, value in found.items() if name != "place"}
    return [plain(value) for value in found] if isinstance(found, list) else found


def questions(options: dict[str, list[str]]) -> list[dict[str, str]]:
    """What may be asked: each filter, searches, orders and pairs alone, then any of them together."""
    rng = random.Random(0)
    words = {"word": ["TICKET 0", "ärger", "Ärger", "label 2", "row 1", "img src", "  card ", "nowhere"]}
    sorts = {"sort": [sign + name for name in SORTED_BY for sign in ("", "-")] + ["unknown"]}
    other = {f"other_{name}": options[name] for name in ("model", "series", "k", "perturbation")}
    ways = {**options, **words, **sorts, **other, "flips": ["lost", "won", "changed"], "first": ["3"], "count": ["5"]}
    alone = [{name: value} for name, values in ways.items() for value in [*values, "neither"]]
    mixed = []
    for _ in range(250):
        names = rng.sample(sorted(ways), rng.randint(1, 6))
        mixed.append({name: rng.choice(ways[name]) for name in names})
    return [{}, *[one for one in alone if not {"first", "count"} & one.keys()], *mixed]


def test_the_page_answers_what_the_server_answers(opened: Opened, folder: Folder):
    driver, predictions = opened(), folder.wait().predictions
    asked = questions(predictions.options())
    given = [
        {name: int(value) if name in ("first", "count") else value for name, value in one.items()} for one in asked
    ]
    for one, found in zip(asked, ask(driver, "page", given), strict=True):
        expected = json.loads(json.dumps(predictions.matching(one)))
        if expected.get("pairs", {}).get("p") is not None:
            assert found["pairs"].pop("p") == pytest.approx(expected["pairs"].pop("p")), one
        assert plain(found) == expected, one


def test_a_prediction_is_shown_as_the_server_shows_it(opened: Opened, folder: Folder):
    driver, now = opened(), folder.wait()
    rows = now.predictions.rows(range(0, len(now.predictions), 5))
    assert {row["task"] for row in rows} == {"cards", "travel", "queries", "texts"}
    found = ask(driver, "detail", [[row["cell"], row["test_id"]] for row in rows])
    for row, one in zip(rows, found, strict=True):
        expected = folder.prediction(row["cell"], row["test_id"])
        assert expected is not None
        listed = {name: one.pop(name) for name in ("place", "question")}
        assert listed["question"] == row["question"]
        assert one == {name: value for name, value in expected.items() if name not in ("select", "order")}
    assert {one["count"] for one in found} >= {None, 1, 2, 6}
    assert any(one["text"] for one in found)
    assert ask(driver, "detail", [["none", "x"], [rows[0]["cell"], "none"]]) == [None, None]


def test_flips_are_tested_as_python_tests_them(opened: Opened):
    rng = np.random.default_rng(0)
    sums = [[0, 0], [3], [-1, 1], [2, 2, -4], rng.integers(-3, 4, 200).tolist(), rng.integers(-1, 2, 4000).tolist()]
    sums += [rng.choice([-1, 0, 1], size, p=[0.3, 0.3, 0.4]).tolist() for size in (10, 1000, 9000)]
    found = ask(opened(), "flips", sums)
    assert found == [pytest.approx(flip_p(np.array(one)), rel=1e-6) for one in sums]


def test_the_list_is_there_from_a_disk_and_no_text_of_it_runs(opened: Opened, folder: Folder):
    driver = opened()
    total = len(folder.wait().predictions)
    assert texts(driver, "#reader .found")[0] == f"{total} of all {total} predictions."
    assert len(texts(driver, "#reader .option")) == 200
    set_to(driver, prediction=EVIL)
    assert all(EVIL in text for text in texts(driver, "#reader .option"))
    assert driver.title.endswith("icl-bench")
    set_to(driver, prediction="", word="TICKET 05")
    assert texts(driver, "#reader .found")[0].startswith("18 of all ")
    assert all("Ticket 05" in text for text in texts(driver, "#reader .option"))
    assert texts(driver, "#reader .shown .verdict")
    assert [entry["message"] for entry in driver.get_log("browser")] == []


def test_an_address_opens_the_same_place(opened: Opened, folder: Folder):
    driver = opened()
    set_to(driver, task="cards", model="two", k="1", other_k="5", flips="won")
    driver.execute_script("document.querySelector('#reader [data-sort=question]').click()")
    settled(driver)
    driver.execute_script("document.querySelectorAll('#reader .option')[2].click()")
    wait(driver, "location.hash.includes('row=')")
    settled(driver)

    def shown() -> list[list[str]]:
        return [
            texts(driver, f"#reader {part}") for part in (".found", ".option", ".shown .verdict", ".shown .pairs dd")
        ]

    before = shown()
    assert "right only there" in before[0][0]
    assert before[1]
    assert len(before[2]) == 2
    opened("#" + str(driver.current_url).partition("#")[2])
    assert shown() == before
    row = folder.wait().predictions.rows([400])[0]
    opened(f"#row={row['cell']}:{row['test_id']}")
    assert row["test_id"] in texts(driver, "#reader .shown .pairs")[0]
    opened("#row=none:x")
    assert "The prediction none:x is not in the results." in texts(driver, "#reader .shown")[0]


def test_a_click_on_a_point_lists_its_predictions(opened: Opened):
    driver = opened("#task=cards&model=one&at=accuracy")
    wait(driver, "document.querySelector('#accuracy figure:not([hidden]) .chart[data-drawn]')")
    driver.execute_script(FREE_POINT)
    click(driver, "#free")
    wait(driver, "location.hash.includes('series=')")
    settled(driver)
    assert texts(driver, "#reader .option")
    assert all("cards · one" in text for text in texts(driver, "#reader .option"))


def test_a_point_that_its_chart_calls_otherwise_lists_its_predictions_alone(opened: Opened, folder: Folder):
    """With several models in the folder, series of the cost charts begin with the model."""
    driver = opened("#task=queries&at=cost")
    wait(driver, "document.querySelector('#cost figure:not([hidden]) .chart[data-drawn]')")
    driver.execute_script(FREE_POINT.replace("accuracy", "cost"))
    mark = click(driver, "#free")
    series = next(name for name in ("bm25", "random") if f"small, {name}" in mark.get_attribute("aria-label"))
    wait(driver, "location.hash.includes('k=')")
    settled(driver)
    k = driver.execute_script("return document.querySelector('#reader [name=k]').value")
    asked = {"task": "queries", "series": series, "k": k}
    total = len(folder.wait().predictions.find(asked))
    assert texts(driver, "#reader .found")[0].startswith(f"{total} of all ")
    assert all(f"small · {series} · k = {k}" in text for text in texts(driver, "#reader .option small"))


def test_a_pair_among_very_many_labels_lists_its_predictions_alone(driver: Any, tmp_path: Path):
    rows = [
        {
            "task": "many",
            "model": "one",
            "k": k,
            "test_id": str(test),
            "gold": f"label {test}",
            "prediction": f"label {(test + 1) % 401}",
        }
        for test in range(401)
        for k in (1, 2)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "made.csv", index=False)
    import_predictions(tmp_path / "made.csv", tmp_path / "results")
    write_report(tmp_path / "results", tmp_path / "report.html")
    driver.get("about:blank")
    driver.get((tmp_path / "report.html").as_uri() + "#at=confusions")
    settled(driver)
    wait(driver, "document.querySelector('#confusions .chart[data-drawn]')")
    click(driver, "#confusions .mark-rect path")
    wait(driver, "location.hash.includes('prediction=')")
    settled(driver)
    assert texts(driver, "#reader .found")[0] == "1 of all 802 predictions."
    (said,) = texts(driver, "#reader .option .name")
    place = driver.current_url.partition("#")[2]
    driver.get("about:blank")
    driver.get((tmp_path / "report.html").as_uri() + "#" + place)
    settled(driver)
    assert texts(driver, "#reader .option .name") == [said]
    assert said in visible(driver, "#reader .filters")[0]


MISSING = "is not there: the folder is incomplete, or it was written again"


@pytest.mark.parametrize(
    ("kind", "harm", "says"),
    [
        *((kind, Path.unlink, MISSING) for kind in ("index", "rows", "examples", "details")),
        ("rows", lambda path: path.write_text(path.read_text()[:-40]), "is damaged"),
        ("rows", lambda path: path.write_text(path.read_text().replace('","', '","AAAA')), "is damaged"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_named(
    opened: Opened, site: Path, tmp_path: Path, kind: str, harm: Callable[[Path], object], says: str
):
    shutil.copytree(site, tmp_path / "site")
    (path,) = (tmp_path / "site" / "predictions").glob(f"{kind}-0-*.js")
    harm(path)
    driver = opened("#task=*", tmp_path / "site")
    wait(driver, f"document.querySelector('#reader').textContent.includes('predictions/{path.name}')")
    assert says in texts(driver, "#reader")[0]
