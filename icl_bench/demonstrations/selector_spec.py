"""How the demonstrations of a prompt are chosen, as ``--select`` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from icl_bench.errors import UserError
from icl_bench.wording import nearest, plain

Base = Literal["random", "centroids", "balanced"]


Of = Literal["pool", "queries"]


By = Literal["bm25", "bertscore", "dense"]


KNOWN = (
    "random", "centroids", "balanced", "bm25", "bertscore", "dense",
    "hybrid:S", "centroids+hybrid:S", "balanced+hybrid:S",
)  # fmt: skip


@dataclass(frozen=True)
class SelectorSpec:
    """One way to choose, written as in ``--select``: ``SelectorSpec.parse(str(choice)) == choice``.

    A prompt of k demonstrations begins with ``k - S`` that all queries share and ends with S of the
    query's own, the most similar last (the hybrid of Golchin et al. 2025), of which none repeats a
    text and label. Either part may be empty: ``random`` has S = 0, retrieval S = k.
    """

    base: Base | None = "random"
    """What chooses the shared part; None where there is none."""
    of: Of = "pool"
    """What the k-means of ``centroids`` is of."""
    by: By | None = None
    """The similarity that chooses the query's own part; None where there is none."""
    own: int | None = 0
    """S; None for all k."""

    def __post_init__(self) -> None:
        retrieval = self.base is None and self.by is not None and self.own is None
        shared = self.base is not None and self.by is None and self.own == 0
        hybrid = self.base is not None and self.by is not None and (self.own or 0) > 0
        if not (retrieval or shared or hybrid):
            raise ValueError(f"no way to choose: {self.base}, {self.by}, {self.own} of its own")
        if self.of != "pool" and self.base != "centroids":
            raise ValueError(f"{self.base} is not of {self.of}")

    @classmethod
    def parse(cls, text: str) -> SelectorSpec:
        """Read one. Raises ``UserError`` that names the part that is wrong."""
        shown = f"--select {plain(text[:80])}"
        names, options = _parts(text, shown)
        *bases, last = names
        name, colon, count = last.partition(":")
        if name == "hybrid":
            base = _base(bases, shown)
            own = _own(count, shown)
            by = _one_of(By, options.pop("by", "bm25"), "by", "similarity", shown)
            of = _of(base, options, shown)
            return cls(base, of, by, own)
        if bases or colon:
            part = " + ".join(plain(name[:40]) for name in names)
            raise UserError(
                f"{shown}: cannot read {part}; a number and a + go with hybrid alone, "
                "like hybrid:20 or centroids+hybrid:20"
            )
        if "by" in options:
            raise UserError(f"{shown}: by= goes with hybrid:S alone, like hybrid:20,by=dense")
        if name in get_args(By):
            if "of" in options:
                raise UserError(f"{shown}: of= goes with centroids alone")
            return cls(None, "pool", _one_of(By, name, "by", "similarity", shown), None)
        if name not in get_args(Base):
            raise UserError(f"--select {plain(name[:80])}: not a selector; {nearest(name, KNOWN)}")
        base = _base([name], shown)
        return cls(base, _of(base, options, shown))

    def __str__(self) -> str:
        if self.own is None:
            return str(self.by)
        base = f"{self.base},of={self.of}" if self.of != "pool" else str(self.base)
        if self.by is None:
            return base
        hybrid = f"hybrid:{self.own}" + (f",by={self.by}" if self.by != "bm25" else "")
        return hybrid if self.base == "random" else f"{base}+{hybrid}"

    # -- what follows from it -------------------------------------------------------------------

    @property
    def shared(self) -> bool:
        """Whether all queries see the same demonstrations."""
        return self.by is None

    @property
    def retrieves(self) -> bool:
        """Whether all demonstrations are the query's own."""
        return self.own is None

    @property
    def nested(self) -> bool:
        """Whether the shared part for k begins the shared part for every larger k.

        Not for ``centroids``: another k has other clusters. Retrieval has no shared part.
        """
        return self.base in ("random", "balanced")

    @property
    def embeds(self) -> bool:
        """Whether it depends on a sentence encoder."""
        return self.base == "centroids" or self.by == "dense"

    @property
    def uses_encoder(self) -> bool:
        """Whether it depends on an encoder of either kind, whose name belongs to the results."""
        return self.embeds or self.by == "bertscore"

    @property
    def sees_queries(self) -> bool:
        """Whether the shared part was chosen with a look at the (unlabelled) test queries."""
        return self.of == "queries"

    @property
    def caution(self) -> str | None:
        """What every table of its results has to say, if anything."""
        if not self.sees_queries:
            return None
        return f"{self}: its demonstrations were chosen with a look at the test queries' texts"

    def own_count(self, k: int) -> int:
        """How many of k demonstrations are the query's own. Raises ``UserError`` if S > k."""
        if self.own is None:
            return k
        if self.own > k:
            raise UserError(
                f"--select {self}: k={k} has no room for {self.own} demonstrations of the query's "
                f"own; ask for k of {self.own} or more"
            )
        return self.own

    def shared_count(self, k: int) -> int:
        """How many of k demonstrations all queries share. Raises ``UserError`` if S > k."""
        return k - self.own_count(k)

    def check_allowed(self, *, labelled: bool) -> None:
        """Raise ``UserError`` where a task without labels is to be balanced by label."""
        if self.base == "balanced" and not labelled:
            raise UserError(f"--select {self}: this task's answers are free text, not labels")


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
    for word in filter(None, map(str.strip, text.split(","))):
        if found and re.match(r"\w+\s*=", word):
            found[-1] += f",{word}"
        else:
            found.append(word)
    return found


def _parts(text: str, shown: str) -> tuple[list[str], dict[str, str]]:
    """The names that stand between pluses, and the options of all of them."""
    names, options = [], {}
    for part in text.split("+"):
        name, *words = (word.strip() for word in part.split(","))
        names.append(name)
        for word in words:
            option, _, value = (piece.strip() for piece in word.partition("="))
            if option not in ("by", "of"):
                raise UserError(
                    f"{shown}: {plain(word[:40])} is no option; there are by=bm25, bertscore or "
                    "dense, and of=queries"
                )
            if option in options:
                raise UserError(f"{shown}: {option}= is there twice")
            options[option] = value
    return names, options


def _base(names: list[str], shown: str) -> Base:
    if len(names) > 1:
        raise UserError(f"{shown}: only one selector can stand before +hybrid:S")
    for base in get_args(Base):
        if names in ([], [base]):
            return base  # type: ignore[no-any-return]
    raise UserError(
        f"{shown}: {plain(names[0][:40])} cannot stand before +hybrid:S; "
        f"{nearest(names[0], get_args(Base))}"
    )


def _own(count: str, shown: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", count, re.ASCII):
        raise UserError(
            f"{shown}: hybrid says how many demonstrations are the query's own, "
            "a whole number from 1 up, like hybrid:20"
        )
    return int(count)


def _of(base: Base, options: dict[str, str], shown: str) -> Of:
    if "of" not in options:
        return "pool"
    if base != "centroids":
        raise UserError(f"{shown}: of= goes with centroids alone")
    of: Of = _one_of(Of, options["of"], "of", "set to cluster", shown)
    return of


def _one_of(kind: Any, value: str, option: str, what: str, shown: str) -> Any:
    if value not in get_args(kind):
        known = nearest(value, get_args(kind))
        raise UserError(f"{shown}: {option}={plain(value[:40])}: not a {what}; {known}")
    return value
