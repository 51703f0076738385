"""Notebooks on published predictions run for somebody who has the installed package alone."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PUBLISHED = ("02_reading_a_curve", "03_order_and_sorting", "04_against_the_paper")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_notebook_runs_without_a_data_folder(name: str, tmp_path: Path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.delenv("ICL_BENCH_DATA", raising=False)
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=900, kernel_name="python3", resources=folder).execute()
    first = next(cell for cell in book.cells if cell.get("outputs"))
    assert first.outputs[0]["text"] == "158,750 predictions\n"


def test_no_other_notebook_needs_a_data_folder():
    for path in NOTEBOOKS.glob("*.ipynb"):
        text = path.read_text()
        assert "ICL_BENCH_DATA" not in text or path.stem in PUBLISHED
        assert "../../shared" not in text
