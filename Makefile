# sandbox-restore: every command a developer or a curious user needs. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=
PROCESSES ?= 2
PAIRS ?= 5000
SEED ?= 1
STEPS ?= 10000

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Get it running

.PHONY: demo
demo: $(STAMP) testbed ## The story in the terminal: restores on a mixed-CPU fleet, gate off and on
	@$(BIN)/python -m tests.support.demo

.PHONY: playground
playground: testbed ## Servers and simulated nodes to try the operator on: docs/start.md
	@$(BIN)/python -m tests.support.playground start

.PHONY: playground-stop
playground-stop: $(STAMP) ## End what `make playground` left running
	@$(BIN)/python -m tests.support.playground stop

.PHONY: test
test: $(STAMP) testbed promtool helm ## Every test: unit, Postgres, the real control plane
	@$(BIN)/python -m pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)

.PHONY: differential
differential: $(STAMP) testbed ## PAIRS=100000: our matching rules against kube-scheduler's own plugins
	@$(BIN)/python -m tests.differential --pairs $(PAIRS) --seed $(SEED)

.PHONY: machine
machine: $(STAMP) ## STEPS=10000 SEED=1: the restore protocol's state machine, for as long as you like
	@$(BIN)/python -m tests.machine --steps $(STEPS) --seed $(SEED)

.PHONY: unit
unit: $(STAMP) ## The tests that need no server, in seconds
	@$(BIN)/python -m pytest tests/unit $(PYTEST_ARGS)

.PHONY: check
check: $(STAMP) ## Format, lint, types, layers, drift of generated files
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m sandbox_restore.model.crd --check
	@$(BIN)/python -m sandbox_restore.cli.settings_doc --check
	@$(BIN)/python -m sandbox_restore.cli.chart_files --check
	@$(BIN)/python -m sandbox_restore.agent.deviceplugin.generate --check

.PHONY: format
format: $(STAMP) ## Format and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

##@ The test bed

.PHONY: testbed
testbed: $(STAMP) ## Build the control plane once (etcd, kube-apiserver, …) into a per-user cache
	@$(BIN)/python -m tests.support.testbed build > /dev/null

.PHONY: promtool
promtool: $(STAMP) ## Build promtool once, with which the alerts are tested
	@$(BIN)/python -m tests.support.promtool > /dev/null

.PHONY: helm
helm: $(STAMP) ## Build helm once into the same cache, for the chart's tests
	@$(BIN)/python -m tests.support.testbed helm > /dev/null

.PHONY: nodes
nodes: testbed ## Build kubelet and containerd once, for tests on real nodes (Linux, root)
	@$(BIN)/python -m tests.support.realnode

.PHONY: cluster
cluster: testbed ## Leave a control plane running and print its KUBECONFIG
	@$(BIN)/python -m tests.support.testbed start

.PHONY: cluster-stop
cluster-stop: $(STAMP) ## End the control plane that `make cluster` left running
	@$(BIN)/python -m tests.support.testbed stop

##@ Generated files

.PHONY: generate
generate: $(STAMP) ## Write the CRD, docs/configuration.md, the chart's files and the protocol's messages anew
	@$(BIN)/python -m sandbox_restore.model.crd
	@$(BIN)/python -m sandbox_restore.cli.settings_doc
	@$(BIN)/python -m sandbox_restore.cli.chart_files
	@$(BIN)/python -m sandbox_restore.agent.deviceplugin.generate

.PHONY: lock
lock: $(STAMP) ## Resolve the dependencies anew into requirements/*.lock (hashes, no index)
	@$(BIN)/uv pip compile pyproject.toml --group dev $(LOCK_ARGS) -o requirements/dev.lock
	@$(BIN)/uv pip compile pyproject.toml $(LOCK_ARGS) -c requirements/dev.lock -o requirements/runtime.lock

LOCK_ARGS := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header

##@ The site

.PHONY: docs
docs: $(STAMP) ## Build the documentation site into site/; a broken link is an error
	@# Not --quiet: what is not shown is not counted by --strict.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

##@ Set-up

.PHONY: install
install: $(STAMP) ## The virtual environment .venv with the locked dependencies

$(STAMP): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12 …" >&2; exit 2; }
	@echo "installing the locked dependencies into $(VENV) (about a minute, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: clean
clean: ## Remove what was made here (the test bed's programs stay in the user's cache)
	@rm -rf $(VENV) dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
