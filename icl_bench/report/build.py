"""The content of a report, computed from a results folder before anything is drawn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icl_bench.analysis.all_findings import Findings, find
from icl_bench.analysis.draws import is_drawn
from icl_bench.analysis.findings.provenance import encoders
from icl_bench.analysis.findings.races import races_of
from icl_bench.analysis.label_probabilities import missing_scores
from icl_bench.analysis.missing import in_words, not_at_random
from icl_bench.analysis.summary import records
from icl_bench.analysis.words import READS_TEST_INPUTS
from icl_bench.analysis.zero_shot import with_demonstrations
from icl_bench.demonstrations.selector_spec import cautions
from icl_bench.registry import FINDINGS
from icl_bench.report.answers import Answer, said
from icl_bench.report.headlines import Headlines, headlines
from icl_bench.report.matrix import Matrix, matrix
from icl_bench.report.naming import LISTED, Naming, unshuffled
from icl_bench.report.prediction_sample import Sample, sample
from icl_bench.report.sections.index import sections
from icl_bench.report.sections.panels import EmptySection, ReportSection
from icl_bench.report.tables import Table, of_names
from icl_bench.results.anonymous import shown_beside
from icl_bench.results.derived import reads_test_inputs
from icl_bench.results.reading import read_some
from icl_bench.results.rows import Rows
from icl_bench.results.storage import Place, place_words
from icl_bench.results.trained_methods import BASELINES
from icl_bench.wording import counted

FEW_DRAWS = 3


@dataclass(frozen=True)
class Report:
    """The content of a page or of a folder of figures."""

    overview: str
    """One sentence about the measured points."""
    tasks: Sequence[str]
    models: Sequence[str]
    notes: Sequence[str]
    """Notes that a reader needs to interpret the numbers."""
    answers: Sequence[Answer]
    matrix: Matrix
    headlines: Sequence[Headlines]
    sections: Sequence[ReportSection]
    missing: Sequence[EmptySection]
    sample: Sample
    failed: Table | None
    settings: Mapping[str, str]
    """Variant -> its distinguishing name, if a task and model have several."""
    provenance: Sequence[Mapping[str, Any]] = ()
    """Provenance of each task, model and variant: rows of :mod:`icl_bench.analysis.findings.provenance`."""
    encoders: Sequence[str] = ()
    """The text encoders in use, and their purposes."""
    lists: Sequence[tuple[str, str, str, str]] = ()
    """Filters of the list of predictions, which rows of charts refer to: :class:`icl_bench.report.naming.Naming`."""
    place: Sequence[str] = ()
    """The option of commands that names the results folder; empty for the default one."""


def make_report(
    results: Place,
    only: Mapping[str, str] | None = None,
    data_dir: Path | None = None,
    served: bool = False,
    processes: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Build the report of a results folder, or of its part with these values (task, model).

    Prompts are rebuilt from data in ``data_dir``. If ``served``, it has no sample: the page requests predictions from
    its server, or loads them from files next to it. ``say`` receives progress messages. Raises ``UserError`` without
    results.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        stored = read_some(results, only)
    messages = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
    for text in messages:
        warnings.warn(text, stacklevel=2)
    model, task = ((only or {}).get(name) for name in ("model", "task"))
    findings = find(stored, results=results, model=model, task=task, processes=processes)
    findings.work_out(["answers", *(f.name for f in FINDINGS.values() if f.section)], say)
    say("drawing charts")
    naming, raced = Naming.of(findings.summary), races_of(findings.context)
    naming = naming.with_lists(stored.own_rows.distinct(LISTED), stored.variants, own_names=not served)
    present, missing = sections(findings, naming)
    return Report(
        _overview(stored.own_rows, raced=bool(raced)),
        sorted({*stored.rows.names("task"), *(race.task for race in raced)}),
        sorted({*stored.rows.names("model"), *(name for race in raced for name in race.models)}),
        [*_notes(findings), *messages],
        said(findings, naming),
        matrix(findings, naming),
        headlines(findings, naming),
        present,
        missing,
        Sample.of_server(len(stored.own_rows))
        if served
        else sample(stored, naming, data_dir, as_shown=shown_beside(results)),
        _failed(findings),
        naming.settings,
        records(findings.provenance),
        encoders(stored.variants.values()),
        naming.lists,
        place_words(results),
    )


def pending(tasks: Sequence[str], models: Sequence[str], predictions: int) -> Report:
    """The content that a server shows while findings are computed."""
    overview = "Reading the results."
    if predictions:
        overview = f"{counted(predictions, 'prediction')}; the findings are being computed."
    nothing = Matrix((), (), {})
    sample = Sample.of_server(predictions)
    return Report(overview, tasks, models, (), (), nothing, (), (), (), sample, None, {})


def _overview(rows: Rows, *, raced: bool) -> str:
    frame = rows.distinct(["task", "model", "cell", "select", "k"])
    if frame.empty:
        return "No cell is finished." + (" A race answered parts of cells." if raced else "")
    tasks, models, cells = (frame[name].nunique() for name in ("task", "model", "cell"))
    counts = [counted(models, "model"), counted(tasks, "task")]
    prompted = frame.loc[~frame["select"].isin(BASELINES), "k"]  # trainings have no demonstrations
    if len(prompted):
        low, high = int(prompted.min()), int(prompted.max())
        span = counted(low, "demonstration") if low == high else f"{low:,} to {high:,} demonstrations"
        counts.append(f"{span} in the prompt")
    return f"{counted(len(rows), 'prediction')} in {counted(cells, 'cell')}: {', '.join(counts)}."


def _notes(findings: Findings) -> list[str]:
    notes = []
    if failed := len(findings.summary.failed):
        notes.append(f"{counted(failed, 'cell')} could not be computed; they are listed below.")
    notes += [f"{cells.in_words()}." for cells in findings.summary.partial]
    if reads_test_inputs(findings.context.facts):
        notes.append(READS_TEST_INPUTS)
    notes += [f"{text}." for text in findings.context.rows_apart]
    free = findings.context.table("truncated_answers")
    if cut := int(free["truncated"].sum()):
        notes.append(
            f"{cut:,} of {counted(int(free['answers'].sum()), 'free answer')} were cut at "
            "max_answer_tokens: their scores cover only a part of the text. The task file sets this "
            "limit."
        )
    curves = unshuffled(findings.summary.curves)
    if left_out := int(findings.summary.curves["left_out"].sum()):
        notes.append(
            f"{counted(left_out, 'prediction')} of draws that have no test row in common with the "
            "others are in no curve."
        )
    if missing := int(findings.summary.curves["missing"].sum()):
        notes.append(
            f"{counted(missing, 'prediction')} missing or without a score: points are means of "
            "the others, with equal weight for each test row."
        )
    for row in not_at_random(findings.summary.curves).to_dict("records"):
        words = in_words(row["gap_difference"], row["gap_p"])
        names = ("task", "model", "select", "order", "attention")
        notes.append(f"{' '.join(str(row[name]) for name in names)}: {words}.")
    drawn = with_demonstrations(curves)
    drawn = drawn[drawn["select"].astype(str).map(is_drawn).astype(bool)]
    points = f"of {counted(len(drawn), 'point')} with randomly drawn demonstrations"
    if single := int((drawn["draws"] == 1).sum()):
        notes.append(
            f"{single:,} {points} {'has' if single == 1 else 'have'} a single draw: the interval of such a "
            "point counts test rows only and does not show the effect of other demonstrations."
        )
    if few := int(drawn["draws"].between(2, FEW_DRAWS).sum()):
        notes.append(
            f"{few:,} {points} {'has' if few == 1 else 'have'} two or three draws: the interval of such a point "
            "may be too narrow where draws differ much."
        )
    notes += [f"{text}." for text in missing_scores(findings.context.stored)]
    everything = [*findings.summary.curves["select"], *findings.summary.perturbed_curves["select"]]
    return [*notes, *(f"{text}." for text in cautions(everything))]


def _failed(findings: Findings) -> Table | None:
    import pandas as pd

    if not (failed := findings.summary.failed):
        return None
    rows = [{**failure.spec.model_dump(), "reason": failure.reason} for failure in failed]
    names = "task model select order attention k draw reason"
    return of_names(pd.DataFrame(rows), "Cells that could not be computed", names)


def tables(report: Report) -> list[tuple[Any, Table]]:
    """Every table of the page with its section; failed cells have none."""
    pairs: list[tuple[Any, Table]] = [(s, t) for s in report.sections for t in s.tables]
    return [*pairs, (None, report.failed)] if report.failed else pairs
