"""What ``choose`` prints: the race's rounds, and the answer in five lines."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from icl_bench.choosing.contest import Contest, Setting
from icl_bench.choosing.options import OF_THE_RACE, ChooseSpec
from icl_bench.choosing.race import Standing
from icl_bench.cli.output.plan import duration
from icl_bench.cli.output.progress import Display
from icl_bench.metrics.scores import title
from icl_bench.results.storage import Place
from icl_bench.sweep.notes import notes
from icl_bench.sweep.runner import Watcher
from icl_bench.wording import counted, counted_queries, percent, three_digits


class Progress(Watcher):
    """A line for each round of a race."""

    def __init__(self, contest: Contest, note: Callable[[str], None]) -> None:
        self._contest, self._note = contest, note

    def begin(self) -> None:
        """Say what races."""
        contest, rules = self._contest, self._contest.race.rules
        for text in notes(contest.sweep):
            self._note(f"note: {text}")
        for text in contest.left_out:
            self._note(f"left out: {text}")
        self._note(
            f"{counted(len(contest.settings), 'setting')} on {counted(rules.rows, 'row')} and "
            f"{counted(rules.draws, 'draw')}: {contest.full_sweep:,} predictions in a full sweep"
        )

    def backend_loading(self) -> None:
        """Say that the model is loaded."""
        self._note(f"loading {self._contest.sweep.model.name}")

    def round(self) -> None:
        """Say who leads and how many run."""
        contest = self._contest
        answer = contest.answer()
        choice = answer.standings[answer.choice]
        running = [one for one in answer.standings if not one.out]
        rows = max(one.predictions for one in running)
        self._note(
            f"{duration(contest.seconds)}: {len(running)} of {len(contest.settings)} run, {choice.candidate.name} "
            f"leads with {score(choice)} after {rows:,} answers; {int(contest.race.spent.sum()):,} in all"
        )


def raced(spec: ChooseSpec, results: Place, display: Display) -> Contest:
    """Lay out a race and run it, with its rounds and cautions on the display. Raises ``UserError``."""
    with display.preparing() as say:
        contest = Contest.prepare(spec, say, results)
    progress = Progress(contest, display.note)
    progress.begin()
    contest.run(results, progress, progress.round)
    contest.outcome.notes += contest.outcome.notes_on_thoughts
    display.cautions(contest.outcome)
    return contest


def score(standing: Standing) -> str:
    """A score with its interval: ``81.2% (74.0 to 87.1)``."""
    return f"{percent(standing.score)}% ({percent(standing.low)} to {percent(standing.high)})"


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
    spec = contest.spec
    words = ["icl-bench", "run", "--task", str(spec.task), "--model", str(spec.model), "--k", str(setting.k)]
    if setting.k:
        words += ["--select", setting.select]
    for name, option in spec.declared().items():
        value = getattr(spec, name)
        if name not in {*OF_THE_RACE, "task", "model", "k", "select"} and value != option.field.default:
            words += [option.flag, str(value)]
    words += [] if str(results) == "results" else ["--results", str(results)]
    return shlex.join(words)
