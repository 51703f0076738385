"""All findings on a results folder: every table of the analysis, computed on first access."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.context import Context
from icl_bench.analysis.label_probabilities import without_scores
from icl_bench.analysis.summary import Summary, records, settings_of
from icl_bench.errors import UserError
from icl_bench.registry import FINDINGS
from icl_bench.results.partial import partial_cells
from icl_bench.results.reading import read_some
from icl_bench.results.storage import Place
from icl_bench.wording import nearest

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.results.reading import Stored


@dataclass(frozen=True)
class Findings:
    """Tidy tables of one results folder, each an attribute: ``findings.retrieval_gain``.

    Names are from :data:`icl_bench.registry.FINDINGS`. The function that computes a table describes it. All tables
    except ``perturbations``, ``shown_labels``, ``perturbed_curves``, ``truncated_answers`` and ``provenance`` are about
    unperturbed demonstrations.
    """

    context: Context

    def __getattr__(self, name: str) -> pd.DataFrame:
        """The table of this name. Raises ``AttributeError`` if there is none."""
        if name.startswith("_") or name not in FINDINGS:
            raise AttributeError(f"findings: {name} is {FINDINGS.unknown(name)}")
        return self.context.table(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *FINDINGS.names]

    @cached_property
    def summary(self) -> Summary:
        """Curves, saturation and order sensitivity; settings, failed and partial cells."""
        context = self.context
        return Summary(
            curves=context.table("curves"),
            saturation=context.table("saturation"),
            order_sensitivity=context.table("order_sensitivity"),
            perturbed_curves=context.table("perturbed_curves"),
            settings=settings_of(context.facts, context.table("curves"), context.table("perturbed_curves")),
            failed=context.stored.failed,
            partial=() if context.results is None else partial_cells(context.results, context.only, context.races),
        )

    def work_out(self, names: Collection[str], say: Callable[[str], None]) -> None:
        """Compute the tables of these names and report progress to ``say``.

        Other tables are computed on first access.
        """
        self.context.work_out(say)
        for number, name in enumerate(names, 1):
            say(f"computing findings: {number} of {len(names)}, {name.replace('_', ' ')}")
            with FINDINGS.skipping(name):
                self.context.table(name)

    def tables(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Every table with its name. A plugin's finding that fails is skipped."""
        self.context.work_out()
        for name in FINDINGS:
            with FINDINGS.skipping(name):
                yield name, self.context.table(name)

    def as_json(self) -> dict[str, Any]:
        """Plain lists of records, with null for undefined values.

        ``without_scores`` names the cells that tables of label probabilities do not have.
        """
        self.context.work_out()
        first = self.summary.as_json()
        tables = {}
        for name in FINDINGS:
            if name not in first:
                with FINDINGS.skipping(name):
                    tables[name] = records(self.context.table(name))
        return first | tables | {"without_scores": without_scores(self.context.stored)}


def read_findings(
    results: Place = "results",
    *,
    task: str | None = None,
    model: str | None = None,
    base_model: str | None = None,
    wanted: float | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    processes: int = 1,
) -> Findings:
    """Read a results folder, or one task or model in it, for its findings.

    ``base_model`` is the model that others are compared with, by default each task's usual one
    (:func:`icl_bench.analysis.findings.comparisons.usual_base`). ``wanted`` is a score, as a share: the target of
    forecasts, and the accuracy required of answers in the table of abstention. ``groups`` maps the name of a group to
    its tasks, for means over them. Raises ``UserError`` if there is no result, or no such task or model.
    """
    named = {"task": task, "model": model}
    only = {name: value for name, value in named.items() if value is not None}
    stored = read_some(results, only)
    return find(
        stored, base_model, results=results, model=model, task=task, wanted=wanted, groups=groups, processes=processes
    )


def find(
    stored: Stored,
    base_model: str | None = None,
    *,
    results: Place | None = None,
    model: str | None = None,
    task: str | None = None,
    wanted: float | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    processes: int = 1,
) -> Findings:
    """The findings of an already read results folder.

    ``base_model`` is as for :func:`read_findings`; ``results`` is the folder itself, for files other than predictions,
    such as losses of long texts. ``model`` and ``task`` restrict the tables. ``wanted`` and ``groups`` are as for
    :func:`read_findings`. Raises ``UserError`` if there is no such base model.
    """
    models = sorted(stored.rows.names("model"))
    if base_model is not None and base_model not in models:
        raise UserError(f"--base-model {base_model}: not in the results; {nearest(base_model, models)}")
    return Findings(Context(stored, base_model, results, model, task, wanted, groups or {}, processes))
