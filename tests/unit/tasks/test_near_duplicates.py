"""Which test rows are nearly a row of train."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.fakes import model, small_tokenizer

from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.data_report import report_on
from icl_bench.tasks.examples import Example, load_data
from icl_bench.tasks.near_duplicates import near_duplicates, words
from icl_bench.tasks.task_files import load_task


def rows(*texts: str) -> list[Example]:
    return [Example(str(number), {"text": text}, "label") for number, text in enumerate(texts)]


def near(test: str, train: str) -> bool:
    return bool(near_duplicates(rows(test), rows(train)))


@pytest.mark.parametrize(
    ("test", "train"),
    [
        ("Where is my card?", "where is  my card"),
        ("STRASSE 5", "straße, 5!"),
        ("\uff57here is it", "Where is it"),  # a full-width letter
        ("¿Dónde está?", "dónde está"),
        ("what's new", "What s new"),
        ("a b c d e", "a b c d"),  # 4 of 5 words
        ("a b c d", "a b c d e"),
        ("d c b a a a", "a b c d"),
    ],
)
def test_texts_that_differ_in_little_are_near(test: str, train: str):
    assert near(test, train)


@pytest.mark.parametrize(
    ("test", "train"),
    [
        ("a b c", "a b c d"),  # 3 of 4
        ("a b c d x", "a b c d e"),  # 4 of 6
        ("?", "!"),  # no words
        ("resume", "résumé"),
        ("cards", "card"),
    ],
)
def test_texts_of_other_words_are_not(test: str, train: str):
    assert not near(test, train)


def test_all_input_fields_count_and_ids_keep_their_order():
    test = [Example("b", {"q": "one", "p": "two three four"}, "x"), Example("a", {"q": "one", "p": ""}, "x")]
    train = [Example("t", {"q": "One", "p": "two three four!"}, "x"), Example("u", {"q": "", "p": "one"}, "y")]
    assert near_duplicates(test, train) == ("b", "a")


INSTRUCTION = "Decide whether this short movie review has a positive or a negative opinion and answer with one word."
TEXTS = {
    "train": ["good film", "bad plot", "nice cast", "awful sound", "great fun", "dull scenes"],
    "test": ["terrible pacing", "lovely music", "Bad plot!", "dull scenes"],
}


@pytest.mark.parametrize("engine", ["jinja", "braces"])
def test_the_words_of_a_jinja_template_do_not_count(tmp_path: Path, engine: str):
    for split, texts in TEXTS.items():
        lines = [json.dumps({"text": text, "label": ["neg", "pos"][n % 2]}) for n, text in enumerate(texts)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    data = {"train": "train.jsonl", "test": "test.jsonl"}
    task = {"name": "films", "data": data, "metrics": ["accuracy"], "labels": {}}
    if engine == "jinja":
        task["template"] = {"engine": "jinja", "input": INSTRUCTION + "\n{{text}}", "output": "{{label}}"}
    else:
        task["data"] = {**data, "fields": {"text": "text", "label": "label"}}
        task["template"] = {"input": INSTRUCTION + "\n{text}", "output": "Opinion: {label}"}
    (tmp_path / "films.yaml").write_text(yaml.safe_dump(task))
    data = load_data(load_task(str(tmp_path / "films.yaml")))
    report = report_on(data)
    assert report.near_duplicates == ("films-test-2", "films-test-3")
    assert report.leaks == ("films-test-3",)
    tokenizer: Any = small_tokenizer()
    assert sorted(TokenizedTask(data, model(), tokenizer).near_duplicates) == sorted(report.near_duplicates)


def test_rows_of_nothing_but_common_words_are_near_each_other_only():
    test, train = rows("Say: yes!", "Say yes now"), rows("say yes", "say yes later")
    assert near_duplicates(test, train, frozenset({"say", "yes"})) == ("0",)
    assert near_duplicates(test, train) == ("0",)


def test_punctuation_and_blanks_of_all_scripts_separate_words():
    assert words("«Où» est\u3000ma—carte…\u00a0?") == ["où", "est", "ma", "carte"]
    assert words("नमस्ते दुनिया") == ["नमस्ते", "दुनिया"]


def by_comparing_all(test: list[Example], train: list[Example]) -> tuple[str, ...]:
    def alike(one: set[str], other: set[str]) -> bool:
        return bool(one) and 5 * len(one & other) >= 4 * len(one | other)

    sets = [set(words(row.fields["text"])) for row in train]
    return tuple(row.id for row in test if any(alike(set(words(row.fields["text"])), other) for other in sets))


@pytest.mark.parametrize("seed", range(5))
def test_the_index_finds_what_comparing_all_finds(seed: int):
    rng = np.random.default_rng(seed)

    def texts(count: int) -> list[str]:
        return [" ".join(f"w{i}" for i in rng.zipf(1.5, rng.integers(0, 12)) if i < 30) for _ in range(count)]

    test, train = rows(*texts(150)), rows(*texts(200))
    found = near_duplicates(test, train)
    assert found == by_comparing_all(test, train)
    assert 0 < len(found) < len(test)


def test_ten_thousand_rows_take_seconds_at_most():
    rng = np.random.default_rng(0)
    made = [" ".join(f"w{i % 3000}" for i in rng.zipf(1.3, 12)) for _ in range(10_500)]
    started = time.process_time()
    near_duplicates(rows(*made[:500]), rows(*made[500:]))
    assert time.process_time() - started < 5
