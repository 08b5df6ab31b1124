# Entry points. A fresh machine needs only Python 3.11+, make, gcc and git.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROFILE ?= tiny
PORT ?= 8000
SERVE_FLAGS ?=
PYTEST_WORKERS ?= 2
REQUESTS ?= 5000
AT_ONCE ?= 64
CHAOS_FLAGS ?=
ENGINE ?= sglang
ENGINES := sglang vllm
hash = $(shell cat $(1) pyproject.toml | sha256sum | cut -c1-16)
PRODUCT_STAMP := $(VENV)/.product-$(call hash,locks/product.txt)
TEST_STAMP := $(VENV)/.test-$(call hash,locks/product.txt locks/test.txt)
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet

.PHONY: help serve test check fmt deps bench chaos image lock clean env test-env sglang-env vllm-env lm_eval-env

help: ## list the targets
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

serve: $(PRODUCT_STAMP) ## serve the tiny model on http://127.0.0.1:8000 (PROFILE=, PORT=, SERVE_FLAGS=)
	@exec $(BIN)/dsv4 serve --profile $(PROFILE) --port $(PORT) $(SERVE_FLAGS)

test: test-env sglang-env vllm-env lm_eval-env ## set up what tests need, run them all
	@failed=; \
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal || failed="$$failed product"; \
	for engine in $(ENGINES); do \
	  echo "tests/$$engine, in its own environment"; \
	  tests/$$engine/.venv/bin/python -m pytest tests/$$engine || failed="$$failed $$engine"; \
	done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

check: test-env ## ruff, format, bandit, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive serve kernels tools
	$(BIN)/mypy
	@for engine in $(ENGINES); do $(BIN)/mypy --config-file tests/$$engine/mypy.ini || exit; done

fmt: test-env ## format the tree
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

deps: ## Debian packages that some tests need (root)
	tools/install-system-packages.sh

env: $(PRODUCT_STAMP) ## the product's environment
test-env: $(TEST_STAMP) ## the product's environment and its test group

$(PRODUCT_STAMP): locks/product.txt pyproject.toml
	@echo "setting up $(VENV) from locks/product.txt (about a minute the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) -r locks/product.txt
	@$(PIP) --no-deps --editable .
	@rm -f $(VENV)/.product-*; touch $@

$(TEST_STAMP): $(PRODUCT_STAMP) locks/test.txt
	@echo "adding the test group from locks/test.txt"
	@$(PIP) -r locks/product.txt -r locks/test.txt
	@rm -f $(VENV)/.test-*; touch $@

sglang-env vllm-env lm_eval-env: %-env: ## engines as published, without their GPU parts, and lm-eval, each for its tests
	@PYTHON=$(PYTHON) tools/engine-env.sh $*

bench: test-env ## engine against transformers, launcher against the engine's port; prints tables
	$(BIN)/python tools/bench_engine.py
	$(BIN)/python tools/bench_launcher.py

chaos: test-env ## thousands of requests while everything goes wrong (an hour; REQUESTS=, AT_ONCE=, CHAOS_FLAGS=)
	$(BIN)/python -m tools.chaos.run --requests $(REQUESTS) --at-once $(AT_ONCE) $(CHAOS_FLAGS)

image: $(PRODUCT_STAMP) ## build an image (ENGINE=sglang|vllm|embedded|router, CHANNEL=, ALLOW_UNRESOLVED=1)
	@tools/image.sh $(ENGINE)

lock: ## resolve locks/*.in into locks/*.txt
	tools/lock.sh

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build
