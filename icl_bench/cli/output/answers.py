"""Prints the recommended settings, above the tables of ``summary``."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from icl_bench.analysis.all_findings import Findings
from icl_bench.cli.output.tables import print_lines, print_notes
from icl_bench.report.answers import said
from icl_bench.report.naming import Naming

MOST_WHOLE = 3
"""The maximum number of answers that are printed with reasons and commands. More answers get one line each."""


def print_answers(findings: Findings, console: Console) -> None:
    """Print the recommended setting of each task and model, its score and cost, and its comparison."""
    answers = said(findings, Naming.of(findings.summary))
    if not answers:
        return
    console.print(Text("what to use", style="bold"))
    whole = len(answers) <= MOST_WHOLE
    for answer in answers:
        use = f"no recommendation ({answer.why_not}); the highest is {answer.use}" if answer.why_not else answer.use
        if answer.unsure and not whole:
            use += f" (the best found; {answer.unsure})"
        facts = [f"{answer.measure} {answer.score}", answer.data, answer.cost and f"a query takes {answer.cost}"]
        print_lines(console, f"{answer.task} · {answer.model}: {use}; {', '.join(filter(None, facts))}")
        if whole:
            print_lines(console, *(f"  {sentence}" for sentence in answer.against))
            print_lines(console, *(f"  reproduce: {command}" for command in answer.commands))
    print_notes(console, *([] if whole else ["for the reasons: --task NAME --model NAME, or icl-bench report"]))
    if whole:
        console.print()
