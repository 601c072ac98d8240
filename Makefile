# Two commands do everything on a machine that has Python 3.11-3.14, pip and make:
#   make train    virtual environment, install, run the main job
#   make test     the same set-up, then the tests
# A GPU box takes the wheels pip finds; a CPU-only one may want
#   make train PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

# The first that runs and is new enough; a name on the path may be a shim with nothing behind it.
SUITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do $$p -c '$(SUITS)' 2>/dev/null && echo $$p && break; done)
# A Python that you name is the one of the virtual environment: one of another version is made anew.
SAME = $(if $(filter command environment,$(origin PYTHON)),&& test "$$($(BIN)/python -V)" = "$$("$(PYTHON)" -V)")
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SITE := $(VENV)/.site
PIP_ARGS ?=
INSTALL = $(BIN)/python -m pip install --no-input --progress-bar off $(PIP_ARGS)
# What builds the members: installed once, and not into a build environment for each of them. A new virtual environment
# of Python 3.11 has a setuptools that builds no wheel by itself.
BUILD := editables hatchling "setuptools>=77.0.3"
TRAIN ?= $(BIN)/quintain train
ARGS ?=
PYTEST ?= $(BIN)/python -m pytest
# Three for two cores: a test waits for a limit, a process or the disk in a quarter of its time.
WORKERS ?= 3
# Bytecode of the workspace. Where PYTHONDONTWRITEBYTECODE is set, each process of a test would compile it again.
COMPILE := $(BIN)/python -m compileall -q core/quintain $(wildcard environments/*/src plugins/*/src)
MEMBERS := $(wildcard environments/*/pyproject.toml plugins/*/pyproject.toml)

# `make test PART=rollouts` runs the tests of a room (a folder of core/quintain), a plugin, an environment, or of
# another folder under tests/; PART=offline/sft or PART=sft those of a part of a plugin. Names of plugins have hyphens,
# their folders underscores.
PART ?=
FOLDERS := $(sort $(patsubst %/,%,$(dir $(wildcard $(addsuffix /test_*.py,$(addprefix tests/*/,* */* */*/*))))))
names = $(sort $(foreach folder,$(filter tests/$(1)/%,$(FOLDERS)),$(word 3,$(subst /, ,$(folder)))))
ROOMS := $(call names,core)
PLUGINS := $(call names,plugins)
ENVIRONMENTS := $(call names,environments)
OTHERS := core docs environments integration plugins
define UNKNOWN
no part "$(1)". The parts are
  of core       $(ROOMS)
  plugins       $(subst _,-,$(PLUGINS))
  environments  $(subst _,-,$(ENVIRONMENTS))
  folders       $(OTHERS)
endef
PARTS := $(addprefix tests/core/,$(ROOMS)) $(addprefix tests/plugins/,$(PLUGINS)) \
         $(addprefix tests/environments/,$(ENVIRONMENTS)) $(addprefix tests/,$(OTHERS)) $(FOLDERS)
path = $(or $(firstword $(filter %/$(1),$(PARTS))),$(error $(call UNKNOWN,$(1))))
PATHS := $(foreach part,$(subst -,_,$(PART)),$(call path,$(part)))

# A share of the tests, drawn by the commit: each commit has others.
DRAW ?=
SEED ?= $(shell git rev-parse HEAD)
DRAWN = $(if $(DRAW),--draw=$(DRAW) --draw-seed=$(SEED))

.PHONY: help setup train test test-more test-slow test-all test-ci lint format docs site bench registry clean

help:
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(READY): pyproject.toml requirements-dev.txt constraints.txt $(MEMBERS)
	@"$(PYTHON)" -c '$(SUITS)' 2> /dev/null || { \
	    echo "Quintain needs Python 3.11 to 3.14, and $(or $(PYTHON),nothing on the path) is not one of these: make PYTHON=/path/to/python"; exit 1; }
	@$(BIN)/python -c '$(SUITS)' 2> /dev/null $(SAME) || "$(PYTHON)" -m venv --clear $(VENV)
	@echo "Installing into $(VENV): about 2 GB, more with CUDA; a few minutes"
	$(INSTALL) $(BUILD)
	$(INSTALL) --no-build-isolation -c constraints.txt -r requirements-dev.txt
	@touch $@

setup: $(READY)  ## virtual environment and editable install of the whole workspace

train: $(READY)  ## train a language model to write JSON, in minutes (ARGS="--seed 1" for another seed, ARGS=arithmetic for a tiny model, without network)
	$(TRAIN) $(ARGS)

test: $(READY)  ## the tests, without the long ones (PART=rollouts: of one room, plugin or environment; WORKERS=0: in one process)
	$(COMPILE)
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not more and not slow and not ci" $(PATHS) $(ARGS)

test-more: $(READY)  ## further cases and longer proofs of the same (PART as for test; DRAW=0.25: of each four about one, by the commit or by SEED)
	$(COMPILE)
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "more and not slow and not ci" $(DRAWN) $(PATHS) $(ARGS)

test-slow: $(READY)  ## the long tests alone (PART as for test; DRAW=0.1: of each ten about one, by the commit or by SEED)
	$(COMPILE)
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "slow and not ci" $(DRAWN) $(PATHS) $(ARGS)

test-all: $(READY)  ## every test that needs no daemon
	$(COMPILE)
	QUINTAIN_EXAMPLES=1 $(PYTEST) -m "not ci" $(ARGS)

test-ci: $(READY) $(SITE)  ## tests that need a daemon, the network or more time (DRAW as for test-more: of their further cases)
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m ci --durations=30 $(DRAWN) $(ARGS)

lint: $(READY)  ## ruff, the rules of the layout, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/layout.py
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
