# One .venv, made on first use from pyproject.toml; nothing else is needed but Python 3.10+, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check # errors only
PROTO := proto/hindmost_proto
# Tests and demo start mpirun and its kin by name, as a user does in an activated environment.
PATHS := PATH="$(CURDIR)/$(BIN):$$PATH"

# The demo's four ranks share whatever cores there are: let those that wait give way to those that work.
DEMO_MPI := OMPI_MCA_mpi_yield_when_idle=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
	OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
DEMO = $(DEMO_MPI) $(BIN)/hindmost run -- \
	$(BIN)/mpirun --bind-to none -np 4 $(BIN)/python examples/train_mpi.py

# Many tests wait for processes: JOBS of them run at a time, and where there are more cores more may.
JOBS ?= 4
PYTEST = $(PATHS) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
BARE := not torch and not clickhouse and not kubernetes and not slurm and not wheel and not torture and not cluster and not browser
HIDDEN := .cache/hidden

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

# What .all has, too, in one run of pip, which looks up and checks all packages each time.
$(VENV)/.dev: $(VENV)/.python pyproject.toml
	$(PIP) install --upgrade 'pip>=25.1'
	$(PIP) install -e '.[all]' --group dev
	@touch $(VENV)/.all $@

$(VENV)/.torch: $(VENV)/.dev
	$(PIP) install torch==2.13.0
	$(PIP) install --group torch-loops
	@touch $@

$(VENV)/.clickhouse: $(VENV)/.dev
	$(PIP) install --group clickhouse
	@touch $@

$(VENV)/.kubernetes: $(VENV)/.dev
	$(PIP) install --group kubernetes
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
	@tests/probe/fetch-python3.14 $(VENV) .cache/python3.14 || echo 'make: no Python 3.14: its tests are skipped' >&2

mpich: $(VENV)/.dev ## Debian's MPICH in .cache for the tests of the MPI shim (Fortran's need gfortran)
	@tests/native/fetch-mpich $(VENV) .cache/mpich || echo 'make: no MPICH: the MPI shim is tested with Open MPI only' >&2

api-server: ## etcd and an API server of Kubernetes in .cache, built once from Debian's source (ten minutes)
	@tests/kubernetes/build-apiserver .cache/kubernetes || echo 'make: no API server: its tests are skipped' >&2

test: $(VENV)/.dev ## all tests but those of test-all's suites; JOBS=4 of them at a time
	@$(BIN)/python -m compileall -q -j $(JOBS) agent bench collector proto # else each worker compiles all of it
	$(PYTEST) -m '$(BARE)' --ignore tests/native

test-deps: ## install the programs that tests use where they are (Debian, Ubuntu)
	@$(PYTHON) tests/programs.py

test-without: $(VENV)/.dev ## the tests that use optional programs, where there are none of these
	rm -rf $(HIDDEN) && $(PYTHON) tests/programs.py hide $(HIDDEN)/bin
	env -i HOME=$(CURDIR)/$(HIDDEN) PATH=$(CURDIR)/$(BIN):$(CURDIR)/$(HIDDEN)/bin \
		$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m '$(BARE)' --optional-programs

test-all: test ## all tests: the suites of .ci/tiers, too, whose hashes are renewed
	$(PYTHON) tests/tiers.py all

test-torch: $(VENV)/.torch ## PyTorch on the CPU, and what builds on it
	$(PYTEST) -m torch tests/torch --deselect tests/torch/test_horovod_probe.py --deselect tests/torch/test_tensorflow.py

test-horovod: horovod horovod-tensorflow ## Horovod with PyTorch and TensorFlow, built from source, and Keras
	$(PYTEST) tests/torch/test_horovod_probe.py tests/torch/test_tensorflow.py

test-clickhouse: $(VENV)/.clickhouse ## the ClickHouse store against the real engine (chDB)
	$(PYTEST) tests/clickhouse

test-kubernetes: $(VENV)/.kubernetes api-server ## the Helm chart and kustomize with their own engines, and a real API server
	$(PYTEST) tests/kubernetes

test-slurm: $(VENV)/.torch ## jobs of a real Slurm of three virtual nodes with accounting, as root
	$(PYTEST) -m slurm tests/cluster

test-cluster: $(VENV)/.dev ## jobs of mpirun and srun that end, stop, fill disks and have several hosts
	$(PYTEST) -m cluster tests/cluster tests/dashboards tests/security

test-browser: $(VENV)/.dev ## the live page in Chromium
	$(PYTEST) -m browser tests/browser

test-torture: $(VENV)/.dev ## delivery, the store and readers, killed, cut off, filled up and fed garbage
	$(PYTEST) -m torture tests/cluster tests/collector

test-fuzz: $(VENV)/.dev ## readers of foreign bytes, with inputs that atheris chooses, where it can be had
	$(PIP) install --group fuzz || echo 'make: no atheris: nothing is fuzzed by coverage' >&2
	$(BIN)/python -m tests.security.guided

test-native: $(VENV)/.dev ## the shim, plugins and hooks in C, with Open MPI
	$(PYTEST) tests/native

test-mpich: mpich ## the MPI shim with Debian's MPICH, and in Fortran
	HINDMOST_TEST_MPI=$(CURDIR)/.cache/mpich/bin $(PYTEST) tests/native -k mpich

test-python3.14: python-newer ## attach and hooks in a Python 3.14
	$(PYTEST) tests/cli/test_attach_live.py tests/probe/test_interpreters.py tests/probe/test_python_abi.py

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

test-wheel: wheel mpich ## the wheels, on Pythons without a compiler
	$(PATHS) $(BIN)/python -m pytest tests/wheel

# The wheel's smoke test on every Python that is found, the suite on the oldest and the newest. Grafana's SDK needs 3.11.
test-pythons: wheel python-newer ## Python 3.10 to 3.14
	HINDMOST_TEST_PYTHONS='3.10 3.11 3.12 3.13 3.14' $(PATHS) $(BIN)/python -m pytest tests/wheel -k 'same or used_prebuilt'
	for version in 3.10 3.14; do tests/wheel/environment highest $$version .cache/python-$$version $(BIN)/uv && \
		PATH="$(CURDIR)/.cache/python-$$version/bin:$$PATH" python -m pytest -n $(JOBS) --dist loadfile -m '$(BARE)' \
		--ignore tests/dashboards/test_files.py || exit; done

test-lowest: $(VENV)/.wheel ## agent, collector and report with the lowest versions that pyproject.toml allows
	tests/wheel/environment lowest-direct 3.10 .cache/lowest $(BIN)/uv
	PATH="$(CURDIR)/.cache/lowest/bin:$$PATH" python -m pytest -n $(JOBS) --dist loadfile -m '$(BARE)' \
		tests/agent tests/collector

lint: $(VENV)/.dev ## ruff, mypy --strict, spelling and the words of styles/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python -m style_check

proto: $(VENV)/.dev ## regenerate the code under proto/ from telemetry.proto
	$(BIN)/protoc -Iproto --python_out=proto --pyi_out=proto $(PROTO)/telemetry.proto

dashboards: $(VENV)/.dev ## rebuild the Grafana boards, recording rules and alerts
	$(BIN)/python -m dashboards

reference: $(VENV)/.dev ## rewrite the generated pages of docs/reference
	$(BIN)/python -m docs.generate

figures: $(VENV)/.dev ## measure the figures of README and performance.md again (five minutes on an idle machine)
	$(PATHS) $(DEMO_MPI) $(BIN)/python -m bench.figures

picture: $(VENV)/.all ## photograph the pages of recordings, for README and docs (needs chromium)
	$(PATHS) $(BIN)/python -m docs.generate.picture

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

.PHONY: help horovod tensorflow horovod-tensorflow setup demo demo-balanced python-newer mpich test test-deps test-without \
	test-all test-torch test-horovod test-clickhouse api-server test-kubernetes test-cluster test-browser test-torture test-fuzz test-native test-mpich test-python3.14 wheel test-wheel test-pythons test-lowest lint proto dashboards reference figures \
	picture clean
