"""Reads the tables that users give as CSV, Excel or Parquet, or says what is wrong with them."""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import io
import re
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.wording import one_line, plain

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq


LARGEST = 4 * 2**30
"""Bytes that a compressed file of other programs may hold: a few megabytes of zeros would fill the memory."""

LARGEST_ROWS = 2 * 10**8
"""Rows that a Parquet file of other programs may hold: a value that is repeated takes no space."""


class LargerThanAllowedError(UserError):
    """What a compressed file holds is too large."""

    def __init__(self, shown: str) -> None:
        super().__init__(f"{shown}: holds more than {LARGEST / 2**30:.3g} GiB; decompress or split it first")


def gunzip(raw: bytes, shown: str) -> bytes:
    """What a gzip file holds. Raises ``UserError``, also for more than :data:`LARGEST` bytes."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
            content = stream.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(one_line(f"{shown}: not a complete gzip file: {error}")) from None
    if len(content) > LARGEST:
        raise LargerThanAllowedError(shown)
    return content


def check_archive(archive: zipfile.ZipFile, shown: str) -> None:
    """Raise ``UserError`` if the files in an archive are larger than :data:`LARGEST` together."""
    if sum(info.file_size for info in archive.infolist()) > LARGEST:
        raise LargerThanAllowedError(shown)


def check_names(names: Sequence[str], shown: str) -> None:
    """Raise ``UserError`` if a column appears twice."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(one_line(f"{shown}: column {plain(twice[0])} appears twice"))


DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
"""What may stand between the cells of a CSV file, in words."""


def find_delimiter(text: str) -> str:
    """The delimiter of a CSV text: the one that cuts its first line into the most cells, else a comma."""
    first = re.search(r"[^\r\n]*\S[^\r\n]*", text)
    header = first[0] if first else ""

    def cells(delimiter: str) -> int:
        try:
            return len(next(csv.reader([header], delimiter=delimiter, strict=True), []))
        except csv.Error:
            return 0

    return max(DELIMITERS, key=cells)


def csv_rows(text: str, shown: str, delimiter: str = ",") -> Iterator[tuple[str, list[str]]]:
    """The header and the rows of a CSV file, as many cells in each; lines without any are skipped.

    Each comes with its place as messages name it, like ``mine.csv:2``. Cells may be of any length:
    whole prompts stand in some. Raises ``UserError`` with the line.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    width = 0
    try:
        while (cells := _next(reader)) is not None:
            where = f"{shown}:{reader.line_num}"
            width = width or len(cells)
            if cells and len(cells) != width:
                raise UserError(f"{where}: {len(cells)} cells, but the header has {width}")
            if cells:
                yield where, cells
    except csv.Error as error:
        raise UserError(one_line(f"{shown}:{reader.line_num}: not CSV: {error}")) from None


def _next(reader: Iterator[list[str]]) -> list[str] | None:
    """The next row. A cell's length has a limit that all readers share: it is lifted meanwhile."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


def excel_sheet(raw: bytes, shown: str) -> tuple[list[str], list[list[Any]]]:
    """The names of the sheets of an .xlsx file, and the cells of the first one, as many in each row.

    Empty cells are "", cells with an error (``#N/A``) are None. Raises ``UserError``, also if the package that
    reads such files is missing.
    """
    import pandas as pd

    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            check_archive(archive, shown)
        with pd.ExcelFile(io.BytesIO(raw), engine="openpyxl") as book:
            # without a header: pandas would rename columns of one name
            sheet = pd.read_excel(book, header=None, dtype=object, keep_default_na=False, na_values=[])
            rows = [[None if pd.isna(value) else value for value in row] for row in sheet.to_numpy().tolist()]
            return list(map(str, book.sheet_names)), rows
    except LargerThanAllowedError:
        raise
    except ImportError:
        raise UserError(f"{shown}: needs the package openpyxl (pip install openpyxl); or save it as CSV") from None
    except Exception as error:  # whatever openpyxl raises for a damaged file
        raise UserError(one_line(f"{shown}: not a complete Excel file: {error}")) from None


@contextmanager
def refusing_damaged_parquet(shown: str) -> Iterator[None]:
    """Turn what pyarrow raises for a damaged Parquet file into ``UserError``.

    Values are often found damaged only when they are converted, so that belongs inside.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(one_line(f"{shown}: not a complete Parquet file: {error}")) from None


_SEAL = b"\xffICL-BENCH SHA256"
"""Begins with what no UTF-8 text has, so that it stands in no name or value."""


def parquet_table(raw: bytes, columns: Collection[str] | None = None, without: Collection[str] = ()) -> pa.Table:
    """The table in a Parquet file, or these of its columns, or all ``without`` some; every value is
    checked. If ``columns`` are named, texts are numbers of dictionaries. Raises what pyarrow raises.

    A file of :func:`parquet_bytes` is checked for any byte that has changed. Read in this thread
    alone: pyarrow's others may give memory back to Python when it has begun to end, and then the
    whole process is aborted.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sealed = _check_seal(raw)
    source, texts = pa.BufferReader(raw), None  # it is in memory
    wanted = None
    if columns is not None:
        fields = [f for f in pq.read_schema(source) if f.name in columns]
        wanted = [f.name for f in fields]
        # millions of texts take longer to write out than all the rest; lists of texts are read as they are
        texts = [f.name for f in fields if pa.types.is_string(f.type) or pa.types.is_dictionary(f.type)]
    elif without:
        wanted = [f.name for f in pq.read_schema(source) if f.name not in without]
    with pq.ParquetFile(source, read_dictionary=texts, pre_buffer=False) as file:
        if not sealed:
            _check_size(file.metadata)
        table = file.read(wanted, use_threads=False)
    table.validate(full=True)
    return table


def parquet_rows(raw: bytes, wanted: Mapping[str, str]) -> pa.Table:
    """The first rows in a Parquet file with these texts in these columns that stand together.

    Of many rows only the group that holds them is read whole. Raises what pyarrow raises.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    _check_seal(raw)
    schema = pq.read_schema(pa.BufferReader(raw))
    texts = [f.name for f in schema if pa.types.is_string(f.type)]
    # texts stay numbers of a dictionary: to write out millions takes longer than all the rest
    with pq.ParquetFile(pa.BufferReader(raw), read_dictionary=texts, pre_buffer=False) as file:
        for group in range(file.num_row_groups):
            keys = file.read_row_group(group, list(wanted), use_threads=False)
            same = [pc.equal(keys[name].cast(pa.string()), text) for name, text in wanted.items()]
            place = pc.index(functools.reduce(pc.and_, same), True).as_py()
            if place >= 0:
                table = file.read_row_group(group, use_threads=False).slice(place, 1)
                table.validate(full=True)
                return table.cast(pa.schema(list(schema)))
    return schema.empty_table()


def data_frame(table: pa.Table) -> pd.DataFrame:
    """A table for pandas, converted in this thread alone, for the reason of reading it there."""
    frame: pd.DataFrame = table.to_pandas(use_threads=False)
    return frame


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file, sealed. Raises ``pyarrow.ArrowException`` for types it has not.

    The seal is a SHA-256 of all other bytes. It stands in front of the footer, where no offset
    points to: any reader finds the table as without it, and what writes the table anew drops it.
    """
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    raw = stream.getvalue()
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")  # the format, "File Format"
    return raw[:footer] + _SEAL + hashlib.sha256(raw).digest() + raw[footer:]


def _check_size(about: pq.FileMetaData) -> None:
    """Raise ``pyarrow.ArrowInvalid`` for more than :data:`LARGEST` bytes or :data:`LARGEST_ROWS`."""
    import pyarrow as pa

    size = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    if size > LARGEST or about.num_rows > LARGEST_ROWS:
        raise pa.ArrowInvalid(f"holds {about.num_rows:,} rows of {size / 2**30:.3g} GiB; split it first")


def _check_seal(raw: bytes) -> bool:
    """Whether a file is sealed. Raises ``pyarrow.ArrowInvalid`` if it is and is not as it was written."""
    import pyarrow as pa

    if (place := raw.rfind(_SEAL)) < 0:
        return False
    end = place + len(_SEAL) + hashlib.sha256().digest_size
    if raw[place + len(_SEAL) : end] != hashlib.sha256(raw[:place] + raw[end:]).digest():
        raise pa.ArrowInvalid("bytes of it have changed since it was written")
    return True
