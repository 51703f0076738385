"""A row's own choices: read from its list, written as answers are, and shown in its prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from icl_bench.errors import UserError
from icl_bench.tasks.spec import Labels
from icl_bench.tasks.splits import Row, number_as_text
from icl_bench.wording import plain, short


@dataclass(frozen=True, slots=True)
class RowChoices:
    """What one row may be answered with."""

    written: tuple[str, ...]
    """Each choice as an answer: its text as the task writes it, or its letter."""
    shown: str
    """What the template's field shows: a line for each."""
    gold: int
    """Which one is right."""
    repeats: bool
    """Whether two have the same text, and only their letters tell them apart."""


@dataclass(frozen=True)
class _Listed:
    texts: Sequence[str]
    keys: Sequence[str]


@dataclass(frozen=True)
class Choices:
    """What may be answered: a row's own choices, or those that all rows share."""

    written: tuple[str, ...]
    shown: str
    repeats: bool
    listed: _Listed
    name: str
    """Where they stand, for messages."""

    def right(self, labels: Labels, row: Row, answer: str) -> int:
        """Which one a row's column names. Raises ``UserError`` where it names none of them."""
        return _gold(labels, row, self.listed, row.cell(answer), plain(answer), self.name)


def read_choices(labels: Labels, row: Row, column: str, answer: str) -> RowChoices:
    """A row's choices from one column and which of them is right from another.

    Raises ``UserError`` that names the row: for what is no list of two different texts or more, and
    for an answer that is not among them.
    """
    found = read_list(labels, row, row.cell(column), plain(column))
    return RowChoices(found.written, found.shown, found.right(labels, row, answer), found.repeats)


def read_list(labels: Labels, row: Row, value: Any, name: str) -> Choices:
    """Choices from what a row has, or from what all rows share. Raises ``UserError`` as above."""
    listed = _listed(row, value, name)
    texts = [labels.written(text) for text in listed.texts]
    for source, text in zip(listed.texts, texts, strict=True):
        _check_text(row, name, source, text)
    if len(texts) < 2:
        there = f"one choice, {short(texts[0])}" if texts else "no choice"
        raise UserError(f"{row.where}: {name} has {there}; expected several")
    twice = next((text for i, text in enumerate(texts) if text in texts[:i]), None)
    letters = labels.style == "letters"
    if twice is not None and not letters:
        raise UserError(
            f"{row.where}: {name} has the choice {short(twice)} twice; only style: letters tells such choices apart"
        )
    if letters and len(texts) > len(ascii_uppercase):
        raise UserError(f"{row.where}: {name} has {len(texts)} choices; letters are for 26 at most")
    marks = [f"{letter}." for letter in ascii_uppercase] if letters else ["-"] * len(texts)
    shown = "\n".join(f"{mark} {text}" for mark, text in zip(marks, texts, strict=False))
    written = tuple(ascii_uppercase[: len(texts)]) if letters else tuple(texts)
    return Choices(written, shown, twice is not None, listed, name)


def _listed(row: Row, value: Any, name: str) -> _Listed:
    """The texts of the choices and their keys, which are letters where the list has none.

    A list of texts; of objects with ``text``, and ``label`` where they have keys; or, as data sets
    of the hub have it, one object with these as lists.
    """
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        keys = value.get("label", [None] * len(value["text"]))
        if not isinstance(keys, list) or len(keys) != len(value["text"]):
            raise UserError(f"{row.where}: {name} has other numbers of texts and of labels")
        value = [
            {"text": text} if key is None else {"text": text, "label": key}
            for text, key in zip(value["text"], keys, strict=True)
        ]
    if not isinstance(value, list):
        raise UserError(
            f"{row.where}: {name} must be a list of texts, or of objects with text and label, not {short(value)}"
        )
    texts, keys = [], []
    for letter, item in zip(_letters(len(value)), value, strict=True):
        whole = isinstance(item, dict)
        if whole and "text" not in item:
            raise UserError(f"{row.where}: {name} has a choice without text: {short(item)}")
        texts.append(_text(row, name, item["text"] if whole else item))
        keys.append(_text(row, name, item["label"]) if whole and "label" in item else letter)
    if len(set(keys)) < len(keys):
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise UserError(f"{row.where}: {name} has the label {short(twice)} twice")
    return _Listed(texts, keys)


def _letters(count: int) -> list[str]:
    """Keys of choices that have none."""
    return [ascii_uppercase[i] if i < len(ascii_uppercase) else str(i) for i in range(count)]


def _text(row: Row, name: str, value: Any) -> str:
    """A text; numbers are written as JSON writes them, as those of answers are."""
    value = number_as_text(value)
    if not isinstance(value, str):
        raise UserError(f"{row.where}: {name} has a choice that is no text: {short(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{row.where}: {name} holds half a character: {short(value)}") from None
    return value


def _check_text(row: Row, name: str, source: str, text: str) -> None:
    if not text or text.isspace():
        raise UserError(f"{row.where}: {name} has a choice that is written as nothing: {source!r}")
    if text.splitlines() != [text]:
        raise UserError(f"{row.where}: {name}: the choice {short(text)} holds a line break")
    if text != text.strip():
        at = f"{row.where}: {name}"
        raise UserError(f"{at}: the choice {short(text)} begins or ends with a space")


def _gold(labels: Labels, row: Row, listed: _Listed, value: Any, answer: str, name: str) -> int:
    """Which choice the answer names, as ``labels.gold`` says: never guessed."""
    among = {"text": listed.texts, "key": listed.keys}.get(labels.gold)
    if among is None:
        among = [str(i) for i in range(len(listed.texts))]
    said = value
    if labels.gold == "index or text" and not (isinstance(value, int) and not isinstance(value, bool)):
        among = listed.texts
    if isinstance(value, int | float) and not isinstance(value, bool):
        said = json.dumps(value)
    places = [place for place, one in enumerate(among) if one == said]
    if len(places) == 1:
        return places[0]
    if places:
        raise UserError(
            f"{row.where}: {answer} is {short(value)}, which {name} has twice; "
            "give it by its key or its index (labels.gold)"
        )
    kinds = {"text": "text", "key": "key", "index": "index, from 0,", "index or text": "index, from 0, nor the text"}
    kind = kinds[labels.gold]
    there = ", ".join(short(one) for one in among[:6]) + (", …" if len(among) > 6 else "")
    raise UserError(f"{row.where}: {answer} is {short(value)}, not the {kind} of one of the row's choices ({there})")
