"""Runs training methods as cells, comparable with those of in-context learning.

A cell's ``select`` is the method's name, or that of its upper bound (``lora-paper``: the checkpoint selected on the
test rows, as in the study). Axes, files and summaries are those of a sweep.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from icl_bench.backends.device import device_name, dtype_name
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import CellError, UserError
from icl_bench.models.registry import CommitOf, load_tokenizer, newest, resolve
from icl_bench.models.trained import before, own_pattern
from icl_bench.prompts.encoding import PromptSet
from icl_bench.registry import TRAINING_METHODS
from icl_bench.results.cells import CellSpec, Identity, Prediction
from icl_bench.results.hub_commits import keep_commit
from icl_bench.results.storage import Place
from icl_bench.results.store import OpenCell, Store
from icl_bench.results.stored_meta import TrainingMeta
from icl_bench.results.trained_methods import CLASSIFIER, UPPER
from icl_bench.sweep.facts import cell_meta, facts, settings, versions
from icl_bench.sweep.runner import Outcome
from icl_bench.sweep.scoring_again import score_again
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task
from icl_bench.tasks.think_option import refuse_thoughts
from icl_bench.text_files import write_whole
from icl_bench.training.card import CARD, card
from icl_bench.training.examples import Examples
from icl_bench.training.interface import Learned, TrainingMethod, TrainingRun
from icl_bench.training.spec import FinetuneSpec, Validation
from icl_bench.training.trainer import accuracy

Say = Callable[[str], None]

LABELS = "labels.json"
"""The file of a kept folder with the labels in the order of the classifier's outputs; it is written last."""


@dataclass
class Finetuning:
    """Planned trainings of one task and model."""

    spec: FinetuneSpec
    task: TokenizedTask
    device: str
    dtype: str

    @classmethod
    def prepare(cls, spec: FinetuneSpec, say: Say = lambda _: None, commit_of: CommitOf = newest) -> Finetuning:
        """Load data and tokenizer; nothing is trained yet. ``commit_of`` as in ``resolve``. Raises ``UserError``."""
        spec.check()
        task_spec = load_task(spec.task, spec.text, spec.label)
        refuse_thoughts(task_spec, "fine-tuning")
        if not task_spec.is_classification:
            raise UserError(f"task {task_spec.name} is free text; fine-tuning needs labels")
        if task_spec.labels and task_spec.labels.own:
            raise UserError(
                f"task {task_spec.name} has choices of each row's own; fine-tuning needs labels shared by all rows"
            )
        say(f"reading {task_spec.name}")
        data = load_data(task_spec, data_dir=spec.data_dir, test_size=spec.test_size, test_ids=spec.test_ids)
        say(f"preparing {spec.model}")
        model = resolve(spec.model, commit_of=commit_of)
        task = TokenizedTask(data, model, load_tokenizer(model), spec.seed).without_too_long()
        pool = len(task.pool)
        if spec.k.numbers[0] > pool:
            raise UserError(f"--k {spec.k.numbers[0]:,}: the pool has {pool:,} examples")
        device = device_name(spec.device)
        dtype = dtype_name(spec.dtype, device)
        if dtype == "float16" and device == "cpu":
            raise UserError("--dtype float16: a CPU trains in float32 or bfloat16")
        return cls(spec, task, device, dtype)

    @cached_property
    def methods(self) -> dict[str, TrainingMethod]:
        """The training methods, by name."""
        run = TrainingRun(self.spec, self.task, self.device, self.dtype)
        return {name: TRAINING_METHODS[name](run) for name in self.spec.method}

    def notes(self) -> list[str]:
        """Notes for the user before the trainings."""
        own = (note for method in self.methods.values() for note in method.notes())
        return list(dict.fromkeys([*self.task.data.notes, *own]))

    # -- cells ----------------------------------------------------------------------------------

    def run(
        self, results: Place, say: Say = lambda _: None, wanted: Callable[[CellSpec], bool] = lambda _: True
    ) -> Outcome:
        """Train the wanted cells that are missing in the results folder. Raises ``UserError``."""
        store, outcome = Store(results), Outcome()
        store.prepare()
        keep_commit(results, self.task.model.fingerprint)
        for method, examples in self._planned():
            if wanted(self.identity(method.name, examples).spec):
                self._run(store, method, examples, outcome, say)
        outcome.check(store)
        return outcome

    def identities(self) -> list[Identity]:
        """Identities of all cells, without upper bounds."""
        return [self.identity(method.name, examples) for method, examples in self._planned()]

    def _planned(self) -> Iterator[tuple[TrainingMethod, Examples]]:
        """Each method with its examples, in order."""
        for k in self.spec.k.numbers:
            for draw in range(self.spec.draws):
                shared: dict[Validation, Examples] = {}  # its rows are tokenized once
                for method in self.methods.values():
                    examples = self.examples(method.name, k, draw)
                    yield method, shared.setdefault(examples.validation, examples)

    def examples(self, method: str, k: int, draw: int) -> Examples:
        """The rows of one training of a method."""
        selects = self.methods[method].selects_checkpoint
        return Examples(self.task, draw, k, self.spec.validation if selects else "pool")

    def train(self, store: Store, method: str, examples: Examples) -> Outcome:
        """Train one cell unless it is finished, also without its upper bound. The outcome names the finished cells.

        Raises ``UserError``.
        """
        outcome = Outcome()
        self._run(store, self.methods[method], examples, outcome, lambda _: None, bounds=False)
        for name in store.gone(list(outcome.names)):
            del outcome.names[name]
        return outcome

    def release(self) -> None:
        """Release the models that methods hold. They are loaded again on demand."""
        self.__dict__.pop("methods", None)

    def identity(self, select: str, examples: Examples) -> Identity:
        """The identity of a cell."""
        task, method = self.task, self.methods[select.removesuffix(UPPER)]
        spec = CellSpec(
            task=task.data.spec.name,
            model=task.model.name,
            select=select,
            order="drawn",
            attention=str(own_pattern(task.model.source)),
            k=examples.k,
            draw=examples.draw,
        )
        backend = {"backend": method.backend, "dtype": self.dtype}
        own = dict(method.facts(select))
        if method.selects_checkpoint:
            own["validation"] = self.spec.validation
        decided = facts(task, SelectorSpec(), backend).with_more(scoring=CLASSIFIER, **own)
        return Identity(spec, decided, settings(task))

    def _run(
        self,
        store: Store,
        method: TrainingMethod,
        examples: Examples,
        outcome: Outcome,
        say: Say,
        *,
        bounds: bool = True,
    ) -> None:
        """Train one method on one k and draw; write its cell, and its upper bound's if it has one.

        With ``bounds``, a finished cell whose upper bound is missing or damaged is trained again.
        """
        identity = self.identity(method.name, examples)
        rows = len(self.task.data.test)
        where = f"{method.name}, k={examples.k:,}, draw {examples.draw + 1} of {self.spec.draws}"
        keeps = self.spec.keep_checkpoints is not None
        bound = self.identity(f"{method.name}{UPPER}", examples)
        outcome.names |= {named.name: named.spec for named in (identity, bound)}
        with store.claim(identity, rows) as opened:
            again = opened is None and store.has(identity) and keeps and not self._has_kept(identity)
            lacks = ""
            if opened is None:
                score_again(store, identity, self.task)
                outcome.kept.append(identity.spec)
                if not store.has(bound):  # it is written before the method's own cell
                    lacks = "missing" if method.has_upper_bound and store.has(identity) else ""
                elif not store.is_current(bound) and bound.name not in store.scored_otherwise:
                    lacks = "damaged"
                score_again(store, bound, self.task)
                lacks = lacks if bounds else ""
                if not (again or lacks):
                    if self._has_kept(identity):
                        say(f"classifier already written: {self._kept(identity)}")
                    return
            unseen = len(examples.missing)
            without = f" ({unseen} of {len(self.task.data.labels)} labels have no example)"
            why = ", to keep what it learns" if again else f", because {bound.spec.select} is {lacks}"
            say(f"{where}: training{f' again{why}' if opened is None else ''}{without if unseen else ''}")
            try:
                learned = self._learn(method, examples, identity)
            except CellError as error:
                if opened is not None:
                    opened.fail(str(error))
                outcome.failed[identity.name] = str(error)
                say(f"{where}: failed: {error}")
                return
            if self._has_kept(identity):
                say(f"classifier written: {self._kept(identity)}")
            if opened is None and not lacks:
                return
            # the upper bound first, so that the method's cell implies both
            for learnt in sorted(learned, key=lambda learnt: learnt.select == method.name):
                if learnt.select == method.name:
                    if opened is not None:
                        self._finish(opened, method, learnt, examples)
                        outcome.computed.append(identity.spec)
                    continue
                upper = self.identity(learnt.select, examples)
                with store.claim(upper, rows) as other:
                    if other is not None:
                        self._finish(other, method, learnt, examples)
                        outcome.computed.append(upper.spec)
        right = {learnt.select: accuracy(learnt.probabilities, examples.test) for learnt in learned}
        shares = ", ".join(f"{name} {share:.1%}" for name, share in right.items())
        say(f"{where}: {shares}")

    def _learn(self, method: TrainingMethod, examples: Examples, identity: Identity) -> list[Learned]:
        """Train, and keep the trained model if requested. Raises ``CellError``."""
        if examples.k > len(self.task.pool):
            raise CellError(f"k={examples.k:,} is more than the pool's {len(self.task.pool):,}")
        folder = self._kept(identity)
        learned = method.learn(examples, folder)
        if folder is not None and folder.is_dir():
            labels = json.dumps(list(self.task.data.labels), ensure_ascii=False, indent=1)
            try:
                if (text := card(method.run, identity)) is not None:
                    write_whole(folder / CARD, text.encode())
                write_whole(folder / LABELS, f"{labels}\n".encode())
            except OSError as error:
                raise CellError(f"checkpoint: {error.strerror or error}") from None
        return learned

    def _has_kept(self, identity: Identity) -> bool:
        """Whether a cell's trained model should be kept and its folder is complete."""
        folder = self._kept(identity)
        return folder is not None and (folder / LABELS).is_file()

    def _kept(self, identity: Identity) -> Path | None:
        """The folder for a cell's trained model; None if it is not kept."""
        cell, folder = identity.spec, self.spec.keep_checkpoints
        name = f"{cell.select}-k{cell.k:05d}-d{cell.draw:02d}-{identity.cell}"
        return None if folder is None else folder / name

    def _finish(self, opened: OpenCell, method: TrainingMethod, learnt: Learned, examples: Examples) -> None:
        """Write a cell's predictions and metadata."""
        data = self.task.data
        hashes = PromptSet((), tuple(row.ids for row in examples.test)).hashes()
        order = np.argsort(-learnt.probabilities, axis=1, kind="stable")
        predictions = []
        for i, row in enumerate(data.test):
            first, second = order[i][:2]
            chance = learnt.probabilities[i]
            label = data.labels[first]
            predictions.append(
                Prediction(
                    test_id=row.id,
                    gold=row.answer,
                    prediction=label,
                    correct=label == row.answer,
                    valid=True,
                    prompt_tokens=len(examples.test[i].ids),
                    cached_tokens=0,
                    answer_tokens=0,
                    prompt_hash=hashes[i],
                    probability=float(chance[first]),
                    margin=float(chance[first] - chance[second]),
                    label_mass=1.0,
                )
            )
        opened.append(predictions, learnt.seconds)
        scores = self.task.scores(predictions)
        meta = cell_meta(
            opened.identity,
            self.task,
            examples.shown,
            self._versions,
            demonstration_ids=[example.id for example in examples.shown],
            training=self._with_the_models(method, learnt.training),
            architecture=method.run.architecture if method.has_architecture else None,
            compute=None
            if learnt.query_flops is None
            else {"prefix_flops": 0.0, "query_flops": learnt.query_flops, "whole_flops": learnt.query_flops},
        )
        opened.finish([row.id for row in data.test], meta, scores)

    def _with_the_models(self, method: TrainingMethod, training: TrainingMeta) -> TrainingMeta:
        """A training with that of the model, if this program trained the model and the method runs it."""
        earlier = before(self.task.model.source) if method.has_architecture else {}
        return TrainingMeta(**training.model_dump(exclude_none=True), **earlier)

    @cached_property
    def _versions(self) -> dict[str, str]:
        return versions("peft", "scikit-learn", "sentence-transformers")
