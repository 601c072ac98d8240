#!/bin/sh
# Makes studies/benchmarks/.peers, the virtual environment of the peers; does nothing where it is up to date. PIP_ARGS goes to pip.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
env="$here/../.peers"
stamp="$env/.ready"
[ "$stamp" -nt "$here/requirements.txt" ] && exit 0
[ -x "$env/bin/python" ] || "${PYTHON:-python3}" -m venv "$env"
# shellcheck disable=SC2086
"$env/bin/python" -m pip install --quiet ${PIP_ARGS:-} -r "$here/requirements.txt"
touch "$stamp"
