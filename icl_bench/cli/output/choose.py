"""Runs a race of ``choose``, and prints its answer in five lines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from icl_bench.choosing.contest import Contest, Setting
from icl_bench.choosing.options import OF_THE_RACE, ChooseSpec
from icl_bench.choosing.race import Standing
from icl_bench.choosing.record import Record
from icl_bench.cli.output.plan import duration
from icl_bench.cli.output.progress import Display
from icl_bench.cli.output.race import RaceProgress, score
from icl_bench.metrics.scores import title
from icl_bench.results.storage import Place
from icl_bench.wording import counted, counted_queries, three_digits


def raced(spec: ChooseSpec, results: Place, display: Display) -> Contest:
    """Lay out a race and run it, with its rounds and cautions on the display. Raises ``UserError``."""
    with display.preparing() as say:
        contest = Contest.prepare(spec, say, results)
    record = Record(
        contest,
        results,
        lambda: list(answer_lines(contest, results)),
        command=whole_command(contest, results),
        measure=contest.sweep.task.first_measure,
    )
    progress = RaceProgress(contest, display)

    def after_round() -> None:
        progress.round()
        record.round()

    with progress.showing():
        contest.run(results, progress, after_round)
    record.keep()
    contest.outcome.notes += contest.outcome.notes_on_thoughts
    display.cautions(contest.outcome)
    return contest


def answer_lines(contest: Contest, results: Place) -> Iterator[str]:
    """The answer in five lines."""
    answer = contest.answer()
    pairs = list(zip(contest.settings, answer.standings, strict=True))
    setting, standing = pairs[answer.choice]
    if not standing.predictions:
        yield "Use: unknown, nothing was answered"
        return
    margin, open_ = f"{contest.spec.margin:g} points", [one for one in answer.standings if not one.out]
    if answer.decided:
        why = f"no other of {counted(len(pairs), 'setting')} is better by more than {margin} in a full sweep (error 5%)"
        why = why if len(pairs) > 1 else "the only setting"
    else:
        others = counted(len(open_) - 1, "other setting")
        why = f"not decided, {contest.ended}: {others} may be better by more than {margin}"
    measure = title(contest.sweep.task.first_measure)
    yield f"Use: {setting.name}, {measure} {score(standing)} on new rows and draws; {why}"
    yield f"Cost: {cost(contest, setting)}"
    rest = sorted((pair for pair in pairs if pair[0] is not setting), key=_rank)
    if rest:
        second, behind = rest[0]
        yield f"Runner-up: {second.name}, {score(behind)}{cheaper(contest, setting, second, behind)}"
    else:
        yield "Runner-up: none, no other setting raced"
    others, new = counted(len(rest), "other setting"), sum(not one.out_for_new for _, one in rest)
    beyond = f"nothing: no other setting is better by more than {margin} (error 5%)"
    if new:
        beyond = f"whether {new} of {others} are better by more than {margin}; more test rows and draws would show it"
    yield (
        f"Not known: on new rows and draws, {beyond} "
        f"(asked: {int(contest.race.spent.sum()):,} of a full sweep's {contest.full_sweep:,} predictions)"
    )
    yield f"Whole curve: {command(contest, setting, results)}"


def _rank(pair: tuple[Setting, Standing]) -> tuple[bool, float]:
    """Those that are not out first, the best first."""
    standing = pair[1]
    return standing.out, -standing.score if standing.predictions else 0.0


def cost(contest: Contest, setting: Setting) -> str:
    """What a query costs, and all of them."""
    queries, flops = contest.spec.queries, setting.flops(contest.spec.queries)
    if flops is None:
        return "unknown for this model"
    said = f"{three_digits(flops / 1e9)} GFLOP a query"
    if contest.rate is not None:
        each = flops / contest.rate
        said += (
            f", about {three_digits(each)} s on this machine; {counted_queries(queries)}: {duration(each * queries)}"
        )
    return said


def cheaper(contest: Contest, setting: Setting, second: Setting, standing: Standing) -> str:
    """How the runner-up's cost compares."""
    one, other = setting.flops(contest.spec.queries), second.flops(contest.spec.queries)
    if one is None or other is None:
        return ""
    sure = ", surely within the margin" if standing.cheaper else ""
    return f"; {three_digits(other / one)} times the operations{sure}"


def command(contest: Contest, setting: Setting, results: Place) -> str:
    """The run that computes the choice's cells whole."""
    return _run_of(contest, [setting], results)


def whole_command(contest: Contest, results: Place) -> str:
    """The run that computes the cells of all settings whole."""
    return _run_of(contest, contest.settings, results)


def _run_of(contest: Contest, settings: Sequence[Setting], results: Place) -> str:
    spec = contest.spec
    shots = ",".join(map(str, sorted({one.k for one in settings})))
    selectors = ",".join(dict.fromkeys(one.select for one in settings if one.k))
    words = ["icl-bench", "run", "--task", str(spec.task), "--model", str(spec.model), "--k", shots]
    if selectors:
        words += ["--select", selectors]
    for name, option in spec.declared().items():
        value = getattr(spec, name)
        if name not in {*OF_THE_RACE, "task", "model", "k", "select"} and value != option.field.default:
            words += [option.flag, str(value)]
    words += [] if str(results) == "results" else ["--results", str(results)]
    return shlex.join(words)
