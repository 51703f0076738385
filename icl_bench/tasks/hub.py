"""Reads rows with ``datasets``: from a data set on the Hugging Face hub, or from files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from icl_bench.errors import UserError
from icl_bench.models import hub as hub_files
from icl_bench.tasks.file_readers import hold_out, wanted_columns
from icl_bench.tasks.spec import HubSource
from icl_bench.tasks.splits import Source, Split, StoredRow, name_classes, rows_digest
from icl_bench.wording import few, first_line, listed_or, one_line, plain


class HubError(Exception):
    """A data set could not be loaded from the hub. The message is the reason, in one line."""


def hub_name(hub: HubSource) -> str:
    """Data set and revision, or the kind of files, for messages."""
    return f"{hub.path} files" if hub.is_files else f"{hub.path}@{hub.revision}"


def _files(hub: HubSource) -> str:
    """The first names of files, for messages."""
    files = hub.arguments.get("data_files") or hub.arguments.get("data_dir")
    groups = list(files.values()) if isinstance(files, Mapping) else [files]
    names = [str(name) for group in groups for name in (group if isinstance(group, list) else [group])]
    return one_line(few([*dict.fromkeys(names)]))


def from_files(task: str, hub: HubSource, columns: Mapping[str, str]) -> Source:
    """Read files with ``datasets``, which infers the types of cells. Raises ``UserError``."""
    try:
        return from_hub(task, hub, columns)
    except HubError as error:
        raise UserError(f"{task}: no data: datasets cannot read its {hub_name(hub)} ({_files(hub)}): {error}") from None


def from_hub(task: str, hub: HubSource, columns: Mapping[str, str]) -> Source:
    """Read a data set with ``datasets``. If it has no test split, split one off train."""
    wanted = dict.fromkeys([hub.train] if hub.holdout else [hub.train, hub.test])
    found = _rows_of_files(hub, wanted, columns) if hub.is_files else _rows_of_hub(hub, wanted, columns)
    cells = {"train": found[hub.train]}
    if hub.holdout is None:
        cells["test"] = found[hub.test]
    else:
        rows = cells["train"]
        parts = hold_out([StoredRow(f"{hub_name(hub)} row {n}", row) for n, row in enumerate(rows)], hub.holdout)
        cells = {split: [rows[i] for i in part] for split, part in parts.items()}
    splits = {}
    for split, rows in cells.items():
        if not rows:
            raise UserError(f"{task}: {hub_name(hub)} has no {split} rows")
        stored = [StoredRow(f"{hub_name(hub)} {split} row {n}", row) for n, row in enumerate(rows)]
        splits[split] = Split(split, f"{hub_name(hub)}:{split}", rows_digest(rows), stored)
    if hub.is_files:
        return Source(f"{hub_name(hub)} ({_files(hub)})", splits["train"], splits["test"], columns)
    notes = (f"{hub_name(hub)} may change: pin a revision",) if hub.revision == "main" else ()
    return Source(f"hub {hub_name(hub)}", splits["train"], splits["test"], columns, notes)


def _hub_unreachable(path: str) -> str | None:
    """Why the hub does not respond, or None if it does."""
    from datasets import config

    if config.HF_HUB_OFFLINE:
        return None  # datasets uses its cache only
    return hub_files.unreachable(lambda api: api.dataset_info(path, expand=["sha"], timeout=hub_files.hub_seconds()))


Rows = list[dict[str, Any]]


def _rows_of_files(hub: HubSource, splits: Iterable[str], columns: Mapping[str, str]) -> dict[str, Rows]:
    """The rows of splits of files. All splits are read together, because they share their types.

    The copy that ``datasets`` writes is removed, so that a changed file is read again.
    """
    with TemporaryDirectory(prefix="icl-bench-") as folder:
        tables = _loaded(hub, None, cache_dir=folder)
        if missing := [split for split in splits if split not in tables]:
            raise HubError(f"no split {plain(missing[0])} (there is {one_line(', '.join(map(plain, tables)))})")
        return {split: _rows_of_table(hub, tables[split], columns) for split in splits}


def _rows_of_hub(hub: HubSource, splits: Iterable[str], columns: Mapping[str, str]) -> dict[str, Rows]:
    """The rows of the splits of a data set on the hub, or of its copy in a folder or a cache."""
    unreachable = None if Path(hub.path).is_dir() else _hub_unreachable(hub.path)
    found = {}
    for split in splits:
        try:
            with _cache_only() if unreachable else nullcontext():
                table = _loaded(hub, split, revision=hub.revision)
        except HubError as error:
            if unreachable and isinstance(error.__cause__, ConnectionError):
                raise HubError(f"ConnectionError: Couldn't reach {hub.path!r} on the Hub ({unreachable})") from error
            raise
        found[split] = _rows_of_table(hub, table, columns)
    return found


def _loaded(hub: HubSource, split: str | None, **options: Any) -> Any:
    """The result of ``datasets``: a table, or without ``split`` all splits by name. Raises ``HubError``."""
    try:
        import datasets

        return datasets.load_dataset(hub.path, hub.name, split=split, **{**hub.arguments, **options})
    except Exception as error:  # any error of the library, its transports and its parsers
        if split is not None and (mistake := _mistake(hub, split, str(error))) is not None:
            raise UserError(mistake) from None
        reason: BaseException = error
        if type(error).__name__ == "DatasetGenerationError":  # whose own message is empty
            reason = error.__cause__ or error
        raise HubError(one_line(f"{type(reason).__name__}: {first_line(reason)}"[:200])) from error


def _rows_of_table(hub: HubSource, table: Any, columns: Mapping[str, str]) -> Rows:
    """The needed columns of one split, with class numbers replaced by class names.

    For a Jinja template, they stay numbers, as the template expects.
    """
    needed = wanted_columns(columns, table.column_names, hub_name(hub))
    table = table.select_columns(needed)
    rows: Rows = table.to_list()
    names = {column: getattr(table.features[column], "names", None) for column in needed if columns}
    name_classes(rows, {column: known for column, known in names.items() if known}, hub_name(hub))
    return rows


_OPTIONS = re.compile(r"(available configs|Available|one of): ?\[(.*?)\]|Should be one of \[(.*?)\]", re.DOTALL)


def _mistake(hub: HubSource, split: str, message: str) -> str | None:
    """Advice for a configuration or split that the data set does not have, from the message of ``datasets``; None for
    other errors.
    """
    found = _OPTIONS.search(message)
    if found is None:
        return None
    options = re.findall(r"'([^']*)'", found[2] or found[3] or "")
    if not options:
        return None
    shown = listed_or(options[:20]) + (f" (of {len(options)})" if len(options) > 20 else "")
    if found[3] is not None:
        return one_line(f"{hub_name(hub)} has no split {split!r}: set data.hub.train and data.hub.test: {shown}")
    if hub.name is None:
        return one_line(f"{hub_name(hub)} has several configurations: set data.hub.name: {shown}")
    return one_line(f"{hub_name(hub)} has no configuration {hub.name!r}: set data.hub.name: {shown}")


@contextmanager
def _cache_only() -> Iterator[None]:
    """Let ``datasets`` use its cache only, like ``HF_HUB_OFFLINE=1``."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
