"""Names for the settings of a task and model, from the facts in which they differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from icl_bench.results.cells import short_hash
from icl_bench.results.facts import UNKNOWN, Facts, FactsOf
from icl_bench.results.reading import IMPORTED
from icl_bench.results.trained_methods import kind
from icl_bench.wording import plain

if TYPE_CHECKING:
    import pandas as pd

PLAINER = {
    "test": "test_rows",
    "pool": "pool_rows",
    "label_reading": "scoring",
    "data": "rationales",
    "fields": "rationales",
}
"""Facts that are not named -> facts that express the same to a reader, if their values also differ."""


WHOLE = ("calibration", "rationales", "thoughts")
"""Facts that are shown in full, however long."""


OF_SELECTORS = ("bertscore_encoder", "sentence_encoder", "bm25_words")
"""Facts of selectors that compare texts. Their absence in other selectors is not a difference of settings."""


ABSENT = {
    "label_space": "all",
    "queries": "test",
    "chat": "plain",
    "system": "none",
    "calibration": "none",
    "samples": "none",
    "thoughts": "none",
    "thought_rationales": "none",
    "temperature": "none",
    "rationales": "the data's",
    "bos": "written",
    **dict.fromkeys(OF_SELECTORS, "none"),
}
"""The meaning of a missing fact."""


UNSTORED_PARTS = (("recipe", "rslora"),)
"""Facts with their parts that are stored only if they are true."""


OF_LABELS = ("labels", "pool", "pool_rows", "test", "test_rows")
"""Facts that follow from the part of the labels, and are not named with it."""


OF_CHAT = ("system", "chat_arguments", "chat_template", "bos")
"""Facts that follow from the chat style, named only if prompts of one style differ in them."""


OF_THOUGHTS = ("thought_marks", "thought_rationales")
"""Facts of thoughts, named only if thoughts with one limit differ in them."""


def name_settings(facts: FactsOf, table: pd.DataFrame) -> dict[str, str]:
    """Name the variants of a task and model by the facts in which they differ, or by their origin."""
    named: dict[str, str] = {}
    kinds = table["select"].astype(object).map(kind)
    for _, group in table.groupby(["task", "model", kinds], observed=True):
        named |= _named({v: _flat(facts.get(v, UNKNOWN)) for v in group["variant"].unique()})
    return named


def _flat(facts: Facts) -> dict[str, Any]:
    """The facts, with those of chat prompts and of thoughts on the same level."""
    known = facts.known()
    if (thoughts := facts.thoughts) is not None:
        known |= {
            "thoughts": f"up to {thoughts['limit']:,} tokens",
            "thought_marks": [thoughts["opens"], thoughts["ends"]],
            "thought_rationales": thoughts.get("rationale"),
        }
    if (chat := facts.chat) is None:
        return known
    return {
        **known,
        "chat": chat.style,
        "system": chat.system,
        "chat_arguments": chat.arguments,
        "chat_template": short_hash([chat.template, chat.around]),
    }


def _named(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Name the variants of one task and model; empty if all are equal, and run here or imported from one export."""
    sources = {f.get(IMPORTED) for f in facts.values()}
    if len(sources) == 1 and all(f.keys() > {IMPORTED} for f in facts.values()):
        facts = {v: {key: value for key, value in f.items() if key != IMPORTED} for v, f in facts.items()}
    run_here = {v: f for v, f in facts.items() if IMPORTED not in f}
    named = {
        v: ", ".join(f"{key}={plain(value) if key in WHOLE else _brief(value)}" for key, value in differing.items())
        for v, differing in _differing(_spelled_out(run_here)).items()
    }
    if len(run_here) == len(facts):
        return named
    named = dict.fromkeys(run_here, "run here") | named
    named |= {v: f"imported from {f[IMPORTED]}" for v, f in facts.items() if IMPORTED in f}
    several = {text for text, count in Counter(named.values()).items() if count > 1}
    return {v: f"{text}, variant {v}" if text in several else text for v, text in named.items()}


def _spelled_out(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The facts with the parts of a recipe, a template, ... as separate facts.

    A fact stays whole if some variant lacks its parts, as in older versions.
    """
    for key, part in UNSTORED_PARTS:
        parted = {v: f[key] for v, f in facts.items() if isinstance(f.get(key), dict)}
        if any(part in parts for parts in parted.values()):
            facts = {**facts, **{v: {**facts[v], key: {part: False, **parts}} for v, parts in parted.items()}}
    keys = {key for f in facts.values() for key in f}
    alike = [key for key in sorted(keys) if _has_the_same_parts([f.get(key) for f in facts.values()])]

    def named(key: str, part: str) -> str:
        words = part.replace("_", " ")
        return words if key == "recipe" else f"{key.replace('_', ' ')} {words}"

    return {
        variant: {key: value for key, value in f.items() if key not in alike}
        | {named(key, part): value for key in alike for part, value in f[key].items()}
        for variant, f in facts.items()
    }


def _has_the_same_parts(values: Sequence[Any]) -> bool:
    return all(isinstance(value, dict) and value.keys() == values[0].keys() for value in values)


def _differing(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By variant, the facts that are not equal in all; empty if all are equal."""

    def kinds(*keys: str) -> int:
        values = ([f.get(key) for key in keys] for f in facts.values())
        known = (value for value in values if value != [None] or keys[0] not in OF_SELECTORS)
        return len({json.dumps(value, sort_keys=True) for value in known})

    keys = sorted({key for f in facts.values() for key in f})
    keys = [key for key in keys if kinds(key) > 1 and kinds(PLAINER.get(key, "")) < kinds(key)]
    if "label_space" in keys:
        whole = kinds("label_space")
        keys = [k for k in keys if k not in OF_LABELS or kinds(k, "label_space") > whole]
    for fact, parts in (("chat", OF_CHAT), ("thoughts", OF_THOUGHTS)):
        if fact in keys:
            keys = [k for k in keys if k not in parts or kinds(k, fact) > kinds(fact)]
    if not keys:
        return {}
    return {v: {key: _value(f, key) for key in keys} for v, f in facts.items()}


def _value(facts: Mapping[str, Any], key: str) -> Any:
    value = facts.get(key)
    return ABSENT.get(key) if value is None else value


def _brief(value: Any) -> str:
    if isinstance(value, float) and 0 < abs(value) < 0.001:
        return _small(value)
    text = short_hash(value) if isinstance(value, dict | list) else plain(value)
    return text if len(text) < 16 else f"…{text[-8:]}"


def _small(value: float) -> str:
    """A small number in common notation: ``1e-4``."""
    digits, _, power = f"{value:e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
