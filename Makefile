# Two commands do everything on a machine that has Python 3.11-3.14, pip and make:
#   make train    virtual environment, install, run the main job
#   make test     the same set-up, then the tests
# A GPU box takes the wheels pip finds; a CPU-only one may want
#   make train PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

# The first that runs and is new enough; a name on the path may be a shim with nothing behind it.
SUITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do $$p -c '$(SUITS)' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SITE := $(VENV)/.site
PIP_ARGS ?=
TRAIN ?= $(BIN)/quintain train
ARGS ?=
PYTEST ?= $(BIN)/python -m pytest
WORKERS ?= 2
MEMBERS := $(wildcard environments/*/pyproject.toml plugins/*/pyproject.toml)

.PHONY: help setup train test test-all test-ci lint format docs site bench registry clean

help:
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(READY): pyproject.toml requirements-dev.txt constraints.txt $(MEMBERS)
	@test -n "$(PYTHON)" || { echo "Quintain needs Python 3.11 to 3.14: make PYTHON=/path/to/python"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): about 2 GB, more with CUDA; a few minutes"
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -r requirements-dev.txt
	@touch $@

setup: $(READY)  ## virtual environment and editable install of the whole workspace

train: $(READY)  ## train the default model on arithmetic, from nothing, in minutes (ARGS="--seed 1")
	$(TRAIN) $(ARGS)

test: $(READY)  ## the tests, without the long ones (WORKERS=0: in one process)
	$(PYTEST) -n $(WORKERS) --dist loadfile -m "not slow and not ci" $(ARGS)

test-all: $(READY)  ## every test that needs no daemon
	$(PYTEST) -m "not ci" $(ARGS)

test-ci: $(READY) $(SITE)  ## tests that need a daemon, the network or more time
	$(PYTEST) -m ci $(ARGS)

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## apply the fixes and the format of ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## write the tables of docs/algorithms.md, run the snippets of README.md and docs/
	$(BIN)/python tools/algorithms.py
	$(PYTEST) tests/docs $(ARGS)

$(SITE): $(READY) pyproject.toml
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[site]'
	@touch $@

site: $(SITE)  ## the documentation as a site, in build/site
	$(BIN)/python -m mkdocs build --strict $(ARGS)

bench: $(READY)  ## every figure of docs/benchmarks.md (one command each in benchmarks/)
	$(BIN)/python -m benchmarks $(ARGS)

registry: $(READY)  ## write registry.toml, llms.txt, docs/recipes.md, docs/gallery.md, tables of docs/algorithms.md and docs/models.md
	$(BIN)/python tools/algorithms.py
	$(BIN)/python tools/registry.py
	$(BIN)/python tools/recipes.py
	$(BIN)/python tools/gallery.py
	$(BIN)/python tools/llms.py
	$(BIN)/python tools/models.py

clean:  ## caches, not runs
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
