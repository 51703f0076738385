"""Comparison of a results folder with a stored baseline.

A baseline is a Parquet file of ``icl-bench export``, or another results folder. Predictions are compared only where
both sides answered the same question: data, template, labels, test rows, pool, seed and scoring are facts of each
variant and must be equal. The model file, dtype, backend and versions may differ, and differences are reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from icl_bench.analysis.regression import COMPARED, PAIR, Overall, alone, compare, flips, missing, overall, pair
from icl_bench.analysis.settings import PLAINER
from icl_bench.analysis.summary import records
from icl_bench.errors import UserError
from icl_bench.metrics.scores import LARGEST_SCORE, columns_by_score, score_columns
from icl_bench.results.cells import prediction_schema
from icl_bench.results.exporting import NO_ORIGIN, imported_origins, origins
from icl_bench.results.facts import OF_RESULTS
from icl_bench.results.reading import EXPORT_META, nothing_in, read_stored
from icl_bench.results.storage import Place
from icl_bench.results.stored_meta import Origin, read_origins
from icl_bench.table_files import data_frame, parquet_table
from icl_bench.text_files import read_file
from icl_bench.wording import counted, listed, one_line, plain, short

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CHECKED = ("fingerprint", "backend", "dtype", "quantization", "kv_cache_dtype", "server", "endpoint")
"""Facts of the model and software that compute the answers. They may differ; all others must not."""


CALLED = {
    "test": "test rows (hash)",
    "test_rows": "number of test rows",
    "pool": "pool (hash)",
    "pool_rows": "number of pool rows",
    "labels": "labels (hash)",
}
"""Fact -> its name in messages, if that differs."""


NEW = "make a new baseline with icl-bench export --out FILE.parquet"


@dataclass(frozen=True)
class Side:
    """The predictions of one side and the origins of its variants."""

    shown: str
    """The file or folder, as named in messages."""
    predictions: pd.DataFrame
    origins: Mapping[str, Origin]
    """Variant -> its origin; includes imports that are exports, which have facts."""
    first_scores: Mapping[str, str] = field(default_factory=dict)
    """Task -> the first score in its task file, if known."""


@dataclass(frozen=True, repr=False)
class Check:
    """A comparison with a baseline. ``icl_bench.analysis.regression`` describes the tables.

    Each table also has ``perturbation``: the perturbation of the demonstrations, missing without one.
    """

    baseline: str
    results: str
    tolerance: float
    alpha: float
    allow_missing: bool
    """Whether baseline predictions may be missing in the run."""
    overall: Overall
    """All points taken together."""
    points: pd.DataFrame
    """With an additional column ``missing``: the baseline's predictions that the run lacks."""
    flips: pd.DataFrame
    only_baseline: pd.DataFrame
    only_results: pd.DataFrame
    changes: Sequence[Mapping[str, Any]]
    """Differences of the model and software: base_variant, variant, fact, before, now."""
    notes: Sequence[str] = ()
    """Notes on what could not be compared."""

    def __repr__(self) -> str:
        verdict = "loss" if self.lost else "no loss"
        lacking = f"; lacks {self.lacking}" if self.lacking else ""
        points = counted(len(self.points), "point")
        return (
            f"{self.results} against {self.baseline}: {verdict}, {points} compared{lacking} (.lost, .overall, .points)"
        )

    @property
    def lost(self) -> bool:
        """Whether a point has a loss, or all points together."""
        return self.overall.verdict == "loss" or bool((self.points["verdict"] == "loss").any())

    @property
    def passed(self) -> bool:
        """Whether there is no loss, and all of the baseline was compared or may be missing."""
        return not self.lost and (self.allow_missing or not self.lacking)

    @property
    def lacking(self) -> str:
        """Message about the predictions that the run lacks; empty if it lacks none."""
        torn = self.points[self.points["missing"] > 0]
        parts = []
        if len(torn):
            count = counted(int(torn["missing"].sum()), "prediction")
            parts.append(f"{count} of {_several(torn)}")
        if len(self.only_baseline):
            parts.append(f"all of {_several(self.only_baseline, self.name_alone)}")
        return listed(parts) if parts else ""

    def name_alone(self, row: Mapping[Any, Any] | pd.Series) -> str:
        """The name of a point without a counterpart; with its variant if another variant of it was compared."""
        name = point_name(row)
        if name not in set(map(point_name, self.points.to_dict("records"))):
            return name
        variant = row["variant"]
        return f"{name} ({f'variant {plain(variant)}' if variant else 'without a variant'})"

    def require_all(self) -> None:
        """Raise ``UserError`` if part of the baseline was not compared and must not be missing."""
        if self.lacking and not self.allow_missing:
            raise UserError(
                one_line(
                    f"{self.results}: lacks {self.lacking} of the baseline {self.baseline}; run "
                    "what the baseline has, or pass --allow-missing"
                )
            )

    def as_json(self) -> dict[str, Any]:
        """Plain values and lists of records, with null for undefined values."""
        return {
            "passed": self.passed,
            "baseline": self.baseline,
            "results": self.results,
            "tolerance": self.tolerance,
            "alpha": self.alpha,
            "allow_missing": self.allow_missing,
            "overall": {name: _known(value) for name, value in asdict(self.overall).items()},
            "points": records(self.points),
            "flips": records(self.flips),
            "only_in_baseline": records(self.only_baseline),
            "only_in_results": records(self.only_results),
            "changes": [dict(change) for change in self.changes],
            "notes": list(self.notes),
        }


def _several(points: pd.DataFrame, name: Callable[[pd.Series], str] | None = None) -> str:
    """The first of some points, and the number of the others."""
    more = len(points) - 1
    return (name or point_name)(points.iloc[0]) + (f" (and {counted(more, 'more point')})" if more else "")


def _known(value: Any) -> Any:
    """A value of the JSON; null if undefined."""
    return None if isinstance(value, float) and math.isnan(value) else value


def check_results(
    baseline: Path, results: Place, tolerance: float = 0.01, alpha: float = 0.05, allow_missing: bool = False
) -> Check:
    """Compare a results folder with a baseline, a file or another folder.

    Raises ``UserError`` if either cannot be read, nothing is common or has a score on both sides, or the sides of a
    common point answered different questions. :meth:`Check.require_all` refuses missing predictions.
    """
    refuse_limits(tolerance, alpha)
    base = read_folder(baseline) if baseline.is_dir() else read_baseline(baseline)
    now = read_folder(results)
    comparable = _comparable(base, now)
    _refuse_unlike(base, now, comparable)
    pairs = pair(base.predictions, now.predictions, comparable, now.first_scores)
    if pairs.empty:
        raise UserError(f"{now.shown} and {base.shown}: no draw and test row is in both; {NEW}")
    _refuse_other_gold(base, now, pairs)
    perturbations = _perturbations(base) | _perturbations(now)

    def with_perturbation(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(perturbation=table["variant"].map(perturbations))

    whole = overall(pairs, tolerance, alpha)
    if not whole.points:
        raise UserError(
            one_line(
                f"{now.shown} and {base.shown}: nothing was compared: no common prediction has a "
                f"score on both sides ({_several(pairs.drop_duplicates(PAIR))}); {NEW}"
            )
        )
    points = compare(pairs, tolerance, whole.alpha_points)
    return Check(
        base.shown,
        now.shown,
        tolerance,
        alpha,
        allow_missing,
        whole,
        with_perturbation(points.merge(missing(base.predictions, pairs), on=PAIR, how="left")),
        with_perturbation(flips(pairs)),
        with_perturbation(alone(base.predictions, pairs, "base_variant")),
        with_perturbation(alone(now.predictions, pairs)),
        list(_changes(base, now, pairs)),
    )


def refuse_limits(tolerance: float, alpha: float) -> None:
    """Raise ``UserError`` for a tolerance or a level that is not a share."""
    if not 0 <= tolerance < 1:
        raise UserError(f"--tolerance {tolerance}: expected a share from 0 to 1, like 0.01")
    if not 0 < alpha < 1:
        raise UserError(f"--alpha {alpha}: expected a probability between 0 and 1, like 0.05")


def _perturbations(side: Side) -> dict[str, str]:
    """Variant -> its perturbation, of those with perturbed demonstrations."""
    return {v: origin.facts.perturbation for v, origin in side.origins.items() if origin.facts.perturbation}


# -- reading ------------------------------------------------------------------------------------


def read_folder(path: Place) -> Side:
    """Read a results folder. Raises ``UserError``."""
    # one name on both sides for any files, because a changed model is the subject of the check
    stored = read_stored(path, apart=False)
    if stored.predictions.empty:
        raise nothing_in(path)
    known = {**imported_origins(path), **origins(stored.cells.values())}
    return Side(plain(path), stored.predictions, known, stored.first_scores)


def read_baseline(path: Path) -> Side:
    """Read an exported Parquet file with its facts. Raises ``UserError``."""
    import pyarrow as pa

    shown = plain(path)
    raw = read_file(path)
    try:
        table = parquet_table(raw)
        return Side(shown, _predictions(table, shown), _origins(table, shown))
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(one_line(f"{shown}: not a complete baseline: {error}; {NEW}")) from None


def _predictions(table: pa.Table, shown: str) -> pd.DataFrame:
    """The columns of a results file in their types, checked for what a comparison relies on."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = prediction_schema()
    if "queries" in table.column_names:  # earlier exports have calibration queries
        table = table.filter(pc.is_in(table["queries"].cast(pa.string()), pa.array(OF_RESULTS)))
    needed = [*COMPARED, "draw", "test_id", "gold", "prediction", "correct", "variant"]
    if lacking := [name for name in needed if name not in table.column_names]:
        raise UserError(f"{shown}: not a baseline: it lacks the column {lacking[0]}; {NEW}")
    if not len(table):
        raise UserError(f"{shown}: has no predictions; {NEW}")
    columns = {f.name: table[f.name].cast(f.type) for f in schema if f.name in table.column_names}
    further = {name for name in columns_by_score().values() if name not in columns}
    columns |= {n: table[n].cast(pa.float64()) for n in further & set(table.column_names)}
    for name in needed:
        if name != "correct" and columns[name].null_count:
            raise UserError(f"{shown}: column {name} has missing values; {NEW}")
    frame = data_frame(pa.table(columns))
    for name in (score for score in score_columns() if score in columns):
        if not frame[name].dropna().between(-LARGEST_SCORE, LARGEST_SCORE).all():
            raise UserError(f"{shown}: column {name} has values that are not shares from 0 to 1; {NEW}")
    if frame.duplicated([*COMPARED, "variant", "draw", "test_id"]).any():
        raise UserError(f"{shown}: a test row appears twice in a draw of a point; {NEW}")
    return frame


def _origins(table: pa.Table, shown: str) -> dict[str, Origin]:
    """The origins of a baseline's variants."""
    stored = (table.schema.metadata or {}).get(EXPORT_META)
    if stored is None:
        raise UserError(
            f"{shown}: does not record the data and templates behind its predictions, so nothing can be compared; {NEW}"
        )
    try:
        return read_origins(stored)
    except ValueError:
        raise UserError(f"{shown}: the facts of its variants cannot be read; {NEW}") from None


# -- comparable variants -----------------------------------------------------------------------


def _comparable(base: Side, now: Side) -> set[tuple[str, str]]:
    """Pairs of variants that answered the same question, the baseline's first."""
    return {
        (before, after)
        for before in base.predictions["variant"].unique()
        for after in now.predictions["variant"].unique()
        if not _obstacle(base, now, before, after)
    }


def _obstacle(base: Side, now: Side, before: str, after: str) -> str:
    """Why two variants cannot be compared; empty if they can."""
    if before == after:
        return ""  # a hash of all facts; of an import, of its content
    for side, variant in ((base, before), (now, after)):
        if variant not in side.origins:
            return f"the data behind these imported predictions are not known: {side.shown}"
    differing = _differing(base.origins[before].facts.known(), now.origins[after].facts.known())
    return "; ".join(
        f"{CALLED.get(name, name)}: {_shown(value)}, in the baseline {_shown(other)}"
        for name, (other, value) in differing.items()
    )


def _differing(base: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Facts of the question that differ: name -> the baseline's value and the run's."""
    names = [name for name in sorted({*base, *now}) if name not in CHECKED]
    unlike = [name for name in names if base.get(name) != now.get(name)]
    differences: dict[str, tuple[Any, Any]] = {}
    for name in unlike:
        if PLAINER.get(name) in unlike:
            continue
        first, second = base.get(name), now.get(name)
        if isinstance(first, dict) and isinstance(second, dict):
            inner = sorted({*first, *second})
            parts = {f"{name} {part}": (first.get(part), second.get(part)) for part in inner}
            differences |= {part: pair for part, pair in parts.items() if pair[0] != pair[1]}
        else:
            differences[name] = (first, second)
    return differences


def _shown(value: Any) -> str:
    """A fact's value in short form; for a hash, its end."""
    if isinstance(value, str) and len(value) > 40 and value.isalnum():
        return f"…{value[-8:]}"
    return "absent" if value is None else short(value)


def _refuse_unlike(base: Side, now: Side, comparable: Collection[tuple[str, str]]) -> None:
    """Refuse points that both sides have, but without comparable variants. Raises ``UserError``."""
    points = [*COMPARED, "variant"]
    first = base.predictions[points].drop_duplicates().astype(dict.fromkeys(points, object))
    second = now.predictions[points].drop_duplicates().astype(dict.fromkeys(points, object))
    both = first.merge(second, on=COMPARED, suffixes=("_base", ""))
    if both.empty:
        _refuse_apart(base, now, first, second)
    sides = zip(both["variant_base"], both["variant"], strict=True)
    both["fits"] = [side in comparable for side in sides]
    unlike = both[~both.groupby(COMPARED)["fits"].transform("any")]
    if unlike.empty:
        return
    row = unlike.iloc[0]
    why = _obstacle(base, now, row["variant_base"], row["variant"])
    more = len(unlike[COMPARED].drop_duplicates()) - 1
    others = f" (and {counted(more, 'more point')})" if more else ""
    raise UserError(
        one_line(
            f"{now.shown}: {point_name(row)}{others} cannot be compared with {base.shown}: {why}; "
            f"run as the baseline was run, or {NEW}"
        )
    )


def _refuse_apart(base: Side, now: Side, first: pd.DataFrame, second: pd.DataFrame) -> NoReturn:
    base_point, point = (point_name(side.iloc[0]) for side in (first, second))
    raise UserError(
        one_line(
            f"{now.shown} and {base.shown} have no point in common: the first has {point} ..., the "
            f"baseline {base_point} ...; run what the baseline has, or {NEW}"
        )
    )


def _refuse_other_gold(base: Side, now: Side, pairs: pd.DataFrame) -> None:
    unlike = pairs[pairs["gold"] != pairs["base_gold"]]
    if len(unlike):
        row = unlike.iloc[0]
        raise UserError(
            one_line(
                f"{now.shown}: {point_name(row)}: the right answer of test row "
                f"{short(row['test_id'])} is {short(row['gold'])}, in {base.shown} "
                f"{short(row['base_gold'])}; {NEW}"
            )
        )


def point_name(row: Mapping[Any, Any] | pd.Series) -> str:
    """A point's name in messages: ``trec gemma3-270m random drawn k=50``."""
    named = [plain(row[name]) for name in ("task", "model", "select", "order")]
    attention = [] if row["attention"] == "full" else [plain(row["attention"])]
    perturbation = [plain(row["perturbation"])] if isinstance(row.get("perturbation"), str) else []
    return " ".join([*named, *attention, *perturbation, f"k={row['k']}"])


def _changes(base: Side, now: Side, pairs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Differences of the model and software between compared variants."""
    variants = ["base_variant", "variant"]
    for before, after in pairs[variants].drop_duplicates().sort_values(variants).to_numpy():
        sides = base.origins.get(before, NO_ORIGIN), now.origins.get(after, NO_ORIGIN)
        known = [{**side.facts.known(), **_versions(side.versions)} for side in sides]
        for name in [*CHECKED, *sorted({*known[0], *known[1]} - {*CHECKED})]:
            old, new = (k.get(name) for k in known)
            if old != new:
                yield {"base_variant": before, "variant": after, "fact": name, "before": old, "now": new}


def _versions(about: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Versions by package; several versions of one are joined."""
    names = sorted({name for versions in about for name in versions})
    return {name: ", ".join(sorted({versions[name] for versions in about if name in versions})) for name in names}
