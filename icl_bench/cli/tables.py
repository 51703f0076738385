"""Tables and JSON as commands print them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from icl_bench.analysis.curves import SETTING
from icl_bench.patterns import FULL
from icl_bench.plan import CellSpec
from icl_bench.selection.choice import cautions

if TYPE_CHECKING:
    from rich.console import Console

    from icl_bench.analysis.summary import Summary
    from icl_bench.plan import CellPlan
    from icl_bench.sweep import Sweep
    from icl_bench.trace import Shown
    from icl_bench.work import Work


DASH = "\N{EN DASH}"
TAUGHT = ["task", "model", "teaching"]
"""What tells tables of changed demonstrations apart."""


def print_json(value: object) -> None:
    """Print indented JSON on standard output."""
    print(json.dumps(value, indent=1, ensure_ascii=False, default=str))


def share(value: Any, sign: str = "") -> str:
    """A share of 1 as a percentage with one decimal; with ``sign`` "+" a difference of shares."""
    return DASH if value is None or math.isnan(value) else f"{100 * value + 0.0:{sign}.1f}"


def empty_table(title: str | None = None) -> Table:
    """An empty table, narrow enough for a terminal of 80 columns."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def print_lines(console: Console, *texts: str) -> None:
    """Plain lines below a table, broken at words and indented."""
    for text in texts:
        console.print(Padding(Text(text), (0, 0, 0, 2)))


def print_summary(summary: Summary, console: Console, order: bool = True) -> None:
    """One table per task and model, in percent, with what is to be said of its curves below.

    That is where they saturate and, with ``order``, how much the demonstrations' order matters.
    Cells that failed come last.
    """
    sensitivity = summary.order_sensitivity if order else summary.order_sensitivity.iloc[:0]
    shots = summary.curves.groupby(SETTING, observed=True)["k"].nunique().rename("shots")
    saturation = summary.saturation.merge(shots.reset_index(), on=SETTING)
    saturation = saturation[saturation["shots"] > 1]  # a single k says nothing of it
    for (task, model), group in summary.curves.groupby(["task", "model"], observed=True):
        named, settings = _numbered(group, summary.settings)
        console.print(_curve_table(f"{task} · {model}", group, settings))
        print_lines(
            console,
            *named,
            *(_left_out(row, settings) for row in group.itertuples() if row.left_out),
            *(_saturation(row, settings) for row in _here(saturation, task, model)),
            *(_sensitivity(row, settings) for row in _here(sensitivity, task, model)),
            *cautions(group["select"]),
        )
    for (task, model, teaching), group in summary.taught.groupby(TAUGHT, observed=True):
        named, settings = _numbered(group, summary.settings)
        title = f"{task} · {model}, demonstrations {teaching}"
        console.print(_curve_table(title, group, settings))
        print_lines(console, *named, *cautions(group["select"]))
    if summary.failed:
        console.print(f"{counted(len(summary.failed), 'cell')} failed:", highlight=False)
        print_lines(console, *(f"{CellSpec(**f['spec'])}: {f['reason']}" for f in summary.failed))


def _numbered(group: Any, settings: Mapping[str, str]) -> tuple[list[str], dict[str, int]]:
    """Lines that name the settings of a table, and the number of each, where there are several."""
    texts = {v: settings.get(v, "") for v in group["variant"].unique()}
    named = list(dict.fromkeys(text for text in texts.values() if text))
    if len(set(texts.values())) == 1:
        return named, {}
    # variants that differ only in what one of them has no use for are one setting
    numbers = {v: named.index(text) + 1 for v, text in texts.items() if text}
    return [f"setting {number}: {text}" for number, text in enumerate(named, 1)], numbers


def setting_numbers(summary: Summary) -> dict[str, int]:
    """Variant -> its number in the printed curves, where a task and model have several."""
    numbers: dict[str, int] = {}
    for table, by in ((summary.taught, TAUGHT), (summary.curves, TAUGHT[:2])):
        for _, group in table.groupby(by, observed=True):
            numbers |= _numbered(group, summary.settings)[1]
    return numbers


def counted(count: int, what: str) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _here(frame: Any, task: Any, model: Any) -> Iterator[Any]:
    rows: Iterator[Any] = frame[(frame["task"] == task) & (frame["model"] == model)].itertuples()
    return rows


def _setting(variant: str, settings: Mapping[str, int]) -> str:
    return f", setting {settings[variant]}" if variant in settings else ""


def _way(row: Any) -> str:
    """How demonstrations were chosen, ordered and, where it is not in full, read."""
    read = "" if row.attention == str(FULL) else f", {row.attention}"
    return f"{row.select}, {row.order}{read}"


def _left_out(row: Any, settings: Mapping[str, int]) -> str:
    name = f"{_way(row)}{_setting(row.variant, settings)}, k={row.k}"
    return f"{name}: {counted(row.left_out, 'prediction')} left out: not in all draws"


def _saturation(row: Any, settings: Mapping[str, int]) -> str:
    name = f"{_way(row)}{_setting(row.variant, settings)}"
    if row.within_window:
        return f"{name}: saturated at k={row.k} (95% of the best, which is at k={row.best_k})"
    return f"{name}: not saturated within the tested k (the last is {row.max_k})"


def _sensitivity(row: Any, settings: Mapping[str, int]) -> str:
    read = "" if row.attention == str(FULL) else f", {row.attention}"
    name = f"{row.select}{read}{_setting(row.variant, settings)}, k={row.k}"
    return (
        f"{name}: {row.changed:.1%} ({row.ci_low:.1%} to {row.ci_high:.1%}) of the predictions "
        "change with the demonstrations' order"
    )


def _curve_table(title: str, group: Any, settings: Mapping[str, int]) -> Table:
    free_text = group["accuracy"].isna().all()
    table = empty_table(title)
    ways = ["select", "order"]
    if set(group["attention"]) != {str(FULL)}:
        ways.append("attention")
    for name in ways:
        table.add_column(name, overflow="fold")
    for name in ("k", "draws", "test\nrows"):
        table.add_column(name, justify="right")
    scores = (
        {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL", "BERT\nScore": "bertscore"}
        if free_text
        else {"accuracy\n%": "accuracy", "macro\nF1 %": "macro_f1", "invalid\n%": "invalid"}
    )
    metric = group["metric"].iloc[0]  # the interval is its own
    first, *others = sorted(scores, key=lambda title: scores[title] != metric)
    table.add_column(first, justify="right")
    table.add_column("95%\ninterval", justify="right", no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    if settings:
        table.add_column("setting", justify="right")
    for row in group.to_dict("records"):
        cells = [
            *(str(row[name]) for name in (*ways, "k", "draws", "test_rows")),
            share(row[scores[first]]), f"{share(row['ci_low'])} {DASH} {share(row['ci_high'])}",
            *(share(row[scores[name]]) for name in others),
        ]  # fmt: skip
        if settings:
            cells.append(str(settings.get(row["variant"], "")))
        table.add_row(*map(escape, cells))
    return table


def plan_records(
    sweep: Sweep, seconds: Sequence[float | None], works: Sequence[Work | None]
) -> list[dict[str, Any]]:
    """The plan's cells as plain records."""
    return [
        {
            **cell.spec.model_dump(),
            "fits": cell.problem is None,
            "problem": cell.problem,
            "prefix_tokens": cell.prefix_tokens,
            "longest_query_tokens": max(0, cell.longest_prompt - cell.prefix_tokens),
            "longest_prompt_tokens": cell.longest_prompt,
            "answer_tokens": cell.answer_tokens,
            "needed_tokens": cell.needed_tokens,
            "context_tokens": cell.context_tokens,
            "prompt_tokens": cell.prompt_tokens,
            "shared_tokens": cell.shared_tokens,
            "new_tokens": cell.new_tokens,
            "flops": work and work.prefix_flops + cell.queries * work.query_flops,
            "prefix_flops": work and work.prefix_flops,
            "cache_bytes": work and work.cache_bytes,
            "seconds": None if estimate is None else round(estimate, 1),
        }
        for cell, estimate, work in zip(sweep.plan.cells, seconds, works, strict=True)
    ]


def print_plan(
    sweep: Sweep,
    seconds: Sequence[float | None],
    works: Sequence[Work | None],
    console: Console,
) -> None:
    """The plan as tables, one row a cell, one table per selector, order and attention."""
    from icl_bench.cli.progress import asked, notes

    data, model = sweep.experiment.data, sweep.model
    console.print(f"{data.spec.name} · {model.name}, tokens", style="bold", highlight=False)
    rows = list(zip(sweep.plan.cells, seconds, works, strict=True))
    for curve in dict.fromkeys(map(_curve, sweep.plan.cells)):
        console.print(_plan_table(curve, [row for row in rows if _curve(row[0]) == curve]))
    total = sum(estimate or 0.0 for estimate in seconds)
    about = f", about {_duration(total)} on this machine" if None not in seconds else ""
    print_lines(
        console,
        *(f"note: {text}" for text in notes(sweep)),
        *(f"skipped: {problem}" for problem in sweep.plan.problems),
        f"{counted(sum(cell.problem is None for cell, *_ in rows), 'cell')}, "
        f"{asked(sweep)}{about}; {model.name} reads "
        f"{model.context_tokens:,} tokens; data: {data.origin}",
        *["TFLOP: a cell by itself, by formula; cache: keys and values kept of its longest prompt"]
        * any(works),
    )


def _curve(cell: CellPlan) -> tuple[str, str, str]:
    return cell.spec.select, cell.spec.order, cell.spec.attention


def _plan_table(
    curve: tuple[str, str, str], rows: Sequence[tuple[CellPlan, float | None, Work | None]]
) -> Table:
    """The cells of one selector, order and attention."""
    table = empty_table(", ".join(curve))
    for name in ("draw", "k", "prefix", "longest\nquery", "needs", "fits", "shared", "to\ncompute",
                 "TFLOP", "cache", "time"):  # fmt: skip
        table.add_column(name, justify="right")
    for cell, estimate, work in rows:
        spec, fits = cell.spec, cell.problem is None
        lengths = (cell.prefix_tokens, cell.longest_prompt - cell.prefix_tokens, cell.needed_tokens)
        tokens = (cell.shared_tokens, cell.new_tokens)
        known = cell.longest_prompt > 0
        table.add_row(
            str(spec.draw),
            f"{spec.k:,}",
            *(f"{n:,}" if known else "" for n in lengths),
            "yes" if fits else "no",
            *(f"{n:,}" if fits else "" for n in tokens),
            f"{(work.prefix_flops + cell.queries * work.query_flops) / 1e12:,.1f}" if work else "",
            _bytes(work.cache_bytes) if work else "",
            _duration(estimate) if fits and estimate is not None else "",
        )
    return table


def _bytes(count: float) -> str:
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_perplexity(frame: Any, console: Console) -> None:
    """Perplexity of each range of lengths, one table a model and dtype."""
    for (model, dtype), group in frame.groupby(["model", "dtype"]):
        table = empty_table(f"{model} · {dtype}, perplexity of the tokens up to each length")
        table.add_column("attention")
        for name in ("tokens", "perplexity", "95%\ninterval", "over full", "95%\ninterval ",
                     "p\n(Holm)", "TFLOP", "cache"):  # fmt: skip
            table.add_column(name, justify="right")
        for row in group.to_dict("records"):
            other = row["attention"] != str(FULL)
            table.add_row(
                escape(row["attention"]),
                f"{row['after']:,} {DASH} {row['length']:,}",
                f"{row['perplexity']:.2f}",
                _limits(row["ci_low"], row["ci_high"], 2),
                f"{row['ratio']:.3f}" if other else "",
                _limits(row["ratio_low"], row["ratio_high"], 3) if other else "",
                "" if math.isnan(row["p_holm"]) else f"{row['p_holm']:.3f}",
                f"{row['prefill_flops'] / 1e12:.1f}",
                _bytes(row["cache_bytes"]),
            )
        console.print(table)
        count = group["windows"].max()
        print_lines(console, f"{counted(count, 'window')} a length; intervals are over windows")


def _limits(low: float, high: float, digits: int) -> str:
    if math.isnan(low):
        return DASH
    return f"{low:.{digits}f} {DASH} {high:.{digits}f}"


def print_models(records: list[dict[str, Any]], console: Console) -> None:
    """Models with what they read and need."""
    table = empty_table()
    table.add_column("model", no_wrap=True)
    table.add_column("reads\ntokens", justify="right")
    for name in ("here", "what it is"):
        table.add_column(name)
    for record in records:
        reads = f"{record['context_tokens']:,}"
        table.add_row(escape(record["name"]), reads, *_here_or_needed(record, record["needs"]))
    console.print(table)
    print_lines(console, "What is on the hub is downloaded when it is first used.")


def _here_or_needed(record: dict[str, Any], needs: str) -> tuple[str, str]:
    """Whether something is on this machine; what it is, and what it needs where it is not."""
    here = record["installed"]
    return "yes" if here else "no", escape(record["description"] + ("" if here else f"\n{needs}"))


def print_shown(shown: Shown, console: Console) -> None:
    """One prediction, its prompt first."""
    row = shown.row
    print(shown.prompt)
    console.rule()
    verdict = {True: "right", False: "wrong", None: "free text"}[row["correct"]]
    facts = {
        "answer": row["prediction"],
        "gold": f"{row['gold']} ({verdict})",
        "cell": f"{row['task']} {row['model']} {row['select']} {row['order']} k={row['k']} "
        f"draw={row['draw']}",
        "attention": row["attention"],
        "test id": row["test_id"],
        "tokens": f"{row['prompt_tokens']:,} in the prompt, {row['cached_tokens']:,} cached",
        "prompt": shown.checked,
        "file": str(shown.file),
    }
    if row.get("teaching"):
        facts["shown"] = row["teaching"]
    if row.get("probability") is not None:
        facts["probability"] = f"{row['probability']:.4f}, margin {row['margin']:.4f}"
    for name, value in facts.items():
        console.print(f"{name:>12}  {value}", markup=False, highlight=False, soft_wrap=True)


def print_tasks(records: list[dict[str, Any]], console: Console) -> None:
    """Tasks with where their data is."""
    table = empty_table()
    for name in ("task", "metrics", "here", "what it is"):
        table.add_column(name, no_wrap=name == "task")
    for record in records:
        metrics = ", ".join(record["metrics"])
        table.add_row(escape(record["name"]), metrics, *_here_or_needed(record, record["data"]))
    console.print(table)
    print_lines(console, "Licenses and sources: --json. A task's counts and leaks: --check NAME.")


def print_report(report: dict[str, Any], console: Console) -> None:
    """A task's data in numbers."""

    def line(name: str, value: str) -> None:
        console.print(f"{name:>22}  {value}", markup=False, highlight=False, soft_wrap=True)

    line("task", report["task"])
    line("data", report["origin"])
    line("train rows", f"{report['train_rows']:,}")
    line("test rows", f"{report['test_rows']:,}, of which {report['chosen_rows']:,} are asked")
    if report["labels"]:
        trained = sum(label["train"] > 0 for label in report["labels"])
        spread = f"{report['fewest']:,} to {report['most']:,} train rows each"
        line("labels", f"{trained} ({spread}, median {report['median']:,.0f})")
    for label, count in report["unseen_labels"].items():
        line("only in test", f"{label!r}: {count}")
    line("duplicates in train", f"{report['duplicates']:,}")
    leaks = f"{len(report['leaks']):,} test rows also stand in train"
    line("leaks", f"{leaks}, {len(report['chosen_leaks']):,} of those that are asked")
    for note in report["notes"]:
        line("note", note)
    if tokens := report.get("tokens"):
        for name in ("demonstration", "query"):
            t = tokens[name]
            line(
                f"tokens per {name}",
                f"mean {t['mean']:.1f}, median {t['median']:.0f}, "
                f"{t['shortest']:,} to {t['longest']:,} ({tokens['model']})",
            )
        line("longest answer", f"{tokens['answer_longest']} tokens")
        line("too long for the pool", f"{tokens['dropped_from_pool']:,} train rows")
