"""Sections whose charts show one point at a time: of very many points, charts leave out some, and say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.predictions import cell, imported

from icl_bench.analysis.all_findings import find
from icl_bench.registry import FINDINGS
from icl_bench.report.naming import Naming
from icl_bench.report.sections import points
from icl_bench.results.reading import read_some


def test_of_very_many_points_charts_have_the_largest_k_and_tables_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    results = imported(tmp_path, *(cell("abab", k=k, draw=draw) for k in (1, 2, 5) for draw in range(2)))
    findings = find(read_some(results), results=results)
    naming = Naming.of(findings.summary)
    for most, chosen, said in ((6000, 3, ""), (5, 1, points.LARGEST_ONLY)):
        monkeypatch.setattr(points, "POINT_ROWS", most)
        for name, drawer in (("confusions", points.confusions), ("label_bias", points.bias)):
            drawn = drawer(FINDINGS[name], findings, naming)
            assert drawn is not None
            assert [len(panel.choices) for panel in drawn.panels] == [chosen] * len(drawn.panels)
            assert drawn.panels[0].choices[0].text == "random, k = 5"
            assert drawn.more == said
            for table in drawn.tables:
                place = [column.name for column in table.columns].index("k")
                assert {row[place] for row in table.rows} == {1, 2, 5}
