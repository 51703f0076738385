"""Queries that are asked to calibrate: the same demonstrations, other queries, nothing of the test rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fakes import FakeBackend, plan, runner, tokenized_task

from icl_bench.errors import UserError
from icl_bench.sweep.plan import Plan, PlannedGroup
from icl_bench.tasks.calibration_inputs import inputs_of


def _pairs(planned: Plan) -> list[tuple[PlannedGroup, PlannedGroup]]:
    """Each group of queries with the group of test rows before it."""
    pairs, last = [], planned.groups[0]
    for group in planned.groups:
        if group.group.task.asked is None:
            last = group
        else:
            pairs.append((last, group))
    return pairs


@pytest.mark.parametrize("select", ["random", "balanced"])
@pytest.mark.parametrize("calibration", ["batch,of=pool:7", "contextual", "domain"])
def test_queries_follow_the_very_prompt_that_they_calibrate(select: str, calibration: str, tmp_path: Path) -> None:
    ready = plan(tmp_path, "0,3,9", scoring="exact", selects=[select], calibrations=[calibration])
    pairs = _pairs(ready)
    assert len(pairs) == 3  # without demonstrations, and two draws
    for group, asked in pairs:
        numbers = [cell.spec.k for cell in group.cells]
        assert numbers == [cell.spec.k for cell in asked.cells]
        for k in numbers:
            assert group.group.demonstrations(k).tolist() == asked.group.demonstrations(k).tolist()
        assert [cell.spec for cell in group.cells] == [cell.spec for cell in asked.cells]


@pytest.mark.parametrize("select", ["random", "bm25"])
def test_rows_of_the_pool_are_neither_demonstrations_nor_test_rows(select: str, tmp_path: Path) -> None:
    ready = plan(tmp_path, "3,9", scoring="exact", selects=[select], calibrations=["batch,of=pool:7"])
    for group, asked in _pairs(ready):
        queries = {row.id for row in asked.group.queries(9)}
        texts = {tuple(row.fields.values()) for row in group.group.task.data.test}
        train = group.group.task.data.train
        assert len(queries) == 7
        assert not {tuple(row.fields.values()) for row in asked.group.queries(9)} & texts
        shown = {train[i].id for i in np.unique(asked.group.demonstrations(9))}
        assert not queries & shown


def test_test_rows_that_are_in_the_pool_too_are_not_asked(tmp_path: Path) -> None:
    task = tokenized_task(tmp_path, scoring="exact", train_rows=9)
    data = task.data
    same = data.test[0].__class__("other-id", data.test[0].fields, data.test[0].answer)
    object.__setattr__(data, "train", (*data.train[:-1], same))
    from support.fakes import planned

    ready = planned(task, "1", draws=3, calibrations=["batch,of=pool:6"])
    for _, asked in _pairs(ready):
        assert same not in asked.group.queries(1)


def test_other_draws_ask_other_rows(tmp_path: Path) -> None:
    ready = plan(tmp_path, "3", scoring="exact", calibrations=["batch,of=pool:7"])
    asked = [{row.id for row in group.group.queries(3)} for _, group in _pairs(ready)]
    assert asked[0] != asked[1]


def test_more_draws_or_larger_ks_keep_the_cells_that_were_asked(tmp_path: Path) -> None:
    first = plan(tmp_path, "3", scoring="exact", calibrations=["batch,of=pool:7"])
    second = plan(tmp_path, "3,9", draws=4, scoring="exact", calibrations=["batch,of=pool:7"])
    engine = FakeBackend()
    names = [set(runner(ready, tmp_path / "results", engine).run().names) for ready in (first, second)]
    assert names[0] < names[1]
    assert not runner(second, tmp_path / "results").run().computed  # no backend is needed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"calibrations": ["batch,of=pool:41"]}, "the pool has 40 rows that are not test rows too; use fewer"),
        ({"calibrations": ["batch,of=pool:38"]}, "k=4 leaves fewer than 38 of the pool's 40 demonstrations"),
        ({"calibrations": ["contextual"], "selects": ["bm25"]}, "with bm25, queries do not share their demonstr"),
        ({"calibrations": ["domain"], "selects": ["hybrid:1,by=bm25"]}, "with hybrid:1"),
        ({"calibrations": ["contextual"], "perturbation": "labels:permuted"}, "not with --perturbation labels:perm"),
    ],
)
def test_what_cannot_be_calibrated_is_said(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        plan(tmp_path, "4", scoring="exact", **changes)  # type: ignore[arg-type]


@pytest.mark.usefixtures("word_encoder")
def test_each_k_has_demonstrations_of_its_own_where_they_are_not_nested(tmp_path: Path) -> None:
    """Without one row of the pool, centroids are the same five, but others of four."""
    made: dict[str, Any] = {
        "scoring": "exact",
        "selects": ["centroids"],
        "draws": 1,
        "calibrations": ["batch,of=pool:1"],
    }
    for group, asked in _pairs(plan(tmp_path, "5", **made)):
        assert group.group.demonstrations(5).tolist() == asked.group.demonstrations(5).tolist()
    with pytest.raises(UserError, match=r"centroids chooses other demonstrations \(k=4\)"):
        plan(tmp_path, "4,5", **made)


@pytest.mark.usefixtures("word_encoder")
@pytest.mark.parametrize("calibration", ["contextual", "domain", "batch,of=pool:5"])
def test_demonstrations_that_are_chosen_by_the_test_rows_are_not_calibrated_by_other_queries(
    calibration: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="by the texts of the queries"):
        plan(tmp_path, "2", scoring="exact", selects=["centroids,of=queries"], calibrations=[calibration])


def test_what_can_be_calibrated_is_not_lost_with_what_cannot(tmp_path: Path) -> None:
    ready = plan(tmp_path, "4", scoring="exact", selects=["random", "bm25"], calibrations=["contextual"])
    assert {group.group.choice.by for group in ready.groups if group.group.task.asked} == {None}
    assert len(ready.not_calibrated) == 1


def test_inputs_without_content_replace_every_field(tmp_path: Path) -> None:
    data = tokenized_task(tmp_path).data
    assert [row.fields for row in inputs_of("contextual", data.spec, data.train, 0)] == [
        {"text": "N/A"},
        {"text": "[MASK]"},
        {"text": ""},
    ]


def test_inputs_of_random_words_are_not_texts_of_scripts_without_spaces(tmp_path: Path) -> None:
    texts = ("\u6211\u7684\u65b0\u5361\u5728\u54ea\u91cc", "\u6211\u7684\u5361\u4e22\u4e86", "\u5982\u4f55\u5145\u503c")
    data = tokenized_task(tmp_path).data
    train = [replace(row, fields={"text": texts[n % 3]}) for n, row in enumerate(data.train[:39])]
    inputs = [row.fields["text"] for row in inputs_of("domain", data.spec, train, 0)]
    assert len(set(inputs)) > 15
    assert {len(text) for text in inputs} == {5}, "characters of a row on average"
    assert set("".join(inputs)) <= set("".join(texts))


def test_inputs_of_random_words_are_as_long_as_rows_are_and_the_same_for_a_seed(tmp_path: Path) -> None:
    data = tokenized_task(tmp_path).data
    inputs = [inputs_of("domain", data.spec, data.train, seed) for seed in (0, 0, 1)]
    assert inputs[0] == inputs[1] != inputs[2]
    words = {word for row in data.train for word in row.fields["text"].split()}
    mean = sum(len(row.fields["text"].split()) for row in data.train) / len(data.train)
    for row in inputs[0]:
        assert set(row.fields["text"].split()) <= words
        assert len(row.fields["text"].split()) == round(mean)
