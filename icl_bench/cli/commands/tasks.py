"""``icl-bench tasks``: lists tasks, checks one's data, makes or imports one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icl_bench.cli import options as o
from icl_bench.errors import UserError

TestSize = Annotated[
    int | None, typer.Option("--test-size", metavar="N", min=1, help="With --check: use only the first N test rows.")
]

TaskToCheck = Annotated[
    str | None,
    typer.Option(
        "--check", metavar="NAME", help="Check the data of one task or file of rows: counts, labels, duplicates, leaks."
    ),
]


WithModel = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="With --check: token lengths for this model.")
]


FromLmEval = Annotated[
    Path | None,
    typer.Option("--from-lm-eval", metavar="FILE", help="Convert a task file of lm-evaluation-harness and print it."),
]


FromCsv = Annotated[
    Path | None,
    typer.Option(
        "--from-csv",
        metavar="FILE",
        help="Create a task from a file of rows (.csv, .tsv, .xlsx, .json, .jsonl, .parquet) and write its task file.",
    ),
]


Text = Annotated[
    str | None,
    typer.Option("--text", metavar="COLUMN", help="With a file of rows: the column of texts (default: a guess)."),
]


Label = Annotated[
    str | None,
    typer.Option("--label", metavar="COLUMN", help="With a file of rows: the column of labels (default: a guess)."),
]


Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="With --from-lm-eval or --from-csv: write the task to this new file (--from-csv: FILE's name with .yaml).",
    ),
]


def tasks(
    check: TaskToCheck = None,
    model: WithModel = None,
    from_lm_eval: FromLmEval = None,
    from_csv: FromCsv = None,
    text: Text = None,
    label: Label = None,
    out: Out = None,
    data_dir: o.DataDir = None,
    test_size: TestSize = None,
    json: o.Json = False,
) -> None:
    """List the tasks, check a task's data, or create a task.

    --from-csv creates a task from one file of rows, --from-lm-eval converts a task of lm-evaluation-harness.
    """
    from icl_bench.cli.output.lists import print_report, print_tasks
    from icl_bench.cli.output.tables import print_json, print_records
    from icl_bench.tasks.catalogue import task_records

    instead = {"--check": check, "--from-csv": from_csv, "--from-lm-eval": from_lm_eval}
    if len(given := [name for name, value in instead.items() if value is not None]) > 1:
        raise UserError(f"{given[0]} and {given[1]} exclude each other; run them one after the other")
    for name, value in {"--model": model, "--test-size": test_size}.items():
        if value is not None and check is None:
            raise UserError(f"{name}: goes with --check")
    if json and from_lm_eval is not None:
        raise UserError("--json: a converted task is YAML; leave it out with --from-lm-eval")
    if out is not None and from_lm_eval is None and from_csv is None:
        raise UserError("--out: needs --from-csv or --from-lm-eval")
    for name, column in {"--text": text, "--label": label}.items():
        if column is not None and from_csv is None and check is None:
            raise UserError(f"{name}: needs --check or --from-csv with a file of rows, like tickets.csv")
    if from_csv is not None:
        from icl_bench.cli.output.lists import draft_record, print_draft
        from icl_bench.tasks.task_files import written_from_table

        draft, written = written_from_table(from_csv, out, text, label)
        print_records(draft_record(draft, written), print_draft, json=json)
        return
    if from_lm_eval is not None:
        from icl_bench.tasks.task_files import written_from_lm_eval

        converted = written_from_lm_eval(from_lm_eval, out)
        print(converted, end="") if out is None else print(f"Written: {out}")
        return
    if check is not None:
        from icl_bench.cli.output.progress import Display
        from icl_bench.sweep.task_check import check_task
        from icl_bench.tasks.task_files import tasks_of

        columns = {"text": text, "label": label}
        display, names = Display(quiet=json), tasks_of(check)
        reports, left = [], []
        for name in names:
            try:
                with display.preparing() as say:
                    say(f"reading {name}")
                    reports.append(check_task(name, model=model, data_dir=data_dir, test_size=test_size, **columns))
            except UserError as error:
                if len(names) == 1:
                    raise
                left.append(f"{name}: {error}")
                display.problem(left[-1])
            else:
                if not json:
                    print_records(reports[-1], print_report, json=False)
        if json:
            print_json(reports[0] if len(names) == 1 else reports)
        if left:
            raise UserError(f"{len(left)} of {len(names)} tasks of {check} cannot be read, see above")
        return
    print_records(task_records(data_dir), print_tasks, json=json)
