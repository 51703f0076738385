"""Logs of Inspect, as JSON or as an ``.eval`` archive.

An archive is a ZIP file with ``header.json`` and ``samples/ID_epoch_N.json``, whose entries recent
versions compress with Zstandard (UKGovernmentBEIS/inspect_ai @ 499e6152, ``log/_log.py``, ``EvalLog``
and ``EvalSample``; ``log/_recorders/eval.py``; ``_util/zipfile.py``). A JSON log has the same header,
with all samples in it. A score's value is ``C``, ``I``, ``P`` (half right) or ``N`` (no answer), a
truth value or a number (``scorer/_metric.py``, ``value_to_float``).
"""

from __future__ import annotations

import io
import lzma
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from icl_bench.errors import UserError
from icl_bench.results.importing.samples import (
    Log,
    Sample,
    has_share,
    own_scores,
    reading,
    text_in,
    unusable_scores,
    verdict,
)
from icl_bench.results.importing.tables import json_value
from icl_bench.table_files import LARGEST, LargerThanAllowedError, check_archive
from icl_bench.text_files import decode
from icl_bench.wording import counted, one_line, plain

JUDGE = "Inspect"

ENDING = ".eval"

ZSTANDARD = 93
"""The ZIP format's number for this compression (APPNOTE 6.3.7, section 4.4.5)."""

LOCAL_HEADER = 30
"""Bytes of a local file header without its name and extra field (section 4.3.7)."""

WORDS = {"C": True, "I": False, "N": False, "yes": True, "true": True, "no": False, "false": False}

SHOTS = ("fewshot", "num_fewshot", "fewshot_num", "n_shots", "num_shots", "shots", "k")
"""Task arguments that set the number of demonstrations."""


def is_log(item: Mapping[str, Any]) -> bool:
    """Whether an object is a log."""
    return isinstance(item.get("eval"), dict) and "task" in item["eval"] and "status" in item


def of_archive(raw: bytes, shown: str) -> Log:
    """The log in an ``.eval`` archive. Raises ``UserError``."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            check_archive(archive, shown)
            entries = {info.filename: info for info in archive.infolist()}
            read = {
                name: _entry(raw, archive, info, f"{shown}:{name}")
                for name, info in entries.items()
                if name.startswith("samples/") or name in ("header.json", "_journal/start.json")
            }
    except (
        zipfile.BadZipFile,
        OSError,
        EOFError,
        RuntimeError,
        zlib.error,
        lzma.LZMAError,
        pa.ArrowException,
    ) as error:
        raise UserError(one_line(f"{shown}: not a complete log of Inspect: {error}")) from None
    header = read.get("header.json") or read.get("_journal/start.json")
    if not isinstance(header, dict):
        raise UserError(f"{shown}: not a log of Inspect: has no header.json")
    samples = [value for name, value in read.items() if name.startswith("samples/")]
    return of_log({"status": "started", **header, "samples": samples}, shown)


def _entry(raw: bytes, archive: zipfile.ZipFile, info: zipfile.ZipInfo, shown: str) -> Any:
    """The JSON value of an entry. Raises ``UserError``."""
    return json_value(decode(_content(raw, archive, info, shown), shown), shown)


def _content(raw: bytes, archive: zipfile.ZipFile, info: zipfile.ZipInfo, shown: str) -> bytes:
    if info.compress_type != ZSTANDARD:
        return archive.read(info)
    header = raw[info.header_offset : info.header_offset + LOCAL_HEADER]
    start = info.header_offset + LOCAL_HEADER + sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    packed = pa.BufferReader(raw[start : start + info.compress_size])
    stream, content = pa.CompressedInputStream(packed, "zstd"), bytearray()
    while more := stream.read(2**20):
        content += more
        if len(content) > LARGEST:
            raise LargerThanAllowedError(shown)
    return bytes(content)


def of_log(log: Mapping[str, Any], shown: str) -> Log:
    """The samples of a log. Raises ``UserError``."""
    with reading(shown, "a log of Inspect as version 2 of its format"):
        return _of_log(log, shown)


def _of_log(log: Mapping[str, Any], shown: str) -> Log:
    about, notes = log["eval"], []
    k = _shots(about)
    if k is None:
        notes.append("the log does not state the number of demonstrations: k = 0 is assumed; use --k for another")
        k = 0
    items = [{**item, "scores": _scores(item)} for item in log.get("samples") or []]
    scored = [item for item in items if item["scores"]]
    if items and not scored:
        raise UserError(f"{shown}: none of its {counted(len(items), 'sample')} has a score")
    if lost := len(items) - len(scored):
        notes.append(f"{counted(lost, 'sample')} without a score left out (an error, or not finished)")
    if log["status"] != "success":
        notes.append(f"the evaluation's status is {plain(log['status'])}: samples may be missing")
    epochs = {item.get("epoch", 1) for item in scored}
    if len(epochs) > 1:
        notes.append(
            f"{counted(len(epochs), 'epoch')}, each a variant of its own: they repeat the same prompts, so they are "
            "not draws of demonstrations"
        )
    samples = [sample for item in scored for sample in _samples(item, k, len(epochs) > 1, shown)]
    scorers = dict.fromkeys(name for item in scored for name in item["scores"])
    if len(scorers) > 1:
        notes.append(f"{counted(len(scorers), 'scorer')}, each a variant of its own: {', '.join(map(plain, scorers))}")
    return Log(JUDGE, samples, str(about["task"]), str(about["model"]), tuple(notes))


def _shots(about: Mapping[str, Any]) -> int | None:
    arguments = about.get("task_args") or {}
    numbers = (arguments.get(name) for name in SHOTS)
    return next((n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n >= 0), None)


def _scores(item: Mapping[str, Any]) -> dict[str, Any]:
    """The scores by scorer, without those that Inspect excludes from its metrics (NaN)."""
    scores = item.get("scores") or {}
    return {name: score for name, score in scores.items() if score.get("value") == score.get("value")}


def _samples(item: Mapping[str, Any], k: int, several_epochs: bool, shown: str) -> Iterable[Sample]:
    """One sample per scorer."""
    output, targets = item.get("output") or {}, item["target"]
    golds = [str(target) for target in targets] if isinstance(targets, list) else [str(targets)]
    if item.get("choices"):
        golds = [", ".join(golds)]  # all of several letters are requested, and answers are written in this way
    completion = _completion(output)
    usage = _usage(output)
    for name, score in item["scores"].items():
        value = score.get("value")
        right = WORDS.get(value) if isinstance(value, str) else verdict(value)
        own = own_scores({name: value})
        if right is None and not has_share(own):
            raise unusable_scores(shown, f"sample {item['id']}", {name: value})
        answer = score.get("answer")
        said = completion if answer is None else str(answer)
        yield Sample(
            test_id=str(item["id"]),
            gold=golds[0] if golds else None,
            golds=golds,
            prediction=said,
            correct=right,
            k=k,
            question=_question(item),
            text=completion if completion and completion != said else None,
            curve=f"{name}-epoch-{item.get('epoch', 1)}" if several_epochs else name,
            scores=own,
            tokens=usage,
        )


def _completion(output: Mapping[str, Any]) -> str:
    if isinstance(output.get("completion"), str):
        return str(output["completion"])
    choices = output.get("choices") or [{}]
    return text_in((choices[0].get("message") or {}).get("content"))


def _question(item: Mapping[str, Any]) -> str | None:
    """The question: a text, or the user's last message."""
    asked = item.get("input")
    if isinstance(asked, list):
        users = [message.get("content") for message in asked if message.get("role") == "user"]
        asked = text_in(users[-1]) if users else None
    return asked if isinstance(asked, str) else None


def _usage(output: Mapping[str, Any]) -> dict[str, int | None]:
    """Token counts. Inspect's ``input_tokens`` do not include cached ones (``ModelUsage``)."""
    usage = output.get("usage")
    if not usage:
        return {}
    read, written = (usage.get(f"input_tokens_cache_{way}") for way in ("read", "write"))
    return {
        "prompt_tokens": usage.get("input_tokens", 0) + (read or 0) + (written or 0),
        "cached_tokens": read,
        "cache_write_tokens": written,
        "answer_tokens": usage.get("output_tokens"),
        "reasoning_tokens": usage.get("reasoning_tokens"),
    }
