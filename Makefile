# The one command surface, for people and for CI. `make` alone prints the list.
.DEFAULT_GOAL := help
SHELL := /bin/bash
UV := $(shell command -v uv || echo "$(HOME)/.local/bin/uv")
RUN := $(UV) run --frozen --all-packages
PYTEST_WORKERS ?= 2

.PHONY: help setup run test lint fix generate

help: ## Show this list
	@awk 'BEGIN{FS=":.*## "} /^[a-z0-9-]+:.*## /{printf "  \033[36m%-10s\033[0m %s\n",$$1,$$2}' $(MAKEFILE_LIST)

setup: ## Install everything the lock names into .venv
	@command -v $(UV) >/dev/null || python3 -m pip install --quiet --user uv
	$(UV) sync --frozen --all-packages --all-groups

lint: ## Formatting, ruff, types, import contracts
	$(RUN) ruff format --check . && $(RUN) ruff check . && $(RUN) mypy && $(RUN) lint-imports

fix: ## Format and repair what can be repaired
	$(RUN) ruff check --fix . ; $(RUN) ruff format .

test: ## Unit, contract, tidy and stock-client tests
	$(RUN) pytest -n $(PYTEST_WORKERS)
