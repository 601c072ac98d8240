"""The image of the provider `docker`, made of this machine's own Python and tools, so that no registry is needed.

It holds the interpreter with its standard library, compiled, a shell and the usual small tools, and the shared
libraries that these need. Equal contents have equal tags.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import IO, Any

from quintain import InfrastructureError
from quintain.errors import UsageError

FORMAT = 1
"""Raised when the same contents are to give another image."""
TOOLS = """
sh bash awk base64 basename cat chmod cmp comm cp cut date dd diff dirname du echo env expr false find fold grep
gzip head id join kill ln ls mkdir mkfifo mktemp mv nl od paste printf ps pwd readlink realpath rm rmdir sed seq
sha256sum sleep sort split stat su tac tail tar tee test timeout touch tr true tty uname uniq wc which xargs yes
""".split()
"""Copied where this machine has them."""
NEEDED = ("sh", "mkdir", "dd", "sleep")
EXCLUDED = frozenset({"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter",
                      "turtledemo", "ensurepip", "lib2to3"})  # fmt: skip
"""Folders of the standard library that programs do not need."""
FOLDERS = {
    "dev": 0o755,
    "etc": 0o755,
    "proc": 0o755,
    "sys": 0o755,
    "tmp": 0o1777,
    "run": 0o755,
    "usr/local/bin": 0o755,
}
LINKS = {"bin": "usr/bin", "sbin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}

Progress = Callable[[str], None]


@dataclass
class Image:
    """The files of an image.

    Attributes:
        files: contents, or the path of the file that has them, and the mode, by path without a leading slash.
        links: targets of symbolic links, by path.
    """

    files: dict[str, tuple[bytes | Path, int]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=lambda: dict(LINKS))

    def digest(self) -> str:
        """Return the SHA-256 of all paths, modes and contents, without compiled modules: equal
        sources differ in them.
        """
        total = hashlib.sha256(str(FORMAT).encode())
        for path, (content, mode) in sorted(self.files.items()):
            if path.endswith(".pyc"):
                continue
            data = content if isinstance(content, bytes) else content.read_bytes()
            total.update(f"{path}\0{mode}\0{hashlib.sha256(data).hexdigest()}\n".encode())
        total.update(repr(sorted(self.links.items())).encode())
        return total.hexdigest()

    def write_archive(self, file: IO[bytes]) -> None:
        """Write a tar archive for ``docker import``."""
        with tarfile.open(fileobj=file, mode="w") as tar:
            for path, mode in FOLDERS.items():
                tar.addfile(_entry(path, mode, type=tarfile.DIRTYPE))
            for path, target in sorted(self.links.items()):
                tar.addfile(_entry(path, 0o777, type=tarfile.SYMTYPE, linkname=target))
            for path, (content, mode) in sorted(self.files.items()):
                data = content if isinstance(content, bytes) else content.read_bytes()
                tar.addfile(_entry(path, mode, size=len(data)), io.BytesIO(data))


def _entry(path: str, mode: int, **more: Any) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.mode = mode
    for name, value in more.items():
        setattr(entry, name, value)
    return entry


def python_image(
    users: Iterable[int], home: str, packages: Iterable[str] = (), progress: Progress = print
) -> Image:
    """Return an image with this interpreter's base Python.

    Args:
        users: user ids that programs may have; all are named ``nobody``.
        home: their home folder.
        packages: installed distributions to add, each with the installed ones that it requires.
        progress: called with a line for each part.

    Raises:
        InfrastructureError: a tool or a library is missing on this machine.
        UsageError: a distribution is not installed.
    """
    image, chosen = Image(), list(_with_requirements(packages))
    progress("tools")
    binaries = _add_tools(image)
    progress(f"python {sys.version.split()[0]}")
    binaries += _add_python(image)
    if chosen:
        progress(", ".join(f"{d.metadata['Name']} {d.version}" for d in chosen))
        binaries += [path for d in chosen for path in _add_distribution(image, d)]
    progress("shared libraries")
    _add_libraries(image, binaries)
    lines = "".join(f"nobody:x:{user}:{user}:nobody:{home}:/bin/sh\n" for user in users)
    image.files["etc/passwd"] = (f"root:x:0:0:root:/:/bin/sh\n{lines}".encode(), 0o644)
    image.files["etc/group"] = (b"root:x:0:\n", 0o644)
    return image


def _add_tools(image: Image) -> list[Path]:
    """Add the tools by their names; several names of one file become links to it."""
    places: list[Path] = []
    for name in TOOLS:
        path = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        real = Path(path or "").resolve()
        if path is None or not _is_elf(real):
            if name in NEEDED:
                raise InfrastructureError(
                    f"the image needs {name!r}, which this machine does not have on its PATH"
                )
            continue
        image.files[f"usr/bin/{real.name}"] = (real, 0o755)
        if real.name != name:
            image.links[f"usr/bin/{name}"] = real.name
        places.append(real)
    return places


def _add_python(image: Image) -> list[Path]:
    """Return the interpreter of `sys.base_prefix` below ``/usr``, where it finds its library by its own place."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    image.files[f"usr/bin/{version}"] = (executable, 0o755)
    image.links |= {"usr/bin/python3": version, "usr/bin/python": version}
    target = f"usr/{sys.platlibdir}/{version}"
    binaries = [executable]
    library = Path(sysconfig.get_path("stdlib"))
    for folder, names, files in os.walk(library):
        place = Path(folder).relative_to(library)
        names[:] = sorted(
            n
            for n in names
            if n not in EXCLUDED and n != "lib-dynload" and not n.startswith("config-")
        )
        for name in sorted(files):
            _add_module(image, Path(folder, name), f"{target}/{place / name}")
    extensions = Path(sysconfig.get_config_var("DESTSHARED") or library / "lib-dynload")
    for path in sorted(extensions.glob("*.so")):
        if not path.name.startswith(("_tkinter", "_test", "_xxtest", "_ctypes_test", "xx")):
            image.files[f"{target}/lib-dynload/{path.name}"] = (path.resolve(), 0o644)
            binaries.append(path.resolve())
    return binaries


def _add_module(image: Image, path: Path, target: str) -> None:
    """Add a file of a library; of Python source also the compiled form, which a read-only image
    cannot make later.
    """
    if path.suffix == ".pyc":
        return
    image.files[target] = (path, 0o644)
    if path.suffix != ".py":
        return
    source = path.read_bytes()
    try:
        code = compile(source, f"/{target}", "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError):  # a template, or a test of the compiler
        return
    unchecked = (1).to_bytes(4, "little")
    data = (
        importlib.util.MAGIC_NUMBER
        + unchecked
        + importlib.util.source_hash(source)
        + marshal.dumps(code)
    )
    image.files[importlib.util.cache_from_source(target)] = (data, 0o644)


def _with_requirements(names: Iterable[str]) -> Iterator[Distribution]:
    """Yield the distributions of *names* and, of what they require, those that are installed."""
    requested, todo, seen = set(names), list(names), set[str]()
    while todo:
        name = todo.pop(0)
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in seen:
            continue
        seen.add(key)
        try:
            installed = distribution(name)
        except PackageNotFoundError as e:
            if name in requested:
                raise UsageError(
                    f"{name!r} is not installed here; the image takes packages of this machine: pip install {name}"
                ) from e
            continue
        yield installed
        todo += [
            m[0]
            for r in installed.requires or ()
            if "extra ==" not in r and (m := re.match(r"[\w.-]+", r))
        ]


def _add_distribution(image: Image, installed: Distribution) -> list[Path]:
    """Return the files of a distribution; the extension modules among them."""
    target = _site_packages()
    extensions = []
    for file in installed.files or ():
        path = Path(str(installed.locate_file(file))).resolve()
        if ".." in file.parts or "__pycache__" in file.parts or not path.is_file():
            continue
        _add_module(image, path, f"{target}/{file}")
        if path.suffix == ".so" or ".so." in path.name:
            extensions.append(path)
    return extensions


def _site_packages() -> str:
    """Return where the base Python looks for packages when its prefix is ``/usr``."""
    code = "import site; print(site.getsitepackages(['/usr'])[0])"
    base = getattr(sys, "_base_executable", sys.executable)
    return subprocess.check_output([base, "-I", "-c", code], text=True).strip().lstrip("/")


def _add_libraries(image: Image, binaries: Iterable[Path]) -> None:
    """Add what the loader finds for *binaries*, and the loader itself, at the same paths.

    Libraries outside the loader's own folders, such as one beside a Python in a home folder, go beside libc.
    """
    libraries: dict[str, Path] = {}
    for binary in dict.fromkeys(binaries):
        libraries |= _needed_libraries(binary)
    libc = next(
        (place for place in libraries if re.search(r"/(libc\.so|libc\.musl|ld-musl)", place)), None
    )
    if libc is None:
        raise InfrastructureError(
            "ldd finds no C library for the tools of this machine; the image cannot be built"
        )
    beside = Path(libc).parent
    if (unwinder := beside / "libgcc_s.so.1").exists():  # loaded by name when a thread ends
        libraries[str(unwinder)] = unwinder
    for place, path in libraries.items():
        is_standard = re.match(r"/(usr/)?lib(32|64|x32)?/", place)
        target = (place if is_standard else str(beside / Path(place).name)).lstrip("/")
        image.files[target if target.startswith("usr/") else f"usr/{target}"] = (
            path.resolve(),
            0o755,
        )


def _needed_libraries(binary: Path) -> dict[str, Path]:
    """Return the shared libraries of a file by the place where the loader looks for each."""
    run = partial(subprocess.run, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    try:
        listing = run(["ldd", str(binary)]).stdout
    except FileNotFoundError as e:
        raise InfrastructureError(
            "the image needs ldd, which comes with the C library (Debian: libc-bin)"
        ) from e
    if missing := re.findall(r"(\S+) => not found", listing):
        raise InfrastructureError(
            f"{binary} needs {', '.join(missing)}, which this machine does not have"
        )
    places = re.findall(r"^\s*(?:\S+ => )?(/\S+) \(0x", listing, re.M)
    return {os.path.normpath(place): Path(place) for place in places}


def _is_elf(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"
