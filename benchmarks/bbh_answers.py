"""Makes a table for ``icl-bench import`` of the answers that the authors of BIG-Bench Hard stored.

    python benchmarks/bbh_answers.py data/bbh/outputs.parquet bbh.parquet
    icl-bench import bbh.parquet

The input has the columns ``task``, ``kind`` (``cot`` or ``direct``), ``target`` and ``text``, in the order of the
tasks' own rows. The answer is what follows the last "So the answer is ", without the period at its end, as the
authors read it (Suzgun et al. 2022, code-davinci-002 with three worked examples). docs/imports.md compares the
accuracies with the authors' own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

MARK = "So the answer is "


def table(outputs: pd.DataFrame) -> pd.DataFrame:
    """The columns of an import, one row an answer.

    ``test_id`` counts rows, as the task's file does: equal questions, which ``id`` does not tell apart, stay two rows.
    """
    number = outputs.groupby(["task", "kind"]).cumcount().astype(str)
    answers = outputs["text"].str.rpartition(MARK)[2].str.strip().str.removesuffix(".")
    return pd.DataFrame(
        {
            "task": "bbh_" + outputs["task"],
            "model": "code-davinci-002",
            "k": 3,
            "variant": outputs["kind"],
            "test_id": outputs["task"] + "-" + number,
            "gold": outputs["target"],
            "prediction": answers,
        }
    )


def main() -> None:
    """Read the stored answers, write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("outputs", type=Path, help="the stored answers, outputs.parquet")
    parser.add_argument("out", type=Path, help="the table to write, .parquet")
    arguments = parser.parse_args()
    table(pd.read_parquet(arguments.outputs)).to_parquet(arguments.out, index=False)


if __name__ == "__main__":
    main()
