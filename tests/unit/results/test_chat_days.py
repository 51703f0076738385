"""A results folder keeps the date that chat templates write."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from icl_bench.results.chat_days import day_of, keep_day
from icl_bench.results.reading import finished_cells


def test_the_first_date_of_a_folder_is_kept(tmp_path: Path):
    today = date.today().isoformat()
    assert day_of(None) == day_of(tmp_path) == day_of(tmp_path / "missing") == today
    assert not list(tmp_path.iterdir())
    keep_day(tmp_path, "2026-01-31")
    keep_day(tmp_path, "2026-02-01")
    assert day_of(tmp_path) == "2026-01-31"


def test_a_date_that_is_none_is_that_of_today(tmp_path: Path):
    keep_day(tmp_path, "soon")
    assert day_of(tmp_path) == date.today().isoformat()


def test_the_date_is_no_cell(tmp_path: Path):
    keep_day(tmp_path, "2026-01-31")
    assert not list(finished_cells(tmp_path))
