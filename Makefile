# One .venv, made on first use from pyproject.toml; nothing else is needed but Python 3.10+, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PROTO := proto/hindmost_proto
# Tests and demo start mpirun and its kin by name, as a user does in an activated environment.
PATHS := PATH="$(CURDIR)/$(BIN):$$PATH"

# The demo's four ranks share whatever cores there are: let those that wait give way to those that work.
DEMO_MPI := OMPI_MCA_mpi_yield_when_idle=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
	OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
DEMO = $(PATHS) $(DEMO_MPI) hindmost run -- \
	mpirun --bind-to none -np 4 python examples/train_mpi.py

# What tests need of the machine: some measure real jobs, which then have it to themselves; others run JOBS at a time.
BARE := not torch and not gpu and not clickhouse
JOBS ?= 3
TIMED_TORCH = $(PATHS) $(BIN)/python -m pytest -m 'torch and not gpu and timed' tests/torch

# Tests start hundreds of processes, which need not compile all of hindmost each, whatever this shell says: empty is unset.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help

help: ## say what each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.python:
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo 'make: $(PYTHON) has no venv; apt-get install python3-venv, or name another: make PYTHON=...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.all: $(VENV)/.python pyproject.toml
	$(PIP) install -e '.[all]'
	@touch $@

$(VENV)/.dev: $(VENV)/.all
	$(PIP) install --upgrade 'pip>=25.1'
	$(PIP) install --group dev
	@touch $@

$(VENV)/.torch: $(VENV)/.dev
	$(PIP) install torch==2.13.0
	$(PIP) install --group torch-loops
	@touch $@

$(VENV)/.clickhouse: $(VENV)/.dev
	$(PIP) install --group clickhouse
	@touch $@

horovod: $(VENV)/.torch ## Horovod for test-torch; its wheel is built once, into .cache (needs g++ and cmake)
	tests/torch/build-horovod $(VENV) .cache/horovod

tensorflow: ## an environment with TensorFlow in .cache for the tests of Keras, where it can be had (1.3 GB)
	@tests/torch/fetch-tensorflow $(PYTHON) .cache/tensorflow || echo 'make: no TensorFlow: its tests are skipped' >&2

horovod-tensorflow: tensorflow $(VENV)/.dev ## Horovod for TensorFlow; its wheel is built once, into .cache (minutes)
	$(PATHS) tests/torch/build-horovod .cache/tensorflow .cache/horovod tensorflow

setup: $(VENV)/.all ## make .venv with hindmost and the demo's MPI in it

demo: $(VENV)/.all ## a real mpirun with one slow rank, and the verdict on it
	$(DEMO) --slow-rank 2 --slow-ms 4

demo-balanced: $(VENV)/.all ## the same job with no slow rank
	$(DEMO)

python-newer: $(VENV)/.dev ## a Python 3.14 in .cache for the tests of attach, where Debian's packages can be had
	@tests/unit/fetch-python3.14 $(VENV) .cache/python3.14 || echo 'make: no Python 3.14: its tests are skipped' >&2

mpich: $(VENV)/.dev ## Debian's MPICH in .cache for the tests of the MPI shim (Fortran's need gfortran)
	@tests/native/fetch-mpich $(VENV) .cache/mpich || echo 'make: no MPICH: the MPI shim is tested with Open MPI only' >&2

test: $(VENV)/.dev python-newer mpich ## every test that needs neither torch nor a GPU; JOBS=3 of them at a time
	$(PATHS) $(BIN)/python -m pytest -m '$(BARE) and not timed' -n $(JOBS) --dist loadfile --no-loadscope-reorder
	$(PATHS) $(BIN)/python -m pytest -m '$(BARE) and timed' tests/cluster tests/native

test-torch: $(VENV)/.torch ## the tests that need PyTorch (CPU)
	$(PATHS) $(BIN)/python -m pytest -m 'torch and not gpu and not timed' -n $(JOBS) --dist loadfile tests/torch
	$(TIMED_TORCH)

test-clickhouse: $(VENV)/.clickhouse ## the ClickHouse store against the real engine (chDB)
	$(PATHS) $(BIN)/python -m pytest -m clickhouse -n $(JOBS) tests/clickhouse

test-heavy: $(VENV)/.torch $(VENV)/.clickhouse ## both of these, sooner done than one after the other
	$(PATHS) $(BIN)/python -m pytest -m '(torch or clickhouse) and not gpu and not timed' -n $(JOBS) --dist loadfile \
		--no-loadscope-reorder tests/torch tests/clickhouse
	$(TIMED_TORCH)

$(VENV)/.wheel: $(VENV)/.dev
	$(PIP) install --group wheel
	@touch $@

# The wheels are built from the sdist, as a packager would.
wheel: $(VENV)/.wheel ## the sdist and manylinux wheels for x86_64 and aarch64, native parts prebuilt, in dist
	rm -rf dist
	$(BIN)/python -m build --no-isolation --sdist --outdir dist
	for machine in x86_64 aarch64; do \
		HATCH_BUILD_HOOK_ENABLE_CUSTOM=true HINDMOST_WHEEL_MACHINE=$$machine \
			$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist dist/hindmost-*.tar.gz || exit; \
	done
	@for wheel in dist/*.whl; do $(BIN)/auditwheel show "$$wheel" | grep consistent -A 1; done

lint: $(VENV)/.dev ## ruff, mypy --strict, spelling and the words of styles/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python -m words

proto: $(VENV)/.dev ## regenerate the code under proto/ from telemetry.proto
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto --grpc_python_out=proto $(PROTO)/telemetry.proto

dashboards: $(VENV)/.dev ## rebuild the Grafana JSON
	$(BIN)/python -m dashboards

reference: $(VENV)/.dev ## rewrite the generated pages of docs/reference
	$(BIN)/python -m docs.generate

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

.PHONY: help horovod tensorflow horovod-tensorflow setup demo demo-balanced python-newer mpich test test-clickhouse test-heavy test-torch wheel lint proto dashboards reference clean
