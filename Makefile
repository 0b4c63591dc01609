# Each target creates .venv and installs what it needs by itself.
#   make demo    complete Python code with the bundled model, plainly and with drafters
#   make test    the test suite           make lint    ruff and pyright
#   make bench   T(n)/T(1), and against transformers; writes out/bench_step.json

VENV := .venv
BIN := $(VENV)/bin
PYTHONS := python3 python3.13 python3.12 python3.11
PYTHON ?= $(shell for p in $(PYTHONS); do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; \
  done)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test lint bench

demo: $(VENV)/.base
	$(BIN)/specjax demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --durations 15

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(VENV)/.dev
	$(BIN)/specjax bench step --json out/bench_step.json

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "specjax needs Python 3.11 or newer: make PYTHON=/path/to/it"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml | $(BIN)/python
	$(PIP) install --editable .
	touch $@

# torch first, so that its version is settled before anything else asks for it. PyPI's Linux
# wheels bring CUDA: make test TORCH_INDEX=https://download.pytorch.org/whl/cpu avoids that.
TORCH_INDEX ?=
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch==2.13.0
	$(PIP) install --editable '.[dev]'
	touch $@ $(VENV)/.base
