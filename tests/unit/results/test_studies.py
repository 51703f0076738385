"""What studies asked for and losses of long texts, beside the predictions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.in_memory import MemoryStorage
from support.stored import SPEC

from icl_bench.errors import UserError
from icl_bench.registry import TRAINING_METHODS
from icl_bench.results.cells import digest
from icl_bench.results.perplexity_losses import META, losses_name, read_losses, write_losses
from icl_bench.results.stored_meta import CHECK, LossesMeta, StudyCell, StudyMeta, as_stored, json_content
from icl_bench.results.studies import FOLDER, read_studies, write_study
from icl_bench.results.trained_methods import UPPER, kind
from icl_bench.table_files import parquet_bytes, parquet_table

LOSSES = LossesMeta(
    model="m", fingerprint="f", dtype="float32", attention="full", sha256="0", length=4, by_length={"full": {"4": 1.5}}
)


def cell(name: str, k: int = 4, setting: str = "plain") -> StudyCell:
    return StudyCell(**{**SPEC, "k": k}, setting=setting, cell=name, variant="v")


class FullStorage(MemoryStorage):
    """A place where nothing more fits."""

    error = OSError(28, "No space left on device")

    def put(self, name: str, content: bytes) -> None:
        raise self.error


class QuietStorage(FullStorage):
    error = OSError("it is what it is")


def test_studies_whose_names_differ_in_other_letters_alone_have_files_of_their_own():
    storage, names = MemoryStorage(), ["a b", "a-b", "ä", "ö"]
    for name in names:
        write_study(storage, name, [cell(name)], whole=True)
    assert f"{FOLDER}/a-b.json" in storage.files
    assert sorted(study.study for study in read_studies(storage)) == sorted(names)


def test_a_study_of_an_earlier_version_is_read_and_takes_its_present_name():
    storage = MemoryStorage()
    old = f"{FOLDER}/my-study.json"
    storage.put(old, json_content(as_stored(StudyMeta(study="my study", cells=[cell("a")]))))
    write_study(storage, "my study", [cell("b")], whole=False)
    assert old not in storage.files
    assert read_studies(storage) == [StudyMeta(study="my study", cells=[cell("a"), cell("b")])]


# -- studies --------------------------------------------------------------------------------------


def test_a_study_is_stored_under_its_name_and_replaced_where_it_is_whole():
    storage = MemoryStorage()
    write_study(storage, "my study", [cell("a"), cell("b", setting="größer")], whole=True)
    name = f"{FOLDER}/my-study-{digest('my study')[:8]}.json"
    assert list(storage.files) == [name]
    expected = StudyMeta(study="my study", cells=[cell("a"), cell("b", setting="größer")])
    written = [{**SPEC, "k": 4, "setting": s, "cell": c, "variant": "v"} for s, c in (("plain", "a"), ("größer", "b"))]
    stored = json.loads(storage.files[name])
    assert {field: stored[field] for field in stored if field != CHECK} == {"study": "my study", "cells": written}
    assert "größer" in storage.files[name].decode()
    assert read_studies(storage) == [expected]
    write_study(storage, "my study", [cell("c")], whole=True)
    assert read_studies(storage) == [StudyMeta(study="my study", cells=[cell("c")])]


def test_cells_of_a_part_are_added_to_those_of_the_same_study():
    storage = MemoryStorage()
    write_study(storage, "first", [cell("x")], whole=True)
    write_study(storage, "other", [cell("a"), cell("b")], whole=False)
    write_study(storage, "other", [cell("b", k=8), cell("c")], whole=False)
    first, other = read_studies(storage)
    assert first == StudyMeta(study="first", cells=[cell("x")])
    assert other == StudyMeta(study="other", cells=[cell("a"), cell("b", k=8), cell("c")])


@pytest.mark.parametrize(
    ("place", "why"), [(FullStorage(), "No space left on device"), (QuietStorage(), "it is what it is")]
)
def test_what_cannot_be_stored_is_said_with_the_way_on(place: MemoryStorage, why: str):
    told = f"results folder memory:: {why}; run the same command again once there is space"
    with pytest.raises(UserError) as raised:
        write_study(place, "s", [cell("a")], whole=True)
    assert str(raised.value) == told
    with pytest.raises(UserError) as raised:
        write_losses(place, losses_name("m", "t"), [np.ones(3)], LOSSES)
    assert str(raised.value) == told


def test_studies_come_by_name_and_what_is_none_is_left_out_with_a_warning():
    storage = MemoryStorage()
    storage.put(f"{FOLDER}/a.json.tmp", b"{")
    for name in ("c", "b", "a"):
        write_study(storage, name, [cell(name)], whole=True)
    storage.put(f"{FOLDER}/bad.json", b'{"study": 3, "cells": []}')
    storage.put(f"{FOLDER}/bbb.json", json.dumps({"study": "s", "cells": "x" * 200}).encode())
    storage.put("trec/other.json", b"{}")
    with pytest.warns(UserWarning, match="left out$") as warned:
        assert [study.study for study in read_studies(storage)] == ["a", "b", "c"]
    assert [str(one.message) for one in warned] == [
        f"memory:{FOLDER}/bad.json: cannot be read (study: Input should be a valid string); left out",
        f"memory:{FOLDER}/bbb.json: cannot be read (cells: Input should be a valid list); left out",
    ]


def test_a_long_reason_why_a_study_cannot_be_read_is_cut():
    class Broken(MemoryStorage):
        def read(self, name: str) -> bytes:
            raise OSError("why " * 100)

    storage = Broken({f"{FOLDER}/a.json": b""})
    with pytest.warns(UserWarning, match="left out$") as warned:
        assert read_studies(storage) == []
    told = f"memory:{FOLDER}/a.json: cannot be read ({'why ' * 30}); left out"
    assert [str(one.message) for one in warned] == [told]


# -- losses of long texts -------------------------------------------------------------------------


def test_losses_are_stored_beside_the_predictions_in_single_precision():
    storage = MemoryStorage()
    name = losses_name("m", "text")
    write_losses(storage, name, [np.array([0.5, 1 / 3]), np.array([2.0, 0.1])], LOSSES)
    table = parquet_table(storage.files[name])
    assert table.schema.names == ["window", "losses"]
    assert [str(one) for one in table.schema.types] == ["int32", "list<element: float>"]
    assert table["window"].to_pylist() == [0, 1]
    ((meta, losses),) = read_losses(storage)
    assert meta == LOSSES
    assert losses.dtype == np.float64
    single = np.array([[0.5, 1 / 3], [2.0, 0.1]], np.float32)
    assert losses.tolist() == single.astype(float).tolist()


def test_losses_are_read_in_double_precision_however_they_are_stored():
    table = pa.table({"losses": [[1, 2], [3, 4]]})
    table = table.replace_schema_metadata({META: LOSSES.model_dump_json().encode()})
    storage = MemoryStorage({losses_name("m", "text"): parquet_bytes(table)})
    ((_, losses),) = read_losses(storage)
    assert (losses.dtype, losses.tolist()) == (np.float64, [[1, 2], [3, 4]])


def test_losses_come_by_folder_then_by_file():
    storage = MemoryStorage()
    for model in ("m-b", "m", "a"):
        for file in ("two", "one"):
            meta = LOSSES.model_copy(update={"model": model, "attention": file})
            write_losses(storage, losses_name(model, file), [np.ones(2)], meta)
    assert next(iter(storage.files)).endswith("/m-b/two.parquet")
    found = [(meta.model, meta.attention) for meta, _ in read_losses(storage)]
    assert found == [(model, file) for model in ("a", "m", "m-b") for file in ("one", "two")]


def test_files_that_hold_no_losses_are_left_out_with_a_warning():
    storage = MemoryStorage()
    write_losses(storage, losses_name("m", "good"), [np.ones(2)], LOSSES)
    storage.put(losses_name("m", "cut"), storage.files[losses_name("m", "good")][:40])
    storage.put(losses_name("m", "plain"), parquet_bytes(pa.table({"losses": [[1.0]]})))
    write_losses(storage, losses_name("m", "ragged"), [np.ones(2), np.ones(3)], LOSSES)
    bare = pa.table({"losses": [[1.0]]}).replace_schema_metadata({META: b'{"model": "m"}'})
    storage.put(losses_name("m", "bare"), parquet_bytes(bare))
    storage.put(losses_name("m", "good") + ".tmp", b"")
    storage.put("trec/m/other.parquet", b"")
    with pytest.warns(UserWarning, match="left out$") as warned:
        assert [meta for meta, _ in read_losses(storage)] == [LOSSES]
    names = sorted(losses_name("m", one) for one in ("bare", "cut", "plain", "ragged"))
    assert [str(one.message) for one in warned] == [
        f"memory:{name}: not a file of losses, or damaged; left out" for name in names
    ]


def test_a_pipe_among_losses_is_left_out(tmp_path: Path):
    name = losses_name("m", "text")
    (tmp_path / name).parent.mkdir(parents=True)
    os.mkfifo(tmp_path / name)
    with pytest.warns(UserWarning, match="not a file of losses"):
        assert list(read_losses(tmp_path)) == []


# -- what the examples are used for ---------------------------------------------------------------


def test_a_training_method_is_its_own_kind_and_all_ways_to_prompt_are_one():
    for name in TRAINING_METHODS:
        assert kind(name) == name
        assert kind(name + UPPER) == name + UPPER
    assert [kind(name) for name in ("random", "bm25", "prompt", UPPER)] == ["prompt"] * 4
