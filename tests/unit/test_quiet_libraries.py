"""What is kept away from other libraries, and what is not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.models import tiny_checkpoint

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


LATE = """
import sys
from icl_bench.analysis.statistics.special import ndtr
print("numpy.f2py.crackfortran" in sys.modules, ndtr(0.0))
import numpy
print(callable(numpy.f2py.get_include), "numpy.f2py.crackfortran" in sys.modules)
"""


def test_what_numpy_has_for_fortran_is_loaded_when_it_is_used_not_with_the_distributions():
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "0.5", "True", "True"]


WAITS = """
import os, sys
from icl_bench.quiet_libraries import hush_libraries
assert "torch" not in sys.modules
hush_libraries()
print(os.environ.get("GOMP_SPINCOUNT"), os.environ.get("OMP_WAIT_POLICY"))
"""


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, ["5000", "None"]),
        ({"GOMP_SPINCOUNT": "7"}, ["7", "None"]),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ["None", "ACTIVE"]),
    ],
)
def test_threads_wait_briefly_for_each_other_unless_the_user_says_otherwise(own, expected):
    clean = {name: value for name, value in os.environ.items() if name not in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}}
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, env=clean | own)
    assert done.stdout.split() == expected, done.stderr


FIRST = """
import os, sys
from icl_bench.cli import main

class Torch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("checks:", os.environ.get("GOMP_SPINCOUNT"), flush=True)
            os._exit(0)  # that a run goes on from here is tested elsewhere

sys.meta_path.insert(0, Torch())
main(sys.argv[1:])
"""


def test_how_long_threads_wait_is_said_before_a_command_imports_pytorch(tmp_path):
    tiny_checkpoint(tmp_path / "model")
    clean = {name: value for name, value in os.environ.items() if name not in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}}
    words = ["run", "--task", "stdlib_six", "--model", tmp_path / "model", "--k", "1", "--draws", "1"]
    words += ["--test-size", "2", "--quiet", "--results", tmp_path / "results"]
    done = subprocess.run([sys.executable, "-c", FIRST, *words], capture_output=True, text=True, env=clean)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "checks: 5000"
