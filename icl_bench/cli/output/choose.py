"""Runs a race of ``choose``, and prints its answer in five lines."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from icl_bench.analysis.query_cost import MEASURES
from icl_bench.choosing.contest import NOT_TRIED, Contest, Setting, names_of
from icl_bench.choosing.data import with_task
from icl_bench.choosing.options import OF_THE_RACE, ChooseSpec
from icl_bench.choosing.race import CHEAPER, Answer, Standing
from icl_bench.choosing.record import Record
from icl_bench.cli.output.progress import Display
from icl_bench.cli.output.race import RaceProgress, score_of
from icl_bench.metrics.scores import title
from icl_bench.options import Options
from icl_bench.results.storage import Place, place_words
from icl_bench.sweep.this_run import cleaned
from icl_bench.wording import counted, counted_queries, duration, listed, percent, three_digits


def raced(options: Mapping[str, Any], results: Place, display: Display) -> Contest:
    """Plan the race of these options of ``choose`` and run it, with notes, rounds and cautions on the display.

    Raises ``UserError``.
    """
    with display.preparing() as say:
        say("reading the data")
        given, notes = with_task(options, results)
    for note in notes:
        display.note(note)
    spec = ChooseSpec(**given)
    with display.preparing() as say:
        contest = Contest.prepare(spec, say, results)
    record = Record(
        contest,
        results,
        lambda: list(answer_lines(contest, results, cleaned)),
        command=whole_command(contest, results),
        measure=contest.sweep.task.first_measure,
    )
    progress = RaceProgress(contest, display, checked=bool(notes))

    def after_round() -> None:
        progress.round()
        record.round()

    with progress.showing():
        contest.run(results, progress, after_round, progress.training)
    record.end()
    contest.outcome.notes += contest.outcome.notes_on_thoughts
    display.cautions(contest.outcome)
    return contest


def answer_lines(contest: Contest, results: Place, command: Callable[[list[str]], str] = shlex.join) -> Iterator[str]:
    """The answer in five lines; ``command`` joins the words of commands."""
    answer = contest.answer()
    pairs = list(zip(contest.settings, answer.standings, strict=True))
    setting, standing = pairs[answer.choice]
    if not standing.predictions:
        yield "Use: unknown, no answers yet"
        return
    measure = title(contest.sweep.task.first_measure)
    scored = (
        f"{percent(standing.score)}% over {counted(standing.predictions, 'answer')}{_answered(contest, answer.choice)}"
    )
    limits = f"95% interval for new queries {percent(standing.low)} to {percent(standing.high)}"
    scored += f", {limits}{without_near_duplicates(contest, answer.choice)}"
    use = "Use" if answer.decided else "Use for now"
    yield f"{use}: {setting.name}, {measure} {scored}; {_means(setting)}{why(contest, answer)}"
    yield f"Cost: {cost(contest, answer.choice)}"
    others = [place for place, (_, one) in enumerate(pairs) if place != answer.choice and one.raced]
    if others:
        second = min(others, key=lambda place: _rank(pairs[place][1]))
        behind = pairs[second][1]
        beside = compared(contest, answer.choice, second, behind) + cheaper(contest, answer, second)
        scored = f"{score_of(behind)}{on_common(contest, answer, second)}"
        yield f"Runner-up: {_named(contest, answer, second)}, {scored}{beside}"
    else:
        yield "Runner-up: none, no other setting raced"
    yield f"Not known: {unknown(contest, answer)}"
    if setting.learner is not None:
        words = [*_finetune_words(contest, [setting], results, 1), "--keep-checkpoints", "trained"]
        first = f"the first of {counted(setting.draws, 'draw')}" if setting.draws > 1 else "it"
        scored = percent(contest.score_of_training(answer.choice, 0))
        kept = "keeps the classifier in ./trained, with a program that uses it (README.md)"
        yield f"Next: {command(words)}  # trains {first} again (alone {scored}%) and {kept}"
        return
    commands = [run_words(contest, setting, results), prompt_words(contest, setting, results)]
    prompt = "the prompt" if setting.shares_examples else "the prompt of one row (each query has other examples)"
    then = "" if setting.calibration is None else ", whose answers are not calibrated yet"
    yield f"Next: {' && '.join(map(command, commands))}  # answers all test rows; writes {prompt} to a file{then}"


def _answered(contest: Contest, place: int) -> str:
    """The test rows and draws of a setting's answers."""
    standing = contest.answer().standings[place]
    rows = counted(int(min(contest.race.asked[place], contest.race.rules.rows)), "test row")
    return f" ({rows}, {standing.draws:,} random draws of examples)" if standing.draws > 1 else f" to {rows}"


def print_answer(lines: Iterable[str], shown: Console) -> None:
    """Print the answer. On a terminal its lines break between words, except those of commands, which can be copied."""
    for line in lines:
        shown.print(line, soft_wrap=not shown.is_terminal or line.startswith("Next: "))


FEWEST_QUERIES = 100
"""A number of queries at which costs are equal is named unless it is less than this part of ``--queries``."""

FAR_CHEAPER = 0.1
"""Share of the choice's cost at which a setting is worth a look although it scores less."""

DEMONSTRATIONS = {
    "random": "the same {} random examples in every prompt",
    "balanced": "the same {} examples in every prompt, as many of each label",
    "bm25": "every prompt shows the {} examples that have most words in common with the query (BM25)",
    "dense": "every prompt shows the {} examples that are most like the query",
}
"""Selector -> the content of its prompts."""

NO_EXAMPLES = "the prompt has no examples"

CALIBRATED = (
    "its accuracy is that of calibrated answers: in use, too, subtract from each label's log-probability its mean over "
    "the queries; "
)
"""What the user of a calibrated setting must do."""

LEARNING = {
    "knn": "the most similar of {} examples vote on the label, by sentence embeddings, without a language model",
    "encoder-probe": "a linear classifier of sentence embeddings learns from {} examples, without a language model",
    "probe": "a linear classifier of the model's states learns from {} examples",
    "lora": "the model is fine-tuned on {} examples (LoRA)",
    "full": "the model is fine-tuned on {} examples",
}
"""Training method -> its description."""

KINDS = {
    "random": "the same examples in every prompt",
    "balanced": "the same examples in every prompt, as many of each label",
    "bm25": "the examples with most words in common",
    "dense": "the most similar examples",
    "hybrid": "examples of which some are chosen for the query",
    "knn": "the most similar examples vote",
    "encoder-probe": "a linear classifier of sentence embeddings",
    "probe": "a linear classifier of the model's states",
    "lora": "fine-tuned, LoRA",
    "full": "fine-tuned",
}
"""Selector or training method -> a short description."""


def _named(contest: Contest, answer: Answer, place: int) -> str:
    """A setting's name, with a description if it is of another kind than the choice."""
    name, setting = answer.standings[place].candidate.name, contest.settings[place]
    kind = KINDS.get(setting.select.partition(":")[0])
    described = kind and setting.k and setting.select != contest.settings[answer.choice].select
    return f"{name} ({kind})" if described else name


def _means(setting: Setting) -> str:
    """A description of the setting for users who do not know its name."""
    known = (DEMONSTRATIONS if setting.learner is None else LEARNING).get(setting.select) if setting.k else NO_EXAMPLES
    calibrated = "" if setting.calibration is None else CALIBRATED
    return ("" if known is None else f"{known.format(f'{setting.k:,}')}; ") + calibrated


def why(contest: Contest, answer: Answer) -> str:
    """The reason for the choice, or why the race is undecided."""
    count, margin = len(_raced(answer)), f"{contest.spec.margin:g} points"
    if not answer.decided:
        others = sum(not one.out for one in answer.standings) - 1
        ended = contest.ended or "still running"
        cheaper = ", or cheaper and as good" if answer.cheaper_open else ""
        waiting = answer.waiting
        unasked = f"; {waiting:,} of them {'has' if waiting == 1 else 'have'} no answers yet" if waiting else ""
        passed = answer.waiting or _is_passed(contest, answer)
        highest = "" if passed else ", but so far none of them scores higher on the same test rows and draws"
        said = f"{counted(others, 'other setting')} {'is' if others == 1 else 'are'} not ruled out"
        return f"undecided, {ended}: {said} (may be better by more than {margin}{cheaper}){highest}{unasked}"
    if count == 1:
        return "the only setting"
    said = f"no other of {counted(count, 'setting')} is better by more than {margin} on these test rows (error 5%)"
    if answer.choice != contest.race.leader():
        said += ", and it is the cheapest of which this is sure"
    if open_ := answer.cheaper_open - answer.not_worth:
        ended = f" ({contest.ended})" if contest.ended else ""
        said += f"; {counted(open_, 'cheaper setting')} may be as good{ended}"
    if answer.not_worth:
        saved = f"to find out costs more than it saves in {counted_queries(contest.spec.queries)}"
        said += f"; {counted(answer.not_worth, 'cheaper setting')} may be as good, but {saved}"
    return said


def _is_passed(contest: Contest, answer: Answer) -> bool:
    """Whether a setting that is not out has a higher score than the choice where both answered."""
    open_ = (i for i, one in enumerate(answer.standings) if one.predictions and not one.out)
    return any(_lag(contest, answer.choice, i) < 0 for i in open_)


def unknown(contest: Contest, answer: Answer) -> str:
    """The open questions of the race, and the settings that it did not try."""
    margin, others = f"{contest.spec.margin:g} points", len(_raced(answer)) - 1
    new = sum(not one.out_for_new for one in _raced(answer)) - 1
    beyond = f"no other setting is better by more than {margin} on new queries either (error 5%)"
    if new > 0:
        are = "is" if new == 1 else "are"
        beyond = (
            f"whether {new} of {counted(others, 'other setting')} {are} better by more than {margin} on new queries; "
            "more test rows and draws would show it"
        )
    if not answer.decided:
        beyond = f"which setting is the best; {_still_needed(contest, answer)}"
    asked = f"the race used {contest.predictions:,} of the {contest.full_sweep:,} answers of a full sweep"
    methods = not_trained(contest, answer)
    training = f", training by {listed(methods)}" if methods else ""
    tried = f"{_more_examples(contest, answer)}{_left_settings(contest, answer)}{NOT_TRIED}{training}"
    return f"{beyond} ({asked}); not tried: {tried}"


def _left_settings(contest: Contest, answer: Answer) -> str:
    """Prompts that left the race, as its budget had too little for them, and trainings of methods that raced."""
    pairs = list(zip(contest.settings, answer.standings, strict=True))
    raced = {setting.select for setting, standing in pairs if standing.raced}
    left = [setting for setting, standing in pairs if not standing.raced]
    prompts = [one for one in left if one.learner is None]
    trainings = [one for one in left if one.learner is not None and one.select in raced]
    kinds = ((prompts, "no time"), (trainings, "left out"))
    return "".join(f"{names_of(some)} ({why}), " for some, why in kinds if some)


def _more_examples(contest: Contest, answer: Answer) -> str:
    """More examples than the choice has, if no setting of its kind has more."""
    choice = contest.settings[answer.choice]
    of_kind = [one.k for one in contest.settings if (one.select, one.entrant) == (choice.select, choice.entrant)]
    if not choice.k or choice.k < max(of_kind):
        return ""
    return f"more than {choice.k:,} examples (the pool has {len(contest.sweep_of(choice).task.pool):,}), "


def _still_needed(contest: Contest, answer: Answer) -> str:
    """What a sure choice takes beyond this, and how to get it."""
    answers, spend = contest.still_needed()
    least = "at least" if answer.waiting else "about"
    more = f"{least} {counted(answers, 'more answer')}"
    if spend:
        more += f" ({contest.spec.spend.about(spend)})"
    how = "run the same command again, or use the choice so far with the last line"
    return f"by the differences so far, {more} would decide it: {how}"


def not_trained(contest: Contest, answer: Answer) -> list[str]:
    """The methods of ``--method`` and ``full`` that were not in the race, with those that left it."""
    pairs = [(one.select, standing.raced) for one, standing in zip(contest.settings, answer.standings, strict=True)]
    known = dict.fromkeys([*type(contest.spec).declared()["method"].field.default, *contest.spec.methods, "full"])
    return [f"{name} (left out)" if (name, False) in pairs else name for name in known if (name, True) not in pairs]


def _raced(answer: Answer) -> list[Standing]:
    """The standings of settings that were not withdrawn."""
    return [one for one in answer.standings if one.raced]


def _rank(standing: Standing) -> tuple[bool, float]:
    """Sort key: settings that are not dropped first, the best first."""
    return standing.out, -standing.score if standing.predictions else 0.0


def cost(contest: Contest, place: int) -> str:
    """The cost of a query, and of all queries."""
    queries, setting = contest.spec.queries, contest.settings[place]
    entrant, said = contest.entrants[setting.entrant], []
    each = {name: float(value) for name, value in zip(MEASURES, contest.costs.of(queries)[place], strict=True)}
    if math.isfinite(each["money"]):
        paid = [three_digits(amount) for amount in (each["money"], each["money"] * queries)]
        said.append(f"{paid[0]} a query; {counted_queries(queries)} in all: {paid[1]} (in the currency of --price)")
    if math.isfinite(each["operations"]):
        flops = f"{three_digits(each['operations'] / 1e9)} billion operations"
        if entrant.rate is None:
            said.append(f"{flops} a query")
        else:
            seconds = each["operations"] / entrant.rate
            total = f"{counted_queries(queries)} in all: {duration(seconds * queries)}"
            training = ", including its share of the training," if setting.learner is not None else ""
            said.append(f"about {three_digits(seconds)} s a query{training} on this machine ({flops}); {total}")
    elif math.isfinite(each["tokens"]):
        said.append(f"{three_digits(each['tokens'])} tokens a query that are not cached")
    return "; ".join(said) or "unknown for this model"


def compared(contest: Contest, choice: int, second: int, standing: Standing) -> str:
    """The runner-up's cost in comparison, and what would make it cheaper."""
    queries, measure = contest.spec.queries, contest.measure
    if measure is None:
        return ""
    costs = contest.costs.of(queries)[:, MEASURES.index(measure)]
    one, other = float(costs[choice]), float(costs[second])
    if not (math.isfinite(one) and math.isfinite(other) and one > 0):
        return ""
    times = three_digits(other / one)
    said = [f"a query costs {'' if times == '1' else f'{times} times '}as much by {measure}{_seconds(contest, second)}"]
    if standing.cheaper:
        said.append("it is within the margin (error 5%)")
    number = contest.crossing(choice, second)
    if number is not None and number * FEWEST_QUERIES >= queries:
        each = contest.costs.each[:, MEASURES.index(measure)]
        more = "above" if each[second] < each[choice] else "below"
        said.append(f"it is the cheaper one {more} {counted_queries(math.ceil(number))} in all")
    if measure == "money" and other > one and contest.settings[choice].entrant != contest.settings[second].entrant:
        said.append(f"the costs are equal at {percent(one / other)}% of its price")
    return "; " + ", ".join(said)


def _seconds(contest: Contest, place: int) -> str:
    """The seconds of a query on this machine, if known."""
    seconds = _time(contest, place)
    return "" if seconds is None else f" (about {three_digits(seconds)} s)"


def _in_all(contest: Contest, place: int) -> str:
    """The time of all queries on this machine, if known."""
    seconds = _time(contest, place)
    return "" if seconds is None else f"; all queries {duration(seconds * contest.spec.queries)}"


def _time(contest: Contest, place: int) -> float | None:
    """The seconds of a query on this machine; None if unknown."""
    setting = contest.settings[place]
    entrant, flops = contest.entrants[setting.entrant], setting.flops(contest.spec.queries)
    return None if flops is None or entrant.rate is None else flops / entrant.rate


def cheaper(contest: Contest, answer: Answer, second: int) -> str:
    """Cheaper settings that are not ruled out: the cheapest that may be as good as the choice, unless the runner-up
    costs no more than it; and if neither costs at most ``FAR_CHEAPER`` of the choice, the best that does.

    A setting may be as good if its score is within the margin of the choice's on the rows and draws that both answered.
    """
    if contest.measure is None:
        return ""
    choice, margin = answer.choice, contest.race.rules.margin
    costs = contest.costs.of(contest.spec.queries)[:, MEASURES.index(contest.measure)]
    ratios = {
        place: float(costs[place] / costs[choice])
        for place, one in enumerate(answer.standings)
        if not one.out and one.predictions and costs[place] <= CHEAPER * costs[choice] and costs[place] < costs[choice]
    }
    named = {}
    near = [place for place in ratios if _lag(contest, choice, place) <= margin]
    if near and not costs[second] <= costs[best := min(near, key=lambda place: ratios[place])]:
        named[best] = "cheaper and perhaps as good"
    far = [place for place, ratio in ratios.items() if ratio <= FAR_CHEAPER]
    if far and not named.keys() & far and second not in far:
        named[contest.race.best(np.array(far))] = "far cheaper and not ruled out"
    text = ""
    for place, what in named.items():
        standing = answer.standings[place]
        said = f"{_named(contest, answer, place)}, {score_of(standing)}{on_common(contest, answer, place)}"
        text += f"; {what}: {said}, at {_part(ratios[place])} the cost ({contest.measure}{_in_all(contest, place)})"
    return text


def _part(ratio: float) -> str:
    """A share of a cost in words: ``0.5 times``, ``1/850 of``."""
    return f"{three_digits(ratio)} times" if ratio >= FAR_CHEAPER or not ratio else f"1/{1 / ratio:,.0f} of"


def _lag(contest: Contest, choice: int, other: int) -> float:
    """How far a setting's score is below the choice's where both answered."""
    _, chosen, score = contest.race.on_common(choice, other)
    return chosen - score


def on_common(contest: Contest, answer: Answer, place: int) -> str:
    """The scores of a setting and of the choice on the rows and draws that both answered, if one answered more."""
    choice = answer.choice
    if contest.race.asked[choice] == contest.race.asked[place]:
        return ""
    common, chosen, score = contest.race.on_common(choice, place)
    if not common:
        return ""
    return f" (on the same test rows and draws {percent(score)}%, the choice {percent(chosen)}%)"


def without_near_duplicates(contest: Contest, place: int) -> str:
    """The score without the test rows that have a near duplicate among the examples, if any of these is asked."""
    score, near = float(contest.scores_without_near_duplicates()[place]), int(contest.near_duplicates.sum())
    asked = min(contest.race.asked[place], len(contest.rows))
    if not contest.near_duplicates[:asked].any() or math.isnan(score):
        return ""
    rows = f"{near:,} of {counted(len(contest.rows), 'test row')} with a near duplicate among the examples"
    return f" (expect {percent(score)}% on new texts: this is without the {rows})"


def run_words(contest: Contest, setting: Setting, results: Place) -> list[str]:
    """The run that computes the choice's cells completely."""
    return _run_words(contest, [setting], results)


def whole_command(contest: Contest, results: Place) -> str:
    """The runs that compute the cells of all settings completely, one per model, in the form that is stored."""
    commands = []
    for place in range(len(contest.entrants)):
        mine = [one for one in contest.settings if one.entrant == place]
        if prompts := [one for one in mine if one.learner is None]:
            commands.append(cleaned(_run_words(contest, prompts, results)))
        if learning := [one for one in mine if one.learner is not None]:
            commands.append(cleaned(_finetune_words(contest, learning, results)))
    return " && ".join(commands)


def _finetune_words(
    contest: Contest, settings: Sequence[Setting], results: Place, draws: int | None = None
) -> list[str]:
    """The trainings of some settings of one model, all draws by default."""
    learners = [one.learner for one in settings if one.learner is not None]
    spec, model = learners[0].finetuning.spec, contest.entrants[settings[0].entrant].asked_for
    words = ["icl-bench", "finetune", "--task", str(contest.spec.task), "--model", model]
    words += ["--method", ",".join(dict.fromkeys(one.method for one in learners))]
    words += ["--k", ",".join(map(str, sorted({one.k for one in learners})))]
    words += ["--draws", str(draws or learners[0].draws)]
    words += _option_words(spec, {}, {"task", "model", "method", "k", "draws"})
    return [*words, *place_words(results)]


def _run_words(contest: Contest, settings: Sequence[Setting], results: Place) -> list[str]:
    """The run of some settings of one model."""
    spec, entrant = contest.spec, contest.entrants[settings[0].entrant]
    shots = ",".join(map(str, sorted({one.k for one in settings})))
    words = ["icl-bench", "run", "--task", str(spec.task), "--model", entrant.asked_for, "--k", shots]
    if selectors := ",".join(dict.fromkeys(one.select for one in settings if one.k)):
        words += ["--select", selectors]
    words += _option_words(spec, spec.of_model(entrant.asked_for), {*OF_THE_RACE, "task", "k", "select"})
    return [*words, *place_words(results)]


def _option_words(spec: Options, own: Mapping[str, Any], without: Collection[str]) -> list[str]:
    """The options that differ from their defaults, ``without`` some; ``own`` are values in place of the
    specification's.
    """
    words: list[str] = []
    for name, option in spec.declared().items():
        value = own.get(name, getattr(spec, name))
        if name in without or value in (None, option.field.default):
            continue
        if option.option.repeated:
            words += [word for one in value for word in (option.flag, str(one))]
        elif isinstance(value, tuple):
            words += [option.flag, ",".join(map(str, value))]
        else:
            words += [option.flag, str(value)]
    return words


def prompt_words(contest: Contest, setting: Setting, results: Place) -> list[str]:
    """The command that writes the prompt of the first draw to a file, once its cell is complete."""
    spec, (_, cell) = contest.spec, setting.cell(0)
    words = ["icl-bench", "show", "--task", str(spec.task), "--model", cell.spec.model, "--k", str(setting.k)]
    if setting.k:
        words += ["--select", setting.select]
    words += [] if spec.data_dir is None else ["--data-dir", str(spec.data_dir)]
    return [*words, "--cell", contest.cell_of(setting), *place_words(results), "--prompt", "prompt.txt"]
