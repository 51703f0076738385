"""The commits of models from the hub: a results folder keeps one for each model, so that later runs use its weights."""

from __future__ import annotations

import re
from functools import partial

from icl_bench.errors import UserError
from icl_bench.models.registry import CommitOf, commit_in
from icl_bench.results.storage import Place, storage_at
from icl_bench.wording import first_line


def commits_of(place: Place | None) -> CommitOf:
    """The commits that a results folder keeps. The function raises ``UserError`` if a file cannot be read."""
    return partial(_kept, place)


def _kept(place: Place | None, hub: str) -> str | None:
    if place is None:
        return None
    storage, name = storage_at(place), _file(hub)
    try:
        if not (storage.exists() and storage.has(name)):
            return None
        text = storage.read(name).decode("ascii", "replace").strip()
    except OSError as error:
        raise UserError(f"{storage.where(name)}: cannot be read ({first_line(error)})") from None
    return text if re.fullmatch(r"[0-9a-f]{7,64}", text) else None


def keep_commit(place: Place, fingerprint: str) -> None:
    """Keep the commit of a model from the hub, if the folder has none of this model. Raises ``UserError``."""
    if (found := commit_in(fingerprint)) is not None:
        storage, name = storage_at(place), _file(found[0])
        try:
            if not storage.has(name):
                storage.put(name, f"{found[1]}\n".encode())
        except OSError as error:
            raise UserError(f"{storage.where(name)}: cannot be written ({first_line(error)})") from None


def _file(hub: str) -> str:
    return f"_hub/{hub}.txt"
