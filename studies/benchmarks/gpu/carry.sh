#!/bin/sh
# Downloads the wheels of carried.txt into wheels/, for a machine without network:
#   sh studies/benchmarks/gpu/carry.sh
# PYTHON is the interpreter whose pip downloads, VERSION the Python of that machine.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
version=${VERSION:-3.12}
rm -rf wheels
"$python" -m pip download --quiet --no-deps --only-binary=:all: --dest wheels \
    --python-version "$version" --implementation cp --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --requirement carried.txt
du -ch wheels/*.whl
