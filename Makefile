PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.dev
# uv installs in seconds what takes pip minutes; pip does it where uv is not to be had, or reaches no index.
# No byte code is made: of twelve thousand files tests load six, each at its first use.
UV = $(firstword $(shell command -v uv 2>/dev/null) $(BIN)/uv)
PIP = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
install = if [ -x $(UV) ] && $(UV) pip install --quiet --python $(BIN)/python $(1); then true; else $(PIP) $(1); fi

# One thread a process: the matrices are small, and the cores are shared by processes.
export OMP_NUM_THREADS ?= 1
# Byte code is kept: every worker process would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo demo-ray demo-local demo-federated demo-outsourced demo-distributed
.PHONY: test tests test-fast test-soak hosts test-hosts test-torch docs package coverage profile lint lint-style lint-types lint-architecture lint-house format bench clean

setup: $(STAMP)  ## all that tests and tools need

# One file for each extra that is installed; a demo needs little, and tests need all.
$(VENV)/.%: pyproject.toml
	@echo "Installing what $* needs into $(VENV)."
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv $(VENV)
	@[ -x $(UV) ] || $(PIP) uv || true
	@$(call install,--editable '.[$*]')
	@touch $@

$(VENV)/.ray $(VENV)/.federation $(VENV)/.dev: $(VENV)/.demo

demo: $(VENV)/.demo  ## tune a model privately and write a report
	$(BIN)/python -m examples.demo

demo-ray: $(VENV)/.ray  ## the same on Ray Tune, with parallel trials
	$(BIN)/python -m examples.demo_ray

demo-local: $(VENV)/.demo  ## 900 users, one privatised answer each
	$(BIN)/python -m examples.demo_local

demo-federated: $(VENV)/.federation  ## 20 clinics tune together, each on its own data
	$(BIN)/python -m examples.demo_federated

demo-outsourced: $(VENV)/.demo  ## a curator and a modeler, two processes that share three files
	$(BIN)/python -m examples.demo_outsourced

demo-distributed: $(VENV)/.demo  ## eight workers tune one model and send few numbers
	$(BIN)/python -m examples.demo_distributed

test: $(STAMP)  ## every check: style, types, architecture, tests
	$(MAKE) -j 2 lint tests

# Collecting compiles once what tests import; workers that begin together would do it each.
tests: $(STAMP)
	$(BIN)/python -m pytest -q --collect-only >/dev/null || true
	$(BIN)/python -m pytest -n 4

test-fast: $(STAMP)  ## the tests without the slow ones
	$(BIN)/python -m pytest -n 3 -m "not slow and not soak"

test-soak: $(STAMP)  ## what runs long: statistics at full size, and mutants that tests must catch
	$(BIN)/python -m pytest -n 3 -m "soak or hypothesis"
	$(BIN)/python -m tests.mutants --jobs 2
	$(call install,--editable '.[mutants]')
	$(BIN)/python -m tests.mutants.generic

hosts: $(STAMP)  ## the environments of test-hosts
	$(BIN)/python -m tests.versions --folder $(VENV)-hosts --only-install

test-hosts: $(STAMP)  ## the adapters with the least versions allowed, and with newer ones than here
	$(BIN)/python -m tests.versions --folder $(VENV)-hosts

# Plain torch may bring several GB of CUDA; `make test-torch TORCH=torch==2.13.0` names a version or a build.
TORCH ?= torch
TORCH_BIN = $(VENV)-torch/bin
TORCH_TOOLS = lightgbm xgboost-cpu pandas pytest pytest-xdist pytest-timeout hypothesis

$(VENV)-torch/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-torch
	$(TORCH_BIN)/python -m pip install --quiet --no-compile --editable '.[optuna,ray,sklearn,viz,torch]' '$(TORCH)' $(TORCH_TOOLS)
	touch $@

test-torch: $(VENV)-torch/.installed  ## what other environments skip for lack of torch or boosters: tensors, loaders, examples, a page
	$(TORCH_BIN)/python -m pytest -n 2 -k "torch or xgboost or lightgbm or gp-m" tests/engine/test_torch.py tests/examples/test_examples.py tests/optuna_samplers/test_ldp_lifecycle.py tests/test_pages.py

docs: $(STAMP)  ## the documentation as a site; open build/docs/index.html
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

package: $(STAMP)  ## wheel and sdist, each extra in an empty environment of each Python that there is
	$(BIN)/python -m tests.packages --write

profile: $(STAMP)  ## what the suite costs, by file; kept in benchmarks/results
	PROFILE_TO=benchmarks/results/test_suite.json $(BIN)/python -m pytest -n 3 -q -p tests.profiling

coverage: $(STAMP)  ## branch coverage of the four packages
	$(BIN)/python -m pytest -n 3 -q --cov --cov-report=term:skip-covered

lint: lint-style lint-types lint-architecture lint-house

lint-style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types: $(STAMP)
	$(BIN)/mypy

lint-architecture: $(STAMP)
	$(BIN)/lint-imports

lint-house: $(STAMP)  ## how much there is to read, and in what words: counts may not rise unexplained
	$(BIN)/python -m tests.house

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## quality and cost benchmarks, results in benchmarks/results
	$(BIN)/python -m benchmarks.imports --write
	$(BIN)/python -m benchmarks.quality
	$(BIN)/python -m benchmarks.any_sampler
	$(BIN)/python -m benchmarks.cost
	$(BIN)/python -m benchmarks.ray_overhead --write
	$(BIN)/python -m benchmarks.scale --write
	$(BIN)/python -m benchmarks.local_rewards
	$(BIN)/python -m benchmarks.federated
	$(BIN)/python -m benchmarks.outsourced
	$(BIN)/python -m benchmarks.distributed
	$(BIN)/python -m benchmarks.applications --write

clean:
	rm -rf $(VENV) $(VENV)-hosts $(VENV)-torch .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
