"""Names of cells and variants are hashes of exactly what decides them."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pytest

from icl_bench.results.cells import CellSpec, Identity, cell_hash, digest, prediction_schema, short_hash, slug
from icl_bench.results.facts import Facts

AXES: dict[str, Any] = {
    "task": "cards",
    "model": "small/one",
    "select": "hybrid:2,by=bm25",
    "order": "shuffled:1",
    "attention": "full",
    "k": 25,
    "draw": 3,
}
SPEC = CellSpec(**AXES)
FACTS = Facts(seed=0, labels="é")
WRITTEN = (
    '"attention":"full","draw":3,"k":25,"model":"small/one","order":"shuffled:1",'
    '"select":"hybrid:2,by=bm25","task":"cards"'
)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def test_a_hash_is_that_of_the_protocol_and_the_json_with_sorted_keys():
    assert digest({"b": [1, "é"], "a": None}) == sha('1\n{"a":null,"b":[1,"é"]}')
    assert short_hash(["x", "y"]) == sha('1\n["x","y"]')[:16]


def test_names_of_files_that_are_not_unicode_have_a_hash():
    assert digest("\udcff") != digest("\udcfe")


def test_a_variant_is_named_by_its_facts_and_a_cell_by_its_axes_too():
    identity = Identity(SPEC, FACTS)
    facts = '"facts":{"labels":"é","seed":0}'
    assert identity.variant == sha('1\n{"labels":"é","seed":0}')[:8]
    assert identity.cell == sha(f'1\n{{{facts},"spec":{{{WRITTEN}}}}}')[:12]
    assert cell_hash(AXES, "v") == sha(f'1\n{{"spec":{{{WRITTEN}}},"variant":"v"}}')[:12]


def test_a_cells_file_is_called_after_its_axes():
    identity = Identity(SPEC, FACTS)
    assert identity.name == (f"cards/small-one/hybrid-2-by-bm25-shuffled-1-full-k00025-d03-{identity.cell}")


def test_a_long_name_of_a_folder_is_its_beginning_and_a_hash_of_all_of_it():
    longest, longer = "t" * 200, "m" * 200 + "/"
    update = {"task": longest, "model": f"{longer}x"}
    task, model, _ = Identity(SPEC.model_copy(update=update), FACTS).name.split("/")
    assert task == longest
    assert model == "m" * 200 + "-" + sha(f'1\n"{longer}x"')[:12]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a/b", "a-b"),
        ("..", "-"),
        ("-x.", "x"),
        ("A_1.5", "A_1.5"),
        ("é ü", "-"),
        ("a  b", "a-b"),
        ("Zz09", "Zz09"),
        ("", "-"),
        ("X-", "X"),
        ("XaX", "XaX"),
    ],
)
def test_a_text_is_a_part_of_a_name_by_its_letters_digits_dots_and_underscores(text: str, name: str):
    assert slug(text) == name


def test_a_cell_is_said_by_its_axes_and_its_attention_only_where_it_is_not_full():
    assert str(SPEC) == "cards small/one hybrid:2,by=bm25 shuffled:1 k=25 draw=3"
    blocks = SPEC.model_copy(update={"attention": "block:1"})
    assert str(blocks) == "cards small/one hybrid:2,by=bm25 shuffled:1 block:1 k=25 draw=3"


def test_predictions_have_these_columns_of_these_types():
    words, numbers = "dictionary<values=string, indices=int32, ordered=0>", "int32"
    assert {field.name: str(field.type) for field in prediction_schema()} == {
        **dict.fromkeys(("task", "model", "select", "order", "attention"), words),
        **dict.fromkeys(("k", "draw"), numbers),
        **dict.fromkeys(("test_id", "gold", "prediction", "prompt_hash"), "string"),
        **dict.fromkeys(("correct", "valid"), "bool"),
        **dict.fromkeys(("prompt_tokens", "cached_tokens", "answer_tokens"), numbers),
        **dict.fromkeys(("probability", "margin", "label_mass"), "double"),
        "demonstration_ids": str(pa.list_(pa.string())),
        **dict.fromkeys(("backend", "label_space", "queries", "perturbation"), words),
        **dict.fromkeys(("cell", "variant"), words),
    }
