"""The most important tables: curves over k, saturation, order sensitivity."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.by_task import BY_NAME, ByTask
from icl_bench.analysis.columns import POINT
from icl_bench.analysis.context import Context, streams
from icl_bench.analysis.curves import curves, scored_columns
from icl_bench.analysis.finding import Chart, Finding, Section
from icl_bench.analysis.findings.order import order_sensitivity
from icl_bench.analysis.findings.saturation import saturation_chances, saturation_on, with_likely
from icl_bench.analysis.predictions import unperturbed_predictions, with_copies_as_one_draw, with_rows_left_out
from icl_bench.analysis.settings import name_settings
from icl_bench.analysis.zero_shot import from_zero_shot
from icl_bench.metrics.scores import scored
from icl_bench.results.facts import NO_FACTS, FactsOf
from icl_bench.results.partial import PartialCells, partial_cells
from icl_bench.results.reading import no_results, read_some
from icl_bench.results.storage import Place
from icl_bench.results.stored_meta import FailureMeta

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Summary:
    """Tidy tables of one results folder."""

    curves: pd.DataFrame
    saturation: pd.DataFrame
    order_sensitivity: pd.DataFrame
    perturbed_curves: pd.DataFrame
    """The curves of perturbed demonstrations, with the column ``perturbation``."""
    settings: Mapping[str, str]
    """Variant -> its distinguishing name among the variants of its task and model, if there are several."""
    failed: Sequence[FailureMeta] = ()
    """Cells that could not be computed."""
    partial: Sequence[PartialCells] = ()
    """Unfinished cells, which are not in the tables."""

    def as_json(self) -> dict[str, Any]:
        """Plain lists of records, with null for undefined values."""
        return {
            "curves": records(self.curves),
            "saturation": records(self.saturation),
            "order_sensitivity": records(self.order_sensitivity),
            "perturbed_curves": records(self.perturbed_curves),
            "settings": dict(self.settings),
            "failed": [failure.model_dump() for failure in self.failed],
            "partial": [asdict(cells) for cells in self.partial],
        }


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as plain values, with null for undefined values."""
    text: str = frame.to_json(orient="records", double_precision=15)
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def summarise(predictions: pd.DataFrame, facts: FactsOf = NO_FACTS) -> Summary:
    """The first tables of a tidy frame of predictions (``icl_bench.read_results``).

    Queries that are copied from demonstrations are not test examples and are left out. ``facts`` are those of each
    variant: with them, curves of selectors with an encoder also begin with the point without demonstrations.
    """
    predictions = with_copies_as_one_draw(predictions)
    unperturbed = unperturbed_predictions(predictions)
    table = from_zero_shot(curves(unperturbed), facts)
    chances = saturation_chances(from_zero_shot(unperturbed, facts), streams("saturation"))
    return Summary(
        table,
        with_likely(saturation_on(table, chances), chances),
        order_sensitivity(unperturbed),
        perturbed_curves(predictions),
        {},
    )


def perturbed_curves(predictions: pd.DataFrame) -> pd.DataFrame:
    """The curves of perturbed demonstrations: the columns of ``curves`` after ``perturbation``."""
    empty = predictions.iloc[:0].assign(perturbation=None)
    perturbed = predictions[predictions["perturbation"].notna()] if "perturbation" in predictions else empty
    table = _no_curves().copy() if perturbed.empty else curves(perturbed)
    first = perturbed.drop_duplicates("variant").set_index("variant")
    perturbation = first["perturbation"].astype(object)
    table.insert(0, "perturbation", table["variant"].astype(object).map(perturbation))
    return table


@cache
def _no_curves() -> pd.DataFrame:
    """The curves of no predictions."""
    return curves(no_results())


def summarise_folder(results: Place, only: Mapping[str, str] | None = None) -> Summary:
    """Summarise a results folder, or only its results with these values (task, model).

    Raises ``UserError`` if no finished or failed cell and no race has them.
    """
    stored = read_some(results, only)
    tables = summarise(scored(stored.predictions, first=stored.first_scores), stored.variants)
    settings = settings_of(stored.variants, tables.curves, tables.perturbed_curves)
    shown = {name: with_rows_left_out(getattr(tables, name), stored.cells) for name in ("curves", "perturbed_curves")}
    return replace(tables, **shown, settings=settings, failed=stored.failed, partial=partial_cells(results, only))


def settings_of(facts: FactsOf, curve: pd.DataFrame, perturbed: pd.DataFrame) -> dict[str, str]:
    """Variant -> its distinguishing name among the variants of its task and model, if there are several.

    ``curve`` and ``perturbed`` are the curves of unperturbed and of perturbed demonstrations.
    """
    settings = name_settings(facts, curve)
    # compared with others of its perturbation, which its table already names
    others = {variant: of.with_more(perturbation=None) for variant, of in facts.items()}
    for _, table in perturbed.groupby("perturbation"):
        settings |= name_settings(others, table)
    return settings


CURVES = Finding(
    "curves",
    lambda context: context.from_zero_shot(curves(context.unperturbed)),
    caption="{Score} over k",
    shown="task model series k draws test_rows metric accuracy ci_low ci_high interval_over "
    "macro_f1 invalid {scores} left_out missing outlying_draws differing_prompts",
    section=Section(
        "accuracy",
        "{Score} over the number of demonstrations",
        "{Score} over k",
        "run something first",
        "Each point is a mean over draws and test rows; the band is its 95% interval. Hollow points with "
        "dashed limits are of a single draw: with other demonstrations the score may be outside them. "
        "Read to the right: more demonstrations, on a logarithmic axis.",
        "Bertsch et al. 2025, figures 1, 2 and 11",
        Chart(
            "score",
            "{score}",
            "{score} of {model} on {task} over the number of demonstrations, log axis",
            tips=("draws", "test_rows", "interval_over"),
            shuffled="hidden",
        ),
        place=10,
    ),
    by_task=ByTask(columns=lambda: (*POINT, *scored_columns())),
)


def _saturation(context: Context) -> pd.DataFrame:
    chances = context.table("saturation_chances")
    return with_likely(saturation_on(context.table("curves"), chances), chances)


SATURATION = Finding("saturation", _saturation, by_task=BY_NAME)


PERTURBED_CURVES = Finding(
    "perturbed_curves",
    lambda context: perturbed_curves(context.predictions),
    by_task=ByTask(columns=lambda: ("perturbation", *POINT, *scored_columns())),
)
