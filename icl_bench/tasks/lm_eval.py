"""Converts task files of lm-evaluation-harness (0.4.13) to task files of icl-bench.

A file either converts completely, or it is refused with the names of the unsupported fields, such
as Python functions. Prompts, targets and choices of a converted task are identical. Unsupported
secondary metrics are noted in the task.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from icl_bench.errors import UserError
from icl_bench.tasks.lm_eval_files import Function, SourceTask, read_source
from icl_bench.tasks.spec import FILE_FORMATS
from icl_bench.wording import listed, one_line, plain, short

MARKS = ("doc_to_text", "doc_to_target", "dataset_path", "output_type", "include", "class", "group", "task")
"""Fields of which every task file of lm-evaluation-harness has one, and icl-bench's task files none."""

_WITHOUT_PYTHON = (
    "icl-bench never runs Python code of task files; give the rows that it makes, in a data file or as icl_bench.Task "
    "(docs/python.md)"
)

_NO_EFFECT = {
    "task",
    "task_alias",
    "tag",
    "group",
    "metadata",
    "should_decontaminate",
    "doc_to_decontamination_query",
    "recipe",
}
_UNSUPPORTED = {
    "process_docs": "rows changed by a function",
    "process_results": "scores made by a function",
    "custom_dataset": "rows made by a function",
    "class": "a task written in Python",
    "unsafe_code": "answers that are run as programs",
    "use_prompt": "prompts of promptsource",
    "doc_to_image": "images",
    "doc_to_audio": "sounds",
    "gen_prefix": "a given beginning of the answer",
}
_ABOUT_LOADING = frozenset(
    {"trust_remote_code", "streaming", "cache_dir", "num_proc", "download_mode", "keep_in_memory", "verification_mode"}
)
"""Arguments of ``datasets.load_dataset`` that do not change rows."""
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SEED = 43


@dataclass
class _Reader:
    """Converts the fields of one task."""

    source: Mapping[str, Any]
    folder: Path
    """The folder of the task's file."""
    reasons: list[str] = field(default_factory=list)
    """The unsupported fields."""
    notes: list[str] = field(default_factory=list)

    def refuse(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    # -- all fields ------------------------------------------------------------------------------

    def check_fields(self) -> None:
        """Refuse functions, unsupported fields and unknown fields."""
        for name, value in self.source.items():
            if value is None or value is False or name in _NO_EFFECT:
                continue
            if name in _UNSUPPORTED:
                called = f", {value.name}" if isinstance(value, Function) else ""
                self.refuse(f"{name} ({_UNSUPPORTED[name]}{called})")
            elif name not in _CONVERTED:
                self.refuse(f"{plain(name)} (an unknown field)")
            else:
                for function in _functions(value):
                    self.refuse(f"{name} (a Python function, {plain(function.name)})")

    def text(self, name: str, default: str = "") -> str:
        value = self.source.get(name)
        if value is None or isinstance(value, Function):
            return default
        if not isinstance(value, str):
            self.refuse(f"{name} ({short(value)}, which is not a text)")
            return default
        return value

    def fields(self, name: str) -> dict[str, Any]:
        """The value of a field that has fields itself."""
        value = self.source.get(name)
        if isinstance(value, Mapping):
            return dict(value)
        if value and not isinstance(value, Function):
            self.refuse(f"{name} ({short(value)}, which has no fields)")
        return {}

    def number(self, name: str, value: Any, default: float) -> float:
        """The number in a nested field."""
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.refuse(f"{name} ({short(value)}, which is not a number)")
            return default
        return value

    # -- data --------------------------------------------------------------------------------------

    def data(self) -> dict[str, Any]:
        """The field ``data``: the source of the rows."""
        fewshot = self.source.get("fewshot_config")
        splits = [self.source.get(f"{kind}_split") for kind in ("fewshot", "training", "validation", "test")]
        if isinstance(fewshot, Mapping):
            splits.insert(0, fewshot.get("split"))
        train = next((name for name in splits if name), None)
        test = self.source.get("test_split") or self.source.get("validation_split")
        if not isinstance(test, str) or not isinstance(train, str):
            self.refuse("test_split (neither it nor validation_split is given)")
            return {}
        hub: dict[str, Any] = {"path": self.text("dataset_path"), "train": train, "test": test}
        if not hub["path"]:
            self.refuse("dataset_path (is missing)")
        if train == test:
            hub["holdout"] = {"share": 0.5, "seed": _SEED}
            self.notes.append(f"demonstrations and test rows are both of the split {test}, halved by seed {_SEED}")
        if configuration := self.source.get("dataset_name"):
            hub["name"] = str(configuration)
        options = {n: v for n, v in self.fields("dataset_kwargs").items() if n not in _ABOUT_LOADING}
        revision = str(options.pop("revision", None) or "main")
        if hub["path"] not in FILE_FORMATS:
            hub["revision"] = revision
        elif (files := options.get("data_files")) is not None:
            options["data_files"] = self._files(files, {train, test}, in_folder="data_dir" in options)
        if options:
            hub["arguments"] = options
        return {"hub": hub}

    def _files(self, files: Any, splits: Collection[str], *, in_folder: bool) -> dict[str, list[str]]:
        """The files of each split. Paths are relative to the working folder, else to the task's file; with
        ``in_folder``, they stay relative to another folder.
        """
        by_split = files if isinstance(files, Mapping) else {"train": files}
        made: dict[str, list[str]] = {}
        for split, names in by_split.items():
            names = [names] if isinstance(names, str) else names
            if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
                self.refuse(f"dataset_kwargs.data_files ({plain(split)}: expected the paths of files)")
                return {}
            made[str(split)] = names if in_folder else [self._located(name) for name in names]
        if missing := sorted(set(splits) - made.keys()):
            self.refuse(f"dataset_kwargs.data_files (no file of the split {plain(missing[0])})")
        return made

    def _located(self, name: str) -> str:
        if "://" in name:
            return name
        beside = self.folder / name
        return str((beside if beside.exists() and not Path(name).exists() else Path(name)).absolute())

    # -- prompts -----------------------------------------------------------------------------------

    def template(self) -> dict[str, Any]:
        """The field ``template``."""
        target = self.source.get("doc_to_target")
        if isinstance(target, int) and not isinstance(target, bool):
            target = str(target)
        elif not isinstance(target, str):
            if not isinstance(target, Function):
                self.refuse(f"doc_to_target ({short(target)}, which is not a text)")
            target = ""
        input_text = self.text("doc_to_text")
        if not input_text and self.source.get("doc_to_text") in (None, ""):
            self.refuse("doc_to_text (empty: all rows would make the same prompt)")
        start = self.text("description")
        if "{{" in start or "{%" in start:
            self.refuse("description (with Jinja: it differs from row to row)")
        separator = self.text("fewshot_delimiter", "\n\n")
        if not separator.startswith("\n"):
            self.refuse(f"fewshot_delimiter ({separator!r}, which does not end a line)")
        template = {"engine": "jinja", "input": input_text, "output": target}
        if start:
            template["start"] = start
        delimiter = self.text("target_delimiter", " ")
        return template | {"delimiter": delimiter, "separator": separator}

    def check_fewshot(self) -> None:
        """Refuse demonstrations that are fixed or have another format than the query."""
        fewshot = self.source.get("fewshot_config")
        if fewshot is None:
            return
        if not isinstance(fewshot, Mapping):
            self.refuse("fewshot_config (no fields)")
            return
        for name, value in fewshot.items():
            if name in ("split", "sampler") or value is None or value == self.source.get(name):
                continue
            self.refuse(f"fewshot_config.{plain(name)}")
        sampler = fewshot.get("sampler", "default")
        if sampler == "first_n":
            self.notes.append(
                "lm-eval shows the first rows of the split (sampler: first_n); icl-bench draws demonstrations at random"
            )
        elif sampler != "default":
            self.refuse(f"fewshot_config.sampler ({short(sampler)})")

    # -- answers -----------------------------------------------------------------------------------

    def metrics(self, default: list[str]) -> list[tuple[str, dict[str, Any]]]:
        """The names of the task's metrics, with their options."""
        metrics: list[tuple[str, dict[str, Any]]] = []
        listed_metrics = self.source.get("metric_list")
        if listed_metrics is None:
            return [(name, {}) for name in default]
        for entry in listed_metrics if isinstance(listed_metrics, list) else [listed_metrics]:
            if not isinstance(entry, Mapping) or not isinstance(entry.get("metric"), str):
                self.refuse("metric_list (a metric that has no name)")
                continue
            not_options = ("metric", "aggregation", "higher_is_better", "weight_by_size")
            metrics.append((entry["metric"], {n: v for n, v in entry.items() if n not in not_options}))
        return metrics

    def _leave_out(self, names: list[str], is_noted: bool) -> None:
        """Note unsupported metrics if another one is supported, else refuse them."""
        if names and not is_noted:
            self.refuse(f"metric {listed(names)}")
        elif names:
            self.notes.append(f"left out: metric {listed(names)}")

    def labels(self) -> dict[str, Any]:
        """The fields of a task whose answers are chosen."""
        choices = self.source.get("doc_to_choice")
        if isinstance(choices, Mapping):
            choices = list(choices.values())
        if isinstance(choices, list):
            if not all(isinstance(choice, str) for choice in choices):
                self.refuse("doc_to_choice (a choice that is not a text)")
        elif not isinstance(choices, str | Function):
            self.refuse("doc_to_choice (is missing)")
        normalizations = {"acc": "none", "acc_norm": "characters", "acc_bytes": "bytes"}
        metrics = self.metrics(["acc", "acc_norm"])
        scored = [name for name, _ in metrics if name in normalizations]
        shared = isinstance(choices, list)
        macro_f1 = [n for n, options in metrics if n == "f1" and options == {"average": "macro"} and shared]
        supported = ["accuracy"] * bool(scored) + ["macro_f1"] * bool(macro_f1)
        if scored[1:]:
            self.notes.append(
                f"labels are scored as {scored[0]}; for {listed(scored[1:])} set labels.normalize "
                f"to {listed(normalizations[name] for name in scored[1:])}"
            )
        unsupported = [name for name, _ in metrics if name not in normalizations and name not in macro_f1]
        self._leave_out(unsupported, bool(supported))
        labels = {"choices": choices, "gold": "index or text"}
        if scored and normalizations[scored[0]] != "none":
            labels["normalize"] = normalizations[scored[0]]
        if self.source.get("filter_list"):
            self.refuse("filter_list (of choices)")
        return {"labels": labels, "metrics": supported}

    def free_text(self) -> dict[str, Any]:
        """The fields of a task whose answers are free text."""
        if self.source.get("doc_to_choice") is not None:
            self.refuse("doc_to_choice (with output_type: generate_until)")
        metrics, supported = self.metrics(["exact_match"]), []
        ignored: dict[str, Any] = {}
        unsupported = []
        for name, options in metrics:
            if name == "exact_match":
                supported.append("exact_text")
                ignored = self._ignored(options)
            elif name in ("bleu", "chrf") and not options:
                supported.append(name)
            else:
                unsupported.append(name)
        self._leave_out(unsupported, bool(supported))
        rule = self._filters()
        if ignored:
            rule["ignore"] = ignored
        return {"metrics": supported, **({"answer": rule} if rule else {}), **self._generation()}

    def _ignored(self, options: Mapping[str, Any]) -> dict[str, Any]:
        names = {"ignore_case": "case", "ignore_punctuation": "punctuation", "regexes_to_ignore": "patterns"}
        for lm_eval_name, value in options.items():
            if lm_eval_name not in names and value:
                self.refuse(f"metric exact_match with {plain(lm_eval_name)}")
        return {name: options[lm_eval_name] for lm_eval_name, name in names.items() if options.get(lm_eval_name)}

    def _generation(self) -> dict[str, Any]:
        """The fields that end an answer."""
        options, field = self.fields("generation_kwargs"), "generation_kwargs"
        until = options.pop("until", None)
        if until is None:
            until = self.text("fewshot_delimiter", "\n\n")
        until = [until] if isinstance(until, str) else until
        if until == []:
            self.refuse(f"{field}.until (empty: nothing ends an answer)")
        elif not isinstance(until, list) or not all(isinstance(text, str) for text in until):
            self.refuse(f"{field}.until ({short(until)}, which is not a list of texts)")
        length = next((options[name] for name in _LENGTHS if options.get(name) is not None), None)
        temperature = self.number(f"{field}.temperature", options.get("temperature"), 0)
        if options.get("do_sample") or temperature:
            self.refuse(f"{field}.do_sample (answers drawn at random)")
        handled = {*_LENGTHS, "do_sample", "temperature", "top_p", "top_k", "num_beams"}
        if options.get("num_beams", 1) != 1:
            self.refuse(f"{field}.num_beams")
        for name in sorted(options.keys() - handled, key=str):
            self.refuse(f"{field}.{plain(name)}")
        max_tokens = int(self.number(f"{field}.max_gen_toks", length, 256))
        return {"stop": until, "max_answer_tokens": max_tokens}

    def _filters(self) -> dict[str, Any]:
        """The field ``answer`` from the first chain of filters."""
        chains = self.source.get("filter_list") or []
        if not isinstance(chains, list) or not all(isinstance(c, Mapping) for c in chains):
            self.refuse("filter_list (no list of filters)")
            return {}
        if chains[1:]:
            names = listed(f"{chain.get('name')}" for chain in chains[1:])
            self.notes.append(f"left out: what filter {names} makes of the answers")
        rule: dict[str, Any] = {}
        steps = (chains[0].get("filter") or []) if chains else []
        if not isinstance(steps, list) or not all(isinstance(step, Mapping) for step in steps):
            self.refuse("filter_list (a filter without steps)")
            return {}
        for step in steps:
            name = step.get("function")
            if name in ("take_first", "remove_whitespace"):
                continue  # there is one answer for each row, and it is stripped anyway
            if name != "regex" or rule:
                self.refuse(f"filter {plain(name)}{' behind another regex' if rule else ''}")
                continue
            rule = self._regex(step)
        return rule

    def _regex(self, step: Mapping[str, Any]) -> dict[str, Any]:
        pattern = str(step.get("regex_pattern", r"#### (\-?[0-9\.\,]+)"))
        takes = {0: "first", -1: "last"}
        selected = step.get("group_select", 0)
        if not isinstance(selected, int) or isinstance(selected, bool) or selected not in takes:
            self.refuse(f"filter regex with group_select {short(selected)}")
            return {}
        if step.get("fallback", "[invalid]") != "[invalid]":
            self.refuse("filter regex with a fallback")
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            self.refuse(f"filter regex ({error})")
            return {}
        if not groups:
            flags = re.match(r"\(\?([aiLmsux]+)\)", pattern)
            unflagged = pattern[flags.end() :] if flags else pattern
            pattern = f"(?{flags[1]})({unflagged})" if flags else f"({unflagged})"
        rule = {"extract": pattern, "take": takes[selected], "of": "answers"}
        return rule | ({"group": "any"} if groups > 1 else {})


_CONVERTED = {
    "dataset_path",
    "dataset_name",
    "dataset_kwargs",
    "training_split",
    "validation_split",
    "test_split",
    "fewshot_split",
    "fewshot_config",
    "doc_to_text",
    "doc_to_target",
    "doc_to_choice",
    "description",
    "target_delimiter",
    "fewshot_delimiter",
    "num_fewshot",
    "metric_list",
    "output_type",
    "generation_kwargs",
    "repeats",
    "filter_list",
}


def is_lm_eval(values: Any) -> bool:
    """Whether a file's fields are those of a task file of lm-evaluation-harness."""
    return isinstance(values, Mapping) and "name" not in values and any(m in values for m in MARKS)


def converted(path: Path) -> dict[str, Any]:
    """Convert a task file of lm-evaluation-harness to the fields of a task file of icl-bench.

    ``path`` may name a task of a group's file: ``group.yaml::task``. Raises ``UserError`` that names
    all unsupported fields, or a group's tasks.
    """
    read = read_source(path)
    source, reader = read.fields, _Reader(read.fields, read.folder)
    if "class" in source:
        raise UserError(one_line(f"{path}: is a task written in Python ({_code(source['class'])}): {_WITHOUT_PYTHON}"))
    name = _name(path, read)
    reader.check_fields()
    kind = source.get("output_type") or "generate_until"
    values: dict[str, Any] = {"name": re.sub(r"[^A-Za-z0-9._-]", "-", name)}
    values["description"] = f"{name} of lm-evaluation-harness"
    values |= {"data": reader.data(), "template": reader.template()}
    reader.check_fewshot()
    if kind == "multiple_choice":
        values |= reader.labels()
    elif kind == "generate_until":
        values |= reader.free_text()
    else:
        reader.refuse(f"output_type {plain(kind)}")
    if source.get("repeats") not in (None, 1):
        reader.refuse("repeats (several answers a row)")
    if reader.reasons:
        advice = f". {_WITHOUT_PYTHON}" if any(_functions(dict(source))) else ""
        why = "; ".join(reader.reasons)
        raise UserError(one_line(f"{path}: cannot be written as a task file of icl-bench: {why}{advice}"))
    if shots := source.get("num_fewshot"):
        reader.notes.append(f"lm-eval shows {shots} demonstrations unless told otherwise")
    return values | ({"notes": reader.notes} if reader.notes else {})


def _name(path: Path, read: SourceTask) -> str:
    name = read.fields.get("task")
    if not isinstance(name, str) or not name:
        raise UserError(f"{path}: not one task of lm-evaluation-harness: task must be its name, not {short(name)}")
    return name


def _code(value: Any) -> str:
    """The name of the code in a field."""
    return plain(value.name if isinstance(value, Function) else value)


def _functions(value: Any) -> Iterator[Function]:
    """All functions anywhere in a value."""
    if isinstance(value, Function):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _functions(part)
    elif isinstance(value, list):
        for part in value:
            yield from _functions(part)
