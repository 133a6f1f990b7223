# make demo    the main job, from PyTorch to a proven engine: build/demo/report.html
# make test    the tests            make check   lint, types and format, as CI runs them
# make test-triton   the repositories for Triton, in the real tritonserver (.venv-triton)
# make soak-serve    two minutes of load and bad clients      make fuzz-serve   wrong requests, long
# make bench-engines   builds, cache, overhead, random kills: benchmarks/engines/results.md
# make bench-gpu     the whole road on a machine with a GPU: build/gpu/results.md
# make bench-decode   time per token against past length, 4 minutes: benchmarks/decode/results.md
# make bench-serve   ours against the real tritonserver: benchmarks/serve/results.md
# make zoo     a hundred architectures, what became of each: benchmarks/zoo/results.md
#              NAMES='bert llama' names some, ZOO_ARGS= goes on where a run was stopped
# make zoo-latency   ONNX Runtime on our graphs against torch.onnx's: benchmarks/zoo/latency.md
# make bench-export   memory and time of an export: benchmarks/export/results.md
# make bench-lowering   long causal attentions on the CPU: benchmarks/lowering/results.md
# make test-shard   every way of splitting over ranks, each model and form
# make bench-shard   bytes and time of ranks on this machine: benchmarks/shard/results.md
# make cases   what exporters were reported to get wrong, every case in every dtype
# make mutants     every way of being wrong, planted in every model: benchmarks/validate/mutants.md
# make calibrate   how near good engines come to the bound: benchmarks/validate/calibration.md
# make bench-validate   time and memory of the generated cases: benchmarks/validate/results.md
# make lint    mend what can be mended: imports, format            make clean
#
# The first of them makes the environment .venv. What it installs depends on the machine:
#   with an NVIDIA GPU (nvidia-smi is there)   ONNX Runtime for CUDA, TensorRT and TensorRT for RTX
#   without                                    ONNX Runtime, and TensorRT for RTX, which builds there
# Without a GPU torch is the CPU build: as pip finds it, else from PyTorch's own index. Behind a
# mirror say where it is, or that there is none:
#   make demo CPU_TORCH=https://mirror.example/pytorch/cpu        make demo CPU_TORCH=

PYTHON ?= python3
PIP_ARGS ?=
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TRITON_VENV := .venv-triton
TRITON_STAMP := $(TRITON_VENV)/.installed

HAS_GPU := $(shell command -v nvidia-smi)
ifeq ($(HAS_GPU),)
EXTRAS := export,ort,rtx,serve,test
else
EXTRAS := export,ort-gpu,trt,rtx,serve,test
endif
CPU_TORCH ?= https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help
.PHONY: test-shard bench-export bench-shard bench-decode bench-engines bench-gpu mutants calibrate bench-validate bench-lowering zoo zoo-latency cases test-triton soak-serve fuzz-serve bench-serve help demo test check lint clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

demo: $(STAMP)
	$(BIN)/attnport run examples/demo.yaml

test: $(STAMP)
	$(BIN)/python -m pytest -n 2

test-triton: $(STAMP) $(TRITON_STAMP)
	ATTNPORT_TRITON_VENV=$(TRITON_VENV) $(BIN)/python -m pytest -m triton tests/serve

soak-serve: $(STAMP)
	$(BIN)/python -m tests.serve.soak --seconds 120

fuzz-serve: $(STAMP)
	ATTNPORT_FUZZ_EXAMPLES=5000 $(BIN)/python -m pytest tests/serve/test_fuzz.py

bench-serve: $(STAMP) $(TRITON_STAMP)
	$(BIN)/python -m pip install -q $(PIP_ARGS) -c constraints.txt -e '.[bench-serve]'
	ATTNPORT_TRITON_VENV=$(TRITON_VENV) $(BIN)/python -m benchmarks.serve.run

ZOO_ARGS ?= --again
zoo: $(STAMP)
	$(BIN)/python -m pip install -q $(PIP_ARGS) -c constraints.txt -e '.[zoo]'
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.zoo.run $(NAMES) $(ZOO_ARGS)

zoo-latency: $(STAMP)
	$(BIN)/python -m pip install -q $(PIP_ARGS) -c constraints.txt -e '.[zoo]'
	$(BIN)/python -m benchmarks.zoo.latency $(NAMES) $(LATENCY_ARGS)

test-shard: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "" tests/shard

bench-shard: $(STAMP)
	$(BIN)/python -m benchmarks.shard.run

bench-export: $(STAMP)
	$(BIN)/python -m benchmarks.export.memory

bench-lowering: $(STAMP)
	$(BIN)/python -m benchmarks.lowering.chunks

cases: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "" tests/cases

mutants: $(STAMP)
	$(BIN)/python -m tests.validate.mutants

calibrate: $(STAMP)
	$(BIN)/python benchmarks/validate/calibrate.py

bench-validate: $(STAMP)
	$(BIN)/python benchmarks/validate/measure.py

bench-decode: $(STAMP)
	$(BIN)/python -m benchmarks.decode.run

bench-engines: $(STAMP)
	$(BIN)/python -m benchmarks.engines.run --kills 200

bench-gpu: $(STAMP)
	$(BIN)/python -m benchmarks.gpu.prepare
	PYTHON=$(BIN)/python benchmarks/gpu/run.sh

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(TRITON_VENV) build dist src/attnport.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(TRITON_STAMP): constraints-triton.txt
	$(PYTHON) -m venv $(TRITON_VENV)
	$(TRITON_VENV)/bin/python -m pip install $(PIP_ARGS) -r constraints-triton.txt
	touch $@

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnport needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	@index=; \
	if [ -z "$(HAS_GPU)" ] && [ -n "$(CPU_TORCH)" ]; then \
	  found=$$($(BIN)/python -m pip install --dry-run --no-deps -q --report - $(PIP_ARGS) -c constraints.txt torch \
	    | $(PYTHON) -c 'import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])'); \
	  case "$$found" in *+cpu) ;; *) index="--extra-index-url $(CPU_TORCH)";; esac; \
	fi; \
	set -x; $(BIN)/python -m pip install $(PIP_ARGS) $$index -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@
