"""Parameters of selectors of other packages: typed fields, written and read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.outside import installed

from icl_bench.demonstrations import selector_spec
from icl_bench.demonstrations.selector_spec import SelectorSpec, split
from icl_bench.errors import UserError
from icl_bench.registry import SELECTORS

CODE = """
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from icl_bench.demonstrations.interface import Diversity, SharedSelector


@dataclass(frozen=True)
class Mine(SharedSelector):
    size: Annotated[int, Field(ge=1)]
    by: Literal["letters", "words"] = "letters"
    of: str = "inputs"
    share: float = 0.5
    near: bool = False
    limit: int | None = None
    name = "mine"

    def choose(self, pool, draw, k):
        return pool.drawn(draw)[:k]


@dataclass(frozen=True)
class Two(SharedSelector):
    first: int
    second: int
    name = "two"
    choose = Mine.choose


@dataclass(frozen=True)
class Apart(Diversity):
    in_: int = 2
    name = "apart"
    by = "bm25"

    def choose(self, pool, k):
        return pool.places(pool.drawn(0)[:k])[None].repeat(len(pool.data.test), 0)
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with three selectors."""
    entries = "mine = selector_of_mine:Mine\ntwo = selector_of_mine:Two\napart = selector_of_mine:Apart"
    known = installed(tmp_path, monkeypatch, SELECTORS, entries, CODE, dict(SELECTORS._built_in))
    monkeypatch.setattr(selector_spec, "SELECTORS", known)
    yield
    sys.modules.pop("selector_of_mine", None)


WRITTEN = [
    "mine:3",
    "mine:3,by=words",
    "mine:3,by=words,of=answers,share=0.25,near=true,limit=7",
    "mine:3,share=1e20",
    "mine:3+hybrid:5",
    "mine:3,by=words+hybrid:5,by=dense",
    "mine:3,of=x y+hybrid:per-label:2",
    "apart",
    "apart,in=3",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_parameters_read_back_what_they_write(text: str) -> None:
    spec = SelectorSpec.parse(text)
    assert str(spec) == text
    assert SelectorSpec.parse(str(spec)) == spec
    assert split(f"random,{text},bm25") == ["random", text, "bm25"]


def test_values_have_the_types_of_their_fields() -> None:
    base = SelectorSpec.parse("mine:03,near=yes,limit=7,share=1").base
    assert vars(base) == {"size": 3, "by": "letters", "of": "inputs", "share": 1.0, "near": True, "limit": 7}
    assert str(SelectorSpec.parse("mine:3,by=letters,share=0.50,near=no")) == "mine:3"


@pytest.mark.parametrize(
    ("text", "base", "by"),
    [
        ("mine:3,by=words+hybrid:5", "words", "bm25"),
        ("mine:3+hybrid:5,by=dense", "letters", "dense"),
        ("mine:3+hybrid:5,by=dense,of=x", "letters", "dense"),
    ],
)
def test_an_option_that_both_parts_have_belongs_to_the_one_that_it_follows(text: str, base: str, by: str) -> None:
    spec = SelectorSpec.parse(text)
    assert (getattr(spec.base, "by", None), spec.by) == (base, by)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mine", "size is missing, like mine:SIZE"),
        ("mine:", "size is missing"),
        ("mine:x", "size=x: input should be a valid integer"),
        ("mine:0", "size=0: input should be greater than or equal to 1"),
        ("mine:3,by=word", "by=word: not known; did you mean words"),
        ("mine:3,share=half", "share=half: input should be a valid number"),
        (
            "mine:3,size=4",
            "size=4 is not an option; there are by= .of hybrid, per-label and mine., of= .of centroids and mine",
        ),
        ("mine:3,by=words,by=letters", "by= is given twice"),
        ("mine+hybrid:5", "size is missing"),
        ("random,share=1", "share= is an option of mine only"),
        ("random:3+hybrid:5", "random:3 cannot be combined with"),
        ("two:3", "selector Two: first and second have no default"),
    ],
)
def test_a_mistake_in_a_parameter_is_named_on_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        SelectorSpec.parse(text)
    assert "\n" not in str(refused.value)
