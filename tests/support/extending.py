"""The package of examples in ``docs/extending.md``."""

from __future__ import annotations

import os
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
CODE = dict(re.findall(r"```python\n# (my_package/\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL))
(GROUPS,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)


def write_package(site: Path) -> Path:
    """Write the package into a folder of modules."""
    (site / "my_package").mkdir(parents=True)
    for name, code in CODE.items():
        (site / name).write_text(code, encoding="utf-8")
    return site / "my_package"


def path_with(site: Path) -> str:
    """The module path with one more folder in front."""
    return os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
