"""A row's own choices: read from a list, written as answers, and listed in the prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from icl_bench.errors import UserError
from icl_bench.tasks.label_spellings import plain_form
from icl_bench.tasks.spec import Labels
from icl_bench.tasks.splits import StoredRow, number_as_text
from icl_bench.wording import few, plain, short


@dataclass(frozen=True)
class AnswerChoices:
    """The possible answers: a row's own choices, or those that all rows share."""

    name: str
    """The name of their column or field, for messages."""
    texts: Sequence[str]
    keys: Sequence[str]
    written: tuple[str, ...]
    """Each choice as an answer: its text as the task writes it, or its letter."""
    listing: str
    """The value of the template's field: one line for each choice."""
    has_repeats: bool
    """Whether two have the same text and differ only in their letters."""

    def right(self, labels: Labels, row: StoredRow, column: str) -> int:
        """The index of the choice that a row's column names, by ``labels.gold``. Never guesses.

        Raises ``UserError`` if there is none.
        """
        value, answer = row.cell(column), plain(column)
        names = {"text": self.texts, "key": self.keys}.get(labels.gold)
        if names is None:
            names = [str(i) for i in range(len(self.texts))]
        answer_text = value
        if labels.gold == "index or text" and not (isinstance(value, int) and not isinstance(value, bool)):
            names = self.texts
        if isinstance(value, int | float):
            answer_text = json.dumps(value)
        places = [place for place, option in enumerate(names) if option == answer_text]
        alike: list[int] = []
        if not places and isinstance(answer_text, str):
            alike = [place for place, option in enumerate(names) if plain_form(option) == plain_form(answer_text)]
            places = alike if labels.merge else []
        if len(places) == 1:
            return places[0]
        if places:
            raise UserError(
                f"{row.where}: {answer} is {short(value)}, which {self.name} has twice; "
                "give it by its key or its index (labels.gold)"
            )
        kinds = {
            "text": "text",
            "key": "key",
            "index": "index, from 0,",
            "index or text": "index, from 0, nor the text",
        }
        kind = kinds[labels.gold]
        options = few([*map(short, names)], 6)
        hint = f"; labels.merge: true reads it as {short(names[alike[0]])}" if alike else ""
        if {"true", "false"} & set(names) and str(value).lower() in ("yes", "no", "on", "off"):
            hint = "; YAML reads yes, no, on and off as true and false: put them in quotes"
        raise UserError(
            f"{row.where}: {answer} is {short(value)}, not the {kind} of one of the row's choices ({options}){hint}"
        )


def read_list(labels: Labels, row: StoredRow, value: Any, name: str) -> AnswerChoices:
    """Read choices of one row, or of all rows.

    Raises ``UserError`` that names the row unless there is a list of at least two different texts.
    """
    sources, keys = _parse_list(row, value, name)
    texts = [labels.written(text) for text in sources]
    letters = labels.style == "letters"
    for source, text in zip(sources, texts, strict=True):
        _check_text(row, name, source, text, is_answer=not letters)
    if len(texts) < 2:
        count = f"one choice, {short(texts[0])}" if texts else "no choice"
        raise UserError(f"{row.where}: {name} has {count}; expected several")
    repeated = next((text for i, text in enumerate(texts) if text in texts[:i]), None)
    if repeated is not None and not letters:
        raise UserError(
            f"{row.where}: {name} has the choice {short(repeated)} twice; only style: letters tells such choices apart"
        )
    if letters and len(texts) > len(ascii_uppercase):
        raise UserError(f"{row.where}: {name} has {len(texts)} choices; letters are for 26 at most")
    marks = [f"{letter}." for letter in ascii_uppercase] if letters else ["-"] * len(texts)
    listing = "\n".join(f"{mark} {text}" for mark, text in zip(marks, texts, strict=False))
    written = tuple(ascii_uppercase[: len(texts)]) if letters else tuple(texts)
    return AnswerChoices(name, sources, keys, written, listing, repeated is not None)


def _parse_list(row: StoredRow, value: Any, name: str) -> tuple[list[str], list[str]]:
    """The texts of the choices and their keys. Keys are letters if the list has none.

    The value is a list of texts, a list of objects with ``text`` and optionally ``label``, an object of
    keys and texts, or, as in data sets of the hub, one object with texts and labels as lists.
    """
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        keys = value.get("label", [None] * len(value["text"]))
        if not isinstance(keys, list) or len(keys) != len(value["text"]):
            raise UserError(f"{row.where}: {name} has other numbers of texts and of labels")
        value = [
            {"text": text} if key is None else {"text": text, "label": key}
            for text, key in zip(value["text"], keys, strict=True)
        ]
    if isinstance(value, Mapping) and not value.keys() <= {"text", "label"}:
        # a table has the keys of all rows in each row, without a text if the row does not have the choice
        value = [{"text": text, "label": key} for key, text in value.items() if text is not None]
    if not isinstance(value, list):
        kinds = "a list of texts, of objects with text and label, or an object of keys and texts"
        raise UserError(f"{row.where}: {name} must be {kinds}, not {short(value)}")
    texts, keys = [], []
    for place, item in enumerate(value):
        letter = ascii_uppercase[place] if place < len(ascii_uppercase) else str(place)
        is_object = isinstance(item, dict)
        if is_object and "text" not in item:
            raise UserError(f"{row.where}: {name} has a choice without text: {short(item)}")
        texts.append(_choice_text(row, name, item["text"] if is_object else item))
        keys.append(_choice_text(row, name, item["label"]) if is_object and "label" in item else letter)
    if len(set(keys)) < len(keys):
        repeated = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise UserError(f"{row.where}: {name} has the label {short(repeated)} twice")
    return texts, keys


def _choice_text(row: StoredRow, name: str, value: Any) -> str:
    """A choice as text. Numbers are written as in JSON, like those of answers."""
    value = number_as_text(value)
    if not isinstance(value, str):
        raise UserError(f"{row.where}: {name} has a choice that is not a text: {short(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{row.where}: {name} has half a character: {short(value)}") from None
    return value


def _check_text(row: StoredRow, name: str, source: str, text: str, *, is_answer: bool) -> None:
    if not text or text.isspace():
        raise UserError(f"{row.where}: {name} has a choice that is written as an empty text: {source!r}")
    if not is_answer:
        return  # the letter is, and the text may be anything
    if text.splitlines() != [text]:
        raise UserError(f"{row.where}: {name}: the choice {short(text)} holds a line break")
    if text != text.strip():
        raise UserError(f"{row.where}: {name}: the choice {short(text)} begins or ends with a space")
