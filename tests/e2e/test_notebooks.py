"""The notebooks run from top to bottom, and what they show is what the program says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.api_server import free_port
from support.program import as_words

TESTS = Path(__file__).parents[1]
NOTEBOOKS = TESTS.parent / "notebooks"
NAMES = [
    *as_words(
        "01_first_sweep 02_reading_a_curve 03_order_and_sorting 04_against_the_paper 05_does_context_need_context "
        "06_demonstrations_as_vectors 07_your_own_data 08_which_selection_at_what_price 09_choose_a_setting "
        "10_a_model_behind_a_server"
    )
]

PUBLISHED = ("02_reading_a_curve", "03_order_and_sorting", "04_against_the_paper")
"""They run for somebody who has the installed package alone."""

IMPORT = "!{program} import {published} --results {folder} --quiet"
ONCE = f'import os\nfolder = os.environ["IMPORTED"]\nif not os.listdir(folder):\n    {IMPORT}'
"""Of the notebooks that read what is published, the first imports it; the others would import the same again."""

PORT = free_port()
"""Of the server in a notebook, which a reader's machine may run on the port that is written there."""

SMALLER = {
    **{name: {IMPORT: ONCE} for name in PUBLISHED},
    "01_first_sweep": {'[1, 10, 50], "draws": 3, "test_size": 60': '[1, 3], "draws": 2, "test_size": 4'},
    "05_does_context_need_context": {
        '"block:4", "block:12"': '"block:2"',
        '"k": [8, 24]': '"k": [2, 4]',
        '"test_size": 20': '"test_size": 3',
    },
    "06_demonstrations_as_vectors": {
        "--rows 88": "--rows 8",
        "--batch 8": "--batch 4",
        "--spare-k 32": "--spare-k 8",
        "--vectors 28": "--vectors 4",
        "vectors:28": "vectors:4",
        "[4, 32]": "[4, 8]",
        '"test_size": 20': '"test_size": 8',
        "k=32": "k=8",
    },
    "07_your_own_data": {'[1, 10, 40], "draws": 2, "test_size": 30': '[1, 3], "draws": 2, "test_size": 4'},
    "08_which_selection_at_what_price": {
        "k=40, draws=3": "k=5, draws=2",
        "k=8": "k=3",
        '"test_size": 24': '"test_size": 4',
    },
    "09_choose_a_setting": {'"k": [0, 5]': '"k": [0, 2]', '"draws": 3, "test_size": 40': '"draws": 2, "test_size": 8'},
    "10_a_model_behind_a_server": {
        '"draws": 2, "test_size": 12': '"draws": 1, "test_size": 2',
        '"8123"': f'"{PORT}"',
        ":8123/": f":{PORT}/",
    },
}
"""What is written otherwise here: fewer questions, or steps of training, show as well that it runs."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for all notebooks, which imports PyTorch and the like and loads each model once; each finds it emptied."""
    from jupyter_client.manager import AsyncKernelManager
    from nbclient.util import run_sync

    manager = AsyncKernelManager(kernel_name="python3")
    yield manager
    if manager.has_kernel:
        run_sync(manager.shutdown_kernel)(now=True)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the published predictions, empty at first."""
    return tmp_path_factory.mktemp("imported")


LONGEST = (
    "05_does_context_need_context",
    "06_demonstrations_as_vectors",
    "09_choose_a_setting",
    "10_a_model_behind_a_server",
)
"""They compare patterns, train a reader of vectors, race settings and start a server, which other tests do too."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name in LONGEST else name for name in NAMES]
)
def test_a_notebook_runs(name: str, kernel: Any, imported: Path, tmp_path: Path, request: pytest.FixtureRequest):
    """Raises with the cell's own error; each has a picture or a table to look at."""
    import nbformat
    from nbclient import NotebookClient

    copy = Path(shutil.copy(NOTEBOOKS / f"{name}.ipynb", tmp_path))
    book = nbformat.read(copy, as_version=4)
    nbformat.validate(book)
    smaller = SMALLER.get(name, {})
    assert all(any(written in cell.source for cell in book.cells) for written in smaller)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = []
            for written, instead in smaller.items():
                cell.source = cell.source.replace(written, instead)
    data = "" if name in PUBLISHED else request.getfixturevalue("data_dir").resolve()
    sharing = f"sys.path.append({str(TESTS)!r})\nfrom support.loaded_once import share_models\nshare_models()"
    # the kernel is in the folder of the previous notebook, which no longer exists
    begun = f"import os, sys\nos.chdir({str(tmp_path)!r})\n{sharing}\n%reset -f"
    named = f"%env ICL_BENCH_DATA={data}\n%env IMPORTED={imported}"
    book.cells.insert(0, nbformat.v4.new_code_cell(f"{begun}\n{named}\n%matplotlib inline"))
    NotebookClient(book, timeout=900, km=kernel).execute()
    del book.cells[0]
    shown = [out for cell in book.cells for out in cell.get("outputs", [])]
    assert any("text/html" in out.get("data", {}) for out in shown)
    pictures = [out for out in shown if "image/png" in out.get("data", {})]
    assert pictures or name == "04_against_the_paper"
    assert not [out for out in shown if out.get("name") == "stderr"]
    if name in PUBLISHED:
        assert shown[0]["text"] == "304,000 predictions\n"
        assert tables(book) == tables(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4))


def tables(book: Any) -> list[str]:
    """The tables that a notebook shows, as text."""
    shown = [out.get("data", {}) for cell in book.cells for out in cell.get("outputs", [])]
    return [data["text/plain"] for data in shown if "text/html" in data]


def test_every_notebook_is_run_here():
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_hold_no_logic(name: str):
    """What is worth a function belongs into the package."""
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())["cells"]
    code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    for word in ("def ", "class ", "while ", "lambda"):
        assert word not in code
    assert "ICL_BENCH_DATA" not in code or name in PUBLISHED
    assert "../../shared" not in code
    assert code.count("for ") <= 1
    assert len(code.splitlines()) <= 60
