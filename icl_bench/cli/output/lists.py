"""Lists of tasks and models, a task's data, one prediction, perplexities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.cli.output.fitting import ColumnHead, print_table
from icl_bench.cli.output.plan import in_bytes
from icl_bench.cli.output.tables import print_lines
from icl_bench.errors import UserError
from icl_bench.wording import DASH, counted, few, listed, percent, plain, rounded

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from icl_bench.report.prompt_trace import Shown
    from icl_bench.tasks.drafts import Draft


def print_perplexity(frame: Any, console: Console) -> None:
    """Print perplexity by range of lengths, a table for each model, dtype, window length and positions."""
    from icl_bench.analysis.findings.perplexity import positions_names

    by = ["model", "dtype", "window_tokens", "rope_scale", "rope_theta"]
    for (model, dtype, tokens, *_), group in frame.groupby(by, dropna=False):
        rows = [_perplexity(row) for row in group.to_dict("records")]
        of = " · ".join(filter(None, [model, dtype, positions_names(group)[0], f"windows of {tokens:,} tokens"]))
        title = f"{of}, perplexity of the tokens up to each length"
        print_table(console, PERPLEXITY_HEADS, rows, heading=title)
        count = group["windows"].max()
        over = " or ".join(dict.fromkeys(group["interval_over"]))
        print_lines(console, f"{counted(count, 'window')} a length; intervals are over {over}")


PERPLEXITY_HEADS = (
    ColumnHead("attention", "name"),
    ColumnHead("tokens", "key"),
    *map(
        ColumnHead, ("perplexity", "95% interval", "over full", "over full 95% interval", "p (Holm)", "TFLOP", "cache")
    ),
)


def _perplexity(row: Mapping[Any, Any]) -> list[str]:
    """The cells of a length, for the columns of ``PERPLEXITY_HEADS``."""
    from icl_bench.models.attention_patterns import FULL

    other = row["attention"] != str(FULL)
    return [
        row["attention"],
        f"{row['after']:,} to {row['length']:,}",
        rounded(row["perplexity"], 2),
        _limits(row["ci_low"], row["ci_high"], 2),
        rounded(row["ratio"], 3) if other else "",
        _limits(row["ratio_low"], row["ratio_high"], 3) if other else "",
        "" if math.isnan(row["p_holm"]) else rounded(row["p_holm"], 3),
        rounded(row["prefill_flops"] / 1e12, 1),
        in_bytes(row["cache_bytes"]),
    ]


def print_leaderboard(table: pd.DataFrame, console: Console) -> None:
    """Print the leaderboard with the columns of its Markdown, at least one table for each task."""
    from icl_bench.cli.output.findings import BARE, USUAL
    from icl_bench.report.leaderboard import columns, notes

    shown_columns = columns(table)
    counts = ("draws", "test rows", "version", "data", "variant")
    heads = [
        ColumnHead(name, "key" if name == "k" else "count" if name in counts else "value")
        if numbers or name in counts
        else ColumnHead(name, "name", bare=name in BARE, usual=USUAL.get(name, ()))
        for name, numbers, _ in shown_columns
    ]
    rows = list(zip(*(values for *_, values in shown_columns), strict=True))
    print_table(console, heads, rows, splits=1)  # split by task only, to keep the best first
    print_lines(console, *notes(table))


def _limits(low: float, high: float, digits: int) -> str:
    if math.isnan(low):
        return DASH
    return f"{rounded(low, digits)} to {rounded(high, digits)}"


def print_models(records: list[dict[str, Any]], console: Console) -> None:
    """Print models with their context windows and requirements."""
    heads = (
        ColumnHead("model", "name"),
        ColumnHead("reads tokens"),
        ColumnHead("here", "text"),
        ColumnHead("what it is", "text"),
    )
    rows = [
        [record["name"], f"{record['context_tokens']:,}", *_installed_or_needed(record, record["needs"])]
        for record in records
    ]
    print_table(console, heads, rows)
    print_lines(console, "Models on the hub are downloaded on first use.")


def _installed_or_needed(record: dict[str, Any], needs: str) -> tuple[str, str]:
    """Whether it is on this machine; its description, with its requirements if it is not."""
    installed = record["installed"]
    return "yes" if installed else "no", record["description"] + ("" if installed else f"\n{needs}")


def _tokens(row: Mapping[str, Any]) -> str:
    """The prompt's token counts; an import may lack them."""
    counts = {"in the prompt": row["prompt_tokens"], "cached": row["cached_tokens"]}
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count is not None) or "not known"


def write_prompt(shown: Shown, path: Path) -> str:
    """Write a prompt to a file in the form that is sent. Returns a description of the file. Raises ``UserError``."""
    from icl_bench.text_files import write_whole

    if shown.no_file:
        raise UserError(f"--prompt {plain(path)}: {shown.no_file}; leave --prompt out to see the prediction")
    text = shown.prompt if shown.template is None else shown.template
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise UserError(f"--prompt {plain(path)}: cannot be written ({error.strerror or error})") from None
    count = counted(len(shown.demonstrations), "demonstration")
    of = f"{plain(path)}: the prompt of draw {shown.row['draw']} with {count}"
    if shown.template is None:
        return f"{of} for test row {shown.row['test_id']}; other queries have demonstrations of their own"
    return f"{of}; put {shown.slots} after the last demonstration"


def print_shown(shown: Shown, console: Console) -> None:
    """Print one prediction, its prompt first."""
    from icl_bench.metrics.scores import score_columns, title
    from icl_bench.tasks.calibration_inputs import CONTEXTUAL, DOMAIN

    row = shown.row
    print(shown.prompt)
    if row.get("thought") is not None:
        second = shown.answer_prompt
        console.rule("thought" if second is None else "thought and end mark: the answer's prompt continues with")
        print(row["thought"] if second is None else second.removeprefix(shown.prompt))
    console.rule()
    for number, text in enumerate(shown.vectors, 1):
        print(f"as vector {number}: {text}")
    if shown.vectors:
        console.rule()
    asked = row.get("queries") in (CONTEXTUAL, DOMAIN)
    verdict = {True: "right", False: "wrong", None: "free text"}[row["correct"]]
    facts = {
        "answer": row["prediction"],
        "gold": f"none ({row['queries']}: asked for a calibration)" if asked else f"{listed_golds(row)} ({verdict})",
        "cell": f"{row['task']} {row['model']} {row['select']} {row['order']} k={row['k']} draw={row['draw']}",
        "attention": row["attention"],
        "test id": row["test_id"],
        "tokens": _tokens(row),
        "prompt": shown.checked,
        "file": shown.file,
    }
    if row.get("read_blocks") is not None:
        facts["attention"] += f"; blocks read, from 0: {', '.join(map(str, row['read_blocks']))}"
    if row.get("local_prompt_tokens") is not None:
        facts["tokens"] += f" (as the server counts; {row['local_prompt_tokens']:,} by the local tokenizer)"
    if row.get("thought_tokens") is not None:
        cut = ", cut at its limit" if row["thought_truncated"] else ""
        facts["tokens"] += f"; {row['thought_tokens']:,} of the thought{cut}, {row['answer_tokens']:,} of the answer"
    if row.get("samples") is not None:
        facts["samples"] = " | ".join(DASH if one is None else one for one in row["samples"])
        facts["tokens"] += f" (of all {len(row['samples'])} samples)"
    if row.get("reason") is not None:
        facts["no answer"] = row["reason"]
    if row.get("text") is not None:
        read = "nothing can be extracted (invalid)" if not row["valid"] else "no answer"
        facts["answer"] = row["prediction"] or read
        facts = {"text": repr(row["text"]), **facts}
    if scored := [f"{title(s)} {percent(row[s])}%" for s in score_columns() if row.get(s) is not None]:
        facts["scores"] = ", ".join(scored)
    if shown.choices:
        facts["choices"] = " | ".join(shown.choices)
    if row.get("perturbation"):
        facts["perturbation"] = row["perturbation"]
    if row.get("probability") is not None:
        facts["probability"] = f"{row['probability']:.4f}, margin {row['margin']:.4f}"
    for name, value in facts.items():
        console.print(f"{name:>12}  {value}", soft_wrap=True)


def listed_golds(row: Mapping[str, Any]) -> str:
    """All correct answers of a prediction."""
    from icl_bench.metrics.scores import golds_of

    golds = golds_of(row.get("golds"), row["gold"])
    return " | ".join(gold or "no answer" for gold in golds)


def print_tasks(records: list[dict[str, Any]], console: Console) -> None:
    """Print tasks, and whether their data are on this machine."""
    texts = (ColumnHead(name, "text") for name in ("metrics", "here", "what it is"))
    heads = (ColumnHead("task", "name"), *texts)
    rows = [
        # the last column needs the space
        [record["name"], ",\n".join(record["metrics"]), *_installed_or_needed(record, record["data"])]
        for record in records
    ]
    print_table(console, heads, rows)
    print_lines(console, "Licenses and sources: --json. A task's counts and leaks: --check NAME.")


def draft_record(draft: Draft, written: Path) -> dict[str, Any]:
    """A draft task from a file of rows: its columns, the guesses, and a prompt."""
    from icl_bench.prompts.rendering import prompt_text

    data = draft.data
    return {
        "task": data.spec.name,
        "file": str(written),
        **data.spec.data.fields,
        "labels": list(data.labels),
        "train_rows": len(data.train),
        "test_rows": len(data.test),
        "notes": [*draft.said, *data.notes],
        "prompt": prompt_text(data.spec.template, data.train[:1], data.test[0]),
    }


def print_draft(record: dict[str, Any], console: Console) -> None:
    """Print the guesses about a file of rows, and a prompt."""
    console.print(f"Written: {record['file']}", soft_wrap=True, markup=False, highlight=False)
    for note in record["notes"]:
        console.print(f"  {note}", soft_wrap=True, markup=False, highlight=False)
    shown = listed([plain(label) for label in record["labels"][:10]])
    more = f" and {len(record['labels']) - 10} more" if len(record["labels"]) > 10 else ""
    console.print(f"  {len(record['labels'])} labels: {shown}{more}", soft_wrap=True, markup=False, highlight=False)
    print_lines(console, "A prompt with one demonstration:")
    console.rule()
    print(record["prompt"])
    console.rule()
    print_lines(console, f"Check it: icl-bench tasks --check {record['file']}")


def print_report(report: dict[str, Any], console: Console) -> None:
    """Print counts of a task's data."""

    def line(name: str, value: str) -> None:
        console.print(f"{name:>22}  {value}", soft_wrap=True)

    line("task", report["task"])
    line("data", report["origin"])
    line("train rows", f"{report['train_rows']:,}")
    line("test rows", f"{report['test_rows']:,}, of which {report['chosen_rows']:,} are used")
    if report["labels"]:
        trained = sum(label["train"] > 0 for label in report["labels"])
        spread = f"{report['fewest']:,} to {report['most']:,} train rows each"
        line("labels", f"{trained} ({spread}, median {report['median']:,.0f})")
    for label, count in report["unseen_labels"].items():
        line("only in test", f"{label!r}: {count}")
    line("duplicates in train", f"{report['duplicates']:,}")
    leaks = f"{len(report['leaks']):,} test rows also appear in train"
    line("leaks", f"{leaks}, {len(report['chosen_leaks']):,} of those that are used")
    near = f"{len(report['near_duplicates']):,} test rows are nearly a train row (the leaks included)"
    line("near duplicates", f"{near}, {len(report['chosen_near_duplicates']):,} of those that are used")
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
        pool = f"the pool's others have {tokens['pool_demonstration']['mean']:.1f} tokens on average"
        line("too long for the pool", f"{tokens['dropped_from_pool']:,} train rows; {pool}")
        fit = tokens["fitting"]
        where = f"{tokens['context_tokens']:,} tokens with every query, in each of {fit['draws']} draws"
        line("fit the context", f"{counted(fit['demonstrations'], 'random demonstration')} ({where})")
        if tokens["too_long"]:
            count = counted(len(tokens["too_long"]), "test row")
            line(
                "too long to ask", f"{count} ({few(tokens['too_long'])}); test.too_long: leave_out leaves such rows out"
            )
