"""The shipped tasks, and whether their data are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from icl_bench.tasks.spec import TaskSpec
from icl_bench.tasks.task_files import known_tasks, load_task


def task_records(data_dir: Path | None) -> list[dict[str, Any]]:
    """The shipped tasks: name, description, source of their data, license."""
    records = []
    for name in known_tasks():
        spec = load_task(name)
        location = _local_data(spec, data_dir)
        hub = spec.data.hub
        needs = "" if location else f"the hub: {hub.path}, or --data-dir" if hub else "--data-dir"
        records.append(
            {
                "name": name,
                "description": spec.description,
                "metrics": list(spec.metrics),
                "installed": location is not None,
                "data": location or needs,
                "license": spec.license,
                "source": spec.source,
            }
        )
    return records


def _local_data(spec: TaskSpec, data_dir: Path | None) -> str | None:
    """The location of the task's rows on this machine, or None."""
    if spec.data.kind != "folder":
        return spec.data.kind
    folder = data_dir / (spec.data.folder or spec.name) if data_dir else None
    if folder is None or not folder.is_dir():
        return None
    return str(folder) if spec.data.file is None or (folder / spec.data.file).is_file() else None
