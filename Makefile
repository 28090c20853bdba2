# The two that matter: `make demo` and `make test`. They need python3 (3.11 or newer), pip and make.

PYTHON ?= python3
# A JAX release to use instead of the newest that this Python gets, for example JAX=0.11.2.
JAX ?=
VENV ?= .venv$(if $(JAX),-jax$(JAX))
# More arguments for pytest, for example ARGS="-k reshard".
ARGS ?=
WORKERS ?= 2

BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $(JAX:%=jax==%)
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)
SOURCES = $(wildcard shtypes tests examples benchmarks generate)
EVERY_MARK = -m ""

# Tests start Pythons, which read what the first one compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-core test-all check generate format docs bench upgrade clean FORCE
.DEFAULT_GOAL := help

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  PYTHON=python3.13   another Python       VENV=.venv313   another environment'
	@echo '  JAX=0.11.2          another JAX          ARGS="-k ..."   more for pytest'

demo: $(VENV)/.demo-stamp ## Install, and show a typed program with its communication
	@$(BIN)/shtypes demo

test: $(VENV)/.dev-stamp ## Run the tests
	$(PYTEST)

test-core: $(VENV)/.dev-stamp ## Run the core tests only
	$(PYTEST) -m core

test-all: $(VENV)/.all-stamp ## Run every test, the slow and the nightly ones too
	HYPOTHESIS_PROFILE=nightly $(PYTEST) --dist worksteal $(EVERY_MARK)

check: $(VENV)/.dev-stamp ## Check format, lint and types
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/mypy --config-file examples/mypy.ini examples shtypes/tools/demo
	$(BIN)/basedpyright tests/user_lines.py

generate: $(VENV)/.dev-stamp ## Write the stubs and the page of rules from the tables
	$(BIN)/python generate/stubs.py
	$(BIN)/python docs/generate_rules.py > docs/rules.new && mv docs/rules.new docs/rules.md

format: $(VENV)/.dev-stamp ## Format the code and mend what ruff can mend
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

docs: $(VENV)/.docs-stamp ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.dev-stamp ## Run the benchmarks
	@set -e; for script in $(filter-out benchmarks/compare.py,$(wildcard benchmarks/*.py)); do \
	  if [ -e "$$script" ]; then echo "== $$script"; $(BIN)/python "$$script"; else echo "there are no benchmarks yet"; fi; \
	done

upgrade: $(VENV)/.dev-stamp ## Take the newest JAX that the environment's Python gets
	$(PIP) --upgrade jax jaxlib

clean: ## Remove environments, caches and builds
	rm -rf .venv* build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up. A stamp is newer than what it was made from, so that a second call does nothing.

$(VENV)/.demo-stamp: $(VENV)/.identity pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev-stamp: $(VENV)/.identity pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.demo-stamp

$(VENV)/.all-stamp: $(VENV)/.dev-stamp
	$(PIP) --editable '.[dev,programs]'
	@touch $@

$(VENV)/.docs-stamp: $(VENV)/.identity pyproject.toml constraints.txt
	$(PIP) --editable '.[docs]'
	@touch $@

# The environment belongs to one place and one Python: a moved, broken or older one is made anew. The file changes only
# then. Without ensurepip (some distributions leave it out) the outer pip installs the inner one.
$(VENV)/.identity: FORCE
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'shtypes needs Python 3.11 or newer; `$(PYTHON)` is not. Try: make PYTHON=python3.11 ...' >&2; exit 1; }
	@wanted="$$PWD/$(VENV) $$($(PYTHON) --version)"; \
	if [ "$$(cat $@ 2>/dev/null)" != "$$wanted" ] || ! $(BIN)/python -c '' 2>/dev/null; then \
	  echo "making $(VENV) with $$($(PYTHON) --version)"; \
	  $(PYTHON) -m venv --clear $(VENV) >/dev/null || { \
	    $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; \
	  } && echo "$$wanted" >$@; \
	fi
