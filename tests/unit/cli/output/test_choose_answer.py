"""How the answer of ``choose`` is printed."""

from __future__ import annotations

import io

from icl_bench.cli.output.choose import print_answer
from icl_bench.cli.output.terminal import Terminal

LINES = ("Use: a setting with a long description of what it is", "Next: icl-bench run --task a --model b --k 1,2,3")


def printed(terminal: bool) -> str:
    written = io.StringIO()
    print_answer(LINES, Terminal(file=written, width=30, force_terminal=terminal, color_system=None))
    return written.getvalue()


def test_on_a_terminal_lines_break_between_words_and_commands_do_not():
    assert printed(terminal=True) == (
        "Use: a setting with a long \ndescription of what it is\nNext: icl-bench run --task a --model b --k 1,2,3\n"
    )


def test_elsewhere_each_line_is_one():
    assert printed(terminal=False) == "".join(f"{line}\n" for line in LINES)
