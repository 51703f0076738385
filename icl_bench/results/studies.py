"""The cells of each study, stored next to the predictions, so that a report can list missing ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from icl_bench.results.cells import own_slug, slug
from icl_bench.results.reading import readable
from icl_bench.results.storage import Place, put_or_refuse, storage_at
from icl_bench.results.stored_meta import StudyCell, StudyMeta, as_stored, json_content

FOLDER = "_studies"
"""Folder of the files, one for each study; no task has this name."""


def write_study(
    place: Place,
    name: str,
    cells: Sequence[StudyCell],
    *,
    whole: bool,
    replaces: Callable[[StudyCell], bool] = lambda _: False,
) -> None:
    """Store the cells of a study.

    Cells of a part (not ``whole``) are added to those stored before, except those that the part ``replaces``. Raises
    ``UserError`` if the file cannot be written.
    """
    storage, (file, *earlier) = storage_at(place), _files_of(name)
    stored = [] if whole else [cell for study in read_studies(place) if study.study == name for cell in study.cells]
    before = [cell for cell in stored if not replaces(cell)]
    by_name = {(cell.setting, cell.cell): cell for cell in (*before, *cells)}
    put_or_refuse(storage, file, json_content(as_stored(StudyMeta(study=name, cells=list(by_name.values())))))
    for old in earlier:
        if any(study.study == name for study in readable(storage, [old], StudyMeta, _ending)):
            storage.delete(old)


def read_studies(place: Place) -> list[StudyMeta]:
    """Every study of a results folder.

    A file that cannot be read is skipped with a warning.
    """
    storage = storage_at(place)
    names = [name for name in sorted(storage.names(FOLDER)) if name.endswith(".json")]
    return list(readable(storage, names, StudyMeta, _ending))


def _ending(study: StudyMeta) -> tuple[str, ...]:
    return _files_of(study.study)


def _files_of(name: str) -> tuple[str, ...]:
    """The name of a study's file; then that of earlier versions, if it differs, which another study may have."""
    return tuple(dict.fromkeys(f"{FOLDER}/{part}.json" for part in (own_slug(name), slug(name))))
