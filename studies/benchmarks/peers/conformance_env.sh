#!/bin/sh
# Makes studies/benchmarks/.peers-conformance, where verifiers and TRL are put before `python -m studies.conformance`, or with the argument
# `art` .peers-conformance-art; does nothing where it is up to date. PIP_ARGS goes to pip.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root="$here/../../.."
name="conformance${1:+-$1}"
env="$here/../.peers-$name"
stamp="$env/.ready"
[ "$stamp" -nt "$here/$name.txt" ] && exit 0
[ -x "$env/bin/python" ] || "${PYTHON:-python3}" -m venv "$env"
# shellcheck disable=SC2086
"$env/bin/python" -m pip install --quiet ${PIP_ARGS:-} -r "$here/$name.txt"
for member in . plugins/authoring plugins/gateway plugins/tools; do
    "$env/bin/python" -m pip install --quiet --no-deps -e "$root/$member"
done
touch "$stamp"
