"""Figures for papers: as wide as asked for, in the font and with the names that are asked for, in each format."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.fakes import FakeBackend, plan, runner
from support.in_process import run_command, said
from support.predictions import cell, imported

import icl_bench
from icl_bench.analysis.all_findings import find
from icl_bench.errors import UserError
from icl_bench.registry import FINDINGS
from icl_bench.report.build import Report, make_report
from icl_bench.report.figure_style import FORMATS, FigureStyle, parse_formats, read_names, renamed
from icl_bench.report.figures import size_of, write_figures
from icl_bench.report.naming import Naming
from icl_bench.report.page import page
from icl_bench.report.pgf import _segments, pgf
from icl_bench.report.sections.perturbations import perturbations
from icl_bench.results.reading import read_some


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    for name in ("cards", "letters"):
        made = plan(folder / name, "1,2,4", draws=2, selects=["random", "bm25"], name=name)
        runner(made, folder / "results", FakeBackend()).run()
    return folder / "results"


@pytest.fixture(scope="module")
def report(results: Path) -> Report:
    """Charts of each kind: series, differences, strips with a gradient, points with names."""
    made = make_report(results)
    kept = [
        section for section in made.sections if section.name in ("accuracy", "retrieval", "saturation", "confusions")
    ]
    return replace(made, sections=kept)


@pytest.fixture(scope="module")
def of_cards(report: Report) -> Report:
    """The charts of one of the tasks, which has those of each kind."""
    kept = [
        replace(section, panels=[panel for panel in section.panels if "cards" in panel.name])
        for section in report.sections
    ]
    assert all(section.panels for section in kept)
    return replace(report, sections=kept)


def texts(svg: str) -> set[str]:
    return {"".join(node.itertext()) for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}


def test_a_figure_is_as_wide_as_asked_for_and_has_type_that_can_be_read(of_cards: Report, tmp_path: Path):
    style = FigureStyle(width=3.3, formats=("svg", "png", "pdf"))
    for path in write_figures(of_cards, tmp_path, style):
        if path.suffix == ".svg":
            svg = path.read_text()
            assert re.search(r'width="3\.3\d*in"', svg), path.name
            sizes = {float(size) for size in re.findall(r'font-size="([\d.]+)px"', svg)}
            assert sizes <= {8, 9}
        elif path.suffix == ".png":
            with Image.open(path) as image:
                assert abs(image.width - 3.3 * 300) <= 3, path.name
                assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
        else:
            found = re.search(rb"MediaBox \[0 0 ([\d.]+) ", path.read_bytes())
            assert found is not None
            assert abs(float(found[1]) - 3.3 * 72) < 1


def test_raster_files_have_300_dots_an_inch_or_what_is_asked(report: Report, tmp_path: Path):
    few = replace(report, sections=report.sections[:1])
    for dpi in (300, 600):
        (one, *_) = write_figures(few, tmp_path / str(dpi), FigureStyle(formats=("png",), dpi=dpi))
        content = one.read_bytes()
        at = content.index(b"pHYs") + 4
        assert round(struct.unpack(">I", content[at : at + 4])[0] * 0.0254) == dpi


def test_names_are_replaced_everywhere_and_titles_left_out(of_cards: Report, tmp_path: Path):
    names = {"small": "My Model", "bm25": "BM25", "random": "Random draws", "cards": "Cards"}
    plain = write_figures(of_cards, tmp_path / "a", FigureStyle(formats=("svg",)))
    other = write_figures(of_cards, tmp_path / "b", FigureStyle(formats=("svg",), names=names))
    bare = write_figures(of_cards, tmp_path / "c", FigureStyle(formats=("svg",), names=names, title=False))
    assert [path.name for path in plain] == [path.name for path in other] == [path.name for path in bare]
    for before, after, untitled in zip(plain, other, bare, strict=True):
        shown = texts(before.read_text())
        assert texts(after.read_text()) == {renamed(text, names) for text in shown}
        assert not re.search(r"\b(?:bm25|random)\b", " ".join(texts(after.read_text())).replace("Random draws", ""))
        assert "role-title-text" not in untitled.read_text()
        assert texts(untitled.read_text()) < texts(after.read_text())
        # what made the figure keeps its names
        assert json.loads(re.findall(r"<metadata>(.*?)</metadata>", after.read_text())[0].replace("&amp;", "&"))
    title = next(path for path in other if path.name == "accuracy-cards-small.svg")
    assert "Accuracy over k: Cards · My Model" in texts(title.read_text())


def test_panels_share_one_figure_with_one_legend(report: Report, tmp_path: Path):
    apart = write_figures(report, tmp_path / "a", FigureStyle(width=6.5, formats=("svg",)))
    together = write_figures(report, tmp_path / "b", FigureStyle(width=6.5, formats=("svg",), panels=2))
    assert len(together) < len(apart)
    one = next(path for path in together if path.name == "accuracy-panels.svg").read_text()
    assert one.count('class="mark-group role-legend"') == 1
    assert {"cards · small", "letters · small", "random", "bm25"} <= texts(one)
    both = [path.read_text() for path in apart if path.name.startswith("accuracy-")]
    marks = [svg.count('aria-roledescription="point"') for svg in both]
    assert len(marks) == 2
    assert one.count('aria-roledescription="point"') == sum(marks) > 0
    assert re.search(r'width="6\.(?:4[5-9]|5[0-5]?)\d*in"', one)


ALIKE = ("日本", "中国", "a b", "a-b", "x" * 40 + "1", "x" * 40 + "2")
"""Tasks whose names give one file name."""


@pytest.fixture(scope="module")
def of_alike(tmp_path_factory: pytest.TempPathFactory) -> Report:
    cells = [cell(said, task=task, k=k) for task in ALIKE for k, said in ((1, "abab"), (2, "aaba"))]
    return make_report(imported(tmp_path_factory.mktemp("alike"), *cells))


@pytest.mark.parametrize("panels", [None, 2])
def test_tasks_whose_names_give_one_file_name_have_figures_of_their_own(
    of_alike: Report, tmp_path: Path, panels: int | None
):
    report, names = of_alike, ALIKE
    kept = [section for section in report.sections if section.name in ("accuracy", "confusions")]
    written = write_figures(
        replace(report, sections=kept), tmp_path / "figures", FigureStyle(formats=("svg",), panels=panels)
    )
    titles = [text for path in written for text in texts(path.read_text()) if text.startswith("Confusion: ")]
    assert len(titles) == 2 * len(names), "mistakes and matrix"
    assert {title.split(": ")[1].split(" · ")[0] for title in titles} == set(names)


def test_charts_of_tasks_whose_names_give_one_file_name_have_names_of_their_own_on_the_page(of_alike: Report):
    report, names = of_alike, ALIKE
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page(report))[0])
    of_page = [chart["name"] for chart in data["charts"]]
    assert len(of_page) == len(set(of_page)) > 2 * len(names), "the address has the chosen point of each"


def test_panels_of_half_a_column_fit_and_have_room_for_their_curves(report: Report, tmp_path: Path):
    for path in write_figures(report, tmp_path, FigureStyle(width=3.3, panels=2, title=False, formats=("svg",))):
        svg = path.read_text()
        assert size_of(svg)[0] <= 3.3 * 72 * 1.01, path.name
    accuracy = (tmp_path / "accuracy-panels.svg").read_text()
    assert any(text.startswith("majority, ") for text in texts(accuracy))
    widths = {float(line) for line in re.findall(r'<line [^>]*x2="([\d.]+)" y2="0"', accuracy)}
    assert max(widths) >= 50, "points of the plot"


def test_the_longest_name_is_replaced_first():
    names = {"bm25": "BM25", "bm25, pool": "BM25 (pool)", "trec": "TREC"}
    assert renamed("trec · bm25, pool", names) == "TREC · BM25 (pool)"
    assert renamed("m, bm25, pool", names) == "m, BM25 (pool)"
    assert renamed("bm25, relevance", names) == "BM25, relevance"
    assert renamed("bm25, pool", names) == "BM25 (pool)"


def test_a_name_that_needs_more_room_than_there_is_is_not_cut_but_said(of_cards: Report, tmp_path: Path):
    long = "a selector with a name that goes on and on and on and on and on and on"
    style = FigureStyle(width=2.5, formats=("svg",), names={"bm25": long})
    with pytest.warns(UserWarning, match=r"--width 2\.5: \S+ is \d\.\d inches wide, because its names need the space"):
        written = write_figures(of_cards, tmp_path, style)
    assert any(long in texts(path.read_text()) for path in written)


def test_pgf_has_the_same_lines_and_texts(of_cards: Report, tmp_path: Path):
    written = write_figures(of_cards, tmp_path, FigureStyle(width=3.3, formats=("svg", "pgf")))
    for svg, drawn in zip(written[::2], written[1::2], strict=True):
        text = drawn.read_text()
        assert text.count(r"\begin{pgfscope}") == text.count(r"\end{pgfscope}") > 5
        braces = re.sub(r"\\[{}]", "", text)
        assert braces.count("{") == braces.count("}")
        shown = [text for text in texts(svg.read_text()) if text.strip()]
        assert text.count(r"\pgftext") >= len(shown)
        for word in re.findall(r"[A-Za-z]{3,}", " ".join(shown)):
            assert word in text
        width = re.search(r"\\pgfpathrectangle\{\\pgfpointorigin\}\{\\pgfqpoint\{([\d.]+)bp\}", text)
        assert width is not None
        assert abs(float(width[1]) - 3.3 * 72) < 1


SHAPES = """<svg xmlns="http://www.w3.org/2000/svg" width="100" height="50"><g transform="translate(10,5)">
<line x2="20" y2="10" stroke="#ff0000" stroke-width="2" stroke-dasharray="4,3" opacity="0.5"/>
<rect x="1" y="2" width="3" height="4" fill="white" stroke="#000000" stroke-width="0"/>
<text text-anchor="end" transform="translate(5,6) rotate(-90)" font-size="8px" font-weight="bold">50% a_b</text>
<path d="M1,1l2,0" stroke="#00f" display="none"/></g></svg>"""


def test_pgf_of_an_svg_turns_the_page_and_escapes_texts():
    text = pgf(SHAPES, "about\nit")
    assert text.startswith("% about\n% it\n")
    assert r"\pgfpathmoveto{\pgfqpoint{10.000bp}{45.000bp}}" in text
    assert r"\pgfpathlineto{\pgfqpoint{30.000bp}{35.000bp}}" in text
    assert r"\definecolor{iclbench}{HTML}{FF0000}\pgfsetstrokecolor{iclbench}" in text
    assert r"\pgfsetstrokeopacity{0.5}" in text
    assert r"\pgfsetdash{{4bp}{3bp}}{0bp}" in text
    assert text.count(r"\pgfusepath{stroke}") == 1
    assert text.count(r"\pgfusepath{fill}") == 1
    assert r"\pgftext[x=15bp,y=39bp,rotate=90,right,base]" in text
    assert r"\bfseries 50\% a\_b}" in text


@given(st.floats(0.5, 50), st.floats(-50, 50), st.floats(-50, 50))
def test_a_circle_of_two_arcs_is_made_of_curves_on_it(r: float, x: float, y: float):
    path = f"M{x + r},{y}A{r},{r},0,1,1,{x - r},{y}A{r},{r},0,1,1,{x + r},{y}Z"
    (_, (start,)), *curves, (end, _) = _segments(path)
    assert end == "Z"
    at = start
    for kind, (one, two, to) in curves:
        assert kind == "C"
        for share in (0, 0.25, 0.5, 0.75, 1):
            a, b, c, d = ((1 - share) ** 3, 3 * share * (1 - share) ** 2, 3 * share**2 * (1 - share), share**3)
            place = [a * at[i] + b * one[i] + c * two[i] + d * to[i] for i in (0, 1)]
            assert ((place[0] - x) ** 2 + (place[1] - y) ** 2) ** 0.5 == pytest.approx(r, rel=1e-3)
        at = to
    assert at == pytest.approx(start, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("n.yaml", "small", "needs lines like gemma3-270m: Gemma 3"),
        ("n.yaml", "small: 3", "small: needs a text to show instead"),
        ("n.json", '{"small": ""}', "small: needs a text to show instead"),
        ("n.yaml", "a: x\nb: x", "a and b are both x"),
        ("n.yaml", "a: [", "n.yaml:1: not YAML"),
        ("n.csv", "small\n", "n.csv:1: needs two columns, name and shown; has 1 cell"),
        ("n.csv", "small,a\rb\n", "1 cells, but the header has 2"),
        ("n.csv", "name,shown\na,x\na,y\n", "a has two names"),
        ("none.yaml", None, "none.yaml: cannot be read"),
    ],
)
def test_a_wrong_file_of_names_is_one_line(name: str, content: str | None, says: str, tmp_path: Path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=re.escape(says)) as refused:
        read_names(tmp_path / name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"width": float("nan")}, "--width nan: not a width in inches"),
        ({"width": 0.1}, "--width 0.1: not a width in inches"),
        ({"formats": ("jpg",)}, "--format jpg: not a format of figures"),
        ({"formats": ()}, "--format: needs svg"),
    ],
)
def test_a_style_that_no_figure_can_have_is_refused_in_python_too(asked: dict[str, Any], says: str):
    with pytest.raises(UserError, match=re.escape(says)):
        FigureStyle(**asked)


def test_names_are_read_from_yaml_json_and_csv(tmp_path: Path):
    (tmp_path / "n.yaml").write_text("small: My Model\nhybrid:20,by=dense: Hybrid\n")
    (tmp_path / "n.json").write_text('{"small": "My Model", "hybrid:20,by=dense": "Hybrid"}')
    (tmp_path / "n.csv").write_text('name,shown\nsmall,My Model\n"hybrid:20,by=dense",Hybrid\n')
    for kind in ("yaml", "json", "csv"):
        assert read_names(tmp_path / f"n.{kind}") == {"small": "My Model", "hybrid:20,by=dense": "Hybrid"}


def test_a_style_without_figures_is_refused_in_python_too(results: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"^style: applies to figures; add figures=DIR$"):
        icl_bench.read(results).report(tmp_path / "page.html", style=FigureStyle(width=3.3))
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--width", "3.3"], "--width: applies to figures; add --figures DIR"),
        (["--no-title"], "--no-title: applies to figures; add --figures DIR"),
        (["--figures", "f", "--width", "0.2"], "--width 0.2: not a width in inches from 1.5 to 30"),
        (["--figures", "f", "--width", "nan"], "--width nan: not a width in inches from 1.5 to 30"),
        (["--figures", "f", "--format", "jpg"], "--format jpg: not a format of figures; known: svg, pdf, png, pgf"),
        (["--figures", "f", "--format", ","], "--format: needs svg, pdf, png or pgf"),
        (["--figures", "f", "--font", "No Such Font"], "--font No Such Font: is not installed here"),
        (
            ["--figures", "f", "--rename", "names.yaml"],
            "--rename: smal: no figure shows this name; did you mean small?",
        ),
    ],
)
def test_a_users_mistake_is_one_line_and_writes_no_figure(
    results: Path, words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("names.yaml").write_text("smal: My Model\n")
    done = run_command("report", "--results", results, "--task", "cards", *words)
    assert done.code == 2
    assert done.err.startswith(f"error: {says}")
    assert len(done.err.splitlines()) == 1
    assert not list(tmp_path.rglob("*.svg"))


def test_the_command_writes_the_formats_that_are_asked_for(results: Path, tmp_path: Path):
    out = tmp_path / "report.html"
    words = ["--format", "pdf,pgf", "--width", 3.3, "--no-title", "--task", "cards"]
    shown = said("report", "--results", results, "--out", out, "--figures", tmp_path / "f", *words)
    assert {path.suffix for path in (tmp_path / "f").iterdir()} == {".pdf", ".pgf"}
    assert f"figures in {tmp_path / 'f'}" in " ".join(shown.split())


@given(st.lists(st.sampled_from(FORMATS), min_size=1))
def test_formats_are_taken_once_in_their_order(names: list[str]):
    assert parse_formats(",".join(names)) == tuple(dict.fromkeys(names))
    assert size_of('<svg width="3" height="4.5">') == (3.0, 4.5)


def test_perturbed_curves_stay_within_their_axis():
    """The unperturbed curve of these results reaches further than the perturbed one."""
    found = find(read_some(Path(__file__).parents[2] / "golden" / "results"))
    drawing = perturbations(FINDINGS["perturbations"], found, Naming.of(found.summary))
    assert drawing is not None
    (panel,) = (panel for panel in drawing.panels if panel.name.startswith("perturbed-curves"))
    (domain,) = {tuple(layer["encoding"]["x"]["scale"]["domain"]) for layer in panel.spec()["layer"]}
    shots = {row["k"] for row in panel.rows}
    assert len(shots) > 1
    assert all(domain[0] <= k <= domain[1] for k in shots)
