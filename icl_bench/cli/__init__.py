"""The command line: one small file per command, no logic.

Heavy libraries are imported by the commands that need them, so that ``--help`` is immediate.
"""

from __future__ import annotations

import sys
import warnings

import typer

from icl_bench.cli import export, models, plan, run, show, summary, tasks
from icl_bench.errors import UserError

app = typer.Typer(
    name="icl-bench",
    help="Measure what many demonstrations in a language model's prompt are worth.\n\n"
    "Start with: icl-bench run --task stdlib --model gemma3-270m --k 1,10,100 --draws 1",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("plan")(plan.plan)
app.command("summary")(summary.summary)
app.command("show")(show.show)
app.command("export")(export.export)
app.command("tasks")(tasks.tasks)
app.command("models")(models.models)


def main() -> None:
    """Run the command line; a user's mistake ends in one line and exit code 2."""
    warnings.showwarning = _one_line
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def _one_line(message: Warning | str, *_: object) -> None:
    print(f"warning: {message}", file=sys.stderr)
