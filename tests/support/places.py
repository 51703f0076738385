"""Predictions of a page with many places: tasks, models, selectors, questions and what they took."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from icl_bench.report import write_report
from icl_bench.results.importing import import_predictions

TOKENS = {1: 30.0, 5: 90.0, 20: 400.0}


def predictions() -> pd.DataFrame:
    """Two tasks, two models, random and BM25 selection, every question beside its answer."""
    rows = [
        {
            "task": task,
            "model": model,
            "select": select,
            "order": "drawn" if select == "random" else "relevance",
            "k": k,
            "draw": draw,
            "test_id": f"row {test}",
            "question": f"Ticket {(test * 17) % 40:02}: what is wrong with my {task}?",
            "gold": f"label {test % 3}",
            "prediction": f"label {(test if right else test + 1) % 3}",
            "prompt_tokens": TOKENS[k] + test % 7,
            "cached_tokens": 10.0,
            "answer_tokens": 1.0,
        }
        for task in ("cards", "travel")
        for model in ("one", "two")
        for select, draws in (("random", 3), ("bm25", 1))
        for k in TOKENS
        for draw in range(draws)
        for test in range(40)
        for right in [(test * 7 + draw + k + len(model + select)) % 23 < 5 + k // 2 + (6 if select == "bm25" else 0)]
    ]
    return pd.DataFrame(rows)


def imported_page(folder: Path) -> Path:
    """The page of these predictions, imported into ``folder / "results"``."""
    predictions().to_csv(folder / "made.csv", index=False)
    import_predictions(folder / "made.csv", folder / "results")
    write_report(folder / "results", folder / "report.html")
    return folder / "report.html"
