#!/bin/sh
# The step, engine and memory figures on a CUDA machine: sh studies/benchmarks/gpu/run.sh [--quick]
# Needs an installed Quintain (make setup) and, for the peers, PIP_ARGS that find a CUDA build of torch.
# DEVICE=cpu tries that the commands run.
set -eu
cd "$(dirname "$0")/../../.."
python=${PYTHON:-.venv/bin/python}
device=${DEVICE:-cuda}
for figure in memory engine step; do
    "$python" -m "studies.benchmarks.$figure" --device "$device" "$@"
done
# Where vLLM is installed beside Quintain: the embedded engine, vLLM in the process and behind a server, generate.
if "$python" -c "import vllm" 2> /dev/null; then
    "$python" -m studies.benchmarks.engines --device "$device" "$@"
else
    echo "studies.benchmarks.engines is left out: $python has no vLLM (pip install 'quintain-vllm[gpu]'; on a CPU: bash tools/vllm_env.sh)"
fi
