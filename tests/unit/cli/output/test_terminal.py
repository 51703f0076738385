"""Where the terminal breaks lines."""

from __future__ import annotations

import io
import re

import pytest
from rich.text import Text

from icl_bench.cli.output.terminal import Terminal

COST = (
    "Cost: about 0.24 s a query on this machine (27 GFLOP); 20,000 queries: 80 minutes; k of 5, then 100, on llama2 too"
)


def printed(text: str | Text, width: int, color: str | None = None) -> str:
    written = io.StringIO()
    Terminal(file=written, width=width, force_terminal=True, color_system=color).print(text)
    return written.getvalue()


@pytest.mark.parametrize("text", [COST, Text(COST)], ids=["str", "Text"])
def test_a_line_does_not_end_between_a_number_and_its_unit(text: str | Text):
    for width in range(20, 120):
        lines = [line.rstrip() for line in printed(text, width).splitlines()]
        assert not [line for line in lines if re.search(r"(?:^|[ (])[\d.,]*\d$", line)]
        assert " ".join(lines) == COST


def test_other_spaces_are_where_lines_may_end():
    assert printed("of 5, then 10, of llama2 too", 5) == "of 5,\nthen \n10, \nof \nllama\n2 too\n"


def test_a_quantity_wider_than_a_line_is_broken_at_its_space():
    assert printed("1,000 queries", 8) == "1,000 \nqueries\n"


def test_styles_stay_where_they_were():
    assert printed(Text.assemble("took ", ("5 s", "bold"), " more"), 40, "standard") == "took \x1b[1m5 s\x1b[0m more\n"
