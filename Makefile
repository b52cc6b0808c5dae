# Every target does all the set-up it needs: a virtual environment in .venv and the package in it.
# PYTHON picks the interpreter: PYTHON=python3.12 make test

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$python && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.looped-ready
AOT_READY := $(VENV)/.looped-aot-ready
GPU_READY := $(VENV)/.looped-gpu-ready

# With JAX's CUDA plugin installed and no GPU, JAX complains at every start unless it is told.
ifeq ($(wildcard /dev/nvidiactl),)
export JAX_PLATFORMS ?= cpu
endif

.PHONY: demo train-demo test test-long aot gpu-check check format lint types package clean

# The demo model solves a problem of each difficulty, with the loops of every token under it.
demo: $(READY)
	@$(BIN)/python -P examples/loops_per_token.py

# The demo model anew, in runs/demo/model: three stages, the evaluation, the card. It goes on after a
# kill; about an hour on two cores. ARGS are those of the script.
train-demo: $(READY)
	$(BIN)/python -P experiments/train_demo.py --runs runs/demo $(ARGS)

test: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal

# What is left out of `test` to keep that short: whole commands, trainings, every configuration.
test-long: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal -m "long and not slow and not gpu"

# Compiles the engine's steps for GPUs that need not be there: no weights, no NVIDIA packages.
aot: $(AOT_READY)
	$(BIN)/looped aot --target h200 --target a100 --model examples/ouro-1.4b/config.json
	$(BIN)/pytest -q tests/aot/test_aot.py tests/aot/test_aot_hlo.py \
		tests/pallas_kernels/test_triton_lowering.py

# Everything that only a GPU can say, in ten minutes; exits 3 where there is none. ARGS are those of
# the script: make gpu-check ARGS="--stages kernels,goldens --out results"
gpu-check: $(GPU_READY)
	$(BIN)/python -P experiments/gpu_check $(ARGS)

# What CI runs, and more: the whole gate before a commit.
check: format lint types test test-long package

format: $(READY)
	$(BIN)/ruff format --check .

lint: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

# Build both archives, install the wheel into an empty environment, use it outside the checkout.
package: $(READY)
	rm -rf dist $(VENV)/wheel-check
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv $(VENV)/wheel-check
	$(VENV)/wheel-check/bin/pip install --quiet dist/*.whl
	cd / && $(abspath $(VENV))/wheel-check/bin/looped --help >/dev/null
	cd / && $(abspath $(VENV))/wheel-check/bin/python -W error::ImportWarning \
		$(CURDIR)/tests/support/import_all.py
	cd / && $(abspath $(VENV))/wheel-check/bin/looped -q generate --max-tokens 4 \
		--model $(CURDIR)/tests/fixtures/ouro-tiny "hello" >/dev/null
	cd / && test -n "$$($(abspath $(VENV))/wheel-check/bin/looped -q generate "What is 3 + 4?")"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || \
		{ echo "looped needs Python 3.11 to 3.13; got '$(PYTHON)'" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

$(AOT_READY): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[dev,aot]'
	touch $@

$(GPU_READY): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[dev,cuda12]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
