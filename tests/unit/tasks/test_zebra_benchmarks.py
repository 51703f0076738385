"""The short benchmarks of Zebra's table 5 as files of lm-evaluation-harness: they run, on rows of the hub's shape."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.in_process import said
from support.models import tiny_checkpoint

from icl_bench.prompts.rendering import prompt_text
from icl_bench.tasks.answers import extracted
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task, tasks_of

FILES = Path(__file__).parents[3] / "benchmarks" / "lm_eval"
CHOICES = {"text": ["a cat", "a dog", "a cow", "a hen", "a pig"], "label": list("ABCDE")}
HELLASWAG = {
    "activity_label": "Baking",
    "ctx_a": "[header] How to bake [title] Mix  flour.",
    "ctx_b": "the Cook",
    "endings": [" stirs [step] it.", "sings [title] a song", "runs", "[substeps] sleeps"],
    "label": "1",
}
ROWS: dict[str, tuple[dict[str, Any], str, str]] = {
    "piqa": ({"goal": "open a jar", "sol1": "twist it", "sol2": "eat it", "label": 1}, "open a jar\nAnswer:", "eat it"),
    "siqa": (
        {"context": "Ann ran.", "question": "Why?", "answerA": "late", "answerB": "fun", "answerC": "no", "label": "2"},
        "Q: Ann ran. Why?\nA:",
        "fun",
    ),
    "hellaswag": (HELLASWAG, "", ""),
    "winogrande": (
        {"sentence": "The cup did not fit the bag as _ was big.", "option1": "bag", "option2": "cup", "answer": "2"},
        "The cup did not fit the bag as",
        "cup was big.",
    ),
    "arc_easy": ({"question": "Who barks?", "choices": CHOICES, "answerKey": "B"}, "Who barks?\nAnswer:", "a dog"),
    "arc_challenge": ({"question": "Who moos?", "choices": CHOICES, "answerKey": "C"}, "Who moos?\nAnswer:", "a cow"),
    "openbookqa": ({"question_stem": "Eggs are of", "choices": CHOICES, "answerKey": "D"}, "Eggs are of", "a hen"),
    "commonsense_qa": ({"question": "Pork?", "choices": CHOICES, "answerKey": "E"}, "Pork?\nAnswer:", "a pig"),
    "nq_open": ({"question": "who won", "answer": ["Ann", "Ann B"]}, "Question: who won?\nAnswer:", "ann"),
    "triviaqa": ({"question": "Who won", "answer": {"aliases": ["Bo", "B."]}}, "Question: Who won?\nAnswer:", "bo"),
}
"""Task -> a row as the hub has it, the end of its prompt, and the right answer (free ones in small letters)."""


def named(name: str) -> str:
    """A task's name in results, and of its folder of data."""
    return f"{'zebra_openqa' if name in ('nq_open', 'triviaqa') else 'zebra_commonsense'}--{name}"


def rows_of(folder: Path) -> Path:
    for name, (row, _, _) in ROWS.items():
        (folder / named(name)).mkdir(parents=True)
        for split in ("train", "test"):
            lines = [json.dumps({**row, "number": number}) + "\n" for number in range(6)]
            (folder / named(name) / f"{split}.jsonl").write_text("".join(lines))
    return folder


def cleaned(text: str) -> str:
    """The harness' own function for HellaSwag's texts, which its file calls."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def test_the_groups_have_the_tasks_of_the_table():
    tasks = [task for name in ("zebra_commonsense", "zebra_openqa") for task in tasks_of(str(FILES / f"{name}.yaml"))]
    assert [task.partition("::")[2] for task in tasks] == list(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_hub_becomes_its_prompt_and_answer(name: str, tmp_path: Path):
    file = FILES / f"{named(name).partition('--')[0]}.yaml"
    data = load_data(load_task(f"{file}::{name}"), data_dir=rows_of(tmp_path))
    row, ending, answer = ROWS[name]
    example = data.test[0]
    prompt = prompt_text(data.spec.template, [], example)
    if name == "hellaswag":
        ending = cleaned(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
        endings = tuple(cleaned(text).strip() for text in row["endings"])
        assert example.choices == endings
        answer = endings[1]
        assert prompt == ending
    assert prompt.endswith(ending)
    assert (example.golds or (example.answer,))[0] == answer


@pytest.mark.parametrize(("name", "read"), [("nq_open", "wall of japan"), ("triviaqa", "the wall of a japan")])
def test_a_free_answer_ends_and_is_compared_as_in_the_harness(name: str, read: str):
    """A full stop and a comma end it; articles are ignored in Natural Questions alone."""
    spec = load_task(f"{FILES / 'zebra_openqa.yaml'}::{name}")
    assert spec.stop is not None
    assert {"\n", ".", ","} <= set(spec.stop)
    assert spec.answer is not None
    assert extracted(spec.answer, "The Wall of a Japan") == read


def test_the_command_of_the_page_runs(tmp_path: Path):
    model = tiny_checkpoint(tmp_path / "model")
    words = ["run", "--task", FILES / "zebra_commonsense.yaml", "--model", model, "--k", 0, "--draws", 1]
    options = ["--data-dir", rows_of(tmp_path / "data"), "--results", tmp_path / "results", "--device", "cpu"]
    said(*words, *options, "--score", "exact")
    summary = json.loads(said("summary", "--results", tmp_path / "results", "--json"))
    assert {row["task"] for row in summary["curves"]} == {named(name) for name in list(ROWS)[:8]}
