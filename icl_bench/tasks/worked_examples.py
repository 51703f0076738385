"""A file of handwritten demonstrations with thoughts before their answers: ``pool.file`` of a task file.

It is a file of rows, or a prompt in text, as BIG-Bench Hard's authors wrote theirs (Suzgun et al. 2022)::

    Evaluate the result of a random Boolean expression.

    Q: not True is
    A: Let's think step by step.
    not True = False. So the answer is False.

Each question and answer begins after an empty line; text before the first one is left out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from icl_bench.errors import UserError
from icl_bench.tasks.file_readers import kind_of, read_split
from icl_bench.tasks.splits import Split, StoredRow
from icl_bench.text_files import decode, read_file

MARK = "So the answer is "
"""The text between a thought and its answer."""

EXPECTED = 'expected examples of "Q: ", a line "A: " and an answer, with empty lines between'


def read_pool(path: Path, columns: Mapping[str, str], encoding: str | None = None, mark: str = MARK) -> Split:
    """Read the demonstrations of a file by its extension. Raises ``UserError``.

    An example of a text has the columns ``input``, ``target`` and ``rationale``, the thought from its beginning up to
    ``mark``; without that mark the whole answer is the target, and there is no rationale. A full stop that ends a
    target after a mark is left out.
    """
    if path.suffix.lower() != ".txt":
        if kind_of(path) is None:
            raise UserError(f"{path}: pool.file is a file of rows, or a prompt in text (.txt)")
        return read_split(path, "train", columns, encoding)
    raw = read_file(path)
    rows = list(_examples(decode(raw, str(path), encoding).replace("\r\n", "\n"), str(path), mark))
    if not rows:
        raise UserError(f"{path}: holds no example; {EXPECTED}")
    return Split("train", path.name, hashlib.sha256(raw).hexdigest(), rows)


def _examples(text: str, name: str, between: str) -> Iterator[StoredRow]:
    starts = [match.end() for match in re.finditer(r"(?:\A|\n\s*\n)Q: ", text)]
    ends = [match.start() for match in re.finditer(r"\n\s*\nQ: ", text)]
    for start in starts:
        example = text[start : min((end for end in ends if end >= start), default=len(text))]
        where = f"{name}:{text.count(chr(10), 0, start) + 1}"
        question, mark, answer = example.partition("\nA:")
        if not mark or not answer.strip() or not question.strip():
            raise UserError(f"{where}: {EXPECTED}")
        if "\nA:" in answer:
            raise UserError(f'{where}: this example has several lines that begin with "A:"; {EXPECTED}')
        rationale, mark, target = answer.strip().rpartition(between)
        cells = {"input": question, "target": target.removesuffix(".") if mark else target, "rationale": rationale}
        yield StoredRow(where, cells)
