"""Hostile and honest programs in every provider, with real processes.

The programs of a provider run in several lanes at one time, because many of them wait for their
limit. The next program of a lane has the user of the one before it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import queue
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import UsageError
from quintain_sandbox import Docker, Guarantee, ProbedSandbox, Program, ProgramLimits, ProgramResult
from quintain_sandbox.landlock import ConfinedSandbox
from quintain_sandbox.program import ENVIRONMENT
from quintain_sandbox.users import give_back_user, take_user

from ...lanes import asked_for, mostly_slow
from .programs import ATTACKS, FIRST_RUN, PRELUDE, SECOND_RUN, Attack
from .programs_honest import COMPILED, FILES, HONEST, SHARED_MEMORY, SOCKETS
from .service import (
    PROVIDERS,
    await_nothing,
    containers_of,
    left_behind,
    processes_of,
    run_as,
    started,
)

LIMITS = ProgramLimits(seconds=0.6, memory=256 << 20, processes=48, disk=16 << 20, output=100_000)
PATIENT = dataclasses.replace(LIMITS, seconds=60.0, cpu_seconds=20.0)
LANES = 4
NEXT = Program(argv=["python3", "-c", "import json, site; print(6 * 7)"], limits=PATIENT)
"""The honest program after each attack. It reads start-up files and the working directory, as
programs do.
"""


FIRST_OF_NEEDS = set({attack.needs: attack.name for attack in reversed(ATTACKS)}.values())
"""An attack for every set of guarantees that one needs: these are in each test run."""
KERNEL = """
print|threads|process pool|subprocess|temporary file|a second module|sqlite|local server|pair of sockets|80 MB of memory
|10 MB in a file|signal handler|alarm handler|fork and wait|mmap|ctypes|user and home|named pipe|shared memory
|lock of a file|time zones|links|permissions of files|a child of asyncio|40 threads|lower its own limits|record locks
|a script of the shell
""".replace("\n", "").split("|")
"""Honest programs that ask the kernel for something, which a box may refuse by mistake: these are in
each test run, the others compute.
"""


@pytest.fixture(scope="module", params=PROVIDERS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[ProbedSandbox]:
    yield from started(request.param, slots=1)


@pytest.fixture(scope="module")
def host() -> Iterator[dict[str, str]]:
    """A file, servers and a process that no program may reach, though the rights of files allow
    it.
    """
    folder = Path(tempfile.mkdtemp(prefix="canary-"))
    canary = folder / "canary"
    canary.write_text("SECRET 7261\n")
    canary.chmod(0o666)
    folder.chmod(0o777)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        names = {
            "$FILE": canary,
            "$ABSTRACT": canary,
            "$SOCKET": folder / "stream",
            "$DATAGRAM": folder / "datagram",
        }
        names |= {"$PORT": server.getsockname()[1], "$PID": os.getpid()}
        abstract.bind(f"\0{canary}")
        abstract.listen()
        with (
            socket.socket(socket.AF_UNIX) as stream,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
        ):
            for listener, path in ((stream, folder / "stream"), (datagram, folder / "datagram")):
                listener.bind(str(path))
                path.chmod(0o777)
            stream.listen()
            yield {name: str(value) for name, value in names.items()}
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Outcome:
    """What came of an attack: its result, that of the next honest program, and what was left a
    second later.
    """

    result: ProgramResult
    following: ProgramResult
    left: str


def in_lanes(
    sandbox: ProbedSandbox, jobs: Mapping[str, Callable[[int | None], Any]]
) -> dict[str, Any]:
    """What each of *jobs* returns or raises. A lane calls one after another with its user."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in jobs:
        waiting.put(name)
    found: dict[str, Any] = {}

    def lane() -> None:
        user = take_user()
        try:
            while True:
                name = waiting.get_nowait()
                try:
                    found[name] = jobs[name](user)
                except Exception as e:
                    found[name] = e
        except queue.Empty:
            give_back_user(user)

    threads = [threading.Thread(target=lane) for _ in range(LANES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def unmet(sandbox: ProbedSandbox, attack: Attack) -> list[str]:
    return [
        axis for axis in attack.needs.split() if sandbox.guarantees[axis] is not Guarantee.ENFORCED
    ]


@pytest.fixture(scope="module")
def outcomes(
    sandbox: ProbedSandbox, host: dict[str, str], request: pytest.FixtureRequest
) -> dict[str, Outcome | Exception]:
    """What came of each attack whose needs the provider meets."""
    descriptors = len(os.listdir("/proc/self/fd"))

    def job(attack: Attack) -> Callable[[int | None], Outcome]:
        code = PRELUDE + attack.code
        for name, value in host.items():
            code = code.replace(name, value)
        limits = LIMITS if "timeout" in attack.statuses.split() else PATIENT
        program = Program(
            argv=["python3", "-I", "attack.py"], files={"attack.py": code.encode()}, limits=limits
        )

        def run(user: int | None) -> Outcome:
            result = run_as(sandbox, user, program)
            following = run_as(sandbox, user, NEXT)
            return Outcome(
                result, following, left_by(result, 5.0 if isinstance(sandbox, Docker) else 1.0)
            )

        return run

    found = in_lanes(
        sandbox, {a.name: job(a) for a in asked_for(request, "attack") if not unmet(sandbox, a)}
    )
    if not isinstance(sandbox, Docker):
        await_nothing(lambda: left_behind(None), 1.0)
        assert descriptors >= len(os.listdir("/proc/self/fd"))
    return found


def left_by(result: ProgramResult, seconds: float) -> str:
    """What a program with a user of its own left, after some *seconds*."""
    user = result.usage.user
    if user in (None, os.getuid()):
        return ""
    try:
        await_nothing(lambda: processes_of(user), seconds)
    except AssertionError as e:
        return str(e)
    return ""


def test_there_are_enough_programs() -> None:
    """Attacks are told apart by name, and there are enough of both kinds."""
    assert len(ATTACKS) == len({attack.name for attack in ATTACKS}) >= 70
    assert len(HONEST) >= 120


@pytest.mark.parametrize(
    "attack",
    mostly_slow(ATTACKS, FIRST_OF_NEEDS, name=attrgetter("name")),
    ids=attrgetter("name"),
)
def test_an_attack_is_held_and_the_next_honest_program_works(
    sandbox: ProbedSandbox,
    outcomes: dict[str, Outcome | Exception],
    host: dict[str, str],
    attack: Attack,
) -> None:
    """It reaches nothing, has a safe status in time, leaves nothing behind, and its slot serves the
    next program.

    A provider that does not enforce what the attack needs refuses to do so.
    """
    if lacking := unmet(sandbox, attack):
        with pytest.raises(
            UsageError, match=f"(?s)does not enforce.*{lacking[0]}: (absent|best effort); "
        ):
            sandbox.require(attack.needs.split())
        return
    if platform.machine() != "x86_64" and "call(" in attack.code:
        pytest.skip("numbers of system calls are those of x86-64")
    outcome = outcomes[attack.name]
    if isinstance(outcome, Exception):
        raise outcome
    result, limits = outcome.result, LIMITS
    said = result.stdout + result.stderr
    assert result.status in attack.statuses.split(), said[-2000:]
    assert b"BREACH" not in result.stdout, result.stdout[-2000:]
    assert b"held" in result.stdout or not attack.exact, said[-2000:]
    assert result.usage.memory <= limits.memory
    assert max(len(result.stdout), len(result.stderr)) <= limits.output
    assert outcome.following.status == "ok", outcome.following.stderr
    assert outcome.following.stdout == b"42\n", outcome.following.stderr
    assert outcome.left == ""
    if isinstance(sandbox, Docker):
        user = result.usage.user
        assert user is not None
        await_nothing(lambda: containers_of(sandbox, user), 20.0)  # at the engine's pace
    assert Path(host["$FILE"]).read_text() == "SECRET 7261\n"
    assert {"canary", "stream", "datagram"} == set(os.listdir(Path(host["$FILE"]).parent))


@pytest.fixture(scope="module")
def honest(
    sandbox: ProbedSandbox, request: pytest.FixtureRequest
) -> dict[str, ProgramResult | Exception]:
    """What came of each honest program."""

    def job(
        argv: Sequence[str], files: Mapping[str, bytes]
    ) -> Callable[[int | None], ProgramResult]:
        program = Program(argv=argv, files=files, stdin=b"1\n2\n3\n", limits=PATIENT)
        return lambda user: run_as(sandbox, user, program)

    jobs = {
        n: job(["python3", "main.py"], FILES | {"main.py": HONEST[n][0].encode()})
        for n in asked_for(request, "name")
    }
    for name in asked_for(request, "compiled"):
        source, file, command, _ = COMPILED[name]
        jobs[name] = job(
            ["sh", "-c", f"command -v cc >/dev/null || exit 77; {command}"], {file: source.encode()}
        )
    return in_lanes(sandbox, jobs)


def printed(outcome: ProgramResult | Exception) -> str:
    """What a program that ended well wrote."""
    if isinstance(outcome, Exception):
        raise outcome
    assert outcome.status == "ok", (outcome.status, outcome.exit, outcome.stderr[-1000:])
    return outcome.stdout.decode("utf-8", "replace").strip()


@pytest.mark.parametrize("name", mostly_slow(HONEST, KERNEL))
def test_an_honest_program_passes(
    sandbox: ProbedSandbox, honest: dict[str, ProgramResult | Exception], name: str
) -> None:
    """What ordinary programs do works in the sandbox. What `landlock` lacks is what its
    documentation says.
    """
    if sandbox.name == "landlock" and name in SHARED_MEMORY | SOCKETS:
        outcome = honest[name]
        assert isinstance(outcome, ProgramResult)
        assert outcome.status == "failed"
        assert re.search(rb"PermissionError|not supported by protocol", outcome.stderr), (
            outcome.stderr
        )
        return
    outcome = honest[name]
    if isinstance(outcome, ProgramResult) and outcome.exit == 77:
        pytest.skip("the box has no data of time zones")
    assert HONEST[name][1] == printed(outcome)


@pytest.mark.parametrize("compiled", COMPILED)
def test_a_compiled_program_passes(
    sandbox: ProbedSandbox, honest: dict[str, ProgramResult | Exception], compiled: str
) -> None:
    """The compiler runs in the box, and so does what it makes."""
    outcome = honest[compiled]
    if isinstance(outcome, ProgramResult) and outcome.exit == 77:
        pytest.skip("the box has no C compiler")
    assert COMPILED[compiled][-1] == printed(outcome)


def test_every_provider_has_the_same_environment(sandbox: ProbedSandbox) -> None:
    """User, language and search path of a program are no matter of the provider; it starts in its
    home.
    """
    code = "import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"
    result = run_as(sandbox, None, Program(argv=["python3", "-I", "-c", code], limits=PATIENT))
    environment, folder = json.loads(result.stdout)
    assert folder == environment["HOME"]
    assert environment["HOME"].startswith(environment["TMPDIR"])
    folders = (
        {name: environment[name] for name in ("HOME", "TMPDIR")}
        if isinstance(sandbox, ConfinedSandbox)
        else {}
    )
    assert environment.items() >= {**ENVIRONMENT, **folders}.items()


@pytest.mark.more
def test_nothing_passes_from_one_run_to_the_next(sandbox: ProbedSandbox) -> None:
    """Shared memory, message queues, semaphores and files of a run are gone in the next one of the
    user.
    """
    if sandbox.guarantees["filesystem"] is not Guarantee.ENFORCED:
        with pytest.raises(UsageError, match="filesystem: absent"):
            sandbox.require(["filesystem"])
        return
    user = take_user()
    first, second = (
        run_as(sandbox, user, Program(argv=["python3", "-I", "-c", code], limits=PATIENT))
        for code in (FIRST_RUN, SECOND_RUN)
    )
    give_back_user(user)
    assert int(printed(first)) >= 1
    assert printed(second) == "[]"
