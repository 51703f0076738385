"""How many of lm-evaluation-harness' own tasks can be said in task files of ours, and why not all.

    python benchmarks/lm_eval_tree.py [FOLDER]

``FOLDER`` is its tree of tasks: by default that of the environment of ``make test-lm-eval``. Prints
a table in Markdown: each reason with the tasks that it keeps out, and those that it alone does.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from pydantic import ValidationError

from icl_bench.errors import UserError
from icl_bench.tasks.lm_eval import converted
from icl_bench.tasks.lm_eval_files import is_group, with_includes
from icl_bench.tasks.spec import TaskSpec

TREE = "lib/python3*/site-packages/lm_eval/tasks"
SHOWN = 12


def reasons(path: Path) -> list[str] | None:
    """Why a task cannot be said, in short; none where it can, None where the file is no task."""
    try:
        if is_group(with_includes(path)):
            return None
        TaskSpec.model_validate(converted(path))
    except ValidationError:
        return ["what it says makes no task"]
    except UserError as error:
        said = str(error).partition(". Python code")[0]
        if "not one task" in said:
            return None
        if "is a task written in Python" in said:
            return ["class (a task written in Python)"]
        if "icl-bench: " not in said:
            return ["a file that is refused as YAML"]
        listed = said.split("icl-bench: ", 1)[1].split("; ")
        return [_short(reason) for reason in listed]
    return []


def _short(reason: str) -> str:
    if "a Python function" in reason:
        return f"{reason.split(' ')[0]}: a Python function"
    return re.sub(r" \((?!empty|rows|scores|a beginning|answers|with).*", "", re.sub(r", [\w.]+\)$", ")", reason))


def main() -> None:
    """See above."""
    environment = Path(__file__).parents[1] / ".venv-lm-eval"
    found = [Path(sys.argv[1])] if sys.argv[1:] else sorted(environment.glob(TREE))
    if not found:
        raise SystemExit("give the folder of the tasks, or run make test-lm-eval first")
    by_task = [why for path in sorted(found[0].rglob("*.yaml")) if (why := reasons(path)) is not None]
    said = sum(not why for why in by_task)
    functions = sum(any("function" in one or "by a" in one or "Python" in one for one in why) for why in by_task)
    print(
        f"{said:,} of {len(by_task):,} tasks can be said ({said / len(by_task):.1%}); "
        f"{functions:,} of the others need Python functions, "
        f"without which it is {said / (len(by_task) - functions):.1%}\n"
    )
    every = Counter(one for why in by_task for one in set(why))
    alone = Counter(why[0] for why in by_task if len(set(why)) == 1)
    print("| reason | tasks | alone |\n|---|---:|---:|")
    for reason, count in every.most_common(SHOWN):
        print(f"| {reason} | {count:,} | {alone[reason]:,} |")
    rest = [count for _, count in every.most_common()[SHOWN:]]
    print(f"| {len(rest)} others, each | at most {max(rest, default=0):,} | |")


if __name__ == "__main__":
    main()
