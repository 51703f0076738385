"""A package of someone else's, installed for one test."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from icl_bench.registry import Registry


def installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, known: Registry, entry: str, code: str,
    built_in: dict[str, str],
) -> Registry:  # fmt: skip
    """Install one module under an entry point; a registry of the same group that finds it.

    ``entry`` is ``name = module:object``, and ``code`` the module.
    """
    module = entry.partition("=")[2].partition(":")[0].strip()
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{known.group}]\n{entry}\n")
    (folder / f"{module}.py").write_text(dedent(code))
    monkeypatch.syspath_prepend(folder)
    return Registry(known.kind, known.group, built_in)
