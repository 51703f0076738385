"""Runs fine-tuning and its simple rivals as cells beside those of in-context learning.

A cell's ``select`` is the method: ``lora``, ``full`` (the checkpoint that validation rows choose),
``lora-paper``, ``full-paper`` (the one that the test rows choose: an upper bound, as in the
study), ``probe``, ``knn``. All else is as in a sweep: axes, files, summaries.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from icl_bench.backends.spec import check_dtype
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import CellError, UserError
from icl_bench.frozen import Frozen
from icl_bench.models.architecture import Architecture, shape_of
from icl_bench.models.registry import Model, load_tokenizer, resolve
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.cells import CellSpec, Identity, Prediction
from icl_bench.results.store import Store
from icl_bench.results.trained_methods import CLASSIFIER, METHODS, TRAINED, UPPER
from icl_bench.sweep.experiment import TokenizedTask
from icl_bench.sweep.facts import facts, origin, versions
from icl_bench.sweep.k_values import KValues
from icl_bench.sweep.runner import Outcome
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task
from icl_bench.training.classification_head import Head, first_tokens, sharing_rows
from icl_bench.training.examples import VALIDATION_ROWS, Examples, Validation
from icl_bench.training.trainer import Recipe, Trained, fine_tune, pad_token
from icl_bench.wording import nearest

Say = Callable[[str], None]


class FinetuneSpec(Frozen):
    """Everything that a user asks of fine-tuning runs."""

    task: str
    model: str
    k: str
    method: tuple[str, ...] = ("lora",)
    draws: int = 3
    seed: int = 0
    test_size: int | None = None
    data_dir: Path | None = None
    head: Head = "lm"
    validation: Validation = "pool"
    epochs: int = 30
    batch: int = 32
    learning_rate: float | None = None
    device: str | None = None
    dtype: str = "auto"
    keep: Path | None = None
    """Folder for the weights of the epochs that validation chooses."""

    def recipe(self, method: Literal["lora", "full"]) -> Recipe:
        """How a method trains."""
        changes: dict[str, Any] = {"head": self.head, "epochs": self.epochs, "batch": self.batch}
        if self.learning_rate is not None:
            changes["learning_rate"] = self.learning_rate
        return Recipe.of(method, **changes)


@dataclass(frozen=True)
class Learned:
    """What a method gives for one k and draw."""

    select: str
    probabilities: np.ndarray
    """``(test, labels)``"""
    seconds: float
    """Of answering the test rows."""
    about: Mapping[str, Any]
    """How it was trained and at which cost."""


@dataclass
class Finetuning:
    """Planned runs of one task and model."""

    spec: FinetuneSpec
    model: Model
    experiment: TokenizedTask
    shots: tuple[int, ...]
    device: str
    dtype: str
    _states: Any = field(default=None, repr=False)
    _asked: tuple[np.ndarray, float] | None = field(default=None, repr=False)
    """The test rows' states, and the seconds that they took."""

    @classmethod
    def prepare(cls, spec: FinetuneSpec, say: Say = lambda _: None) -> Finetuning:
        """Load data and tokenizer; nothing is trained yet. Raises ``UserError``."""
        from icl_bench.backends.device import choose_device, choose_dtype

        if not spec.method:
            raise UserError(f"--method: empty; give {', '.join(METHODS)}, several with commas")
        check_dtype(spec.dtype)
        if spec.learning_rate is not None and not 0 < spec.learning_rate < math.inf:
            raise UserError(
                f"--learning-rate {spec.learning_rate}: expected more than 0, like 1e-3"
            )
        for name in spec.method:
            if name not in METHODS:
                raise UserError(f"--method {name}: not a method; {nearest(name, METHODS)}")
        for package, methods in (("peft", {"lora"}), ("sklearn", {"probe", "knn"})):
            if methods & set(spec.method) and find_spec(package) is None:
                raise UserError(f"{package} is missing: pip install 'icl-bench[finetune]'")
        shots = KValues.parse(spec.k)
        if shots.largest:
            raise UserError("--k: training has no context window; give numbers, like 10,100,1000")
        task = load_task(spec.task)
        if not task.is_classification:
            raise UserError(f"task {task.name} is free text; fine-tuning needs labels")
        say(f"reading {task.name}")
        data = load_data(task, data_dir=spec.data_dir, test_size=spec.test_size)
        say(f"preparing {spec.model}")
        model = resolve(spec.model)
        experiment = TokenizedTask(data, model, load_tokenizer(model), spec.seed)
        pool = len(experiment.pool)
        if shots.numbers[0] > pool:
            raise UserError(f"--k {shots.numbers[0]:,}: the pool has {pool:,} examples")
        device = choose_device(spec.device)
        dtype = str(choose_dtype(spec.dtype, device)).removeprefix("torch.")
        if dtype == "float16" and device.type == "cpu":
            raise UserError("--dtype float16: a CPU trains in float32 or bfloat16")
        return cls(spec, model, experiment, shots.numbers, str(device), dtype)

    def notes(self) -> list[str]:
        """What a user should know before the runs."""
        labels = self.experiment.data.labels
        found = list(self.experiment.data.notes)
        if self.spec.head == "lm" and set(TRAINED) & set(self.spec.method):
            sharing = sharing_rows(first_tokens(self.experiment))
            if sharing:
                found.append(
                    f"{sharing} of {len(labels)} labels begin with a token that others begin with "
                    "too: their rows of the head start equal"
                )
        if set(TRAINED) & set(self.spec.method) and self.spec.validation == "pool":
            found.append(
                f"the checkpoint is chosen on {VALIDATION_ROWS} rows of the pool that follow the "
                "k examples; --validation examples takes them from the k"
            )
        return found

    # -- cells ----------------------------------------------------------------------------------

    def run(self, results: Path, say: Say = lambda _: None) -> Outcome:
        """Train what is not in the results folder yet. Raises ``UserError``."""
        store, outcome = Store(results), Outcome()
        store.prepare()
        for k in self.shots:
            for draw in range(self.spec.draws):
                examples = Examples(self.experiment, draw, k, self.spec.validation)
                for method in dict.fromkeys(self.spec.method):
                    self._run(store, method, examples, outcome, say)
        return outcome

    def identity(self, select: str, examples: Examples) -> Identity:
        """A cell with all that decides its predictions."""
        experiment, method = self.experiment, select.removesuffix(UPPER)
        spec = CellSpec(
            task=experiment.data.spec.name, model=self.model.name, select=select, order="drawn",
            attention="full", k=examples.k, draw=examples.draw,
        )  # fmt: skip
        engine = {"backend": "trainer" if method in TRAINED else method,
                  "dtype": self.dtype}  # fmt: skip
        decided: dict[str, Any] = facts(experiment, SelectorSpec(), engine) | {
            "scoring": CLASSIFIER
        }
        if method in TRAINED:
            decided["recipe"] = self._recipe(method).model_dump()
            decided["validation"] = self.spec.validation
            decided["checkpoint"] = "test" if select.endswith(UPPER) else "validation"
        if method == "knn":
            from icl_bench.training.nearest_neighbours import NAME

            decided["encoder"] = NAME
        return Identity(spec, decided)

    def _recipe(self, method: str) -> Recipe:
        return self.spec.recipe("lora" if method == "lora" else "full")

    def _run(
        self, store: Store, method: str, examples: Examples, outcome: Outcome, say: Say
    ) -> None:
        """One method on one k and draw: its cell, and that of the upper bound where it has one."""
        identity = self.identity(method, examples)
        rows = len(self.experiment.data.test)
        where = f"{method}, k={examples.k:,}, draw {examples.draw + 1} of {self.spec.draws}"
        with store.claim(identity, rows) as opened:
            if opened is None:
                outcome.kept.append(identity.spec)
                return
            unseen = len(examples.missing)
            without = f" ({unseen} of {len(self.experiment.data.labels)} labels have no example)"
            say(f"{where}: training{without if unseen else ''}")
            try:
                if examples.k > len(self.experiment.pool):
                    raise CellError(
                        f"k={examples.k:,} is more than the pool's {len(self.experiment.pool):,}"
                    )
                learned = self._learn(method, examples, identity)
            except CellError as error:
                opened.fail(str(error))
                outcome.failed[identity.spec] = str(error)
                say(f"{where}: failed: {error}")
                return
            # the upper bound first: where the honest cell is there, both are
            for found in sorted(learned, key=lambda found: found.select == method):
                if found.select == method:
                    self._finish(opened, found, examples)
                    outcome.computed.append(identity.spec)
                    continue
                upper = self.identity(found.select, examples)
                with store.claim(upper, rows) as other:
                    if other is not None:
                        self._finish(other, found, examples)
                        outcome.computed.append(upper.spec)
        right = {found.select: self._accuracy(found, examples) for found in learned}
        said = ", ".join(f"{name} {share:.1%}" for name, share in right.items())
        say(f"{where}: {said}")

    def _accuracy(self, found: Learned, examples: Examples) -> float:
        answers = found.probabilities.argmax(axis=1)
        return float(
            np.mean([a == row.label for a, row in zip(answers, examples.test, strict=True)])
        )

    def _finish(self, opened: Any, found: Learned, examples: Examples) -> None:
        """Write a cell's predictions and what led to them."""
        data = self.experiment.data
        hashes = PromptSet((), tuple(row.ids for row in examples.test)).hashes()
        order = np.argsort(-found.probabilities, axis=1, kind="stable")
        made = []
        for i, row in enumerate(data.test):
            first, second = order[i][:2]
            chance = found.probabilities[i]
            said = data.labels[first]
            made.append(Prediction(
                test_id=row.id, gold=row.answer, prediction=said, correct=said == row.answer,
                valid=True, prompt_tokens=len(examples.test[i].ids), cached_tokens=0,
                answer_tokens=0, prompt_hash=hashes[i], probability=float(chance[first]),
                margin=float(chance[first] - chance[second]), label_mass=1.0,
            ))  # fmt: skip
        opened.append(made, found.seconds)
        opened.finish([row.id for row in data.test], {
            **origin(self.experiment, examples.shown, self._versions),
            "demonstration_ids": [example.id for example in examples.shown],
            "training": dict(found.about),
            "shape": None if found.select == "knn" else self._shape.as_json(),
        })  # fmt: skip

    @cached_property
    def _versions(self) -> dict[str, str]:
        return versions("peft", "scikit-learn", "sentence-transformers")

    @cached_property
    def _shape(self) -> Architecture:
        return shape_of(self.model.source)

    # -- methods --------------------------------------------------------------------------------

    def _learn(self, method: str, examples: Examples, identity: Identity) -> list[Learned]:
        if method == "probe":
            return [self._probe(examples)]
        if method == "knn":
            return [self._neighbours(examples)]
        assert examples.train  # refused before the model is loaded
        recipe = self._recipe(method)
        keep = None
        if self.spec.keep is not None:
            keep = (
                self.spec.keep / f"{method}-k{examples.k:05d}-d{examples.draw:02d}-{identity.cell}"
            )
        done = fine_tune(
            examples, recipe, source=self.model.source, device=self.device, dtype=self.dtype,
            seed=self.spec.seed + examples.draw, keep=keep,
        )  # fmt: skip
        return [
            self._checkpoint(done, method, done.best, examples, recipe),
            self._checkpoint(done, f"{method}{UPPER}", done.best_on_test, examples, recipe),
        ]

    def _checkpoint(
        self, done: Trained, select: str, epoch: int, examples: Examples, recipe: Recipe
    ) -> Learned:
        logits = done.logits[epoch]
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        tokens = first_tokens(self.experiment) if recipe.head == "lm" else []
        return Learned(select, chances, done.inference_seconds, {
            "method": select,
            "seconds": round(done.training_seconds, 3),
            "tokens": done.training_tokens,
            "flops": done.flops(self._shape, examples, recipe),
            "padded_tokens": done.padded_tokens,
            "trainable_parameters": done.trainable,
            "epoch": epoch + 1,
            "validation_accuracy": [round(share, 6) for share in done.validation],
            "test_accuracy": [round(share, 6) for share in done.test],
            "validation_rows": len(examples.held_out),
            "labels_without_example": list(examples.missing),
            "labels_sharing_a_head_row": sharing_rows(tokens),
        })  # fmt: skip

    def _probe(self, examples: Examples) -> Learned:
        from icl_bench.training.probe import LastStates, probe

        train = examples.train
        if self._states is None:
            self._states = LastStates(
                self.model.source, pad_token(self.experiment), self.device, self.dtype
            )
        if self._asked is None:
            start = time.perf_counter()
            states = self._states.of(examples.test)
            self._asked = states, time.perf_counter() - start
        asked, inference = self._asked
        start = time.perf_counter()
        states = self._states.of(train)
        labels = np.array([row.label for row in train])
        found = probe(states, labels, asked, len(self.experiment.data.labels))
        return Learned("probe", found, inference, {
            "method": "probe",
            "seconds": round(time.perf_counter() - start, 3),
            "tokens": sum(len(row.ids) for row in train),
            "flops": sum(self._shape.flops(len(row.ids), len(row.ids) / 2) for row in train),
            "labels_without_example": list(examples.missing),
        })  # fmt: skip

    def _neighbours(self, examples: Examples) -> Learned:
        from icl_bench.training.nearest_neighbours import NAME, embed, encoder, neighbours

        def texts(rows: Any) -> list[str]:
            names = self.experiment.data.spec.template.input_fields
            return [" ".join(row.fields[name] for name in names) for row in rows]

        labels = np.array([row.label for row in examples.train])
        learnt = {row.id for row in examples.train}
        encoder()  # loading it is no part of what is timed
        start = time.perf_counter()
        train = embed(texts(row for row in examples.shown if row.id in learnt))
        middle = time.perf_counter()
        asked = embed(texts(self.experiment.data.test))
        found, number = neighbours(train, labels, asked, len(self.experiment.data.labels))
        return Learned("knn", found, time.perf_counter() - middle, {
            "method": "knn",
            "seconds": round(middle - start, 3),
            "encoder": NAME,
            "neighbours": number,
            "labels_without_example": list(examples.missing),
        })  # fmt: skip
