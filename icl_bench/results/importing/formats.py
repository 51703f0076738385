"""Detects the format of a file of predictions: a table, or a harness's log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from icl_bench.errors import UserError
from icl_bench.results.importing import every_eval_ever, helm, inspect_logs, lm_eval
from icl_bench.results.importing.samples import Log, Parsed, Stated, as_table
from icl_bench.results.importing.tables import columns_of, csv_columns, json_items, parquet_columns
from icl_bench.table_files import gunzip, repeated
from icl_bench.text_files import decode
from icl_bench.wording import plain

TABLES = (".parquet", ".csv", ".tsv", ".jsonl", ".json")
ENDINGS = (*TABLES, ".csv.gz", ".tsv.gz", ".jsonl.gz", ".json.gz", inspect_logs.ENDING)

EXPECTED = (
    "expected .parquet, or .csv, .tsv, .jsonl or .json (also with .gz), a log of Inspect (.eval), or a folder of a "
    "run of HELM"
)


def file_of(path: Path) -> Path:
    """The file to read; in a folder, the file with HELM's samples."""
    return helm.file_in(path) if path.is_dir() else path


def stem_of(file: Path) -> str:
    """The file's name without its extension. Raises ``UserError`` for an unknown extension."""
    return file.name[: -len(_ending(file))]


def parse(file: Path, raw: bytes, stated: Stated) -> Parsed:
    """The predictions of a file, with the stated values. Raises ``UserError``."""
    shown = plain(file)
    ending = _ending(file)
    if ending == inspect_logs.ENDING:
        return as_table(inspect_logs.of_archive(raw, shown), stated, shown)
    if ending == ".parquet":
        return Parsed(_with(parquet_columns(raw, shown), stated, shown))
    text = decode(gunzip(raw, shown) if ending.endswith(".gz") else raw, shown)
    kind = ending.removesuffix(".gz")
    if kind in (".csv", ".tsv"):
        return Parsed(_with(csv_columns(text, shown, "\t" if kind == ".tsv" else ","), stated, shown))
    content = json_items(text, shown)
    files: tuple[Path, ...] = ()
    if every_eval_ever.is_aggregate(content):
        samples, content = every_eval_ever.samples_of(file, content, shown)
        file, files = samples, (file, samples)
    rows = content if isinstance(content, list) else [content]
    if (own := every_eval_ever.own_rows(rows, shown)) is not None:
        # whichever file is named, the samples identify the import: each export writes new times into aggregates
        origins = every_eval_ever.own_origins(every_eval_ever.aggregate_beside(file))
        return Parsed(_with(columns_of(own), stated, shown), files=(file,), origins=origins)
    if (log := _log(file, rows, shown)) is not None:
        return as_table(replace(log, files=(*files, *log.files)), stated, shown)
    return Parsed(_with(columns_of(rows), stated, shown))


def _log(file: Path, rows: list[dict[str, Any]], shown: str) -> Log | None:
    """The log of a harness; None for a table."""
    first: Mapping[str, Any] = rows[0] if rows else {}
    if helm.is_part(first):
        return helm.of_folder(file.parent, shown)
    if inspect_logs.is_log(first):
        return inspect_logs.of_log(first, shown)
    if lm_eval.is_sample(first):
        return lm_eval.of_samples(file, rows, shown)
    if every_eval_ever.is_sample(first):
        return every_eval_ever.of_samples(file, rows, shown)
    if lm_eval.is_results(first):
        raise UserError(
            f"{shown}: lm-eval's results, which have no answers; import the samples_*.jsonl beside it "
            "(lm_eval --log_samples writes it)"
        )
    return None


def _with(table: pa.Table, stated: Stated, shown: str) -> pa.Table:
    """Add columns of stated values to the table. Raises ``UserError`` for an existing column."""
    for name, value in stated.values().items():
        if name in table.column_names:
            raise UserError(f"--{name} {value}: {shown} has a column {name}")
        table = table.append_column(name, repeated(partial(pa.repeat, value), len(table)))
    return table


def _ending(file: Path) -> str:
    name = file.name.lower()
    ending = next((e for e in sorted(ENDINGS, key=len, reverse=True) if name.endswith(e)), None)
    if ending is None:
        raise UserError(f"{plain(file)}: {EXPECTED}")
    return ending
