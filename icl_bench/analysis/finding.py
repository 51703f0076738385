"""A finding: a table computed from stored predictions, and its display.

A new finding is one declaration in its own file, and one line in :data:`icl_bench.registry.FINDINGS` (in another
package, an entry point). It then is a table of :class:`icl_bench.analysis.all_findings.Findings` and part of ``summary
--json``. With ``printed`` it is printed by ``summary``, and with ``section`` it is a section of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from icl_bench.analysis.by_task import ByTask
from icl_bench.analysis.columns import COLUMNS, Column, columns_of_scores

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

LAST = 1000
"""The place of sections that do not set one: after all that do."""


@dataclass(frozen=True)
class Chart:
    """Lines over k, one per curve, with their limits, drawn by the report.

    The table has ``k``, the columns of a setting, and ``ci_low`` and ``ci_high`` if its values have limits.
    """

    value: str
    """The column that is drawn."""
    axis: str = ""
    """The title of the vertical axis, by default that of the column; may contain ``{score}``."""
    about: str = "{title}, {panel}, over k"
    """Alternative text of the chart: may contain ``{title}``, ``{panel}``, ``{score}`` and the columns of ``by``."""
    by: tuple[str, ...] = ("task", "model")
    """One panel for each combination of these columns; ``curve`` is the curve's name."""
    line: str = ""
    """The column that distinguishes the lines of a panel, if it is not the curve's name."""
    line_names: Mapping[Any, str] = field(default_factory=dict)
    """Value of that column -> the name of its line, in the order of the legend."""
    tips: tuple[str, ...] = ()
    """Further columns in tooltips."""
    difference: bool = False
    """Whether values are differences from a base, drawn around a line at 0."""
    shuffled: Literal["shown", "hidden", "left out"] = "left out"
    """Whether curves of random reorderings are included, and initially hidden."""


@dataclass(frozen=True)
class Section:
    """A finding's section of the report.

    ``title``, ``short`` and ``reading`` may contain ``{score}`` and ``{Score}``, the name of the tables' score
    (accuracy, ROUGE-1), the names of columns that begin with ``base_``, and further values from a drawing function of
    :mod:`icl_bench.report.sections`.
    """

    name: str
    """For links and files: lower case and dashes."""
    title: str
    short: str
    """The title for narrow places."""
    needs: str
    """The command to run if there is no data for the section."""
    reading: str
    """How to read its charts, in one or two sentences."""
    source: str = ""
    """The figure or table of a paper that it follows."""
    chart: Chart | None = None
    """Its chart; without one, only the table or the section's own drawing function."""
    also: tuple[str, ...] = ()
    """Further findings whose tables the section contains."""
    place: int = LAST
    """The smallest number comes first."""


def _as_it_is(table: pd.DataFrame) -> pd.DataFrame:
    return table


def _no_notes(context: Context) -> Sequence[str]:
    del context
    return ()


@dataclass(frozen=True)
class Printed:
    """The table of a finding in ``icl-bench summary``."""

    heading: str
    """May contain ``{score}``."""
    columns: str = ""
    """Column names separated by spaces; by default all of the finding."""
    rows: Callable[[pd.DataFrame], pd.DataFrame] = _as_it_is
    """Which rows are printed, and what they are about."""
    columns_here: tuple[Column, ...] = ()
    """Columns that have another meaning in these rows than in the table."""
    notes: Callable[[Context], Sequence[str]] = _no_notes
    """Further notes below the rows."""
    option: Literal["", "cost", "cascade", "forecast", "provenance"] = ""
    """The option of ``summary`` that requests it."""


@dataclass(frozen=True)
class Finding:
    """One table and its display."""

    name: str
    """Its key in the JSON and the attribute of :class:`icl_bench.analysis.all_findings.Findings`."""
    make: Callable[[Context], pd.DataFrame]
    columns: tuple[Column, ...] = ()
    """Columns that only this finding has, or that have another title or kind here than in ``COLUMNS``."""
    caption: str = ""
    """The caption of its table in the report; may contain ``{score}`` and ``{Score}``."""
    shown: str = ""
    """Columns of its table in the report, separated by spaces; ``series`` is the curve's name, ``{scores}`` one column
    for each score. By default the curve, k and its own columns.
    """
    printed: Printed | None = None
    section: Section | None = None
    by_task: ByTask | None = None
    """How tables of single tasks are joined, if each task's rows depend on the predictions of this task only. Large
    folders are then not held whole in memory. By default the table is computed from all predictions.
    """

    def column(self, name: str) -> Column:
        """The display of a column: declared here, or the default."""
        own = {column.name: column for column in self.columns}
        shared = COLUMNS.get(name) or columns_of_scores().get(name)
        return own.get(name) or shared or Column(name, name.replace("_", " "))

    def in_report(self) -> Sequence[Column]:
        """The columns of its table in the report."""
        own = [column.name for column in self.columns]
        names = self.shown.format(scores=" ".join(columns_of_scores())).split() or [
            "task",
            "model",
            "series",
            "k",
            *own,
        ]
        return [self.column(name) for name in names]

    def in_terminal(self) -> Sequence[Column]:
        """The columns that ``summary`` prints."""
        printed = self.printed or Printed("")
        uppers = {column.upper for column in self.columns}
        own = [column.name for column in self.columns if column.name not in uppers]
        here = {column.name: column for column in printed.columns_here}
        names = printed.columns.split() or ["task", "model", "select", "order", "k", *own]
        return [here.get(name) or self.column(name) for name in names]
