"""The model card of a kept classifier: what it is, and a program that loads its folder and classifies texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from string import Template

from icl_bench import __version__
from icl_bench.escaping import in_markdown
from icl_bench.models.attention_patterns import FULL
from icl_bench.models.registry import REGISTRY
from icl_bench.models.text_encoders import INSTALL, PACKAGED
from icl_bench.results.cells import Identity
from icl_bench.tasks.templates import AnyTemplate, JinjaTemplate
from icl_bench.training.classification_head import pad_token
from icl_bench.training.interface import TrainingRun
from icl_bench.training.trainer import base_weights
from icl_bench.wording import counted, listed

CARD = "README.md"
"""The file of a kept folder with its card."""


@dataclass(frozen=True)
class _Kind:
    """The parts of a card that depend on the method."""

    means: str
    library: str
    """The library of the folder's files, as the hub names it."""
    packages: Sequence[str]
    """Packages whose versions the files depend on."""
    imports: str = ""
    loads: str = ""
    """Lines that load the network, for methods that run a language model."""
    answers: str = ""
    """Lines that turn the network's outputs into the labels' probabilities."""

    @property
    def reads_embeddings(self) -> bool:
        """Whether it runs a sentence encoder instead of a language model."""
        return not self.loads


_CLASSIFIER = 'classifier = joblib.load(FOLDER / "classifier.joblib")  # a pickled file: load only files that you trust'

_OF_CLASSIFIER = """\
    names = [labels[place] for place in classifier.classes_]
    return [dict(zip(names, row)) for row in classifier.predict_proba(vectors)]"""

_OF_NETWORK = """\
    rows = [output(text).logits[0].float().softmax(-1).tolist() for text in texts]
    return [dict(zip(labels, row)) for row in rows]"""

_CLASSIFY = """\
def classify(texts):
    return [max(row, key=row.get) for row in probabilities(texts)]


texts = $texts
for text, row in zip(texts, probabilities(texts)):
    label = max(row, key=row.get)
    print(f"{label} ({row[label]:.2f}): {text}")
"""

_KINDS: Mapping[str, _Kind] = {
    "knn": _Kind("votes of the nearest examples by sentence embeddings", "sklearn", ["scikit-learn"]),
    "encoder-probe": _Kind("logistic regression on sentence embeddings", "sklearn", ["scikit-learn"]),
    "probe": _Kind(
        "logistic regression on the model's last hidden state at the last token, after the final norm",
        "sklearn",
        ["scikit-learn", "transformers"],
        imports="import joblib\nimport torch\nfrom transformers import AutoModel, AutoTokenizer",
        loads=f"model = AutoModel.from_pretrained($source, dtype=torch.$dtype)\n${{adapt}}{_CLASSIFIER}",
        answers="    vectors = [output(text).last_hidden_state[0, -1].float().cpu().numpy() for text in texts]\n"
        + _OF_CLASSIFIER,
    ),
    "lora": _Kind(
        "fine-tuning with low-rank adapters and a classification head",
        "peft",
        ["peft", "transformers"],
        imports="import torch\nfrom peft import PeftModel\n"
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer",
        loads="model = AutoModelForSequenceClassification.from_pretrained(\n"
        "    $source, num_labels=len(labels), dtype=torch.$dtype\n"
        ")  # its head is not trained yet\n"
        "model.config.pad_token_id = model.config.get_text_config().pad_token_id = $pad\n"
        "${adapt}model = PeftModel.from_pretrained(model, FOLDER)",
        answers=_OF_NETWORK,
    ),
    "full": _Kind(
        "fine-tuning of all weights with a classification head",
        "transformers",
        ["transformers"],
        imports="import torch\nfrom transformers import AutoModelForSequenceClassification, AutoTokenizer",
        loads="model = AutoModelForSequenceClassification.from_pretrained($source, dtype=torch.$dtype)\n$adapt",
        answers=_OF_NETWORK,
    ),
}
"""Training method -> the parts of its card."""

_ON_EMBEDDINGS = Template(
    f"""\
import json
from pathlib import Path

import joblib
from icl_bench.models.text_encoders import SentenceEncoder

FOLDER = Path(".")  # the folder of this file
TEMPLATE = $template

labels = json.loads((FOLDER / "labels.json").read_text(encoding="utf-8"))
encoder = SentenceEncoder.find()  # {PACKAGED}
{_CLASSIFIER}


def probabilities(texts):
    vectors = encoder.embed([TEMPLATE.format_map($fields) for text in texts])
{_OF_CLASSIFIER}


{_CLASSIFY}"""
)

_ON_LANGUAGE_MODEL = Template(
    f"""\
import json
from pathlib import Path

$imports

FOLDER = Path(".")  # the folder of this file
${{constants}}TEMPLATE = $template
START = $start  # ids of the tokens before every text
DEVICE = "$device"  # as in training

labels = json.loads((FOLDER / "labels.json").read_text(encoding="utf-8"))
tokenizer = AutoTokenizer.from_pretrained($source)
$loads
model.to(DEVICE).eval()


def output(text):
    text = TEMPLATE.format_map($fields)
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    with $context:
        return model(input_ids=torch.tensor([START + ids], device=DEVICE))


def probabilities(texts):
$answers


{_CLASSIFY}"""
)


def card(run: TrainingRun, identity: Identity) -> str | None:
    """The card of a cell's classifier, as Markdown; None for a method of another package."""
    cell, task = identity.spec, run.task
    if (kind := _KINDS.get(cell.select)) is None:
        return None
    facts = {
        "task": f"{cell.task}, {counted(len(task.data.labels), 'label')}",
        "method": f"{cell.select}: {kind.means}",
        **(
            {"sentence encoder": PACKAGED}
            if kind.reads_embeddings
            else {"language model": f"{task.model.name}, {task.model.fingerprint}"}
        ),
        "k": counted(cell.k, "example"),
        "draw": f"{cell.draw}, counted from 0",
        "cell": identity.cell,
        "icl-bench": __version__,
    }
    hub = None if kind.reads_embeddings else task.model.hub_commit
    lines = [
        "---",
        "pipeline_tag: text-classification",
        f"library_name: {kind.library}",
        *([] if hub is None else [f"base_model: {hub[0]}"]),
        "tags: [icl-bench]",
        "---",
        "",
        f"# {in_markdown(cell.task)}: {cell.select}, k={cell.k:,}",
        "",
        "A text classifier, trained by [icl-bench](https://github.com/icl-bench/icl-bench).",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {in_markdown(value)} |" for name, value in facts.items()),
        "",
        "`labels.json` has the labels in the order of the classifier's outputs.",
        "",
        "## Input",
        "",
        *_input(task.data.spec.template, kind),
        "",
        "## Use",
        "",
        *_needs(run, cell.select),
        "",
        "```python",
        f"{snippet(run, cell.select)}```",
        "",
    ]
    if cell.select == "encoder-probe":
        encode = f'SentenceTransformer("sentence-transformers/{PACKAGED}").encode(texts, normalize_embeddings=True)'
        lines += ["Without icl-bench, sentence-transformers gives the same vectors:", "", f"    {encode}", ""]
    return "\n".join(lines)


def snippet(run: TrainingRun, method: str) -> str:
    """A program that classifies two texts, to run in the folder of the classifier.

    It computes what the training did for test rows, one text at a time.
    """
    task, kind = run.task, _KINDS[method]
    template = task.data.spec.template
    rows = [{name: f"{nth} {name}" for name in template.input_fields} for nth in ("first", "second")]
    values = {"template": repr(_format(template, kind)), "fields": "text", "texts": repr(rows)}
    if len(template.input_fields) == 1:  # a text instead of a row
        (field,) = template.input_fields
        values |= {"fields": f"{{{field!r}: text}}", "texts": repr([row[field] for row in rows])}
    if kind.reads_embeddings:
        return _ON_EMBEDDINGS.substitute(values)
    source = _Source.of(run, method)
    autocast = method != "probe" and run.dtype != "float32"
    device = run.device.partition(":")[0]
    values |= {
        "imports": "\n".join([kind.imports, *source.imports]),
        "constants": "".join(f"{line}\n" for line in source.constants),
        "start": str(list(task.encoder.bos)),
        "device": device,
        "source": source.argument,
        "loads": Template(kind.loads)
        .substitute(source=source.argument, dtype=_weights(run, method), pad=pad_token(task), adapt=source.adapt)
        .rstrip("\n"),
        "context": f"torch.no_grad(), torch.autocast(DEVICE, torch.{run.dtype})" if autocast else "torch.no_grad()",
        "answers": kind.answers,
    }
    return _ON_LANGUAGE_MODEL.substitute(values)


@dataclass(frozen=True)
class _Source:
    """How a program loads the network and the tokenizer."""

    argument: str
    """The arguments of ``from_pretrained``."""
    imports: Sequence[str] = ()
    constants: Sequence[str] = ()
    adapt: str = ""
    """A line that sets the attention pattern of an adapted model."""

    @classmethod
    def of(cls, run: TrainingRun, method: str) -> _Source:
        """The source of a method's network: its own folder, the hub, a folder of the user's, or icl-bench."""
        model, imports, adapt = run.task.model, [], ""
        hub, base = model.hub_commit, model.base_commit
        is_named = model.pinned_name != model.name or model.requested_name in REGISTRY
        named = "" if is_named else "  # the name of a folder: give its path instead"
        argument, constants = "MODEL", [f"MODEL = {model.name!r}{named}"]
        if method == "full":
            argument, constants = "FOLDER", []
        elif hub is not None and run.pattern == FULL:
            argument, constants = "MODEL, revision=REVISION", [f"MODEL, REVISION = {hub[0]!r}, {hub[1]!r}"]
        elif hub is not None or model.source != model.requested_name:  # prepared by icl-bench
            commit = "" if base is None else f", commit_of={dict([base])!r}.get"
            imports, constants = [_RESOLVE], [f"MODEL = resolve({model.pinned_name!r}{commit}).source{named}"]
        if run.pattern != FULL:
            imports = [*imports, _AS_ADAPTED]
            adapt = f"model = as_adapted(model, {argument})\n"
        return cls(argument, imports, constants, adapt)


_RESOLVE = "from icl_bench.models.registry import resolve"

_AS_ADAPTED = "from icl_bench.training.sparse_attention import as_adapted"


def _weights(run: TrainingRun, method: str) -> str:
    """The number format in which the training loaded the weights."""
    if method == "probe":
        return run.dtype
    return base_weights("lora" if method == "lora" else "full", run.device, run.dtype)


def _format(template: AnyTemplate, kind: _Kind) -> str:
    """The text that the classifier reads, as a format string of the row's fields."""
    if kind.reads_embeddings:
        return " ".join(f"{{{name}}}" for name in template.input_fields)
    start, end = (part.replace("{", "{{").replace("}", "}}") for part in (template.start, template.query_link))
    shown = "{input}" if isinstance(template, JinjaTemplate) else template.input
    return f"{start}{shown}{end}"


def _input(template: AnyTemplate, kind: _Kind) -> list[str]:
    """The lines about the text that the classifier reads."""
    read = "The end of a prompt: no examples, and a query without its answer"
    if kind.reads_embeddings:
        read = "The text of a row" if len(template.input_fields) == 1 else "The texts of a row, joined by spaces"
    lines = [f"{read}. As a format string of Python:", "", f"    {_format(template, kind)!r}"]
    if isinstance(template, JinjaTemplate):
        rendered = "`input` is a row as this Jinja template of the task renders it, as a string of Python:"
        lines += ["", rendered, "", f"    {template.input!r}"]
    return lines


def _needs(run: TrainingRun, method: str) -> list[str]:
    """The lines about the packages that wrote the files and that the program imports."""
    kind, packaged = _KINDS[method], REGISTRY.get(run.task.model.requested_name)
    lines = [
        "The program prints the label of each text with its probability, which is the classifier's own and is not "
        "calibrated. Run it in this folder.",
        "",
        f"The files were written with {listed(f'{name} {version(name)}' for name in kind.packages)}.",
    ]
    install = None
    if kind.reads_embeddings:
        install = INSTALL
    elif imports := _Source.of(run, method).imports:
        own = packaged.packaged if packaged is not None and _RESOLVE in imports else None
        install = "pip install icl-bench" if own is None else f"pip install {own.install}"
    if install is not None:
        lines.append(f"The program needs the Python environment of icl-bench (`{install}`).")
    return lines
