"""The section ``host`` of ``quintain doctor``: versions, devices, memory and disks, for bug
reports.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "transformers", "datasets", "pyarrow", "peft")
CACHES = (
    ("default models", "QUINTAIN_CACHE", "~/.cache/quintain"),
    ("Hugging Face", "HF_HOME", "~/.cache/huggingface"),
)


def section() -> dict[str, Any]:
    """Return rows of two texts, what and how much; notes say what is missing and how to get it."""
    devices, notes = _devices()
    rows = [
        ("Quintain", metadata.version("quintain")),
        ("Python", f"{platform.python_version()}, {platform.platform()}"),
        (
            "libraries",
            ", ".join(f"{name} {v or 'not installed'}" for name, v in versions().items()),
        ),
        *(("device", device) for device in devices),
        *(("attention", kernels) for kernels in _attention()),
        ("CPUs", _cpus()),
        ("memory", _memory()),
        *(("disk", text) for text in _disks()),
    ]
    offline = [
        f"{name}={os.environ[name]}"
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        if name in os.environ
    ]
    if offline:
        notes.append(f"{' '.join(offline)}: models and data come from the cache or a folder only")
    return {"columns": ["", ""], "rows": [list(row) for row in rows], "notes": notes}


def versions() -> dict[str, str]:
    """Return the versions of the libraries of the extras; empty if not installed."""
    installed = {}
    for library in LIBRARIES:
        try:
            installed[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            installed[library] = ""
    return installed


def _devices() -> tuple[list[str], list[str]]:
    """Return each device that a run can use, and notes."""
    if importlib.util.find_spec("torch") is None:
        return ["none"], ["torch is not installed: pip install 'quintain[train]'"]
    import torch

    if torch.cuda.is_available():
        return [_gpu(index) for index in range(torch.cuda.device_count())], []
    if shutil.which("nvidia-smi") is None:
        return ["cpu (no NVIDIA GPU)"], []
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    return ["cpu"], [
        f"nvidia-smi is installed, but torch (its {build} build) finds no GPU: "
        + ("update the driver" if torch.version.cuda else "install a CUDA build of torch")
    ]


def _attention() -> Iterator[str]:
    """Yield the attention kernels of each GPU, tried out on it in bfloat16 with the heads of
    Qwen3-0.6B.
    """
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    from quintain.models import kernels_of

    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        kernels = kernels_of(device)
        found = kernels and kernels.described(device, torch.bfloat16, (16, 8, 128))
        yield f"{device} {found or 'with masks'}"


def _gpu(index: int) -> str:
    import torch

    free, total = torch.cuda.mem_get_info(index)
    capability = ".".join(map(str, torch.cuda.get_device_capability(index)))
    name = torch.cuda.get_device_name(index)
    return (
        f"cuda:{index} {name}, {_size(free)} of {_size(total)} free, capability {capability}, CUDA "
        f"{torch.version.cuda}"
    )


def usable_cpus() -> int:
    """Count the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def _cpus() -> str:
    """Return the CPUs that this process may use, and the threads of torch, which `quintain` sets by
    affinity and CPU quota.
    """
    text = f"{usable_cpus()} of {os.cpu_count()} usable"
    if importlib.util.find_spec("torch") is not None:
        import torch

        text += f", torch uses {torch.get_num_threads()} threads"
    waiting = os.environ.get("OMP_WAIT_POLICY")
    return text + (f" (OMP_WAIT_POLICY={waiting})" if waiting else "")


def _memory() -> str:
    """Return total and available memory, and the limit of the control group, if there is one."""
    if not Path("/proc/meminfo").exists():  # macOS
        return f"{_size(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))} in all"
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(fields[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    limit_file = Path("/sys/fs/cgroup/memory.max")
    limit = limit_file.read_text().strip() if limit_file.exists() else "max"
    return f"{_size(available)} of {_size(total)} available" + (
        f", limit {_size(int(limit))}" if limit != "max" else ""
    )


def _disks() -> Iterator[str]:
    """Yield the working directory and each cache, with the free space of its disk."""
    yield f"working directory: {_size(_free(Path.cwd()))} free"
    for title, variable, default in CACHES:
        chosen = os.environ.get(variable, "")
        folder = Path(chosen or default).expanduser()
        what = f"{title} ({variable}={chosen})" if chosen else f"{title} ({default})"
        state = "" if folder.exists() else ", not made yet"
        yield f"{what}: {_size(_free(folder))} free{state}"


def _free(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _size(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
