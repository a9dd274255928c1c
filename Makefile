# `make train` and `make test` work on a fresh machine with Python 3.11 or newer.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install train test test-slow check format protos images lint-k8s clean

install: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "seedbed needs Python 3.11 or newer; found $$($(PYTHON) --version). Say PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "installing into $(VENV): some minutes and 2 GB, most of it TensorFlow"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

train: $(STAMP)
	$(BIN)/seedbed train --env CartPole-v1 --stop-return 475 --total-steps 500000 --logdir runs/cartpole

test: $(STAMP)
	$(BIN)/python -m pytest

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m 'slow or not slow'

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	$(BIN)/python -m pytest

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Generated from the repository root, so that the imports need no patching.
protos: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. protos/inference.proto

# With docker, podman or buildah; REGISTRY=... in front of the names, DEVICES=cpu for no image with CUDA.
images:
	k8s/images/build.sh

# A linter of manifests, in an environment of its own: it pins old releases of much that we use.
CHECKOV := .venv-checkov/bin/checkov

lint-k8s: $(CHECKOV)
	k8s/lint.sh "$(CURDIR)/$(CHECKOV)"

$(CHECKOV):
	$(PYTHON) -m venv .venv-checkov
	.venv-checkov/bin/python -m pip install --quiet --disable-pip-version-check checkov==3.3.30

clean:
	rm -rf $(VENV) .venv-checkov build dist *.egg-info
