"""The tables of docs/replication.md on two small models, from the stored predictions.

    python benchmarks/headlines.py                  # prints the tables
    python benchmarks/headlines.py --pack RESULTS   # writes results/headlines-more.parquet

Every number is one of the program's findings on ``results/headlines.parquet`` and ``results/headlines-more.parquet``,
imported into one folder. A claim on growing k holds where the 95% intervals at the smallest and the largest k of the
row are apart in its direction, does not hold where they are apart in the other one, and cannot be told where they
overlap.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.all_findings import Findings, read_findings
from icl_bench.analysis.findings.attention import differences
from icl_bench.results.exporting import Origin, export_results, read_origins
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import EXPORT_META, finished_cells
from icl_bench.wording import DASH, percent

if TYPE_CHECKING:
    import pandas as pd

RESULTS = Path(__file__).resolve().parents[1] / "results"
GPU, CPU = RESULTS / "headlines.parquet", RESULTS / "headlines-more.parquet"

TASKS = {"trec": "TREC", "trec_fine": "TREC-fine", "nlu": "NLU", "banking77": "Banking-77", "clinic150": "Clinic-150"}
MODELS = {"gemma3-270m": "Gemma 3 270M", "smollm2-135m-instruct": "SmolLM2-135M", "llama2-80k": "Llama 2 80k"}
NAMES = {
    "bm25": "BM25",
    "bertscore": "BERTScore recall",
    "block:50,sink=1,local=1": "blocks of 50",
    "block:5,sink=1,local=1": "blocks of 5",
    "greedy": "held to the labels",
    "unconstrained": "free",
    "lora": "LoRA",
    "lora-paper": "LoRA, checkpoint chosen on the test rows",
}

KEPT = (
    *("task", "model", "select", "order", "attention", "k", "draw", "test_id", "gold", "prediction", "correct"),
    *("valid", "text", "queries", "label_space", "variant", "prompt_tokens", "demonstration_ids"),
)
"""Columns of an export that findings need."""


def pack(results: Path, out: Path = CPU) -> int:
    """Export a results folder in few bytes, with the facts and versions of each variant. Returns the size in bytes.

    Copied queries get the demonstrations of their cell, which an export lacks.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    export_results(results, out)
    table = pq.read_table(out)
    cells = {meta.cell: meta.demonstration_ids for _, meta in finished_cells(results) if meta.facts.queries}
    ids = [cells.get(cell) for cell in table["cell"].to_pylist()]
    table = table.append_column("demonstration_ids", pa.array(ids, pa.list_(pa.string())))
    table = table.select([name for name in KEPT if name in table.column_names])
    pq.write_table(table, out, compression="zstd", compression_level=19)
    return out.stat().st_size


def findings_on(folder: Path, files: Sequence[Path] = (GPU, CPU)) -> Findings:
    """The findings on files of predictions, which are imported into ``folder``."""
    for file in files:
        import_predictions(file, folder)
    return read_findings(folder)


def origins(file: Path = CPU) -> dict[str, Origin]:
    """Variant -> the facts and versions of what was computed on two cores."""
    import pyarrow.parquet as pq

    return read_origins(pq.read_schema(file).metadata[EXPORT_META])


def share(row: Mapping[str, Any], name: str, sign: str = "") -> str:
    """A share in percent, or with ``sign`` a difference in points, with its 95% interval."""
    low, high = percent(row["ci_low"], sign), percent(row["ci_high"], sign)
    return f"{percent(row[name], sign)} ({low} {'to' if sign else '–'} {high})"


def apart(points: pd.DataFrame) -> int:
    """1 where the interval at the largest k lies above that at the smallest, -1 where below, 0 where they overlap."""
    first, last = points.loc[points["k"].idxmin()], points.loc[points["k"].idxmax()]
    return int(last["ci_low"] > first["ci_high"]) - int(last["ci_high"] < first["ci_low"])


VERDICTS = {1: "holds", 0: "cannot be told", -1: "does not hold"}


def falls(points: pd.DataFrame) -> str:
    """Whether a claim holds that says that a value falls with k."""
    return VERDICTS[-apart(points)]


def rises(points: pd.DataFrame) -> str:
    """Whether a claim holds that says that a value rises with k."""
    return VERDICTS[apart(points)]


def rows(
    table: pd.DataFrame,
    value: str,
    ks: Sequence[int],
    judge: Callable[[pd.DataFrame], str],
    sign: str = "",
    by: str | None = None,
) -> Iterator[str]:
    """A row of each task and model: its values at these k, and what they say of a claim.

    ``by`` is a column with several curves of each task and model, whose values ``NAMES`` names.
    """
    table = table[table["k"].isin(ks)]
    for task, task_name in TASKS.items():
        for model, model_name in MODELS.items():
            curves = table[(table["task"] == task) & (table["model"] == model)]
            for name in NAMES if by else [None]:
                curve = curves if by is None else curves[curves[by] == name]
                if curve.empty:
                    continue
                at = {row["k"]: share(row, value, sign) for row in curve.to_dict("records")}
                cells = [task_name, model_name, *([NAMES[name]] if name else []), *(at.get(k, DASH) for k in ks)]
                yield f"| {' | '.join(cells)} | {judge(curve)} |"


def accuracy_rows(findings: Findings) -> list[str]:
    """Tables 2 and 3: accuracy by k and saturation, of the cells computed on a GPU."""
    curves, points = (
        table[(table["select"] == "random") & (table["order"] == "drawn") & ~table["variant"].isin(list(origins()))]
        for table in (findings.curves, findings.saturation)
    )
    saturated = {(row["task"], row["model"]): row for row in points.to_dict("records")}
    lines = []
    for task, task_name in TASKS.items():
        for model, model_name in MODELS.items():
            curve = curves[(curves["task"] == task) & (curves["model"] == model)]
            if curve.empty:
                continue
            at = {row["k"]: share(row, "score") for row in curve.to_dict("records")}
            point = saturated[task, model]
            likely = f"{point['k']:,} ({point['likely_low']:,.0f} – {point['likely_high']:,.0f})"
            tested = [at.get(k, DASH) for k in (1, 10, 100, 1000)]
            largest = f"{at[max(at)]}, k={max(at):,}"
            lines.append(f"| {' | '.join([task_name, model_name, *tested, largest, likely])} |")
    return lines


def retrieval_rows(findings: Findings) -> list[str]:
    """Figure 2: accuracy of retrieved demonstrations less that of random ones."""
    return list(rows(findings.retrieval_gain, "difference", (1, 10, 100), falls, "+", by="select"))


def order_rows(findings: Findings) -> list[str]:
    """Figure 4: the share of answers that another order of the same demonstrations changes."""
    table = findings.order_sensitivity
    return list(rows(table[table["select"] == "random"], "changed", (10, 100), falls))


def sorting_rows(findings: Findings) -> list[str]:
    """Figure 5: accuracy of demonstrations sorted by label less that of the same ones as drawn."""
    return list(rows(findings.sorting_penalty, "difference", (10, 100, 250), falls, "+"))


def copying_rows(findings: Findings) -> list[str]:
    """Table 5: accuracy on queries that are among the demonstrations."""
    return list(rows(findings.copying, "accuracy", (10, 100, 250), rises))


def judged(points: pd.DataFrame) -> str:
    """Which side of a comparison is better by its corrected test, at each k."""
    told = []
    for row in points.sort_values("k").to_dict("records"):
        better = "cannot be told" if row["advice"] is None else "better" if row["difference"] > 0 else "worse"
        told.append(f"{better} at {row['k']:,}")
    return ", ".join(told)


def block_rows(findings: Findings) -> list[str]:
    """Figures 8 and 9: accuracy of demonstrations in blocks less that under full attention."""
    table = differences(findings.attention_patterns)
    return list(rows(table, "difference", (100, 250), judged, "+", by="attention"))


def training_rows(findings: Findings) -> list[str]:
    """Figure 3: accuracy of a model trained on the examples less that of a prompt with the same ones."""
    return list(rows(findings.training_gain, "difference", (10, 100, 1000), judged, "+", by="select"))


def unconstrained_rows(findings: Findings) -> list[str]:
    """Figure 14: accuracy of free answers and of those held to the labels, and how many free ones are no label."""
    scoring = {variant: origin.facts.scoring for variant, origin in origins().items()}
    curves = findings.curves.assign(answers=findings.curves["variant"].astype(object).map(scoring))
    curves = curves[(curves["select"] == "random") & (curves["order"] == "drawn") & (curves["attention"] == "full")]
    return list(rows(curves, "score", (10, 100), rises, by="answers"))


TABLES: Mapping[str, Callable[[Findings], list[str]]] = {
    "accuracy": accuracy_rows,
    "retrieval": retrieval_rows,
    "order": order_rows,
    "sorting": sorting_rows,
    "copying": copying_rows,
    "unconstrained": unconstrained_rows,
    "blocks": block_rows,
    "training": training_rows,
}


def main() -> None:
    """Print every table, or pack a results folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pack", type=Path, metavar="RESULTS", help="a results folder to store in the repository")
    arguments = parser.parse_args()
    if arguments.pack:
        print(f"{CPU}: {pack(arguments.pack):,} bytes")
        return
    with TemporaryDirectory() as folder:
        findings = findings_on(Path(folder))
        for name, make in TABLES.items():
            print(f"{name}:", *make(findings), sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
