"""A large results folder on all processors: seconds and memory of importing, summarising and reporting it.

    python benchmarks/large_folder.py --published predictions.parquet [--copies 48]

The published predictions (524,500) are repeated as further tasks: 48 times are 25 million. The cache folder is empty at
first, so ``summary`` computes all tables, and ``report`` after it uses those that are kept. Memory is the proportional
set size (PSS) of all processes of a command, ten times a second: shared memory counts once. For Linux.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


def repeat(published: Path, copies: int, out: Path) -> int:
    """Write a table with the predictions of all copies, each as tasks of its own, and return its number of rows."""
    table = pq.read_table(published)
    place = table.schema.get_field_index("task")
    task = table["task"].cast(pa.string())
    with pq.ParquetWriter(out, table.set_column(place, "task", task).schema) as file:
        for copy in range(copies):
            names = pc.binary_join_element_wise(task, pa.scalar(f"-{copy}"), "")
            file.write_table(table.set_column(place, "task", names))
    return len(table) * copies


def memory_of_group(group: int) -> int:
    """The PSS of all processes of a process group in bytes."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if os.getpgid(int(process.name)) == group:
                rollup = (process / "smaps_rollup").read_text()
                total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024
    return total


def measured(*words: object) -> float:
    """Run a command of the program, print its seconds and peak memory, and return the seconds."""
    begun, most = time.perf_counter(), 0
    command = [sys.executable, "-m", "icl_bench", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None:
        most = max(most, memory_of_group(process.pid))
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{words[0]}: exit {process.returncode}")
    seconds = time.perf_counter() - begun
    print(f"{seconds:8.1f} s {most / 2**30:6.2f} GiB  {words[0]}", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--published", type=Path, required=True)
    parser.add_argument("--copies", type=int, default=48)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["ICL_BENCH_CACHE"] = str(folder / "cache")
        rows = repeat(given.published, given.copies, folder / "predictions.parquet")
        print(f"{rows:,} predictions, {os.cpu_count()} processors", flush=True)
        of_folder = ("--results", folder / "results")
        total = measured("import", folder / "predictions.parquet", *of_folder)
        total += measured("summary", *of_folder)
        total += measured("report", *of_folder, "--out", folder / "report.html")
        print(f"{total:8.1f} s              together")
        measured("summary", *of_folder)
        measured("summary", *of_folder, "--cost")


if __name__ == "__main__":
    main()
