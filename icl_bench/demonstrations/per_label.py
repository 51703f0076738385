"""The examples of each label that are most similar to the query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from icl_bench.demonstrations.ranking import Ranking, nearest
from icl_bench.errors import ChoiceError
from icl_bench.wording import short


def nearest_of_each(
    ranking: Ranking,
    labels: np.ndarray,
    names: Sequence[str],
    alike: np.ndarray,
    shown: np.ndarray,
    each: int,
    rng: np.random.Generator,
    written: str,
) -> np.ndarray:
    """Choose the ``each`` most similar of every label: ``(labels * each,)`` places in the pool.

    The label of the most similar one stands first, with all of its own, the most similar first;
    then the label of the most similar of the others, and so on. Of a label with too few that are
    related to the query, the rest is drawn at random and counts as less similar (see
    :func:`nearest`, also on ``rng``).

    ``labels`` numbers the pool's labels as they stand in ``names``, and ``alike`` its different
    demonstrations, ``(pool,)`` both. Of those that are alike one is chosen, and none where one of
    ``shown``, which are places in the pool too, is like it. ``written`` is how it was asked for.

    Raises ``ChoiceError`` where a label has too few different ones.
    """
    ranked = nearest(ranking, len(labels), rng)
    others = ranked[~np.isin(alike[ranked], alike[shown])]
    candidates = others[np.sort(np.unique(alike[others], return_index=True)[1])]
    label = labels[candidates]
    found = np.bincount(label, minlength=len(names))
    few = int(found.argmin())
    if (there := int(found[few])) < each:
        less = f"ask for at most {there:,}" if there else "leave such labels out"
        unlike = " that are not shown already" if len(shown) else ""
        raise ChoiceError(
            f"--select {written}: label {short(names[few])} has {there:,} different examples in "
            f"the pool{unlike}; {less}"
        )
    by_label = np.argsort(label, kind="stable")
    within = np.empty_like(by_label)
    within[by_label] = np.arange(len(label)) - np.repeat(np.cumsum(found) - found, found)
    chosen, of = candidates[within < each], label[within < each]
    first = np.full(len(names), len(of))
    np.minimum.at(first, of, np.arange(len(of)))
    together: np.ndarray = chosen[np.argsort(first[of], kind="stable")]
    return together
