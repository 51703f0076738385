"""The commits of models from the hub: a results folder keeps one for each model, so that later runs use its weights."""

from __future__ import annotations

from functools import partial

from icl_bench.models.registry import CommitOf, commit_in
from icl_bench.results.first_run import keep, kept
from icl_bench.results.storage import Place


def commits_of(place: Place | None) -> CommitOf:
    """The commits that a results folder keeps. The function raises ``UserError`` if a file cannot be read."""
    return partial(_commit, place)


def _commit(place: Place | None, hub: str) -> str | None:
    return kept(place, _file(hub), r"[0-9a-f]{7,64}")


def keep_commit(place: Place, fingerprint: str) -> None:
    """Keep the commit of a model from the hub, if the folder has none of this model. Raises ``UserError``."""
    if (found := commit_in(fingerprint)) is not None:
        keep(place, _file(found[0]), found[1])


def _file(hub: str) -> str:
    return f"_hub/{hub}.txt"
