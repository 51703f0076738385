"""The table of docs/rationales.md: what thoughts and their demonstrations gain, from the stored predictions.

    python benchmarks/thoughts.py                     # prints the table
    python benchmarks/thoughts.py --pack RESULTS ...  # writes results/thoughts.parquet from results folders

``results/thoughts.parquet`` is an export (``icl-bench export``) with a further column ``arm``: which demonstrations a
prompt shows. Intervals are those of the program's curves, over draws and test rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.curves import curves
from icl_bench.analysis.predictions import with_copies_as_one_draw
from icl_bench.metrics.scores import scored
from icl_bench.results.exporting import export_results
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import finished_cells, read_stored
from icl_bench.results.stored_meta import CellMeta
from icl_bench.wording import percent

if TYPE_CHECKING:
    import pandas as pd

STORED = Path(__file__).resolve().parents[1] / "results" / "thoughts.parquet"
TASKS = {
    "gsm8k": "GSM8K",
    "sports_understanding": "sports understanding",
    "web_of_lies": "web of lies",
    "hyperbaton": "hyperbaton",
    "movie_recommendation": "movie recommendation",
}
MODELS = {"smollm2-135m-instruct": "SmolLM2-135M-Instruct", "gemma3-270m": "Gemma 3 270M"}
ARMS = {
    "direct": "no thought",
    "people's": "rationales by people",
    "people's, longer": "rationales by people, up to 256 tokens",
    "own": "rationales by the model",
    "inputs": "inputs alone, then a thought",
}
"""Arm -> what the table calls it. A thought without demonstrations is the point k = 0 of ``people's``."""
LIMITS = {("gsm8k", "smollm2-135m-instruct"): 200}
"""The maximum number of tokens of a thought, by data and model; :data:`LIMIT` for all others."""
LIMIT, LONGER = 96, 256
"""The second one is an arm of its own."""

KEPT = (
    *("arm", "task", "model", "select", "order", "attention", "k", "draw", "test_id", "gold", "prediction", "correct"),
    *("valid", "numeric", "thought", "thought_tokens", "thought_truncated", "prompt_tokens", "cached_tokens"),
    *("answer_tokens", "variant", "cell"),
)


def arm_of(meta: CellMeta) -> str | None:
    """The arm of a cell; None if its thoughts have another limit than the table's."""
    facts = meta.facts
    name = base_of(meta.spec.task)
    if facts.thoughts is None:
        return "direct"
    limit = facts.thoughts["limit"]
    if limit not in (LIMITS.get((name, meta.spec.model), LIMIT), LONGER):
        return None
    if facts.perturbation is not None:
        return "inputs"
    arm = "own" if facts.rationales is not None else "people's"
    return f"{arm}, longer" if limit == LONGER else arm


def base_of(task: str) -> str:
    """The name of the data behind a task."""
    return task.removeprefix("bbh_").removesuffix("_worked").removesuffix("_answers").removesuffix("_thoughts")


def pack(folders: Sequence[Path], out: Path = STORED) -> int:
    """Export the cells of results folders into one file. Returns the number of predictions."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    tables = []
    with TemporaryDirectory() as place:
        for number, folder in enumerate(folders):
            file = Path(place) / f"{number}.parquet"
            export_results(folder, file)
            arms = {meta.cell: arm_of(meta) for _, meta in finished_cells(folder)}
            table = pq.read_table(file)
            table = table.append_column("arm", pa.array([arms[cell] for cell in table["cell"].to_pylist()]))
            table = table.filter(pc.is_valid(table["arm"]))
            tables.append(table.select([name for name in KEPT if name in table.column_names]))
    joined = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    pq.write_table(joined.replace_schema_metadata(None), out, compression="zstd", compression_level=19)
    return len(joined)


def points(folder: Path, file: Path = STORED) -> pd.DataFrame:
    """One row for each base task, model, arm and k: score with its interval, and means of tokens.

    ``file`` is imported into ``folder``.
    """
    import_predictions(file, folder)
    stored = read_stored(folder)
    frame = scored(stored.predictions, first=stored.first_scores)
    frame["variant"] = frame["arm"]
    frame["perturbation"] = None
    of_curve = curves(with_copies_as_one_draw(frame))
    means = frame.assign(
        base=frame["task"].map(base_of).astype(str),
        computed=frame["prompt_tokens"] - frame["cached_tokens"],
        written=frame["answer_tokens"] + frame["thought_tokens"].fillna(0),
    )
    keys = ["base", "model", "arm", "k"]
    of_tokens = means.groupby(keys, observed=True)[["written", "computed", "thought_truncated"]].mean()
    of_curve = of_curve.assign(base=of_curve["task"].map(base_of).astype(str), arm=of_curve["variant"])
    return of_curve.join(of_tokens, on=keys)


def table(found: pd.DataFrame) -> list[str]:
    """The rows of the page's table."""
    lines = []
    for base, task in TASKS.items():
        for name, model in MODELS.items():
            for arm, shown in ARMS.items():
                of = found[(found["base"] == base) & (found["model"] == name) & (found["arm"] == arm)].sort_values("k")
                if len(of):
                    cells = [task, model, shown, *(_cell(of, k) for k in (0, 3, 4, 16, 64))]
                    cells += [_span(of["computed"]), _span(of["written"])]
                    lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cell(of: pd.DataFrame, k: int) -> str:
    here = of[of["k"] == k]
    if here.empty:
        return ""
    row: Any = here.iloc[0]
    return f"{percent(row['score'])} ({percent(row['ci_low'])} to {percent(row['ci_high'])})"


def _span(values: pd.Series[float]) -> str:
    low, high = values.min(), values.max()
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"


def main() -> None:
    """Pack, or print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pack", type=Path, nargs="+", metavar="RESULTS")
    arguments = parser.parse_args()
    if arguments.pack:
        print(f"{pack(arguments.pack):,} predictions, {STORED.stat().st_size:,} bytes")
        return
    with TemporaryDirectory() as folder:
        print("\n".join(table(points(Path(folder)))))


if __name__ == "__main__":
    main()
