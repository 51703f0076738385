"""All predictions of a results folder in memory: filters, search, pairs of two points.

Texts are held once, as codes into lists (Arrow's dictionaries), so a filter compares small numbers
and a search goes through each different text once: 2.5 million rows take some 150 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from icl_bench.analysis.draws import is_drawn
from icl_bench.analysis.regression import loss_p
from icl_bench.analysis.statistics.right_answers import with_rows_apart
from icl_bench.analysis.words import UNPERTURBED
from icl_bench.report.naming import Naming
from icl_bench.results.cells import QUESTION
from icl_bench.results.facts import UNKNOWN, FactsOf

if TYPE_CHECKING:
    import pyarrow as pa

CURVE_COLUMNS = ("task", "model", "select", "order", "attention", "variant", "perturbation")
"""Columns whose combinations are the curves of the page."""


HELD_TEXTS = (*CURVE_COLUMNS, "test_id", "gold", "prediction", "cell", "text", QUESTION)


HELD_NUMBERS = ("k", "draw", "correct")


ASKED = "asked"
"""The name of :attr:`Predictions.asked` among columns."""


HELD_COLUMNS = (*HELD_TEXTS, *HELD_NUMBERS)
"""What the viewer holds of each prediction."""


NOTHING = "(nothing)"
"""What an empty answer is called, where one is chosen."""


ANSWERS = ("gold", "prediction")


CORRECT_CODES = {"wrong": 0, "right": 1, "free text": -1}
"""What an answer is called -> its code in the column ``correct``."""


SORTED_BY = ("correct", "prediction", "gold", QUESTION, "k")
"""What predictions can be sorted by."""


SIDE = ("model", "series", "perturbation", "k")
"""What tells a point of a task, where another is shown beside it."""


WINDOW = {"first": 0, "count": 200}
"""Which of the rows are listed: names of the filters, and their defaults."""


MOST_LISTED = 1000
"""Rows of one answer."""


OF_ROWS = ("word", "correct", "gold", "prediction")
"""Filters of single rows, which do not apply to the other point."""


MOST_OPTIONS = 400
"""Values of a filter: the page lets nobody choose from a list of more."""


MOST_SHOWN = 401
"""Letters of a question in the list; the page shows one fewer, and that there are more."""


Questions: TypeAlias = Mapping[tuple[str, str], Mapping[str, str]]
"""Task and variant -> test id -> its question, where the data is at hand. Variants may have other data."""


NO_QUESTIONS: Mapping[str, str] = {}


MISSING, NOWHERE = -1, -2
"""Codes of a row without a text, and of a text that no row has."""


@dataclass(frozen=True)
class TextColumn:
    """Texts of a column: ``codes`` (predictions,) into ``values``."""

    codes: np.ndarray
    values: Sequence[str]

    @cached_property
    def ranks(self) -> np.ndarray:
        """The place of each text among all, whatever its capitals; last that of what is missing, the first."""
        order = sorted(range(len(self.values)), key=lambda code: (self.values[code].casefold(), self.values[code]))
        ranks = np.zeros(len(self.values) + 1, dtype=np.int64)
        ranks[order] = np.arange(1, len(order) + 1)
        return ranks

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The code of each text."""
        return {value: code for code, value in enumerate(self.values)}

    def at(self, place: int) -> str | None:
        """The text of a row."""
        code = self.codes[place]
        return self.values[code] if code >= 0 else None

    def equal(self, text: str) -> np.ndarray:
        """Which rows have this text, ``(predictions,)``; an empty one is also what is missing."""
        code = self.places.get(text, MISSING if text == "" else NOWHERE)
        return np.asarray((self.codes == code) | ((text == "") & (self.codes == MISSING)))

    def holding(self, word: str) -> np.ndarray:
        """Which rows have a text with this word in it, whatever its capitals."""
        import pyarrow as pa
        import pyarrow.compute as pc

        matches = pc.match_substring(pa.array(self.values, pa.string()), word, ignore_case=True)
        hits = np.append(matches.to_numpy(zero_copy_only=False).astype(bool), False)  # of none
        return np.asarray(hits[self.codes])


@dataclass(frozen=True)
class Pairs:
    """Predictions beside those of another point on the same test examples."""

    here: np.ndarray
    """Positions of the predictions that are listed."""
    there: np.ndarray
    """Positions of those beside them."""
    counts: Mapping[str, int]
    """All pairs (total), those right on both sides, on neither, only here (lost), only there (won), those in which
    an answer is neither right nor wrong (without_verdict, in none of the four), predictions without a partner
    (unpaired), and the test examples that flipped (flipped)."""
    p: float | None
    """Two-sided, of no difference between the sides: see :func:`flip_p`. None if no pair has two verdicts, or if
    filters select single rows."""


@dataclass(frozen=True)
class Predictions:
    """All predictions, in the order of the results."""

    texts: Mapping[str, TextColumn]
    numbers: Mapping[str, np.ndarray]
    naming: Naming
    questions: Questions = field(default_factory=dict)

    @classmethod
    def of(cls, table: pa.Table, facts: FactsOf, questions: Questions | None = None) -> Predictions:
        """Take over a table of ``HELD_COLUMNS``; ``facts`` are those of its variants."""
        texts = {name: _column(table[name]) for name in HELD_TEXTS if name in table.column_names}
        numbers = {name: _numbers(table[name]) for name in HELD_NUMBERS}
        naming, series = _series(texts, facts)
        return cls({**texts, "test": _tests(texts, facts), "series": series}, numbers, naming, questions or {})

    def __len__(self) -> int:
        return len(self.numbers["k"])

    def options(self) -> dict[str, list[str]]:
        """Filter -> the values that there are, as texts."""
        named = ("task", "model", "series", "gold", "prediction")
        values = {name: sorted(self._values(name)) for name in named}
        perturbation = {name or UNPERTURBED for name in self._values("perturbation")}
        ks = np.unique(self.numbers["k"])
        verdicts = set(np.unique(self.numbers["correct"]).tolist())
        for name in ANSWERS:
            values[name] = [text or NOTHING for text in values[name]]
        return {
            **values,
            "perturbation": sorted(perturbation),
            "k": [str(k) for k in ks],
            "correct": [name for name, code in CORRECT_CODES.items() if code in verdicts],
        }

    def find(self, filters: Mapping[str, str]) -> np.ndarray:
        """Positions of the predictions that all filters let through, in order.

        Filters are those of :meth:`options` and ``word``, a part of a test id, a question or
        an answer; one of an unknown value lets none through.
        """
        kept = np.ones(len(self), dtype=bool)
        for name, value in filters.items():
            if name == "word":
                kept &= self._with_word(value.strip())
            elif name == "k":
                kept &= self.numbers["k"] == _whole(value, -1)
            elif name == "correct":
                kept &= self.numbers["correct"] == CORRECT_CODES.get(value, -2)
            elif name == "perturbation":
                kept &= self.texts[name].equal("" if value == UNPERTURBED else value)
            elif name in self.texts:
                same = self.texts[name].equal(value)
                if name in ANSWERS and value == NOTHING:
                    same |= self.texts[name].equal("")
                kept &= same
        return np.flatnonzero(kept)

    def order(self, positions: np.ndarray, sort: str) -> np.ndarray:
        """Which of these positions comes first, second, ...: ``(positions,)``.

        ``sort`` is one of ``SORTED_BY``, after a minus in falling order; equal ones stay as they are, and with
        another value all do.
        """
        name = sort.removeprefix("-")
        if name not in SORTED_BY:
            return np.arange(len(positions))
        if name == QUESTION:
            keys = self.question_ranks(positions)
        elif name in self.texts:
            keys = self.texts[name].ranks[self.texts[name].codes[positions]]
        else:
            keys = self.numbers[name][positions]
        return np.argsort(-keys if sort.startswith("-") else keys, kind="stable")

    def question(self, place: int) -> str:
        """What a prediction was asked, as far as it is known: its own column, or its task's data."""
        own = self.texts[QUESTION].at(place) if QUESTION in self.texts else None
        if own is not None:
            return own
        of_rows = self._distinct_questions[int(self.asked[place])]
        return of_rows.get(self.texts["test_id"].at(place) or "", "")

    def question_ranks(self, positions: np.ndarray) -> np.ndarray:
        """A number for each question, in their alphabetical order: ``(positions,)``."""
        asked = self._keys(positions, ["task", "test", ASKED, *([QUESTION] if QUESTION in self.texts else [])])
        _, first, which = np.unique(asked, return_index=True, return_inverse=True)
        texts = [self.question(int(positions[place])).casefold() for place in first]
        ranks = np.empty(len(texts), dtype=np.int64)
        ranks[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
        return np.asarray(ranks[which])

    def drawn(self) -> np.ndarray:
        """Which predictions have demonstrations that are drawn: ``(predictions,)``."""
        column = self.texts["select"]
        drawn = np.array([*map(is_drawn, column.values), False])
        return np.asarray(drawn[column.codes] & (self.numbers["k"] > 0))

    @cached_property
    def sources(self) -> list[tuple[str, str]]:
        """Each task and variant."""
        return [(self.texts["task"].at(at) or "", self.texts["variant"].at(at) or "") for at in self._sources[0]]

    @cached_property
    def asked(self) -> np.ndarray:
        """The number of each prediction's questions among the distinct ones; 0 if they are unknown."""
        numbers = {id(of_rows): number for number, of_rows in enumerate(self._distinct_questions)}
        of_source = [numbers[id(self.questions.get(source, NO_QUESTIONS))] for source in self.sources]
        return np.asarray(np.array(of_source, dtype=np.int64)[self._sources[1]])

    @cached_property
    def _distinct_questions(self) -> list[Mapping[str, str]]:
        """The questions of the sources, each once; variants with the same data share them."""
        every = (NO_QUESTIONS, *self.questions.values())
        return list({id(of_rows): of_rows for of_rows in every}.values())

    @cached_property
    def _sources(self) -> tuple[np.ndarray, np.ndarray]:
        """The first prediction of each task and variant, and the number of each prediction's."""
        keys = self._keys(np.arange(len(self)), ["task", "variant"])
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        return first, which

    def golds_of(self, task: str, variant: str) -> dict[str, str]:
        """Test id -> the right answer, of the test examples of a task in a variant."""
        places = np.flatnonzero(self.texts["task"].equal(task) & self.texts["variant"].equal(variant))
        _, first = np.unique(self.texts["test_id"].codes[places], return_index=True)
        rows = ((self.texts["test_id"].at(place), self.texts["gold"].at(place)) for place in places[first])
        return {test or "": gold or "" for test, gold in rows}

    def pairs(self, filters: Mapping[str, str], other: Mapping[str, str], flips: str = "") -> Pairs:
        """The predictions of :meth:`find` beside those of another point on the same examples.

        ``other`` names what is different of ``SIDE``. Both are of one draw, where both are drawn.
        """
        point = {name: value for name, value in filters.items() if name not in OF_ROWS}
        beside = self.find({**point, **other})
        here = np.setdiff1d(self.find(filters), beside, assume_unique=True)  # not beside itself
        same = ["task", "test", *(name for name in SIDE if name not in other)]
        there = self._matching(here, beside, same)
        paired = there >= 0
        here, there, alone = here[paired], there[paired], int((~paired).sum())
        correct = self.numbers["correct"]
        known = (correct[here] >= 0) & (correct[there] >= 0)
        right, also = known & (correct[here] == 1), known & (correct[there] == 1)
        tests = np.unique(self._keys(here[known], ["task", "test"]), return_inverse=True)[1]
        flipped = np.bincount(tests, also[known].astype(float) - right[known], minlength=1)
        whole = not any(filters.get(name) for name in OF_ROWS)  # rows that were chosen by their answer differ by choice
        judged = whole and bool(known.any())
        counts = {
            "total": len(here),
            "both": int((right & also).sum()),
            "neither": int((known & ~right & ~also).sum()),
            "lost": int((right & ~also).sum()),
            "won": int((~right & also).sum()),
            "without_verdict": int((~known).sum()),
            "unpaired": alone,
            "flipped": int(np.count_nonzero(flipped)),
        }
        answers = self.texts["prediction"].codes
        wanted = {"lost": right & ~also, "won": ~right & also, "changed": answers[here] != answers[there]}
        kept = wanted.get(flips, np.ones(len(here), dtype=bool))
        return Pairs(here[kept], there[kept], counts, flip_p(flipped) if judged else None)

    def matching(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """A page of the predictions that the filters let through, with another point's answers if wanted.

        Beside filters, ``asked`` may have ``first`` and ``count``, ``sort``, ``flips``, and what is different of
        another point (``other_model``, ...).
        """
        filters = dict(asked)
        first, count = (_whole(filters.pop(name, ""), usual) for name, usual in WINDOW.items())
        window = slice(first, first + min(count, MOST_LISTED))
        flips, sort = filters.pop("flips", ""), filters.pop("sort", "")
        other = {name: filters.pop(f"other_{name}", "") for name in SIDE}
        other = {name: value for name, value in other.items() if value}
        if not other:
            places = self.find(filters)
            places = places[self.order(places, sort)]
            return {"total": len(places), "rows": self.rows(places[window])}
        pairs = self.pairs(filters, other, flips)
        order = self.order(pairs.here, sort)[window]
        here, there = (self.rows(side[order]) for side in (pairs.here, pairs.there))
        rows = [{**row, "other": beside} for row, beside in zip(here, there, strict=True)]
        return {"total": len(pairs.here), "rows": rows, "pairs": {**pairs.counts, "p": pairs.p}}

    def rows(self, positions: Iterable[int]) -> list[dict[str, Any]]:
        """What the list shows of predictions."""
        names = ("task", "model", "series", "perturbation", "test_id", "gold", "prediction", "cell")
        rows = []
        for place in positions:
            row: dict[str, Any] = {name: self.texts[name].at(place) or "" for name in names}
            correct = int(self.numbers["correct"][place])
            row |= {name: int(self.numbers[name][place]) for name in ("k", "draw")}
            row["question"] = self.question(int(place))[:MOST_SHOWN]
            rows.append({**row, "correct": None if correct < 0 else bool(correct)})
        return rows

    # -- of the columns -------------------------------------------------------------------------

    def _values(self, name: str) -> list[str]:
        column = self.texts[name]
        return [column.values[code] if code >= 0 else "" for code in np.unique(column.codes)]

    def _with_word(self, word: str) -> np.ndarray:
        if not word:
            return np.ones(len(self), dtype=bool)
        names = [name for name in ("test_id", "gold", "prediction", "text", QUESTION) if name in self.texts]
        kept = np.logical_or.reduce([self.texts[name].holding(word) for name in names])
        tests, lower = self.texts["test_id"], word.lower()
        for number, of_rows in enumerate(self._distinct_questions):
            hits = [
                tests.places[test]
                for test, question in of_rows.items()
                if test in tests.places and lower in question.lower()
            ]
            if hits:
                known = np.zeros(len(tests.values) + 1, dtype=bool)
                known[hits] = True
                kept |= known[tests.codes] & (self.asked == number)
        return np.asarray(kept)

    def _matching(self, here: np.ndarray, beside: np.ndarray, same: Sequence[str]) -> np.ndarray:
        """For each position here that of its partner, -1 where there is none."""
        drawn = self.drawn()
        with_draw = self._keys(here, [*same, "draw"]), self._keys(beside, [*same, "draw"])
        partners = _partners(*with_draw, beside)
        without = self._keys(here, same), self._keys(beside, same)
        any_draw = _partners(*without, beside)
        # a setting that is not drawn has one draw, which is paired with every draw of the other
        loose = ~drawn[here] | ((any_draw >= 0) & ~drawn[np.maximum(any_draw, 0)])
        return np.where((partners < 0) & loose, any_draw, partners)

    def _keys(self, positions: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """One number for each combination of these columns' values."""
        keys = np.zeros(len(positions), dtype=np.int64)
        for name in names:
            codes = self.codes(name)
            keys = keys * (int(codes.max(initial=0)) + 2) + codes[positions] + 1
        return keys

    def codes(self, name: str) -> np.ndarray:
        """A number for each prediction's value in a column, -1 if it is missing: ``(predictions,)``."""
        if name == ASKED:
            return self.asked
        return self.numbers[name] if name in self.numbers else self.texts[name].codes


def _whole(text: str, usual: int) -> int:
    return int(text) if text.isdecimal() and len(text) < 12 else usual


def flip_p(sums: np.ndarray) -> float:
    """The two-sided p value of no difference, from each test example's difference summed over draws: ``(tests,)``.

    The sign-flip test of :func:`icl_bench.analysis.regression.loss_p`: McNemar's exact test where each example is
    one pair. It holds for these demonstrations, not for others, and is not corrected for further comparisons.
    """
    return min(2 * min(loss_p(sums[None]), loss_p(-sums[None])), 1.0)


def _partners(here: np.ndarray, there: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """For each key here the first position of an equal one there, else -1."""
    if not len(there):
        return np.full(len(here), -1)
    order = np.argsort(there, kind="stable")
    ordered = there[order]
    place = np.minimum(np.searchsorted(ordered, here), len(ordered) - 1)
    return np.where(ordered[place] == here, positions[order[place]], -1)


def _column(column: pa.ChunkedArray) -> TextColumn:
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # of no rows, or of several chunks in newer versions
        whole = whole.chunk(0) if whole.num_chunks else pa.array([], column.type)
    codes = whole.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    return TextColumn(codes, [str(value) for value in whole.dictionary.to_pylist()])


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    import pyarrow as pa

    values = column.cast(pa.int32()).fill_null(-1).to_numpy()
    return np.asarray(values)


def _tests(texts: Mapping[str, TextColumn], facts: FactsOf) -> TextColumn:
    """The test row of each prediction: its id, apart where imported ones have another right answer, and where a task's
    data are another version, which findings do not compare either.
    """
    import pandas as pd

    columns = {name: texts[name] for name in ("task", "test_id", "variant", "gold")}
    frame = pd.DataFrame(
        {name: pd.Categorical.from_codes(of.codes, pd.Index(of.values)) for name, of in columns.items()}
    )
    apart, version = with_rows_apart(frame, facts), _data_versions(texts, facts)
    if apart is frame and not version.any():
        return texts["test_id"]
    ids = apart["test_id"].astype(object)
    codes, values = pd.factorize(ids.where(version == 0, ids + [f" {number}" for number in version]))
    return TextColumn(codes.astype(np.int32), [str(value) for value in values])


def _data_versions(texts: Mapping[str, TextColumn], facts: FactsOf) -> np.ndarray:
    """The number of each prediction's data among those of its task; 0 if they are the first, or unknown."""
    task, variant = texts["task"], texts["variant"]
    keys = task.codes.astype(np.int64) * len(variant.values) + variant.codes
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    known: dict[str | None, list[Mapping[str, str]]] = {}
    numbers = np.zeros(len(first), dtype=np.int64)
    for source in np.argsort(first):
        data = facts.get(variant.at(first[source]) or "", UNKNOWN).data
        of_task = known.setdefault(task.at(first[source]), [])
        if data is not None and data not in of_task:
            of_task.append(data)
        numbers[source] = 0 if data is None else of_task.index(data)
    return np.asarray(numbers[which])


def _series(texts: Mapping[str, TextColumn], facts: FactsOf) -> tuple[Naming, TextColumn]:
    """What curves are called, as in the page's charts, and each prediction's."""
    import pandas as pd

    codes = np.stack([texts[name].codes for name in CURVE_COLUMNS])
    keys = np.ravel_multi_index(codes + 1, [len(texts[name].values) + 1 for name in CURVE_COLUMNS])
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    table = pd.DataFrame({name: [texts[name].at(place) for place in first] for name in CURVE_COLUMNS}).astype(object)
    naming = Naming.of_stored(table, facts)
    names = list(naming.named(table)["series"])
    values = sorted(set(names))
    places = {name: code for code, name in enumerate(values)}
    return naming, TextColumn(np.array([places[name] for name in names], np.int32)[which], values)
