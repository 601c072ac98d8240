"""Hostile and honest programs in every provider, with real processes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import platform
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintain.errors import UsageError
from quintain_sandbox import Docker, Guarantee, ProbedSandbox, ProgramLimits

from .sandbox_programs import ATTACKS, FILES, FIRST_RUN, HONEST, PRELUDE, SECOND_RUN, Attack
from .sandbox_service import PROVIDERS, await_nothing, containers_of, left_behind, processes_of, started

LIMITS = ProgramLimits(seconds=1.5, memory=256 << 20, processes=48, disk=16 << 20, output=100_000)
PATIENT = dataclasses.replace(LIMITS, seconds=30.0, cpu_seconds=20.0)


@pytest.fixture(scope="module", params=PROVIDERS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[ProbedSandbox]:
    """One slot, so that each program runs where the one before it ran."""
    yield from started(request.param, slots=1)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A file, a server, an abstract socket and a process that no program may reach."""
    canary = tmp_path_factory.mktemp("host") / "canary"
    canary.write_text("SECRET 7261\n")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{canary}")
        listener.listen()
        port = str(server.getsockname()[1])
        yield {"$FILE": str(canary), "$PORT": port, "$ABSTRACT": str(canary), "$PID": str(os.getpid())}


def test_every_attack_has_a_name_of_its_own() -> None:
    """Attacks are told apart by name, and there are enough of both kinds."""
    assert len(ATTACKS) == len({attack.name for attack in ATTACKS}) >= 25
    assert len(HONEST) >= 30


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_is_held_and_the_next_honest_program_works(
    sandbox: ProbedSandbox, host: dict[str, str], attack: Attack
) -> None:
    """It reaches nothing, has a safe status in time, leaves nothing behind, and its slot serves the next program."""
    needs = attack.needs.split()
    if any(sandbox.guarantees[axis] is not Guarantee.ENFORCED for axis in needs):
        with pytest.raises(UsageError, match="does not enforce"):
            sandbox.require(needs)
        pytest.skip(f"{attack.needs} are not all enforced on this machine; the sandbox says so")
    if platform.machine() != "x86_64" and "call(" in attack.code:
        pytest.skip("numbers of system calls are those of x86-64")
    code = PRELUDE + attack.code
    for name, value in host.items():
        code = code.replace(name, value)
    descriptors = len(os.listdir("/proc/self/fd"))
    limits = LIMITS if "timeout" in attack.statuses.split() else PATIENT
    result = asyncio.run(sandbox.run({"attack.py": code.encode()}, ["python3", "-I", "attack.py"], limits=limits))
    said = result.stdout + result.stderr
    assert result.status in attack.statuses.split(), said[-2000:]
    assert b"BREACH" not in result.stdout, result.stdout[-2000:]
    assert b"held" in result.stdout or not attack.exact, said[-2000:]
    assert result.usage.memory <= limits.memory
    assert max(len(result.stdout), len(result.stderr)) <= limits.output
    honest = asyncio.run(sandbox.run({}, ["python3", "-I", "-c", "print(6 * 7)"], limits=PATIENT))
    assert ("ok", b"42\n") == (honest.status, honest.stdout)
    if isinstance(sandbox, Docker):
        assert result.usage.user is not None
        await_nothing(lambda: processes_of(result.usage.user), 5.0)
        await_nothing(lambda: containers_of(sandbox, result.usage.user), 20.0)  # at the engine's pace
    else:
        await_nothing(lambda: left_behind(result.usage.user), 1.0)
        assert descriptors >= len(os.listdir("/proc/self/fd"))
    assert Path(host["$FILE"]).read_text() == "SECRET 7261\n"


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes(sandbox: ProbedSandbox, name: str) -> None:
    """What ordinary programs do works in the sandbox."""
    code, expected = HONEST[name]
    files = FILES | {"main.py": code.encode()}
    result = asyncio.run(sandbox.run(files, ["python3", "main.py"], b"1\n2\n3\n", PATIENT))
    assert ("ok", expected) == (result.status, result.stdout.decode().strip()), result.stderr


def test_nothing_passes_from_one_run_to_the_next(sandbox: ProbedSandbox) -> None:
    """Shared memory, message queues and files of a run are gone in the next one of the slot."""
    first = asyncio.run(sandbox.run({}, ["python3", "-I", "-c", FIRST_RUN], limits=PATIENT))
    assert first.status == "ok"
    assert b"-1" not in first.stdout, first.stdout
    second = asyncio.run(sandbox.run({}, ["python3", "-I", "-c", SECOND_RUN], limits=PATIENT))
    assert b"-1 -1 ['box'] []\n" == second.stdout
