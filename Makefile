# `make demo` trains and shows; `make test` runs all tests; `make quick` the ones that take under two minutes.
# Everything lives in .venv; PYTHON picks the interpreter.

PYTHON ?= python3
BIN := .venv/bin
# Which torch to install; a build of your choice (CPU only, another accelerator) put into .venv beforehand is kept.
TORCH ?= torch==2.13.0

# Two test files at a time: enough for 2 cores, since many tests start processes of their own.
PARALLEL ?= -n 2 --dist loadfile

DEMO := runs/demo
DEMO_OPTIONS := --size 1m --replicas 4 --steps 1000 --batch-tokens 1024 --inner.lr 3e-3 --runs $(DEMO)

.PHONY: demo test quick lint install clean

demo: .venv/installed
	rm -rf $(DEMO)
	$(BIN)/diloco train --method dp $(DEMO_OPTIONS) --name data-parallel
	$(BIN)/diloco train --method diloco $(DEMO_OPTIONS) --sync-every 10 --name diloco-4-replicas
	$(BIN)/diloco compare $(DEMO)/data-parallel $(DEMO)/diloco-4-replicas --out $(DEMO)/compare.html

test: .venv/developer
	$(BIN)/ruff check . && $(BIN)/ruff format --check -q .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL)

quick: .venv/developer
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL) -m "not slow"

lint: .venv/developer
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

install: .venv/installed

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade pip

.venv/torch: .venv/bin/python
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install -q "$(TORCH)"
	touch $@

.venv/installed: .venv/torch pyproject.toml
	$(BIN)/python -m pip install -q -e .
	touch $@

.venv/developer: .venv/installed
	$(BIN)/python -m pip install -q -e ".[dev,hf,data]"
	touch $@

clean:
	rm -rf .venv build dist src/*.egg-info
