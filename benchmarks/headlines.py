"""The tables of docs/replication.md on two small models, and that of blocks in docs/attention.md, from the stored
predictions.

    python benchmarks/headlines.py                       # prints the tables
    python benchmarks/headlines.py --published FILE      # and that of the paper's published predictions
    python benchmarks/headlines.py --pack RESULTS FILE   # writes FILE, like results/headlines-sorted.parquet
    python benchmarks/headlines.py --draw sorting-trec   # writes docs/headlines-sorting-trec.svg

Every number is one of the program's findings on ``results/headlines.parquet``, ``results/headlines-more.parquet``,
``results/headlines-float32.parquet`` and ``results/headlines-half-labels.parquet``, imported into one folder. Blocks
are those of ``results/headlines-blocks.parquet`` alone, curves sorted by label those of
``results/headlines-sorted.parquet`` where it has them, summaries those of ``results/headlines-samsum.parquet``, and
trainings those of ``results/headlines-finetuned.parquet`` beside the prompts of ``results/headlines.parquet``. A
claim on growing k holds where the 95% intervals at the smallest and the largest k of the row are apart in its
direction, does not hold where they are apart in the other one, and cannot be determined where they overlap.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pandas as pd

from icl_bench.analysis.all_findings import Findings, read_findings
from icl_bench.analysis.statistics.paired import NO_CHANGE
from icl_bench.results.exporting import export_results
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import EXPORT_META, finished_cells
from icl_bench.results.stored_meta import Origin, read_origins
from icl_bench.text_files import write_whole
from icl_bench.wording import DASH, p_value, percent

RESULTS = Path(__file__).resolve().parents[1] / "results"
DOCS = RESULTS.with_name("docs")
GPU, CPU = RESULTS / "headlines.parquet", RESULTS / "headlines-more.parquet"
FLOAT32 = RESULTS / "headlines-float32.parquet"
"""More copies and free answers, computed on two cores in float32."""
HALF = RESULTS / "headlines-half-labels.parquet"
"""Tasks with a random half of their labels, computed on two cores."""
SORTED = RESULTS / "headlines-sorted.parquet"
"""Three to ten draws in the order drawn and sorted by label, computed on two cores in float32: a table of its own, as
other draws are in bfloat16.
"""
FINETUNED = RESULTS / "headlines-finetuned.parquet"
"""LoRA and full fine-tuning on 1,000 examples, computed on two cores in float32; the prompts are those of ``GPU``."""
SAMSUM = RESULTS / "headlines-samsum.parquet"
"""Summaries of conversations, computed on two cores in float32."""
BLOCKS = RESULTS / "headlines-blocks.parquet"
"""Full attention and blocks, computed on two cores: the table of docs/attention.md."""

TASKS = {
    "trec": "TREC",
    "trec_fine": "TREC-fine",
    "nlu": "NLU",
    "banking77": "Banking-77",
    "clinic150": "Clinic-150",
    "samsum": "SAMSum",
}
MODELS = {"gemma3-270m": "Gemma 3 270M", "smollm2-135m-instruct": "SmolLM2-135M", "llama2-80k": "Llama 2 80k"}
SMALL = ("gemma3-270m", "smollm2-135m-instruct")
NAMES = {
    "bm25": "BM25",
    "bertscore": "BERTScore recall",
    "greedy": "constrained to the labels",
    "unconstrained": "free",
    "lora": "LoRA",
    "full": "full fine-tuning",
}

KEPT = (
    *("task", "model", "select", "order", "attention", "k", "draw", "test_id", "gold", "prediction", "correct"),
    *("valid", "text", "queries", "label_space", "variant", "prompt_tokens", "demonstration_ids"),
    *("truncated", "rouge1", "rouge2", "rougeL", "bertscore"),
)
"""Columns of an export that findings need."""


def pack(results: Path, out: Path) -> int:
    """Export a results folder in few bytes, with the facts and versions of each variant. Returns the size in bytes.

    Copied queries get the demonstrations of their cell, which an export lacks; retrieved ones are left out.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    export_results(results, out)
    table = pq.read_table(out)
    cells = {meta.cell: meta.demonstration_ids for _, meta in finished_cells(results) if meta.facts.queries}
    ids = [cells.get(cell) for cell in table["cell"].to_pylist()]
    if "demonstration_ids" in table.column_names:
        table = table.drop_columns("demonstration_ids")
    table = table.append_column("demonstration_ids", pa.array(ids, pa.list_(pa.string())))
    table = table.select([name for name in KEPT if name in table.column_names])
    pq.write_table(table, out, compression="zstd", compression_level=19)
    return out.stat().st_size


def findings_on(folder: Path, files: Sequence[Path] = (GPU, CPU, FLOAT32, HALF), task: str | None = None) -> Findings:
    """The findings on files of predictions, or on those of a task. The files are imported into ``folder``."""
    for file in files:
        import_predictions(file, folder)
    return read_findings(folder, task=task)


def origins(file: Path = CPU) -> dict[str, Origin]:
    """Variant -> the facts and versions of what was computed on two cores."""
    import pyarrow.parquet as pq

    return read_origins(pq.read_schema(file).metadata[EXPORT_META])


def share(row: Mapping[Any, Any], name: str, sign: str = "") -> str:
    """A share in percent, or with ``sign`` a difference in points, with its 95% interval."""
    low, high = percent(row["ci_low"], sign), percent(row["ci_high"], sign)
    return f"{percent(row[name], sign)} ({low} to {high})"


class Row(NamedTuple):
    """One curve: a row of a table on the page."""

    task: str
    model: str
    cells: Sequence[str]
    """Between the model and the verdict."""
    verdict: str

    def __str__(self) -> str:
        return f"| {' | '.join([TASKS[self.task], MODELS[self.model], *self.cells, self.verdict])} |"


HOLDS, OPEN, FAILS = "holds", "cannot be determined", "does not hold"


Range = tuple[float, float]


def apart(first: Range, last: Range, *, down: bool) -> str:
    """What two ranges say of "the last is lower", or of "the last is higher"."""
    if last[0] > first[1]:
        return FAILS if down else HOLDS
    if last[1] < first[0]:
        return HOLDS if down else FAILS
    return OPEN


def changes(points: pd.DataFrame, *, down: bool) -> str:
    """What the intervals at the smallest and at the largest k say of "falls with k", or of "rises with k"."""
    of_k = points.sort_values("k")
    first, last = (tuple(of_k[["ci_low", "ci_high"]].iloc[place]) for place in (0, -1))
    return apart(first, last, down=down)


FIRST = 10
"""The smallest k that a claim about accuracy or order is judged by, on small models and on the paper's own."""


falls, rises = partial(changes, down=True), partial(changes, down=False)


def curves(table: pd.DataFrame, by: str | None = None) -> Iterator[tuple[str, str, list[str], pd.DataFrame]]:
    """Task, model, the name of what ``by`` tells apart (none without it), and the points of each curve."""
    for task, model in product(TASKS, MODELS):
        of_model = table[(table["task"] == task) & (table["model"] == model)]
        for name in NAMES if by else [None]:
            points = of_model[of_model[by] == name] if by else of_model
            if len(points):
                yield task, model, [NAMES[name]] if name else [], points


def by_k(
    table: pd.DataFrame,
    value: str,
    ks: Sequence[int],
    judge: Callable[[pd.DataFrame], str],
    sign: str = "",
    by: str | None = None,
) -> list[Row]:
    """Rows of the values at these k, and what they say of a claim."""
    made = []
    for task, model, name, points in curves(table[table["k"].isin(ks)], by):
        at = {row["k"]: share(row, value, sign) for row in points.to_dict("records")}
        made.append(Row(task, model, [*name, *(at.get(k, DASH) for k in ks)], judge(points)))
    return made


def drawn(table: pd.DataFrame) -> pd.DataFrame:
    """Random demonstrations as drawn, under full attention."""
    return table[(table["select"] == "random") & (table["order"] == "drawn") & (table["attention"] == "full")]


def accuracy(findings: Findings) -> list[Row]:
    """Tables 2 and 3: accuracy by k and saturation, of the cells computed on a GPU."""
    points = {(row["task"], row["model"]): row for row in on_gpu(findings.saturation).to_dict("records")}
    made = []
    for task, model, _, curve in curves(on_gpu(findings.curves)):
        at = {row["k"]: share(row, "score") for row in curve.to_dict("records")}
        point = points[task, model]
        cells = [*(at.get(k, DASH) for k in (1, 10, 100, 1000)), f"{at[max(at)]}, k={max(at):,}", saturated(point)]
        made.append(Row(task, model, cells, rises(curve[curve["k"] >= FIRST])))
    return made


def on_gpu(table: pd.DataFrame) -> pd.DataFrame:
    """Random demonstrations of the cells computed on a GPU."""
    table = drawn(table)
    return table[~table["variant"].isin([*origins(), *origins(FLOAT32), *origins(HALF)])]


def retrieval(findings: Findings) -> list[Row]:
    """Figure 2: accuracy of retrieved demonstrations minus that of random ones."""
    return by_k(findings.retrieval_gain, "difference", (1, 10, 100, 250), falls, "+", by="select")


def order(findings: Findings) -> list[Row]:
    """Figure 4: the share of answers that another order of the same demonstrations changes."""
    return by_k(reordered(findings), "changed", (10, 100), falls)


def reordered(findings: Findings) -> pd.DataFrame:
    """The share of answers that another order of random demonstrations changes."""
    table = findings.order_sensitivity
    return with_most_draws(table[table["select"] == "random"])


def with_most_draws(table: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Of several files' points of one task, model and k, the one with most draws; of as many that of ``FLOAT32``, where
    no draw lacks an order.
    """
    points = ["task", "model", *by, "k"]
    whole = table["variant"].isin(list(origins(FLOAT32)))
    ordered = table.assign(whole=whole).sort_values(["draws", "whole"], kind="stable").drop(columns="whole")
    return ordered.drop_duplicates(points, keep="last").sort_index()


def sorting(findings: Findings) -> list[Row]:
    """Figure 5: accuracy of demonstrations sorted by label minus that of the same ones as drawn.

    A curve that ``SORTED`` has is that of its draws.
    """
    more = sorted_in_float32()
    known = set(zip(more["task"], more["model"], strict=True))
    others = findings.sorting_penalty
    kept = [pair not in known for pair in zip(others["task"], others["model"], strict=True)]
    return by_k(pd.concat([others[kept], more]), "difference", (10, 100, 250), falls, "+")


@cache
def sorted_in_float32() -> pd.DataFrame:
    """The differences of ``SORTED``."""
    with TemporaryDirectory() as folder:
        return findings_on(Path(folder), (SORTED,)).sorting_penalty


def copying(findings: Findings) -> list[Row]:
    """Table 5: accuracy on queries that are among the demonstrations."""
    return by_k(findings.copying, "accuracy", (10, 100), partial(reaches, least=PAPERS_COPIES))


PAPERS_COPIES = 0.93
"""The least that the paper's table 5 has with 5 demonstrations or more."""


def reaches(points: pd.DataFrame, least: float) -> str:
    """What the intervals at all k say of "at least this much"."""
    if (points["ci_low"] >= least).all():
        return HOLDS
    return FAILS if (points["ci_high"] < least).any() else OPEN


def unconstrained(findings: Findings) -> list[Row]:
    """Figure 14: accuracy of constrained and of free answers, of the cells computed on two cores."""
    computed_here = {**origins(), **origins(FLOAT32)}
    scoring = {variant: origin.facts.scoring for variant, origin in computed_here.items()}
    table = drawn(findings.curves)
    table = with_most_draws(table.assign(answers=table["variant"].astype(object).map(scoring)), "answers")
    free = table.loc[table["answers"] == "unconstrained", ["task", "model"]].drop_duplicates()
    table = table.merge(free, on=["task", "model"])
    return by_k(table, "score", (10, 100), rises, by="answers")


def half_labels(findings: Findings) -> list[Row]:
    """Table 4: accuracy by k and saturation with all labels and with half of them.

    The row of half of the labels has the verdict: whether accuracy saturates earlier than with all labels.
    """
    halves, made = list(origins(HALF)), []
    for task, model in product(TASKS, SMALL):
        points, curves_of = (
            table[(table["task"] == task) & (table["model"] == model)]
            for table in map(drawn, (findings.saturation, findings.curves))
        )
        half = points[points["variant"].isin(halves)]
        if half.empty:
            continue
        before, after = on_gpu(points).iloc[0], half.iloc[0]
        verdict = earlier(*((point["likely_low"], point["likely_high"]) for point in (before, after)))
        for name, point, of_k, said in (
            ("all", before, on_gpu(curves_of), DASH),
            ("a random half", after, curves_of[curves_of["variant"].isin(halves)], verdict),
        ):
            at = {row["k"]: share(row, "score") for row in of_k.to_dict("records")}
            made.append(Row(task, model, [name, *(at.get(k, DASH) for k in (10, 100, 1000)), saturated(point)], said))
    return made


@cache
def finetuned() -> pd.DataFrame:
    """The differences of ``FINETUNED`` to the prompts of ``GPU``. Other files have prompts with half of the labels."""
    with TemporaryDirectory() as folder:
        return findings_on(Path(folder), (GPU, FINETUNED)).training_gain


def training(_: Findings) -> list[Row]:
    """Figure 3: accuracy of fine-tuning minus that of a prompt of as many examples."""
    made = []
    for task, model, name, points in curves(finetuned(), by="select"):
        for row in points.to_dict("records"):
            limits = {"ci_low": row["ci_low"], "ci_high": row["ci_high"]}
            means = [percent(row[side]) for side in ("base_mean", "mean")]
            gain = share({**limits, "difference": row["difference"]}, "difference", "+")
            cells = [*name, f"{row['k']:,}", f"{row['draws']}", *means, gain, p_value(row["p_holm"])]
            made.append(Row(task, model, cells, apart((0, 0), (row["ci_low"], row["ci_high"]), down=False)))
    return made


def summaries(_: Findings) -> list[Row]:
    """Table 2 and section 3.2: ROUGE-1 of generated summaries."""
    with TemporaryDirectory() as folder:
        table = drawn(findings_on(Path(folder), (SAMSUM,)).curves)
    return by_k(table, "score", (1, 10, 50), lambda points: rises(points[points["k"] >= FIRST]))


def blocks(findings: Findings) -> list[str]:
    """Figures 8 and 9: accuracy with full attention and with blocks, and the part of full attention's accuracy."""
    table = findings.attention_patterns.sort_values(["task", "size", "k"], ascending=[False, False, True])
    made = []
    for row in table[table["kind"] == "block"].to_dict("records"):
        full = row["score"] - row["difference"]
        limits = {"ci_low": row["difference_low"], "ci_high": row["difference_high"]}
        cells = [TASKS[row["task"]], f"{row['size']:.0f}", f"{row['k']:,}", percent(full), share(row, "score")]
        tested = "nothing differs" if row["withheld"] == NO_CHANGE else p_value(row["p_holm"])
        cells += [share({**row, **limits}, "difference", "+"), tested, f"{row['recovered']:.0%}"]
        made.append(f"| {' | '.join(cells)} |")
    return made


earlier = partial(apart, down=True)
"""Whether the second of two ranges of a saturation point is below the first."""


def saturated(point: Mapping[Any, Any] | pd.Series[Any]) -> str:
    """A saturation point, with the range of 90% of the resamples."""
    return f"{point['k']:,} ({point['likely_low']:,.0f} to {point['likely_high']:,.0f})"


class Claim(NamedTuple):
    """A claim of the paper."""

    text: str
    paper: str
    """What the paper says, and where."""
    table: Callable[[Findings], list[Row]]


CLAIMS: Mapping[str, Claim] = {
    "Does accuracy rise with hundreds of demonstrations?": Claim(
        "accuracy rises with more demonstrations",
        "up to 1,000 and more (figure 1); 95% of the best accuracy takes 20 to 100 on TREC, 750 and more on "
        "Clinic-150 (table 3)",
        accuracy,
    ),
    "Does retrieval's gain shrink with k?": Claim(
        "retrieval gains less with more demonstrations",
        "+51.5 points at k=1, +4.9 at 1,500 on Banking-77 (section 3.2)",
        retrieval,
    ),
    "Does order matter less with k?": Claim(
        "another order changes fewer answers with more demonstrations",
        "at k=1,000 less than half of the share at k=10 (figure 4)",
        order,
    ),
    "Does sorting by label hurt more with k?": Claim(
        "sorting by label costs more accuracy with more demonstrations",
        "-25.7 points at k=1,169 on Clinic-150 with Llama 2 32k (figure 5)",
        sorting,
    ),
    "Does the model repeat the answers in its prompt?": Claim(
        "at least 93% of the queries that are also demonstrations are answered right",
        "93.0 to 98.9% from k=5 on (table 5)",
        copying,
    ),
    "Does the trend need constrained answers?": Claim(
        "accuracy rises with k, with constrained and with free answers",
        "free answers are worse, with the same trend (figure 14)",
        unconstrained,
    ),
    "Do summaries improve with more demonstrations?": Claim(
        "summaries improve with more demonstrations",
        "up to at least 250 (section 3.2); BERTScore of 81 to 82 with models of 32,000 tokens and more (table 2)",
        summaries,
    ),
    "Does half of the labels saturate earlier?": Claim(
        "with half of the labels, accuracy saturates at fewer demonstrations",
        "on the tasks with most labels, but not by half (table 4)",
        half_labels,
    ),
    "Does fine-tuning pass the prompt?": Claim(
        "fine-tuning on 1,000 examples is better than a prompt of them",
        "full fine-tuning is best on most tasks, with more examples than fit the window; LoRA on most tasks never "
        "exceeds the prompt (figure 3)",
        training,
    ),
}
"""Heading on the page -> the claim that its table is about."""


def counted(rows: Sequence[Row]) -> str:
    """How many rows have which verdict."""
    counts = Counter(row.verdict for row in rows if row.verdict != DASH)
    return ", ".join(f"{word} in {counts[word]}" for word in (HOLDS, OPEN, FAILS) if counts[word]) or DASH


def claims(findings: Findings) -> list[str]:
    """A row of each claim: the verdicts on each model."""
    lines = []
    for claim in CLAIMS.values():
        made = claim.table(findings)
        verdicts = [counted([row for row in made if row.model == model]) for model in SMALL]
        lines.append(f"| {claim.text} | {claim.paper} | {' | '.join(verdicts)} |")
    return lines


def published(findings: Findings) -> list[str]:
    """The same claims on the published predictions of Llama 2 80k, from the smallest k of a claim to the largest."""
    retrieved = findings.retrieval_gain[findings.retrieval_gain["select"] == "bm25"]
    changed = reordered(findings)
    kinds = [
        ("accuracy", drawn(findings.curves), "score", "", FIRST, rises),
        ("accuracy gain of BM25", retrieved, "difference", "+", 1, falls),
        ("answers changed by another order", changed, "changed", "", FIRST, falls),
        ("accuracy sorted by label minus as drawn", findings.sorting_penalty, "difference", "+", 1500, None),
    ]
    lines = []
    for what, table, value, sign, least, judge in kinds:
        for task, _, _, points in curves(table[(table["model"] == "llama2-80k") & (table["k"] >= least)]):
            ends = points[points["k"].isin([least, points["k"].max()])].sort_values("k")
            told = [f"{share(row, value, sign)}, k={row['k']:,}" for row in ends.to_dict("records")]
            verdict = judge(ends) if judge else "none (one k)"
            lines.append(f"| {TASKS[task]} | {what} | {' | '.join([*[DASH] * (2 - len(told)), *told])} | {verdict} |")
    return lines


def order_beside_first(findings: Findings) -> str:
    """How far the share that another order changes falls on the published predictions, in words."""
    table = reordered(findings)
    told, halved = [], []
    for task, _, _, points in curves(table[(table["model"] == "llama2-80k") & (table["k"] >= FIRST)]):
        at = dict(zip(points["k"], points["changed"], strict=True))
        left = at[max(at)] / at[FIRST]
        told.append(f"{left:.0%} on {TASKS[task]} (k={max(at):,})")
        halved += [TASKS[task]] if left < 1 / 2 else []
    return (
        f"The share at the largest k, relative to that at k={FIRST}, is {' and '.join(told)}: less than half only on "
        f"{' and '.join(halved)}."
    )


FIGURES = {"accuracy-trec-gemma3-270m": (GPU,), "accuracy-banking77-gemma3-270m": (GPU,), "sorting-trec": (SORTED,)}
"""Chart of the report -> the predictions that it is of."""


def draw(names: Sequence[str]) -> Iterator[Path]:
    """Write charts of the report beside the page, as ``headlines-NAME.svg``."""
    import vl_convert

    from icl_bench.report.charts import VEGA_LITE
    from icl_bench.report.figures import figure
    from icl_bench.report.naming import Naming
    from icl_bench.report.sections.index import sections

    for name in names:
        section, task = name.split("-")[:2]
        with TemporaryDirectory() as folder:
            findings = findings_on(Path(folder), FIGURES[name], task)
            found = {one.name: one for one in sections(findings, Naming.of(findings.summary))[0]}[section]
            panel = next(panel for panel in found.panels if panel.name == name)
            svg = vl_convert.vegalite_to_svg(figure(panel, found.short), vl_version=VEGA_LITE)
        path = DOCS / f"headlines-{name}.svg"
        write_whole(path, svg.encode())
        yield path


def main() -> None:
    """Print every table, or pack a results folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--pack", type=Path, nargs=2, metavar=("RESULTS", "FILE"), help="a results folder to store in the repository"
    )
    parser.add_argument("--published", type=Path, metavar="FILE", help="the published predictions, for their table")
    parser.add_argument("--draw", choices=FIGURES, nargs="+", metavar="NAME", help="charts to write into docs/")
    arguments = parser.parse_args()
    if arguments.pack:
        results, out = arguments.pack
        print(f"{out}: {pack(results, out):,} bytes")
        return
    if arguments.draw:
        print(*draw(arguments.draw), sep="\n")
        return
    with TemporaryDirectory() as folder:
        findings = findings_on(Path(folder))
        for heading, claim in CLAIMS.items():
            print(f"## {heading}", *claim.table(findings), sep="\n", end="\n\n")
        print(*claims(findings), sep="\n")
    with TemporaryDirectory() as folder:
        print("", "## Blocks (docs/attention.md)", *blocks(findings_on(Path(folder), (BLOCKS,))), sep="\n")
    if arguments.published:
        with TemporaryDirectory() as folder:
            findings = findings_on(Path(folder), [arguments.published])
            print("", *published(findings), "", order_beside_first(findings), sep="\n")


if __name__ == "__main__":
    main()
