PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt scripts/install.py

.PHONY: demo test test-all lint types check clean

demo: $(VENV)/.installed-hub       ## a hub and three nodes on this machine; a policy that learns
	$(BIN)/echo-hub demo $(ARGS)

test: $(VENV)/.installed-dev       ## every test that is not marked slow
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-all: $(VENV)/.installed-dev   ## every test
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

check: lint types test

$(VENV)/.installed-hub: $(INPUTS)
	$(PYTHON) scripts/install.py $(VENV) hub
	@touch $@

$(VENV)/.installed-dev: $(INPUTS)
	$(PYTHON) scripts/install.py $(VENV) dev
	@touch $@ $(VENV)/.installed-hub

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
