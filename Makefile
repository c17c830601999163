# Every target prepares what it needs by itself: a virtual environment in .venv with the pinned packages.
#   PYTHON=python3.12    another Python (3.11 or newer)
#   TORCH_INDEX=URL      extra package index for torch, for example that of its small CPU build
#   PORT=8888            port of JupyterLab
#   HEADLESS=1           JupyterLab for servers: no browser, the address with its token is printed
PYTHON ?= python3
TORCH_INDEX ?=
PORT ?= 8888
HEADLESS ?=

# Idle threads sleep instead of spinning: on a shared machine everything else runs several times faster.
export OMP_WAIT_POLICY ?= PASSIVE

BOOTSTRAP = $(PYTHON) -I tfm_lab/bootstrap.py $(if $(TORCH_INDEX),--torch-index '$(TORCH_INDEX)')
VENV_PYTHON = .venv/bin/python
# What waits for a browser or for a hung notebook has the machine for itself.
TIMED_TESTS = tests/browser tests/runner

.PHONY: help lab explorer test run clean
.DEFAULT_GOAL := help

help:
	@echo "make lab       open JupyterLab on the first notebook   (PORT=8888, HEADLESS=1)"
	@echo "make explorer  the tree explorer alone, as a page for lectures   (PORT, HEADLESS likewise)"
	@echo "make test      check style, types, layers; run all tests, notebooks and browser included"
	@echo "make run       execute the notebooks into build/report/index.html"
	@echo "make clean     remove build products and caches (not .venv)"
	@echo "Options: PYTHON=python3.12, TORCH_INDEX=URL of a package index with the CPU build of torch"

lab:
	@$(BOOTSTRAP) lab --port $(PORT) $(if $(HEADLESS),--headless)

explorer:
	@$(BOOTSTRAP) explorer --port $(PORT) $(if $(HEADLESS),--headless)

test:
	@$(BOOTSTRAP) setup --dev
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m basedpyright
	$(VENV_PYTHON) -c "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
	$(VENV_PYTHON) -m pytest $(TIMED_TESTS)
	$(VENV_PYTHON) -m pytest -n auto --maxprocesses 4 --dist worksteal $(TIMED_TESTS:%=--ignore=%)

run:
	@$(BOOTSTRAP) setup
	$(VENV_PYTHON) -m tfm_lab run

clean:
	rm -rf build .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info kernels/*.egg-info
	find tfm_lab kernels tests notebooks -name __pycache__ -prune -exec rm -rf {} +
	find notebooks -name .ipynb_checkpoints -prune -exec rm -rf {} +
