SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CHECKED := sandboxed_mcp tests images

# $(call timed,NAME,COMMAND): run the command, then print how long it took.
timed = start=$$(date +%s%N); $(2); \
	awk -v ns=$$(( $$(date +%s%N) - start )) 'BEGIN { printf "%-12s %7.2f s\n", "$(1)", ns / 1e9 }'

.PHONY: help venv engine images demo test check lint unit hostile engines bench format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(READY) ## the Python environment, in .venv

$(READY): pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	@quiet=$$([ -t 1 ] || echo --quiet); export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	"$(PYTHON)" -m venv .venv; \
	$(BIN)/python -m pip install $$quiet --upgrade 'pip>=25.1'; \
	$(BIN)/python -m pip install $$quiet --editable . --group dev
	@touch $@

engine: venv ## a running container engine; starts one (Debian, root) when none answers
	@PYTHON=$(BIN)/python bash images/engine.sh

images: engine ## the images that servers run in
	@$(BIN)/python -m sandboxed_mcp.engine.images

demo: ## from nothing to a sandboxed server: what it can do, and what it cannot
	@$(call timed,environment,$(MAKE) venv)
	@$(call timed,engine,$(MAKE) engine)
	@$(call timed,images,$(MAKE) images)
	@$(BIN)/python -m sandboxed_mcp.cli.demo

test: images ## all tests: unit, integration, hostile
	@$(BIN)/pytest -q tests/unit tests/integration tests/hostile

check: lint unit ## linters, types, import rules, unit tests; needs no engine

lint: venv
	@$(BIN)/ruff check --quiet $(CHECKED)
	@$(BIN)/ruff format --check --quiet $(CHECKED)
	@$(BIN)/pyright --warnings
	@said=$$($(BIN)/lint-imports 2>&1) || { echo "$$said"; exit 1; }

unit: venv
	@$(BIN)/pytest -q tests/unit

hostile: images ## servers that attack from inside, in real containers
	@$(BIN)/pytest -q tests/hostile

engines: images ## the same on Podman, and under gVisor; installs them with apt (Debian, root)
	@$(BIN)/pytest -q tests/engines

bench: images ## measure; writes build/bench.json
	@$(BIN)/python tests/bench/run.py

format: venv ## put the code into its one format
	@$(BIN)/ruff check --quiet --fix $(CHECKED) || true
	@$(BIN)/ruff format --quiet $(CHECKED)

clean: ## remove the environment, builds and caches; images stay
	@rm -rf .venv build dist .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
