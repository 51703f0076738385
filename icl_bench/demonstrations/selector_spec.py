"""The selection of a prompt's demonstrations, written as in ``--select``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from icl_bench.demonstrations.interface import NO_LABELS, Diversity, Encoders, Retriever, SharedSelector
from icl_bench.demonstrations.parameters import argument_of, options_of, parse_values
from icl_bench.demonstrations.random import Random
from icl_bench.errors import ChoiceError, UserError
from icl_bench.registry import SELECTORS, PluginError
from icl_bench.wording import comma_list, listed, nearest, plain

RANDOM = Random()


@dataclass(frozen=True)
class SelectorSpec:
    """A selection: ``SelectorSpec.parse(str(spec)) == spec``.

    A prompt of k demonstrations begins with ``k - S`` that all queries share and ends with S of the
    query's own, the most similar last (the hybrid of Golchin et al. 2025). None of the query's own
    repeats a text and label. Either part may be empty: ``random`` has S = 0, retrieval S = k. The
    query's own may be the most similar of each label. Then S is the number of labels times
    ``each``, the label of the most similar one is last, and without a shared part k = S.
    """

    base: SharedSelector | None = RANDOM
    """The selector of the shared part; None if there is no such part."""
    by: str | None = None
    """The retriever of the query's own part; None if there is no such part."""
    own: int | None = 0
    """S; None for all k, and if S follows from the labels."""
    each: int | None = None
    """The number of each label in the query's own part; None if it is not chosen by label."""
    diverse: Diversity | None = None
    """The selector of all demonstrations of a query together; None if they are the most similar ones."""

    def __post_init__(self) -> None:
        retrieval = self.base is None and self.by is not None and self.own is None
        shared = self.base is not None and self.by is None and self.own == 0
        counted = (self.own or 0) > 0 if self.each is None else self.own is None
        hybrid = self.base is not None and self.by is not None and counted
        if not (retrieval or hybrid or (shared and self.each is None)):
            raise ValueError(f"not a valid selection: base {self.base}, by {self.by}, own {self.own}")
        if self.diverse is not None and not (retrieval and self.each is None and self.by == self.diverse.by):
            raise ValueError(f"not a valid selection: {self.diverse} chooses all demonstrations, by {self.diverse.by}")

    @classmethod
    def parse(cls, text: str) -> SelectorSpec:
        """Parse a selection. Raises ``UserError`` that names the wrong part."""
        option_text = f"--select {plain(text[:80])}"
        *bases, last = _parts(text, option_text)
        if last.name == HYBRID:
            return cls._read_hybrid(bases, last, option_text)
        if last.name == PER_LABEL and not bases:
            by = _pop_similarity(last.options, PER_LABEL_BY, option_text)
            each = _parse_each(last.argument or "", option_text)
            _refuse_options(last.options, option_text)
            return cls(None, by, None, each)
        selector = _selector(last.name)
        if not bases and selector is None and _is_family(last.name):
            hint = nearest(last.written, SELECTORS.names)
            raise UserError(f"--select {plain(last.written[:80])}: not a selector; {hint}")
        if bases or _has_unexpected_argument(last.argument, selector):
            part = " + ".join(plain(part.written[:40]) for part in [*bases, last])
            raise UserError(
                f"{option_text}: cannot read {part}; only hybrid takes a +, only hybrid and per-label "
                "a number, like hybrid:20, centroids+hybrid:20 or per-label:2"
            )
        if selector is None:
            hint = nearest(last.name, [*SELECTORS.names, *HYBRIDS])
            raise UserError(f"--select {plain(last.name[:80])}: not a selector; {hint}")
        if issubclass(selector, Retriever):
            _refuse_options(last.options, option_text)
            return cls(None, last.name, None)
        if issubclass(selector, Diversity):
            diverse: Diversity = _configured(last, last.options, option_text)
            return cls(None, diverse.by, None, diverse=diverse)
        return cls(_shared_selector(last, last.options, option_text))

    @classmethod
    def _read_hybrid(cls, bases: Sequence[SelectorPart], hybrid: SelectorPart, option_text: str) -> SelectorSpec:
        """Parse a selection with a shared part and a part of the query's own."""
        base = _base(bases, option_text)
        of_base, of_hybrid = _split_options(base, hybrid, option_text)
        part, _, each = (hybrid.argument or "").partition(":")
        if part == PER_LABEL:
            by = _pop_similarity(of_hybrid, PER_LABEL_BY, option_text)
            return cls(_shared_selector(base, of_base, option_text), by, None, _parse_each(each, option_text))
        own = _parse_count(hybrid.argument or "", f"{option_text}: hybrid", "are the query's own", "hybrid:20")
        by = _pop_similarity(of_hybrid, HYBRID_BY, option_text)
        return cls(_shared_selector(base, of_base, option_text), by, own)

    def __str__(self) -> str:
        if self.by is None:
            return str(self.base)
        if self.diverse is not None:
            return str(self.diverse)
        if self.each is None and self.base is None:
            return self.by
        own, default_by = str(self.own), HYBRID_BY
        if self.each is not None:
            own, default_by = f"{PER_LABEL}:{self.each}", PER_LABEL_BY
        if self.by != default_by:
            own += f",by={self.by}"
        if self.base is None:
            return own
        return f"hybrid:{own}" if self.base == RANDOM else f"{self.base}+hybrid:{own}"

    @property
    def retriever(self) -> type[Retriever] | None:
        """The class that ranks the pool for each query, or None."""
        return None if self.by is None else SELECTORS[self.by]

    # -- properties of the selection ------------------------------------------------------------

    @property
    def shared(self) -> bool:
        """Whether all queries have the same demonstrations."""
        return self.by is None

    @property
    def retrieves(self) -> bool:
        """Whether all demonstrations are the query's own."""
        return self.base is None

    @property
    def drawn(self) -> bool:
        """Whether another draw may have other demonstrations, except those that complete a retrieval."""
        return self.base is not None and self.base.drawn

    @property
    def says_k(self) -> bool:
        """Whether it determines k, together with the number of labels."""
        return self.retrieves and self.each is not None

    @property
    def nested(self) -> bool:
        """Whether there is a shared part that begins the shared part for every larger k."""
        return self.base is not None and self.base.nested

    @property
    def embeds(self) -> bool:
        """Whether it depends on a sentence encoder."""
        shared, own = self.base, self.retriever
        return (shared is not None and shared.embeds) or (own is not None and own.embeds)

    @property
    def reads_answers(self) -> bool:
        """Whether its selection depends on the answers of demonstrations in the data."""
        by = self.by or (self.base.similarity if self.base else None)
        compares = by is not None and SELECTORS[by].compares == "demonstrations"
        return compares or self.each is not None or (self.base is not None and self.base.needs_labels)

    @property
    def sees_queries(self) -> bool:
        """Whether the selection of the shared part uses the (unlabelled) test queries."""
        return self.base is not None and self.base.sees_queries

    @property
    def caution(self) -> str | None:
        """A note for every table of its results, or None."""
        if not self.sees_queries:
            return None
        return f"{self}: the texts of the test queries were used to choose its demonstrations"

    def facts(self, encoders: Encoders) -> dict[str, Any]:
        """Facts that its selection depends on besides the data. Raises ``UserError``."""
        facts = {} if self.retriever is None else dict(self.retriever.facts(encoders))
        return facts if self.base is None else facts | dict(self.base.facts(encoders))

    def fewest(self, labels: int) -> int:
        """The smallest possible k for a task with this number of labels; 0 if all are shared."""
        if self.each is not None:
            return self.each * labels
        return int(self.retrieves) if self.own is None else self.own

    def own_count(self, k: int, labels: int) -> int:
        """The number of k demonstrations that are the query's own, for a task with this number of labels.

        Raises ``ChoiceError`` if that is more than k.
        """
        if self.retrieves:
            return k
        own = self.fewest(labels)
        if own > k:
            of = f" ({self.each} of each of {labels:,} labels)" if self.each else ""
            raise ChoiceError(
                f"--select {self}: k={k} has no room for {own:,} demonstrations of the query's "
                f"own{of}; use a k of {own:,} or more"
            )
        return own

    def shared_count(self, k: int, labels: int) -> int:
        """The number of k demonstrations that all queries share. Raises like :meth:`own_count`."""
        return k - self.own_count(k, labels)

    def check_allowed(self, *, labelled: bool) -> None:
        """Raise ``UserError`` if it selects by label and the task's rows have no labels in common."""
        by_labels = self.each is not None or (self.base is not None and self.base.needs_labels)
        if by_labels and not labelled:
            raise UserError(f"--select {self}: this task's {NO_LABELS}")


def known(text: str) -> SelectorSpec | None:
    """Parse a stored name. Returns None if it is not a selection (imported results, trained models) or if its plugin
    cannot be used.
    """
    try:
        return SelectorSpec.parse(text)
    except PluginError as error:
        SELECTORS.warn_of(error)
        return None
    except UserError:
        return None


def cautions(selects: Iterable[str]) -> list[str]:
    """The notes for results of these selections, each once."""
    specs = map(known, sorted(set(map(str, selects))))
    return [spec.caution for spec in specs if spec and spec.caution]


def split(text: str) -> list[str]:
    """Split a comma-separated list of selectors, whose options have commas too.

    >>> split("random,hybrid:20,by=dense,bm25")
    ['random', 'hybrid:20,by=dense', 'bm25']
    """
    items: list[str] = []
    for word in comma_list(text):
        if items and re.match(r"\w+\s*=", word):
            items[-1] += f",{word}"
        else:
            items.append(word)
    return items


HYBRID = "hybrid"
PER_LABEL = "per-label"
HYBRIDS = ("hybrid:S", "centroids+hybrid:S", "balanced+hybrid:S", "per-label:N", "hybrid:per-label:N")
"""The syntax of selections with a number, for messages."""

HYBRID_BY, PER_LABEL_BY = "bm25", "dense"
"""The default retrievers of the query's own part."""

_COUNT = re.compile(r"0*[1-9][0-9]{0,8}", re.ASCII)


class SelectorPart(NamedTuple):
    """A part of a selection, separated by pluses: ``name:argument,option=value``."""

    name: str
    argument: str | None
    options: dict[str, str]

    @property
    def written(self) -> str:
        """Name and argument."""
        return self.name if self.argument is None else f"{self.name}:{self.argument}"


def retrievers() -> list[str]:
    """The names of all retrievers."""
    return [name for name, selector in SELECTORS.items() if issubclass(selector, Retriever)]


def _bases() -> list[str]:
    return [name for name, selector in SELECTORS.items() if issubclass(selector, SharedSelector)]


def _selector(name: str) -> type[SharedSelector | Retriever | Diversity] | None:
    """The class of this name, or None if it is unknown. Raises ``PluginError``."""
    return SELECTORS[name] if name in SELECTORS else None  # noqa: SIM401 - get() skips what does not load


def _is_family(name: str) -> bool:
    """Whether names of selectors begin with this one and a colon."""
    return any(other.startswith(f"{name}:") for other in SELECTORS.names)


def _has_unexpected_argument(argument: str | None, selector: type | None) -> bool:
    """Whether a selector has an argument but does not take one."""
    return argument is not None and (selector is None or argument_of(selector) is None)


def _parts(text: str, option_text: str) -> list[SelectorPart]:
    parts = []
    for part in text.split("+"):
        first, *words = (word.strip() for word in part.split(","))
        name, colon, argument = (first, "", "") if first in SELECTORS else first.partition(":")
        options: dict[str, str] = {}
        for word in words:
            option, equals, value = (piece.strip() for piece in word.partition("="))
            if not equals:
                raise _unknown_option(word, option_text)
            if option in options:
                raise UserError(f"{option_text}: {option}= is given twice")
            options[option] = value
        parts.append(SelectorPart(name, argument if colon else None, options))
    return parts


def _base(parts: Sequence[SelectorPart], option_text: str) -> SelectorPart:
    """The selector of the shared part of a hybrid."""
    if len(parts) > 1:
        raise UserError(f"{option_text}: only one selector can be combined with +hybrid:S")
    if not parts:
        return SelectorPart(Random.name, None, {})
    (base,) = parts
    selector = _selector(base.name)
    if (
        selector is None
        or not issubclass(selector, SharedSelector)
        or _has_unexpected_argument(base.argument, selector)
    ):
        raise UserError(
            f"{option_text}: {plain(base.written[:40])} cannot be combined with +hybrid:S; "
            f"{nearest(base.name, _bases())}"
        )
    return base


def _split_options(base: SelectorPart, hybrid: SelectorPart, option_text: str) -> tuple[dict[str, str], dict[str, str]]:
    """The options of base and hybrid. An option of one may follow the other."""
    of_base: dict[str, str] = {}
    of_hybrid: dict[str, str] = {}
    base_options = options_of(SELECTORS[base.name])
    for part in (base, hybrid):
        for option, value in part.options.items():
            target = of_hybrid if option == "by" and (part is hybrid or option not in base_options) else of_base
            if option in target:
                raise UserError(f"{option_text}: {option}= is given twice")
            target[option] = value
    return of_base, of_hybrid


def _refuse_options(options: Mapping[str, str], option_text: str) -> None:
    """Raise ``UserError`` for the first of options that the selector does not have."""
    for option, value in options.items():
        if option == "by":
            raise UserError(
                f"{option_text}: by= is an option of hybrid:S and per-label:N only, like hybrid:20,by=dense"
            )
        having = _options().get(option)
        if having is None:
            raise _unknown_option(f"{option}={value}", option_text)
        raise UserError(f"{option_text}: {option}= is an option of {listed(having)} only")


def _options() -> dict[str, list[str]]:
    """Option -> the selectors that have it."""
    selectors_of: dict[str, list[str]] = {"by": [HYBRID, PER_LABEL]}
    for name, selector in SELECTORS.items():
        for option in options_of(selector):
            selectors_of.setdefault(option, []).append(name)
    return selectors_of


def _unknown_option(word: str, option_text: str) -> UserError:
    options = listed(f"{option}= (of {listed(names)})" for option, names in _options().items())
    return UserError(f"{option_text}: {plain(word[:40])} is not an option; there are {options}")


def _parse_each(count: str, option_text: str) -> int:
    return _parse_count(count, f"{option_text}: per-label", "of each label", "per-label:2")


def _parse_count(count: str, option_text: str, meaning: str, example: str) -> int:
    """Parse a number of demonstrations. Raises ``UserError``."""
    if not _COUNT.fullmatch(count):
        raise UserError(
            f"{option_text}: how many demonstrations {meaning}? Expected a whole number of at least 1, like {example}"
        )
    return int(count)


def _pop_similarity(options: dict[str, str], default: str, option_text: str) -> str:
    """The retriever that ``by=`` names. Removes it from the options."""
    by = options.pop("by", default)
    if by not in SELECTORS or not issubclass(SELECTORS[by], Retriever):
        hint = nearest(by, retrievers())
        raise UserError(f"{option_text}: by={plain(by[:40])}: not a similarity; {hint}")
    return by


def _shared_selector(part: SelectorPart, options: Mapping[str, str], option_text: str) -> SharedSelector:
    """The selector of the shared part, with its parameters."""
    selector: SharedSelector = _configured(part, options, option_text)
    return selector


def _configured(part: SelectorPart, options: Mapping[str, str], option_text: str) -> Any:
    """The selector that a part names, with its parameters."""
    selector: Any = SELECTORS[part.name]
    options_of_selector, argument = options_of(selector), argument_of(selector)
    _refuse_options(
        {option: value for option, value in options.items() if option not in options_of_selector}, option_text
    )
    values = dict(options)
    if argument is not None:
        if not part.argument:
            raise UserError(f"{option_text}: {argument} is missing, like {part.name}:{argument.upper()}")
        values[argument] = part.argument
    return selector(**parse_values(selector, values, option_text))
