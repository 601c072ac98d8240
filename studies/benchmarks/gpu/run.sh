#!/bin/sh
# What can be measured on one GPU in a quarter of an hour without network, the most valuable first:
#   sh studies/benchmarks/gpu/run.sh [--full] [--parts 1,2] [--minutes 9] [--out FOLDER]
#   sh studies/benchmarks/gpu/run.sh --rehearse          tiny sizes on the CPU
# PYTHON is an interpreter with torch and transformers. What else Quintain needs comes from wheels/
# (carry.sh) and is unpacked into the folder SITE.
set -eu
cd "$(dirname "$0")/../../.."
python=${PYTHON:-python3}
kit=studies/benchmarks/gpu
path=$("$python" $kit/environment.py --site "${SITE:-$kit/.site}")
PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m studies.benchmarks.gpu "$@"
