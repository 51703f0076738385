"""The command line: one small file per command, no logic.

Heavy libraries are imported by the commands that need them, so that ``--help`` is immediate.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.resources import files
from textwrap import wrap
from typing import Annotated, Any

import typer

from icl_bench import __version__
from icl_bench.cli.output.terminal import drop_the_rest, prepare_output, refuse_unwritable
from icl_bench.errors import UserError
from icl_bench.escaping import visible
from icl_bench.wording import one_line, short

CRASHED = 70
"""Exit code of an internal error (``EX_SOFTWARE`` of sysexits.h), because 1 is a result, such as a loss
found by ``check``."""


INTERRUPTED, CLOSED = 130, 141
"""Exit codes after Ctrl-C and after the reader, like head, has closed the pipe, as in shells. 0 and 1
would be results of ``check``."""


ENDLESS = re.compile(r"\S{300,}")
"""A word that messages truncate, such as a file pasted into an option."""


COMMANDS = {
    "run": "run",
    "plan": "plan",
    "choose": "choose",
    "study": "study",
    "rationales": "rationales",
    "finetune": "finetune",
    "train-vectors": "train_vectors",
    "adapt": "adapt",
    "perplexity": "perplexity",
    "summary": "summary",
    "show": "show",
    "export": "export",
    "import": "import_",
    "leaderboard": "leaderboard",
    "check": "check",
    "report": "report",
    "view": "view",
    "tasks": "tasks",
    "models": "models",
}
"""Command, in the order of the help -> name of its module in :mod:`icl_bench.cli.commands` and of its function."""


START = (
    ("icl-bench choose --data tickets.csv --model gemma3-270m", "which prompt to use for your rows"),
    ("icl-bench run --task stdlib --model gemma3-270m --k 1,10,100", "accuracy by number of demonstrations"),
    ("icl-bench view", "charts and predictions in the browser"),
)
"""Commands for new users, and the purpose of each."""


EXAMPLES = {
    "run": "run --task trec --model gemma3-270m --k 1,10,100 --select random,bm25",
    "plan": "plan --task trec --model gemma3-270m --k auto --results results",
    "choose": "choose --data tickets.csv --text body --label queue --model gemma3-270m --queries 20000 --spend 30m",
    "study": "study headlines --plan",
    "rationales": "rationales --task gsm8k_thoughts --model smollm2-135m-instruct --rows 128 --out own.yaml",
    "finetune": "finetune --task trec --model gemma3-270m --k 100,400 --method lora,knn",
    "train-vectors": "train-vectors --task trec --model smollm2-135m-instruct --vectors 8 --out reader",
    "adapt": "adapt --model smollm2-135m-instruct --attention grouped:4,512 --texts books --out adapted",
    "perplexity": "perplexity --model smollm2-135m-instruct --texts books --lengths 512,2048 --attention grouped:4,512",
    "summary": "summary --task trec --frontier --queries 10000",
    "show": "show --task trec --select bm25 --k 10",
    "export": "export --out predictions.parquet",
    "import": "import samples_mine.jsonl --k 5",
    "leaderboard": "leaderboard --out leaderboard.csv",
    "check": "check --baseline baseline.parquet --tolerance 0.01",
    "report": "report --out report.html --figures figures",
    "view": "view --results results",
    "tasks": "tasks --check trec",
    "models": "models --prepare gemma3-270m",
}
"""An example command line for each command, shown at the end of its help."""


def _print_version(requested: bool) -> None:
    if requested:
        print(f"icl-bench {__version__}")
        raise typer.Exit


def program(command: str | None = None) -> typer.Typer:
    """The program with all of its commands, or with one command and the names of the others.

    A command's options come from specifications, which are slow to import, so only the requested command
    is imported. The list of commands shows the first lines of the others' docstrings.
    """
    app = typer.Typer(
        name="icl-bench",
        help="Measure few-shot and many-shot prompts: accuracy and cost by the number of demonstrations."
        + "\n\nStart with:\n\n"
        + "\n\n".join(f"\b\n{line}\n    {shows}" for line, shows in START),
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_program)
    for name, module in COMMANDS.items():
        if command in (None, name):
            from icl_bench.cli.options import GroupedCommand

            function = getattr(import_module(f"icl_bench.cli.commands.{module}"), module)
            app.command(name, cls=GroupedCommand, epilog=_example(name))(function)
        else:
            app.command(name, help=_first_line(module) if command == "" else None)(_not_imported)
    return app


def _example(name: str) -> str:
    """The end of a command's help: a command line to copy, over several lines if it is long."""
    lines = wrap(f"icl-bench {EXAMPLES[name]}", 70, break_long_words=False, break_on_hyphens=False)
    return "\b\nExample:\n  " + " \\\n    ".join(lines)


def _first_line(module: str) -> str:
    """The first line of a command's docstring, read without importing it."""
    text = (files("icl_bench.cli.commands") / f"{module}.py").read_text(encoding="utf-8")
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == module]
    return str(ast.get_docstring(functions[0])).splitlines()[0]


def _not_imported() -> None:
    raise AssertionError("another command than requested")


def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version


_UsageError: Any = typer.BadParameter.__bases__[0]  # Typer's name for it differs by version


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 something failed, 2 bad usage or input.

    A usage error prints one or two lines on standard error, without a traceback. An internal error prints its traceback
    and exits with 70. A closed pipe prints nothing and exits with 141.
    """
    warnings.showwarning = _one_line
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(words or ["--help"])
    except UserError as error:
        code = _say(f"error: {error}", 2)
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else "icl-bench"
        message = one_line(error.format_message()).rstrip(".")
        code = _say(f"error: {message}; see {command} --help", 2)
    except (BrokenPipeError, SystemExit) as ended:
        if isinstance(ended, SystemExit) and not ended.code:
            sys.exit(0)  # shell completion has printed its candidates
        drop_the_rest()  # rich and click exit with 1 if a pipe is closed
        code = CLOSED
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BaseException as error:  # a panic of a Rust library is not an Exception
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            code = _say(f"error: {short(str(error.filename))}: the name is too long for a file", 2)
        elif _too_many_files(error):
            code = _say("error: too many open files; raise the limit (ulimit -n 1024), run the same command again", 2)
        else:
            traceback.print_exc()
            code = _say("error: icl-bench itself failed, see above; please report it", CRASHED)
    if code == INTERRUPTED:
        _say("interrupted; run the same command again to continue", code)
    sys.exit(code)


def _too_many_files(error: BaseException | None) -> bool:
    """Whether an error is caused by the limit on open files. Libraries wrap it in their own errors."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or os.strerror(errno.EMFILE) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _run(words: Sequence[str]) -> int | None:
    """Run a command and flush its output. Returns its exit code."""
    prepare_output()
    try:
        app = program(_command(words))
        code: int | None = app(words, prog_name="icl-bench", standalone_mode=False)
        sys.stdout.flush()
    except OSError as error:
        refuse_unwritable(error)
        raise
    return code


def _command(words: Sequence[str]) -> str | None:
    """The requested command; empty for the program itself, None for shell completion."""
    if "_ICL_BENCH_COMPLETE" in os.environ:
        return None
    return next((word for word in words[:1] if word in COMMANDS), "")


def _say(line: str, code: int) -> int:
    line = ENDLESS.sub(lambda match: f"{match[0][:80]}…", line)
    print(visible(line), file=sys.stderr)
    return code


def _one_line(message: Warning | str, *_: object, **__: object) -> None:
    print(visible(f"warning: {message}"), file=sys.stderr)
