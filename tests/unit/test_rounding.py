"""Terminal, Markdown and page show one number as one text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from support.in_process import run_command
from support.predictions import cell, frame

from icl_bench.report.build import make_report
from icl_bench.results.importing import import_predictions
from icl_bench.wording import percent, rounded, three_digits


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (6.25, 1, "6.2"),
        (6.35, 1, "6.4"),
        (0.35, 1, "0.4"),
        (0.45, 1, "0.4"),
        (-6.25, 1, "-6.2"),
        (-0.01, 1, "0.0"),
        (100 * (0.1 + 0.2), 1, "30.0"),
        (100 * 0.0335, 1, "3.4"),  # 3.35 by hand
        (100 * 0.5785, 1, "57.8"),  # 57.85 by hand
        (1234567.5, 0, "1,234,568"),
        (float("inf"), 1, "inf"),
    ],
)
def test_a_number_is_rounded_as_by_hand_halves_to_even(value: float, digits: int, shown: str):
    assert rounded(value, digits) == shown


def test_a_number_has_three_digits_that_count():
    numbers = [0.0, 0.00012345, 0.5, 2.125, 9.995, 99.94, 99.96, 1000.5, -0.0333, 1e-300]
    shown = ["0", "0.000123", "0.5", "2.12", "10", "99.9", "100", "1,000", "-0.0333", "0"]
    assert list(map(three_digits, numbers)) == shown


def test_the_page_rounds_as_the_terminal_does(tmp_path: Path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    program = files("icl_bench.report").joinpath("assets", "base.js").read_text("utf-8")
    (own,) = re.findall(r"^const whole = .*?(?=^const SHOWN)", program, re.DOTALL | re.M)
    rng = np.random.default_rng(0)
    shares = [n / of for of in (16, 80, 125, 2000) for n in range(-of, of)] + rng.random(999).tolist()
    numbers = (10.0 ** rng.uniform(-14, 9, 999)).tolist()
    code = (
        f"{own}\nconst [shares, numbers] = JSON.parse(require('fs').readFileSync(0));"
        "console.log(JSON.stringify([shares.map((s) => rounded(100 * s, 1)), "
        "numbers.map(threeDigits)]));"
    )
    given = json.dumps([shares, numbers])
    done = subprocess.run([node, "-e", code], input=given, capture_output=True, check=True, text=True)
    assert json.loads(done.stdout) == [list(map(percent, shares)), list(map(three_digits, numbers))]


def test_a_sixteenth_is_one_text_in_terminal_markdown_page_and_charts(tmp_path: Path):
    draws = (cell("a" + "b" * 15, "a" * 16, draw=draw) for draw in range(3))
    rows = frame(*draws).drop(columns=["variant", "correct", "valid"])
    rows.to_parquet(tmp_path / "mine.parquet")
    import_predictions(tmp_path / "mine.parquet", tmp_path / "results")
    for command in ("summary", "leaderboard"):
        said = run_command(command, "--results", tmp_path / "results").out
        assert re.search(r"\b6\.2\b", said)
        assert "6.3" not in said.replace("26.3", "")
    made = make_report(tmp_path / "results")
    assert "6.2% accuracy" in made.headlines[0].sentences[0].text
    (panel,) = next(s for s in made.sections if s.name == "accuracy").panels
    (row,) = panel.spec()["datasets"]["rows"]
    assert (row["value"], row["value_text"]) == (0.0625, "6.2%")
    tips = [tip for layer in panel.spec()["layer"] for tip in layer["encoding"].get("tooltip", ())]
    assert {"field": "value_text", "title": "accuracy", "type": "nominal"} in tips
