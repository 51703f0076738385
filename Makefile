# Two commands on a fresh machine: make demo, make test.
# Needs Python 3.11 or later (with venv), pip, make and gcc; everything else goes into .venv.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint check clean

demo: $(READY)
	$(BIN)/icl-bench run --task stdlib --model gemma3-270m --k 1,10,100 --draws 3 --results results/demo
	@echo
	@echo "Next: icl-bench show --task stdlib --k 10 --results results/demo   (one prediction and its prompt)"
	@echo "      icl-bench run --help                                         (your own task and model)"
	@echo "The program is $(BIN)/icl-bench; '. $(BIN)/activate' puts it on the path."

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

# torch goes first: asked for by another package, its largest build would come.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "icl-bench needs Python 3.11 or later")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes, once)"
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt "$(TORCH)"
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
