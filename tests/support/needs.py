"""What tests need of the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Skip the test, which needs what the machine does not have; fail it where ``CI`` is set."""
    reason = f"needs {what}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def data_folder() -> Path:
    """The folder of the data sets."""
    folder = Path(os.environ.get("ICL_BENCH_DATA") or "../shared/data")
    if not folder.is_dir():
        missing("the data folder: set ICL_BENCH_DATA")
    return folder
