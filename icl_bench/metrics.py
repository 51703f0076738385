"""Metrics: accuracy, macro-F1 and invalid share of labels; ROUGE and BERTScore of free text.

The metrics of Bertsch et al. 2025, section 2. All are shares of 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.models.text_encoders import Encoder

SCORES = ("rouge1", "rouge2", "rougeL", "bertscore")
"""Columns of free text, empty for labels."""


ROUGE = ("rouge1", "rouge2", "rougeL")


def label_scores(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Score predicted labels: one row for each combination of the columns ``by``, sorted.

    ``frame`` has one row a prediction, with ``gold``, ``prediction``, ``correct`` and, where it is
    known whether a prediction is one of the task's labels, ``valid``. The result has the columns
    ``by``, ``accuracy``, ``macro_f1`` (see :func:`macro_f1`) and ``invalid``: the share of
    predictions that are none of the task's labels, NaN where unknown.

    Raises ValueError if ``by`` or the frame is empty.
    """
    if frame.empty:
        raise ValueError("no predictions to score")
    known = frame["valid"].astype(float) if "valid" in frame else np.nan
    shares = frame.assign(accuracy=frame["correct"].astype(float), invalid=1 - known)
    cells = shares.groupby(list(by), dropna=False, observed=True)
    scores = cells[["accuracy", "invalid"]].mean()
    # ngroup numbers the cells in the order of these rows
    scores.insert(1, "macro_f1", _macro_f1(cells.ngroup(), frame["gold"], frame["prediction"]))
    return scores.reset_index()


def macro_f1(gold: Sequence[str], prediction: Sequence[str | None]) -> float:
    """Return the mean F1 over the labels that the test examples have.

    A label that is predicted but is nobody's gold label has no F1 of its own: predicting it costs
    recall of the right one. Equals scikit-learn's ``f1_score(labels=<labels of gold>,
    average="macro", zero_division=0)``.

    Raises ValueError if there are no predictions, or not as many as gold labels.
    """
    if len(gold) == 0 or len(gold) != len(prediction):
        raise ValueError(f"cannot score {len(prediction)} predictions of {len(gold)} test examples")
    return float(_macro_f1(np.zeros(len(gold), dtype=np.int64), gold, prediction)[0])


def _macro_f1(cell: Any, gold: Any, prediction: Any) -> np.ndarray:
    """Return macro-F1 ``(cells,)`` of predictions in any order; ``cell`` numbers them from 0."""
    import pandas as pd

    cell = np.asarray(cell)
    actual, labels = pd.factorize(np.asarray(gold, dtype=object))
    predicted = pd.Index(labels).get_indexer(pd.Index(np.asarray(prediction, dtype=object)))
    shape = (int(cell.max()) + 1, len(labels))

    def count(code: np.ndarray, where: np.ndarray) -> np.ndarray:
        flat = np.bincount(cell[where] * shape[1] + code[where], minlength=shape[0] * shape[1])
        return flat.reshape(shape)

    support = count(actual, actual >= 0)
    hits = count(actual, actual == predicted)
    f1 = 2 * hits / np.maximum(support + count(predicted, predicted >= 0), 1)
    asked = support > 0
    return np.asarray((f1 * asked).sum(axis=1) / asked.sum(axis=1))


def rouge(gold: Sequence[str], prediction: Sequence[str]) -> dict[str, np.ndarray]:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L F1 of each example, ``(test,)``, with stemming.

    The package rouge-score of Bertsch et al. 2025, section 2. An empty text scores 0.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE), use_stemmer=True)
    scores = [scorer.score(*pair) for pair in zip(gold, prediction, strict=True)]
    return {
        kind: np.array([score[kind].fmeasure for score in scores], dtype=float) for kind in ROUGE
    }


def bertscore_f1(gold: Sequence[str], prediction: Sequence[str], encoder: Encoder) -> np.ndarray:
    """Return the BERTScore F1 of each example, ``(test,)``, not rescaled (Zhang et al. 2020).

    Scores of different encoders differ: store the encoder's name beside them.

    An empty text scores 0: bert-score says so too, but fails on one with transformers 5. Pairs are
    scored one at a time: in a batch, bert-score counts padding as a token of similarity 0, and a
    score would depend on its neighbours.
    """
    pairs = list(zip(gold, prediction, strict=True))
    written = [place for place, pair in enumerate(pairs) if all(text.strip() for text in pair)]
    f1 = np.zeros(len(pairs))
    if written:
        references, candidates = zip(*(pairs[place] for place in written), strict=True)
        _, _, found = _scorer(encoder).score(list(candidates), list(references), batch_size=1)
        f1[written] = found.numpy()
    return f1


@lru_cache(maxsize=1)  # a run scores many cells with one encoder
def _scorer(encoder: Encoder) -> Any:
    from bert_score import BERTScorer

    return BERTScorer(model_type=encoder.model, num_layers=encoder.layers)


ACCURACY = "accuracy"


COLUMNS = {ACCURACY: "correct"} | {name: name for name in SCORES}
"""Metric -> the column of predictions that it is the mean of, the preferred first."""


TITLES = {ACCURACY: "accuracy", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L",
          "bertscore": "BERTScore"}  # fmt: skip
"""Metric -> what it is called."""


def scored(frame: pd.DataFrame, value: str | None = None) -> pd.DataFrame:
    """Return predictions with ``score``, a share of 1, and ``metric``, of which it is the score.

    A task has one metric: accuracy where some answer is right or wrong; otherwise, for free text,
    the score that most of its predictions have, the first of ``icl_bench.metrics.SCORES`` among
    equals. A prediction without it has no score. Predictions that have both columns are returned
    as they are, so that parts of a folder keep the metrics of the whole. With ``value``, the score
    is that column.
    """
    if value is not None:
        names = {column: metric for metric, column in COLUMNS.items()}
        return frame.assign(score=frame[value], metric=names.get(value, value))
    if {"score", "metric"} <= set(frame.columns):
        return frame
    there = {name: frame[column].notna() for name, column in COLUMNS.items() if column in frame}
    counts = frame[["task"]].assign(**there).groupby("task", observed=True).sum()
    chosen = {name: _metric(row) for name, row in counts.to_dict("index").items()}
    metric = frame["task"].map(chosen).astype("category")
    score = np.full(len(frame), np.nan)
    for name in set(chosen.values()):
        rows = (metric == name).to_numpy()
        score[rows] = frame.loc[rows, COLUMNS[name]].to_numpy(dtype=float)
    return frame.assign(score=score, metric=metric)


def _metric(counts: Mapping[Any, int]) -> str:
    """The metric of a task, from how many of its predictions have each."""
    return ACCURACY if counts.get(ACCURACY) else str(max(counts, key=counts.__getitem__))


def metrics(frame: pd.DataFrame) -> dict[str, str]:
    """Task -> metric, of predictions with both columns of :func:`scored`."""
    first = frame.drop_duplicates("task")
    return dict(zip(first["task"].astype(object), first["metric"].astype(object), strict=True))


def measure(table: pd.DataFrame) -> str:
    """What the scores of a table are called, or "score" where it has several ``metric``."""
    names = set(table["metric"].astype(object))
    return title(names.pop()) if len(names) == 1 else "score"


def title(metric: str) -> str:
    """What a metric is called; that of a column that is none of ours is the column's name."""
    return TITLES.get(metric, metric)
