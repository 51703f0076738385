"""Sections of paired comparisons: sorting, selection, models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from icl_bench.demonstrations.perturbations import PLAIN
from icl_bench.metrics import measure
from icl_bench.report import charts
from icl_bench.report.charts import PERCENT, POINTS, Look, tip
from icl_bench.report.naming import capital, unshuffled
from icl_bench.report.sections.curves import curve_panel
from icl_bench.report.sections.panels import (
    CURVE,
    Panel,
    Section,
    common_look,
    file_name,
    groups,
    plain_rows,
    with_limits,
)
from icl_bench.report.tables import table

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from icl_bench.analysis.findings import Findings
    from icl_bench.report.naming import Naming

SIGNED_LIMITS = [tip("low", "95% from", POINTS), tip("high", "95% to", POINTS)]


COMPARED = (f"{CURVE} k metric mean base_mean difference ci_low ci_high p p_holm advice rows "
            "draws base_draws left_out")  # fmt: skip


TESTED = ("The line is the 95% interval, paired by test example; p values in the table are "
          "corrected over k (Holm).")  # fmt: skip


def _compared(
    frame: pd.DataFrame, kind: str, by: Sequence[str], says: str, base: Sequence[str] = ()
) -> tuple[tuple[Panel, ...], Look]:
    """Panels of differences, one for each combination of ``by``.

    ``base`` are series that other panels of the section have, before these.
    """
    lined = with_limits(
        frame[frame["difference"].notna()].sort_values(["series", "k"]), "difference"
    )
    look = common_look(lined, room=True)
    look = replace(look, series=[*dict.fromkeys([*base, *look.series])])
    panels = tuple(
        Panel(file_name(kind, *key), " · ".join(key),
              charts.differences(part, look, f"difference in {measure(part)} (points)", _tips(part),
                                 f"{says}, {' and '.join(key)}, over k"),
              plain_rows(part, "series k value low high mean base_mean p_holm rows"))
        for key, part in groups(lined, by)
    )  # fmt: skip
    return panels, look


def _tips(part: pd.DataFrame) -> list[alt.Tooltip]:
    """What hovering over a difference shows."""
    return [
        tip("series", "curve"), tip("k", "k", ",d"), tip("value", "difference", POINTS),
        *SIGNED_LIMITS, tip("mean", measure(part), PERCENT), tip("base_mean", "base", PERCENT),
        tip("p_holm", "p (Holm)", ".2g"), tip("rows", "test rows", ",d"),
    ]  # fmt: skip


def _section(
    frame: pd.DataFrame, name: str, title: str, by: Sequence[str], reading: str, source: str,
    caption: str,
) -> Section:  # fmt: skip
    """A section of differences from one base, with its table."""
    panels, look = _compared(frame, name, by, title)
    shown = (table(frame, caption, COMPARED),)
    return Section(name, title, f"{reading} {TESTED}", source, panels, shown, look)


def sorting(findings: Findings, naming: Naming) -> Section | None:
    """What grouping by label costs."""
    frame = naming.named(findings.sorting_penalty)
    if frame["difference"].notna().sum() == 0:
        return None
    of = capital(measure(frame))
    return _section(
        frame.assign(series=frame["model"] + ", " + frame["series"]),
        "sorting", "What sorting by label costs", ["task"],
        f"{of} with the demonstrations grouped by label, less that of the same ones as drawn. "
        "Below 0: sorting hurts.",
        "Bertsch et al. 2025, figure 5", "Sorted less drawn",
    )  # fmt: skip


def selection(findings: Findings, naming: Naming) -> Section | None:
    """What another selection gains over random demonstrations."""
    frame = naming.named(findings.retrieval_gain)
    if frame["difference"].notna().sum() == 0:
        return None
    of = capital(measure(frame))
    by = ["task", "model"]
    return _section(
        naming.against(frame, by), "retrieval", "What selection gains", by,
        f"{of} with demonstrations chosen in another way, less that with random ones. "
        "Above 0: choosing helps.",
        "Bertsch et al. 2025, figures 2 and 12", "Chosen less random",
    )  # fmt: skip


def teaching(findings: Findings, naming: Naming) -> Section | None:
    """What demonstrations are worth when something of them is changed or left out."""
    frame = naming.named(findings.teaching)
    frame = frame[frame["difference"].notna()]
    if frame.empty:
        return None
    of = capital(measure(frame))
    by = ["task", "model", "way"]
    frame = naming.against(frame.assign(way=frame["series"], series=frame["teaching"]), by)
    beside = _taught_curves(findings, naming, frame)
    shown = [*dict.fromkeys(beside["series"])]
    compared, look = _compared(frame, "teaching", by, "What demonstrations teach", shown)
    curves = _curves(beside, replace(look, values=(0.0, 1.0)), by)
    panels = [panel for both in zip(curves, compared, strict=True) for panel in both]
    columns = COMPARED.replace(CURVE, "task model way teaching")
    return Section(
        "teaching", "What do demonstrations teach?",
        f"{of} where demonstrations show something else (labels permuted or wrong, inputs or "
        "labels alone, the nearest to the query left out) beside that of the same ones as they "
        "are, and the difference. Far below 0: what was changed is what the model uses. " + TESTED,
        "Min et al. 2022, figures 3 and 4", tuple(panels),
        (table(frame, "Changed less plain", columns),), look,
    )  # fmt: skip


def _taught_curves(findings: Findings, naming: Naming, compared: pd.DataFrame) -> pd.DataFrame:
    """The curves of both sides: ``way`` is the comparison's, ``series`` what is shown."""
    import pandas as pd

    setting = ["task", "model", "select", "order", "attention", "variant"]
    plain, taught = naming.named(findings.summary.curves), naming.named(findings.summary.taught)
    bases = compared.assign(variant=compared["base_variant"])[[*setting, "way"]].drop_duplicates()
    several = bases.duplicated([*setting[:-1], "way"], keep=False)
    text = bases["variant"].map(dict(naming.settings)).fillna(bases["variant"])
    bases = bases.assign(shown=(str(PLAIN) + ", " + text).where(several, str(PLAIN)))
    plain = plain.merge(bases, on=setting)
    taught = taught.merge(compared[[*setting, "way"]].drop_duplicates(), on=setting)
    return pd.concat([
        plain.assign(series=plain["shown"]), taught.assign(series=taught["teaching"])
    ])  # fmt: skip


def _curves(frame: pd.DataFrame, look: Look, by: Sequence[str]) -> list[Panel]:
    """Panels of curves over k, one for each combination of ``by``."""
    found = []
    for key, part in groups(frame, by):
        lined = with_limits(part.sort_values("k"), "score")
        says = f"{measure(part)} over k, demonstrations as they are and not, {' and '.join(key)}"
        name = file_name("teaching-curves", *key)
        found.append(curve_panel(lined, name, " · ".join(key), look, says))
    return found


def training(findings: Findings, naming: Naming) -> Section | None:
    """What learning from the examples gains over prompting with them."""
    frame = naming.named(findings.training_gain)
    if frame["difference"].notna().sum() == 0:
        return None
    of = capital(measure(frame))
    by = ["task", "model"]
    return _section(
        naming.against(frame, by), "training", "Training beside prompting", by,
        f"{of} of what learns from the k examples, less that of a prompt with the same ones. "
        "Above 0: training is better. Names that end in \"-paper\" are upper bounds: their "
        "checkpoint was chosen on the test rows.",
        "Bertsch et al. 2025, figure 3", "Trained less prompted",
    )  # fmt: skip


def models(findings: Findings, naming: Naming) -> Section | None:
    """Other models beside the base model."""
    frame = unshuffled(naming.named(findings.models))
    if frame["difference"].notna().sum() == 0:
        return None
    of = capital(measure(frame))
    frame = frame.assign(way=frame["series"], series=frame["model"])
    frame = naming.against(frame, ["task", "way"])
    bases = sorted(set(frame["base_model"]))
    panels, look = _compared(frame, "models", ["task", "way"], "Models compared")
    shown = frame.assign(series=frame["way"])
    return Section(
        "models", "Models compared",
        f"{of} less that of {', '.join(bases)} with the same demonstrations, at equal k. "
        f"Above 0: better. {TESTED}",
        "Bertsch et al. 2025, figure 10", panels,
        (table(shown, "Models at equal k", COMPARED.replace(" metric ", " base_model metric ")),),
        look,
    )  # fmt: skip
