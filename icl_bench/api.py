"""The public interface in Python: the same program as the command line, with the same options.

    import icl_bench

    results = icl_bench.run(task="stdlib_six", model="gemma3-270m", k=[1, 10], draws=3)
    results.curves                # accuracy by k with 95% intervals, a data frame
    results.show(k=10)            # one prediction and its exact prompt

``docs/python.md`` describes all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from html import escape
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from icl_bench.choosing.options import ChooseSpec
from icl_bench.errors import UserError
from icl_bench.options import Options
from icl_bench.quiet_libraries import hush_libraries
from icl_bench.results.facts import UNKNOWN
from icl_bench.results.storage import ADDRESS, CellsOf, Place
from icl_bench.studies.options import MachineOptions
from icl_bench.sweep.options import RunOptions
from icl_bench.sweep.rationale_options import RationalesOptions
from icl_bench.tasks.spec import TaskSpec
from icl_bench.training.spec import FinetuneSpec
from icl_bench.wording import counted, nearest, short

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.all_findings import Findings
    from icl_bench.analysis.baseline_check import Check
    from icl_bench.analysis.label_score_arrays import LabelScores
    from icl_bench.report.figure_style import FigureStyle
    from icl_bench.report.notebook import Charts
    from icl_bench.report.prompt_trace import Shown

Function = TypeVar("Function", bound=Callable[..., Any])

NAMES_OF_A_CELL = ("model", "select", "order", "attention", "perturbation", "cell")
"""The names that distinguish cells of the same task, k and draw."""

SHARE = ["score", "ci_low", "ci_high"]


def _takes(*specs: type[Options]) -> Callable[[Function], Function]:
    """Give a function the options of specifications, for ``help`` and completion."""

    def described(function: Function) -> Function:
        options = {name: one for spec in specs for name, one in spec.declared().items()}
        own = [p for p in Signature.from_callable(function).parameters.values() if p.kind is Parameter.KEYWORD_ONLY]
        shared = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if one.field.is_required() else one.field.default,
                annotation=one.field.annotation,
            )
            for name, one in options.items()
        ]
        every = sorted([*shared, *own], key=lambda p: p.default is not Parameter.empty)
        function.__signature__ = Signature(every)  # type: ignore[attr-defined]
        lines = (f"        {name}: {one.option.help}" for name, one in options.items())
        function.__doc__ = f"{function.__doc__}\n    Options:\n" + "\n".join(lines) + "\n"
        return function

    return described


@_takes(RunOptions, MachineOptions)
def run(*, results: Place = "results", quiet: bool = False, **options: Any) -> Results:
    """Sweep the number of demonstrations on a task with a model: ``icl-bench run``.

    ``task`` and ``model`` may be lists: each task is run with each model. A task may be an :class:`icl_bench.Task` with
    its rows; a model may be a pair of a loaded ``transformers`` model and its tokenizer. The value of any other option
    is its text on the command line, or a Python value: a number, a list, a dictionary. Finished cells in ``results``
    are kept. ``quiet`` hides progress.

    Returns the results of the requested cells, including those that were finished before. Raises
    :class:`icl_bench.UserError`: one or two lines that name the option, the value and what is expected. With several
    tasks and models, the others are finished first.
    """
    from icl_bench.sweep.run_spec import RunSpec

    return _carried_out(RunSpec, options, results, quiet)


@_takes(FinetuneSpec, MachineOptions)
def finetune(*, results: Place = "results", quiet: bool = False, **options: Any) -> Results:
    """Train on the examples that a prompt would show: ``icl-bench finetune``.

    Arguments, return value and errors are like those of :func:`run`.
    """
    return _carried_out(FinetuneSpec, options, results, quiet)


@_takes(RunOptions, MachineOptions)
def plan(*, results: Place | None = None, **options: Any) -> pd.DataFrame:
    """Show what :func:`run` would compute: ``icl-bench plan``. It runs no model and writes nothing.

    Returns one row per cell: the axes; ``fits`` and ``problem``; the tokens of the shared prefix, of the longest prompt
    and to compute; ``flops``; ``cache_bytes``; estimated ``seconds``; and with ``results`` whether the cell is
    ``finished``. With ``price``, as for :meth:`Results.frontier`, ``money_cached`` and ``money_uncached`` are the cost
    of a cell with and without a server's cache. An impossible combination is a row without a draw, with the reason in
    ``left_out``. Raises :class:`icl_bench.UserError`.
    """
    import pandas as pd

    from icl_bench.cli.jobs import do_each
    from icl_bench.cli.output.plan import plan_records
    from icl_bench.cli.output.progress import Display
    from icl_bench.studies.cluster import ClusterSpec
    from icl_bench.studies.workers import WorkerSpec
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep

    hush_libraries()
    given, machines = _split(RunSpec, options)
    ClusterSpec.of(machines)  # refuses whatever run refuses
    WorkerSpec.of(machines)
    place = None if results is None else _place(results)
    rows: list[dict[str, Any]] = []
    _, problem = do_each(
        RunSpec,
        given,
        lambda one: rows.extend(plan_records(Sweep.prepare(one, to_run=False, results=place), place, one.price)),
        Display(quiet=True).problem,
    )
    if problem is not None:
        raise problem
    return pd.DataFrame(rows)


@_takes(ChooseSpec)
def choose(*, results: Place = "results", quiet: bool = False, **options: Any) -> dict[str, Any]:
    """Choose a model and how to prompt it, by a race of settings: ``icl-bench choose``.

    ``task`` and ``model`` are those of :func:`run`; ``model`` may be a list, and ``engine`` a dictionary of options by
    model. ``spend`` is text like ``30m``, ``2Mtokens`` or ``$5``, or a number of seconds. Ctrl-C ends the race. Instead
    of ``task``, ``data`` may be a file of rows, or a pandas or polars frame; ``text`` and ``label`` name its columns.
    Its task file, and the rows of a frame, are written into ``results``.

    Returns the JSON of the command line as a dictionary: ``choice`` (the name of a setting), ``decided``, ``ended``
    (why the race ended before it was decided), the number of predictions, and ``settings``: for each its ``score`` with
    a 95% interval (``ci_low``, ``ci_high``), the cost of a query, whether it is ``out`` of the race and ``why``, and
    whether it would also be out on new rows and draws (``out_for_new``). Raises :class:`icl_bench.UserError`.
    """
    from icl_bench.cli.output.choose import raced
    from icl_bench.cli.output.progress import Display

    hush_libraries()
    task = options.get("task")
    given = _split_here(ChooseSpec, {**options, "task": "" if task is None else task})
    return raced(given, _place(results), Display(quiet=quiet)).as_json()


@_takes(RationalesOptions)
def rationales(*, quiet: bool = False, **options: Any) -> dict[str, Any]:
    """Let a model write rationales for rows of the pool, and keep the right ones: ``icl-bench rationales``.

    ``out`` is the new task file, which is a ``task`` for :func:`run`; ``task`` and ``model`` are those of :func:`run`.
    After an interruption, the same call continues.

    Returns the field ``rationales`` of the task file: the numbers of rows ``tried`` and ``kept``, by label in
    ``kept_of_label``, the tokens, and the model that wrote them. Raises :class:`icl_bench.UserError`, also if none is
    kept.
    """
    from icl_bench.cli.output.progress import Display
    from icl_bench.cli.output.rationales import carried_out

    hush_libraries()
    given = _split_here(RationalesOptions, options)
    if given.get("out") is None:
        raise UserError("--out: is missing")
    outcome, origin = carried_out(RationalesOptions(**given), Display(quiet=quiet))
    if origin is None:
        raise UserError("; ".join([*outcome.failed.values(), *outcome.stopped]))
    return origin.model_dump()


def read(results: Place = "results", *, task: str | None = None, model: str | None = None) -> Results:
    """Read a results folder, or one task or model in it.

    Raises :class:`icl_bench.UserError` if there is no such folder, task or model, or no result.
    """
    only: dict[str, Any] = {name: one for name, one in {"task": task, "model": model}.items() if one is not None}
    for name, one in only.items():
        if not isinstance(one, str):
            raise UserError(f"--{name} {short(one)}: expected the name of one {name}")
    found = Results(results, only=only)
    _ = found.findings
    return found


def check(
    baseline: str | Path,
    results: Place = "results",
    *,
    tolerance: float = 0.01,
    alpha: float = 0.05,
    allow_missing: bool = False,
) -> Check:
    """Compare results with a baseline: ``icl-bench check``.

    ``tolerance`` is the accepted loss as a fraction of 1, ``alpha`` the probability of a false alarm for all tests
    together. Returns the comparison: ``lost`` is whether a significant loss larger than the tolerance was found,
    ``points`` is a table of the points. Raises :class:`icl_bench.UserError` if either cannot be read, if they cannot be
    compared, or (without ``allow_missing``) if the results lack a part of the baseline.
    """
    from icl_bench.report.leaderboard_check import check_baseline

    found = check_baseline(Path(baseline), results, tolerance, alpha, allow_missing)
    if not found.lost:
        found.require_all()
    return found


class Results:
    """The results of a folder, or of some cells, one task or one model in it. Files are read when first needed.

    Scores and differences are fractions of 1 in all data frames.
    """

    def __init__(
        self,
        place: Place,
        *,
        cells: Collection[str] | None = None,
        only: Mapping[str, str] | None = None,
        tasks: Collection[TaskSpec] = (),
    ) -> None:
        """``cells`` are names of files without endings, ``only`` names a task or a model, and ``tasks`` are those whose
        rows were given in Python.
        """
        self.folder = place = _place(place)
        if isinstance(place, str | Path) and not ADDRESS.match(str(place)):
            place = Path(place).absolute()  # the same after a change of the working folder
        """The folder that was given."""
        self._place: Place = place if cells is None else CellsOf(place, cells)
        self._only, self._tasks = dict(only or {}), {task.name: task for task in tasks}

    # -- tables ---------------------------------------------------------------------------------

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """One row per prediction: the axes (task, model, select, order, attention, k, draw), ``test_id``,
        ``gold``, ``prediction``, ``correct``, ``valid``, token counts, ``prompt_hash``, ``cell``,
        ``variant``; further columns, such as ``probability``, if a prediction has a value there.
        """
        return self.findings.context.stored.own_predictions

    @cached_property
    def findings(self) -> Findings:
        """Every table of ``icl-bench summary --json`` as an attribute, for example ``results.findings.retrieval_gain``.
        A table is computed when it is first used.
        """
        from icl_bench.analysis.all_findings import read_findings
        from icl_bench.tasks.task_files import known_groups

        task, model = self._only.get("task"), self._only.get("model")
        return read_findings(self._place, task=task, model=model, groups=known_groups())

    @property
    def curves(self) -> pd.DataFrame:
        """One row per curve and k: ``score`` (the mean over draws and test rows) with its 95% interval
        ``ci_low`` to ``ci_high``, ``draws``, ``test_rows`` and further scores.
        """
        return self.findings.curves

    @cached_property
    def scores(self) -> dict[tuple[str, str], LabelScores]:
        """The log-probabilities of all labels that ``score="exact"`` stored, by task and model.

        Each value has ``labels``, ``values`` as a ``(predictions, labels)`` float32 array, and ``rows``, a
        data frame of these predictions in the same order.
        """
        from icl_bench.analysis.label_score_arrays import arrays_of

        return arrays_of(self.findings.context.stored)

    @property
    def failed(self) -> pd.DataFrame:
        """One row per cell that could not be computed, with its ``reason``."""
        import pandas as pd

        rows = [{**one.spec.model_dump(), "reason": one.reason} for one in self.findings.context.stored.failed]
        return pd.DataFrame(rows)

    def frontier(
        self, queries: int = 1000, price: str | Mapping[str, float] | None = None, across: str | None = None
    ) -> pd.DataFrame:
        """Every point with its score, its cost per query and whether another point dominates it.

        ``queries`` is the number of queries that share one-time costs (a cached prefix, a training). ``price`` is per
        million tokens, ``{"input": 0.5, "cached": 0.05, "output": 1.5}``, per hour of your machine, ``{"hour": 2}``, or
        the text of the command line, such as ``"auto,hour=2"``. With ``across="models"``, points of all models of a
        task are compared. ``attrs["prices"]`` of the table has the prices of each model. Raises
        :class:`icl_bench.UserError`.
        """
        from icl_bench.analysis.across_models import compares_models
        from icl_bench.analysis.frontier import frontier_of_folder
        from icl_bench.analysis.query_cost import check_queries
        from icl_bench.models.prices import given_prices

        check_queries(queries)
        return frontier_of_folder(self._place, queries, given_prices(price), self._only, compares_models(across))

    def advice(
        self,
        budget: str = "any",
        queries: int | None = None,
        price: str | Mapping[str, float] | None = None,
        across: str | None = None,
    ) -> pd.DataFrame:
        """All points, with a mark at the cheapest one that is as good as the best, and the test behind it.

        ``budget`` is the maximum cost of a query: ``any``, ``tokens=2000`` or ``seconds=0.5``; with ``queries`` also
        ``operations=10`` (GFLOP) or ``money=0.001`` (with ``price``, as for ``frontier``). With ``across="models"``, it
        is the cheapest point of all models of a task. Raises :class:`icl_bench.UserError`.
        """
        from icl_bench.analysis.across_models import compares_models
        from icl_bench.analysis.advice import Budget, advise_folder
        from icl_bench.models.prices import given_prices

        limits = Budget.parse(budget, queries, given_prices(price), compares_models(across))
        return advise_folder(self._place, limits, self._only)

    # -- one prediction, charts, the report -----------------------------------------------------

    def show(
        self,
        k: int,
        task: str | TaskSpec | None = None,
        *,
        test_id: str | None = None,
        draw: int = 0,
        data_dir: str | Path | None = None,
        **which: str,
    ) -> Shown:
        """One prediction and the exact prompt behind it: ``icl-bench show``.

        ``which`` names the cell if several match: ``model``, ``select``, ``order``, ``attention``, ``perturbation``,
        ``cell``. ``task`` may be omitted if the results have only one. If its rows were given in Python, ``task`` is
        the task itself. Raises :class:`icl_bench.UserError`.
        """
        from icl_bench.report.prompt_trace import find_prediction, named_cell

        known = dict(self._tasks)
        if isinstance(task, TaskSpec):
            known[task.name] = task
            task = task.name
        if wrong := which.keys() - set(NAMES_OF_A_CELL):
            name = min(wrong)
            raise UserError(f"{name}: not an option of show; {nearest(name, [*NAMES_OF_A_CELL, 'test_id', 'draw'])}")
        named = {"task": task or self._only.get("task") or self._one_task(), "k": k, "draw": draw}
        wanted = named_cell(**{**self._only, **which, **named})
        folder = None if data_dir is None else Path(data_dir)
        return find_prediction(self._place, wanted, test_id, folder, tasks=known)

    def _one_task(self) -> str:
        names = sorted(map(str, self.predictions["task"].unique()))
        if len(names) != 1:
            raise UserError(f"--task: is missing; the results have {', '.join(names) or 'none'}")
        return names[0]

    def plot(self, section: str = "accuracy", *words: str) -> Charts:
        """The charts of a section of the report (accuracy, order, retrieval, models, cost, ...) whose names contain all
        of ``words``. A notebook shows them; ``.save(folder)`` writes PNG files.

        Raises :class:`icl_bench.UserError` for an unknown section, or without the extra ``report``.
        """
        from icl_bench.report.notebook import charts

        return charts(self.findings, section, *words)

    def report(
        self,
        path: str | Path | None = None,
        *,
        all: str | Path | None = None,  # noqa: A002 - as on the command line
        figures: str | Path | None = None,
        style: FigureStyle | None = None,
        data_dir: str | Path | None = None,
        anonymous: bool = False,
    ) -> Path:
        """Write one HTML page of all findings, ``report.html``, and with ``figures`` its charts as files into a folder.

        With ``all``, write the page and all predictions into this folder, for a web server or to open locally.
        ``style`` is the style of the figures (:class:`icl_bench.report.figure_style.FigureStyle`: width, font, names,
        ...). With ``anonymous``, for blind review, the page contains no names of machine and user, and no paths.
        Returns the path of the page. Raises :class:`icl_bench.UserError` if it cannot be written, for a ``style``
        without ``figures``, for both ``path`` and ``all``, or without the extra ``report``.
        """
        from icl_bench.report import write_report
        from icl_bench.results.anonymous import Anonymous

        if style is not None and figures is None:
            raise UserError("style: applies to figures; add figures=DIR")
        if path is not None and all is not None:
            raise UserError("path: the page of all=DIR is DIR/index.html; leave out one of the two")
        place: Any = Anonymous(self._place) if anonymous else self._place
        written = write_report(
            place,
            Path(all or path or "report.html"),
            only=self._only,
            figures=None if figures is None else Path(figures),
            style=style,
            data_dir=None if data_dir is None else Path(data_dir),
            with_all=all is not None,
        )
        return written.page

    # -- how they look --------------------------------------------------------------------------

    def _points(self) -> pd.DataFrame:
        """The curves in percent, with the columns that say something."""
        facts = self.findings.context.facts
        calibrations = [facts.get(str(variant), UNKNOWN).calibration or "none" for variant in self.curves["variant"]]
        curves = self.curves.assign(calibration=calibrations)
        ways = [name for name in ("order", "attention", "calibration") if curves[name].nunique() > 1]
        table = curves[["task", "model", "select", *ways, "k", "draws", "test_rows"]].copy()
        for name, column in zip(("score %", "95% from", "to"), SHARE, strict=True):
            table[name] = (100 * curves[column]).round(1)
        return table

    def _headline(self) -> str:
        failed = f", {counted(count, 'cell')} failed (.failed)" if (count := len(self.failed)) else ""
        return f"Results of {self.folder}: {len(self.predictions):,} predictions{failed}"

    def __repr__(self) -> str:
        points = self._points()
        table = [points.to_string(index=False)] if len(points) else []
        more = "more: .curves .findings .frontier() .advice() .show(k) .plot() .report(path)"
        return "\n".join([self._headline(), *table, more])

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._headline())}</p>{self._points().to_html(index=False)}"


def _place(given: Any) -> Place:
    """A place of results. Raises ``UserError``."""
    if (isinstance(given, str | Path) and given != "") or hasattr(given, "names"):
        place: Place = given
        return place
    raise UserError(f"--results {short(given)}: expected a folder, or an address like s3://bucket/results")


def _split(spec: type[Options], options: Mapping[str, Any]) -> tuple[dict[str, Any], MachineOptions]:
    """The options of the specification, and those of machines. Raises ``UserError``."""
    machines = {name: options[name] for name in MachineOptions.declared() if name in options}
    given = {name: value for name, value in options.items() if name not in machines}
    known = spec.declared()
    for name in given:
        if name not in known:
            raise UserError(f"{name}: not an option of {spec.about}; {nearest(name, {**known, 'results': None})}")
    for name in ("task", "model"):
        value = given.get(name)
        if value is None or (isinstance(value, list) and not value):
            raise UserError(f"--{name}: is missing")
    return given, MachineOptions(**machines)


def _split_here(spec: type[Options], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of what runs on this machine alone. Raises ``UserError``."""
    given, machines = _split(spec, options)
    if machines != MachineOptions():
        raise UserError(f"{spec.about}: runs on this machine; leave the options of many machines out")
    return given


def _carried_out(spec: Any, options: Mapping[str, Any], results: Place, quiet: bool) -> Results:
    from icl_bench.cli.jobs import carry_out
    from icl_bench.cli.output.progress import Display

    given, machines = _split(spec, options)
    results = _place(results)
    done, problem = carry_out(spec, given, machines, results, Display(quiet), lambda _: None)
    if problem is not None:
        raise problem
    tasks = given["task"] if isinstance(given["task"], list) else [given["task"]]
    cells = [name for one in done for name in one.outcome.names]
    return Results(results, cells=cells, tasks=[task for task in tasks if isinstance(task, TaskSpec)])
