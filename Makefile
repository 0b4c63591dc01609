# Each target creates .venv and installs what it needs by itself.
#   make demo    complete Python code with the bundled model, plainly and with drafters
#   make test    every law and unit, a real text of each method
#   make test-all  all tests, half an hour in a fresh clone      make lint    ruff and pyright
#   make test-slow  what make test leaves out; MINUTES=20 skips what has not begun by then
#   make oracle  compare with a real vLLM, in its own environment (3.5 GB, made once)
#   make bridge-npu  npu_bridge against the real torch_npu wheel, without a device (45 MB)
#   make docs    the documentation as a site in site/, with the notebooks' outputs
#   make bench   the short benchmarks     make readme  rewrites the measured tables and pictures
#   make power   how many texts `audit server` needs to flag each fault, through our own server
#   make soak    a server under load for ten minutes: its memory must stay flat
#   make balancer  two servers behind HAProxy and nginx, one killed, one drained
#   make ray     100,000 prompts by two Ray actors, one killed every 20 seconds
#   make clients  other people's clients against our server, in an environment of their own
#   make structured  2,000 random schemas, plain and drafted: the same texts, and all of them fit
#   make hostile  a server under 5,000 hostile requests, beside a client that behaves

SHELL := bash
VENV := .venv
BIN := $(VENV)/bin
PYTHONS := python3 python3.13 python3.12 python3.11
PYTHON ?= $(shell for p in $(PYTHONS); do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; \
  done)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-all test-slow lint docs bench soak hostile structured balancer ray clients power readme oracle oracle-record bridge-npu

demo: $(VENV)/.base
	$(BIN)/specjax demo

# with MINUTES=N no test begins later than N minutes after the start: the rest are skipped
PYTEST = $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --durations 15 \
  $(if $(MINUTES),--minutes $(MINUTES))

test: $(VENV)/.dev
	$(PYTEST) -m 'not slow and not oracle and not npu_wheel and not npu'

test-all: $(VENV)/.dev
	$(PYTEST)

test-slow: $(VENV)/.dev
	$(PYTEST) -m 'slow and not oracle and not npu_wheel and not npu'

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# oracle-record keeps vLLM's answers, which `make test` replays; both rewrite the table of docs/parity.md.
oracle oracle-record: $(VENV)/.dev
	$(BIN)/specjax oracle install
	set -o pipefail; $(BIN)/python -m pytest -m oracle --numprocesses auto --dist loadfile \
	  --durations 5 --table docs/parity.md $(RECORD) tests/oracle 2>&1 | tee tests/oracle/last.log
oracle-record: RECORD := --record

# torch_npu would break every `import torch` of an environment it is installed in, where there is
# no CANN: it lies in a folder of its own, which only these tests have on their path.
NPU := .venv-npu
bridge-npu: $(VENV)/.dev $(NPU)/.ready
	set -o pipefail; TORCH_DEVICE_BACKEND_AUTOLOAD=0 SPECJAX_BRIDGE_NPU=1 PYTHONPATH=$(NPU) \
	  $(BIN)/python -m pytest -m 'npu_wheel or npu' -rs -v tests/npu_bridge/npu 2>&1 \
	  | tee tests/npu_bridge/npu/last.log

$(NPU)/.ready: pyproject.toml | $(BIN)/python
	$(PIP) install --upgrade --target $(NPU) --no-deps torch-npu==2.13.0 pyyaml
	touch $@

# A notebook is executed again when it, or the code, has changed.
EXECUTED := $(patsubst notebooks/%.py,build/notebooks/%.ipynb,$(wildcard notebooks/*.py))
CODE := $(shell find specjax npu_bridge -name '*.py')
docs: $(VENV)/.docs $(EXECUTED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/tools/check_site.py site

build/notebooks/%.ipynb: notebooks/%.py $(CODE) | $(VENV)/.docs
	$(BIN)/python docs/tools/execute_notebook.py $< $@

bench: $(VENV)/.dev
	$(BIN)/specjax bench

soak: $(VENV)/.dev
	$(BIN)/python -m tests.server.soak

hostile: $(VENV)/.dev
	$(BIN)/python -m tests.server.hostile

balancer: $(VENV)/.dev
	$(BIN)/python -m tests.server.balancer --kind haproxy
	$(BIN)/python -m tests.server.balancer --kind nginx

ray: $(VENV)/.dev
	$(PIP) install --editable '.[ray]'
	$(BIN)/python -m tests.jobs.killed_actors
	$(BIN)/python -m tests.jobs.killed_actors --overhead

structured: $(VENV)/.dev
	$(BIN)/python -m tests.laws.structured

# They bring packages that would change the others' versions, so they have a folder of their own.
CLIENTS := .venv-clients
clients: $(VENV)/.dev $(CLIENTS)/.ready
	set -o pipefail; SPECJAX_CLIENTS_PYTHON=$(CLIENTS)/bin/python \
	  SPECJAX_NODE_MODULES=$(CLIENTS)/node_modules \
	  $(BIN)/python -m pytest -rs -vv -m 'oracle or not oracle' tests/oracle/test_bench_client.py \
	  tests/server/test_libraries.py tests/server/test_clients.py 2>&1 | tee tests/server/clients.log

$(CLIENTS)/.ready: pyproject.toml | $(BIN)/python
	$(BIN)/python -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch==2.13.0
	$(CLIENTS)/bin/pip install --quiet openai litellm langchain-openai llama-index-llms-openai-like \
	  anthropic 'guidellm>=0.8,<0.9'
	npm install --silent --prefix $(CLIENTS) openai
	touch $@

power: $(VENV)/.dev
	$(BIN)/python -m tests.audit.power --readme docs/guide/audit.md

readme: $(VENV)/.dev
	$(BIN)/specjax demo --out docs/demo.png --readme README.md
	$(BIN)/specjax audit rules --picture docs/rules.png --readme docs/guide/audit.md
	mkdir -p docs/logs
	set -o pipefail; $(BIN)/specjax bench peers --json docs/peers.json --readme docs/benchmarks.md 2>&1 \
	  | tee >(gzip -9n > docs/logs/peers-$$(date -u +%F).log.gz)
	$(BIN)/specjax bench methods --readme docs/benchmarks.md
	$(BIN)/specjax ab replay docs/ab.jsonl --picture docs/ab.png --readme docs/benchmarks.md

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

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(PIP) install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch==2.13.0
	$(PIP) install --editable '.[docs]'
	touch $@ $(VENV)/.base
