"""Prices of models: as they are written, and from the table of genai-prices."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from icl_bench.errors import UserError
from icl_bench.models.prices import Prices, UnknownModelError, table_prices

SERVER = "https://api.maker.example/v1"


@dataclass
class Tiered:
    base: float
    tiers: list[Any]


@dataclass
class Entry:
    """A model of the table, as ``genai_prices.types.ModelInfo``: prices may change with the day."""

    id: str
    prices: dict[str, Any]
    price_comments: str | None = None

    def get_prices(self, at: datetime) -> Any:
        assert at.tzinfo is not None
        parts = dict.fromkeys(("input_mtok", "cache_read_mtok", "cache_write_mtok", "output_mtok"))
        return SimpleNamespace(**{**parts, **self.prices})


class Table:
    """The table, as ``genai_prices.data_snapshot.DataSnapshot``: lookups raise ``LookupError``."""

    def __init__(self, *models: Entry) -> None:
        self.providers = [SimpleNamespace(id="maker", name="Maker", models=list(models))]

    def find_provider(self, model: None, provider: None, url: str) -> Any:
        if not url.startswith("https://api.maker.example"):
            raise LookupError
        return self.providers[0]

    def find_provider_model(self, model: str, provider: Any, name: str | None, url: None) -> tuple[Any, Any]:
        if name not in (None, "maker"):
            raise LookupError
        for one in self.providers[0].models:
            if one.id == model:
                return self.providers[0], one
        raise LookupError


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"input_mtok": 3, "cache_read_mtok": 0.3, "cache_write_mtok": 3.75, "output_mtok": 15}
    found = Table(
        Entry("large-1", whole, "Checked 2026-03-01, next on 2999-01-01"),
        Entry("small-1", {"input_mtok": 1, "output_mtok": 2}),
        Entry("long-1", {**whole, "input_mtok": Tiered(1, [SimpleNamespace(start=5000)])}),
        Entry("embedder", {"input_mtok": 1}),
        Entry("searches-1", {**whole, "requests_kcount": 12, "output_citation_mtok": 2, "web_searches_kcount": 5}),
        Entry("media-1", {**whole, "input_audio_mtok": 1, "web_searches_kcount": 10, "cache_write_1h_mtok": 6}),
    )
    module, snapshot = ModuleType("genai_prices"), ModuleType("genai_prices.data_snapshot")
    module.__dict__.update(__version__="1.2.3", data_snapshot=snapshot)
    snapshot.__dict__.update(get_snapshot=lambda: found)
    monkeypatch.setitem(sys.modules, "genai_prices", module)
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", snapshot)


@pytest.mark.usefixtures("table")
def test_auto_takes_every_price_from_the_table_and_says_of_which_day() -> None:
    prices = Prices.parse("auto,hour=2").of_model("large-1", SERVER)
    assert prices == Prices(3, 0.3, 15, 3.75, hour=2)
    assert prices.origin == "large-1 of Maker in genai-prices 1.2.3, newest entry of 2026-03-01"
    assert table_prices("media-1") == table_prices("large-1"), "audio, tools and caching for an hour are not used"
    assert table_prices("small-1") == Prices(1, 1, 2, 1), "without a price of its own, a cached token is a new one"
    assert table_prices("maker/small-1", "http://127.0.0.1:4000") == table_prices("small-1")


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("large-2", "large-2: not in the table of genai-prices; did you mean large-1?"),
        ("else", "else: not in the table of genai-prices; give --price input=..,cached=..,output=.."),
        (
            "searches-1",
            "searches-1: the table of genai-prices has prices of output_citation_mtok and requests_kcount, which are "
            "not counted; give --price input=",
        ),
        ("embedder", "embedder: the table of genai-prices has no price of its output; give --price input="),
    ],
)
def test_a_model_without_prices_is_named_with_near_ones(model: str, said: str) -> None:
    for server in (SERVER, "http://127.0.0.1:4000/v1", None):
        with pytest.raises(UnknownModelError) as caught:
            table_prices(model, server)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("table")
def test_longer_prompts_than_a_price_is_for_are_refused() -> None:
    prices = table_prices("long-1")
    prices.check_length("long-1", 5000)
    with pytest.raises(
        UserError, match="long-1 costs more for prompts of more than 5,000 tokens, and the longest here"
    ):
        prices.check_length("long-1", 5001)
    Prices(1, 1, 1).check_length("any", 10**9)


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(UserError, match=r"--price auto: genai-prices is missing: pip install 'icl-bench\[prices\]'"):
        table_prices("any")


def test_what_runs_here_has_a_price_of_its_hour_alone() -> None:
    with pytest.raises(
        UserError, match=r"--price: local: models on your own machine have no price per token; add hour="
    ):
        Prices.parse("auto").of_model("local", None)
    assert Prices.parse("auto,hour=3").of_model("local", None) == Prices(hour=3)
    assert Prices.parse("hour=3").of_seconds(1800) == 1.5
    assert math.isnan(Prices(hour=3).of_tokens(1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("input=1,auto", "auto takes input from the table"),
        ("write=1", "input and cached and output missing"),
        ("write=1,hour=2", "input and cached and output missing"),
        ("auto=1", "auto=1: write input="),
        ("auto,auto", "auto: write input="),
        ("hour", "hour: write input="),
        ("hour=-1", "hour is -1; a price is 0 or more"),
        ("hour=x", "hour=x: not a number"),
    ],
)
def test_prices_that_lack_a_part_or_contradict_are_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        Prices.parse(text)
    assert str(caught.value).startswith(f"--price {text}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_package_has_what_is_asked_of_it() -> None:
    pytest.importorskip("genai_prices")
    known = table_prices("claude-sonnet-4-5", "https://api.anthropic.com")
    assert 0 < known.cached < known.input < known.write < known.output
    assert known.origin is not None
    assert "Anthropic in genai-prices" in known.origin
    assert "no date" not in known.origin
    with pytest.raises(UnknownModelError, match="did you mean gpt-4o-mini"):
        table_prices("gpt-4o-mni", "https://api.openai.com/v1")


def test_a_provider_in_the_name_has_its_own_price() -> None:
    pytest.importorskip("genai_prices")
    named = table_prices("openrouter/google/gemini-2.0-flash-001", "http://127.0.0.1:4000")
    assert "of OpenRouter" in str(named.origin)
    assert named == table_prices("google/gemini-2.0-flash-001", "https://openrouter.ai/api/v1")
    assert "of Google" in str(table_prices("google/gemini-2.0-flash").origin)
