"""Names of models: different checkpoints with one name are distinguished by the identity of their files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from icl_bench.results.cells import short_hash
from icl_bench.results.stored_meta import CellMeta, TrainingMeta
from icl_bench.wording import counted, listed

LETTERS = 8
"""Letters of the identity after the name."""


Named: TypeAlias = Mapping[tuple[str, str], str]
"""Model and fingerprint -> the distinguishing name; models with a unique name are not included."""


def names_apart(models: Iterable[tuple[str, str | None]]) -> dict[tuple[str, str], str]:
    """Distinguishing names for models that share a name: ``final@1a2b3c4d``.

    ``models`` are names and fingerprints. A model without a fingerprint, or known only by a server's name, may be any
    of them and keeps its name.
    """
    prints: dict[str, list[str]] = {}
    for model, fingerprint in dict.fromkeys(models):
        if fingerprint is not None and not fingerprint.startswith("served:"):
            prints.setdefault(model, []).append(fingerprint)
    named: dict[tuple[str, str], str] = {}
    for model, of_model in prints.items():
        if len(of_model) > 1:
            brief = {fingerprint: re.split("[:@]", fingerprint)[-1][:LETTERS] for fingerprint in of_model}
            alike = Counter(brief.values())
            for fingerprint, text in brief.items():
                suffix = text if alike[text] == 1 else short_hash(fingerprint)[:LETTERS]
                named[model, fingerprint] = f"{model}@{suffix}"
    return named


def with_base_apart(training: TrainingMeta, named: Named) -> TrainingMeta:
    """A training whose base has its distinguishing name."""
    base = named.get((training.base or "", training.base_fingerprint or ""))
    return training.model_copy(update={"base": base}) if base else training


def told_apart(named: Named) -> list[str]:
    """A message for each name that several models share."""
    by_name: dict[str, list[str]] = {}
    for (model, _), name in named.items():
        by_name.setdefault(model, []).append(name)
    return [
        f"model {model}: {len(names)} models with different files have this name; they are shown as "
        f"{listed(sorted(names))}; give their folders different names to choose your own"
        for model, names in by_name.items()
    ]


def changed_models(cells: Iterable[CellMeta]) -> list[str]:
    """A message for each model of a server whose cells were answered by different models, as the server reported."""
    found: dict[tuple[str, str | None, str | None], Counter[str]] = {}
    for meta in cells:
        if (served := (meta.served or {}).get("model")) is not None:
            of_model = found.setdefault((meta.spec.model, meta.facts.server, meta.facts.endpoint), Counter())
            of_model.update(served.split(", "))
    return [
        f"model {model}: {server} reported that "
        + ", and ".join(
            f"{name} {'answered ' if not place else ''}{counted(number, 'cell')}"
            for place, (name, number) in enumerate(sorted(of_model.items()))
        )
        + ": differences between these cells may be differences between the models (served in the files)"
        for (model, server, _), of_model in found.items()
        if len(of_model) > 1
    ]
