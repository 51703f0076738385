"""A complete results file in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from icl_bench.results.calibration import Calibration, of_queries
from icl_bench.results.cells import AXES
from icl_bench.results.stored_meta import CellMeta, ImportMeta, Origin

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ResultFile:
    """A complete file: one cell, or an import of many."""

    name: str
    table: pa.Table
    meta: CellMeta | None = None
    """Metadata of a cell's file."""
    imported: ImportMeta | None = None
    """Metadata of an import."""
    stated: Mapping[str, Origin] = field(default_factory=dict)
    """Variant -> its origin, in an import of an export."""
    sha256: str = ""
    """The hash of its bytes."""

    @property
    def asked_for(self) -> Calibration | None:
        """The calibration of the file's queries; None for test rows."""
        return None if self.meta is None else of_queries(self.meta.facts.queries)

    @property
    def asks_test_rows(self) -> bool:
        """Whether its queries are results (:attr:`Facts.asks_test_rows`)."""
        return self.meta is None or self.meta.facts.asks_test_rows

    def cells(self) -> list[dict[str, Any]]:
        """Axes, cell and variant of each cell, in the order of the file."""
        names = [*AXES, "cell", "variant"]
        if self.imported is None:
            return [{name: self.table[name][0].as_py() for name in names}]
        import numpy as np

        first = np.sort(np.unique(self._cell_numbers(), return_index=True)[1])
        cells: list[dict[str, Any]] = self.table.select(names).take(first).to_pylist()
        return cells

    def without(self, cells: Collection[str]) -> ResultFile:
        """The file without some cells, given by their hashes."""
        import numpy as np

        named = self.table["cell"].combine_chunks().dictionary.to_pylist()
        dropped = [number for number, cell in enumerate(named) if cell in cells]
        keep = ~np.isin(self._cell_numbers(), dropped)
        return replace(self, table=self.table.filter(keep))

    def _cell_numbers(self) -> Any:
        return self.table["cell"].combine_chunks().indices.to_numpy()
