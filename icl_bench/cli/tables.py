"""Tables and JSON as commands print them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from icl_bench.analysis.summary import Summary
    from icl_bench.sweep import Sweep
    from icl_bench.trace import Shown


def print_json(value: object) -> None:
    """Print indented JSON on standard output."""
    print(json.dumps(value, indent=1, ensure_ascii=False, default=str))


def _share(value: Any) -> str:
    """A share of 1 as a percentage with one decimal."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f}"


def print_summary(summary: Summary, console: Console) -> None:
    """One table per task and model, in percent, with each curve's saturation below."""
    for (task, model), group in summary.curves.groupby(["task", "model"], observed=True):
        console.print(_curve_table(f"{task} · {model}", group, summary))
        here = summary.saturation
        here = here[(here["task"] == task) & (here["model"] == model)]
        for row in here.itertuples():
            name = f"{row.select}, {row.order}{_setting(summary, row.variant)}"
            if row.within_window:
                said = f"saturated at k={row.k} (95% of the best, which is at k={row.best_k})"
            else:
                said = f"not saturated within the tested k (the last is {row.max_k})"
            console.print(f"  {name}: {said}", highlight=False, markup=False)


def _setting(summary: Summary, variant: str) -> str:
    return f", {summary.settings[variant]}" if variant in summary.settings else ""


def _curve_table(title: str, group: Any, summary: Summary) -> Table:
    free_text = group["accuracy"].isna().all()
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("select", "order"):
        table.add_column(name)
    for name in ("k", "draws", "test rows"):
        table.add_column(name, justify="right")
    scores = (
        {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL", "BERTScore": "bertscore"}
        if free_text
        else {"accuracy %": "accuracy", "macro-F1 %": "macro_f1", "invalid %": "invalid"}
    )
    first, *others = scores
    for name in (first, "95% interval", *others):
        table.add_column(name, justify="right")
    settings = any(v in summary.settings for v in group["variant"])
    if settings:
        table.add_column("setting")
    for row in group.to_dict("records"):
        interval = f"{_share(row['ci_low'])} – {_share(row['ci_high'])}"
        cells = [
            row["select"], row["order"], str(row["k"]), str(row["draws"]), str(row["test_rows"]),
            _share(row[scores[first]]), interval, *(_share(row[scores[name]]) for name in others),
        ]  # fmt: skip
        if settings:
            cells.append(summary.settings.get(row["variant"], ""))
        table.add_row(*map(escape, cells))
    return table


def plan_records(sweep: Sweep, seconds: list[float]) -> list[dict[str, Any]]:
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
            "seconds": round(estimate, 1),
        }
        for cell, estimate in zip(sweep.plan.cells, seconds, strict=True)
    ]


def print_plan(sweep: Sweep, seconds: list[float], console: Console) -> None:
    """The plan as a table, one row a cell."""
    from icl_bench.cli.progress import pool_notes

    data, model = sweep.experiment.data, sweep.model
    table = Table(
        title=f"{data.spec.name} · {model.name} (reads {model.context_tokens:,} tokens)",
        title_justify="left",
        title_style="bold",
    )
    for name in ("select", "order"):
        table.add_column(name)
    for name in ("draw", "k", "prefix tokens", "longest query", "needed", "shared", "to compute",
                 "time"):  # fmt: skip
        table.add_column(name, justify="right")
    table.add_column("fits")
    for cell, estimate in zip(sweep.plan.cells, seconds, strict=True):
        spec, fits = cell.spec, cell.problem is None
        counts = (cell.prefix_tokens, cell.longest_prompt - cell.prefix_tokens,
                  cell.needed_tokens, cell.shared_tokens, cell.new_tokens)  # fmt: skip
        numbers = [f"{n:,}" for n in counts] if cell.longest_prompt else [""] * len(counts)
        table.add_row(spec.select, spec.order, str(spec.draw), str(spec.k), *numbers,
                      _duration(estimate) if fits else "", "yes" if fits else "no")  # fmt: skip
    console.print(table)
    for text in (*data.notes, *pool_notes(sweep)):
        console.print(f"  note: {text}", markup=False, highlight=False)
    for problem in sweep.plan.problems:
        console.print(f"  skipped: {problem}", markup=False, highlight=False)
    console.print(
        f"  {sum(c.problem is None for c in sweep.plan.cells)} cells, "
        f"{len(data.test)} test examples, about {_duration(sum(seconds))} on this machine; "
        f"data: {data.origin}",
        markup=False,
        highlight=False,
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_models(records: list[dict[str, Any]], console: Console) -> None:
    """Models with what they read and need."""
    table = Table()
    for name in ("model", "reads", "here", "what it is", "needs"):
        table.add_column(name, justify="right" if name == "reads" else "left")
    for record in records:
        table.add_row(
            record["name"],
            f"{record['context_tokens']:,}",
            "yes" if record["installed"] else "no",
            record["description"],
            record["needs"],
        )
    console.print(table)


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
        "test id": row["test_id"],
        "tokens": f"{row['prompt_tokens']:,} in the prompt, {row['cached_tokens']:,} of them cached",
        "prompt": shown.checked,
        "file": str(shown.file),
    }
    if row.get("probability") is not None:
        facts["probability"] = f"{row['probability']:.4f}, margin {row['margin']:.4f}"
    for name, value in facts.items():
        console.print(f"{name:>12}  {value}", markup=False, highlight=False, soft_wrap=True)


def print_tasks(records: list[dict[str, Any]], console: Console) -> None:
    """Tasks with where their data is."""
    table = Table()
    for name in ("task", "what it is", "metrics", "data", "license"):
        table.add_column(name)
    for record in records:
        metrics = ", ".join(record["metrics"])
        cells = (record["name"], record["description"], metrics, record["data"], record["license"])
        table.add_row(*map(escape, cells))
    console.print(table)


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
