"""A finding is one declaration: from it the table is made, printed, stored, drawn and asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.predictions import cell, frame

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.columns import COLUMNS, Column, columns_of_scores
from icl_bench.analysis.finding import Chart, Finding, Printed
from icl_bench.registry import FINDINGS
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import read_some

PLUGIN = '''
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.finding import Chart, Finding, Printed, Section


def lengths(context):
    """Mean letters of an answer."""
    frame = context.unperturbed
    letters = frame["prediction"].astype(object).str.len()
    return frame.assign(letters=letters).groupby(POINT, observed=True)["letters"].mean().reset_index()


LETTERS = Finding(
    "letters", lengths, (Column("letters", "letters an answer", "number"),),
    caption="Letters of answers", printed=Printed("letters: mean of an answer"),
    section=Section("letters", "How long answers are", "Letters", "run something",
                    "Longer is not better.", chart=Chart("letters")),
)
NOTHING = Finding(
    "nothing", lambda context: lengths(context).iloc[:0], (Column("letters", "letters"),),
    section=Section("nothing", "Nothing", "Nothing at all", "run --nothing", ""),
)
'''
ENTRIES = "[icl_bench.findings]\nletters = others:LETTERS\nnothing = others:NOTHING\n"
SCRIPT = """
import json, sys
from pathlib import Path
from icl_bench.analysis.all_findings import read_findings
from icl_bench.cli import main
from icl_bench.report.build import make_report
from icl_bench.report.page import page

found = read_findings(sys.argv[1])
report = make_report(Path(sys.argv[1]))
(section,) = [section for section in report.sections if section.name == "letters"]
(panel,) = section.panels
panel.chart.to_dict(validate=True)
print(json.dumps({
    "attribute": found.letters["letters"].tolist(), "json": found.as_json()["letters"],
    "last": report.sections[-1].name, "missing": [list(one) for one in report.missing],
    "page": "How long answers are" in page(report), "rows": panel.rows,
    "titles": [column.title for column in section.tables[0].columns],
}))
main(["summary", "--results", sys.argv[1]])
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    made = frame(cell("aabb", k=1), cell("aabb", k=5))
    made.drop(columns=["variant", "valid"]).to_csv(tmp_path / "some.csv", index=False)
    import_predictions(tmp_path / "some.csv", tmp_path / "results")
    return tmp_path / "results"


def test_a_finding_of_another_package_is_everywhere_that_ours_are(tmp_path: Path, results: Path):
    pytest.importorskip("altair")
    info = tmp_path / "site" / "others-1.0.dist-info"
    info.mkdir(parents=True)
    (info.parent / "others.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    paths = [str(info.parent), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(results)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr
    first, _, printed = done.stdout.partition("\n")
    told = json.loads(first)
    assert told["attribute"] == [1.0, 1.0]
    assert [row["letters"] for row in told["json"]] == [1.0, 1.0]
    assert (told["last"], told["page"]) == ("letters", True)
    assert [row["value"] for row in told["rows"]] == [1.0, 1.0]
    assert told["titles"] == ["task", "model", "curve", "k", "letters an answer"]
    assert ["Nothing at all", "run --nothing"] in told["missing"]
    assert "letters: mean of an answer" in printed


def test_every_finding_is_registered_under_its_own_name():
    assert {name: finding.name for name, finding in FINDINGS.items()} == {n: n for n in FINDINGS}


def test_every_column_that_a_finding_shows_is_declared_with_a_title():
    for finding in FINDINGS.values():
        declared = {column.name for column in finding.columns} | COLUMNS.keys() | columns_of_scores().keys()
        if finding.printed:
            declared |= {column.name for column in finding.printed.columns_here}
            assert {column.name for column in finding.in_terminal()} <= declared, finding.name
        assert {column.name for column in finding.in_report()} <= declared, finding.name


def test_no_two_sections_have_one_name_or_one_place():
    sections = [finding.section for finding in FINDINGS.values() if finding.section]
    assert len({section.name for section in sections}) == len(sections)
    assert len({section.place for section in sections}) == len(sections)


def test_tables_stand_in_the_section_that_says_so():
    for finding in FINDINGS.values():
        for name in finding.section.also if finding.section else ():
            assert FINDINGS[name].caption


def test_a_finding_alone_shows_curve_k_and_its_own_columns():
    own = (Column("value", "value", "number"), Column("low", "from", upper="high"), Column("high", "to"))
    finding = Finding("mine", lambda context: context.predictions, own)
    assert [c.name for c in finding.in_report()] == ["task", "model", "series", "k", "value", "low", "high"]
    assert [c.name for c in finding.in_terminal()] == ["task", "model", "select", "order", "k", "value", "low"]
    assert Chart("value").by == ("task", "model")


def test_a_table_is_made_when_it_is_asked_for_and_once(results: Path):
    found = find(read_some(results))
    assert found.curves is found.summary.curves is found.context.table("curves")
    assert found.context.cells is found.context.cells


def test_an_unknown_table_is_told_by_the_nearest_names(results: Path):
    found = find(read_some(results))
    with pytest.raises(AttributeError, match="curvs is not a finding; did you mean curves"):
        _ = found.curvs


def test_a_column_is_shown_as_its_finding_says_or_as_everywhere_or_by_its_name():
    own = Column("draws", "how many", "number")
    finding = Finding("mine", lambda context: context.predictions, (own,))
    assert finding.column("draws") is own
    assert finding.column("k") is COLUMNS["k"]
    assert finding.column("of_no_table") == Column("of_no_table", "of no table")


def test_columns_are_those_that_are_asked_for_and_may_mean_something_else_in_the_terminal():
    here = Column("low", "from there", "points")
    finding = Finding(
        "mine",
        lambda context: context.predictions,
        (Column("low", "from"),),
        shown="k low",
        printed=Printed("mine", "task k low", columns_here=(here,)),
    )
    assert [column.title for column in finding.in_report()] == ["k", "from"]
    assert [column.title for column in finding.in_terminal()] == ["task", "k", "from there"]


class AnyName:
    """A registry that knows every name."""

    def __contains__(self, name: str) -> bool:
        return True

    def unknown(self, name: str) -> str:
        return "none"


def test_what_is_private_is_no_table_even_where_one_is_called_so(results: Path, monkeypatch: pytest.MonkeyPatch):
    found = find(read_some(results))
    with pytest.raises(AttributeError, match="findings: __deepcopy__ is not a finding"):
        found.__getattr__("__deepcopy__")
    monkeypatch.setattr("icl_bench.analysis.all_findings.FINDINGS", AnyName())
    with pytest.raises(AttributeError, match="findings: _mine is none"):
        found.__getattr__("_mine")
