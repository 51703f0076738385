"""The section on races of ``choose``: the answer, and the course of the settings."""

from __future__ import annotations

from typing import Any

from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.finding import Finding
from icl_bench.analysis.findings.races import race_names, races_of
from icl_bench.metrics.scores import measure
from icl_bench.registry import FINDINGS
from icl_bench.report import charts
from icl_bench.report.charts import PERCENT, Look, tip
from icl_bench.report.headlines import Headlines, Sentence
from icl_bench.report.naming import Naming
from icl_bench.report.sections.panels import LIMITS, Drawing, groups, panel
from icl_bench.report.tables import of_finding
from icl_bench.results.stored_meta import RaceMeta


def race(finding: Finding, findings: Findings, _: Naming) -> Drawing | None:
    """The answer of each race, and a line for each of its settings over the number of answers."""
    standings, rounds = findings.races, findings.race_rounds
    if standings.empty:
        return None
    met = races_of(findings.context)
    several = {one.model for one in met if len(one.models) > 1}
    look = _look(standings)
    frame = rounds.rename(columns={"setting": "series", "score": "value", "ci_low": "low", "ci_high": "high"})
    panels = []
    for key, part in groups(frame, ["task", "model", "race"]):
        title, of = " · ".join(key), measure(part)
        rows = _asked(part)
        tips = [tip("series", "setting"), tip("round", "round", ",d"), tip("asked", "answers of all settings", ",d")]
        tips += [tip("predictions", "of this one", ",d"), tip("draws", "draws", ",d"), tip("value", of, PERCENT)]
        description = f"{of} of the settings of a race over the answers asked, {title}; table below"
        chart = charts.race(rows, look, of, [*tips, *LIMITS, tip("state", "state")], description)
        names = "series round asked predictions draws value low high out state"
        shown = rows.drop(columns="model") if key[1] in several else rows  # the page is about one model, or all
        panels.append(panel(["race", *key], title, chart, shown, names))
    tables = [of_finding(finding, standings), of_finding(FINDINGS["race_rounds"], rounds)]
    answers = [_answer(one, f"{one.model} · {name}") for one, name in zip(met, race_names(met), strict=True)]
    return Drawing(panels, tables, look, articles=answers)


def _look(standings: Any) -> Look:
    """A colour for each selector, equal in all races; a setting without demonstrations has a separate one."""
    settings = standings.drop_duplicates("setting")
    kinds = settings["select"].where(settings["k"] > 0, "")
    slots = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
    return Look(list(settings["setting"]), slots=tuple(slots[kind] for kind in kinds))


def _asked(part: Any) -> Any:
    """The rounds in which a setting was active, and the round in which it was dropped."""
    part = part.sort_values(["series", "round"])
    before = part.groupby("series")["out"].shift(fill_value=False).astype(bool)
    rows = part[part["value"].notna() & ~(part["out"] & before)]
    return rows.assign(state=["dropped" if out else "in the race" for out in rows["out"]])


def _answer(one: RaceMeta, name: str) -> Headlines:
    """The lines of the answer."""
    lines = (line.partition(": ") for line in one.answer)
    return Headlines(
        one.task,
        one.model if len(one.models) == 1 else "",
        tuple(Sentence(topic, text, text) for topic, _, text in lines),
        name,
    )
