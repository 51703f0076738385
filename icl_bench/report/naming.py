"""Names of curves in charts and tables: short and unique."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.draws import is_shuffled
from icl_bench.analysis.summary import Summary, settings_of
from icl_bench.analysis.words import UNPERTURBED, USUAL_ORDERS
from icl_bench.analysis.zero_shot import from_zero_shot
from icl_bench.demonstrations.selector_spec import RANDOM
from icl_bench.models.attention_patterns import FULL, pattern_of
from icl_bench.results.cells import SETTING
from icl_bench.results.facts import FactsOf
from icl_bench.results.trained_methods import BASELINES, kind

if TYPE_CHECKING:
    import pandas as pd

CURVE = ["task", "model", "series"]
"""The columns that distinguish the curves of a named table."""


@dataclass(frozen=True)
class Naming:
    """The facts that distinguish a folder's curves."""

    settings: Mapping[str, str]
    """Variant -> its text, if a task and model have several variants."""
    attentions: bool
    """Whether there is attention other than full."""
    hues: Mapping[str, int] = field(default_factory=dict)
    """Selector -> its index among the colours, equal in every chart, if there are several."""

    lists: Sequence[tuple[str, str, str, str]] = ()
    """Task, model, series and perturbation by which the page's list of predictions is filtered for a curve."""
    list_numbers: Mapping[tuple[Any, ...], int] = field(default_factory=dict)
    """Values of ``SETTING``, and whether k is 0 -> the number of its filters in ``lists``. Points whose predictions are
    derived from others have none.
    """

    @classmethod
    def of(cls, summary: Summary) -> Naming:
        """Find the differences between the curves of a task and model."""
        return cls.of_curves(summary.curves, summary.settings)

    @classmethod
    def of_curves(cls, table: pd.DataFrame, settings: Mapping[str, str]) -> Naming:
        """Find the differences for a table with one or more rows per curve, and texts of settings."""
        kinds = table["select"].astype(object).map(kind)
        alike = table.groupby(["task", "model", kinds], observed=True)
        counts = alike["variant"].transform("nunique")
        several = sorted(set(table.loc[counts > 1, "variant"].astype(str)))
        curve = [name for name in SETTING if name != "variant"]
        of_curve = table.groupby(curve, observed=True)["variant"].transform("nunique")
        unnamed = set(table.loc[of_curve > 1, "variant"].astype(str))
        # variants that differ only in facts that one of them does not use need no name
        texts = {name: settings.get(name, f"variant {name}") for name in several if name in settings or name in unnamed}
        selectors = sorted(set(table["select"].astype(str)), key=lambda name: (name != str(RANDOM), name))
        hues = {name: place for place, name in enumerate(selectors)} if len(selectors) > 1 else {}
        return cls(texts, bool((table["attention"].astype(object) != str(FULL)).any()), hues)

    @classmethod
    def of_stored(cls, table: pd.DataFrame, facts: FactsOf) -> Naming:
        """The names of stored predictions; ``table`` has the setting and the perturbation of each curve."""
        unperturbed = _unperturbed(table)
        curves, perturbed = table[unperturbed], table[~unperturbed]
        return cls.of_curves(curves, settings_of(facts, curves, perturbed))

    def with_lists(self, stored: pd.DataFrame, facts: FactsOf, *, own_names: bool) -> Naming:
        """With the filters for each curve of these points, which have the columns :data:`LISTED`.

        ``own_names`` means that the list has the names of this naming; else it has those of :meth:`of_stored`, because
        it knows no derived predictions. A curve that begins with the k=0 of another one lists that.
        """
        points = _as_text(stored.reindex(columns=LISTED))
        points = points.astype({"perturbation": object})
        names = self if own_names else Naming.of_stored(points, facts)
        points["listed"] = names.named(points)["series"]
        unperturbed = _unperturbed(points)
        points["perturbation"] = points["perturbation"].where(~unperturbed, UNPERTURBED)
        lists: dict[tuple[str, str, str, str], int] = {}
        numbers: dict[tuple[Any, ...], int] = {}
        for table in (points, from_zero_shot(points[unperturbed], facts)):
            for row in table.to_dict("records"):
                filters = (row["task"], row["model"], row["listed"], row["perturbation"])
                numbers[_list_key(row)] = lists.setdefault(filters, len(lists))
        return replace(self, lists=tuple(lists), list_numbers=numbers)

    def named(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The table with plain text for names, and ``series``, the distinguishing name of its curves.

        Curves of different tasks or models may have one name. ``hue`` is the selector's colour, if there are several
        selectors. ``listed`` is the number of a point's filters in ``lists``.
        """
        frame = _as_text(frame)
        series = frame["select"] if "select" in frame else frame["model"]
        if "order" in frame:
            usual = frame["order"].isin(USUAL_ORDERS)
            if not usual.all():
                series = series.where(usual, series + ", " + frame["order"])
        if self.attentions and "attention" in frame:
            with_attention = series + ", " + frame["attention"].map(attention_name)
            series = series.where(series.isin(BASELINES), with_attention)
        if "variant" in frame:
            text = frame["variant"].map(dict(self.settings)).astype(object)
            if text.notna().any():
                series = series.where(text.isna(), series + ", " + text.fillna(""))
            frame = frame.assign(setting=text.where(text.notna(), ""))
        if self.hues and "select" in frame:
            frame = frame.assign(hue=frame["select"].map(dict(self.hues)))
        if self.list_numbers and {*SETTING, "k"} <= {*frame}:
            keys = map(_list_key, frame[[*SETTING, "k"]].to_dict("records"))
            numbers: list[Any] = [self.list_numbers.get(key) for key in keys]
            frame = frame.assign(listed=numbers)
        return frame.assign(series=series)

    def against(self, frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
        """A named table of comparisons, with the base in the name if one series has several."""
        base = self.bases(frame, by)
        return frame.assign(series=frame["series"].where(base == "", frame["series"] + " against " + base))

    def bases(self, frame: pd.DataFrame, by: Sequence[str]) -> pd.Series[str]:
        """The name of each comparison's base if its series has several; else empty."""
        curve = [*by, "series"]
        repeated = frame.assign(repeated=frame.duplicated([*curve, "k"], keep=False))
        several = repeated.groupby(curve)["repeated"].transform("any").astype(bool)
        base: pd.Series[str] = frame["base_variant"].map(dict(self.settings)).fillna(frame["base_variant"])
        return base.where(several, "")


LISTED = (*SETTING, "perturbation", "k")
"""Columns of the points that have lists of predictions."""


def point_name(row: Mapping[Any, Any]) -> str:
    """The name of a point in a named table."""
    if row["k"]:
        return f"{row['series']}, k = {row['k']:,}"
    return ", ".join(["without demonstrations", *filter(None, [row["setting"]])])


def attention_name(attention: str) -> str:
    """The name of an attention pattern: as written; full and unknown patterns in words."""
    pattern = pattern_of(attention)
    return f"{attention} attention" if pattern in (None, FULL) else attention


LOSSES_DIFFER = {"dtype": "{}", "window_tokens": "windows of {:,} tokens"}
"""Columns of losses that are not comparable across their values -> a value as text."""


def told_apart(frame: pd.DataFrame, by: Sequence[str], texts: Mapping[str, str]) -> pd.DataFrame:
    """The table with a column's value in the name of a series if a panel (``by``) has several; ``texts`` as above."""
    series = frame["series"]
    for name, text in texts.items() if len(frame) else ():
        several = frame.groupby(list(by))[name].transform("nunique") > 1
        series = series.where(~several, series + ", " + frame[name].map(text.format))
    return frame.assign(series=series)


def unshuffled(frame: pd.DataFrame) -> pd.DataFrame:
    """The table without random reorderings, which repeat the curve in drawn order."""
    return frame[~is_shuffled(frame["order"])]


def _unperturbed(table: pd.DataFrame) -> pd.Series[bool]:
    return table["perturbation"].isna() | (table["perturbation"] == "")


def _list_key(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in SETTING), row["k"] == 0)


def _as_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert categories to text, so that columns of different tables can be joined."""
    import pandas as pd

    categories = [name for name, kind in frame.dtypes.items() if isinstance(kind, pd.CategoricalDtype)]
    return frame.assign(**{str(name): frame[name].astype(object) for name in categories}).reset_index(drop=True)
