"""What a part of the check finds: a value beside its bound, and whether it keeps it."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Options:
    """What was asked of the check."""

    device: str
    small: bool = False
    """Sizes for a CPU: the parts run, and their figures mean nothing."""
    model: Path | None = None
    """A folder with a model and its tokenizer; else weights are random."""

    @property
    def on_card(self) -> bool:
        """Whether there is memory and time to measure."""
        return self.device.startswith("cuda")

    def settle(self) -> None:
        """Wait for what the device has been given to do."""
        if self.on_card:
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], repeats: int = 3) -> float:
        """The least seconds of several runs, after one that does not count."""
        found = []
        for _ in range(repeats + 1):
            self.settle()
            start = time.perf_counter()
            work()
            self.settle()
            found.append(time.perf_counter() - start)
        return min(found[1:])


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    part: str
    name: str
    value: float | None = None
    bound: str = ""
    passed: bool | None = None
    """None where there is nothing to keep: a measure, or a part that was left out."""
    note: str = ""
    timed: bool = False
    """Whether the value is of a device's speed or memory: not shown for sizes of a CPU."""


def at_most(part: str, name: str, value: float, bound: float, **more: Any) -> Finding:
    """A finding that fails above its bound, and where it is no number."""
    return Finding(part, name, value, f"<= {bound:g}", value <= bound, **more)


def at_least(part: str, name: str, value: float, bound: float, **more: Any) -> Finding:
    """A finding that fails below its bound, and where it is no number."""
    return Finding(part, name, value, f">= {bound:g}", value >= bound, **more)


Part = Callable[[Options], Iterator[Finding]]


def run_parts(parts: dict[str, Part], options: Options) -> list[Finding]:
    """Run one part after the other; one that ends in an error has failed, and the next is run."""
    found: list[Finding] = []
    for name, part in parts.items():
        start = time.perf_counter()
        try:
            for finding in part(options):
                found.append(shown(finding, options))
                print(line(found[-1]), flush=True)
        except Exception as error:  # whatever it is, the other parts are to be seen
            said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            found.append(Finding(name, "error", passed=False, note=said))
            print(line(found[-1]), flush=True)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    return found


def shown(finding: Finding, options: Options) -> Finding:
    """A finding as it is told: speed and memory of small sizes mean nothing and bind nobody."""
    if not finding.timed or not options.small:
        return finding
    return Finding(finding.part, finding.name, None, finding.bound, None, "ran; not measured")


def line(finding: Finding) -> str:
    """A line of the table."""
    word = {True: "ok", False: "FAILED", None: "-"}[finding.passed]
    value = "" if finding.value is None else f"{finding.value:.4g}"
    return (f"{finding.part:10} {finding.name:52} {value:>10} {finding.bound:>10}  {word:6} {finding.note}").rstrip()


def write_json(found: Sequence[Finding], options: Options, file: Path) -> None:
    """Write all findings, the machine and its libraries."""
    import transformers

    card = torch.cuda.get_device_name(options.device) if options.on_card else platform.machine()
    content = {
        "device": card,
        "small": options.small,
        "model": str(options.model or "random weights"),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "failed": sum(finding.passed is False for finding in found),
        "findings": [asdict(finding) for finding in found],
    }
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
