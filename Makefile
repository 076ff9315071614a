# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash
# Tests start some hundred processes: what they import is compiled once, beside the installation.
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/bytecode
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test torch-test test-all lint docs look dist lock gpu-test clean

demo: $(VENV)/.demo
	$(BIN)/gemmgen doctor || true
	$(BIN)/gemmgen emit fp8_block -m 256 -n 256 -k 512 -o out
	$(BIN)/gemmgen compile fp8_block -m 256 -n 256 -k 512 -o out
	$(BIN)/gemmgen run fp8_block -m 256 -n 256 -k 512 || test $$? -eq 3

# Of a test's cases that take long one in SAMPLE, at least one; none of them begins after MINUTES. Of tests that take
# long with one case, one in four (CONTRIBUTING.md).
SAMPLE ?= 64
MINUTES ?= 600
test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 -q --sample $(SAMPLE) --minutes $(MINUTES)

# What needs torch: over tensors of the CPU, the kernels emulated. Where there is no torch its CPU build is installed.
TORCH ?= torch==2.13.0
torch-test: $(VENV)/.test
	$(BIN)/python -c "import torch" 2> /dev/null || $(INSTALL) $(TORCH)
	$(BIN)/python -m pytest -n 2 -q --sample $(SAMPLE) --minutes $(MINUTES) \
	  $$(grep -rl 'importorskip("torch")' tests --include='test_*.py' | grep -v tests/gpu/)

# Every case of every test.
test-all:
	$(MAKE) test SAMPLE=1

lint: $(VENV)/.lint
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/reuse lint --quiet

# The documentation as a site: site/index.html, which loads nothing from elsewhere.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m docs.tools.built site

# A wheel and an sdist, in dist/.
dist: $(VENV)/.lint
	$(BIN)/python -m build --outdir dist

# The newest versions that pyproject.toml allows, for every Python, with hashes.
lock: $(VENV)/.lint
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --upgrade pyproject.toml \
	  --extra cu13 --extra test --extra docs --extra dev --custom-compile-command "make lock" \
	  -o requirements/dev.lock

# What `make docs` built, in a browser if there is one: what is cut off, too faint to read, or reached by no key.
look: $(VENV)/.docs
	$(BIN)/python -m docs.tools.seen site

# On a machine with a Hopper GPU, its driver and torch; installs nothing.
gpu-test:
	$(PYTHON) -m pytest -m gpu -q

$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)

# Most of what is installed is never imported: it is compiled when it is.
INSTALL := $(BIN)/python -m pip install -q --no-compile

$(VENV)/.demo: pyproject.toml | $(VENV)/pyvenv.cfg
	$(INSTALL) -e ".[cu13]"
	touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/pyvenv.cfg
	$(INSTALL) -e ".[cu13,test]"
	touch $(VENV)/.demo $@

$(VENV)/.lint: $(VENV)/.test
	$(INSTALL) -e ".[cu13,test,dev]"
	touch $@

$(VENV)/.docs: $(VENV)/.demo
	$(INSTALL) -e ".[cu13,docs]"
	touch $@

clean:
	rm -rf $(VENV) out site build dist *.egg-info
