"""How the demonstrations of a prompt are chosen, as ``--select`` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from icl_bench.demonstrations.interface import NO_LABELS, Encoders, Retriever, SharedSelector
from icl_bench.demonstrations.random import Random
from icl_bench.errors import ChoiceError, UserError
from icl_bench.registry import SELECTORS
from icl_bench.wording import comma_list, nearest, plain

RANDOM = Random()


@dataclass(frozen=True)
class SelectorSpec:
    """One way to choose: ``SelectorSpec.parse(str(spec)) == spec``.

    A prompt of k demonstrations begins with ``k - S`` that all queries share and ends with S of the
    query's own, the most similar last (the hybrid of Golchin et al. 2025), of which none repeats a
    text and label. Either part may be empty: ``random`` has S = 0, retrieval S = k. The query's own
    may be the most similar of each label: then their number is that of the labels times ``each``,
    the label of the most similar one is last, and without a shared part that number is k.
    """

    base: SharedSelector | None = RANDOM
    """What chooses the shared part; None where there is none."""
    by: str | None = None
    """The retriever that chooses the query's own part; None where there is none."""
    own: int | None = 0
    """S; None for all k, and for a number that follows from the labels."""
    each: int | None = None
    """How many of each label the query's own part has; None where it does not go by labels."""

    def __post_init__(self) -> None:
        retrieval = self.base is None and self.by is not None and self.own is None
        shared = self.base is not None and self.by is None and self.own == 0
        counted = (self.own or 0) > 0 if self.each is None else self.own is None
        hybrid = self.base is not None and self.by is not None and counted
        if not (retrieval or hybrid or (shared and self.each is None)):
            raise ValueError(f"no way to choose: {self.base}, {self.by}, {self.own} of its own")

    @classmethod
    def parse(cls, text: str) -> SelectorSpec:
        """Read one. Raises ``UserError`` that names the part that is wrong."""
        shown = f"--select {plain(text[:80])}"
        names, options = _parts(text, shown)
        *bases, last = names
        name, colon, count = last.partition(":")
        if name == "hybrid":
            base_name = _base_name(bases, shown)
            part, _, each = count.partition(":")
            if part == PER_LABEL:
                by = _similarity(options, PER_LABEL_BY, shown)
                return cls(_shared(base_name, options, shown), by, None, _each(each, shown))
            own = _own(count, shown)
            by = _similarity(options, HYBRID_BY, shown)
            return cls(_shared(base_name, options, shown), by, own)
        if name == PER_LABEL and not bases:
            by, number = _similarity(options, PER_LABEL_BY, shown), _each(count, shown)
            for option in options:
                raise UserError(f"{shown}: {option}= goes with {_having(option)} alone")
            return cls(None, by, None, number)
        if bases or colon:
            part = " + ".join(plain(name[:40]) for name in names)
            raise UserError(
                f"{shown}: cannot read {part}; a + goes with hybrid alone, a number with hybrid "
                "and per-label, like hybrid:20, centroids+hybrid:20 or per-label:2"
            )
        if "by" in options:
            raise UserError(f"{shown}: by= goes with hybrid:S and per-label:N alone, like hybrid:20,by=dense")
        if name not in SELECTORS:
            known = nearest(name, [*SELECTORS, *HYBRIDS])
            raise UserError(f"--select {plain(name[:80])}: not a selector; {known}")
        if issubclass(SELECTORS[name], Retriever):
            for option in options:
                raise UserError(f"{shown}: {option}= goes with {_having(option)} alone")
            return cls(None, name, None)
        return cls(_shared(name, options, shown))

    def __str__(self) -> str:
        if self.by is None:
            return str(self.base)
        if self.each is None and self.base is None:
            return self.by
        own, usual = str(self.own), HYBRID_BY
        if self.each is not None:
            own, usual = f"{PER_LABEL}:{self.each}", PER_LABEL_BY
        if self.by != usual:
            own += f",by={self.by}"
        if self.base is None:
            return own
        return f"hybrid:{own}" if self.base == RANDOM else f"{self.base}+hybrid:{own}"

    @property
    def retriever(self) -> type[Retriever] | None:
        """What ranks the pool for each query, where something does."""
        return None if self.by is None else SELECTORS[self.by]

    # -- what follows from it -------------------------------------------------------------------

    @property
    def shared(self) -> bool:
        """Whether all queries see the same demonstrations."""
        return self.by is None

    @property
    def retrieves(self) -> bool:
        """Whether all demonstrations are the query's own."""
        return self.base is None

    @property
    def says_k(self) -> bool:
        """Whether k follows from it and the labels, whatever is asked for."""
        return self.retrieves and self.each is not None

    @property
    def nested(self) -> bool:
        """Whether the shared part for k begins the shared part for every larger k.

        Retrieval has no shared part.
        """
        return self.base is not None and self.base.nested

    @property
    def embeds(self) -> bool:
        """Whether it depends on a sentence encoder."""
        shared, own = self.base, self.retriever
        return (shared is not None and shared.embeds) or (own is not None and own.embeds)

    @property
    def sees_queries(self) -> bool:
        """Whether the shared part was chosen with a look at the (unlabelled) test queries."""
        return self.base is not None and self.base.sees_queries

    @property
    def caution(self) -> str | None:
        """What every table of its results has to say, if anything."""
        if not self.sees_queries:
            return None
        return f"{self}: its demonstrations were chosen with a look at the test queries' texts"

    def facts(self, encoders: Encoders) -> dict[str, Any]:
        """What decides which demonstrations it chooses beside the data. Raises ``UserError``."""
        found = {} if self.retriever is None else dict(self.retriever.facts(encoders))
        return found if self.base is None else found | dict(self.base.facts(encoders))

    def fewest(self, labels: int) -> int:
        """The smallest k there is, of a task with so many labels; 0 where nothing is the query's
        own.
        """
        if self.each is not None:
            return self.each * labels
        return int(self.retrieves) if self.own is None else self.own

    def own_count(self, k: int, labels: int) -> int:
        """How many of k demonstrations are the query's own, of a task with so many labels.

        Raises ``ChoiceError`` if that is more than k.
        """
        if self.retrieves:
            return k
        own = self.fewest(labels)
        if own > k:
            of = f" ({self.each} of each of {labels:,} labels)" if self.each else ""
            raise ChoiceError(
                f"--select {self}: k={k} has no room for {own:,} demonstrations of the query's "
                f"own{of}; ask for k of {own:,} or more"
            )
        return own

    def shared_count(self, k: int, labels: int) -> int:
        """How many of k demonstrations all queries share. Raises as :meth:`own_count` does."""
        return k - self.own_count(k, labels)

    def check_allowed(self, *, labelled: bool) -> None:
        """Raise ``UserError`` where a selection by labels is asked of a task without labels that
        rows have in common.
        """
        by_labels = self.each is not None or (self.base is not None and self.base.needs_labels)
        if by_labels and not labelled:
            raise UserError(f"--select {self}: this task's {NO_LABELS}")


def known(text: str) -> SelectorSpec | None:
    """Read a stored name; None for one that is no choice, as an imported one or a training."""
    try:
        return SelectorSpec.parse(text)
    except UserError:
        return None


def cautions(selects: Iterable[str]) -> list[str]:
    """What has to be said beside results of these names, each once."""
    choices = map(known, sorted(set(map(str, selects))))
    return [choice.caution for choice in choices if choice and choice.caution]


def split(text: str) -> list[str]:
    """Take a comma-separated list apart; the selectors' options have commas too.

    >>> split("random,hybrid:20,by=dense,bm25")
    ['random', 'hybrid:20,by=dense', 'bm25']
    """
    found: list[str] = []
    for word in comma_list(text):
        if found and re.match(r"\w+\s*=", word):
            found[-1] += f",{word}"
        else:
            found.append(word)
    return found


PER_LABEL = "per-label"
HYBRIDS = ("hybrid:S", "centroids+hybrid:S", "balanced+hybrid:S", "per-label:N", "hybrid:per-label:N")
"""How choices with a number are written, for messages."""

HYBRID_BY, PER_LABEL_BY = "bm25", "dense"
"""What the query's own are chosen by, where nothing else is said."""


_NUMBER = re.compile(r"0*[1-9][0-9]{0,8}", re.ASCII)


def retrievers() -> list[str]:
    """The names of all measures of similarity."""
    return [name for name, found in SELECTORS.items() if issubclass(found, Retriever)]


def _bases() -> list[str]:
    return [name for name, found in SELECTORS.items() if issubclass(found, SharedSelector)]


def _options() -> dict[str, dict[str, tuple[str, ...]]]:
    """Option -> the selectors that have it -> the values it may have."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for name in _bases():
        for option, values in SELECTORS[name].options.items():
            found.setdefault(option, {})[name] = values
    return found


def _having(option: str) -> str:
    """The selectors that have an option."""
    return ", ".join(_options()[option])


def _parts(text: str, shown: str) -> tuple[list[str], dict[str, str]]:
    """The names that stand between pluses, and the options of all of them."""
    names, options = [], {}
    for part in text.split("+"):
        name, *words = (word.strip() for word in part.split(","))
        names.append(name)
        for word in words:
            option, _, value = (piece.strip() for piece in word.partition("="))
            if option != "by" and option not in _options():
                *others, last = retrievers()
                own = (f"{o}={v}" for o, of in _options().items() for vs in of.values() for v in vs[1:])
                raise UserError(
                    f"{shown}: {plain(word[:40])} is no option; there are by={', '.join(others)} "
                    f"or {last}, and {', '.join(own)}"
                )
            if option in options:
                raise UserError(f"{shown}: {option}= is there twice")
            options[option] = value
    return names, options


def _base_name(names: list[str], shown: str) -> str:
    """The name of what chooses the shared part of a hybrid."""
    if len(names) > 1:
        raise UserError(f"{shown}: only one selector can stand before +hybrid:S")
    if not names:
        return Random.name
    if names[0] not in _bases():
        raise UserError(f"{shown}: {plain(names[0][:40])} cannot stand before +hybrid:S; {nearest(names[0], _bases())}")
    return names[0]


def _own(count: str, shown: str) -> int:
    return _number(count, f"{shown}: hybrid", "are the query's own", "hybrid:20")


def _each(count: str, shown: str) -> int:
    return _number(count, f"{shown}: per-label", "of each label", "per-label:2")


def _number(count: str, shown: str, which: str, like: str) -> int:
    """How many demonstrations a choice says. Raises ``UserError``."""
    if not _NUMBER.fullmatch(count):
        raise UserError(f"{shown} says how many demonstrations {which}, a whole number from 1 up, like {like}")
    return int(count)


def _similarity(options: dict[str, str], usual: str, shown: str) -> str:
    """What ``by=`` names; taken out of the options."""
    by = options.pop("by", usual)
    if by not in retrievers():
        known = nearest(by, retrievers())
        raise UserError(f"{shown}: by={plain(by[:40])}: not a similarity; {known}")
    return by


def _shared(name: str, options: dict[str, str], shown: str) -> SharedSelector:
    """The selector of the shared part, with its options."""
    found: Any = SELECTORS[name]
    for option, value in options.items():
        if option not in found.options:
            raise UserError(f"{shown}: {option}= goes with {_having(option)} alone")
        if value not in found.options[option]:
            known = nearest(value, found.options[option])
            raise UserError(f"{shown}: {option}={plain(value[:40])}: not known; {known}")
    made: SharedSelector = found(**options)
    return made
