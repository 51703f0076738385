"""Scores finished cells again whose task has other metrics than when they were computed."""

from __future__ import annotations

from typing import Any

from icl_bench.errors import CellError, UserError
from icl_bench.results.cells import FINISHED, Identity, Prediction
from icl_bench.results.reading import read_rows
from icl_bench.results.store import Store
from icl_bench.sweep.tokenized_task import TokenizedTask


def score_again(store: Store, identity: Identity, task: TokenizedTask) -> None:
    """Add the missing scores of a finished cell, if its task had other metrics (:attr:`Store.scored_otherwise`).

    Raises ``UserError`` if its stored answers cannot be scored.
    """
    if identity.name not in store.scored_otherwise:
        return
    name = f"{identity.name}{FINISHED}"
    table = read_rows(store.storage, name)
    wanted = ("test_id", "gold", "golds", "prediction", "correct", "valid")
    rows = table.select([column for column in wanted if column in table.column_names]).to_pylist()
    try:
        scores = task.scores([_prediction(row) for row in rows])
    except CellError as error:
        where = store.storage.where(name)
        raise UserError(f"{where}: its answers cannot be scored by the task's present metrics: {error}") from None
    store.add_scores(identity, scores)


def _prediction(row: dict[str, Any]) -> Prediction:
    """The parts of a stored prediction that scores depend on."""
    golds = row.pop("golds", None)
    nothing: dict[str, Any] = {"prompt_tokens": 0, "cached_tokens": 0, "answer_tokens": 0, "prompt_hash": ""}
    return Prediction(**row, **nothing, golds=None if golds is None else tuple(golds))
