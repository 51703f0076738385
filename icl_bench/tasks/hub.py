"""Reads rows of a data set on the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Thread
from typing import Any

from icl_bench.errors import UserError
from icl_bench.tasks.file_readers import hold_out, wanted_columns
from icl_bench.tasks.spec import HubSource
from icl_bench.tasks.splits import Source, Split, StoredRow, name_classes, rows_digest
from icl_bench.wording import listed_or, one_line

HUB_SECONDS = 5.0
"""The time limit for the hub's first response."""


class HubError(Exception):
    """A data set could not be loaded from the hub. The message is the reason, in one line."""


def hub_name(hub: HubSource) -> str:
    """Data set and revision, for messages."""
    return f"{hub.path}@{hub.revision}"


def from_hub(task: str, hub: HubSource, columns: Mapping[str, str]) -> Source:
    """Read a data set from the Hugging Face hub. If it has no test split, split one off train."""
    unreachable = None if Path(hub.path).is_dir() else _hub_unreachable(hub.path)
    cells = {"train": _hub_rows(hub, hub.train, columns, unreachable)}
    if hub.holdout is None:
        cells["test"] = _hub_rows(hub, hub.test, columns, unreachable)
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
    notes = (f"{hub_name(hub)} may change: pin a revision",) if hub.revision == "main" else ()
    return Source(f"hub {hub_name(hub)}", splits["train"], splits["test"], columns, notes)


def _hub_unreachable(path: str) -> str | None:
    """Why the hub does not respond, or None if it does. An HTTP error is a response.

    This makes one short request, because ``datasets`` retries for half a minute. The request runs in
    a thread: if packets are dropped, its own timeout starts again for each address of the host.
    """
    from datasets import config
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    if config.HF_HUB_OFFLINE:
        return None  # datasets uses its cache only
    reason: str | None = f"no answer in {HUB_SECONDS:g} s"

    def ask() -> None:
        nonlocal reason
        try:
            HfApi().dataset_info(path, expand=["sha"], timeout=HUB_SECONDS)
        except (HfHubHTTPError, ValueError):
            reason = None
        except Exception as error:  # whatever the library and its transports raise
            reason = f"{type(error).__name__}: {error}"
        else:
            reason = None

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return reason


def _hub_rows(hub: HubSource, split: str, columns: Mapping[str, str], unreachable: str | None) -> list[dict[str, Any]]:
    """The needed columns of one split, with class numbers replaced by class names.

    For a Jinja template, they stay numbers, as the template expects.
    """
    try:
        with _cache_only() if unreachable else nullcontext():
            import datasets

            table = datasets.load_dataset(hub.path, hub.name, revision=hub.revision, split=split)
    except Exception as error:  # whatever the library, its transports and its parsers raise
        if (mistake := _mistake(hub, split, str(error))) is not None:
            raise UserError(mistake) from None
        lines = str(error).strip().splitlines() or [""]
        if unreachable and isinstance(error, ConnectionError):
            lines = [f"Couldn't reach {hub.path!r} on the Hub ({unreachable})"]
        raise HubError(one_line(f"{type(error).__name__}: {lines[0]}"[:200])) from error
    needed = wanted_columns(columns, table.column_names, hub_name(hub))
    table = table.select_columns(needed)
    rows: list[dict[str, Any]] = table.to_list()
    names = {column: getattr(table.features[column], "names", None) for column in needed if columns}
    name_classes(rows, {column: known for column, known in names.items() if known}, hub_name(hub))
    return rows


_OPTIONS = re.compile(r"(available configs|Available|one of): ?\[(.*?)\]|Should be one of \[(.*?)\]", re.DOTALL)


def _mistake(hub: HubSource, split: str, message: str) -> str | None:
    """What to write instead of a configuration or split that the data set does not have, by the message of
    ``datasets``; None for other errors.
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
