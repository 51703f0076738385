"""What tests need of the machine."""

from __future__ import annotations

import os
from importlib.util import find_spec
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


def packages(*names: str) -> None:
    """Skip a file's tests where a package is missing. Unlike pytest's ``importorskip``, nothing is imported while tests
    are collected, which each process does for all files.
    """
    for name in names:
        if find_spec(name) is None:
            pytest.skip(f"could not import {name!r}", allow_module_level=True)
