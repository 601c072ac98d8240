"""Virtual environments for environments whose packages do not go together with those of the run.

Each is made once from its requirements and kept in the cache, under a hash of all that it is made
of. Quintain, its plugins and what it needs itself are those of the run, linked into it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from quintain import InfrastructureError
from quintain.registry import normalise
from quintain.store import cache_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
METADATA = ("METADATA", "entry_points.txt")
"""What is copied of a distribution; without a list of its files pip does not remove it."""
DONE = "quintain-is-ready"


def python_with(requirements: Sequence[str]) -> Path:
    """Return the interpreter of a virtual environment with *requirements*, as pip takes them: names
    with versions and extras, files, or folders.

    Raises:
        InfrastructureError: pip cannot install them; the message has its last lines.
    """
    folder = cache_folder() / "environments" / _key(requirements)
    python = folder / "bin" / "python"
    if not (folder / DONE).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.with_suffix(".lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
            if not (folder / DONE).is_file():  # another process has made it meanwhile
                shutil.rmtree(folder, ignore_errors=True)
                _make(folder, python, requirements)
                (folder / DONE).touch()
    return python


def own_names(requirements: Sequence[str]) -> set[str]:
    """Return the distributions that *requirements* name, which are then not those of the run."""
    names = set()
    for requirement in requirements:
        project = _local(requirement) / "pyproject.toml"
        if project.is_file():
            found = re.search(r'^name\s*=\s*"([^"]+)"', project.read_text(), re.MULTILINE)
            names.add(found[1] if found else "")
        elif name := _NAME.match(requirement):
            names.add(name[0])
    return {normalise(name) for name in names}


def _local(requirement: str) -> Path:
    return Path(requirement.partition("[")[0]).expanduser()


def _key(requirements: Sequence[str]) -> str:
    """Return a hash of the requirements, of local files among them, and of the run's versions."""
    digest = hashlib.sha256(repr(sorted(requirements)).encode())
    digest.update(repr((sys.executable, sys.version, _shared())).encode())
    for requirement in sorted(requirements):
        path = _local(requirement)
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            hidden = any(part.startswith((".", "__pycache__")) for part in file.parts[1:])
            if file.is_file() and not hidden:
                digest.update(str(file).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _shared() -> list[tuple[str, str]]:
    return sorted((name, one.version) for name, one in _linked().items())


def _linked(own: Collection[str] = ()) -> dict[str, Distribution]:
    """Return what the run shares: Quintain, its plugins and what Quintain needs, by name, without
    those that are *own*.
    """
    found: dict[str, Distribution] = {}
    names = {normalise(one.metadata["Name"] or "") for one in distributions()}
    waiting = sorted(name for name in names if name.startswith("quintain-") and name not in own)
    needed = ["quintain"]
    while needed:  # of plugins, what they need is not shared
        name = needed.pop()
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # needed elsewhere
            continue
        wanted = [text for text in found[name].requires or () if "extra ==" not in text]
        needed += {normalise(m[0]) for text in wanted if (m := _NAME.match(text))} - found.keys()
    return found | {name: distribution(name) for name in waiting}


def _make(folder: Path, python: Path, requirements: Sequence[str]) -> None:
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], requirements)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name, one in _linked(own_names(requirements)).items():
        _link(one, name, packages)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    _run([*pip, "--disable-pip-version-check", *requirements], requirements)


def _link(one: Distribution, name: str, packages: Path) -> None:
    """Let *packages* have a distribution of the run: its modules, and what installers read of it."""
    for module in _modules(one, name):
        (packages / module.name).symlink_to(module)
    info = packages / f"{name.replace('-', '_')}-{one.version}.dist-info"
    info.mkdir()
    for file in METADATA:
        if (text := one.read_text(file)) is not None:
            (info / file).write_text(text, encoding="utf-8")


def _modules(one: Distribution, name: str) -> Iterator[Path]:
    """Yield the folders and files of a distribution that modules are imported from."""
    if name.startswith("quintain"):  # it may be installed from its source, which no list names
        points = {entry.module.partition(".")[0] for entry in one.entry_points}
        for module in sorted(points | {name.replace("-", "_")}):
            spec = importlib.util.find_spec(module)
            if spec is not None and spec.submodule_search_locations:
                yield Path(next(iter(spec.submodule_search_locations))).resolve()
        return
    tops = {file.parts[0] for file in one.files or ()}
    for top in sorted(tops):
        if not top.endswith(".dist-info") and top not in ("..", "__pycache__"):
            yield Path(str(one.locate_file(top))).resolve()


def _run(command: Sequence[str], requirements: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise InfrastructureError(
            f"no virtual environment can be made with {', '.join(requirements)}:\n{lines}\nFix: "
            "change workers.args.requirements. Quintain itself has "
            + ", ".join(f"{name} {v}" for name, v in _shared())
        )
