"""A results folder whose prompts hold a date is resumed on another day, and its prompts are shown again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fakes import write_task
from support.models import qwen_tokenizer, tiny_checkpoint

from icl_bench.results.chat_days import day_of, keep_day
from icl_bench.results.reading import finished_cells
from icl_bench.sweep.notes import notes
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep

TEMPLATE = """{{ 'On ' + strftime_now('%d %B %Y') + '\n' }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '
' + m['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>
' }}{% endif %}"""


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    tokenizer = qwen_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = TEMPLATE
    model = tiny_checkpoint(tmp_path / "model", tokenizer=tokenizer)
    task = write_task(tmp_path / "task")
    options = {"backend": "transformers", "device": "cpu", "dtype": "float32"}
    return RunSpec(task=str(task), model=str(model), k="1", draws=1, chat="turns", test_size=3, **options)


def test_a_run_on_a_later_day_finds_its_cells(spec: RunSpec, tmp_path: Path):
    results = tmp_path / "results"
    keep_day(results, "2020-02-29")
    sweep = Sweep.prepare(spec, results=results)
    assert any("2020-02-29" in note for note in notes(sweep))
    assert any("(<think>)" in note and "closed" in note for note in notes(sweep))
    sweep.run(results)
    assert Sweep.prepare(spec, results=results).finished(results) == [True]
    assert Sweep.prepare(spec).finished(results) == [False]  # today's
    ((_, meta),) = finished_cells(results)
    assert meta.chat_day == "2020-02-29"
    assert "On 29 February 2020" in meta.facts.chat.around[0]
    assert meta.facts.chat.around[3].endswith("<think>\n\n</think>\n\n")


def test_the_first_run_keeps_its_day(spec: RunSpec, tmp_path: Path):
    results = tmp_path / "results"
    Sweep.prepare(spec, results=results).run(results)
    assert (results / "_chat" / "date.txt").read_text().strip() == day_of(results)
