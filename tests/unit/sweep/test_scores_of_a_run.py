"""The scores that a finished run stores are those of the answers that stand beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.fakes import FREE_TEXT, FakeBackend, model, planned, runner, small_tokenizer, write_rows, write_task

from icl_bench.backends.interface import Answer, Decoding
from icl_bench.metrics.interface import Measure, Metric
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.reading import read_results
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task

GOLD = (
    "Amanda baked cookies and will bring some tomorrow.",
    "The flight is late.",
    "Tom plans a trip to Rome with Kate in May.",
    "Hannah needs the number.",
    "They meet at seven.",
)
SAID = (
    "Amanda baked some cookies.",
    "The late flight is cancelled and they wait.",
    "Kate plans trips to Rome.",
    "Nobody knows anything.",
    "They meet at seven.",
)


class Writer(FakeBackend):
    """Has a text for each query, which ends in its number; the last query is answered first."""

    def answer(self, prompts: PromptSet, todo: Sequence[int], *more: Any) -> Iterator[list[Answer]]:
        yield from super().answer(prompts, todo[::-1], *more)

    def _answered(self, prompts: PromptSet, index: int, decoding: Decoding) -> Answer:
        asked = prompts.text(index).splitlines()[-2]
        return Answer(index, 0, 3, text=SAID[int(asked.split()[-1])])


class GoldWords(Metric):
    """The share of the gold text's words among the words of both: not that of the answer's."""

    answers = "text"
    measures = (Measure("gold_words", "gold_words", "gold words"),)

    def notes_on_answers(self) -> Sequence[str]:
        return ["gold words were counted"]

    def score(self, gold: Sequence[str], said: Sequence[str]) -> Mapping[str, np.ndarray]:
        counts = [(len(g.split()), len(s.split())) for g, s in zip(gold, said, strict=True)]
        return {"gold_words": np.array([g / (g + s) for g, s in counts])}


def summaries(folder: Path) -> TokenizedTask:
    path = write_task(folder, **FREE_TEXT)
    for name, count in (("train", 20), ("test", len(GOLD))):
        rows = [{"text": f"{name} {n}", "label": GOLD[n % len(GOLD)]} for n in range(count)]
        write_rows(folder / f"{name}.jsonl", rows)
    tokenizer: Any = small_tokenizer()
    return TokenizedTask(load_data(load_task(path)), model(), tokenizer)


@pytest.fixture
def results(tmp_path: Path) -> pd.DataFrame:
    task = summaries(tmp_path / "task")
    task.metrics.append(GoldWords())
    runner(planned(task, "2", draws=1), tmp_path / "results", Writer()).run()
    return read_results(tmp_path / "results")


def test_stored_rouge_is_rouge_scores_f1_of_the_stored_answer_against_the_stored_gold(results):
    from rouge_score.rouge_scorer import RougeScorer

    kinds = ["rouge1", "rouge2", "rougeL"]
    scorer = RougeScorer(kinds, use_stemmer=True)
    assert sorted(results["gold"]) == sorted(GOLD)
    for row in results.to_dict("records"):
        assert row["prediction"] == SAID[GOLD.index(row["gold"])]
        wanted = scorer.score(target=row["gold"], prediction=row["prediction"])
        assert {kind: row[kind] for kind in kinds} == {kind: pytest.approx(wanted[kind].fmeasure) for kind in kinds}


def test_what_a_metric_says_of_the_answers_is_told_once(tmp_path: Path):
    task = summaries(tmp_path / "task")
    task.metrics.append(GoldWords())
    outcome = runner(planned(task, "1,2", draws=1), tmp_path / "results", Writer()).run()
    assert outcome.notes == ["gold words were counted"]


def test_stored_rouge_is_what_is_counted_by_hand(results):
    """ "Amanda baked cookies and will bring some tomorrow" (8 words), "Amanda baked some cookies" (4).

    Four words in common: precision 4/4, recall 4/8. Bigrams in common: one ("Amanda baked") of 3
    and 7. Longest common subsequence: "Amanda baked some" or "... cookies", 3.
    """
    row = results.set_index("gold").loc[GOLD[0]]
    assert row["rouge1"] == pytest.approx(2 * 4 / (4 + 8))
    assert row["rouge2"] == pytest.approx(2 * 1 / (3 + 7))
    assert row["rougeL"] == pytest.approx(2 * 3 / (4 + 8))
    same, other = (results.set_index("gold").loc[GOLD[n]] for n in (4, 3))
    assert same[["rouge1", "rouge2", "rougeL"]].tolist() == [1, 1, 1]
    assert other[["rouge1", "rouge2", "rougeL"]].tolist() == [0, 0, 0]


def test_a_metric_is_given_the_gold_answers_first_and_what_was_said_second(results):
    """ROUGE's F1 is the same either way; the share of the gold text's words is not."""
    of = results.set_index("gold")["gold_words"]
    # 4 words of gold beside 8 that were said, and 8 beside 4
    assert of[GOLD[1]] == pytest.approx(4 / 12)
    assert of[GOLD[0]] == pytest.approx(8 / 12)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([50.0, 0, 0, 0, 0], "shares from 0 to 1 .* one is 50"),
        ([np.nan, 0, 0, 0, 0], "no gaps.* one is nan"),
        ([-2.0, 0, 0, 0, 0], "one is -2"),
        ([0.5], r"5 answers have scores of shape \(1,\)"),
    ],
)
def test_a_metric_whose_scores_are_no_shares_of_1_fails_the_cell(values: list[float], reason: str, tmp_path: Path):
    """A curve would show 100% for a percentage."""

    class Percent(GoldWords):
        def score(self, gold: Sequence[str], said: Sequence[str]) -> Mapping[str, np.ndarray]:
            return {"gold_words": np.array(values)}

    task = summaries(tmp_path / "task")
    task.metrics.append(Percent())
    outcome = runner(planned(task, "2", draws=1), tmp_path / "results", Writer()).run()
    (said,) = outcome.failed.values()
    assert re.search(f"metric gold_words: .*{reason}", said), said
