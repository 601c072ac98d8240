"""pytest as one file, for a sandbox whose Python does not have it."""

from __future__ import annotations

import importlib.util
import io
import marshal
import zipfile
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

DISTRIBUTIONS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""pytest and what it imports, all of it pure Python."""
LEFT_OUT = ("pygments/lexers/", "pygments/styles/", "pygments/formatters/")
"""Most of pygments, which colours the tracebacks that nobody reads."""
KEPT = ("__init__.py", "_mapping.py", "terminal.py", "python.py", "diff.py", "default.py")


@cache
def pytest_archive() -> bytes:
    """Return a zip archive to put on ``sys.path``: the sources of pytest, and byte code, which
    another Python ignores.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in DISTRIBUTIONS:
            try:
                files = distribution(name).files or []
            except PackageNotFoundError:  # of a pytest that needs fewer
                continue
            for file in files:
                path = file.as_posix()
                unused = path.startswith(LEFT_OUT) and not path.endswith(KEPT)
                if path.endswith("dist-info/METADATA"):
                    archive.writestr(path, file.read_binary())
                elif path.endswith(".py") and not path.startswith("..") and not unused:
                    archive.writestr(path, source := file.read_binary())
                    archive.writestr(path + "c", _compiled(source, path))
    return buffer.getvalue()


def _compiled(source: bytes, path: str) -> bytes:
    """Return byte code whose header says that it is not checked against the source (PEP 552)."""
    code = compile(source, path, "exec", dont_inherit=True)
    return (
        importlib.util.MAGIC_NUMBER
        + (1).to_bytes(4, "little")
        + importlib.util.source_hash(source)
        + marshal.dumps(code)
    )
