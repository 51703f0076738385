"""Prices of a model: per million tokens for a server, per hour for a machine."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.wording import close, listed, plain, short

if TYPE_CHECKING:
    from genai_prices.types import Provider

TOKENS = ("input", "cached", "output")
"""The token prices that are given together; ``write`` may be omitted."""


class UnknownModelError(UserError):
    """The price table does not have a model, or lacks some of its prices."""


_COUNTED = {"input_mtok", "cache_read_mtok", "cache_write_mtok", "output_mtok"}
"""The prices of the table that are used."""

_UNUSED = ("audio", "image", "video", "document", "_searches_", "cache_write_1h")
"""Words in the names of prices of what this program never uses: media, tools and one-hour caches."""

LIKE = (
    "write input=0.5,cached=0.05,output=1.5 (per million tokens; write=0.6 where a cache's writing costs more), "
    "auto, or hour=2 for an hour of your machine; hour= may follow the others"
)


@dataclass(frozen=True)
class Prices:
    """Prices of a model, in any currency; NaN for missing prices.

    A server's tokens are priced per million, and the time of a machine per hour.
    """

    input: float = math.nan
    """Of the prompt, computed without the cache."""
    cached: float = math.nan
    """Of the prompt, read from its cache."""
    output: float = math.nan
    """Of the answer, including its thoughts."""
    write: float = math.nan
    """Of the prompt, written into its cache; ``input`` if not given."""
    hour: float = math.nan
    """Per hour of the machine that answers and trains."""
    auto: bool = False
    """Whether token prices are from the table of the package ``genai-prices``."""
    most: float = math.inf
    """Tokens of the longest prompt with these prices."""
    origin: str | None = field(default=None, compare=False)
    """Their source as text; None if the user gave them."""

    def __post_init__(self) -> None:
        if math.isnan(self.write):
            object.__setattr__(self, "write", self.input)

    @classmethod
    def parse(cls, text: str) -> Prices:
        """Parse ``input=0.5,cached=0.05,output=1.5``, ``auto`` or ``hour=2``. Raises ``UserError``."""
        shown = f"--price {plain(text[:60])}"
        prices: dict[str, Any] = {}
        for word in text.split(","):
            name, sign, number = (part.strip() for part in word.partition("="))
            if name in prices or (name != "auto" if not sign else name not in (*TOKENS, "write", "hour")):
                raise UserError(f"{shown}: {plain(word[:30])}: {LIKE}")
            if name == "auto":
                prices[name] = True
                continue
            try:
                prices[name] = float(number)
            except ValueError:
                raise UserError(f"{shown}: {plain(word[:30])}: not a number; {LIKE}") from None
            if not 0 <= prices[name] < math.inf:
                raise UserError(f"{shown}: {name} is {number}; a price is 0 or more")
        given = [name for name in (*TOKENS, "write") if name in prices]
        if given and "auto" in prices:
            raise UserError(f"{shown}: auto takes {listed(given)} from the table; leave one of them out")
        if given and (missing := [name for name in TOKENS if name not in prices]):
            raise UserError(f"{shown}: {' and '.join(missing)} missing; {LIKE}")
        return cls(**prices)

    @property
    def of_tokens_known(self) -> bool:
        """Whether tokens have a price."""
        return not math.isnan(self.input)

    @property
    def pays_tokens(self) -> bool:
        """Whether tokens have a price, or will have one from the table."""
        return self.auto or self.of_tokens_known

    @property
    def given(self) -> dict[str, float]:
        """The given prices by name."""
        named = {name: float(getattr(self, name)) for name in (*TOKENS, "write", "hour")}
        return {name: price for name, price in named.items() if not math.isnan(price)}

    def of_tokens(self, new: Any, cached: Any = 0.0, answers: Any = 0.0, written: Any = 0.0) -> Any:
        """The price of tokens, as numbers or arrays: prompt tokens that are new, from the cache and into it, and answer
        tokens.
        """
        paid = self.input * new + self.cached * cached + self.output * answers + self.write * written
        return paid / 1e6

    def of_seconds(self, seconds: Any) -> Any:
        """The price of seconds of the machine, as a number or an array."""
        return self.hour * seconds / 3600

    def of_model(self, model: str, server: str | None) -> Prices:
        """These prices for a model: with ``auto``, those of the table. Raises ``UserError`` if it has none.

        ``server`` is the address of the server that answers, which identifies the provider if the table has it; None
        for a machine of the user, which only has a price per hour.
        """
        if not self.auto:
            return self
        if server is not None:
            return replace(table_prices(model, server), hour=self.hour)
        if math.isnan(self.hour):
            raise no_hour([model])
        return replace(self, auto=False)

    def check_length(self, model: str, tokens: float) -> None:
        """Raise ``UserError`` if a prompt of this number of tokens has another price."""
        if tokens > self.most:
            raise UserError(
                f"--price auto: {plain(model)} costs more for prompts of more than {self.most:,.0f} tokens, and the "
                f"longest here has {tokens:,.0f}; give --price input=..,cached=..,output=.."
            )


def given_prices(price: str | Mapping[str, float] | Prices | None) -> Prices | None:
    """Parse ``--price``, or a dictionary of its names. Parsed prices and None are returned unchanged. Raises
    ``UserError``.
    """
    if isinstance(price, Mapping):
        price = ",".join(f"{name}={value}" for name, value in price.items())
    if not isinstance(price, str | Prices | None):
        raise UserError(f"--price {short(price)}: expected text like input=0.5,cached=0.05,output=1.5, or a dictionary")
    return Prices.parse(price) if isinstance(price, str) else price


def no_hour(models: Sequence[str]) -> UserError:
    """Error for models on a machine without a price."""
    return UserError(
        f"--price: {listed(map(plain, models))}: models on your own machine have no price per token; add hour=.., "
        "the cost of an hour of the machine, as in --price auto,hour=2"
    )


def table_prices(model: str, server: str | None = None) -> Prices:
    """Today's prices of a model in US dollars, from the table of the package ``genai-prices``.

    Raises ``UserError`` if the package is missing, and ``UnknownModelError`` if the table does not have the
    model or one of its prices.
    """
    shown = f"--price auto: {plain(model)}"
    otherwise = "give --price input=..,cached=..,output=.., or hour=.. for a machine of your own"
    try:
        import genai_prices
        from genai_prices import data_snapshot
    except ImportError:
        raise UserError("--price auto: genai-prices is missing: pip install 'icl-bench[prices]'") from None
    table = data_snapshot.get_snapshot()
    of_server: Provider | None = None
    if server is not None:
        with suppress(LookupError):  # a gateway, or a server that is not in the table
            of_server = table.find_provider(None, None, server)
    found = _found(table, of_server, model)
    if found is None:
        models = {one.id for each in ([of_server] if of_server else table.providers) for one in each.models} - {model}
        meant = close(model, models)
        near = f"{meant} Else " if meant else ""
        raise UnknownModelError(f"{shown}: not in the table of genai-prices; {near}{otherwise}")
    provider, info = found
    now = datetime.now(tz=UTC)
    price = info.get_prices(now)
    parts = {
        "input": price.input_mtok,
        "cached": price.cache_read_mtok,
        "write": price.cache_write_mtok,
        "output": price.output_mtok,
    }
    if missing := [name for name in ("input", "output") if parts[name] is None]:
        lacks = " and ".join(missing)
        raise UnknownModelError(f"{shown}: the table of genai-prices has no price of its {lacks}; {otherwise}")
    named = {name for name, part in vars(price).items() if part is not None and not name.startswith("_")}
    if apart := sorted(name for name in named - _COUNTED if not any(word in name for word in _UNUSED)):
        raise UnknownModelError(
            f"{shown}: the table of genai-prices has prices of {listed(apart)}, which are not counted; {otherwise}"
        )
    numbers = {name: float(getattr(part, "base", part)) for name, part in parts.items() if part is not None}
    tiers = [tier.start for part in parts.values() for tier in getattr(part, "tiers", ())]
    edition = f"genai-prices {genai_prices.__version__}, newest entry of {_newest(table, now)}"
    return Prices(
        numbers["input"],
        numbers.get("cached", numbers["input"]),  # without a separate price, a cached token costs the same
        numbers["output"],
        numbers.get("write", math.nan),
        most=min(tiers, default=math.inf),
        origin=f"{info.id} of {provider.name} in {edition}",
    )


def _found(table: Any, of_server: Provider | None, model: str) -> tuple[Provider, Any] | None:
    """The provider and model of a name, which may begin with the provider: ``openai/gpt-5``."""
    maker, _, name = model.partition("/")
    # the table finds a provider by a part of a name, too: "gemini" in "openrouter/google/gemini-2.0-flash-001"
    of_name = [(name, maker)] if name and of_server is None else []
    for reference, provider in (*of_name, (model, None)):
        with suppress(LookupError):
            found: tuple[Provider, Any] = table.find_provider_model(reference, of_server, provider, None)
            return found
    return None


def _newest(table: Any, now: datetime) -> str:
    """The newest day of a price, or of its check, in the table: the table itself has no date."""
    days = [
        day
        for provider in table.providers
        for model in provider.models
        for text in (model.price_comments or "", repr(getattr(model, "prices", "")))
        for day in _days(text)
    ]
    today = f"{now:%Y-%m-%d}"
    return max((day for day in days if day <= today), default="no date")


def _days(text: str) -> list[str]:
    written = re.findall(r"\b(20\d\d)-(\d\d)-(\d\d)\b", text)
    dates = re.findall(r"datetime\.date\((\d+), (\d+), (\d+)\)", text)
    return [f"{int(year):04}-{int(month):02}-{int(day):02}" for year, month, day in [*written, *dates]]
