"""What made each variant: from stored cells, from imports, from cells that do not say it."""

from __future__ import annotations

import json
import math
import struct
import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from support.fakes import FakeBackend, plan, runner
from support.predictions import cell, frame
from support.stored import facts_of, meta

from icl_bench import __version__
from icl_bench.analysis.all_findings import find, read_findings
from icl_bench.analysis.findings.provenance import FACTS, KEPT, NOT_STORED, PROVENANCE, as_pairs, provenance
from icl_bench.analysis.summary import records
from icl_bench.cli import main
from icl_bench.report.build import Report, make_report
from icl_bench.report.figure_style import FigureStyle
from icl_bench.report.figures import write_figures
from icl_bench.report.page import page
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import Stored
from icl_bench.sweep import this_run


def stored(*metas: dict[str, Any], variants: dict[str, Any] | None = None) -> Stored:
    usual = {"seconds": 1.5, "facts": {"dtype": "float32", "seed": 0}}
    cells = {str(i): meta(**usual | said) for i, said in enumerate(metas)}
    rows = [cell("aabb", cell=name) for name in cells] or [cell("aabb", cell="x")]
    return Stored(frame(*rows), cells, facts_of(variants or {}), ())


def told(found: Stored) -> dict[str, Any]:
    (row,) = provenance(find(found).context).to_dict("records")
    return {str(name): value for name, value in row.items()}


def test_values_of_different_cells_stand_beside_each_other():
    one = {
        "run": {"command": "icl-bench run a", "finished": "2026-01-02T00:00:00+00:00", "hardware": "H"},
        "versions": {"torch": "2.13", "machine": "x86_64"},
    }
    two = {**one, "run": {**one["run"], "finished": "2026-01-01T00:00:00+00:00"}, "training": {"seconds": 10.0}}
    row = told(stored(one, two))
    assert row["command"] == "icl-bench run a"
    assert row["finished"] == "2026-01-01T00:00:00+00:00 to 2026-01-02T00:00:00+00:00"
    assert row["versions"] == "torch 2.13"
    assert row["hardware"] == "H"
    assert (row["cells"], row["predictions"], row["seconds"]) == (2, 8, 13.0)
    assert (row["dtype"], row["seed"]) == ("float32", "0")


def test_what_cells_do_not_say_is_unknown_and_hides_nothing_that_others_say():
    new = {"run": {"command": "icl-bench run a", "finished": "2026-01-02T00:00:00+00:00"}}
    row = told(stored({}, new))
    assert row["command"] == f"{NOT_STORED}; icl-bench run a"
    assert row["finished"] == f"2026-01-02T00:00:00+00:00; {NOT_STORED}"
    assert row["versions"] == row["data"] == NOT_STORED


def test_data_and_weights_are_named_with_their_whole_hashes():
    digest = "a" * 64
    facts = {"data": {"trec/train.jsonl": digest}, "fingerprint": f"sha256:{digest}"}
    row = told(stored({"facts": facts}))
    assert row["data"] == f"trec/train.jsonl sha256:{digest}"
    assert row["weights"] == f"sha256:{digest}"


def test_every_fact_of_a_cell_is_told_in_its_place():
    facts = {
        "fingerprint": "sha256:f",
        "data": {"a.jsonl": "1", "b.jsonl": "2"},
        "backend": "hf",
        "seed": 3,
        "test_rows": 6,
        "pool_rows": 9,
        "dtype": "float16",
    }
    made = {"command": "icl-bench run", "finished": "2026-01-02", "hardware": "H"}
    about = {"torch": "2", "numpy": "1", "machine": "x86_64"}
    packs = {"rows": 64, "tokens": 2048, "calls": 4}
    assert told(stored({"facts": facts, "run": made, "versions": about, "packs": packs})) == {
        "task": "t",
        "model": "m",
        "variant": "v",
        "cells": 1,
        "predictions": 4,
        "seconds": 1.5,
        "command": "icl-bench run",
        "finished": "2026-01-02",
        "versions": "torch 2, numpy 1",
        "weights": "sha256:f",
        "data": "a.jsonl sha256:1, b.jsonl sha256:2",
        "seed": "3",
        "test_rows": "6",
        "pool_rows": "9",
        "dtype": "float16",
        "packs": "64 rows, 2,048 tokens, 4 calls",
        "engine": "hf",
        "hardware": "H",
        "encoders": "",
    }
    del made["hardware"]
    assert told(stored({"run": made, "versions": about}))["hardware"] == "x86_64"
    row = told(stored({"facts": {}, "run": {}, "versions": {}}))
    assert {row[name] for name in FACTS} == {NOT_STORED}


def test_the_encoder_of_a_selection_is_named(tmp_path: Path):
    facts = {"bertscore_encoder": "roberta-large", "sentence_encoder": "small@1"}
    found = stored({"facts": facts}, {"facts": {"bertscore": "other"}})
    named = "BERTScore selection by roberta-large; sentence embeddings by small@1; the BERTScore metric by other"
    assert told(found)["encoders"] == named
    pairs = as_pairs(provenance(find(found).context)).set_index("fact")["value"]
    assert pairs["text encoders"] == named


def test_the_page_names_the_encoder_among_its_methods(tmp_path: Path, word_encoder: Any):
    runner(plan(tmp_path / "task", selects=["dense"]), tmp_path / "results", FakeBackend()).run()
    report = make_report(tmp_path / "results")
    (named,) = report.encoders
    assert named.startswith("sentence embeddings by ")
    assert f"Text encoders: {named}." in page(report)


def test_seconds_are_of_all_cells_that_say_them_and_of_their_trainings():
    metas: list[dict[str, Any]] = [
        {"seconds": 2.0, "training": {"seconds": 4.0}},
        {"seconds": None, "training": None},
        {"seconds": 0.0, "training": {}},
    ]
    assert told(stored(*metas))["seconds"] == 6.0
    assert pd.isna(told(stored(metas[1]))["seconds"])


@pytest.mark.parametrize(("select", "seconds"), [("lora", 10.0), ("random", 6.0)])
def test_a_classifier_is_trained_for_each_cell_and_a_model_once(select: str, seconds: float):
    one = {"seconds": 1.0, "select": select, "training": {"seconds": 4.0}}
    assert told(stored(one, {**one, "draw": 1}))["seconds"] == seconds


def test_days_are_the_first_and_the_last_of_cells_that_say_them():
    days = [{"run": {"finished": f"2026-01-0{day}"}} for day in (3, 1, 2)]
    assert told(stored(*days))["finished"] == "2026-01-01 to 2026-01-03"
    assert told(stored(days[0], days[0]))["finished"] == "2026-01-03"
    assert told(stored({}, {"run": {"finished": ""}}))["finished"] == NOT_STORED


def test_each_task_model_and_variant_has_its_own_row_and_what_is_no_import_is_unknown():
    rows = frame(
        cell("aabb", cell="0"),
        cell("aabb", cell="1", task="u"),
        cell("aabb", cell="2", model="n"),
        cell("aabb", cell="3", variant="w"),
        cell("aabb", cell="4", k=9),
        cell("aabb", cell="5", variant="x"),
        cell("aa", "aa", cell="6", variant="y"),
    ).astype({"task": "category", "model": "category", "variant": "category"})
    points = [("t", "m", "v"), ("u", "m", "v"), ("t", "n", "v"), ("t", "m", "w"), ("t", "m", "v")]
    cells = {
        str(i): meta(variant, seconds=float(i), facts={"seed": i}, of_task=task, model=model)
        for i, (task, model, variant) in enumerate(points)
    }
    found = provenance(find(Stored(rows, cells, facts_of({"y": {"imported": "y.csv"}}), ())).context)
    assert list(found.columns) == KEPT
    names = ["task", "model", "variant", "cells", "predictions", "seed", "command"]
    assert found[names].to_numpy().tolist() == [
        ["t", "m", "v", 2, 8, "0; 4", NOT_STORED],
        ["t", "m", "w", 1, 4, "3", NOT_STORED],
        ["t", "m", "x", 1, 4, NOT_STORED, NOT_STORED],
        ["t", "m", "y", 1, 2, NOT_STORED, "imported from y.csv"],
        ["t", "n", "v", 1, 4, "2", NOT_STORED],
        ["u", "m", "v", 1, 4, "1", NOT_STORED],
    ]
    assert found["seconds"].fillna(-1).tolist() == [4, 3, -1, -1, 2, 1]


def test_a_row_is_turned_into_a_pair_for_each_fact_that_is_there():
    digest, short = "a" * 40, "b" * 38
    table = pd.DataFrame(
        [
            {
                "task": "t",
                "cells": 1,
                "predictions": 1234,
                "seconds": 1.2345,
                "data": f"x sha256:{digest}, y sha256:{short}, z sha256:{digest}",
                "seed": "0",
            },
            {"task": "u", "cells": 2, "predictions": 4, "seconds": math.nan, "data": f"http://{'c' * 50}", "seed": ""},
        ]
    )
    names = [*FACTS, "task", "cells", "predictions", "seconds"]
    table = table.reindex(columns=names, fill_value="f")
    pairs = as_pairs(table)
    assert list(pairs.columns) == ["task", "fact", "value"]
    first = pairs[pairs["task"] == "t"]
    titles = [*FACTS.values(), "cells", "predictions", "seconds"]
    assert first["fact"].tolist() == titles
    values = first.set_index("fact")["value"]
    assert values[["cells", "predictions", "seconds"]].tolist() == ["1", "1,234", "1.23"]
    assert values["command"] == "f"
    second = pairs[pairs["task"] == "u"]
    assert second["fact"].tolist() == [t for t in titles if t not in ("seed", "seconds")]
    assert PROVENANCE.printed is not None
    brief = PROVENANCE.printed.rows(table)
    assert brief.drop(columns="value").equals(pairs.drop(columns="value"))
    told_briefly = brief[brief["fact"] == "data"]["value"].tolist()
    assert told_briefly == [f"x sha256:{'a' * 12}…, y sha256:{short}, z sha256:{'a' * 12}…", f"http://{'c' * 10}…"]


def test_without_predictions_there_is_no_row():
    found = provenance(find(Stored(cell("aabb", cell="x").iloc[:0], {}, {}, ())).context)
    assert found.empty
    assert list(found.columns) == KEPT


def test_an_import_names_its_file(tmp_path: Path):
    rows = frame(cell("aabb"), cell("abab", k=7))
    pd.DataFrame(rows).drop(columns=["valid"]).to_csv(tmp_path / "theirs.csv", index=False)
    import_predictions(tmp_path / "theirs.csv", tmp_path / "results")
    (row,) = read_findings(tmp_path / "results").provenance.to_dict("records")
    assert row["command"] == "imported from theirs.csv"
    assert row["cells"] == 2
    assert pd.isna(row["seconds"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/usr/bin/icl-bench", "run", "--task", "a b"], "icl-bench run --task 'a b'"),
        (["/x/icl_bench/__main__.py", "study", "s.yaml"], "icl-bench study s.yaml"),
        (["/x/ipykernel_launcher.py", "-f", "secret.json"], None),
        (["/x/pytest/__main__.py", "tests"], None),
        ([""], None),
        (["icl-bench", "run", "--base-url", "https://me:secret@host/v1"], "icl-bench run --base-url https://…@host/v1"),
        (["icl-bench", "run", "--model", "openai:http://tok@h"], "icl-bench run --model openai:http://…@h"),
        (["icl-bench", "run", "a\nb"], "icl-bench run 'a b'"),
    ],
)
def test_a_command_is_kept_without_names_and_passwords(words: list[str], expected: str | None):
    assert this_run.command(words) == expected


def test_hardware_names_processor_and_cores():
    assert this_run.hardware().split(", ")[-1].endswith(("core", "cores"))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one run."""
    folder = tmp_path_factory.mktemp("provenance")
    runner(plan(folder / "task"), folder / "results", FakeBackend()).run()
    return folder / "results"


@pytest.fixture(scope="module")
def report(results: Path) -> Report:
    return make_report(results)


def test_a_run_stores_when_and_on_what_it_was_made(results: Path):
    row = read_findings(results).provenance.to_dict("records")[0]
    now = datetime.now(UTC)
    first = datetime.fromisoformat(row["finished"].partition(" to ")[0])
    assert now - timedelta(minutes=10) < first <= now
    assert row["hardware"] == this_run.hardware()
    assert row["command"] == NOT_STORED, "the tests are no command of this program"
    assert "sha256:" in row["data"]


def test_a_terminal_has_a_line_for_each_fact_and_digests_by_their_beginning(
    results: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        main(["summary", "--provenance", "--results", str(results)])
    said = capsys.readouterr().out
    assert "where the numbers come from" in said
    lines = {line.partition("  ")[0]: line for line in said.splitlines()}
    assert lines["hardware"].split(maxsplit=1)[1].startswith(this_run.hardware()[:8])
    assert "…" in lines["data"]
    with pytest.raises(SystemExit):
        main(["summary", "--json", "--results", str(results)])
    (row,) = json.loads(capsys.readouterr().out)["provenance"]
    assert len(row["data"].split("sha256:")[1].split(",")[0]) == 64


def text_of(png: bytes) -> str:
    """What stands in the chunk iTXt of a PNG."""
    place = 8
    while place < len(png):
        size, kind = struct.unpack(">I4s", png[place : place + 8])
        data = png[place + 8 : place + 8 + size]
        (checksum,) = struct.unpack(">I", png[place + 8 + size : place + 12 + size])
        assert checksum == zlib.crc32(kind + data)
        if kind == b"iTXt":
            keyword, _, rest = data.partition(b"\0")
            assert keyword == b"icl-bench"
            return rest[4:].decode()
        place += 12 + size
    raise AssertionError("no text")


def test_figures_hold_what_made_their_predictions(results: Path, report: Report, tmp_path: Path):
    first = replace(report, sections=[section for section in report.sections if section.name == "accuracy"])
    written = write_figures(first, tmp_path, FigureStyle(formats=("svg", "png")))
    (expected,) = json.loads(json.dumps(records(read_findings(results).provenance)))
    svg, png = (
        next(path for path in written if path.name == f"accuracy-cards-small.{kind}") for kind in ("svg", "png")
    )
    (metadata,) = ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}metadata")
    for text in (metadata.text, text_of(png.read_bytes())):
        found = json.loads(text or "")
        assert found["provenance"] == [expected]
        assert found["icl-bench"] == __version__


def test_the_page_has_a_line_for_each_fact_with_whole_digests(report: Report):
    (section,) = [section for section in report.sections if section.name == "provenance"]
    (table,) = section.tables
    told = {row[3]: row[4] for row in table.rows}
    assert set(FACTS.values()) < set(told)
    assert told["hardware"] == this_run.hardware()
    assert len(told["data"].split("sha256:")[1].split(",")[0]) == 64
    assert told["test rows"] == "6"
