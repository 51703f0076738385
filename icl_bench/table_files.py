"""Reads users' tables in CSV, Excel or Parquet files, or reports their errors."""

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.wording import one_line, plain

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq


LARGEST = 4 * 2**30
"""Maximum decompressed bytes of other programs' files, because a few megabytes of zeros could fill the memory."""

MANY_ROWS = 200_000
"""Rows from which a file's texts are worth encoding."""

LARGEST_ROWS = 2 * 10**8
"""Maximum rows of other programs' Parquet files, because a repeated value takes no space."""


class LargerThanAllowedError(UserError):
    """The content of a compressed file is too large."""

    def __init__(self, shown: str) -> None:
        super().__init__(f"{shown}: holds more than {LARGEST / 2**30:.3g} GiB; decompress or split it first")


def gunzip(raw: bytes, shown: str) -> bytes:
    """The content of a gzip file. Raises ``UserError``, also for more than :data:`LARGEST` bytes."""
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
"""Possible delimiters of a CSV file, in words."""


def find_delimiter(text: str) -> str:
    """The delimiter of a CSV text: the one that splits its first line into the most cells, else a comma."""
    first = re.search(r"[^\r\n]*\S[^\r\n]*", text)
    header = first[0] if first else ""

    def cells(delimiter: str) -> int:
        try:
            return len(next(csv.reader([header], delimiter=delimiter, strict=True), []))
        except csv.Error:
            return 0

    return max(DELIMITERS, key=cells)


def csv_rows(text: str, shown: str, delimiter: str = ",") -> Iterator[tuple[str, list[str]]]:
    """The header and the rows of a CSV file, with equal numbers of cells; empty lines are skipped.

    Each row has its location for messages, such as ``mine.csv:2``. Cells may have any length, because some contain
    whole prompts. Raises ``UserError`` with the line.
    """
    raw = io.BytesIO(text.encode(errors="surrogatepass"))  # a StringIO needs four bytes for each letter
    lines = io.TextIOWrapper(raw, "utf-8", "surrogatepass", newline="")
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
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
    """The next row. The limit on a cell's length, which all readers share, is lifted meanwhile."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


def excel_sheet(raw: bytes, shown: str) -> tuple[list[str], list[list[Any]]]:
    """The names of the sheets of an .xlsx file, and the cells of the first one, with equal numbers in each row.

    Empty cells are "", cells with an error (``#N/A``) are None. Raises ``UserError``, also if the package that
    reads such files is missing.
    """
    import pandas as pd

    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            check_archive(archive, shown)
        with pd.ExcelFile(io.BytesIO(raw), engine="openpyxl") as book:
            # without a header, because pandas would rename columns with equal names
            sheet = pd.read_excel(book, header=None, dtype=object, keep_default_na=False, na_values=[])
            rows = [[None if pd.isna(value) else value for value in row] for row in sheet.to_numpy().tolist()]
            return list(map(str, book.sheet_names)), rows
    except LargerThanAllowedError:
        raise
    except ImportError:
        raise UserError(f"{shown}: needs the package openpyxl (pip install openpyxl); or save it as CSV") from None
    except Exception as error:  # any error of openpyxl for a damaged file
        raise UserError(one_line(f"{shown}: not a complete Excel file: {error}")) from None


@contextmanager
def refusing_damaged_parquet(shown: str) -> Iterator[None]:
    """Convert pyarrow's errors for a damaged Parquet file to ``UserError``.

    Damaged values are often detected only on conversion, which therefore belongs inside the block.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(one_line(f"{shown}: not a complete Parquet file: {error}")) from None


_SEAL = b"\xffICL-BENCH SHA256"
"""Prefix with bytes that are invalid in UTF-8 text, so that it is in no name or value."""


def parquet_table(
    raw: bytes, columns: Collection[str] | None = None, without: Collection[str] = (), coded: Collection[str] = ()
) -> pa.Table:
    """Read the table in a Parquet file, with these ``columns`` only, or ``without`` some; every value is checked. With
    ``columns``, texts are dictionary-encoded; without, the ``coded`` texts are in a file of at least
    :data:`MANY_ROWS`. Raises pyarrow's errors.

    A file of :func:`parquet_bytes` is checked for changes of any byte. It is read in this thread only, because
    pyarrow's other threads may return memory to Python during its shutdown, which aborts the process.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sealed = _check_seal(raw)
    source, texts = pa.BufferReader(raw), None  # it is in memory
    wanted = None
    if columns is not None:
        fields = [f for f in pq.read_schema(source) if f.name in columns]
        wanted = [f.name for f in fields]
        # decoding millions of texts takes longer than everything else; lists of texts are read as they are
        texts = [f.name for f in fields if pa.types.is_string(f.type) or pa.types.is_dictionary(f.type)]
    elif without:
        wanted = [f.name for f in pq.read_schema(source) if f.name not in without]
    is_large = columns is None and bool(coded) and pq.read_metadata(source).num_rows >= MANY_ROWS
    if is_large:
        texts = [f.name for f in pq.read_schema(source) if f.name in coded and is_text(f.type)]
    with pq.ParquetFile(source, read_dictionary=texts, pre_buffer=False) as file:
        if not sealed:
            _check_size(file.metadata)
        if is_large:
            return _in_few_bytes(file, wanted)
        table = file.read(wanted, use_threads=False)
    table.validate(full=True)
    return table


def _in_few_bytes(file: pq.ParquetFile, columns: Sequence[str] | None) -> pa.Table:
    """A table whose dictionary-encoded columns have one dictionary each, and the smallest codes. Columns without any
    value share their empty parts.
    """
    import pyarrow as pa

    dictionaries: dict[str, pa.Array] = {}
    parts: dict[str, list[pa.Array]] = {}
    fields = [f for f in file.schema_arrow if columns is None or f.name in columns]
    for number in range(file.num_row_groups):
        group = file.read_row_group(number, columns, use_threads=False)
        group.validate(full=True)
        for field in fields:
            for chunk in group[field.name].chunks:
                if pa.types.is_dictionary(chunk.type):
                    chunk = _coded(chunk, field.name, dictionaries)
                elif chunk.null_count == len(chunk):
                    earlier = parts.get(field.name, [None])[-1]
                    same = earlier is not None and earlier.null_count == len(earlier) >= len(chunk)
                    chunk = earlier.slice(0, len(chunk)) if same else chunk
                parts.setdefault(field.name, []).append(chunk)
    whole = {}
    for field in fields:
        chunks = parts.get(field.name, [])
        if field.name in dictionaries:
            values = dictionaries[field.name]
            code = smallest_codes(len(values))
            chunks = [pa.DictionaryArray.from_arrays(chunk.cast(code), values) for chunk in chunks]
            whole[field.name] = pa.chunked_array(chunks, pa.dictionary(code, values.type))
        else:
            whole[field.name] = pa.chunked_array(chunks, chunks[0].type if chunks else field.type)
    return pa.table(whole).replace_schema_metadata(file.schema_arrow.metadata)


def _coded(chunk: pa.DictionaryArray, name: str, dictionaries: dict[str, pa.Array]) -> pa.Array:
    """The codes of a part of a column in the column's dictionary, to which new values are added."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = dictionaries.get(name)
    if known is None:
        dictionaries[name] = known = chunk.dictionary
        if len(known.unique()) == len(known):
            return chunk.indices.cast(smallest_codes(len(known)))
        dictionaries[name] = known = known.unique()
    place = pc.index_in(chunk.dictionary, known)
    if place.null_count:
        new = chunk.dictionary.filter(pc.is_null(place)).unique()
        dictionaries[name] = known = pa.concat_arrays([known, new])
        place = pc.index_in(chunk.dictionary, known)
    return place.take(chunk.indices).cast(smallest_codes(len(known)))


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are texts, also if they are dictionary-encoded."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def smallest_codes(values: int) -> pa.DataType:
    """The smallest type of codes for this number of values."""
    import pyarrow as pa

    return pa.int8() if values < 2**7 else pa.int16() if values < 2**15 else pa.int32()


def repeated(part: Callable[[int], pa.Array], rows: int) -> pa.ChunkedArray:
    """A column whose rows are all equal. That of a large file consists of the same part several times."""
    import pyarrow as pa

    if rows <= _REPEATED:
        return pa.chunked_array([part(rows)])
    same = part(_REPEATED)
    return pa.chunked_array([*[same] * (rows // _REPEATED), same.slice(0, rows % _REPEATED)])


_REPEATED = 2**16


def parquet_rows(raw: bytes, wanted: Mapping[str, str]) -> pa.Table:
    """The first adjacent rows in a Parquet file with these texts in these columns.

    In a large file, only the row group that contains them is read completely. Raises pyarrow's errors.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    _check_seal(raw)
    schema = pq.read_schema(pa.BufferReader(raw))
    texts = [f.name for f in schema if pa.types.is_string(f.type)]
    # texts stay dictionary-encoded, because decoding millions takes longer than everything else
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
    """Convert a table to pandas in this thread only, for the same reason as in :func:`parquet_table`."""
    frame: pd.DataFrame = table.to_pandas(use_threads=False)
    return frame


ROWS_OF_GROUP = 2**20
"""Maximum rows of a part of a Parquet file."""


def parquet_bytes(table: pa.Table, schema: pa.Schema | None = None) -> bytes:
    """A table as a Parquet file, sealed. With a ``schema``, each part is converted to its types when it is written.
    Raises ``pyarrow.ArrowException`` for unsupported types.

    The seal is a SHA-256 of all other bytes. It precedes the footer, where no offset points to it: readers ignore it,
    and rewriting the table removes it.
    """
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    with pq.ParquetWriter(stream, schema or table.schema, compression="zstd") as writer:
        for start in range(0, max(len(table), 1), ROWS_OF_GROUP):
            part = table.slice(start, ROWS_OF_GROUP)
            writer.write_table(part if schema is None else part.cast(schema))
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
    """Whether a file is sealed. Raises ``pyarrow.ArrowInvalid`` if it is sealed and has changed."""
    import pyarrow as pa

    if (place := raw.rfind(_SEAL)) < 0:
        return False
    end = place + len(_SEAL) + hashlib.sha256().digest_size
    if raw[place + len(_SEAL) : end] != hashlib.sha256(raw[:place] + raw[end:]).digest():
        raise pa.ArrowInvalid("bytes of it have changed since it was written")
    return True
