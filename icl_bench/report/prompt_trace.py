"""Rebuilds the exact prompt of a stored prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from icl_bench.demonstrations.as_vectors import stored_as_text
from icl_bench.demonstrations.perturbations import NONE, Perturbation
from icl_bench.demonstrations.selector_spec import known
from icl_bench.errors import UserError
from icl_bench.models import registry
from icl_bench.models.attention_patterns import Pattern
from icl_bench.models.registry import Model
from icl_bench.prompts.chat import ChatSettings, PromptForm, chat_form
from icl_bench.prompts.encoding import PromptSet, PromptTokenizer
from icl_bench.prompts.rendering import PlainForm, Writing, demonstration_text
from icl_bench.report.imported_questions import ImportedQuestions
from icl_bench.results.cells import FINISHED
from icl_bench.results.derived import base_cell
from icl_bench.results.facts import ChatFacts
from icl_bench.results.reading import find_imported, finished_cells, read_rows, read_stored
from icl_bench.results.storage import Place, Storage, storage_at
from icl_bench.results.stored_meta import CellMeta
from icl_bench.results.trained_methods import CLASSIFIER
from icl_bench.tasks.calibration_inputs import CONTEXTUAL, DOMAIN, inputs_of
from icl_bench.tasks.drafts import task_name
from icl_bench.tasks.examples import Example, load_data
from icl_bench.tasks.file_readers import kind_of
from icl_bench.tasks.in_memory import MEMORY
from icl_bench.tasks.label_subset import HalfLabels
from icl_bench.tasks.spec import TaskSpec, TestRows
from icl_bench.tasks.task_files import load_task
from icl_bench.tasks.templates import JinjaTemplate
from icl_bench.wording import counted, few, listed, plain


@dataclass(frozen=True, repr=False)
class Shown:
    """One prediction with its provenance."""

    row: Mapping[str, Any]
    """The stored prediction."""
    prompt: str
    demonstrations: tuple[Example, ...]
    checked: str
    """Whether the rebuilt prompt equals the prompt of the run, in words."""
    file: str
    """The file that stores it."""
    vectors: tuple[str, ...] = ()
    """Texts that the model read as vectors in addition to the prompt."""
    choices: tuple[str, ...] = ()
    """The possible answers of the row, if rows have their own choices."""
    answer_prompt: str | None = None
    """The prompt of the answer: ``prompt`` with the thought and its end mark; None if the model answered at once,
    or a server wrote both as one text."""
    slots: str = ""
    """Instructions for replacing names of fields in ``template``, in words."""
    template: str | None = None
    """The prompt with ``{NAME}`` in place of a query's fields, if all queries share the demonstrations."""
    no_file: str = ""
    """Why the model's input cannot be written to a text file; empty if it can."""

    def __str__(self) -> str:
        """The prompt, followed by the answer and the right answer."""
        row, prompt = self.row, self.answer_prompt or self.prompt
        return f"{prompt}\n\nanswered: {row['prediction']}; right: {row['gold']} ({row['test_id']}; {self.checked})"

    __repr__ = __str__

    def as_json(self) -> dict[str, Any]:
        """The prediction's columns, the prompt and the demonstrations."""
        return {
            **self.row,
            "demonstration_ids": [d.id for d in self.demonstrations],
            **({"choices": list(self.choices)} if self.choices else {}),
            "prompt": self.prompt,
            **({"answer_prompt": self.answer_prompt} if self.answer_prompt is not None else {}),
            **({"vectors": list(self.vectors)} if self.vectors else {}),
            "checked": self.checked,
            "file": self.file,
        }


def named_cell(**names: Any) -> dict[str, Any]:
    """The axes that name a cell, as written in results, without missing ones. Raises ``UserError``.

    >>> named_cell(task="trec", select="hybrid:5,by=bm25", model=None)
    {'task': 'trec', 'select': 'hybrid:5'}
    """
    written: dict[str, Callable[[str], object]] = {
        "select": lambda text: known(text) or text,
        "attention": Pattern.parse,
        "perturbation": Perturbation.parse,
    }
    values = {name: value for name, value in names.items() if value is not None}
    return {name: str(written[name](value)) if name in written else value for name, value in values.items()}


def find_prediction(
    results: Place,
    wanted: Mapping[str, Any],
    test_id: str | None = None,
    data_dir: Path | None = None,
    tasks: Mapping[str, TaskSpec] = {},
) -> Shown:
    """Find one prediction and rebuild its prompt from the stored ids.

    ``wanted`` names the cell by its axes (task, k, draw, ...), by the ``perturbation`` of its demonstrations or by its
    hash (``cell``). ``tasks`` has, by name, the tasks whose rows were given in Python. Raises ``UserError`` if no cell
    or several cells match, the test id is not among its rows, or the data files have changed since.
    """
    storage = storage_at(results)
    derived = str(wanted.get("cell", ""))
    is_derived = derived != base_cell(derived)
    found = _one_cell(storage, {**wanted, "cell": base_cell(derived)} if derived else wanted)
    if isinstance(found, _ImportedCell):
        imported = _imported(storage, found, test_id, data_dir, tasks)
        calibrated = _calibrated(results, derived, imported.row["test_id"]) if is_derived else {}
        return replace(imported, row={**imported.row, **calibrated})
    name, meta = found
    row = _one_row(storage, name, test_id)
    if is_derived:
        row |= _calibrated(results, derived, row["test_id"])
    spec = TaskSpec.model_validate(meta.task_as_given)
    if spec.data.source == MEMORY:
        spec = tasks.get(spec.name, spec)
    queries = row.get("queries")
    rows = TestRows(ids=(row["test_id"],)) if queries is None else TestRows(size=1)
    one_row = spec.model_copy(update={"test": rows})
    data = load_data(one_row, data_dir=data_dir)
    stored = meta.facts.data or {}  # may also contain a list of test ids, which is not read here
    if any(stored.get(name) != digest for name, digest in data.files.items()):
        raise UserError(
            f"{storage.where(name)}: the data has changed since the run ({data.origin}); its prompts cannot be rebuilt"
        )
    own = row.pop("demonstration_ids", None)
    ids = meta.demonstration_ids or [] if own is None else list(own)
    known = {example.id: example for example in data.train}
    shown, writing = as_shown(meta, [known[name] for name in ids])
    if queries in (CONTEXTUAL, DOMAIN):
        half = HalfLabels.parse(meta.facts.label_space or "all")
        train = data.train if half is None else half.train_of(data)
        known |= {one.id: one for one in inputs_of(queries, spec, train, meta.facts.seed or 0)}
    query = data.test[0] if queries is None else known[row["test_id"]]  # pool rows are train rows
    trained = meta.facts.scoring == CLASSIFIER  # trained on these examples, which are not in the prompt
    form = _form(meta, spec, writing)
    in_text, vectors = _as_text_and_vectors(row, spec, shown, query)
    text = form.whole(() if trained else in_text, query)
    slots = replace(query, fields={name: f"{{{name}}}" for name in query.fields})
    template = form.whole(in_text, slots) if own is None and not trained else None
    names = listed(slot for slot in slots.fields.values() if slot in form.query(slots))
    what = (
        "query as the task's input template writes it" if isinstance(spec.template, JinjaTemplate) else "query's text"
    )
    no_file = f"the model read {counted(len(vectors), 'text')} as vectors, which a text file cannot contain" * bool(
        vectors
    )
    if trained:
        no_file = "a trained classifier answers without a prompt"
    checked = _checked(text, vectors, row, meta, form)
    choices = _choices(spec, query)
    behind = None if meta.facts.server is not None else _answer_prompt(spec, form, text, row.get("thought"))
    where, filled = storage.where(name), f"the {what} in place of {names}"
    return Shown(row, text, shown, checked, where, vectors, choices, behind, filled, template, no_file)


def _answer_prompt(spec: TaskSpec, form: PromptForm, prompt: str, thought: str | None) -> str | None:
    """The prompt of an answer after a thought; None without a thought."""
    if spec.thought is None or thought is None:
        return None
    return prompt + spec.thought.until_answer(prompt, thought, form.closing(prompt + thought))


def _calibrated(results: Place, cell: str, test_id: str) -> dict[str, Any]:
    """The calibrated form of a prediction. Raises ``UserError`` if it cannot be derived."""
    frame = read_stored(results, apart=False, derive=True).predictions
    rows = frame[(frame["cell"] == cell) & (frame["test_id"] == test_id)]
    if rows.empty:
        name = cell.partition("+")[2]
        raise UserError(f"--cell {plain(cell)}: no calibration {plain(name)} can be derived of it; see summary")
    changed = ("prediction", "correct", "probability", "margin", "label_mass", "cell", "variant")
    return {name: rows.iloc[0][name] for name in changed}


def _as_text_and_vectors(
    row: Mapping[str, Any], spec: TaskSpec, shown: Sequence[Example], query: Example
) -> tuple[Sequence[Example], tuple[str, ...]]:
    """The demonstrations in the prompt, and the texts that are read as vectors."""
    pattern = Pattern.parse(row["attention"])
    if not pattern.reads_vectors:
        return shown, ()
    if spec.data.passages is not None:
        return shown, query.passages[: pattern.as_vectors(len(query.passages))]
    text, vectors = stored_as_text(shown, row["select"], row["attention"])
    return text, tuple(demonstration_text(spec.template, example) for example in vectors)


def _choices(spec: TaskSpec, query: Example) -> tuple[str, ...]:
    """A row's own choices, each after its letter if it is the answer."""
    own = spec.labels.own if spec.labels else None
    if own is None or not spec.has_common_labels:
        return query.choices
    return tuple(query.fields[own].split("\n"))


def _form(meta: CellMeta, spec: TaskSpec, writing: Writing) -> PromptForm:
    """The form of a cell's prompts. Raises ``UserError`` if it needs a chat template that is unavailable or has
    changed.
    """
    chat = meta.facts.chat
    if chat is None:
        return PlainForm(spec.template, writing, spec.thought)
    model = _model(meta)
    settings = ChatSettings.model_validate(
        {"style": chat.style, "system": chat.system, "arguments": tuple(chat.arguments.items()), "day": meta.chat_day}
    )
    closes, tokenizer = spec.closes_thoughts and not meta.tokenizer, registry.load_tokenizer(model)
    form = chat_form(spec.template, settings, model, tokenizer, writing, closes_thoughts=closes, thought=spec.thought)
    if ChatFacts(**form.facts()) != chat:
        raise UserError(
            f"model {model.name}: its chat template writes a different text than in the run; "
            "the prompt cannot be rebuilt"
        )
    return form


def _model(meta: CellMeta) -> Model:
    """The model of a cell; for a model behind an API, the model whose tokenizer counts its tokens."""
    if meta.tokenizer:
        return registry.served(str(meta.model_source), meta.tokenizer, 1)
    return registry.resolve(str(meta.model_source), prepare=False, commit_of=registry.as_in(meta.facts.fingerprint))


def as_shown(meta: CellMeta, demonstrations: Sequence[Example]) -> tuple[tuple[Example, ...], Writing]:
    """Demonstrations with the answers and the form of a cell's prompts."""
    answers = meta.shown_answers or {}
    shown = tuple(replace(d, answer=answers.get(d.id, d.answer)) for d in demonstrations)
    perturbation = Perturbation.parse(meta.facts.perturbation or str(NONE))
    return shown, perturbation.writing(meta.facts.unsupervised or {})


@dataclass(frozen=True)
class _ImportedCell:
    """A cell of an import, which has no prompts."""

    file: str
    axes: Mapping[str, Any]
    cell: str
    """The beginning of its hash."""
    filters: str


def _imported(
    storage: Storage, found: _ImportedCell, test_id: str | None, data_dir: Path | None, tasks: Mapping[str, TaskSpec]
) -> Shown:
    """An imported prediction with its question. Raises ``UserError`` if that is unknown."""
    where = storage.where(found.file)
    rows = [
        row
        for row in read_rows(storage, found.file).to_pylist()
        if found.axes.items() <= row.items() and row["cell"].startswith(found.cell)
    ]
    row = next((row for row in rows if test_id in (None, row["test_id"])), None)
    if row is None:
        raise UserError(f"--test-id {test_id}: not among the {len(rows)} predictions of {where} ({found.filters})")
    cells = {meta.cell: meta for _, meta in finished_cells(storage, say=lambda _: None)}
    question = ImportedQuestions(cells, data_dir, tasks).of(row)
    if question is None:
        raise UserError(
            f"{where}: imported predictions carry no prompt to show ({found.filters}); the question is shown if the "
            "file has a column question, or --data-dir has the task's data with this test id and correct answer"
        )
    checked = "imported: the question alone, its demonstrations are unknown"
    return Shown(row, question, (), checked, where, no_file="imported predictions carry no prompt")


def _one_cell(storage: Storage, wanted: Mapping[str, Any]) -> tuple[str, CellMeta] | _ImportedCell:
    axes = {name: value for name, value in wanted.items() if name not in ("cell", "perturbation")}
    perturbation = wanted.get("perturbation")
    if str(axes["task"]).endswith((".yaml", ".yml")):
        axes["task"] = load_task(str(axes["task"])).name
    elif kind_of(Path(str(axes["task"]))) is not None:
        axes["task"] = task_name(Path(str(axes["task"])))
    if axes.get("k") == 0:  # without demonstrations these share one prompt
        of_passages = "attention" in axes and Pattern.parse(axes["attention"]).reads_vectors
        same = ("select", "order", "draw", *(() if of_passages else ("attention",)))
        axes = {n: v for n, v in axes.items() if n not in same}
    matches = [
        (name, meta)
        for name, meta in finished_cells(storage)
        if axes.items() <= meta.spec.model_dump().items()
        and meta.cell.startswith(str(wanted.get("cell", "")))
        and perturbation in (None, meta.facts.perturbation or str(NONE))
        and (wanted.get("cell") or meta.facts.asks_test_rows)
    ]
    filters = " ".join(f"{name}={value}" for name, value in wanted.items())
    if not matches:
        cell = str(wanted.get("cell", ""))
        if name := find_imported(storage, axes, cell):
            return _ImportedCell(name, axes, cell, filters)
        raise UserError(f"results folder {storage.where()}: no finished cell with {filters}")
    if len(matches) > 1:
        raise UserError(
            f"{len(matches)} cells match {filters}: {few([_stem(name) for name, _ in matches], 4)}; "
            "say which by --model, --select, --order, --attention, --perturbation or --cell HASH"
        )
    return matches[0]


def _stem(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(FINISHED)


def _one_row(storage: Storage, name: str, test_id: str | None) -> dict[str, Any]:
    rows: list[dict[str, Any]] = read_rows(storage, name).to_pylist()
    for row in rows:
        if test_id in (None, row["test_id"]):
            return row
    raise UserError(
        f"--test-id {test_id}: not among the {len(rows)} test rows of {_stem(name)}{FINISHED} "
        f"(the first is {rows[0]['test_id']})"
    )


def _checked(text: str, vectors: tuple[str, ...], row: Mapping[str, Any], meta: CellMeta, form: PromptForm) -> str:
    """Compare the rebuilt prompt's ids with the stored hash, if the tokenizer is available."""
    try:
        model = _model(meta)
        if model.fingerprint != meta.facts.fingerprint:
            return "not checked: the model's files have changed since"
        encoder = PromptTokenizer(form, registry.load_tokenizer(model))
    except UserError as error:
        return f"not checked: {error}"
    rebuilt = PromptSet((), (encoder.whole(text),)).with_vectors([vectors])
    if rebuilt.hashes()[0] != row["prompt_hash"]:
        raise UserError("the rebuilt prompt is not the one that was run (its hash differs)")
    return "the very token ids that were run (hash checked)"
