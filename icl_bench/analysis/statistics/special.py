"""The functions of ``scipy.special`` that intervals and tests need, imported in half the time, and one more.

Import this inside functions, because not every command computes an interval.
"""

from __future__ import annotations

import math

from icl_bench.quiet_libraries import load_late

load_late("numpy", "f2py")  # scipy.special imports all parts of numpy, also for this one

from scipy.special import digamma, gammaincinv, gammaln, ndtr, ndtri, polygamma, stdtr, stdtrit  # noqa: E402

__all__ = ["digamma", "gammaincinv", "gammaln", "inverse_trigamma", "ndtr", "ndtri", "polygamma", "stdtr", "stdtrit"]


def inverse_trigamma(value: float) -> float:
    """Return the argument at which the trigamma function is ``value``, which must be above 0.

    Newton's method on its reciprocal, which is convex and nearly linear: no step goes beyond the root (Smyth 2004,
    Stat. Appl. Genet. Mol. Biol. 3:3, appendix). At both ends, where rounding exceeds the steps, a series is used:
    ``value**-0.5`` for large values and ``1 / value`` for small ones.

    Raises ValueError for a value that is not above 0.
    """
    if not value > 0:
        raise ValueError(f"the trigamma function is never {value}")
    if value > 1e7:
        return 1 / math.sqrt(value)
    if value < 1e-6:
        return 1 / value
    root = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, root))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, root))
        root += step
        if abs(step) < 1e-8 * root:
            break
    return root
