"""How the demonstrations of a prompt are chosen, as ``--select`` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from icl_bench.demonstrations.interface import NO_LABELS, Encoders, Retriever, SharedSelector
from icl_bench.demonstrations.parameters import argument_of, options_of, read
from icl_bench.demonstrations.random import Random
from icl_bench.errors import ChoiceError, UserError
from icl_bench.registry import SELECTORS, PluginError
from icl_bench.wording import comma_list, listed, nearest, plain

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
        *bases, last = _parts(text, shown)
        if last.name == HYBRID:
            return cls._read_hybrid(bases, last, shown)
        if last.name == PER_LABEL and not bases:
            by, number = _similarity(last.options, PER_LABEL_BY, shown), _each(last.argument or "", shown)
            _refuse(last.options, shown)
            return cls(None, by, None, number)
        selector = _selector(last.name)
        if bases or _is_astray(last.argument, selector):
            part = " + ".join(plain(part.written[:40]) for part in [*bases, last])
            raise UserError(
                f"{shown}: cannot read {part}; a + goes with hybrid alone, a number with hybrid "
                "and per-label, like hybrid:20, centroids+hybrid:20 or per-label:2"
            )
        if selector is None:
            known = nearest(last.name, [*SELECTORS.names, *HYBRIDS])
            raise UserError(f"--select {plain(last.name[:80])}: not a selector; {known}")
        if issubclass(selector, Retriever):
            _refuse(last.options, shown)
            return cls(None, last.name, None)
        return cls(_shared(last, last.options, shown))

    @classmethod
    def _read_hybrid(cls, bases: Sequence[Part], hybrid: Part, shown: str) -> SelectorSpec:
        """Read what has a part of the query's own behind a shared one."""
        base = _base(bases, shown)
        of_base, of_hybrid = _dealt(base, hybrid, shown)
        part, _, each = (hybrid.argument or "").partition(":")
        if part == PER_LABEL:
            by = _similarity(of_hybrid, PER_LABEL_BY, shown)
            return cls(_shared(base, of_base, shown), by, None, _each(each, shown))
        own = _own(hybrid.argument or "", shown)
        by = _similarity(of_hybrid, HYBRID_BY, shown)
        return cls(_shared(base, of_base, shown), by, own)

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
    """Read a stored name; None for one that is no choice, as an imported one or a training, or whose
    plugin cannot be used.
    """
    try:
        return SelectorSpec.parse(text)
    except PluginError as error:
        SELECTORS.warn_of(error)
        return None
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


HYBRID = "hybrid"
PER_LABEL = "per-label"
HYBRIDS = ("hybrid:S", "centroids+hybrid:S", "balanced+hybrid:S", "per-label:N", "hybrid:per-label:N")
"""How choices with a number are written, for messages."""

HYBRID_BY, PER_LABEL_BY = "bm25", "dense"
"""What the query's own are chosen by, where nothing else is said."""


_NUMBER = re.compile(r"0*[1-9][0-9]{0,8}", re.ASCII)


class Part(NamedTuple):
    """What stands between pluses: ``name:argument,option=value``."""

    name: str
    argument: str | None
    options: dict[str, str]

    @property
    def written(self) -> str:
        """Name and argument."""
        return self.name if self.argument is None else f"{self.name}:{self.argument}"


def retrievers() -> list[str]:
    """The names of all measures of similarity."""
    return [name for name, found in SELECTORS.items() if issubclass(found, Retriever)]


def _bases() -> list[str]:
    return [name for name, found in SELECTORS.items() if issubclass(found, SharedSelector)]


def _selector(name: str) -> type[SharedSelector | Retriever] | None:
    """The class of this name; None for an unknown one. Raises ``PluginError``."""
    return SELECTORS[name] if name in SELECTORS else None  # noqa: SIM401 - get() skips what does not load


def _is_astray(argument: str | None, selector: type | None) -> bool:
    """Whether there is an argument behind a name that takes none."""
    return argument is not None and (selector is None or argument_of(selector) is None)


def _parts(text: str, shown: str) -> list[Part]:
    found = []
    for part in text.split("+"):
        first, *words = (word.strip() for word in part.split(","))
        name, colon, argument = first.partition(":")
        options: dict[str, str] = {}
        for word in words:
            option, equals, value = (piece.strip() for piece in word.partition("="))
            if not equals:
                raise _no_option(word, shown)
            if option in options:
                raise UserError(f"{shown}: {option}= is there twice")
            options[option] = value
        found.append(Part(name, argument if colon else None, options))
    return found


def _base(parts: Sequence[Part], shown: str) -> Part:
    """What chooses the shared part of a hybrid."""
    if len(parts) > 1:
        raise UserError(f"{shown}: only one selector can stand before +hybrid:S")
    if not parts:
        return Part(Random.name, None, {})
    (base,) = parts
    selector = _selector(base.name)
    if selector is None or not issubclass(selector, SharedSelector) or _is_astray(base.argument, selector):
        raise UserError(
            f"{shown}: {plain(base.written[:40])} cannot stand before +hybrid:S; {nearest(base.name, _bases())}"
        )
    return base


def _dealt(base: Part, hybrid: Part, shown: str) -> tuple[dict[str, str], dict[str, str]]:
    """The options of base and hybrid, each of which may be written behind the other."""
    of_base: dict[str, str] = {}
    of_hybrid: dict[str, str] = {}
    own = options_of(SELECTORS[base.name])
    for part in (base, hybrid):
        for option, value in part.options.items():
            given = of_hybrid if option == "by" and (part is hybrid or option not in own) else of_base
            if option in given:
                raise UserError(f"{shown}: {option}= is there twice")
            given[option] = value
    return of_base, of_hybrid


def _refuse(options: Mapping[str, str], shown: str) -> None:
    """Raise ``UserError`` for the first of options that do not belong where they are."""
    for option, value in options.items():
        if option == "by":
            raise UserError(f"{shown}: by= goes with hybrid:S and per-label:N alone, like hybrid:20,by=dense")
        having = _options().get(option)
        if having is None:
            raise _no_option(f"{option}={value}", shown)
        raise UserError(f"{shown}: {option}= goes with {', '.join(having)} alone")


def _options() -> dict[str, list[str]]:
    """Option -> the selectors that have it."""
    found: dict[str, list[str]] = {"by": [HYBRID, PER_LABEL]}
    for name in _bases():
        for option in options_of(SELECTORS[name]):
            found.setdefault(option, []).append(name)
    return found


def _no_option(word: str, shown: str) -> UserError:
    known = listed(f"{option}= (of {listed(names)})" for option, names in _options().items())
    return UserError(f"{shown}: {plain(word[:40])} is no option; there are {known}")


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
    if by not in SELECTORS or not issubclass(SELECTORS[by], Retriever):
        known = nearest(by, retrievers())
        raise UserError(f"{shown}: by={plain(by[:40])}: not a similarity; {known}")
    return by


def _shared(part: Part, options: Mapping[str, str], shown: str) -> SharedSelector:
    """The selector of the shared part, with its parameters."""
    selector: Any = SELECTORS[part.name]
    own, argument = options_of(selector), argument_of(selector)
    _refuse({option: value for option, value in options.items() if option not in own}, shown)
    given = dict(options)
    if argument is not None:
        if not part.argument:
            raise UserError(f"{shown}: {argument} is missing, like {part.name}:{argument.upper()}")
        given[argument] = part.argument
    made: SharedSelector = selector(**read(selector, given, shown))
    return made
