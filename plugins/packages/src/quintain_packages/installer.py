"""What pip is asked: what it would install, the files of it, to install and to remove them.

pip always runs in the interpreter of this process, so what it changes is this environment.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from quintain import InfrastructureError
from quintain.errors import UsageError
from quintain.registry import normalise

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
LINES = 8
"""Lines of pip's complaint that a message shows."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where pip looks for files.

    Attributes:
        find_links: folders or pages of files.
        no_index: look nowhere else.
        build: take source archives, too, whose code runs when they are built.
    """

    find_links: Sequence[str] = ()
    no_index: bool = False
    build: bool = False

    def options(self) -> list[str]:
        """Return them as options of pip."""
        links = [
            place if "://" in place else str(Path(place).resolve()) for place in self.find_links
        ]
        return [
            *(word for place in links for word in ("--find-links", place)),
            *(["--no-index"] if self.no_index else []),
            *([] if self.build else ["--only-binary", ":all:"]),
        ]


@dataclass(frozen=True, kw_only=True)
class Item:
    """A distribution that pip would install.

    Attributes:
        url: of the file.
        sha256: ``"sha256:..."`` of the file.
    """

    name: str
    version: str
    url: str
    sha256: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Item:
        """Return the item of a row of pip's report.

        Raises:
            UsageError: it is no file, but a folder or a repository.
        """
        name, place = row["metadata"]["name"], row["download_info"]
        hashes = place.get("archive_info", {}).get("hashes", {})
        if "sha256" not in hashes:
            raise UsageError(
                f"{name} comes from {place['url']}, which has no hash; build a wheel of it, and name "
                "the wheel"
            )
        return cls(
            name=normalise(name),
            version=row["metadata"]["version"],
            url=place["url"],
            sha256=f"sha256:{hashes['sha256']}",
        )

    def pinned(self, *more: str) -> str:
        """Return the line of a requirements file that takes this file alone, or one of the hashes
        *more*.
        """
        hashes = " ".join(f"--hash={value}" for value in dict.fromkeys((self.sha256, *more)))
        return f"{self.name}=={self.version} {hashes}"


class Unresolved(InfrastructureError):
    """pip finds no versions that go together."""


def installed() -> dict[str, str]:
    """Return the versions of what is installed here, by normalised name."""
    found: dict[str, str] = {}
    for one in distributions():
        if name := normalise(one.metadata["Name"] or ""):
            found.setdefault(name, one.version)
    return found


def needed_by(name: str) -> list[str]:
    """Return the installed distributions that require *name*."""
    users = set()
    for one in distributions():
        needs = {normalise(re.split(r"[^\w.-]", r, maxsplit=1)[0]) for r in _requires(one)}
        if name in needs:
            users.add(normalise(one.metadata["Name"] or ""))
    return sorted(users - {name})


def _requires(one: Any) -> Iterator[str]:
    yield from (r for r in one.requires or () if "extra ==" not in r)


def install_folders(name: str) -> dict[str, Path]:
    """Return the folders into which pip puts files of the distribution *name*, by the names that a
    wheel has for them.
    """
    paths = sysconfig.get_paths()
    headers = Path(paths["include"])
    if sys.prefix != sys.base_prefix:  # pip's own place for headers in a virtual environment
        headers = Path(sys.prefix, "include", "site", f"python{sysconfig.get_python_version()}")
    folders = {key: Path(paths[key]) for key in ("purelib", "platlib", "scripts", "data")}
    return {**folders, "headers": headers / name}


def packages_folder() -> Path:
    """Return the folder that packages are installed into."""
    return install_folders("")["purelib"]


def resolve(requirement: str, sources: Sources, scratch: Path, *, keep: bool = True) -> list[Item]:
    """Return what pip would install for *requirement*; nothing is changed.

    Args:
        scratch: a folder for a file.
        keep: leave what is installed at its version.

    Raises:
        Unresolved: pip finds nothing that fits; the message has its last lines.
    """
    report = scratch / "report.json"
    words = ["install", "--quiet", "--dry-run", "--report", str(report), *sources.options()]
    if keep:
        constraints = scratch / "constraints.txt"
        lines = [f"{name}=={version}\n" for name, version in sorted(installed().items())]
        constraints.write_text("".join(lines), encoding="utf-8")
        words += ["--constraint", str(constraints)]
    done = _pip([*words, requirement])
    if done.returncode:
        wheels = "" if sources.build else "\nOnly wheels are taken without --build"
        raise Unresolved(f"pip cannot install {requirement}:\n{_said(done)}{wheels}")
    rows = json.loads(report.read_text(encoding="utf-8"))["install"]
    return [Item.of(row) for row in rows]


def wheel_of(item: Item, sources: Sources, scratch: Path, direct: str = "") -> Path:
    """Return the wheel of a file, which is downloaded, and built where it is a source archive.

    Args:
        direct: its address, where pip was given one.

    Raises:
        InfrastructureError: pip cannot, or the file has another hash.
    """
    folder, lines = scratch / "wheel", scratch / "one.txt"
    line = item.pinned()
    if direct:
        line = f"{item.name} @ {item.url} --hash={item.sha256}"
    lines.write_text(line + "\n", encoding="utf-8")
    words = ["wheel", "--quiet", "--no-deps", "--require-hashes", "--wheel-dir", str(folder)]
    _checked([*words, *sources.options(), "--requirement", str(lines)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(lines: Sequence[str], sources: Sources, scratch: Path) -> None:
    """Install exactly the files of *lines*, which are those of `Item.pinned`.

    Raises:
        InfrastructureError: pip cannot, or a file has another hash.
    """
    pins = scratch / "pins.txt"
    pins.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["install", "--quiet", "--no-deps", "--require-hashes"]
    _checked([*words, *sources.options(), "--requirement", str(pins)])


def uninstall(names: Sequence[str]) -> None:
    """Remove distributions; one that is not installed is no error.

    Raises:
        InfrastructureError: pip cannot.
    """
    if names:
        _checked(["uninstall", "--quiet", "--yes", *names])


def _checked(words: Sequence[str]) -> None:
    done = _pip(words)
    if done.returncode:
        raise InfrastructureError(f"pip {words[0]} failed:\n{_said(done)}")


def _pip(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("pip") is None:
        raise UsageError(f"there is no pip here: {sys.executable} -m ensurepip")
    return subprocess.run([*PIP, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """Return the end of what pip said, without its warnings."""
    said = (done.stderr + done.stdout).strip().splitlines()
    lines = [line for line in said if line.strip() and not line.startswith("WARNING")]
    return "\n".join(lines[-LINES:])
