"""The options of the commands, created from specifications' declarations (:mod:`icl_bench.options`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from icl_bench.options import GROUPS, OUTPUT, Declared, Options
from icl_bench.sweep.options import RunOptions

DEFAULT_RESULTS = "results"

OptionValues = Mapping[str, Any]
"""Values of a specification's options that a user gave, by name."""


def typer_option(declared: Declared, *, several: bool = False) -> Any:
    """An option of the command line; with ``several`` it takes a list with commas."""
    option = declared.option
    text = option.help
    if several:
        text += " Several with commas."
    if declared.default:
        text += f" [default: {declared.default}]"
    names = (declared.flag, *([option.short] if option.short else []))
    return typer.Option(
        *names,
        metavar=None if declared.kind is bool else "LIST" if several else option.metavar,
        help=text,
        show_default=False,
        autocompletion=(lambda: list(declared.choices)) if declared.choices else None,
        rich_help_panel=option.group,
    )


def parameter(declared: Declared, several: bool) -> Parameter:
    """The parameter from which Typer creates an option; its default is None."""
    kind: Any = bool if declared.kind is bool else list[str] if declared.option.repeated else str
    required = declared.field.is_required()
    default: Any = Parameter.empty if required else False if kind is bool else None
    kind = kind if required or kind is bool else kind | None
    return Parameter(
        declared.name,
        Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typer_option(declared, several=several)],
    )


def command(*specs: type[Options], several: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function that takes option values of each of these specifications into a command.

    The function's first arguments are one mapping for each of ``specs``; further arguments are options of the command
    only. ``several`` are options that take a list instead of a single value.
    """

    def as_command(run: Callable[..., None]) -> Callable[..., None]:
        declared = [spec.declared() for spec in specs]
        hints = get_type_hints(run, include_extras=True)
        own = list(signature(run).parameters.values())[len(specs) :]
        further = [p.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in own]
        shared = [parameter(option, option.name in several) for options in declared for option in options.values()]
        every = [*sorted(shared, key=lambda p: p.default is not Parameter.empty), *further]

        def called(**values: Any) -> None:
            of_specs = [{name: values.pop(name) for name in options} for options in declared]
            # without a value, the specification's default applies
            given = [{name: value for name, value in of.items() if value not in (None, False)} for of in of_specs]
            run(*given, **values)

        called.__name__, called.__doc__ = run.__name__, run.__doc__
        called.__annotations__ = {p.name: p.annotation for p in every}
        called.__signature__ = Signature(every)  # type: ignore[attr-defined]
        called.declared = {name: option for options in declared for name, option in options.items()}  # type: ignore[attr-defined]
        return called

    return as_command


_Formatter: Any = typer.Context.formatter_class  # its module differs by version of Typer
_UNBROKEN = "\N{NON-BREAKING HYPHEN}"


class _WholeNames(_Formatter):  # type: ignore[misc]
    """A formatter of help texts whose lines break at spaces only, so that ``--data-dir`` can be copied.

    Typer's wraps with :mod:`textwrap`, which also breaks after hyphens and has no option here to prevent it. Hyphens
    are therefore exchanged while lines are wrapped. The output has plain hyphens.
    """

    def write_text(self, text: str) -> None:
        """Write paragraphs."""
        super().write_text(text.replace("-", _UNBROKEN))

    def write_dl(self, rows: Sequence[tuple[str, str]], *args: Any, **kwargs: Any) -> None:
        """Write a list of names and their descriptions."""
        super().write_dl([(name, text.replace("-", _UNBROKEN)) for name, text in rows], *args, **kwargs)

    def getvalue(self) -> str:
        """The text written so far."""
        written: str = super().getvalue()
        return written.replace(_UNBROKEN, "-")


class _Context(typer.Context):
    formatter_class = _WholeNames


class GroupedCommand(TyperCommand):
    """A command whose help groups options and lists names that installed packages add."""

    context_class = _Context

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, each group under its name."""
        declared: Mapping[str, Declared] = getattr(self.callback, "declared", {})
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is None:
                continue
            name, text = record
            more = declared[param.name].option.more if param.name in declared else None
            if added := list(more()) if more else []:
                text += f" Installed packages add: {', '.join(added)}."
            is_argument = param.param_type_name == "argument"
            group = "Arguments" if is_argument else getattr(param, "rich_help_panel", None) or "Options"
            groups.setdefault(group, []).append((name, text))
        known = ["Arguments", *GROUPS]
        for group in sorted(groups, key=lambda name: known.index(name) if name in known else len(known)):
            with formatter.section(group):
                formatter.write_dl(groups[group])


_run = RunOptions.declared()

TaskName = Annotated[str, typer_option(_run["task"])]

DataDir = Annotated[Path | None, typer_option(_run["data_dir"])]

ResultsDir = Annotated[
    str,
    typer.Option(
        "--results",
        metavar="DIR",
        help="Folder of the predictions, or an address like s3://bucket/folder.",
        rich_help_panel=OUTPUT,
    ),
]

Only = Annotated[str | None, typer.Option(metavar="NAME", help="Only this one.")]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=OUTPUT)]

Anonymous = Annotated[
    bool,
    typer.Option(
        "--anonymous",
        help="For blind review: without names of machine and user, and without paths.",
        rich_help_panel=OUTPUT,
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel=OUTPUT)]
