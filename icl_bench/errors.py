"""Errors that a user can cause and fix, and the form of values in their messages."""

from __future__ import annotations


class UserError(Exception):
    """Bad usage or bad input: what, where and what to do, in one or two lines.

    The command line prints the message without a traceback and exits with 2.
    """


class ChoiceError(UserError):
    """This number of demonstrations cannot be selected in this way; other numbers or selectors may be possible.

    The rest of the request continues. If nothing remains, it is bad usage.
    """


class NotHereError(UserError):
    """A model or a data set of the hub is not on this machine and cannot be downloaded."""


class CellError(Exception):
    """One cell cannot be computed. The reason is stored and other cells continue."""


class StopRunError(CellError):
    """The run ends before its last cell. Answers so far are kept."""


class OutOfBudgetError(StopRunError):
    """The next request could exceed the run's budget."""
