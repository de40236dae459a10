# One .venv, made on first use from pyproject.toml; nothing else is needed but Python 3.10+, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTO := proto/hindmost_proto

.DEFAULT_GOAL := help

help: ## say what each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.all: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[all]'
	@touch $@

$(VENV)/.dev: $(VENV)/.all
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --disable-pip-version-check --group dev
	@touch $@

$(VENV)/.torch: $(VENV)/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	@touch $@

setup: $(VENV)/.all ## make .venv with hindmost and the demo's MPI in it

demo: $(VENV)/.all ## a real mpirun with one slow rank, and the verdict on it
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/hindmost run -- $(BIN)/mpirun -np 4 $(BIN)/python examples/train_mpi.py --slow-rank 2 --slow-ms 4

test: $(VENV)/.dev ## every test that needs neither torch nor a GPU
	$(BIN)/python -m pytest -m 'not torch and not gpu'

test-torch: $(VENV)/.torch ## the tests that need PyTorch (CPU)
	$(BIN)/python -m pytest -m 'torch and not gpu'

lint: $(VENV)/.dev ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

proto: $(VENV)/.dev ## regenerate the code under proto/ from telemetry.proto
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto --grpc_python_out=proto $(PROTO)/telemetry.proto

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

.PHONY: help setup demo test test-torch lint proto clean
