"""Damages stored files at random, and asks whether what is read then is right or is refused with a word.

``python tests/soak/mutations.py --count 10000 --seed 0``. Each mutation is of one file: flipped bits, a cut end, a
block of zeros, lost, inserted or repeated bytes, repeated or exchanged lines, the contents of another file of its
kind. Kinds are results, journals, JSON files beside results, cached arrays and converted models, and models' folders.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.fakes import FakeBackend, plan, runner
from support.models import llama_tokenizer, tiny_checkpoint

from icl_bench.errors import CellError, UserError
from icl_bench.models.array_cache import cached_array, load_arrays
from icl_bench.models.fingerprints import folder_fingerprint
from icl_bench.models.made_once import is_whole, made_once
from icl_bench.models.registry import resolve
from icl_bench.results.batches import BatchRecord, CellBatches
from icl_bench.results.cells import JOURNAL, Identity, Prediction
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import failed_cells, read_stored, read_table, state_prior, stated_priors
from icl_bench.results.store import Store
from icl_bench.results.stored_meta import StudyCell
from icl_bench.results.studies import read_studies, write_study
from icl_bench.table_files import parquet_table

WAYS = ("bits", "cut", "zeros", "lost", "inserted", "repeated", "lines", "another file")
REFUSED, SAME = "refused or left out, with a message", "read as it was"


def mutated(raw: bytes, way: str, others: Sequence[bytes], random: np.random.Generator) -> bytes:
    """The bytes after one mutation."""
    size = max(len(raw), 1)
    start = int(random.integers(size))
    length = int(min(1 + random.geometric(0.02), size))
    changed = bytearray(raw)
    if way == "bits":
        for _ in range(int(random.integers(1, 5))):
            changed[int(random.integers(len(raw)))] ^= 1 << int(random.integers(8))
    elif way == "cut":
        del changed[start:]
    elif way == "zeros":
        start = start // 512 * 512 if size > 1024 else start
        end = min(start + (512 if size > 1024 else length), size)
        changed[start:end] = bytes(end - start)
    elif way == "lost":
        del changed[start : start + length]
    elif way == "inserted":
        changed[start:start] = random.bytes(length)
    elif way == "repeated":
        changed[start:start] = changed[start : start + length]
    elif way == "lines":
        lines = raw.split(b"\n")
        one, other = int(random.integers(len(lines))), int(random.integers(len(lines)))
        if random.random() < 0.5:
            lines.insert(one, lines[other])
        else:
            lines[one], lines[other] = lines[other], lines[one]
        changed = bytearray(b"\n".join(lines))
    elif others:
        changed = bytearray(others[int(random.integers(len(others)))])
    return bytes(changed)


class Kind(ABC):
    """Files of one kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.files = self.make()
        self.contents = {file: file.read_bytes() for file in self.files}

    @abstractmethod
    def make(self) -> list[Path]:
        """Write the files."""

    @abstractmethod
    def judge(self, file: Path) -> str:
        """``REFUSED`` or ``SAME``. Raises ``AssertionError`` for what is silently wrong."""

    def attack(self, count: int, random: np.random.Generator) -> Counter[str]:
        """So many mutations; what came of them."""
        seen: Counter[str] = Counter()
        while seen.total() < count:
            file = self.files[int(random.integers(len(self.files)))]
            way = WAYS[int(random.integers(len(WAYS)))]
            others = [raw for path, raw in self.contents.items() if path.suffix == file.suffix and path != file]
            raw = mutated(self.contents[file], way, others, random)
            if raw == self.contents[file]:
                continue
            file.write_bytes(raw)
            try:
                seen[self.judge(file)] += 1
            except AssertionError as error:
                raise AssertionError(
                    f"{type(self).__name__}, mutation {seen.total()}, {way} of {file.name}: {error}"
                ) from None
            finally:
                file.write_bytes(self.contents[file])
        return seen


@contextmanager
def messages() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings in the block."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield said


class Results(Kind):
    """Finished cells and an import."""

    def make(self) -> list[Path]:
        runner(plan(self.folder / "task", "1,2", draws=2, test_rows=40), self.folder / "r", FakeBackend()).run()
        table = self.folder / "import.csv"
        lines = [f"t,m,1,0,{i},x,{'xy'[i % 2]}\n" for i in range(40)]
        table.write_text("task,model,k,draw,test_id,gold,prediction\n" + "".join(lines))
        import_predictions(table, self.folder / "r")
        self.expected, self.facts = self._rows(), self._facts()
        return sorted((self.folder / "r").rglob("*.parquet"))

    def _rows(self) -> dict[tuple[str, str], str]:
        rows: dict[tuple[str, str], str] = {}
        for record in read_table(self.folder / "r").to_pylist():
            key = record["cell"], record["test_id"]
            assert key not in rows, "a row twice"
            # a column that no row of another file has is away with its file
            rows[key] = json.dumps({n: v for n, v in record.items() if v is not None}, sort_keys=True)
        return rows

    def _facts(self) -> dict[str, Any]:
        return {name: meta.model_dump() for name, meta in read_stored(self.folder / "r").cells.items()}

    def judge(self, file: Path) -> str:
        with messages() as said:
            try:
                rows, facts = self._rows(), self._facts()
            except UserError:
                return REFUSED
        assert rows.items() <= self.expected.items(), "other rows"
        assert all(self.facts[name] == of_cell for name, of_cell in facts.items()), "other metadata"
        if len(rows) < len(self.expected):
            assert any(file.name in str(one.message) for one in said), "rows are missing, and nothing says so"
            return REFUSED
        return REFUSED if said else SAME


class Journals(Kind):
    """Journals of two unfinished cells."""

    def make(self) -> list[Path]:
        planned = plan(self.folder / "task", "1,2", draws=1, test_rows=12)
        runner(planned, self.folder / "r", FakeBackend()).run()
        self.store, self.cells = Store(self.folder / "j"), dict[Path, tuple[Identity, dict[str, Any]]]()
        for file in sorted((self.folder / "r").rglob("*.parquet")):
            meta = next(meta for meta in read_stored(self.folder / "r").cells.values() if meta.cell in file.name)
            identity = Identity(meta.spec, meta.facts)
            with self.store.claim(identity, 12) as opened:
                assert opened is not None
                opened.append(predictions_of(file))
                path = self.folder / "j" / f"{identity.name}{JOURNAL}"
                self.cells[path] = identity, dict(opened.done)
        return list(self.cells)

    def judge(self, file: Path) -> str:
        identity, expected = self.cells[file]
        with messages() as said, self.store.claim(identity, 12) as opened:
            assert opened is not None
            done = dict(opened.done)
        assert done.items() <= expected.items(), "other predictions"
        return SAME if done == expected else REFUSED if said or len(done) < len(expected) else SAME


def predictions_of(file: Path) -> list[Prediction]:
    """The predictions of a finished cell."""
    names = Prediction.__dataclass_fields__
    records = parquet_table(file.read_bytes()).to_pylist()
    return [Prediction(**{name: record[name] for name in names if name in record}) for record in records]


class Beside(Kind):
    """JSON files beside results: marks of failed cells, studies, stated priors, batches."""

    def make(self) -> list[Path]:
        made = self.folder / "r"
        planned = plan(self.folder / "task", "1", draws=1)
        runner(planned, made, FakeBackend()).run()
        ((_, meta),) = read_stored(made).cells.items()
        self.identity = Identity(meta.spec, meta.facts.with_more(server="http://here/v1"))
        for file in made.rglob("*.parquet"):
            file.unlink()
        self.store = Store(made)
        self.store.mark_failed(self.identity, "the server is away")
        cell = StudyCell(**meta.spec.model_dump(), setting="plain", cell=meta.cell, variant=meta.variant)
        write_study(made, "mine", [cell], whole=True)
        state_prior(made, "cards", "stated", {"card_lost": 0.25, "top_up": 0.75})
        state_prior(made, "other", "stated", {"card_lost": 0.5, "top_up": 0.5})
        with self.store.claim(self.identity, 6) as opened:
            assert opened is not None
            rows = [(str(i), f"{i:04x}") for i in range(9)]
            opened.keep_batches(CellBatches(batches=[BatchRecord(rows=rows, id="batch-7", creating=1.5)]))
        self.expected = self._read()
        return [file for file in sorted(made.rglob("*.json")) if ".locks" not in file.parts]

    def _read(self) -> list[tuple[str, str]]:
        made = self.folder / "r"
        found = [("failed", one.model_dump_json()) for one in failed_cells(made)]
        found += [("study", one.model_dump_json()) for one in read_studies(made)]
        found += [(f"prior {task}", json.dumps(of_task)) for task, of_task in stated_priors(made).items()]
        batches = self.store.batches(self.identity)
        return [*found, ("batches", "" if batches is None else batches.model_dump_json())]

    def judge(self, file: Path) -> str:
        with messages() as said:
            try:
                found = self._read()
            except CellError:
                return REFUSED
        assert set(found) <= set(self.expected), f"other contents: {set(found) - set(self.expected)}"
        if len(found) < len(self.expected):
            assert said, "something is missing, and nothing says so"
        return REFUSED if said else SAME


class Arrays(Kind):
    """Cached arrays."""

    def make(self) -> list[Path]:
        self.arrays = {name: np.random.default_rng(len(name)).normal(size=(20, 8)) for name in ("one", "three")}
        for name, array in self.arrays.items():
            cached_array(self.folder / name, lambda array=array: array)  # type: ignore[misc]
        return sorted(file for file in self.folder.rglob("*") if file.is_file())

    def judge(self, file: Path) -> str:
        found = load_arrays(file.parent, ["array"])
        if found is None:
            return REFUSED
        assert (found[0] == self.arrays[file.parent.name]).all(), "another array"
        return SAME


class Converted(Kind):
    """Converted models in the cache."""

    def make(self) -> list[Path]:
        tiny = tiny_checkpoint(self.folder / "tiny", tokenizer=llama_tokenizer())
        for name in ("one", "two"):
            made_once(self.folder / "models" / name, lambda new: shutil.copytree(tiny, new, dirs_exist_ok=True))
        return sorted(f for f in (self.folder / "models").rglob("*") if f.is_file() and f.suffix != ".lock")

    def judge(self, file: Path) -> str:
        if not is_whole(file.parent):
            return REFUSED
        contents = {path: path.read_bytes() for path in self.files}
        assert all(raw == self.contents[path] for path, raw in contents.items() if not path.name.startswith(".")), file
        return SAME


class Models(Kind):
    """A user's model folder: damaged, it is refused or another model."""

    def make(self) -> list[Path]:
        self.tiny = tiny_checkpoint(self.folder / "tiny", tokenizer=llama_tokenizer())
        self.known = folder_fingerprint(self.tiny)
        return sorted(file for file in self.tiny.iterdir() if file.suffix in (".json", ".safetensors"))

    def judge(self, file: Path) -> str:
        try:
            found = resolve(str(self.tiny))
        except UserError:
            return REFUSED
        assert found.fingerprint != self.known, f"{file.name} changed, and its model has the same name"
        return REFUSED


KINDS: dict[type[Kind], int] = {Results: 4, Journals: 6, Beside: 4, Arrays: 2, Converted: 2, Models: 2}
"""Kinds of files, and their shares of all mutations."""


def main() -> None:
    """Run it and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        for kind, share in KINDS.items():
            random = np.random.default_rng([asked.seed, share])
            seen = kind(Path(name) / kind.__name__).attack(max(1, asked.count * share // sum(KINDS.values())), random)
            print(f"{kind.__name__}: {seen.total():,} mutations, " + ", ".join(f"{n:,} {s}" for s, n in seen.items()))
            total += seen
    print(f"{total.total():,} mutations, none silently wrong")


if __name__ == "__main__":
    main()
