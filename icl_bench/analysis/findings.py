"""All findings on a results folder: every table of the analysis, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.attention import attention_patterns
from icl_bench.analysis.calibration import calibration_error, reliability
from icl_bench.analysis.comparisons import (
    compare_models,
    prompted,
    retrieval_gain,
    sorting_penalty,
    teaching_effect,
    training_gain,
)
from icl_bench.analysis.cost import CellCost, break_even, cost
from icl_bench.analysis.demonstrations import by_distance, by_presence, copying
from icl_bench.analysis.label_bias import confusions, label_bias, label_frequencies
from icl_bench.analysis.order import noise_floor
from icl_bench.analysis.perplexity import no_perplexities, perplexities
from icl_bench.analysis.saturation import context_shares, label_spaces, saturation_chances
from icl_bench.analysis.statistics.paired import Facts
from icl_bench.analysis.summary import Summary, asked, records, summarise_stored
from icl_bench.errors import UserError
from icl_bench.metrics import scored
from icl_bench.models.registry import REGISTRY
from icl_bench.results.reading import read_some
from icl_bench.seeds import generator
from icl_bench.wording import nearest

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.results.reading import Stored

SEED = 0
"""Of the resampling: the same folder gives the same numbers."""


@dataclass(frozen=True)
class Findings:
    """Tidy tables of one results folder. Each function's docstring describes its table."""

    summary: Summary
    """Curves, saturation and order sensitivity; settings and failed cells. Every other table but
    ``teaching`` is of plain demonstrations too."""
    saturation_chances: pd.DataFrame
    context_shares: pd.DataFrame
    label_spaces: pd.DataFrame
    noise_floor: pd.DataFrame
    sorting_penalty: pd.DataFrame
    retrieval_gain: pd.DataFrame
    training_gain: pd.DataFrame
    attention_patterns: pd.DataFrame
    teaching: pd.DataFrame
    models: pd.DataFrame
    label_bias: pd.DataFrame
    label_frequencies: pd.DataFrame
    confusions: pd.DataFrame
    by_presence: pd.DataFrame
    by_distance: pd.DataFrame
    copying: pd.DataFrame
    reliability: pd.DataFrame
    calibration_error: pd.DataFrame
    cost: pd.DataFrame
    break_even: pd.DataFrame
    perplexity: pd.DataFrame

    def tables(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Every table with its name."""
        for name in ("curves", "saturation", "order_sensitivity", "taught"):
            yield name, getattr(self.summary, name)
        for field in fields(self):
            if field.name != "summary":
                yield field.name, getattr(self, field.name)

    def as_json(self) -> dict[str, Any]:
        """Plain lists of records; what is undefined is null."""
        known = self.summary.as_json()
        return known | {name: records(table) for name, table in self.tables() if name not in known}


def read_findings(
    results: str | Path = "results",
    *,
    task: str | None = None,
    model: str | None = None,
    base_model: str | None = None,
) -> Findings:
    """Make every table of a results folder, or of one task or model in it.

    ``base_model`` is the one that other models are compared with, by default each task's first by
    name. Raises ``UserError`` where there is no result, or no such task or model.
    """
    wanted = {"task": task, "model": model}
    only = {name: value for name, value in wanted.items() if value is not None}
    stored = read_some(Path(results), only)
    return find(stored, base_model, perplexity=perplexities(results, model))


@dataclass(frozen=True)
class CellFacts:
    """What is known of predictions beside themselves."""

    shared: Mapping[str, Sequence[str]]
    """Cell -> ids of the demonstrations that all its prompts have."""
    labels: Mapping[str, Mapping[str, str]]
    """Variant -> id of each demonstration -> its label."""
    costs: Mapping[str, CellCost]
    """Cell -> what it took."""
    windows: Mapping[str, int]
    """Model -> tokens it reads."""

    @classmethod
    def of(cls, stored: Stored) -> CellFacts:
        """Gather it from a folder's cells; windows of other models are the registry's."""
        labels: dict[str, dict[str, str]] = {}
        windows = {name: spec.context_tokens for name, spec in REGISTRY.items()}
        shared, costs = {}, {}
        for cell, meta in stored.cells.items():
            if meta.get("demonstration_ids") is not None:
                shared[cell] = meta["demonstration_ids"]
            of_variant = labels.setdefault(meta["variant"], {})
            for label, ids in (meta.get("demonstration_labels") or {}).items():
                of_variant.update(dict.fromkeys(ids, label))
            costs[cell] = CellCost.of(meta)
            if "context_tokens" in meta:
                windows[meta["spec"]["model"]] = meta["context_tokens"]
        return cls(shared, labels, costs, windows)


def find(
    stored: Stored, base_model: str | None = None, *, perplexity: pd.DataFrame | None = None
) -> Findings:
    """Make every table of what was read of a results folder.

    ``base_model`` is as for :func:`read_findings`; ``perplexity`` is the table of
    :func:`icl_bench.analysis.perplexity.perplexities`, whose files are no
    predictions. Raises ``UserError`` where there is no such model.
    """
    known, facts = CellFacts.of(stored), stored.variants
    everything = scored(stored.predictions)
    stored = replace(stored, predictions=everything)
    frame = asked(everything)
    copied = everything[everything["queries"].notna()]
    prompts, costs = prompted(frame), cost(frame, known.costs)
    shares = context_shares(prompts, known.windows)
    models = sorted(frame["model"].astype(str).unique())
    if base_model is not None and base_model not in models:
        raise UserError(
            f"--base-model {base_model}: not in the results; {nearest(base_model, models)}"
        )
    # one shuffled order is a draw of an order, not a way to prompt
    plain = ~frame["order"].astype(str).str.startswith("shuffled")
    summary = summarise_stored(stored)
    return Findings(
        summary=summary,
        saturation_chances=saturation_chances(frame, generator(SEED, "saturation")),
        context_shares=shares,
        label_spaces=label_spaces(_unmixed(shares), {}),
        noise_floor=_noise(prompts, stored.variants),
        sorting_penalty=sorting_penalty(frame, facts=facts),
        retrieval_gain=retrieval_gain(prompts, facts=facts),
        training_gain=training_gain(frame, facts=facts),
        attention_patterns=attention_patterns(prompts, summary.curves, costs),
        teaching=teaching_effect(everything[everything["queries"].isna()], facts),
        models=_models(frame[plain], base_model, facts),
        label_bias=label_bias(frame),
        label_frequencies=label_frequencies(frame),
        confusions=confusions(frame),
        by_presence=_of_variants(frame, known, by_presence),
        by_distance=_of_variants(prompts, known, by_distance),
        copying=copying(copied, known.shared),
        reliability=reliability(frame),
        calibration_error=calibration_error(frame, generator(SEED, "calibration")),
        cost=costs,
        break_even=break_even(costs),
        perplexity=no_perplexities() if perplexity is None else perplexity,
    )


def _models(frame: pd.DataFrame, base: str | None, facts: Facts) -> pd.DataFrame:
    """Every task's models beside the base, or beside that task's first by name."""
    model, task = (frame[name].astype(object) for name in ("model", "task"))
    bases = {
        name: base if base in found else min(found) if base is None else None
        for name, found in model.groupby(task).unique().items()
    }
    parts = [
        compare_models(frame[task == name], of, facts=facts) for name, of in bases.items() if of
    ]
    return _joined(parts, compare_models(frame.iloc[:0], ""))


def _noise(frame: pd.DataFrame, variants: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """The noise floor, of variants that take the same answer from equal logits."""
    scoring = {variant: str(facts.get("scoring")) for variant, facts in variants.items()}
    of_row = frame["variant"].astype(object).map(scoring)
    parts = [noise_floor(frame[of_row == way]) for way in sorted(set(scoring.values()))]
    return _joined(parts, noise_floor(frame.iloc[:0]))


def _joined(parts: Sequence[pd.DataFrame], empty: pd.DataFrame) -> pd.DataFrame:
    """The tables as one; ``empty``, which has the columns, where no part has a row."""
    import pandas as pd

    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else empty


def _unmixed(shares: pd.DataFrame) -> pd.DataFrame:
    """Without curves that are there in several variants, which must not be averaged."""
    names = ("task", "model", "select", "order", "attention", "label_space")
    curve = [name for name in names if name in shares]
    return shares[~shares.duplicated(curve, keep=False)]


def _of_variants(
    frame: pd.DataFrame, known: CellFacts, table: Callable[..., pd.DataFrame]
) -> pd.DataFrame:
    """One table of all variants whose demonstrations' labels are known.

    Ids of demonstrations are a data set's own: another one may have the same.
    """
    of_variant = frame["variant"].astype(object)
    parts = [
        table(frame[of_variant == variant], labels, known.shared)
        for variant, labels in known.labels.items()
        if labels
    ]
    return _joined(parts, table(frame.iloc[:0], {}, {}))
