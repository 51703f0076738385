"""The errors that a user can cause and can mend, and how their messages show things."""

from __future__ import annotations


class UserError(Exception):
    """Bad usage or bad input: what, where and what to do, in one or two lines.

    The command line prints the message without a traceback and exits with 2.
    """


class ChoiceError(UserError):
    """So many demonstrations cannot be chosen so; other numbers, and other ways to choose, may be.

    What is asked for beside it goes on; where nothing is, it is bad usage like any other.
    """


class NotHereError(UserError):
    """A model or a data set of the hub is not on this machine and cannot be downloaded."""


class CellError(Exception):
    """One cell cannot be computed; its reason is stored and the other cells go on."""


class StopRunError(CellError):
    """The run ends before its last cell; what is answered is kept."""


class OutOfBudgetError(StopRunError):
    """The next request could pass the run's budget."""
