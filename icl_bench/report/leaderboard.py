"""The leaderboard: every point of a results folder in one table, best first, as CSV and Markdown.

The same folder, or the same files of predictions, give the same bytes: no dates, no paths, rounded shares.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.words import curve_notes
from icl_bench.demonstrations.selector_spec import cautions
from icl_bench.errors import UserError
from icl_bench.escaping import in_markdown, no_formula
from icl_bench.metrics.scores import corpus_numbers, score_columns, scored, title
from icl_bench.results.cells import AXES, short_hash
from icl_bench.results.exporting import imported_origins
from icl_bench.results.facts import Facts
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import Stored, imported_hashes, nothing_in, read_stored
from icl_bench.results.storage import Place
from icl_bench.results.stored_meta import Origin
from icl_bench.results.trained_methods import UPPER
from icl_bench.text_files import write_whole
from icl_bench.wording import DASH, percent, plain

if TYPE_CHECKING:
    import pandas as pd

LINE = [*(axis for axis in AXES if axis != "draw"), "variant"]
"""The columns that identify a line of the table."""


PROVENANCE = ("fingerprint", "dtype", "backend", "hardware")
"""Columns with the model file, number format, backend and machine of a point's predictions; empty if unknown. An import
may have columns of these names.
"""


def shares() -> tuple[str, ...]:
    """The columns that are shares of 1."""
    return ("accuracy", "ci_low", "ci_high", "macro_f1", *score_columns(), *corpus_numbers())


def csv_columns() -> tuple[str, ...]:
    """The columns of the CSV file, in this order."""
    first = (*LINE[:-1], "draws", "test_rows")
    last = ("saturation_k", "version", "data_hash", "variant", "interval_over", "outlying_draws", *PROVENANCE, "metric")
    return (*first, *shares(), *last)


DIGITS = 6

NO_LINE = "nothing for a leaderboard, only upper bounds, halves of a label space or perturbed demonstrations"

SEVERAL = (
    "Some points have several lines, one for each variant: other facts of the run, or another imported file. Draws of "
    "a point in several imported files are not combined; put them into one file."
)


class NoLineError(UserError):
    """There are results, but none for a leaderboard."""


NAMES = (("version", "version"), ("data_hash", "data"), ("variant", "variant"))
"""The last columns of the displayed table, with their titles."""


def leaderboard(results: Place) -> pd.DataFrame:
    """Return one row per point of each curve, with the columns of :func:`csv_columns`, by task, best first.

    Rows are sorted by each task's own score (``metrics.scores.scored``), which ci_low and ci_high belong to.
    ``saturation_k`` is that of the point's curve, missing if it is not saturated within the tested k, or if
    :func:`icl_bench.analysis.curves.saturation` has a reason not to report it. The point without demonstrations (k=0)
    has one line, and counts as a tested k of all curves that begin with it. ``version`` is the version of icl-bench
    (several with commas), empty for imports that do not report it; ``data_hash`` is the hash of the data files and test
    rows, or of the imported file. An import of an export has the values of the export.

    Points that are not comparable are left out: upper bounds, whose checkpoint was selected on the test rows, halves of
    a label space, which are easier tasks, and perturbed demonstrations. Calibrated answers, which are derived from
    stored scores, are not points here.

    Raises ``UserError`` if there is no such folder, no finished cell in it, or only points that are left out.
    """
    from icl_bench.analysis.curves import curves
    from icl_bench.analysis.findings.saturation import saturation_on, shared_scores
    from icl_bench.analysis.predictions import unperturbed_predictions, with_copies_as_one_draw
    from icl_bench.analysis.zero_shot import from_zero_shot

    stored = read_stored(results)
    frame = scored(stored.predictions, first=stored.first_scores)
    upper = frame["select"].astype(str).str.endswith(UPPER)
    if frame.empty:
        raise nothing_in(results)
    frame = frame[~upper & frame["label_space"].isna() & frame["perturbation"].isna()]
    if frame.empty:
        raise NoLineError(f"results folder {plain(results)}: {NO_LINE}")
    unperturbed = with_copies_as_one_draw(unperturbed_predictions(frame))
    points = curves(unperturbed)
    shared = shared_scores(from_zero_shot(unperturbed, stored.variants))
    saturated = saturation_on(from_zero_shot(points, stored.variants), shared)
    saturated = saturated[saturated["within_window"].astype(bool) & saturated["spoken"].astype(bool)]
    setting = [name for name in LINE if name != "k"]
    saturated = saturated[[*setting, "k"]].rename(columns={"k": "saturation_k"})
    names = dict.fromkeys(setting, object)  # categories of two tables may differ
    table = points.astype(names).merge(saturated.astype(names), on=setting, how="left")
    origins = imported_origins(results)
    data = _data_hashes(stored, results, origins)
    table["data_hash"] = [data.get(variant, "") for variant in table["variant"]]
    for name, known in _provenance(stored, frame, origins).items():
        of_points = (known.get(key, ()) for key in table[LINE].itertuples(index=False, name=None))
        table[name] = [", ".join(sorted(values)) for values in of_points]
    table["saturation_k"] = table["saturation_k"].astype("Int64")
    table = table.reindex(columns=[*table, *(name for name in shares() if name not in table)])
    for name in shares():
        table[name] = table[name].astype(float).round(DIGITS)
    best = table["score"].astype(float).round(DIGITS)
    table = table.assign(best=-best).sort_values(["task", "best", *LINE], kind="stable")
    return table[list(csv_columns())].reset_index(drop=True)


def leaderboard_of(files: Sequence[Path]) -> pd.DataFrame:
    """The table of :func:`leaderboard` for files of predictions that ``icl-bench import`` supports.

    Raises ``UserError`` if a file cannot be imported, or none has points for the table.
    """
    with TemporaryDirectory() as folder:
        for file in files:
            import_predictions(file, Path(folder))
        try:
            return leaderboard(Path(folder))
        except NoLineError:
            names = ", ".join(map(plain, files))
            raise UserError(f"{names}: {NO_LINE}") from None


Known = dict[tuple[Any, ...], set[str]]
"""Known properties of each point, with the columns of ``LINE``."""


def _provenance(stored: Stored, frame: pd.DataFrame, origins: Mapping[str, Origin]) -> dict[str, Known]:
    """Provenance of each point's predictions: the version of this program, and the columns ``PROVENANCE``."""
    found: dict[str, Known] = {name: {} for name in ("version", *PROVENANCE)}

    def add(name: str, point: tuple[Any, ...], values: Iterable[Any]) -> None:
        if known := {str(value) for value in values if value is not None}:
            found[name].setdefault(point, set()).update(known)

    for cell in stored.cells.values():
        named = {**cell.spec.model_dump(), "variant": cell.variant}
        point = tuple(named[name] for name in LINE)
        add("version", point, [cell.versions.get("icl-bench")])
        add("hardware", point, [cell.run.hardware])
    own = [name for name in PROVENANCE if name != "backend" and name in frame]  # columns of an import
    for key, rows in frame.groupby(LINE, observed=True):
        point = tuple(key)
        origin = origins.get(point[-1])
        facts = origin.facts if origin else stored.variants.get(point[-1], Facts())
        for name in ("fingerprint", "dtype", "backend"):
            add(name, point, [getattr(facts, name)])
        if origin:
            add("version", point, [versions.get("icl-bench") for versions in origin.versions])
        for name in own:
            add(name, point, rows[name].dropna().unique())
    return found


def _data_hashes(stored: Stored, results: Place, origins: Mapping[str, Origin]) -> dict[str, str]:
    """Variant -> hash of its data files and test rows, or of the imported file."""
    imports = {name: ", ".join(sorted(hashes)) for name, hashes in imported_hashes(results).items()}
    known = {variant: facts for variant, facts in stored.variants.items() if facts.imported is None}
    known |= {variant: origin.facts for variant, origin in origins.items() if variant not in known}
    return imports | {variant: short_hash({"data": facts.data, "test": facts.test}) for variant, facts in known.items()}


# -- as text ------------------------------------------------------------------------------------


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Plain values, one mapping per row, with None for missing values."""
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def as_csv(table: pd.DataFrame) -> str:
    """CSV with a header and empty cells for missing values. Names that are not printable are quoted."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names := csv_columns())
    for row in records(table):
        writer.writerow("" if row[name] in (None, "") else no_formula(plain(row[name])) for name in names)
    return text.getvalue()


def _interval(row: Mapping[str, Any]) -> str:
    low, high = row["ci_low"], row["ci_high"]
    return f"{percent(low)} to {percent(high)}" if low is not None else DASH


def _word(value: Any) -> str:
    return str(value) if value not in (None, "") else DASH


def _shower(score: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: percent(row[score])


def _numbers() -> Mapping[str, Callable[[Mapping[str, Any]], str]]:
    """Numeric columns -> their text for a row."""
    return {
        "k": lambda row: f"{row['k']}",
        "draws": lambda row: f"{row['draws']}",
        "test rows": lambda row: f"{row['test_rows']}",
        "accuracy %": lambda row: percent(row["accuracy"]),
        "95% interval": _interval,
        "macro-F1 %": lambda row: percent(row["macro_f1"]),
        **{title(name): _shower(name) for name in score_columns()},
        **{text: _shower(name) for name, text in corpus_numbers().items()},
        "saturated at k": lambda row: _word(row["saturation_k"]),
    }


def columns(table: pd.DataFrame) -> list[tuple[str, bool, list[str]]]:
    """Name, whether it is numeric, and values of each displayed column, in percent.

    Empty numeric columns are left out. If tasks have different scores, a column names the score of each interval.
    """
    rows = records(table)
    words = ["task", "model", "select", "order"]
    words += ["attention"] if any(row["attention"] != "full" for row in rows) else []
    texts = [(name, False, [_word(row[name]) for row in rows]) for name in words]
    for name, shown in _numbers().items():
        values = [shown(row) for row in rows]
        if name == "saturated at k" or set(values) != {DASH}:
            texts.append((name, True, values))
        if name == "95% interval" and len({row["metric"] for row in rows}) > 1:
            texts.append(("interval of", False, [_word(row["metric"] and title(row["metric"])) for row in rows]))
    made_by = [name for name in ("dtype", "backend", "hardware") if any(row[name] for row in rows)]
    for key, name in (*zip(made_by, made_by, strict=True), *NAMES):
        texts.append((name, False, [_word(row[key]) for row in rows]))
    return texts


def notes(table: pd.DataFrame) -> list[str]:
    """Notes below the table, on intervals, on selections that saw the test queries and on points of several lines."""
    several = bool(table.duplicated(LINE[:-1]).any())
    return [*curve_notes(table), *cautions(table["select"]), *([SEVERAL] if several else [])]


def as_markdown(table: pd.DataFrame) -> str:
    """The table in GitHub's Markdown, in percent; empty columns are left out.

    Notes on selections that saw the test queries and on points of several lines follow.
    """
    shown = [
        [name, "---:", *values] if numbers else [name, "---", *map(in_markdown, values)]
        for name, numbers, values in columns(table)
    ]
    lines = [f"| {' | '.join(line)} |\n" for line in zip(*shown, strict=True)]
    remarks = [f"\n{in_markdown(text)}\n" for text in notes(table)]
    return "".join([*lines, *remarks])


def write(table: pd.DataFrame, out: Path) -> tuple[Path, Path]:
    """Write the CSV file and the Markdown next to it, each atomically.

    Raises ``UserError`` for another extension than ``.csv``, or if they cannot be written.
    """
    if out.suffix.lower() != ".csv":
        raise UserError(f"--out {plain(out)}: must end in .csv")
    beside = out.with_suffix(".md")
    for path, text in ((out, as_csv(table)), (beside, as_markdown(table))):
        try:
            write_whole(path, text.encode())
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"{plain(path)}: cannot be written ({reason})") from None
    return out, beside
