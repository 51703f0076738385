"""Task files of lm-evaluation-harness (0.4.13) as task files of ours.

What such a file says is said in ours, or the file is refused with the names of what cannot be:
Python functions above all. Prompts, targets and choices are then equal to the letter. What only
concerns scores beside the main one is noted in the task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from icl_bench.errors import UserError
from icl_bench.tasks.yaml_files import read_yaml
from icl_bench.text_files import read_file
from icl_bench.wording import listed, one_line, plain, short

MARKS = ("doc_to_text", "doc_to_target", "dataset_path", "output_type", "include")
"""Fields of which one is in every task file of lm-evaluation-harness, and none in ours."""

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
_UNKNOWN = {
    "process_docs": "rows changed by a function",
    "process_results": "scores made by a function",
    "custom_dataset": "rows made by a function",
    "class": "a task written in Python",
    "unsafe_code": "answers that are run as programs",
    "use_prompt": "prompts of promptsource",
    "doc_to_image": "images",
    "doc_to_audio": "sounds",
    "gen_prefix": "a beginning of the answer that is given",
}
_FILES = {"json": ".jsonl", "csv": ".csv", "parquet": ".parquet"}
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SEED = 43


@dataclass(frozen=True)
class _Function:
    """What ``!function`` names."""

    name: str


@dataclass
class _Reader:
    """One task's fields on the way to ours."""

    said: Mapping[str, Any]
    reasons: list[str] = field(default_factory=list)
    """Names of what cannot be said."""
    notes: list[str] = field(default_factory=list)

    def refuse(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    # -- what is known of no field ---------------------------------------------------------------

    def check_fields(self) -> None:
        """Refuse functions, fields that stand for what is not known here, and unknown ones."""
        for name, value in self.said.items():
            if value is None or value is False or name in _NO_EFFECT:
                continue
            if name in _UNKNOWN:
                function = f", {value.name}" if isinstance(value, _Function) else ""
                self.refuse(f"{name} ({_UNKNOWN[name]}{function})")
            elif name not in _READ:
                self.refuse(f"{plain(name)} (an unknown field)")
            else:
                for one in _functions(value):
                    self.refuse(f"{name} (a Python function, {plain(one.name)})")

    def text(self, name: str, otherwise: str = "") -> str:
        value = self.said.get(name)
        if value is None or isinstance(value, _Function):
            return otherwise
        if not isinstance(value, str):
            self.refuse(f"{name} ({short(value)}, which is no text)")
            return otherwise
        return value

    def fields(self, name: str) -> dict[str, Any]:
        """What a field holds that has fields of its own."""
        value = self.said.get(name)
        if isinstance(value, Mapping):
            return dict(value)
        if value and not isinstance(value, _Function):
            self.refuse(f"{name} ({short(value)}, which has no fields)")
        return {}

    def number(self, name: str, value: Any, usual: float) -> float:
        """A number that stands in a field of a field."""
        if value is None:
            return usual
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(f"{name} ({short(value)}, which is no number)")
            return usual
        return value

    # -- data --------------------------------------------------------------------------------------

    def data(self) -> dict[str, Any]:
        """Where the rows are from."""
        few = self.said.get("fewshot_config")
        splits = [self.said.get(f"{kind}_split") for kind in ("fewshot", "training", "validation", "test")]
        if isinstance(few, Mapping):
            splits.insert(0, few.get("split"))
        train = next((name for name in splits if name), None)
        test = self.said.get("test_split") or self.said.get("validation_split")
        if not isinstance(test, str) or not isinstance(train, str):
            self.refuse("test_split (neither it nor validation_split is given)")
            return {}
        shared: dict[str, Any] = {}
        if train == test:
            shared = {"holdout": {"share": 0.5, "seed": _SEED}}
            self.notes.append(f"demonstrations and test rows are both of the split {test}, halved by seed {_SEED}")
        told = self.fields("dataset_kwargs")
        told.pop("trust_remote_code", None)
        files = told.pop("data_files", None)
        path = self.text("dataset_path")
        if path in _FILES and files is not None and not told:
            return self._files(files, train, test, shared)
        revision = told.pop("revision", None)
        if files is not None:
            told["data_files"] = files
        for name in told:
            self.refuse(f"dataset_kwargs.{plain(name)} (an option of data sets)")
        if not path:
            self.refuse("dataset_path (is missing)")
        found = {"path": path, "revision": str(revision or "main"), "train": train, "test": test}
        if configuration := self.said.get("dataset_name"):
            found["name"] = str(configuration)
        return {"hub": found | shared}

    def _files(self, files: Any, train: str, test: str, shared: dict[str, Any]) -> dict[str, Any]:
        """Local files, which lm-evaluation-harness finds from the working folder."""
        if isinstance(files, str):
            files = {"train": files}
        found = {}
        for split in (train, test):
            path = files.get(split) if isinstance(files, Mapping) else None
            if not isinstance(path, str) or "://" in path or "*" in path:
                self.refuse(f"dataset_kwargs.data_files ({split}: expected the path of one file)")
                return {}
            found[split] = str(Path(path).absolute())
        if shared:
            return {"file": found[test], **shared}
        return {"train": found[train], "test": found[test]}

    # -- prompts -----------------------------------------------------------------------------------

    def template(self) -> dict[str, Any]:
        """How a row is written."""
        target = self.said.get("doc_to_target")
        if isinstance(target, int) and not isinstance(target, bool):
            target = str(target)
        elif not isinstance(target, str):
            if not isinstance(target, _Function):
                self.refuse(f"doc_to_target ({short(target)}, which is no text)")
            target = ""
        shown = self.text("doc_to_text")
        if not shown and self.said.get("doc_to_text") in (None, ""):
            self.refuse("doc_to_text (empty: all rows would make the same prompt)")
        start = self.text("description")
        if "{{" in start or "{%" in start:
            self.refuse("description (with Jinja: it differs from row to row)")
        separator = self.text("fewshot_delimiter", "\n\n")
        if not separator.startswith("\n"):
            self.refuse(f"fewshot_delimiter ({separator!r}, which does not end a line)")
        found = {"engine": "jinja", "input": shown, "output": target}
        if start:
            found["start"] = start
        delimiter = self.text("target_delimiter", " ")
        return found | {"delimiter": delimiter, "separator": separator}

    def check_fewshot(self) -> None:
        """Refuse demonstrations that are written in another way than the query, or given."""
        few = self.said.get("fewshot_config")
        if few is None:
            return
        if not isinstance(few, Mapping):
            self.refuse("fewshot_config (no fields)")
            return
        for name, value in few.items():
            if name in ("split", "sampler") or value is None or value == self.said.get(name):
                continue
            self.refuse(f"fewshot_config.{plain(name)}")
        sampler = few.get("sampler", "default")
        if sampler == "first_n":
            self.notes.append(
                "lm-eval shows the first rows of the split (sampler: first_n); demonstrations are drawn here"
            )
        elif sampler != "default":
            self.refuse(f"fewshot_config.sampler ({short(sampler)})")

    # -- answers -----------------------------------------------------------------------------------

    def metrics(self, usual: list[str]) -> list[tuple[str, dict[str, Any]]]:
        """The metrics that are asked for, by name, with what they are told."""
        found: list[tuple[str, dict[str, Any]]] = []
        told = self.said.get("metric_list")
        if told is None:
            return [(name, {}) for name in usual]
        for one in told if isinstance(told, list) else [told]:
            if not isinstance(one, Mapping) or not isinstance(one.get("metric"), str):
                self.refuse("metric_list (a metric that has no name)")
                continue
            beside = ("metric", "aggregation", "higher_is_better", "weight_by_size")
            found.append((one["metric"], {n: v for n, v in one.items() if n not in beside}))
        return found

    def _leave_out(self, names: list[str], kept: bool) -> None:
        """Metrics that are not known: noted beside one that is, else refused."""
        if names and not kept:
            self.refuse(f"metric {listed(names)}")
        elif names:
            self.notes.append(f"left out: metric {listed(names)}")

    def labels(self) -> dict[str, Any]:
        """Answers that are chosen."""
        choices = self.said.get("doc_to_choice")
        if isinstance(choices, Mapping):
            choices = list(choices.values())
        if isinstance(choices, list):
            if not all(isinstance(one, str) for one in choices):
                self.refuse("doc_to_choice (a choice that is no text)")
        elif not isinstance(choices, str | _Function):
            self.refuse("doc_to_choice (is missing)")
        ways = {"acc": "none", "acc_norm": "characters", "acc_bytes": "bytes"}
        asked = self.metrics(["acc", "acc_norm"])
        scored = [name for name, _ in asked if name in ways]
        shared = isinstance(choices, list)
        means = [n for n, told in asked if n == "f1" and told == {"average": "macro"} and shared]
        kept = ["accuracy"] * bool(scored) + ["macro_f1"] * bool(means)
        if scored[1:]:
            self.notes.append(
                f"labels are scored as {scored[0]}; for {listed(scored[1:])} set labels.normalize "
                f"to {listed(ways[name] for name in scored[1:])}"
            )
        others = [name for name, _ in asked if name not in ways and name not in means]
        self._leave_out(others, bool(kept))
        labels = {"choices": choices, "gold": "index or text"}
        if scored and ways[scored[0]] != "none":
            labels["normalize"] = ways[scored[0]]
        if self.said.get("filter_list"):
            self.refuse("filter_list (of choices)")
        return {"labels": labels, "metrics": kept}

    def free_text(self) -> dict[str, Any]:
        """Answers that are written."""
        if self.said.get("doc_to_choice") is not None:
            self.refuse("doc_to_choice (with output_type: generate_until)")
        asked, kept = self.metrics(["exact_match"]), []
        ignored: dict[str, Any] = {}
        others = []
        for name, told in asked:
            if name == "exact_match":
                kept.append("exact_text")
                ignored = self._ignored(told)
            elif name in ("bleu", "chrf") and not told:
                kept.append(name)
            else:
                others.append(name)
        self._leave_out(others, bool(kept))
        rule = self._filters()
        if ignored:
            rule["ignore"] = ignored
        return {"metrics": kept, **({"answer": rule} if rule else {}), **self._generation()}

    def _ignored(self, told: Mapping[str, Any]) -> dict[str, Any]:
        names = {"ignore_case": "case", "ignore_punctuation": "punctuation", "regexes_to_ignore": "patterns"}
        for name, value in told.items():
            if name not in names and value:
                self.refuse(f"metric exact_match with {plain(name)}")
        return {ours: told[name] for name, ours in names.items() if told.get(name)}

    def _generation(self) -> dict[str, Any]:
        """What ends an answer."""
        told, at = self.fields("generation_kwargs"), "generation_kwargs"
        until = told.pop("until", None)
        if until is None:
            until = self.text("fewshot_delimiter", "\n\n")
        until = [until] if isinstance(until, str) else until
        if until == []:
            self.refuse(f"{at}.until (empty: nothing ends an answer)")
        elif not isinstance(until, list) or not all(isinstance(text, str) for text in until):
            self.refuse(f"{at}.until ({short(until)}, which is no list of texts)")
        length = next((told[name] for name in _LENGTHS if told.get(name) is not None), None)
        heat = self.number(f"{at}.temperature", told.get("temperature"), 0)
        if told.get("do_sample") or heat:
            self.refuse(f"{at}.do_sample (answers drawn at random)")
        known = {*_LENGTHS, "do_sample", "temperature", "top_p", "top_k", "num_beams"}
        if told.get("num_beams", 1) != 1:
            self.refuse(f"{at}.num_beams")
        for name in sorted(told.keys() - known, key=str):
            self.refuse(f"{at}.{plain(name)}")
        most = int(self.number(f"{at}.max_gen_toks", length, 256))
        return {"stop": until, "max_answer_tokens": most}

    def _filters(self) -> dict[str, Any]:
        """What of an answer is compared: by the first chain of filters."""
        chains = self.said.get("filter_list") or []
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
                continue  # one answer a row, and blanks around it do not count
            if name != "regex" or rule:
                self.refuse(f"filter {plain(name)}{' behind another regex' if rule else ''}")
                continue
            rule = self._regex(step)
        return rule

    def _regex(self, step: Mapping[str, Any]) -> dict[str, Any]:
        pattern = str(step.get("regex_pattern", r"#### (\-?[0-9\.\,]+)"))
        takes = {0: "first", -1: "last"}
        which = step.get("group_select", 0)
        if not isinstance(which, int) or isinstance(which, bool) or which not in takes:
            self.refuse(f"filter regex with group_select {short(which)}")
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
            rest = pattern[flags.end() :] if flags else pattern
            pattern = f"(?{flags[1]})({rest})" if flags else f"({rest})"
        found = {"extract": pattern, "take": takes[which], "of": "answers"}
        return found | ({"group": "any"} if groups > 1 else {})


_READ = {
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
    """Whether a file's fields are those of a task of lm-evaluation-harness."""
    return isinstance(values, Mapping) and "name" not in values and any(m in values for m in MARKS)


def converted(path: Path) -> dict[str, Any]:
    """The fields of a task file of ours that says what one of lm-evaluation-harness says.

    Raises ``UserError`` that names all that cannot be said.
    """
    said = _read(path)
    name = said.get("task")
    if not isinstance(name, str) or isinstance(said.get("group"), str):
        raise UserError(f"{path}: not one task of lm-evaluation-harness: task must be its name, not {short(name)}")
    reader = _Reader(said)
    reader.check_fields()
    kind = said.get("output_type") or "generate_until"
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
    if said.get("repeats") not in (None, 1):
        reader.refuse("repeats (several answers a row)")
    if reader.reasons:
        raise UserError(one_line(f"{path}: cannot be said in a task file of icl-bench: {'; '.join(reader.reasons)}"))
    if shots := said.get("num_fewshot"):
        reader.notes.append(f"lm-eval shows {shots} demonstrations unless told otherwise")
    return values | ({"notes": reader.notes} if reader.notes else {})


def _functions(value: Any) -> Iterator[_Function]:
    """All functions that are named anywhere in a value."""
    if isinstance(value, _Function):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _functions(part)
    elif isinstance(value, list):
        for part in value:
            yield from _functions(part)


# -- files ----------------------------------------------------------------------------------------


class FunctionLoader(yaml.SafeLoader):
    """YAML with ``!function``, which names a Python function that is not called here."""


def _function(loader: yaml.SafeLoader, node: yaml.Node) -> _Function:
    return _Function(str(loader.construct_scalar(node)) if isinstance(node, yaml.ScalarNode) else "")


FunctionLoader.add_constructor("!function", _function)


def _read(path: Path, within: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A file's fields over those of the files that it includes. Raises ``UserError``."""
    real = path.resolve()
    if real in within:
        raise UserError(f"{path}: includes itself")
    values, _ = read_yaml(read_file(path), str(path), FunctionLoader)
    if not isinstance(values, dict):
        raise UserError(f"{path}: a task file holds fields, and this one is {short(values)}")
    included = values.pop("include", [])
    merged: dict[str, Any] = {}
    for name in included if isinstance(included, list) else [included]:
        if not isinstance(name, str):
            raise UserError(f"{path}: include must be the name of a file, not {short(name)}")
        other = _read(path.parent / name, (*within, real))
        other.pop("task_list", None)
        merged |= other
    return merged | values
