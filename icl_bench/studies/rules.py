"""Which points of a study are meant: ``exclude`` in its file, and ``--only``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icl_bench.demonstrations import selector_spec
from icl_bench.errors import UserError
from icl_bench.models import attention_patterns
from icl_bench.wording import comma_list, nearest, plain

KEYS = ("task", "model", "setting", "select", "order", "attention", "k", "draw", "perturbation", "labels", "queries")
"""What rules may name: a cell's axes, the block it is of, and what blocks may set."""

SPLIT = {"attention": attention_patterns.split, "select": selector_spec.split}
"""How values are told apart whose names have commas."""

Names = Mapping[str, frozenset[str]]
"""What a point is called, by key; of a part of a study only some keys are known."""


@dataclass(frozen=True)
class Rule:
    """Values of some keys; a point that has one of each is meant."""

    values: Mapping[str, frozenset[str]]

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Rule:
        """Of a file's mapping: a value, or a list of some. Raises ``UserError``."""
        if not given:
            raise UserError("names nothing; give task, model, select, k, ...")
        for key in given:
            if key not in KEYS:
                raise UserError(f"{plain(key)}: is nothing to choose by; {nearest(str(key), KEYS)}")
        listed = {key: value if isinstance(value, list | tuple | set) else [value] for key, value in given.items()}
        return cls({key: frozenset(map(str, values)) for key, values in listed.items()})

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Rule:
        """Of ``--only KEY=VALUE[,VALUE...]``, each of which must hold. Raises ``UserError``."""
        given: dict[str, set[str]] = {}
        for text in texts:
            key, equals, values = text.partition("=")
            words = set(SPLIT.get(key, comma_list)(values))
            if not equals or not words:
                raise UserError(f"--only {plain(text)}: expected KEY=VALUE, like task=banking77")
            if key in given:
                raise UserError(f"--only {key}: is there twice; write {key}=A,B for several")
            given[key] = words
        try:
            return cls.read(given)
        except UserError as error:
            raise UserError(f"--only {error}") from None

    def holds(self, names: Names) -> bool:
        """Whether all its keys are known of a point, and have one of its values."""
        return all(values & names.get(key, frozenset()) for key, values in self.values.items())

    def may_hold(self, names: Names) -> bool:
        """Whether nothing that is known of a point is against it."""
        return all(values & names[key] for key, values in self.values.items() if key in names)


@dataclass(frozen=True)
class Wanted:
    """Which points of a study are computed."""

    exclude: tuple[Rule, ...] = ()
    only: Rule | None = None

    def __call__(self, names: Names) -> bool:
        """Whether a point is wanted, or, of a part of a study, some of its points may be."""
        if self.only is not None and not self.only.may_hold(names):
            return False
        return not any(rule.holds(names) for rule in self.exclude)
