"""Order sensitivity: how many predictions change with the order of demonstrations, and how many by chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.by_task import IN_ORDER, ByTask
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.draws import by_name, is_drawn, is_shuffled
from icl_bench.analysis.finding import Finding, Printed, Section
from icl_bench.analysis.predictions import joined
from icl_bench.analysis.statistics.grid import Grid, grids, partition
from icl_bench.analysis.statistics.shares import share_interval, shares
from icl_bench.analysis.words import USUAL_ORDERS
from icl_bench.demonstrations.selector_spec import known
from icl_bench.models.attention_patterns import FULL
from icl_bench.results.facts import NO_FACTS, UNKNOWN, Facts, FactsOf
from icl_bench.wording import DASH

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

IN_ANY_ORDER = [name for name in POINT if name != "order"]
"""The columns that a point and its reorderings share."""


CHANGES = [*IN_ANY_ORDER, "reorderings", "draws", "rows", "changed", "ci_low", "ci_high", "left_out"]


SAME_PROMPT = ["task", "model", "attention", "k", "test_id", "prompt_hash"]


RUNS = ["task", "model", "attention", "variant", "other_variant", "k"]


def order_sensitivity(frame: pd.DataFrame) -> pd.DataFrame:
    """How many predictions change from the usual order to ``shuffled`` (Bertsch et al. 2025, figure 4).

    The usual order is ``drawn``, and ``relevance`` for retrieval. The share is over all pairs of draw and test row in
    both orders, with its 95% interval over draws and test examples. k=1 is left out, because it has one order. Draws of
    a retrieval have the same demonstrations in other shuffles: each is compared with the one usual order.

    Columns: the setting without order, k, reorderings, draws and rows (of pairs), changed, ci_low, ci_high, and
    left_out: the shuffled predictions without a counterpart in the usual order.
    """
    import pandas as pd

    chosen = (frame["k"] > 1) & (frame["order"].isin(USUAL_ORDERS) | is_shuffled(frame["order"]))
    kept = frame.loc[chosen, [*POINT, "draw", "test_id", "prediction"]]
    answers, _ = pd.factorize(kept["prediction"])
    keys, all_points = grids(kept, POINT)
    usual = keys["order"].isin(USUAL_ORDERS).to_numpy()
    points, places = partition(keys, IN_ANY_ORDER)
    rows = []
    for point, at in zip(points.itertuples(index=False), places, strict=True):
        base, shuffled = at[usual[at]], at[~usual[at]]
        if len(base) and len(shuffled):
            of_shuffled = [all_points[place] for place in shuffled]
            usual_order = all_points[base[0]]
            if len(usual_order.draws) == 1 and not is_drawn(keys["select"][base[0]]):
                usual_order = _in_draws_of(of_shuffled, usual_order)
            rows.append([*point, len(shuffled), *_changes(usual_order, of_shuffled, answers)])
    table = pd.DataFrame(rows, columns=CHANGES)
    return table[table["changed"].notna()].reset_index(drop=True)


def _in_draws_of(others: Sequence[Grid], single: Grid) -> Grid:
    """A point of a single draw as if each draw of the others had its predictions."""
    draws = np.unique(np.concatenate([other.draws for other in others]))
    return Grid(draws, single.tests, np.repeat(single.rows, len(draws), axis=0))


def _changes(usual: Grid, shuffled: list[Grid], answers: np.ndarray) -> list[Any]:
    """Draws, rows, share with limits, and the number of unpaired predictions.

    ``answers`` are the predictions as codes, by row of the frame.
    """
    changed, pairs = np.zeros(usual.rows.shape), np.zeros(usual.rows.shape)
    for other in shuffled:
        _, mine, its = np.intersect1d(usual.draws, other.draws, return_indices=True)
        _, here, there = np.intersect1d(usual.tests, other.tests, return_indices=True)
        before, after = usual.rows[np.ix_(mine, here)], other.rows[np.ix_(its, there)]
        both = (before >= 0) & (after >= 0)
        pairs[np.ix_(mine, here)] += both
        changed[np.ix_(mine, here)] += both & (answers[before] != answers[after])
    compared = np.ix_(pairs.any(axis=1), pairs.any(axis=0))
    interval = share_interval(changed[compared], pairs[compared])
    predictions = sum(other.predictions for other in shuffled)
    return [*pairs[compared].shape, *interval, predictions - int(pairs.sum())]


def _retrieves(select: object) -> bool:
    choice = known(str(select))
    return choice is not None and choice.retrieves


def _of_a_run(facts: Facts) -> bool:
    return facts.imported is None or facts.are_of_a_run


def _without_copies(frame: pd.DataFrame, facts: FactsOf) -> pd.DataFrame:
    """The predictions without those that a run copies from earlier draws of their point, which have the same prompt.

    A run copies (``icl_bench.sweep.runner.SameAnswers``) where queries retrieve all their demonstrations and read all
    of the prompt. Whether it was interrupted, and asked again, is not stored.
    """
    own = by_name(frame["variant"], lambda variant: _of_a_run(facts.get(variant, UNKNOWN)))
    may = by_name(frame["select"], _retrieves) & own & (frame["attention"] == str(FULL)) & frame["prompt_hash"].notna()
    places = np.flatnonzero(may)
    places = places[np.argsort(frame["draw"].to_numpy()[places], kind="stable")]
    kept = np.ones(len(frame), dtype=bool)
    kept[places] = ~frame.iloc[places].duplicated([*POINT, "test_id", "prompt_hash"])
    return frame[kept]


def noise_floor(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """How many predictions change when the same prompt is run again.

    Order sensitivity below this is not an effect of the order. Prompts are the same if their stored hash, task, model,
    attention, k and test row are equal, in any cell. Within a variant each further run is compared with the first.
    Between variants (another backend, another dtype), first runs are compared. Of the draws of a retrieval with the
    same prompt only the first counts, because a run copies its answer to the others; an import of another program's
    predictions (``facts``, those of each variant) does not.

    Columns: task, model, attention, variant and other_variant (equal for runs within one), k, predictions (compared),
    changed, ci_low and ci_high (95%, draws and test examples random).
    """
    import pandas as pd

    if "prompt_hash" not in frame:
        frame = frame.assign(prompt_hash=None)
    frame = _without_copies(frame, facts)
    again = frame["prompt_hash"].notna() & frame["prompt_hash"].duplicated(keep=False)
    if not again.any():
        nothing = frame.iloc[:0].assign(other_variant=None, differs=False)
        return shares(nothing, RUNS, "differs", "changed")
    runs = frame.loc[again, [*SAME_PROMPT, "variant", "draw", "prediction"]]
    runs = runs.assign(variant=runs["variant"].astype(object))
    further = runs.duplicated([*SAME_PROMPT, "variant"])
    firsts = runs[~further]
    first = firsts[[*SAME_PROMPT, "variant", "prediction"]].assign(other_variant=firsts["variant"])
    within = runs[further].merge(first, on=[*SAME_PROMPT, "variant"])
    between = firsts.merge(first.drop(columns="variant"), on=SAME_PROMPT)
    between = between[between["variant"] < between["other_variant"]]
    pairs = pd.concat([within, between], ignore_index=True)
    pairs["differs"] = pairs["prediction_x"] != pairs["prediction_y"]
    return shares(pairs, RUNS, "differs", "changed")


def _noise(context: Context) -> pd.DataFrame:
    """The noise floor between variants that derive the same answer from equal logits.

    Calibrated predictions are excluded, because they are derived without running prompts.
    """
    frame = context.uncalibrated(context.prompts)
    scoring = {variant: str(facts.scoring) for variant, facts in context.facts.items()}
    of_row = by_name(frame["variant"], scoring.get)
    parts = [noise_floor(frame[of_row == way], context.facts) for way in sorted(set(scoring.values()))]
    return with_reasons(joined(parts, noise_floor(frame.iloc[:0])), context.facts)


def _scoring(table: pd.DataFrame, facts: FactsOf) -> pd.Series[Any]:
    """How each row's variant derives answers, by which :func:`_noise` orders them."""
    return table["variant"].astype(object).map({variant: str(of.scoring) for variant, of in facts.items()})


REASONS = {"backend": "backend", "dtype": "precision", "temperature": "temperature", "samples": "samples"}
"""Facts that change answers to the same prompt -> their names."""


def with_reasons(noise: pd.DataFrame, facts: FactsOf) -> pd.DataFrame:
    """Add the differences between the two variants of each row of a noise floor (``differs_in``).

    ``precision (bfloat16, float32)`` is rounding alone, independent of prompt and backend. None if the same variant was
    run again.
    """

    def reason(variant: str, other: str) -> str | None:
        if variant == other:
            return None
        first, second = (facts.get(name, UNKNOWN).known() for name in (variant, other))
        differing = [
            f"{name} ({first.get(fact, DASH)}, {second.get(fact, DASH)})"
            for fact, name in REASONS.items()
            if first.get(fact) != second.get(fact)
        ]
        return " and ".join(differing) or "other settings"

    pairs = zip(noise["variant"].astype(str), noise["other_variant"].astype(str), strict=True)
    return noise.assign(differs_in=np.array([reason(*pair) for pair in pairs], dtype=object))


CHANGED = Column("changed", "changed", "share")


ORDER_SENSITIVITY = Finding(
    "order_sensitivity",
    lambda context: order_sensitivity(context.unperturbed),
    (
        Column("reorderings", "reorderings", "count"),
        CHANGED,
        Column("floor", "changed by chance", "share", optional=True),
    ),
    caption="Answers changed by reordering",
    shown="task model series k reorderings draws rows changed ci_low ci_high floor left_out",
    printed=Printed(
        "order: predictions that change when the demonstrations are reordered, %", "task model select k changed ci_low"
    ),
    section=Section(
        "order",
        "How much does the order matter?",
        "Order sensitivity",
        "run --order drawn,shuffled:1 with k above 1; --order relevance,shuffled:1 for retrieval",
        "The share of answers that change when the same demonstrations are in another random "
        "order, with its 95% interval. A changed answer need not be a worse one.",
        "Bertsch et al. 2025, figure 4",
        also=("noise_floor",),
        place=30,
    ),
    by_task=IN_ORDER,
)


NOISE_FLOOR = Finding(
    "noise_floor",
    _noise,
    (CHANGED, Column("differs_in", "differs in", optional=True)),
    caption="Changed by running again",
    shown="task model attention differs_in variant other_variant k predictions changed ci_low ci_high",
    printed=Printed(
        "noise: predictions that change when the same prompt is run again, %", "task model differs_in k changed ci_low"
    ),
    by_task=ByTask((_scoring,)),
)
