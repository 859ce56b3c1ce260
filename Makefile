# Needs Python 3.11 or newer and make; every target installs the package into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: help setup test test-all mutants lint reproduce ledger notebooks docs bench clean

help:
	@echo "make reproduce   draw a figure of each paper into figures/ (ARGS=all for all of them)"
	@echo "make ledger      write the verdict on every published claim from the figures"
	@echo "make notebooks   run the notebooks and save their outputs (ARGS='tour' for one)"
	@echo "make test        run the fast tests (ARGS='-k mma' for some)"
	@echo "make test-all    run all tests"
	@echo "make mutants     plant 200 faults, one at a time, and count those that tests catch (ARGS='hand-*' for some)"
	@echo "make lint        ruff, mypy, clang-format, and numpydoc on public docstrings"
	@echo "make docs        build the documentation into docs/_build/html"
	@echo "make bench       speed and memory of the emulation on this machine"
	@echo "make setup       install the package and all requirements of these targets into .venv"
	@echo "make clean       remove .venv, builds and caches, but no figures or results"

setup: $(STAMP)

# The stamp is written last, so that an interrupted installation starts again. -qq: errors only, no lines about indexes.
$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found: install Python 3.11 or newer, or use make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old: fpemu needs Python 3.11 or newer (make PYTHON=/path/to/python3)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) has no venv: on Debian and Ubuntu install python3-venv" >&2; exit 1; }
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@echo "make: installing fpemu into $(VENV)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

# One thread of BLAS each: the workers use all cores.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

test: $(STAMP)
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(STAMP)
	$(PYTEST) $(ARGS)

# two hours on two cores; a later run skips the mutants whose code and tests have not changed
mutants: $(STAMP)
	$(BIN)/python tests/mutants/run.py $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(wildcard fpemu/gpu/kernels/*.cu* tests/*_on_cpu.h)
	$(BIN)/python -m pytest -q tests/project/test_docstrings.py

reproduce: $(STAMP)
	$(BIN)/fpemu reproduce $(ARGS)

ledger: $(STAMP)
	$(BIN)/fpemu ledger $(ARGS)

notebooks: $(STAMP)
	$(BIN)/python notebooks/build.py $(ARGS)

docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

bench: $(STAMP)
	$(BIN)/fpemu bench cpu $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
