"""Imports predictions of other programs into a results folder.

A file is read and checked completely before anything is stored. Predictions that the analysis could not count correctly
are refused: repeated rows, percentages instead of shares, rows that contradict each other or themselves. Draws without
some test rows are accepted: tables compare draws on their common rows and report the omitted ones. An import is one
file in ``imported/`` with all its cells. For an export (``icl-bench export``) it also keeps the facts of the variants.

A file is a table of predictions, or one of the files of another harness (:mod:`icl_bench.results.importing.formats`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from icl_bench.errors import UserError
from icl_bench.results.cells import FINISHED, PROTOCOL, slug
from icl_bench.results.exporting import stated_origins
from icl_bench.results.importing.columns import NEEDED, checked_columns
from icl_bench.results.importing.formats import file_of, parse, stem_of
from icl_bench.results.importing.samples import NOTHING_STATED, Stated
from icl_bench.results.reading import EXPORT_META, IMPORT_META, IMPORTED, DamagedError, read_whole, warn
from icl_bench.results.storage import Place, Storage, storage_at
from icl_bench.results.stored_meta import ImportMeta, as_stored
from icl_bench.table_files import parquet_bytes
from icl_bench.text_files import read_file
from icl_bench.wording import one_line, plain

__all__ = ["NEEDED", "Import", "Stated", "find_import", "import_predictions"]


@dataclass(frozen=True)
class Import:
    """A file that has been imported into a results folder."""

    where: str
    """Its location, for messages."""
    rows: int
    further: tuple[str, ...] = ()
    """Columns unknown to this program, which are kept."""
    before: bool = False
    """Whether it was already imported, so that nothing was written."""
    notes: tuple[str, ...] = ()
    """Assumptions about another harness's log."""


def import_predictions(file: Path, results: Place, stated: Stated = NOTHING_STATED) -> Import:
    """Store a file of predictions in a results folder, once.

    ``stated`` has values that the file lacks, such as the model. Raises ``UserError`` if the file cannot be read, lacks
    columns or values, or has rows that repeat or contradict each other, or if the folder cannot be written.
    """
    file = file_of(file)
    stem, raw = stem_of(file), read_file(file)
    shown = plain(file)
    parsed = parse(file, raw, stated)
    contents = [raw if path == file else read_file(path) for path in parsed.files] or [raw]
    sha256 = _digest(contents, stated)
    storage = storage_at(results)
    if before := find_import(storage, sha256):
        name, rows = before
        return Import(storage.where(name), rows, before=True)
    checked = checked_columns(parsed.of_variant(sha256[:8]), shown, sha256[:8], parsed.judge)
    name = f"{IMPORTED}/{slug(stem)[:80]}-{sha256[:12]}{FINISHED}"
    rows = len(checked.known["gold"])
    about = ImportMeta(source=file.name, sha256=sha256, rows=rows, protocol=PROTOCOL)
    whole = pa.table({**checked.known, **checked.further})
    meta: dict[bytes, bytes] = {IMPORT_META: json.dumps(as_stored(about)).encode()}
    if stated == NOTHING_STATED and (origins := parsed.origins or stated_origins(raw)) is not None:
        meta[EXPORT_META] = origins
    _put(storage, name, whole, checked.schema.with_metadata(meta), file.name)
    for note in checked.notes:
        warn(f"{shown}: {note}")
    return Import(storage.where(name), rows, tuple(checked.further), notes=parsed.notes)


def _digest(contents: Sequence[bytes], stated: Stated) -> str:
    """SHA-256, in hex, of files in any order with the stated values."""
    if len(contents) == 1:
        return hashlib.sha256(contents[0] + stated.digest()).hexdigest()
    each = sorted({hashlib.sha256(content).digest() for content in contents})
    return hashlib.sha256(b"".join(each) + stated.digest()).hexdigest()


def find_import(storage: Storage, sha256: str) -> tuple[str, int] | None:
    """Name and number of predictions of the import with this hash, unless damaged."""
    for name in sorted(storage.names(IMPORTED)):
        if not name.endswith(f"-{sha256[:12]}{FINISHED}"):
            continue
        with suppress(DamagedError):
            file = read_whole(storage, name)
            if file.imported and file.imported.sha256 == sha256:
                return name, len(file.table)
    return None


def _put(storage: Storage, name: str, table: pa.Table, schema: pa.Schema, source: str) -> None:
    storage.prepare()
    try:
        storage.put(name, parquet_bytes(table, schema))
    except OSError as error:
        raise UserError(f"results folder {storage.where()}: {error.strerror or error}; nothing was imported") from None
    except pa.ArrowException as error:
        raise UserError(one_line(f"{source}: cannot be stored: {error}")) from None
