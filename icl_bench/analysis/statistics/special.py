"""The functions of ``scipy.special`` that intervals and tests need, in half of its import's time.

Import this inside functions: not every command draws an interval.
"""

from __future__ import annotations

from icl_bench.quiet_libraries import load_late

load_late("numpy", "f2py")  # scipy.special asks numpy for all of its parts, also for this one

from scipy.special import (  # noqa: E402
    digamma,
    gammaincinv,
    gammaln,
    ndtr,
    ndtri,
    polygamma,
    stdtr,
    stdtrit,
)

__all__ = [
    "digamma", "gammaincinv", "gammaln", "ndtr", "ndtri", "polygamma", "stdtr", "stdtrit",
]  # fmt: skip
