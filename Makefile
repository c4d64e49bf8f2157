PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
UNIT   := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/unit
# many processes each, that mostly wait for one another: a file at a time on each core
REST   := $(BIN)/python -m pytest -n 2 --dist loadfile tests --ignore tests/unit --ignore tests/netlab \
    --ignore tests/browser
# measure rates, or share one hub and one browser: nothing beside them
LAB    := $(BIN)/python -m pytest tests/netlab tests/browser
INPUTS := pyproject.toml constraints.txt scripts/install.py

.PHONY: demo test test-all test-vllm test-mlx lint types check clean

demo: $(VENV)/.installed-hub       ## a hub and three nodes on this machine; a policy that learns
	$(BIN)/echo-hub demo $(ARGS)

test: $(VENV)/.installed-dev       ## every test that is not marked slow
	$(UNIT) -m "not slow" $(ARGS)
	$(REST) -m "not slow" $(ARGS)
	$(LAB) -m "not slow" $(ARGS)

test-all: $(VENV)/.installed-dev   ## every test
	$(UNIT) $(ARGS)
	$(REST) $(ARGS)
	$(LAB) $(ARGS)

test-vllm test-mlx: test-%:        ## one engine, in an environment of its own
	$(PYTHON) scripts/test_engine.py $* $(ARGS)

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
	rm -rf $(VENV) .venv-vllm .venv-mlx .pytest_cache .mypy_cache .ruff_cache .hypothesis
