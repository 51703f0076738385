"""A check against a leaderboard's CSV: what its summary numbers can show, and what they cannot."""

from __future__ import annotations

import csv
import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import FakeBackend, plan, runner
from support.in_process import Ended, run_command

from icl_bench import api
from icl_bench.cli import main
from icl_bench.errors import UserError
from icl_bench.report.leaderboard import leaderboard, leaderboard_of, write
from icl_bench.report.leaderboard_check import check_leaderboard, compare_leaderboards, loss_p, read_leaderboard
from icl_bench.results.importing import import_predictions

RUNS = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "check_noise.py"))
"""What benchmarks/check_noise.py makes of stored predictions."""

LABELS = ("red", "white", "rose")


def predictions(share: float, *, rows: int = 200, seed: int = 0, **columns: Any) -> pd.DataFrame:
    """Three draws at k = 1 and 8 of a model that answers about this share right."""
    rng = np.random.default_rng(seed)
    made = [
        ("wines", "tiny", "random", "drawn", k, draw, f"t{test}", LABELS[test % 3])
        for k in (1, 8)
        for draw in range(3)
        for test in range(rows)
    ]
    names = ["task", "model", "select", "order", "k", "draw", "test_id", "gold"]
    frame = pd.DataFrame(made, columns=names)
    right = rng.random(len(frame)) < share
    others = frame["gold"].map(dict(zip(LABELS, LABELS[1:] + LABELS[:1], strict=True)))
    return frame.assign(prediction=np.where(right, frame["gold"], others), **columns)


def folder(place: Path, *frames: pd.DataFrame) -> Path:
    """A results folder with these predictions."""
    for number, frame in enumerate(frames):
        frame.to_parquet(place.with_suffix(f".{number}.parquet"))
        import_predictions(place.with_suffix(f".{number}.parquet"), place)
    return place


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``board.csv``, and of the results ``good``, ``again`` and ``worse``."""
    root = tmp_path_factory.mktemp("boards")
    folder(root / "good", predictions(0.8))
    folder(root / "again", predictions(0.8, seed=1))
    folder(root / "worse", predictions(0.5, seed=2))
    write(leaderboard_of([root / "good.0.parquet"]), root / "board.csv")
    return root


def checked(baseline: Path, results: Path, *words: object) -> Ended:
    return run_command("check", "--baseline", baseline, "--results", results, *words)


def rewritten(stored: Path, to: Path, change: Any) -> Path:
    """The board with its lines changed, as lists of cells with the header first."""
    with (stored / "board.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    change(lines)
    with to.open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    return to


def test_a_run_as_good_as_the_board_passes_and_what_was_compared_is_said(stored: Path):
    for results in ("good", "again"):
        done = checked(stored / "board.csv", stored / results)
        assert (done.code, done.err) == (0, "")
        assert done.out.count("compared: means and their intervals") == 1
        assert "all 2 points together" not in done.out
        assert "passed: no significant loss larger than 1 points" in done.out


def test_names_that_are_not_printable_are_the_same_on_both_sides(tmp_path: Path):
    results = folder(tmp_path / "odd", predictions(0.8, rows=9, task="w\u200bines", model="=a b"))
    write(leaderboard_of([tmp_path / "odd.0.parquet"]), tmp_path / "board.csv")
    assert checked(tmp_path / "board.csv", results).code == 0


def test_a_worse_run_fails(stored: Path):
    done = checked(stored / "board.csv", stored / "worse", "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert not found["passed"]
    assert [(p["k"], p["draws"], p["rows"], p["verdict"]) for p in found["points"]] == [
        (1, 3, 200, "loss"),
        (8, 3, 200, "loss"),
    ]
    assert found["overall"]["p"] is None
    assert len(found["notes"]) == 1
    assert "FAILED: 2 of 2 points" in checked(stored / "board.csv", stored / "worse").out
    assert checked(stored / "board.csv", stored / "worse", "--tolerance", "0.4").code == 0


def test_it_is_the_same_in_python(stored: Path):
    assert api.check(stored / "board.csv", stored / "worse").lost
    assert api.check(stored / "board.csv", stored / "again").passed


def test_an_interval_of_the_difference_is_that_of_both_intervals(stored: Path):
    """Zou & Donner's limits, from the numbers of the two leaderboards."""
    found = check_leaderboard(stored / "board.csv", stored / "worse").points
    base, now = (leaderboard_of([stored / f"{name}.0.parquet"]).set_index("k") for name in ("good", "worse"))
    for row in found.to_dict("records"):
        before, after = base.loc[row["k"]], now.loc[row["k"]]
        low = np.hypot(after["accuracy"] - after["ci_low"], before["ci_high"] - before["accuracy"])
        high = np.hypot(after["ci_high"] - after["accuracy"], before["accuracy"] - before["ci_low"])
        assert row["difference"] == pytest.approx(after["accuracy"] - before["accuracy"], abs=1e-5)
        assert row["ci_low"] == pytest.approx(row["difference"] - low, abs=1e-5)
        assert row["ci_high"] == pytest.approx(row["difference"] + high, abs=1e-5)


def test_what_the_run_lacks_is_refused_unless_it_may_lack_it(stored: Path, tmp_path: Path):
    some = predictions(0.8, seed=1).query("k == 8")
    folder(tmp_path / "some", some)
    done = checked(stored / "board.csv", tmp_path / "some")
    assert done.code == 2
    assert "lacks all of wines tiny random drawn k=1" in done.err
    assert checked(stored / "board.csv", tmp_path / "some", "--allow-missing").code == 0


def test_other_draws_and_test_rows_are_said_and_compared(stored: Path, tmp_path: Path):
    fewer = predictions(0.8, rows=90, seed=3, dtype="bfloat16").query("draw < 2")
    folder(tmp_path / "fewer", fewer)
    done = checked(stored / "board.csv", tmp_path / "fewer")
    assert done.code == 0
    assert "differs: draws: 3 in the baseline, 2 now\n" in done.out
    assert "differs: test_rows: 200 in the baseline, 90 now\n" in done.out
    assert "dtype" not in done.out  # the board does not know its own
    assert "data_hash" not in done.out  # of imported files, which are others


def test_other_data_are_said_where_both_sides_know_theirs(tmp_path: Path):
    for name, rows in (("base", 30), ("now", 40)):
        runner(plan(tmp_path / f"{name}-task", "2", test_rows=rows), tmp_path / name, FakeBackend()).run()
    write(leaderboard(tmp_path / "base"), tmp_path / "board.csv")
    boards = [leaderboard(tmp_path / name).assign(version=["1"]) for name in ("base", "now")]
    changes = compare_leaderboards(*boards, ("base", "now")).changes
    assert [change["fact"] for change in changes] == ["test_rows", "data_hash"]
    assert not check_leaderboard(tmp_path / "board.csv", tmp_path / "base").changes


def test_a_point_of_several_variants_is_compared_with_its_own(stored: Path, tmp_path: Path):
    other = predictions(0.5, seed=2, variant="other")
    both = folder(tmp_path / "both", predictions(0.8), other)
    found = check_leaderboard(stored / "board.csv", both).points
    assert found["verdict"].tolist() == ["ok", "ok"]  # the same file, so the same variant
    folder(tmp_path / "neither", predictions(0.8, seed=5), other)
    done = checked(stored / "board.csv", tmp_path / "neither")
    assert done.code == 2
    assert re.fullmatch(r"error: \S+neither: wines tiny random drawn k=\d has several variants, .+\n", done.err)


HEADER = "task,model,select,order,attention,k,draws,test_rows,accuracy,ci_low,ci_high,variant,metric\n"


def board(place: Path, *points: tuple[int, float, str]) -> pd.DataFrame:
    """A leaderboard with these points: k, accuracy and variant."""
    lines = (f"wines,tiny,random,drawn,full,{k},3,200,{a},{a - 0.05},{a + 0.05},{v},accuracy\n" for k, a, v in points)
    place.write_text(HEADER + "".join(lines))
    return read_leaderboard(place)


def test_a_variant_without_a_counterpart_is_listed_also_if_the_point_has_another(tmp_path: Path):
    base = board(tmp_path / "base.csv", (8, 0.8, "a"), (8, 0.7, "b"))
    now = board(tmp_path / "now.csv", (8, 0.8, "a"), (8, 0.1, "c"))
    found = compare_leaderboards(base, now, ("base", "now"))
    assert found.points["variant"].tolist() == ["a"]
    assert found.only_baseline["variant"].tolist() == ["b"]
    assert found.only_results["variant"].tolist() == ["c"]
    assert not found.passed
    assert found.lacking == "all of wines tiny random drawn k=8 (variant b)"


def test_variants_without_a_counterpart_are_printed_and_those_of_the_board_fail(stored: Path, tmp_path: Path):
    both = folder(tmp_path / "both", predictions(0.8), predictions(0.5, seed=2, variant="other"))
    done = checked(stored / "board.csv", both)
    assert done.code == 0
    assert re.findall(r"only now: wines tiny random drawn k=(\d) \(variant \w+\)\n", done.out) == ["1", "8"]
    write(leaderboard(both), tmp_path / "both.csv")
    done = checked(tmp_path / "both.csv", stored / "good")
    assert done.code == 2
    assert re.search(r"lacks all of wines tiny random drawn k=1 \(variant \w+\) \(and 1 more point\)", done.err)


def test_a_point_that_is_twice_in_the_board_is_refused_with_its_line(stored: Path, tmp_path: Path):
    def twice(lines: list[list[str]]) -> None:
        lines.append(lines[1])

    done = checked(rewritten(stored, tmp_path / "board.csv", twice), stored / "good")
    assert (done.code, done.out) == (2, "")
    said = r"error: \S+board\.csv:4: wines tiny random drawn k=\d is in \S+board\.csv:2, too; .+\n"
    assert re.fullmatch(said, done.err)


def test_a_board_with_another_score_is_not_passed(stored: Path, tmp_path: Path):
    def other(lines: list[list[str]]) -> None:
        set_cell("rouge1", lines[1][lines[0].index("accuracy")])(lines)
        set_cell("metric", "rouge1")(lines)

    path = rewritten(stored, tmp_path / "board.csv", other)
    done = checked(path, stored / "worse")
    assert done.code == 1  # the other point
    done = checked(path, stored / "good")
    assert done.code == 2
    assert "differs: metric: rouge1 in the baseline, accuracy now\n" in done.out
    assert re.search(r"lacks 600 predictions of wines tiny random drawn k=\d of the baseline", done.err)
    assert checked(path, stored / "good", "--allow-missing").code == 0


def test_a_point_that_was_always_wrong_and_is_always_right_is_compared(tmp_path: Path):
    line = "wines,tiny,random,drawn,full,8,3,200,{0},{1},{2},a,accuracy\n"
    for name, numbers in (("base.csv", (0, 0, 0.02)), ("now.csv", (1, 0.98, 1))):
        (tmp_path / name).write_text(HEADER + line.format(*numbers))
    found = compare_leaderboards(*map(read_leaderboard, (tmp_path / "base.csv", tmp_path / "now.csv")), ("b", "n"))
    assert found.points[["p", "verdict"]].to_numpy().tolist() == [[1.0, "ok"]]


def set_cell(name: str, value: str) -> Any:
    def change(lines: list[list[str]]) -> None:
        lines[1][lines[0].index(name)] = value

    return change


def blank(lines: list[list[str]]) -> None:
    """The first point without a score, as a leaderboard has it for free text that was not scored."""
    for name in ("accuracy", "ci_low", "ci_high"):
        set_cell(name, "")(lines)


def without(name: str) -> Any:
    def change(lines: list[list[str]]) -> None:
        place = lines[0].index(name)
        for line in lines:
            del line[place]

    return change


WRONG = [
    (set_cell("accuracy", "80.2"), r"board\.csv:2: accuracy: '80\.2'; expected a share from 0 to 1, not a percentage"),
    (set_cell("accuracy", "0.1"), r"board\.csv:2: 0\.1 is not between ci_low "),
    (set_cell("ci_low", "low"), r"board\.csv:2: ci_low: 'low'"),
    (set_cell("k", "many"), r"board\.csv:2: k: 'many'; expected a whole number of at least 0"),
    (set_cell("draws", "0"), r"board\.csv:2: draws: '0'; expected a whole number of at least 1"),
    (set_cell("test_rows", "9" * 5000), r"board\.csv:2: test_rows: "),
    (set_cell("accuracy", ""), r"board\.csv:2: accuracy is empty, so nothing can be compared; "),
    (set_cell("ci_low", "nan"), r"board\.csv:2: ci_low is empty"),
    (set_cell("metric", "rouge1"), r"board\.csv:2: rouge1 is empty"),
    (set_cell("metric", "rouge-1"), r"board\.csv:2: metric: unknown score rouge-1; did you mean .*rouge1"),
    (without("ci_low"), r"board\.csv: not a leaderboard: it lacks the column ci_low; make a new baseline"),
    (lambda lines: lines.__delitem__(slice(1, None)), r"board\.csv: has no points"),
    (lambda lines: lines[1].pop(), r"board\.csv:2: \d+ cells, but the header has"),
    (lambda lines: lines.__setitem__(slice(None), []), r"board\.csv: not a leaderboard: it lacks the column task"),
    (lambda lines: [line.__setitem__(0, "other") for line in lines[1:]], "no point in common"),
]


@pytest.mark.parametrize(("change", "said"), WRONG)
def test_a_table_that_cannot_be_used_is_refused_in_one_line(stored: Path, tmp_path: Path, change: Any, said: str):
    done = checked(rewritten(stored, tmp_path / "board.csv", change), stored / "good")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert re.search(said, done.err)


def test_points_without_a_score_in_the_board_are_not_compared(stored: Path, tmp_path: Path):
    """As a leaderboard writes free text that no metric was asked for."""
    done = checked(rewritten(stored, tmp_path / "board.csv", blank), stored / "good")
    assert done.code == 0
    assert "not compared: wines tiny random drawn k=" in done.out
    assert "in 1 point\n" in done.out

    def blank_all(lines: list[list[str]]) -> None:
        blank(lines)
        blank([lines[0], lines[2]])

    done = checked(rewritten(stored, tmp_path / "board.csv", blank_all), stored / "good")
    assert done.code == 2
    assert "nothing was compared" in done.err


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_no_file_ends_in_a_traceback(content: bytes):
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as place:
        path = Path(place) / "board.csv"
        path.write_bytes(content)
        with pytest.raises(UserError) as refused:
            read_leaderboard(path)
        assert len(str(refused.value).splitlines()) == 1


@given(st.floats(-1, 1), st.floats(0.001, 1), st.integers(1, 500))
def test_a_loss_is_significant_where_its_interval_excludes_none(difference: float, above: float, freedom: int):
    p = loss_p(difference, above, freedom)
    assert 0 <= p <= 1
    if abs(difference + above) > 1e-9:
        assert (p < 0.025) == (difference + above < 0)


def test_the_command_names_what_a_baseline_may_be(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    assert "leaderboard" in capfd.readouterr().out


# -- on stored predictions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "by_predictions", "by_board"),
    [
        (RUNS["rows"], None, False),
        (RUNS["draws"], None, False),
        (RUNS["formats"], False, False),
        (RUNS["worse"](0.2, "trec"), True, True),
        (RUNS["worse"](0.05), True, False),
    ],
)
def test_noise_passes_and_a_worse_model_fails_as_the_page_has_it(
    noise: Any, by_predictions: bool | None, by_board: bool
):
    """One of the 20 pairs of each line of docs/check.md; other rows and draws are refused with predictions."""
    sides = next(iter(noise(RUNS["stored"](RUNS["RESULTS"] / "headlines.parquet"), 1)))
    assert by_predictions is None or RUNS["fails_by_predictions"](*sides) == by_predictions
    assert RUNS["fails_by_board"](*sides) == by_board
