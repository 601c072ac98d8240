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
# Three for two cores: a test waits for a limit, a process or the disk in a quarter of its time.
WORKERS ?= 3
# Bytecode of the workspace. Where PYTHONDONTWRITEBYTECODE is set, each process of a test would compile it again.
COMPILE := $(BIN)/python -m compileall -q core/quintain $(wildcard environments/*/src plugins/*/src)
MEMBERS := $(wildcard environments/*/pyproject.toml plugins/*/pyproject.toml)

# `make test PART=rollouts` runs the tests of a room (a folder of core/quintain), a plugin, an environment, or of
# another folder under tests/. Names of plugins have hyphens, their folders underscores.
PART ?=
folders = $(sort $(notdir $(patsubst %/,%,$(dir $(wildcard $(1)/*/test_*.py)))))
ROOMS := $(call folders,tests/core)
PLUGINS := $(call folders,tests/plugins)
ENVIRONMENTS := $(call folders,tests/environments)
OTHERS := core docs environments integration plugins
define UNKNOWN
no part "$(1)". The parts are
  of core       $(ROOMS)
  plugins       $(subst _,-,$(PLUGINS))
  environments  $(subst _,-,$(ENVIRONMENTS))
  folders       $(OTHERS)
endef
path = $(or $(if $(filter $(1),$(ROOMS)),tests/core/$(1)),\
            $(if $(filter $(1),$(PLUGINS)),tests/plugins/$(1)),\
            $(if $(filter $(1),$(ENVIRONMENTS)),tests/environments/$(1)),\
            $(if $(filter $(1),$(OTHERS)),tests/$(1)),\
            $(error $(call UNKNOWN,$(1))))
PATHS := $(foreach part,$(subst -,_,$(PART)),$(call path,$(part)))

.PHONY: help setup train test test-slow test-all test-ci lint format docs site bench registry clean

help:
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(READY): pyproject.toml requirements-dev.txt constraints.txt $(MEMBERS)
	@test -n "$(PYTHON)" || { echo "Quintain needs Python 3.11 to 3.14: make PYTHON=/path/to/python"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): about 2 GB, more with CUDA; a few minutes"
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -r requirements-dev.txt
	@touch $@

setup: $(READY)  ## virtual environment and editable install of the whole workspace

train: $(READY)  ## train the default model on arithmetic, in a minute or two (ARGS="--seed 1" for another seed)
	$(TRAIN) $(ARGS)

test: $(READY)  ## the tests, without the long ones (PART=rollouts: of one room, plugin or environment; WORKERS=0: in one process)
	$(COMPILE)
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow and not ci" $(PATHS) $(ARGS)

test-slow: $(READY)  ## the long tests alone (PART as for test)
	$(COMPILE)
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "slow and not ci" $(PATHS) $(ARGS)

test-all: $(READY)  ## every test that needs no daemon
	$(COMPILE)
	$(PYTEST) -m "not ci" $(ARGS)

test-ci: $(READY) $(SITE)  ## tests that need a daemon, the network or more time
	$(PYTEST) -m ci $(ARGS)

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## apply the fixes and the format of ruff, wrap the pages
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/wrap_docs.py

docs: $(READY)  ## write the tables of docs/algorithms.md, run the snippets of README.md and docs/
	$(BIN)/python tools/algorithms.py
	$(PYTEST) tests/docs $(ARGS)

$(SITE): $(READY) pyproject.toml
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[site]'
	@touch $@

site: $(SITE)  ## the documentation as a site, in build/site
	$(BIN)/python -m mkdocs build --strict $(ARGS)

bench: $(READY)  ## every figure of docs/benchmarks.md (one command each in studies/benchmarks/)
	$(BIN)/python -m studies.benchmarks $(ARGS)

registry: $(READY)  ## write registry.toml and all lists of members, llms.txt, docs/recipes.md, docs/gallery.md, docs/decisions/README.md, tables of docs/algorithms.md and docs/models.md
	$(BIN)/python tools/algorithms.py
	$(BIN)/python tools/registry.py
	$(BIN)/python tools/recipes.py
	$(BIN)/python tools/gallery.py
	$(BIN)/python tools/decisions.py
	$(BIN)/python tools/llms.py
	$(BIN)/python tools/models.py

clean:  ## caches, not runs
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
