# Plain venv and pip. Every target installs what it needs, once; it installs again when the pins change.
PYTHON ?= python3
VENV ?= .venv
# The PyTorch to install, as arguments of pip: another build for a GPU, another index.
TORCH ?= $(shell grep '^torch==' constraints.txt)
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# The pins without torch, so that a torch chosen by TORCH stays.
PINS := $(VENV)/constraints.txt

.DEFAULT_GOAL := help
# A hundred processes of the tests import labrl: all but the first find it compiled.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help run test test-all bench learn results exact records mutants reference docs format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'
	@echo '  variables: ARGS="arguments of the command", PYTHON=python3.11, TORCH="torch==<version and build>"'

run: $(VENV)/.installed-run ## set up, then run `labrl $(ARGS)`: make run ARGS="meta=fast_atari env=pong"
	@$(BIN)/labrl $(ARGS)

test: $(VENV)/.installed-dev ## set up, then format, lint and type checks, and the fast tests: make test ARGS="-k ppo"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=10 $(ARGS)

test-all: $(VENV)/.installed-dev ## run the tests that `make test` leaves out: programs, a browser, databases, larger runs
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations=10 -m "extended and not slow and not matrix" $(ARGS)

learn: $(VENV)/.installed-dev ## run the slow tests: agents that must learn, and a set-up from scratch
	$(BIN)/python -m pytest -m slow $(ARGS)

results: $(VENV)/.installed-run ## train the cells for which SLM Lab publishes scores: make results ARGS="cartpole_ppo --minutes 30"
	$(BIN)/python -m benchmarks.results $(ARGS)

exact: $(VENV)/.installed-dev ## test every agent interrupted and resumed, and all cases of which make test runs a sample: make exact ARGS="--agents ppo"
	$(BIN)/python -m pytest -m slow tests/envs/test_env_classic.py
	$(BIN)/python -m pytest -m matrix
	$(BIN)/python -m pytest --hypothesis-profile=random -m 'not slow and not matrix' $$(grep -rl '^from hypothesis' tests --include 'test_*.py')
	$(BIN)/python tests/support/exact_matrix.py $(ARGS)

records: $(VENV)/.installed-dev ## compare rows, compositions or refusals with their record: make records ARGS="rows"
	$(BIN)/python tests/records/records.py $(ARGS)

mutants: $(VENV)/.installed-dev ## change the code in 60 wrong ways, and check that tests notice: make mutants ARGS="--jobs 2"
	$(BIN)/python tests/records/mutants.py $(ARGS)

bench: $(VENV)/.installed-bench ## compare the speed with Stable-Baselines3 and with the ceilings: make bench ARGS="pong --repeats 5"
	$(BIN)/python -m benchmarks $(ARGS)

reference: $(VENV)/.installed-dev ## generate what docs/ shows of the code, configs/ and measurements
	$(BIN)/python docs/generate_reference.py
	$(BIN)/python docs/generate_pages.py

docs: $(VENV)/.installed-dev ## build the documentation as a site, site/index.html; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

format: $(VENV)/.installed-dev ## format the code, and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the environment, builds and caches; never the runs
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'labrl needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=<path to python>'; exit 1; }
	@echo 'Setting up $(VENV): this takes a few minutes, once.'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# A TORCH that was given and differs from what is installed is installed, whatever the stamp says.
ifneq ($(origin TORCH),file)
ifneq ($(strip $(TORCH)),$(strip $(shell cat $(VENV)/.installed-torch 2>/dev/null)))
.PHONY: $(VENV)/.installed-torch
endif
endif
$(VENV)/.installed-torch: constraints.txt | $(BIN)/python
	@echo 'Installing $(TORCH)'
	@$(PIP) install $(TORCH)
	@grep -v '^torch==' constraints.txt > $(PINS)
	@echo '$(TORCH)' > $@

$(VENV)/.installed-run: pyproject.toml $(VENV)/.installed-torch
	@echo 'Installing labrl'
	@$(PIP) install -c $(PINS) -e '.[box2d]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-run
	@echo 'Installing the tools of development'
	@$(PIP) install 'pip>=25.1'
	@$(PIP) install -c $(PINS) -e '.[box2d,export,mujoco,offline,search,submitit]' --group dev
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-run
	@echo 'Installing Stable-Baselines3'
	@$(PIP) install 'pip>=25.1'
	@$(PIP) install -c $(PINS) -e '.[box2d]' --group bench
	@touch $@
