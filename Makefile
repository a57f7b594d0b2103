# make quickstart   install into .venv and train two tasks on this machine
# make test         install what the tests need, lint, run all tests
# make docs         regenerate docs/config.md and the tables in docs/runs.md and docs/algorithms.md
# make acceptance   run long trainings and benchmarks and write their figures to docs/results
# make acceptance-hub, acceptance-ray, ...   write one page of docs/results; tests/acceptance/run.py lists the parts
# Variables: PYTHON (python3), VENV (.venv), TORCH_INDEX (a package index with CPU builds of torch).

VENV ?= .venv
BIN := $(VENV)/bin
export VENV PYTHON TORCH_INDEX
# The processes of a run, and tests, share few cores: give numeric libraries one thread each.
export OMP_NUM_THREADS ?= 1

.PHONY: quickstart install install-dev test lint fast slow docs acceptance clean

quickstart: install
	$(BIN)/rollart-hpc run quickstart

install:
	@.ci/install

install-dev:
	@.ci/install dev

test: install-dev lint fast slow

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fast: install-dev
	$(BIN)/python .ci/tests -n 3 --dist loadfile --no-loadscope-reorder --durations 10 -m "not slow"

slow: install-dev
	$(BIN)/python .ci/tests -n 3 --dist loadfile --no-loadscope-reorder --durations 25 -m slow

docs: install
	$(BIN)/python .ci/docs

acceptance: install-dev
	$(BIN)/python tests/acceptance/run.py

acceptance-%: install-dev
	$(BIN)/python tests/acceptance/run.py $*

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
