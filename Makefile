# Set-up, tests and the first run. Needs GNU make, Python >= 3.11 with venv, and g++; nothing else.
#   make quickstart   own .venv, install, train on a local Ray, report (minutes, no GPU)
#   make test         lint, types, tests
# PYTHON=python3.12 chooses another interpreter, VENV=... another place, RUN=key=value... overrides.

PYTHON ?= python3
VENV ?= .venv
RUN ?=
CONFIG ?= configs/quickstart.yaml

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
CUDAAGENT := $(BIN)/cudaagent

.DELETE_ON_ERROR:
.PHONY: help quickstart test check format submit cold-start clean

help:
	@sed -n 's/^#   //p' Makefile

# An environment is made whole or made again: the stamp is written last.
$(VENV)/.created:
	$(if $(shell command -v $(PYTHON)),,$(error $(PYTHON) not found: install Python 3.11 or newer, or name it with PYTHON=))
	$(if $(shell $(PYTHON) -c 'import sys; print("ok" if sys.version_info >= (3, 11) else "")'),,$(error $(PYTHON) is too old: cudaagent needs Python 3.11 or newer, name one with PYTHON=))
	$(if $(shell $(PYTHON) -c 'import ensurepip, venv; print("ok")' 2>&1 | grep -x ok),,$(error $(PYTHON) cannot make environments: install its venv module (Debian and Ubuntu: python3-venv)))
	$(if $(shell command -v g++),,$(error g++ not found: install it (Debian and Ubuntu: apt-get install g++)))
	@echo "making $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.installed: pyproject.toml constraints/cpu.txt | $(VENV)/.created
	@echo "installing cudaagent into $(VENV) (about two minutes)"
	@$(PIP) install --no-compile -c constraints/cpu.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints/cpu.txt | $(VENV)/.created
	@echo "installing cudaagent and its developers' tools into $(VENV) (about two minutes)"
	@$(PIP) install --no-compile -c constraints/cpu.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed

.venv: $(VENV)/.installed-dev

quickstart: $(VENV)/.installed
	@$(CUDAAGENT) train --config $(CONFIG) $(RUN)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: check
	$(BIN)/python -m pytest

# The same run as a Ray job on a head of its own, with token authentication. Only this head is ended,
# other Ray clusters of the machine stay.
define SUBMIT
free_port() { python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
export RAY_AUTH_MODE=token RAY_DASHBOARD_PORT=$$(free_port)
ray get-auth-token --generate > /dev/null
scratch=$$(mktemp -d /tmp/ray-head-XXXXXX)
ray start --head --block --port=$$(free_port) --dashboard-port=$$RAY_DASHBOARD_PORT --temp-dir=$$scratch > $$scratch/head.log 2>&1 &
head=$$!
trap 'kill $$head 2> /dev/null || true; wait $$head 2> /dev/null || true; rm -rf $$scratch' EXIT
address=http://127.0.0.1:$$RAY_DASHBOARD_PORT
echo "dashboard: $$address (token: ray get-auth-token)"
for attempt in $$(seq 60); do
    ray job list --address $$address > /dev/null 2>&1 && break
    kill -0 $$head 2> /dev/null || { tail -5 $$scratch/head.log; exit 1; }
    sleep 1
done
ray job submit --address $$address --working-dir . -- python jobs/train.py --config $(CONFIG) run.root=$(CURDIR)/runs $(RUN)
endef
export SUBMIT

submit: $(VENV)/.installed
	@PATH="$(abspath $(BIN)):$$PATH" bash -eu -c "$$SUBMIT"

# The checkpoint that the quickstart starts from, made anew on teacher trajectories (minutes on a GPU).
cold-start: $(VENV)/.installed
	$(BIN)/python jobs/cold_start.py --out checkpoints/quickstart

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
