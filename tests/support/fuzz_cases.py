"""The kinds of cases of :mod:`support.fuzz`: what is absurd or damaged, and the commands that meet it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icl_bench.errors import CellError
from icl_bench.table_files import parquet_bytes, parquet_table
from support.api_server import PAGE, Body, Reply, completion, serving
from support.fakes import FREE_TEXT, FakeBackend, plan, row, runner, write_task
from support.in_process import run_command
from support.models import llama_tokenizer, tiny_checkpoint
from support.program import as_words

NASTY = (
    "",
    " ",
    *as_words(", : = 0 -1 1 2 3 1.5 010 1e999 nan inf true null None"),
    "9" * 20,
    "9" * 5000,
    "1" + "0" * 400,
    "a" * 300,
    "b" * 5000,
    "a/" * 3000,
    "[/red]",
    "[a]",
    "[link=x]y[/]",
    ":tada:",
    "<script>alert(1)</script>",
    "</script>",
    "<!--",
    "1000000000",
    "shuffled:" + "9" * 5000,
    "\x1b[2J",
    "\udcff",
    "\u202e",
    "💥",
    "ß\n",
    "a,b",
    "a\tb",
    "'\"",
    *as_words(
        "../x /dev/null . ~ - -- {text} {{text}} %s max auto 1,,2 half:1 half:x hybrid:5 hybrid:0 "
        "random bm25 balanced centroids centroids,of=queries diverse:mmr diverse:mmr,lambda=2 diverse:bertscore diverse:dpp shuffled:1 by-label by-length smooth pool relevance drawn "
        "block:1 block:2,sink=1,local=9 grouped:2,4 approx:4,2 block:1,reuse labels:permuted "
        "labels:noise=2 labels:noise=0.3 nearest-removed:50 inputs-only inputs-only,format=4 labels:model,k=2 tokens=2000 seconds=x any "
        "copied test exact greedy float32 cpu cuda:99 openai vllm transformers"
    ),
)
OPTIONS: dict[str, tuple[str, ...]] = {
    "sweep": as_words(
        "--k --per-label --select --encoder --perturbation --order --attention --draws --labels "
        "--queries --score --context --seed --test-size --data-dir --dtype --device --backend "
        "--pack --tensor-parallel --max-model-len --gpu-memory --quantization --kv-cache-dtype "
        "--base-url --tokenizer --concurrency --task --model --chat --system --chat-arg"
    ),
    "summary": ("--task", "--model", "--base-model", "--advice"),
    "show": as_words(
        "--task --k --test-id --model --select --order --attention --perturbation --draw --cell --data-dir"
    ),
    "check": ("--baseline", "--tolerance", "--alpha"),
    "tasks": ("--check", "--model", "--data-dir", "--test-size"),
    "perplexity": ("--lengths", "--attention", "--windows", "--texts", "--dtype", "--device"),
    "finetune": as_words(
        "--k --method --draws --head --validation --epochs --batch --learning-rate --seed --test-size --dtype --device"
    ),
}
READERS: tuple[tuple[str, ...], ...] = (
    ("summary",),
    ("summary", "--json"),
    ("summary", "--cost"),
    ("summary", "--advice", "any"),
    *[
        ("leaderboard",),
        ("export", "--out", "out.csv"),
        ("export", "--out", "out.parquet"),
        ("show", "--task", "cards", "--k", "1"),
        ("check", "--baseline", "base.parquet"),
    ]
    * 3,
)
"""What looks at results; the dearest, which work out all findings, less often."""


COLUMNS = as_words(
    "task model select order attention k draw test_id gold prediction correct valid probability margin "
    "label_mass rouge1 prompt_tokens queries label_space perturbation variant cell demonstration_ids note"
)


@dataclass(frozen=True)
class World:
    """What cases begin with: each has a copy of its own."""

    task: Path
    model: Path
    results: Path
    """Finished cells, an import, a failed cell and a journal."""
    base: Path


def make_world(folder: Path) -> World:
    """A task, a tiny model, and results with some of everything."""
    model = tiny_checkpoint(folder / "tiny", tokenizer=llama_tokenizer())
    task, results = write_task(folder / "task"), folder / "results"
    runner(plan(folder / "task", "1,3", draws=2), results, FakeBackend()).run()
    runner(plan(folder / "task", "1", selects=["bm25"], scoring="exact"), results, FakeBackend()).run()
    runner(plan(folder / "text", "1", name="texts", **FREE_TEXT), results, FakeBackend()).run()

    def fails(_: object) -> None:
        raise CellError("out of memory")

    runner(plan(folder / "task", "8", draws=1), results, FakeBackend(fails=fails)).run()
    ended = run_command("export", "--results", results, "--out", folder / "base.parquet")
    assert ended.code == 0
    (folder / "mine.csv").write_bytes(_csv(random.Random(0), nasty=0.0))
    assert run_command("import", folder / "mine.csv", "--results", results).code == 0
    return World(task, model, results, folder / "base.parquet")


# -- kinds of cases: each changes files in its folder and gives the words of its commands ---------


@dataclass(frozen=True)
class Command:
    """One command of a case."""

    words: tuple[str, ...]
    output: str = "utf-8"
    """Where it prints: see :func:`support.in_process.run_command`."""


Words = tuple[str, ...]
"""A command that prints as usual."""


Commands = Iterator[Words | Command]


def _options(rng: random.Random, world: World, here: Path) -> Commands:
    """A command with some options that are absurd."""
    command = rng.choice(
        as_words("plan plan plan run summary show check tasks perplexity finetune models leaderboard export")
    )
    given: dict[str, str] = {}
    on_cpu = {"--device": "cpu", "--dtype": "float32"}
    if command in ("plan", "run", "finetune"):
        given = {"--task": str(world.task), "--model": str(world.model), "--k": "1,3", **on_cpu, "--draws": "1"}
        if command == "finetune":
            given |= {"--method": "none"}  # nothing is trained
    elif command == "show":
        given = {"--task": "cards", "--k": "1"}
    elif command == "check":
        given = {"--baseline": str(world.base)}
    elif command == "perplexity":
        (here / "texts").mkdir()
        (here / "texts" / "a.txt").write_text("word " * rng.randrange(40))
        given = {"--model": str(world.model), "--texts": "texts", "--lengths": "8", **on_cpu}
    elif command == "export":
        given = {"--out": "out.csv"}
    known = OPTIONS.get("sweep" if command in ("plan", "run") else command, ("--results",))
    for _ in range(rng.randrange(1, 4)):
        given[rng.choice(known)] = rng.choice(NASTY)
    words = [command, *(word for pair in given.items() for word in pair)]
    if command not in ("plan", "tasks", "models"):
        shutil.copytree(world.results, here / "results")
    if rng.random() < 0.2:
        words += rng.choice([["--json"], ["--quiet"], ["--unconstrained"], [rng.choice(NASTY)]])
    yield tuple(words)


def _value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that JSON or YAML can hold."""
    kind = rng.randrange(9 if depth < 3 else 7)
    if kind == 7:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == 8:
        return {rng.choice(NASTY): _value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return [None, True, 10 ** rng.randrange(30), -1.5, 1e308, *[rng.choice(NASTY)] * 2][kind]


def _bomb(link: str) -> str:
    """Aliases that repeat each other until a few lines are more than any memory."""
    lines = ["a0: &a0 {name: x}"]
    for level in range(1, 30):
        items = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {link.format(items)}")
    return "\n".join(lines) + "\n"


YAML_TRAPS = (
    _bomb("[{}]"),
    _bomb("{{<<: [{}]}}"),
    "a: &a {<<: *a}",
    "a: &a [*a]",
    "<<: 3",
    "? [1]\n: 2",
    "a: !!python/object/apply:os.system [ls]",
    "a: !!int x",
    "a: !!timestamp x",
    "a: !!binary '%'",
    "a: 0x" + "f" * 9999,
    "a: " + "[" * 5000,
    "a: " + "{b: " * 500,
    "%YAML 9.9\n---\na: 1",
    "a: 1\n---\nb: 2",
    "a: \x00",
    "name: 010",
    "name: 1:30",
    "2001-01-01: 3",
    "\ufeffname: x",
)


def _task_file(rng: random.Random, world: World, here: Path) -> Commands:
    """A task file of which something is something else."""
    task = json.loads(world.task.read_text())
    shutil.copytree(world.task.parent, here / "task")
    path = here / "task" / "cards.yaml"
    for _ in range(rng.randrange(1, 3)):
        inside = rng.choice([task, *(value for value in task.values() if isinstance(value, dict))])
        known = as_words("test pool hub folder embedded source names size seed ids separator")
        inside[rng.choice([*inside, *known, rng.choice(NASTY)])] = _value(rng)
    content = json.dumps(task).encode()
    if rng.random() < 0.2:
        content = rng.choice([content[:-1] + b", ", b""]) + rng.choice(YAML_TRAPS).encode()
        content += rng.choice([b"}", b""])
    path.write_bytes(_damaged(rng, content, rng.choice([0.0, 0.0, 0.5])))
    yield ("tasks", "--check", str(path))


def _rows(rng: random.Random, world: World, here: Path) -> Commands:
    """Rows of a data set some of which are odd."""
    shutil.copytree(world.task.parent, here / "task")
    rows: list[Any] = [row(number) for number in range(12)]
    for _ in range(rng.randrange(1, 4)):
        rng.choice(rows[:3])[rng.choice(["text", "label", "id", rng.choice(NASTY)])] = _value(rng)
    if rng.random() < 0.2:
        rows.insert(2, _value(rng))
    lines = "".join(json.dumps(one) + "\n" for one in rows).encode("utf-8", "surrogatepass")
    name = rng.choice(["train.jsonl", "test.jsonl"])
    if rng.random() < 0.03:
        _pipe(here / "task" / name)
    else:
        (here / "task" / name).write_bytes(_damaged(rng, lines, rng.choice([0.0, 0.5])))
    path = str(here / "task" / "cards.yaml")
    yield ("tasks", "--check", path)
    if rng.random() < 0.3:
        yield _plan(path, world)


def _plan(task: Path | str, world: World) -> Words:
    return as_words(f"plan --task {task} --model {world.model} --k 1 --draws 1 --device cpu --dtype float32")


def _csv(rng: random.Random, nasty: float) -> bytes:
    """Predictions as CSV; a share of the cells is odd."""
    names = [*COLUMNS[:10], *rng.sample(COLUMNS[10:], rng.randrange(3))]
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(names)
    for number in range(16):
        axes = f"wines m{number % 2} random drawn full {1 + number % 4 // 2} 0 {number // 4} {'ab'[number // 4 % 2]}"
        usual = [*as_words(axes), rng.choice("ab")]
        cells = usual + [""] * (len(names) - len(usual))
        if rng.random() < nasty:
            cells[rng.randrange(len(cells))] = rng.choice(NASTY)
        writer.writerow(cells)
    text = stream.getvalue()
    if nasty and rng.random() < 0.3:  # all of a name, so that the rows agree
        text = text.replace(rng.choice(["wines", "m0", "random", "drawn"]), _quoted(rng))
    return text.encode("utf-8", "backslashreplace")


def _quoted(rng: random.Random) -> str:
    return '"' + rng.choice(NASTY).replace('"', '""') + '"'


def _imports(rng: random.Random, world: World, here: Path) -> Commands:
    """A file of predictions some of which are odd, and a look at what became of it."""
    content = _csv(rng, rng.choice([0.0, 0.05, 0.2]))
    name = rng.choice(["mine.csv", "mine.csv", "mine.csv.gz", "mine.parquet"])
    if name.endswith("gz"):
        content = gzip.compress(content)
    elif name.endswith("parquet"):
        content = world.base.read_bytes()
    (here / name).write_bytes(_damaged(rng, content, rng.choice([0.0, 0.0, 0.4])))
    if rng.random() < 0.03:
        _pipe(here / name)
    if rng.random() < 0.5:
        shutil.copytree(world.results, here / "results")
    yield ("import", name)
    shutil.copy(world.base, here / "base.parquet")
    yield rng.choice(READERS)


def _results(rng: random.Random, world: World, here: Path) -> Commands:
    """A results folder of which parts are damaged, gone, empty or where they do not belong."""
    shutil.copytree(world.results, here / "results")
    shutil.copy(world.base, here / "base.parquet")
    files = sorted(path for path in (here / "results").rglob("*") if path.is_file())
    for _ in range(rng.randrange(1, 4)):
        path = rng.choice([*files, here / "base.parquet"])
        if not path.is_file():
            continue
        match rng.randrange(12):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(b"")
            case 2:
                path.unlink()
                path.mkdir()
            case 3:
                shutil.copy(path, path.with_name("copy-" + path.name))
            case 4:
                path.write_bytes(rng.choice([p for p in files if p.is_file()]).read_bytes())
            case 5:
                _pipe(path)
            case 6 | 7 | 8 | 9:
                _rewritten(rng, path)
            case _:
                path.write_bytes(_damaged(rng, path.read_bytes(), 1.0))
    yield rng.choice(READERS)


def _pipe(path: Path) -> None:
    """A named pipe in place of a file; nobody writes into it."""
    path.unlink()
    os.mkfifo(path)


def _rewritten(rng: random.Random, path: Path) -> None:
    """A file of results that is whole, but says something else, or less."""
    if path.suffix == ".parquet":
        try:
            table = parquet_table(path.read_bytes())
        except Exception:
            return  # damaged before
        metadata = dict(table.schema.metadata or {})
        if rng.random() < 0.7 and metadata:
            key = rng.choice(sorted(metadata))
            metadata[key] = json.dumps(_changed(rng, json.loads(metadata[key]))).encode()
        else:
            name = rng.choice(table.column_names)
            column, place = table[name], table.column_names.index(name)
            with suppress(ValueError, NotImplementedError):  # what is no text of that type
                match rng.randrange(4):
                    case 0:
                        table = table.drop_columns([name])
                    case 1:
                        table = table.set_column(place, name, column.cast("string"))
                    case 2:
                        table = table.set_column(place, name, [[None] * len(table)])
                    case _:
                        table = table.rename_columns(
                            [rng.choice(NASTY[:-1]) if n == name else n for n in table.column_names]
                        )
        with suppress(UnicodeEncodeError):
            path.write_bytes(parquet_bytes(table.replace_schema_metadata(metadata)))
        return
    with suppress(ValueError):  # damaged before
        text = path.read_text()
        if path.suffix == ".json":
            path.write_text(json.dumps(_changed(rng, json.loads(text))))
        else:
            lines = text.splitlines(keepends=True)
            path.write_text("".join(rng.sample(lines, len(lines))))


def _changed(rng: random.Random, tree: Any) -> Any:
    """JSON of which one value is another, or gone."""
    if not isinstance(tree, dict | list) or not tree or rng.random() < 0.1:
        return _value(rng)
    changed: Any = dict(tree) if isinstance(tree, dict) else list(tree)
    key = rng.choice(sorted(tree) if isinstance(tree, dict) else range(len(tree)))
    if rng.random() < 0.3:
        del changed[key]
    else:
        changed[key] = _changed(rng, tree[key])
    return changed


def _model(rng: random.Random, world: World, here: Path) -> Commands:
    """A model's folder of which files are damaged, gone, or of another model."""
    shutil.copytree(world.model, here / "model")
    for _ in range(rng.randrange(1, 3)):
        path = rng.choice(sorted((here / "model").iterdir()))
        match rng.randrange(6):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(b"")
            case 2 if path.suffix == ".json":
                with suppress(ValueError, TypeError, IndexError):  # damaged before
                    found = json.loads(path.read_text())
                    found[rng.choice(sorted(found))] = rng.choice(
                        (None, True, 0, 1, 3, -1, 1.5, 64, [], {}, [1], "gpt2", *NASTY[:2])
                    )
                    path.write_text(json.dumps(found))
            case 3 if path.suffix == ".safetensors":
                with path.open("r+b") as stream:
                    stream.truncate(rng.randrange(path.stat().st_size or 1))
            case 4:
                path.write_bytes(rng.choice(sorted((here / "model").iterdir())).read_bytes())
            case _:
                path.write_bytes(_damaged(rng, path.read_bytes(), 1.0))
    sweep = ("--task", str(world.task), *as_words("--model model --k 1 --draws 1 --device cpu --dtype float32"))
    (here / "a.txt").write_text("word " * 40)
    yield rng.choice(
        [
            ("plan", *sweep),
            ("run", *sweep),
            ("run", *sweep),
            ("tasks", "--check", str(world.task), "--model", "model"),
            as_words("perplexity --model model --texts a.txt --lengths 8 --device cpu --dtype float32"),
        ]
    )


def _server(rng: random.Random, world: World, here: Path) -> Commands:
    """A server that answers something else than it should, with a status that is not asked again."""

    def odd(usual: Reply) -> Reply:
        match rng.randrange(6):
            case 0:
                return usual
            case 1:
                return rng.choice([200, 200, 400, 404, 422]), PAGE
            case 2:
                return rng.choice([200, 400, 401, 403, 404]), _value(rng)
            case 3:
                return 200, Body(_damaged(rng, json.dumps(usual[1]).encode(), 1.0))
            case _:
                return 200, _changed(rng, usual[1])

    models: Reply = (200, {"object": "list", "data": [{"id": "m", "object": "model"}]})
    os.environ["OPENAI_API_KEY"] = "key"
    with serving(lambda _: odd(completion(" card lost")), models=odd(models)) as server:
        yield as_words(
            f"run --task {world.task} --backend openai --model m --base-url {server.url} --tokenizer {world.model} "
            "--k 1,3 --draws 1 --concurrency 1 --context 2000"
        )
    if rng.random() < 0.1:
        yield ("summary",)


def _output(rng: random.Random, world: World, here: Path) -> Commands:
    """Standard output that takes nothing, or lacks letters, or whose reader is gone."""
    shutil.copytree(world.results, here / "results")
    shutil.copy(world.base, here / "base.parquet")
    words = rng.choice([*READERS, ("models",), ("tasks",), ("tasks", "--json"), ("--help",), _plan(world.task, world)])
    yield Command(words, rng.choice(["latin-1", "ascii", "full", "closed"]))


def _damaged(rng: random.Random, content: bytes, share: float) -> bytes:
    """Bytes of which, in a share of cases, some are others, gone or there twice."""
    if rng.random() >= share or not content:
        return content
    at = rng.randrange(len(content))
    end = min(len(content), at + rng.choice([1, 8, 64]))
    return [
        content[:at],
        content[:at] + content[end:],
        content[:at] + rng.randbytes(end - at) + content[end:],
        content[:end] + content[at:],
        content[:at] + rng.choice(NASTY).encode("utf-8", "replace") + content[at:],
    ][rng.randrange(5)]


KINDS: dict[str, Callable[[random.Random, World, Path], Commands]] = {
    "options": _options,
    "task file": _task_file,
    "rows": _rows,
    "import": _imports,
    "results": _results,
    "model": _model,
    "server": _server,
    "output": _output,
}


DEAR = ("server", "output")
"""Kinds that take longer, or need fewer cases; they come less often."""
