"""Agents that are programs: each runs in a folder and a process group of its own, and nothing of it stays."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quintain import InfrastructureError
from quintain.errors import UsageError

MARK = "QUINTAIN_EPISODE"
"""Variable with a value of its own for each run, by which processes that left the group are found."""
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
"""Variables that a program gets from the trainer's environment; keys of the user are not among them."""
POLL_SECONDS = 0.02
_CHUNK = 65536


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a program ended: exit status (128 + n after signal n) and what it wrote, cut at the limit."""

    status: int
    stdout: str
    stderr: str
    file: str = ""


async def run(
    argv: Sequence[str], stdin: bytes, variables: Mapping[str, str], *, most: int, result_file: str = ""
) -> Ended:
    """Run *argv* until it exits. When it has, or the call is cancelled, all of its processes are killed.

    Args:
        most: bytes of standard output, of standard error and of *result_file* that are kept; the rest is read and
            dropped.
        result_file: path within the program's folder of what it leaves; empty for none.

    Raises:
        UsageError: there is no such program.
        InfrastructureError: it cannot be started.
    """
    folder, mark = tempfile.mkdtemp(prefix="quintain-agent-"), secrets.token_hex(16)
    own = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment = {**own, "HOME": folder, "TMPDIR": folder, **variables, MARK: mark}
    pipe = asyncio.subprocess.PIPE
    process = None
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder, env=environment, start_new_session=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        reads = asyncio.gather(_kept(process.stdout, most), _kept(process.stderr, most))
        try:
            await _feed(process.stdin, stdin)
            status = await _exit(process)
            kill(process.pid, mark)  # what it left running holds the pipes open
            stdout, stderr = await reads
        finally:
            reads.cancel()
        file = _read(Path(folder), result_file, most) if result_file else ""
        return Ended(status=status if status >= 0 else 128 - status, stdout=stdout, stderr=stderr, file=file)
    except FileNotFoundError as e:
        raise UsageError(f"agent: there is no program {argv[0]!r}") from e
    except OSError as e:
        raise InfrastructureError(f"the agent's program {argv[0]!r} cannot be started: {e}") from e
    finally:
        if process is not None:
            kill(process.pid, mark)
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    await process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def kill(group: int, mark: str) -> None:
    """Kill the process group, and on Linux whatever else has *mark* in its environment."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)


async def _exit(process: asyncio.subprocess.Process) -> int:
    """Its status once it has exited. `Process.wait` also waits for the pipes, which its orphans hold open."""
    while process.returncode is None:  # noqa: ASYNC110 - there is no event for the exit alone
        await asyncio.sleep(POLL_SECONDS)
    return process.returncode


async def _kept(stream: asyncio.StreamReader, most: int) -> str:
    kept = bytearray()
    while data := await stream.read(_CHUNK):
        kept += data[: max(0, most - len(kept))]
    return kept.decode("utf-8", "replace")


async def _feed(stdin: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(ConnectionError):  # a program need not read it
        stdin.write(data)
        await stdin.drain()
        stdin.close()
        await stdin.wait_closed()


def _read(folder: Path, name: str, most: int) -> str:
    """The file *name* of *folder*; empty if there is none. No link is followed out of the folder."""
    path = (folder / name).resolve()
    if folder.resolve() not in path.parents or not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(most).decode("utf-8", "replace")
