"""Selections of predictions for findings, draws that are copies, and concatenation of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.columns import POINT
from icl_bench.analysis.draws import by_name, is_drawn
from icl_bench.metrics.scores import scored
from icl_bench.results.cells import SETTING
from icl_bench.results.trained_methods import BASELINES

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.results.reading import Stored
    from icl_bench.results.stored_meta import CellMeta


def unperturbed_predictions(predictions: pd.DataFrame) -> pd.DataFrame:
    """The predictions of test examples with unperturbed demonstrations.

    Queries that are copies of demonstrations are not test examples.
    """
    for name in ("queries", "perturbation"):
        if name in predictions and predictions[name].notna().any():
            predictions = predictions[predictions[name].isna()]
    return predictions


def samples_of(predictions: pd.DataFrame) -> pd.Series:
    """Number of samples of each prediction: ``(rows,)`` float, 1 without sampling.

    Tokens of a prediction are those of all its samples, each of which reads the whole prompt.
    """
    import pandas as pd

    if "samples" not in predictions:
        return pd.Series(1.0, index=predictions.index)
    samples = predictions["samples"]
    counts = [len(each) if isinstance(each, list | tuple | np.ndarray) else 1 for each in samples]
    return pd.Series(counts, index=predictions.index, dtype=float)


def prompt_lengths(predictions: pd.DataFrame) -> pd.Series:
    """Tokens of each prediction's prompt: ``(rows,)`` float, NaN if unknown.

    The tokens of several samples, and those of a server's requests for the scores of all labels, are tokens of the same
    prompt.
    """
    found = predictions.reindex(columns=["prompt_tokens", "local_prompt_tokens", "probability"]).astype(float)
    in_requests = found["probability"].notna() & found["local_prompt_tokens"].notna()
    each = found["prompt_tokens"] / samples_of(predictions)
    return each.mask(in_requests, found["local_prompt_tokens"])


def differing_prompts(predictions: pd.DataFrame) -> pd.DataFrame:
    """The number of test examples of each retrieval point whose prompts differ between draws.

    One row for each point with several draws and known prompts: the columns of ``POINT`` and ``differing_prompts``.
    Retrieval is random only if too few demonstrations are related, so its draws are copies or nearly so.
    """
    import pandas as pd

    empty = pd.DataFrame(columns=[*POINT, "differing_prompts"])
    if "prompt_hash" not in predictions or not (predictions["draw"] > 0).any():
        return empty
    retrieved = predictions[~by_name(predictions["select"], is_drawn).astype(bool)]
    retrieved = retrieved[[*POINT, "draw", "test_id", "prompt_hash"]]
    points = retrieved.groupby(POINT, observed=True)
    known = (points["draw"].nunique() > 1) & (points["prompt_hash"].count() == points.size())
    if not known.any():
        return empty
    prompts = retrieved.groupby([*POINT, "test_id"], observed=True)["prompt_hash"].nunique()
    differing = (prompts > 1).groupby(level=POINT, observed=True).sum()
    table: pd.DataFrame = differing[known].rename("differing_prompts").reset_index()
    return table


def with_copies_as_one_draw(predictions: pd.DataFrame) -> pd.DataFrame:
    """Remove further draws of points whose draws all have the same prompts.

    Such draws count as one, because no other demonstrations were drawn.
    """
    table = differing_prompts(predictions)
    copies = table.loc[table["differing_prompts"] == 0, POINT]
    if copies.empty:
        return predictions
    names = predictions[POINT].astype(dict.fromkeys(SETTING, object))
    copied = names.merge(copies.astype(dict.fromkeys(SETTING, object)), on=POINT, how="left", indicator=True)
    is_copy = (copied["_merge"] == "both").to_numpy()
    order = np.argsort(predictions["draw"].to_numpy(), kind="stable")
    later = np.empty(len(predictions), dtype=bool)
    later[order] = predictions.iloc[order].duplicated([*POINT, "test_id"]).to_numpy()
    kept = ~(is_copy & later)
    predictions, is_copy = predictions[kept], is_copy[kept]
    return predictions.assign(draw=predictions["draw"].where(~is_copy, 0))


def comparable_predictions(stored: Stored, derived: bool = True) -> pd.DataFrame:
    """The scored predictions of a folder whose points are comparable.

    These are predictions of test examples and unperturbed demonstrations, without halves of a label space, which are
    easier tasks. Draws that are copies count as one. Calibrated predictions are included if ``derived``.
    """
    predictions = stored.predictions if derived else stored.own_predictions
    frame = with_copies_as_one_draw(scored(predictions, first=stored.first_scores))
    frame = unperturbed_predictions(frame)
    return frame[frame["label_space"].isna()]


def prompted(frame: pd.DataFrame) -> pd.DataFrame:
    """The predictions of prompts with demonstrations, without trained classifiers."""
    return frame[~frame["select"].astype(object).isin(BASELINES)]


def have_common_labels(frame: pd.DataFrame) -> pd.Series:
    """Which predictions are of labels common to all rows, not of a row's own choices."""
    labelled = frame["correct"].notna()
    return labelled & ~frame["own_choices"] if "own_choices" in frame else labelled


def with_rows_left_out(table: pd.DataFrame, cells: Mapping[str, CellMeta]) -> pd.DataFrame:
    """Add ``rows_left_out`` to a table of variants: the test rows that the task file leaves out.

    The column is added only if there are such rows.
    """
    counts = {meta.variant: meta.rows_left_out for meta in cells.values() if meta.rows_left_out}
    left_out = [counts.get(variant, 0) for variant in table.get("variant", ())]
    return table.assign(rows_left_out=left_out) if any(left_out) else table


def joined(parts: Sequence[pd.DataFrame], empty: pd.DataFrame) -> pd.DataFrame:
    """Concatenate tables; ``empty``, which has the columns, if no part has a row."""
    import pandas as pd

    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else empty
