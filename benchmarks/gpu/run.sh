#!/usr/bin/env bash
# Proves the whole road on a machine with a GPU, in less than eight minutes.
#
#   benchmarks/gpu/run.sh              with what this Python has installed: what lacks is said
#   INSTALL=1 benchmarks/gpu/run.sh    makes build/gpu/venv first (its time is not counted), from
#                                      PyPI alone: torch, onnx, onnx-ir, onnxscript,
#                                      onnxruntime-gpu[cuda,cudnn], tensorrt-cu13,
#                                      tensorrt-rtx-cu13, cuda-bindings, pytest and what they need
#
# What another machine prepared (`python -m benchmarks.gpu.prepare` leaves it in
# build/gpu/prepared) is used where it is there: then even a machine that has nothing but torch and
# onnxruntime runs the graphs. The results: build/gpu/results.json and build/gpu/results.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
OUT=${OUT:-build/gpu}
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"
if [ -n "${INSTALL:-}" ]; then
    "$PYTHON" -m venv "$OUT/venv"
    PYTHON="$OUT/venv/bin/python"
    "$PYTHON" -m pip install -q -c constraints.txt -e '.[export,ort-gpu,trt,rtx,test]'
fi
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m benchmarks.gpu.road --out "$OUT" --seconds "${SECONDS_AT_MOST:-460}"
