"""The examples of each label that are most similar to the query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from icl_bench.demonstrations.ranking import Ranking, most_similar
from icl_bench.errors import ChoiceError
from icl_bench.wording import short


def nearest_of_each(
    ranking: Ranking,
    labels: np.ndarray,
    names: Sequence[str],
    alike: np.ndarray,
    shared: np.ndarray,
    each: int,
    rng: np.random.Generator,
    written: str,
) -> np.ndarray:
    """Choose the ``each`` most similar of every label: ``(labels * each,)`` pool positions.

    Demonstrations are grouped by label, the most similar first. Groups are sorted by their most similar demonstration.
    If a label has too few that are related to the query, the rest is chosen at random and counts as less similar (see
    :func:`most_similar`, also for ``rng``).

    ``labels`` has the index into ``names`` of each demonstration's label, ``alike`` a number for each distinct
    demonstration, both ``(pool,)``. Of equal demonstrations, only one is chosen, and none if it equals one of
    ``shared`` (also pool positions). ``written`` is the selector, for messages.

    Raises ``ChoiceError`` if a label has too few different demonstrations.
    """
    ranked = most_similar(ranking, len(labels), rng)
    unshown = ranked[~np.isin(alike[ranked], alike[shared])]
    candidates = unshown[np.sort(np.unique(alike[unshown], return_index=True)[1])]
    labels_of_candidates = labels[candidates]
    counts = np.bincount(labels_of_candidates, minlength=len(names))
    scarce = int(counts.argmin())
    if (fewest := int(counts[scarce])) < each:
        less = f"ask for at most {fewest:,}" if fewest else "leave such labels out"
        unlike = " that are not shown already" if len(shared) else ""
        raise ChoiceError(
            f"--select {written}: label {short(names[scarce])} has {fewest:,} different examples in "
            f"the pool{unlike}; {less}"
        )
    by_label = np.argsort(labels_of_candidates, kind="stable")
    within = np.empty_like(by_label)
    within[by_label] = np.arange(len(labels_of_candidates)) - np.repeat(np.cumsum(counts) - counts, counts)
    selected, labels_of_selected = candidates[within < each], labels_of_candidates[within < each]
    first = np.full(len(names), len(labels_of_selected))
    np.minimum.at(first, labels_of_selected, np.arange(len(labels_of_selected)))
    grouped: np.ndarray = selected[np.argsort(first[labels_of_selected], kind="stable")]
    return grouped
