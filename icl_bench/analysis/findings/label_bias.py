"""Label bias: labels that a model predicts too often, and labels that it confuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.by_task import IN_ORDER
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.finding import Finding, Section
from icl_bench.analysis.predictions import have_common_labels
from icl_bench.analysis.statistics.grid import partition
from icl_bench.metrics.scores import right_labels

if TYPE_CHECKING:
    import pandas as pd


def label_frequencies(frame: pd.DataFrame) -> pd.DataFrame:
    """How often each label is right and how often it is predicted.

    Columns: the setting, k, label, and gold and predicted, shares of all predictions of a point.
    Every answer counts as a label; labels that are neither right nor predicted are left out.
    """
    keys, point, gold, answer, labels = _coded(frame)
    shape = len(keys), len(labels)

    def share(code: np.ndarray) -> np.ndarray:
        counts = np.bincount(point * shape[1] + code, minlength=shape[0] * shape[1])
        return counts / np.repeat(np.bincount(point, minlength=shape[0]), shape[1])

    right, predicted = share(gold), share(answer)
    present = np.flatnonzero(right + predicted)
    table = keys.iloc[present // max(shape[1], 1)].reset_index(drop=True)
    return table.assign(label=labels[present % max(shape[1], 1)], gold=right[present], predicted=predicted[present])


def label_bias(frame: pd.DataFrame) -> pd.DataFrame:
    """The distance between the frequencies of predicted labels and of right labels, over all labels.

    Columns: the setting, k; total_variation, half the sum over labels of ``|predicted - gold|``: the share of answers
    that would have to change for predicted and right labels to be equally frequent, label by label; label, the most
    overpredicted one, and excess, by how much. Small samples differ by chance, so compare bias only between points with
    equal numbers of predictions.
    """
    shares = label_frequencies(frame)
    shares["excess"] = shares["predicted"] - shares["gold"]
    shares["total_variation"] = shares["excess"].abs() / 2
    points = shares.groupby(POINT, observed=True)
    most = shares.loc[points["excess"].idxmax(), [*POINT, "label", "excess"]]
    total = points["total_variation"].sum().reset_index()
    table: pd.DataFrame = total.merge(most, on=POINT)
    return table


def confusions(frame: pd.DataFrame, top: int = 10) -> pd.DataFrame:
    """The ``top`` most frequent mistakes of each point, most frequent first.

    Columns: the setting, k, gold, prediction, count, and share, of the predictions of that gold
    label. Ties are in the order of the labels.
    """
    keys, point, gold, answer, labels = _coded(frame)
    size = max(len(labels), 1)
    golds = np.bincount(point * size + gold, minlength=len(keys) * size)
    wrong = gold != answer
    mistake, count = np.unique((point[wrong] * size + gold[wrong]) * size + answer[wrong], return_counts=True)
    at = mistake // size**2
    order = np.lexsort((-count, at))
    first = np.searchsorted(at[order], np.arange(len(keys)))
    order = order[np.arange(len(order)) - first[at[order]] < top]
    chosen = mistake[order]
    table: pd.DataFrame = keys.iloc[chosen // size**2].reset_index(drop=True)
    table["gold"], table["prediction"] = labels[chosen // size % size], labels[chosen % size]
    table["count"], table["share"] = count[order], count[order] / golds[chosen // size]
    return table


MOST_LABELS = 20
"""The maximum number of labels for a confusion matrix; larger ones are unreadable."""


def confusion_matrix(frame: pd.DataFrame) -> pd.DataFrame:
    """How often each label was predicted for each right label, of tasks with at most ``MOST_LABELS`` labels and
    answers.

    Columns: the setting, k, gold, prediction, count, ``of``, the predictions of that gold label, and share, of these. A
    missing answer is the empty text. Pairs that never occur are left out.
    """
    import pandas as pd

    keys, point, gold, answer, labels = _coded(frame)
    table = pd.DataFrame({"point": point, "gold": labels[gold], "prediction": labels[answer]})
    table = table.groupby(["point", "gold", "prediction"], sort=True).size().rename("count").reset_index()
    table["of"] = table.groupby(["point", "gold"])["count"].transform("sum")
    table["share"] = table["count"] / table["of"]
    table = keys.iloc[table.pop("point")].reset_index(drop=True).join(table)
    several = {task: pd.concat([part["gold"], part["prediction"]]).nunique() for task, part in table.groupby("task")}
    return table[table["task"].map(several).astype(float) <= MOST_LABELS].reset_index(drop=True)


def _coded(frame: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Points; the point, gold label and answer of each prediction as codes; and the labels.

    Of several right labels, the one that was answered counts. A missing answer is the empty text. Rows' own choices
    are left out unless they are letters; bias is then a preference for positions in the list.
    """
    import pandas as pd

    gold, common = right_labels(frame), have_common_labels(frame)
    frame = frame.loc[common, [*POINT, "gold", "prediction"]].assign(gold=gold[common])
    keys, parts = partition(frame, POINT)
    point = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    rows = np.concatenate([np.arange(0), *parts])
    both = pd.concat([frame["gold"], frame["prediction"].fillna("")], ignore_index=True)
    codes, labels = pd.factorize(both, sort=True)
    return keys, point, codes[rows], codes[len(frame) + rows], np.asarray(labels, dtype=object)


LABEL_BIAS = Finding(
    "label_bias",
    lambda context: context.from_zero_shot(label_bias(context.unperturbed)),
    (
        Column("total_variation", "answers off", "share"),
        Column("label", "label"),
        Column("excess", "said beyond its share", "points"),
    ),
    caption="Label bias by k",
    by_task=IN_ORDER,
)


LABEL_FREQUENCIES = Finding(
    "label_frequencies",
    lambda context: context.from_zero_shot(label_frequencies(context.unperturbed)),
    section=Section(
        "bias",
        "Labels predicted too often",
        "Label bias",
        "predictions of labels",
        "Each point is a label. Above the diagonal it is predicted more often than it occurs. In the "
        "table, “answers off” is the share of answers that would have to change for the labels to "
        "be as frequent as they should be; a few predictions are off by chance alone.",
        also=("label_bias",),
        place=120,
    ),
    by_task=IN_ORDER,
)


CONFUSIONS = Finding(
    "confusions",
    lambda context: context.from_zero_shot(confusions(context.unperturbed)),
    (
        Column("gold", "right"),
        Column("prediction", "said"),
        Column("count", "times", "count"),
        Column("share", "of the right label's", "share"),
    ),
    caption="Mistakes",
    section=Section(
        "confusions",
        "Confusion table",
        "Confusion",
        "predictions of labels, some of them wrong",
        "The most frequent mistakes at one point of a curve: the right label → what was said. Of tasks with few labels "
        "also the whole matrix: how often each label was said, a row for each right label with its number.",
        place=110,
    ),
    by_task=IN_ORDER,
)


CONFUSION_MATRIX = Finding(
    "confusion_matrix",
    lambda context: context.from_zero_shot(confusion_matrix(context.unperturbed)),
    (
        Column("gold", "right"),
        Column("prediction", "said"),
        Column("count", "times", "count"),
        Column("of", "predictions of the right label", "count"),
        Column("share", "share of these", "share"),
    ),
    caption="Confusion matrix",
    by_task=IN_ORDER,
)
