#!/bin/sh
# The step, engine and memory figures on a CUDA machine: sh benchmarks/gpu/run.sh [--quick]
# Needs an installed Quintain (make setup) and, for the peers, PIP_ARGS that find a CUDA build of torch.
# DEVICE=cpu tries that the commands run.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
device=${DEVICE:-cuda}
for figure in memory engine step; do
    "$python" -m "benchmarks.$figure" --device "$device" "$@"
done
# Where vLLM is installed beside Quintain: the embedded engine, vLLM in the process and behind a server, generate.
if "$python" -c "import vllm" 2> /dev/null; then
    "$python" -m benchmarks.engines --device "$device" "$@"
else
    echo "benchmarks.engines is left out: $python has no vLLM (pip install 'quintain-vllm[gpu]'; on a CPU: bash tools/vllm_env.sh)"
fi
