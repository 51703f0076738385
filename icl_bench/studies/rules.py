"""Rules that select points of a study: ``exclude`` in its file, and ``--only``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icl_bench.demonstrations import selector_spec
from icl_bench.errors import UserError
from icl_bench.models import attention_patterns
from icl_bench.wording import comma_list, nearest, plain

KEYS = ("task", "model", "setting", "select", "order", "attention", "k", "draw", "perturbation", "labels", "queries")
"""Keys of rules: a cell's axes, the name of its block, and options of blocks."""

SPLIT = {"attention": attention_patterns.split, "select": selector_spec.split}
"""How to split lists of values that may contain commas."""

Names = Mapping[str, frozenset[str]]
"""Names of a point by key; for a part of a study only some keys are known."""


@dataclass(frozen=True)
class Rule:
    """Values of some keys; a rule matches points that have one of the values of each key."""

    values: Mapping[str, frozenset[str]]

    @classmethod
    def read(cls, rule: Mapping[str, Any]) -> Rule:
        """Read a mapping of a file, of values or lists of values; texts are split at commas. Raises ``UserError``."""
        if not rule:
            raise UserError("is empty; give task, model, select, k, ...")
        for key in rule:
            if key not in KEYS:
                raise UserError(f"{plain(key)}: unknown key; {nearest(str(key), KEYS)}")
        values = {
            key: frozenset(
                text for one in _listed(value) for text in (str(one), *_split(key, str(one))) if text.strip()
            )
            for key, value in rule.items()
        }
        for key, of_key in values.items():
            if not any(_split(key, text) for text in of_key):
                raise UserError(f"{key}: is empty")
        return cls(values)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Rule:
        """Parse texts of ``--only KEY=VALUE[,VALUE...]``, all of which must hold. Raises ``UserError``."""
        by_key: dict[str, str] = {}
        for text in texts:
            key, equals, values = text.partition("=")
            if not equals or not _split(key, values):
                raise UserError(f"--only {plain(text)}: expected KEY=VALUE, like task=banking77")
            if key in by_key:
                raise UserError(f"--only {key}: appears twice; write {key}=A,B for several")
            by_key[key] = values
        try:
            return cls.read(by_key)
        except UserError as error:
            raise UserError(f"--only {error}") from None

    def holds(self, names: Names) -> bool:
        """Whether the rule matches: the point has every key with one of the rule's values."""
        return all(values & names.get(key, frozenset()) for key, values in self.values.items())

    def may_hold(self, names: Names) -> bool:
        """Whether the rule may match: no known value of a point contradicts it."""
        return all(values & names[key] for key, values in self.values.items() if key in names)

    def unknown(self, known: Names) -> list[tuple[str, str]]:
        """The keys and values that are not known, sorted. Of a text with commas, the whole or its parts are known."""
        found = []
        for key, values in self.values.items():
            several = [text for text in values if [text] != list(_split(key, text))]
            of_known = {part for text in several if text in known[key] for part in _split(key, text)}
            found += [(key, text) for text in values - known[key] - of_known - {*several}]
        return sorted(found)


def _listed(value: Any) -> Sequence[Any]:
    return list(value) if isinstance(value, list | tuple | set) else [value]


def _split(key: str, text: str) -> Sequence[str]:
    """The values in a text."""
    return [part for part in SPLIT.get(key, comma_list)(text) if part]


@dataclass(frozen=True)
class PointFilter:
    """Selects the points of a study to compute."""

    exclude: tuple[Rule, ...] = ()
    only: Rule | None = None

    def __call__(self, names: Names) -> bool:
        """Whether a point is selected, or, for a part of a study, some of its points may be."""
        if self.only is not None and not self.only.may_hold(names):
            return False
        return not any(rule.holds(names) for rule in self.exclude)
