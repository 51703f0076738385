"""What a finding is: a table made of stored predictions, and how it is shown.

A new finding is one declaration, in a file of its own, and one line in
:data:`icl_bench.registry.FINDINGS`; another package's is an entry point. From that it is a table of
:class:`icl_bench.analysis.all_findings.Findings`, is in ``summary --json``, is printed by ``summary``
(with ``printed``) and is a section of the report (with ``section``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from icl_bench.analysis.columns import COLUMNS, Column, columns_of_scores

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

LAST = 1000
"""The place of what asks for none: behind all that do."""


@dataclass(frozen=True)
class Chart:
    """Lines over k, one for each curve, with their limits: what the report draws by itself.

    The table has ``k``, the columns of a setting, and ``ci_low`` and ``ci_high`` where its values
    have limits.
    """

    value: str
    """The column that is drawn."""
    axis: str = ""
    """What the vertical axis is called, by default as the column is; may hold ``{score}``."""
    about: str = "{title}, {panel}, over k"
    """What the chart shows, for who cannot see it: may hold ``{title}``, ``{panel}``, ``{score}``
    and the columns of ``by``."""
    by: tuple[str, ...] = ("task", "model")
    """There is a panel for each combination of these; ``curve`` is the curve's name."""
    line: str = ""
    """The column that tells the lines of a panel apart, where it is not the curve's name."""
    line_names: Mapping[Any, str] = field(default_factory=dict)
    """Value of that column -> what its line is called, in the order of the legend."""
    tips: tuple[str, ...] = ()
    """Further columns that hovering over a point shows."""
    difference: bool = False
    """Whether values are differences from a base: drawn about a line at 0."""
    shuffled: Literal["shown", "hidden", "left out"] = "left out"
    """Whether curves of random reorderings are there, or there but switched off at first."""


@dataclass(frozen=True)
class Section:
    """The section of the report that a finding has.

    ``title``, ``short`` and ``reading`` may hold ``{score}`` and ``{Score}``, what the tables are
    about (accuracy, ROUGE-1), the names of columns that begin with ``base_`` and what a drawer of
    :mod:`icl_bench.report.sections` says besides.
    """

    name: str
    """For links and files: lower case and dashes."""
    title: str
    short: str
    """The title where there is little room."""
    needs: str
    """What to run where there is no data for it."""
    reading: str
    """How to read its charts, in a sentence or two."""
    source: str = ""
    """The figure or table of a paper that it is modelled on."""
    chart: Chart | None = None
    """What is drawn; without, there is the table alone, or a drawer of its own."""
    also: tuple[str, ...] = ()
    """Further findings whose tables stand in it."""
    place: int = LAST
    """The smallest number comes first."""


def _as_it_is(table: pd.DataFrame) -> pd.DataFrame:
    return table


@dataclass(frozen=True)
class Printed:
    """The table of a finding as ``icl-bench summary`` prints it."""

    heading: str
    """May hold ``{score}``."""
    columns: str = ""
    """Names with spaces between; by default all of the finding."""
    rows: Callable[[pd.DataFrame], pd.DataFrame] = _as_it_is
    """Which rows are printed, and of what."""
    columns_here: tuple[Column, ...] = ()
    """Columns that mean something else in these rows than in the table."""
    option: Literal["", "cost", "cascade", "forecast", "provenance"] = ""
    """The option of ``summary`` that has to ask for it."""


@dataclass(frozen=True)
class Finding:
    """One table, and how it is shown."""

    name: str
    """Its key in the JSON and the attribute of :class:`icl_bench.analysis.all_findings.Findings`."""
    make: Callable[[Context], pd.DataFrame]
    columns: tuple[Column, ...] = ()
    """Columns that are its own, or have another title or kind here than in ``COLUMNS``."""
    caption: str = ""
    """Above its table in the report; may hold ``{score}`` and ``{Score}``."""
    shown: str = ""
    """Columns of its table in the report with spaces between; ``series`` is the curve's name,
    ``{scores}`` one column for each score. By default the curve, k and its own columns."""
    printed: Printed | None = None
    section: Section | None = None

    def column(self, name: str) -> Column:
        """How a column is shown: as declared here, or as everywhere."""
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
