"""What is kept away from other libraries, and what is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from icl_bench.quiet_libraries import spare_imports
spare_imports()
assert not {"sklearn", "scipy"} & sys.modules.keys(), "hidden for good"
from transformers import AutoModelForCausalLM
from transformers.models.llama import LlamaForCausalLM
print("sklearn" in sys.modules, "scipy.optimize" in sys.modules)
import scipy.special, sklearn.metrics
spare_imports()
assert sys.modules["scipy"] is scipy and sys.modules["sklearn"] is sklearn
"""


def test_decoders_are_imported_without_what_they_do_not_need_which_others_still_have():
    pytest.importorskip("sklearn")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "False"]
