"""Agents that are programs: each runs in a folder of its own and under a guard, and nothing of it
stays.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quintain import InfrastructureError
from quintain.errors import UsageError
from quintain_sandbox import guarded

INHERITED = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "SYSTEMROOT",
    "SSL_CERT_FILE",
)
"""Variables that a program gets from the trainer's environment; keys of the user are not among
them.
"""
GUARD_SECONDS = 10.0
"""How long the guard may take to end a program; then it is killed itself."""
_CHUNK = 65536


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a program ended: exit status (128 + n after signal n) and what it wrote, cut at the
    limit.
    """

    status: int
    stdout: str
    stderr: str
    file: str = ""


async def run(
    argv: Sequence[str],
    stdin: bytes,
    variables: Mapping[str, str],
    *,
    most: int,
    result_file: str = "",
) -> Ended:
    """Run *argv* until it exits. When it has, or the call is cancelled, all of its processes are
    killed.

    Args:
        most: bytes of standard output, of standard error and of *result_file* that are kept; the
            rest is read and dropped.
        result_file: path within the program's folder of what it leaves; empty for none.

    Raises:
        UsageError: there is no such program.
        InfrastructureError: it cannot be started.
    """
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment = {**inherited, **variables}
    if shutil.which(argv[0], path=environment.get("PATH", os.defpath)) is None:
        raise UsageError(f"agent: there is no program {argv[0]!r} that can be executed")
    folder = tempfile.mkdtemp(prefix="quintain-agent-")
    environment = {"HOME": folder, "TMPDIR": folder, **environment}
    pipe = asyncio.subprocess.PIPE
    process = None
    try:
        process = await asyncio.create_subprocess_exec(
            *guarded(argv, grace=0), stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder,
            env=environment,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        reads = asyncio.gather(_kept(process.stdout, most), _kept(process.stderr, most))
        try:
            await _feed(process.stdin, stdin)
            stdout, stderr = await reads
            status = await process.wait()
        finally:
            reads.cancel()
        file = _read(Path(folder), result_file, most) if result_file else ""
        return Ended(status=status, stdout=stdout, stderr=stderr, file=file)
    except OSError as e:
        raise InfrastructureError(f"the agent's program {argv[0]!r} cannot be started: {e}") from e
    finally:
        if process is not None and process.returncode is None:
            await _end(process)
        shutil.rmtree(folder, ignore_errors=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let the guard kill the program and its descendants."""
    for signal in (process.terminate, process.kill):
        with suppress(ProcessLookupError, TimeoutError):
            signal()
            async with asyncio.timeout(GUARD_SECONDS):
                await process.wait()
                return


async def _kept(stream: asyncio.StreamReader, limit: int) -> str:
    kept = bytearray()
    while data := await stream.read(_CHUNK):
        kept += data[: max(0, limit - len(kept))]
    return kept.decode("utf-8", "replace")


async def _feed(stdin: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(ConnectionError):  # a program need not read it
        stdin.write(data)
        await stdin.drain()
        stdin.close()
        await stdin.wait_closed()


def _read(folder: Path, name: str, limit: int) -> str:
    """Return the file *name* of *folder*; empty if there is none. No link is followed out of the
    folder.
    """
    path = (folder / name).resolve()
    if folder.resolve() not in path.parents or not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(limit).decode("utf-8", "replace")
