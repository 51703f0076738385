"""The errors that a user can cause and can mend."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Bad usage or bad input: what, where and what to do, in one or two lines.

    The command line prints the message without a traceback and exits with 2.
    """


class CellError(Exception):
    """One cell cannot be computed; its reason is stored and the other cells go on."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known names are nearest to a mistyped one, or list them all.

    >>> nearest("bankng77", ["banking77", "trec"])
    'did you mean banking77?'
    """
    known = sorted(known)
    close = get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"known: {', '.join(known)}"
