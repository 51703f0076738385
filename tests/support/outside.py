"""Packages of someone else's, installed for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from icl_bench.registry import Registry


def described(folder: Path, package: str, entries: Mapping[str, str]) -> None:
    """Write what a package's installation leaves: its entry points (``name = module:object``), by
    group.
    """
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"[{group}]\n{entry}\n" for group, entry in entries.items()]
    (metadata / "entry_points.txt").write_text("".join(lines))


@contextmanager
def looked_for_again(*kinds: Registry) -> Iterator[None]:
    """These kinds look for what is installed again, now and behind it: they looked once before,
    where another test asked.
    """
    for kind in kinds:
        vars(kind).pop("_entries", None)
    yield
    for kind in kinds:
        vars(kind).pop("_entries", None)


def installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, known: Registry, entry: str, code: str, built_in: dict[str, str]
) -> Registry:
    """Install one module under an entry point; a registry of the same group that finds it.

    ``entry`` is ``name = module:object``, and ``code`` the module.
    """
    module = entry.partition("=")[2].partition(":")[0].strip()
    described(folder, module, {known.group: entry})
    (folder / f"{module}.py").write_text(dedent(code))
    monkeypatch.syspath_prepend(folder)
    return Registry(known.kind, known.group, built_in)
