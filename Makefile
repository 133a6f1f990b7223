# make demo    the main job, from PyTorch to a proven engine: build/demo/report.html
# make test    the tests            make check   lint, types and format, as CI runs them
# make lint    mend what can be mended: imports, format            make clean
#
# The first of them makes the environment .venv. What it installs depends on the machine:
#   with an NVIDIA GPU (nvidia-smi is there)   ONNX Runtime for CUDA, TensorRT and TensorRT for RTX
#   without                                    ONNX Runtime, and TensorRT for RTX, which builds there
# Without a GPU torch should be the CPU build; where PyTorch's own index can be reached it is taken
# from there. Behind a mirror, say where it is:
#   make demo PIP_ARGS='--extra-index-url https://mirror.example/pytorch/cpu'

PYTHON ?= python3
PIP_ARGS ?=
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

HAS_GPU := $(shell command -v nvidia-smi)
ifeq ($(HAS_GPU),)
EXTRAS := export,ort,rtx,serve,test
else
EXTRAS := export,ort-gpu,trt,rtx,serve,test
endif
CPU_TORCH := https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help
.PHONY: help demo test check lint clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

demo: $(STAMP)
	$(BIN)/attnport run examples/demo.yaml

test: $(STAMP)
	$(BIN)/python -m pytest -n 2

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist src/attnport.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnport needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	@index=; \
	if [ -z "$(HAS_GPU)" ] && $(PYTHON) -c 'import socket; socket.create_connection(("download.pytorch.org", 443), 3)' 2>/dev/null; \
	then index="--extra-index-url $(CPU_TORCH)"; fi; \
	set -x; $(BIN)/python -m pip install $(PIP_ARGS) $$index -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@
