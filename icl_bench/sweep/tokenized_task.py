"""A task in a model's tokens: its examples, its pool, and their form in prompts.

Everything here follows from data, tokenizer and named seeds. Model weights are not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from icl_bench.backends.interface import Decoding, Exact, Free, Greedy
from icl_bench.backends.label_constraint import Spellings, check_told_apart, compile_labels, label_trie, spellings_of
from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.perturbations import NONE, Perturbation
from icl_bench.demonstrations.pool import DemonstrationPool
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.metrics.interface import Metric
from icl_bench.metrics.scores import ACCURACY, checked_scores, metrics_of
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.registry import Model
from icl_bench.models.tokenizers import Tokenizer
from icl_bench.prompts.chat import ChatForm, ChatSettings, PromptForm, chat_form
from icl_bench.prompts.encoding import Ids, PromptTokenizer
from icl_bench.prompts.lengths import demonstration_lengths
from icl_bench.prompts.rendering import AS_THEY_ARE, PlainForm, Writing, demonstration_text
from icl_bench.registry import SELECTORS
from icl_bench.results.cells import Prediction
from icl_bench.results.facts import LABELLED
from icl_bench.sweep.compute_cost import AnswerWork
from icl_bench.sweep.options import Queries
from icl_bench.sweep.samples import Samples
from icl_bench.sweep.thinking import SPARE_TOKENS, Parts, Thinking
from icl_bench.tasks.examples import Example, TaskData
from icl_bench.tasks.near_duplicates import common_words, near_duplicates
from icl_bench.tasks.thoughts import joined
from icl_bench.wording import counted, few

Scoring = Literal["greedy", "exact", "unconstrained"]


@dataclass
class TokenizedTask:
    """One task's data in one model's tokens."""

    data: TaskData
    model: Model
    tokenizer: Tokenizer
    seed: int = 0
    scoring: Scoring = "greedy"
    queries: Queries = "test"
    """``copied``: queries are demonstrations of the same prompt, not test rows."""
    label_space: str | None = None
    """The part of the task's labels that the data are reduced to, in words; None for all."""
    perturbation: Perturbation = NONE
    """How prompts change the demonstrations, and which they omit."""
    sentence_encoder: str | None = None
    """The requested sentence encoder; None for the packaged one."""
    chat: ChatSettings | None = None
    """The chat format of prompts; None for plain text."""
    every_score: bool = True
    """Whether exact scoring needs the scores of all labels, or only those of the two most probable ones."""
    windows: bool = False
    """Whether text encoders read texts longer than their window in several windows instead of truncating them."""
    samples: Samples | None = None
    """The sampled answers to each query, of which the majority counts; None for one answer that is not sampled."""
    asked: str | None = None
    """The purpose of queries that are not test rows: a calibration, labels or rationales, as in facts."""
    one_request: bool = False
    """Whether thought and answer are one free text, because a server cannot continue a text."""
    whole_pool: DemonstrationPool | None = field(default=None, repr=False)
    """The pool of the prompts that are calibrated; None for test rows."""
    _perturbed: dict[int, tuple[Example, ...]] = field(default_factory=dict, repr=False)
    _decodings: dict[tuple[str, ...], Decoding] = field(default_factory=dict, repr=False)

    @cached_property
    def encoder(self) -> PromptTokenizer:
        """Turns examples into token ids."""
        return PromptTokenizer(self.form(self.writing), self.tokenizer)

    @property
    def unsupervised(self) -> dict[str, str]:
        """The task's texts around inputs without answers, if prompts show them. Empty texts are left out."""
        if not self.perturbation.unsupervised:
            return {}
        return {name: text for name, text in self.data.spec.unsupervised.model_dump().items() if text}

    @property
    def writing(self) -> Writing:
        """How a prompt's demonstrations are written."""
        return self.perturbation.writing(self.unsupervised)

    def form(self, writing: Writing = AS_THEY_ARE) -> PromptForm:
        """The form of prompts, with demonstrations as ``writing`` writes them. Raises ``UserError``."""
        spec = self.data.spec
        if self.chat is None:
            return PlainForm(spec.template, writing, spec.thought)
        closes = spec.closes_thoughts and self.model.tokenizer is None  # else a server renders it
        return chat_form(
            spec.template, self.chat, self.model, self.tokenizer, writing, closes_thoughts=closes, thought=spec.thought
        )

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each train row as a whole demonstration with its separator: ``(train,)``."""
        return demonstration_lengths(PlainForm(self.data.spec.template), self.tokenizer, self.data.train)

    @cached_property
    def query_lengths(self) -> np.ndarray:
        """Tokens of each test row as a prompt without demonstrations: ``(test,)``."""
        bare = self.encoder.own_prompts([[] for _ in self.data.test], self.data.test)
        return len(bare.prefix) + np.array(list(map(len, bare.suffixes)), dtype=int)

    @property
    def room(self) -> int:
        """The maximum tokens of a prompt that leave room for an answer."""
        return self.model.context_tokens - self.written_tokens

    def without_too_long(self) -> TokenizedTask:
        """The task without test rows that are too long, according to ``test.too_long`` of its file.

        Raises ``UserError`` if no row is left.
        """
        rule = self.data.spec.test.too_long
        if rule == "refuse" or self.queries != "test":
            return self
        most = self.room if rule == "leave_out" else min(rule, self.room)
        keep = self.query_lengths <= most
        if keep.all():
            return self
        rows = self.data.test
        left = [row.id for row, kept in zip(rows, keep, strict=True) if not kept]
        if len(left) == len(rows):
            raise UserError(
                f"{self.data.spec.name}: test.too_long leaves no test row: each has more than {most:,} tokens"
            )
        was = "was" if len(left) == 1 else "were"
        note = f"{counted(len(left), 'test row')} of more than {most:,} tokens {was} left out ({few(left)})"
        data = replace(
            self.data,
            test=tuple(row for row, kept in zip(rows, keep, strict=True) if kept),
            not_asked=self.data.not_asked + len(left),
            notes=(*self.data.notes, f"{note}: test.too_long"),
        )
        return replace(self, data=data)

    @cached_property
    def near_duplicates(self) -> tuple[str, ...]:
        """Ids of the test rows that have a near duplicate in the pool."""
        pool = (self.data.train[i] for i in self.pool.rows)
        return near_duplicates(self.data.test, pool, common_words(self.data))

    @cached_property
    def pool(self) -> DemonstrationPool:
        """The pool of demonstrations.

        Rows longer than the ``1 - drop_longest`` quantile are left out (Bertsch et al.'s code).
        """
        share = self.data.spec.pool.drop_longest
        rows = np.arange(len(self.data.train))
        if share:  # else nothing needs the pool's tokens
            rows = np.flatnonzero(self.lengths <= np.quantile(self.lengths, 1 - share))
        folder = cache_dir() / "embeddings"
        return DemonstrationPool(self.data, rows, self.seed, folder, self.sentence_encoder, self.windows)

    def asking(self, kind: str, queries: tuple[Example, ...], left: np.ndarray) -> TokenizedTask:
        """The same task with calibration queries instead of test rows.

        ``left`` are the train indices that remain in the pool, in file order.
        """
        other, stale = copy(self), ["pool", "near_duplicates"]  # keeps cached tokens
        if self.data.spec.labels and self.data.spec.labels.own:  # answers belong to different rows
            other._decodings = {}
            stale += ["answer_tokens", "_tokens_of"]
        for name in stale:
            vars(other).pop(name, None)
        other.data, other.asked = replace(self.data, test=queries), kind
        pool = other.whole_pool = self.pool
        vars(other)["pool"] = replace(pool, data=other.data, rows=left)
        return other

    def labelling(self, rows: np.ndarray, left: np.ndarray) -> TokenizedTask:
        """The same task with pool rows as queries, which the model labels.

        ``rows``, and ``left``, the remaining pool, are train indices in file order. Demonstrations have their true
        labels.
        """
        other = self.asking(LABELLED, tuple(self.data.train[i] for i in rows.tolist()), left)
        other.perturbation, other._perturbed = NONE, {}
        return other

    # -- what prompts show ----------------------------------------------------------------------

    def take_labels(self, draw: int, labels: Mapping[str, str]) -> None:
        """Set the labels of one draw's demonstrations, by id."""
        train = self.data.train
        self._perturbed[draw] = tuple(replace(row, answer=labels.get(row.id, row.answer)) for row in train)

    def perturbed(self, draw: int) -> tuple[Example, ...]:
        """The train rows with the answers of one draw's demonstrations."""
        if not self.perturbation.changes_answers:
            return self.data.train
        if draw not in self._perturbed:
            data, drawn = self.data, self.pool.drawn(draw)
            self._perturbed[draw] = self.perturbation.answers(data.train, data.labels, self.seed, draw, drawn)
        return self._perturbed[draw]

    def perturbed_lengths(self, draw: int) -> np.ndarray:
        """Tokens of each train row as a demonstration of this draw: ``(train,)``."""
        return self.encoder.demonstration_lengths(self.perturbed(draw))

    def selection_facts(
        self, spec: SelectorSpec, pattern: Pattern = FULL, order: Order | None = None
    ) -> dict[str, Any]:
        """Facts that decide, besides the data, which demonstrations are shown, their order, and which of them a query
        reads. Raises ``UserError``.
        """
        chosen = spec.facts(self.pool.similarity)
        if pattern.compares is not None:
            chosen |= SELECTORS[pattern.compares].facts(self.pool.similarity)
        if order is not None:
            chosen |= order.facts(self.pool.similarity)
        return chosen | dict(self.perturbation.facts(self.pool))

    @property
    def chat_day(self) -> str | None:
        """The date that a chat template may insert; None if it inserts none."""
        form = self.encoder.form
        return self.chat.day if self.chat is not None and isinstance(form, ChatForm) and form.writes_date else None

    def chat_facts(self) -> dict[str, Any]:
        """Facts of the chat format of prompts."""
        form = self.encoder.form
        assert isinstance(form, ChatForm)
        return form.facts()

    def vector_text(self, example: Example) -> str:
        """The text of a demonstration that is read as a vector: input and answer, without query or passage prompts
        (Chen et al. 2024, section 3.1).
        """
        return demonstration_text(self.data.spec.template, example)

    # -- answers --------------------------------------------------------------------------------

    @property
    def written_tokens(self) -> int:
        """Maximum tokens after a prompt: the answer, and the thought and end mark before it."""
        return self.thought_tokens + self.answer_tokens

    @cached_property
    def thought_tokens(self) -> int:
        """Maximum tokens between a prompt and its answer: of a thought and its end mark; 0 without thoughts."""
        rule = self.data.spec.thought
        if rule is None:
            return 0
        return rule.limit + self.mark_tokens + SPARE_TOKENS

    @cached_property
    def mark_tokens(self) -> int:
        """Tokens of the end mark of a thought; 0 without thoughts."""
        rule, form = self.data.spec.thought, self.encoder.form
        if rule is None:
            return 0
        longest = max(("", *map(form.closing, form.thought_marks)), key=len)
        return len(self.encoder.continuation("a", joined("a", f"{longest}{rule.mark}")[1:]))

    @cached_property
    def thinking(self) -> Thinking | None:
        """How prompts are answered with thoughts; None without thoughts."""
        rule = self.data.spec.thought
        if rule is None or self.one_request:
            return None
        stops = tuple(dict.fromkeys((rule.mark, *self.encoder.form.thought_stops)))
        return Thinking(rule, Free(stops, rule.limit), self.encoder, self.tokenizer)

    @cached_property
    def parts(self) -> Parts | None:
        """How one text is split into thought and answer; None if they are separate texts."""
        rule = self.data.spec.thought
        if rule is None or not self.one_request:
            return None
        stops = ("\n",) if self.data.spec.is_classification else self.stops
        return Parts(rule, stops, self.tokenizer)

    @cached_property
    def answer_tokens(self) -> int:
        """Maximum tokens of an answer."""
        if not self.data.spec.is_classification:
            return self.data.spec.max_answer_tokens
        return max(map(len, self._tokens_of.values()))

    @cached_property
    def _tokens_of(self) -> dict[str, Ids]:
        """Ids of each possible answer, including its end."""
        spaces = dict.fromkeys(row.choices or self.data.labels for row in self.queried)
        texts = list(dict.fromkeys(text for space in spaces for text in space))
        return dict(zip(texts, self.encoder.answers(texts), strict=True))

    @cached_property
    def _spellings(self) -> Spellings:
        return spellings_of(self.tokenizer)

    @property
    def queried(self) -> tuple[Example, ...]:
        """The rows that queries are taken from."""
        return self.data.test if self.queries == "test" else self.data.train

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end a free-text answer."""
        return self.data.spec.stops_beside(self.encoder.form.stop)

    @property
    def ends_at_next_turn(self) -> bool:
        """Whether the beginning of a chat's next turn ends free texts: answers or thoughts."""
        spec = self.data.spec
        return self.encoder.form.ends_at_next_turn and (not spec.is_classification or spec.thought is not None)

    @cached_property
    def decoding(self) -> Decoding:
        """How a backend decodes answers of rows without their own choices."""
        if self.parts is not None:
            return Free((self.encoder.form.stop,), self.written_tokens)
        if not self.data.spec.is_classification:
            return Free(self.stops, self.answer_tokens)
        if self.scoring == "unconstrained":
            return self._written(self.data.labels)
        return self._among(self.data.labels)

    def decodings(self, queries: Sequence[Example]) -> list[Decoding]:
        """How a backend decodes each row's answer; rows with equal choices share one object."""
        if self.parts is not None:
            return [self.decoding] * len(queries)
        if self.scoring == "unconstrained" and self.data.spec.is_classification:
            return [self._written(row.choices or self.data.labels) for row in queries]
        return [self._among(row.choices) if row.choices else self.decoding for row in queries]

    def planned_answer(self, vocabulary: int, *, skips_unread: bool) -> AnswerWork:
        """The work of a planned answer, after the longest thought if the task thinks (:meth:`_planned_answer`)."""
        work, rule = self._planned_answer(vocabulary, skips_unread=skips_unread), self.data.spec.thought
        return work if rule is None else work.behind(rule.limit, self.mark_tokens, vocabulary)

    def _planned_answer(self, vocabulary: int, *, skips_unread: bool) -> AnswerWork:
        """The work of an answer of half the maximum length. With exact scoring, the mean work of all labels, or an
        estimate if labels may be left out.

        ``vocabulary`` is the number of tokens of the model's output head. Under a constraint its few allowed rows are
        not counted, because compiling the constraint takes time.
        """
        if self.scoring == "exact" and (queries := self.data.test):
            tokens = [2 * self.answer_tokens] * len(queries)  # the rough work of a search
            works = self.answer_works(queries, tokens, vocabulary, skips_unread=skips_unread)
            fed = [[*work.fed, *[0.0] * (max(len(w.fed) for w in works) - len(work.fed))] for work in works]
            return AnswerWork(tuple(np.mean(fed, axis=0).tolist()), float(np.mean([work.logits for work in works])))
        constrained = self.data.spec.is_classification and self.scoring == "greedy"
        return AnswerWork.generated(self.answer_tokens / 2, 0 if constrained else vocabulary)

    def works_of(
        self, queries: Sequence[Example], answers: Sequence[Prediction], vocabulary: int, *, skips_unread: bool
    ) -> list[AnswerWork]:
        """The work of each answer with the thought before it (:meth:`answer_works`).

        If a thought ended before its limit, its end mark counts as generated.
        """
        tokens = [answer.answer_tokens for answer in answers]
        works = self.answer_works(queries, tokens, vocabulary, skips_unread=skips_unread)
        return [
            work
            if answer.thought_tokens is None
            else work.behind(answer.thought_tokens, self.mark_tokens if answer.thought_truncated else 0, vocabulary)
            for work, answer in zip(works, answers, strict=True)
        ]

    def answer_works(
        self, queries: Sequence[Example], tokens: Sequence[int], vocabulary: int, *, skips_unread: bool
    ) -> list[AnswerWork]:
        """The work of each answer, given its generated ``tokens``.

        ``vocabulary`` is the number of tokens of the model's output head. With ``BackendLoader.skips_unread``,
        generated labels need only logits of tokens that some label allows, and scored labels need each shared beginning
        once. (Queries with choices of their own share a product over all their tokens in a pack, which is not counted.)
        """
        works, scored = [], {}
        for decoding, count in zip(self.decodings(queries), tokens, strict=True):
            if isinstance(decoding, Exact) and decoding.searches and skips_unread:
                works.append(AnswerWork.generated(count, vocabulary))
            elif isinstance(decoding, Exact):
                if id(decoding) not in scored:
                    scored[id(decoding)] = AnswerWork.scored(decoding.trie, vocabulary, once=skips_unread)
                works.append(scored[id(decoding)])
            elif isinstance(decoding, Greedy) and skips_unread:
                works.append(AnswerWork.generated(count, len(decoding.automaton.vocabulary)))
            else:
                works.append(AnswerWork.generated(count, vocabulary))
        return works

    def _written(self, labels: tuple[str, ...]) -> Decoding:
        """The decoding of a free answer that should be one of these labels."""
        if labels not in self._decodings:
            end = self._ending[1] if self._ending else ""
            held = tuple(self.encoder.form.answer(label).removesuffix(end).rstrip("\n") for label in labels)
            self._decodings[labels] = Free(("\n",), self.answer_tokens, of_labels=True, labels=held)
        return self._decodings[labels]

    def _among(self, labels: tuple[str, ...]) -> Decoding:
        """The decoding of an answer among these labels."""
        if labels not in self._decodings:
            check_told_apart(labels, [self._tokens_of[label] for label in labels])
            make = self._exact if self.scoring == "exact" else self._greedy
            self._decodings[labels] = make(labels)
        return self._decodings[labels]

    def _exact(self, labels: Sequence[str]) -> Decoding:
        ids = [self._tokens_of[label] for label in labels]
        sizes = {
            "none": None,
            "tokens": tuple(map(len, ids)),
            "characters": tuple(map(len, labels)),
            "bytes": tuple(len(label.encode()) for label in labels),
        }
        return Exact(label_trie(ids), sizes[self.normalize], self.every_score)

    def _greedy(self, labels: Sequence[str]) -> Decoding:
        held, ending = [self.encoder.form.answer(label) for label in labels], self._ending
        if ending is not None:
            held = [answer.removesuffix(ending[1]) for answer in held]
        token = ending[0] if ending else None
        return Greedy(compile_labels(held, self.tokenizer, token, self._spellings))

    @cached_property
    def _ending(self) -> tuple[int, str] | None:
        """The special token that ends answers, and its text; None if there is none."""
        token = self.encoder.ending_token
        return None if token is None else (token, self.tokenizer.decode([token]))

    @property
    def normalize(self) -> Literal["none", "tokens", "characters", "bytes"]:
        """The length by which labels' log-probabilities are divided before comparison."""
        labels = self.data.spec.labels
        return labels.normalize if labels and self.scoring == "exact" else "none"

    @cached_property
    def metrics(self) -> list[Metric]:
        """The metrics of answers, fitted to the right answers of all rows."""
        metrics, rows = metrics_of(self.data.spec.metrics), (*self.data.train, *self.data.test_pool)
        answers = [text for row in rows for text in row.golds or (row.answer,)]
        for metric in metrics:
            metric.windows = self.windows
            metric.fit(answers)
        return metrics

    def scores(self, predictions: Sequence[Prediction]) -> dict[str, Sequence[float]]:
        """Scores of predictions by column, ``(rows,)`` each.

        Invalid answers score 0, also where the right answer is empty. Raises ``CellError`` for a metric with scores
        outside 0 to 1.
        """
        golds = [row.golds or (row.gold,) for row in predictions]
        texts = [row.prediction for row in predictions]
        void = np.array([not row.valid for row in predictions], dtype=bool)
        by_column: dict[str, Sequence[float]] = {}
        for metric in self.metrics:
            for name, values in metric.score_golds(golds, texts).items():
                scores = checked_scores(name, values, len(predictions))
                by_column[name] = np.where(void, 0.0, scores).tolist()
        return by_column

    def answer_form(self, answer: str) -> str:
        """The canonical form of answers: equal forms are equal answers."""
        return self.metrics[0].form(answer) if self.metrics and not self.data.spec.is_classification else answer

    def with_sample_scores(self, prediction: Prediction) -> Prediction:
        """The prediction with the score of each sample by the task's first measure.

        Raises ``CellError`` for a metric with scores outside 0 to 1.
        """
        assert prediction.samples is not None, "it is a majority"
        different = list(dict.fromkeys(prediction.samples))
        each = [replace(prediction, prediction=text or "", valid=text is not None) for text in different]
        each = [replace(one, correct=None if one.correct is None else one.prediction == one.gold) for one in each]
        found = self.first_scores(each, self.scores(each))
        if found is None:
            return prediction
        score = dict(zip(different, found[1], strict=True))
        return replace(prediction, sample_scores=tuple(score[text] for text in prediction.samples))

    def first_scores(
        self, predictions: Sequence[Prediction], stored: Mapping[str, Sequence[float]]
    ) -> tuple[str, Sequence[float]] | None:
        """The task's first measure, and each answer's score.

        ``stored`` are the predictions' :meth:`scores`. None if single answers have no score.
        """
        name, column = self._first_measure
        scores = list(stored.get(column, ()))
        if column == "correct":
            scores = [float(row.correct) for row in predictions if row.correct is not None]
        return (name, scores) if scores else None

    @property
    def first_measure(self) -> str:
        """The measure that compares points of the task."""
        return self._first_measure[0]

    @property
    def first_column(self) -> str:
        """The column of predictions with the scores of the task's first measure."""
        return self._first_measure[1]

    @property
    def _first_measure(self) -> tuple[str, str]:
        own = self.metrics[0].measures if self.metrics else ()
        return (own[0].name, own[0].column) if own else (ACCURACY, "correct")

    def metric_facts(self) -> Mapping[str, Any]:
        """Facts that decide the scores besides the answers. Raises ``UserError``."""
        return {name: fact for metric in self.metrics for name, fact in metric.facts().items()}
