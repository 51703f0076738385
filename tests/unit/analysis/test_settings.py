"""Settings of a task and model are named by the facts in which they differ, and by no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pytest
from support.predictions import AXES
from support.stored import facts_of

from icl_bench.analysis.settings import name_settings
from icl_bench.results.cells import short_hash
from icl_bench.results.facts import Facts

LONG = "x" * 8 + "01234567"
CHAT = {"style": "turns", "system": None, "arguments": {}, "template": "x", "around": ["<u>"]}


def table(*variants: str, **changes: Any) -> pd.DataFrame:
    return pd.DataFrame([{**AXES, "variant": name, **changes} for name in variants])


def named(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return name_settings(facts_of(facts), table(*facts))


def test_what_differs_is_named_in_the_order_of_the_alphabet():
    facts = {"a": {"seed": 0, "pool_size": 5, "dtype": "x"}, "b": {"seed": 1, "pool_size": 6, "dtype": "x"}}
    assert named(facts) == {"a": "pool_size=5, seed=0", "b": "pool_size=6, seed=1"}


def test_settings_that_are_alike_have_no_name():
    assert named({"a": {"seed": 0}}) == {}
    assert named({"a": {"x": [0]}, "b": {"x": [0]}}) == {}
    assert named({"a": {"x": [0]}, "b": {"x": [0], "y": None}}) == {}
    assert name_settings({}, table("a", "b")) == {}


def test_settings_are_told_apart_within_a_task_and_model_and_kind():
    facts = {name: Facts(seed=seed) for seed, name in enumerate("abcd")}
    two = pd.concat([table("a", "b"), table("c", model="other")])
    assert name_settings(facts, two) == {"a": "seed=0", "b": "seed=1"}
    two = pd.concat([table("a", task="other"), table("b", "c")])
    assert name_settings(facts, two) == {"b": "seed=1", "c": "seed=2"}
    trained = pd.concat([table("a", select="lora"), table("b", select="random"), table("c", select="bm25")]).astype(
        {"select": "category"}
    )
    assert name_settings(facts, trained) == {"b": "seed=1", "c": "seed=2"}
    both = pd.concat([table("a", "b"), table("c", "d", task="other")])
    assert set(name_settings(facts, both)) == {"a", "b", "c", "d"}


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("label_space", "seen", "label_space=all"),
        ("queries", "demonstrations", "queries=test"),
        ("system", "Be brief.", "system=none"),
        ("other", "x", "other=None"),
    ],
)
def test_a_fact_that_is_not_there_is_told_as_what_that_means(name: str, value: str, told: str):
    assert named({"a": {}, "b": {name: value}}) == {"a": told, "b": f"{name}={value}"}
    assert named({"a": {}, "b": {"chat": {"style": "single"}}}) == {"a": "chat=plain", "b": "chat=single"}


def test_that_others_have_no_encoder_is_no_difference():
    assert named({"a": {}, "b": {"bertscore_encoder": "x"}, "c": {"sentence_encoder": "y"}}) == {}
    assert named({"a": {}, "b": {"bertscore_encoder": "x"}, "c": {"bertscore_encoder": "y"}}) == {
        "a": "bertscore_encoder=none",
        "b": "bertscore_encoder=x",
        "c": "bertscore_encoder=y",
    }


def test_rows_that_say_more_to_a_reader_take_the_place_of_their_hash():
    facts = {
        "a": {"test": "h1", "test_rows": 5, "pool": "p1", "pool_rows": 7},
        "b": {"test": "h2", "test_rows": 6, "pool": "p2", "pool_rows": 7},
    }
    assert named(facts) == {"a": "pool=p1, test_rows=5", "b": "pool=p2, test_rows=6"}
    facts["c"] = {"test": "h3", "test_rows": 6, "pool": "p1", "pool_rows": 7}
    assert named(facts)["c"] == "pool=p1, test=h3, test_rows=6"


def test_what_follows_from_the_labels_is_not_told_beside_them():
    facts = {
        "a": {"label_space": "all", "labels": "xy", "pool_rows": 9, "pool": "p1"},
        "b": {"label_space": "first:1", "labels": "x", "pool_rows": 5, "pool": "p2"},
    }
    assert named(facts) == {"a": "label_space=all", "b": "label_space=first:1"}
    facts["c"] = {**facts["b"], "pool_rows": 4, "pool": "p3"}
    assert named(facts) == {
        "a": "label_space=all, pool_rows=9",
        "b": "label_space=first:1, pool_rows=5",
        "c": "label_space=first:1, pool_rows=4",
    }
    spaces = (("a", "all", "xy"), ("b", "first:1", "x"), ("c", "first:2", "xy"))
    three = {name: {"label_space": space, "labels": labels} for name, space, labels in spaces}
    assert named(three) == {"a": "label_space=all", "b": "label_space=first:1", "c": "label_space=first:2"}
    crossed = {
        "a": {"label_space": "x", "labels": "1"},
        "b": {"label_space": "x", "labels": "2"},
        "c": {"label_space": "y", "labels": "1"},
    }
    assert named(crossed)["b"] == "label_space=x, labels=2"


def test_chats_of_several_styles_are_told_apart_by_more_where_one_style_has_several():
    chats = {"a": ("turns", None), "b": ("turns", "Be brief."), "c": ("single", None)}
    facts = {name: {"chat": {**CHAT, "style": style, "system": system}} for name, (style, system) in chats.items()}
    assert named(facts) == {
        "a": "chat=turns, system=none",
        "b": "chat=turns, system=Be brief.",
        "c": "chat=single, system=none",
    }
    del facts["a"]
    assert named(facts) == {"b": "chat=turns", "c": "chat=single"}


def test_chats_of_one_style_are_told_apart_by_arguments_and_template():
    one, other = {"chat": CHAT}, {"chat": {**CHAT, "arguments": {"think": True}}}
    assert named({"a": one, "b": other}) == {
        "a": f"chat_arguments=…{short_hash({})[-8:]}",
        "b": f"chat_arguments=…{short_hash({'think': True})[-8:]}",
    }
    other = {"chat": {**CHAT, "template": "y"}}
    hashes = [short_hash([template, ["<u>"]])[-8:] for template in "xy"]
    assert named({"a": one, "b": other}) == {"a": f"chat_template=…{hashes[0]}", "b": f"chat_template=…{hashes[1]}"}
    other = {"chat": {**CHAT, "around": ["<b>"]}}
    hashes = [short_hash(["x", around])[-8:] for around in (["<u>"], ["<b>"])]
    assert named({"a": one, "b": other}) == {"a": f"chat_template=…{hashes[0]}", "b": f"chat_template=…{hashes[1]}"}


RECIPE = {"method": "lora", "head": "lm", "learning_rate": 1e-3, "lora_rank": 8}


def test_thoughts_are_named_by_their_limit_and_by_more_where_one_limit_has_several():
    thought = {"opens": "Think.", "ends": "So ", "limit": 1200, "rationale": None}
    facts: dict[str, dict[str, Any]] = {
        "a": {},
        "b": {"thoughts": thought},
        "c": {"thoughts": {**thought, "limit": 96}},
    }
    assert named(facts) == {"a": "thoughts=none", "b": "thoughts=up to 1,200 tokens", "c": "thoughts=up to 96 tokens"}
    shown = named({"a": facts["b"], "b": {"thoughts": {**thought, "rationale": "why"}}})
    assert shown == {"a": "thought_rationales=none", "b": "thought_rationales=why"}


def test_trainings_are_named_by_the_settings_of_their_recipes_that_differ():
    facts = {"a": {"recipe": RECIPE}, "b": {"recipe": {**RECIPE, "head": "random", "learning_rate": 1e-4}}}
    assert named(facts) == {"a": "head=lm, learning rate=0.001", "b": "head=random, learning rate=1e-4"}
    facts["c"] = {"recipe": {**RECIPE, "lora_rank": 16, "learning_rate": 2.5e-5}}
    assert named(facts)["c"] == "head=lm, learning rate=2.5e-5, lora rank=16"


def test_a_setting_that_is_stored_only_if_used_is_named_beside_others():
    recipes = {"a": RECIPE, "b": {**RECIPE, "rslora": True}, "c": {**RECIPE, "lora_rank": 16}}
    assert named({variant: {"recipe": recipe} for variant, recipe in recipes.items()}) == {
        "a": "lora rank=8, rslora=False",
        "b": "lora rank=8, rslora=True",
        "c": "lora rank=16, rslora=False",
    }


def test_a_recipe_without_all_settings_is_named_by_its_hash():
    old = {name: value for name, value in RECIPE.items() if name != "head"}
    recipes = {"a": RECIPE, "b": old}
    facts = {variant: {"recipe": recipe} for variant, recipe in recipes.items()}
    assert named(facts) == {name: f"recipe=…{short_hash(recipe)[-8:]}" for name, recipe in recipes.items()}


def test_templates_and_other_parts_are_named_by_what_differs_in_them():
    facts = {
        "a": {"template": {"input": "Q: {text}", "separator": "\n"}},
        "b": {"template": {"input": "Q: {text}", "separator": "\n\n"}},
    }
    assert named(facts) == {"a": r"template separator='\n'", "b": r"template separator='\n\n'"}


def test_long_values_are_cut_to_their_last_eight_signs():
    assert named({"a": {"x": LONG}, "b": {"x": LONG[1:]}}) == {"a": "x=…01234567", "b": f"x={LONG[1:]}"}


def test_imports_are_named_by_their_file_and_the_rest_was_run_here():
    facts = {"a": {"seed": 0}, "i": {"imported": "x.csv"}}
    assert named(facts) == {"a": "run here", "i": "imported from x.csv"}
    facts["b"] = {"seed": 1}
    assert named(facts) == {"a": "seed=0", "i": "imported from x.csv", "b": "seed=1"}


def test_of_several_with_one_name_the_variant_is_told():
    facts = {"i": {"imported": "x.csv"}, "j": {"imported": "x.csv"}, "k": {"imported": "y.csv"}}
    assert named(facts) == {
        "i": "imported from x.csv, variant i",
        "j": "imported from x.csv, variant j",
        "k": "imported from y.csv",
    }
