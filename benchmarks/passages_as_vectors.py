"""Open questions with their passages as vectors: +0, +1, +5 and +10 (Chen et al. 2024, table 7).

    python benchmarks/passages_as_vectors.py --keep DIR [--vectors 0,1,5,10] [--data DIR]
                                 [--model gemma3-270m] [--train added] [--epochs 3] [--pooling mean]

Natural Questions. Every question has its 20 passages by BM25, as ``odqa/nq_open_bm25_pool`` has
them for the first 1,000; for the others they are found here in the same way, among the gold
passages and the paragraphs of SQuAD. 500 of the first 1,000 are judged, all others are learnt
from. Each +N is trained on the same rows in the same order, with the same seed and steps, and is
then asked three times: with its passages, with those of another question, and without. What is
done already under ``--keep`` is not done again.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TASK = """\
name: {name}
data:
  train: train.jsonl
  test: {test}.jsonl
  fields: {{question: question, answer: answers}}
  passages: {{column: ctxs, text: "{{title}}\\n{{text}}"}}
template:
  input: "Question: {{question}}"
  output: "Answer: {{answer}}"
stop: ["\\n"]
metrics: [exact_match, f1]
test: {{size: 500, seed: 43}}
pool: {{drop_longest: 0.01}}
max_answer_tokens: 24
"""

TEST, PASSAGES, OTHER = 500, 20, "other_passages"


def rows_of(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSON lines file, packed or not."""
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def words(text: str) -> list[str]:
    """Lower-cased runs of letters and digits, as the published passages were ranked."""
    return "".join(c if c.isascii() and c.isalnum() else " " for c in text.lower()).split()


def ranked(asked: list[str], passages: list[dict[str, str]]) -> list[list[dict[str, str]]]:
    """The passages that are most like each question."""
    from rank_bm25 import BM25Okapi

    index = BM25Okapi([words(f"{p['title']} {p['text']}") for p in passages], k1=0.9, b=0.4)
    best = (np.argsort(-index.get_scores(words(q)), kind="stable")[:PASSAGES] for q in asked)
    return [[passages[i] for i in places] for places in best]


def write_tasks(folder: Path, data: Path) -> None:
    """Both tasks: with each question's own passages, and with another question's."""
    if (folder / "own.yaml").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    known = list(rows_of(data / "odqa/nq_open_bm25_pool.jsonl.gz"))
    gold = list(rows_of(data / "odqa/nq_open_gold.jsonl.gz"))
    found = {(p["title"], p["text"]): p for row in (*gold, *known) for p in row["ctxs"]}
    passages = [{"title": t, "text": x} for t, x in found]
    seen = {row["id"] for row in known}
    others = [row for row in gold if row["id"] not in seen]
    best = ranked([row["question"] for row in others], passages)
    order = np.random.default_rng(43).permutation(len(known))
    test, kept = ([known[i] for i in part] for part in (order[:TEST], order[TEST:]))
    train = kept + [{**row, "ctxs": c} for row, c in zip(others, best, strict=True)]
    asked = {" ".join(words(row["question"])) for row in test}
    train = [row for row in train if " ".join(words(row["question"])) not in asked]
    swapped = [{**row, "ctxs": test[i - 1]["ctxs"]} for i, row in enumerate(test)]
    for name, rows in {"train": train, "test": test, "test_other": swapped}.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (folder / f"{OTHER}.yaml").write_text(TASK.format(name=OTHER, test="test_other"))
    (folder / "own.yaml").write_text(TASK.format(name="own", test="test"))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--vectors", default="0,1,5,10")
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--train", default="added")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--pooling", default="mean")
    parser.add_argument("--dtype", default="auto")
    asked = parser.parse_args()
    import pandas as pd
    from scipy.stats import bootstrap

    import icl_bench
    from icl_bench.quiet_libraries import hush_libraries
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep
    from icl_bench.training.vectors.spec import VectorSpec
    from icl_bench.training.vectors.training import VectorTraining

    hush_libraries()
    write_tasks(asked.keep, asked.data)
    engine = {"backend": "transformers", "dtype": asked.dtype}
    results = asked.keep / "results"

    def answered(task: str, model: str, attention: str) -> pd.DataFrame:
        file = str(asked.keep / f"{task}.yaml")
        spec = RunSpec(task=file, model=model, k="0", draws=1, attention=attention, **engine)
        Sweep.prepare(spec).run(results)
        frame = icl_bench.read(results).predictions
        mine = (frame["task"] == task) & (frame["attention"] == attention)
        name = Path(model).name
        return frame[mine & (frame["model"] == name)].set_index("test_id").sort_index()

    found: dict[str, pd.DataFrame] = {"the model as it is": answered("own", asked.model, "full")}
    how = f"{asked.train}-{asked.pooling}-{asked.epochs}"
    for count in map(int, asked.vectors.split(",")):
        train = asked.train if count else "all"
        out = asked.keep / f"{Path(asked.model).name}-{how}-{count}"
        spec = VectorSpec(
            task=str(asked.keep / "own.yaml"),
            model=asked.model,
            out=out,
            vectors=count,
            pooling=asked.pooling,
            train=train,
            epochs=asked.epochs,
            batch=asked.batch,
            learning_rate=asked.rate,
            decoder_rate=5e-5 if train == "all" else None,
            dtype=asked.dtype,
        )
        print(out.name, flush=True)
        training = VectorTraining.prepare(spec)
        if not training.folder.is_done():
            training.run(print)
        pattern = f"vectors:{count}" if count else "full"
        found[f"+{count}, {how}"] = answered("own", str(out), pattern)
        if count:
            found[f"+{count}, passages of others"] = answered(OTHER, str(out), pattern)
            found[f"+{count}, none"] = answered("own", str(out), "full")

    print("| | exact match | F1 |\n| --- | --- | --- |")
    for name, frame in found.items():
        cells = []
        for metric in ("exact_match", "f1"):
            scores = 100 * frame[metric].to_numpy(float)
            low, high = bootstrap((scores,), np.mean, rng=0).confidence_interval
            cells.append(f"{scores.mean():.1f} ({low:.1f} – {high:.1f})")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
