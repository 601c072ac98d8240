"""The protocol of sandboxes and the provider `bubblewrap`: results, limits, failures, probes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import InfrastructureError, UsageError
from quintain.recipe.tables import ComponentTable
from quintain.services.manager import started_services
from quintain_sandbox import (
    AXES,
    Bubblewrap,
    Guarantee,
    ProgramLimits,
    ProgramResult,
    Usage,
    bpf,
    bubblewrap,
    local,
    probe,
)
from quintain_sandbox.cgroups import ControlGroup, Controllers, own_controllers

from .service import left_behind, started

PATIENT = ProgramLimits(seconds=30.0, cpu_seconds=30.0)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Bubblewrap]:
    yield from started(slots=2)


def run(sandbox: Bubblewrap, code: str, stdin: bytes = b"", **limits: float) -> ProgramResult:
    asked = dataclasses.replace(PATIENT, **limits)  # type: ignore[arg-type]
    return asyncio.run(sandbox.run({}, ["python3", "-I", "-c", code], stdin, asked))


def children() -> list[int]:
    """Processes of bubblewrap that this process' launchers started."""
    return [int(name.split()[1]) for name in left_behind(None) if name.endswith(" bwrap")]


def parent(pid: int) -> int:
    """The process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_result_has_streams_exit_status_and_usage(sandbox: Bubblewrap) -> None:
    """A program that ends by itself is ok with exit status 0 and failed with any other."""
    result = run(sandbox, "import sys; print(input()); print('e', file=sys.stderr)", b"hello\n")
    assert result.status == "ok"
    assert result.exit == 0
    assert result.stdout == b"hello\n"
    assert result.stderr == b"e\n"
    assert result.truncated == ()
    assert 0 < result.usage.seconds < 30
    assert 0 < result.usage.cpu_seconds < 30
    assert (1 << 20) < result.usage.memory < PATIENT.memory
    failed = run(sandbox, "raise SystemExit(7)")
    assert failed.status == "failed"
    assert failed.exit == 7
    crashed = run(sandbox, "import ctypes; ctypes.string_at(0)")
    assert crashed.status == "failed"
    assert crashed.exit == 128 + signal.SIGSEGV


def test_limits_are_statuses(sandbox: Bubblewrap) -> None:
    """Time, CPU time, memory and output have a status each, and what was printed before is kept."""
    late = run(sandbox, "import time; print('a', flush=True); time.sleep(60)", seconds=0.5)
    assert late.status == "timeout"
    assert late.exit is None
    assert late.stdout == b"a\n"
    assert run(sandbox, "while True: pass", cpu_seconds=1.0).status == "timeout"
    flood = run(sandbox, "while True: print('x' * 99)", output=1000)
    assert flood.status == "output"
    assert flood.truncated == ("stdout",)
    assert len(flood.stdout) == 1000
    exact = run(sandbox, "print('x' * 999)", output=1000)
    assert exact.status == "ok"
    assert len(exact.stdout) == 1000
    over = run(sandbox, "print('x' * 1000)", output=1000)
    assert over.status == "output"
    assert len(over.stdout) == 1000
    if sandbox.guarantees["memory"] is Guarantee.ENFORCED:
        assert run(sandbox, "b'x' * (1 << 28)", memory=64 << 20).status == "memory"


def test_a_program_is_killed_within_a_quarter_of_a_second_of_its_limit(sandbox: Bubblewrap) -> None:
    """The best of five, because a loaded machine is late for reasons of its own."""
    took = min(
        run(sandbox, "import time; time.sleep(60)", seconds=0.3).usage.seconds for _ in range(5)
    )
    assert 0.3 <= took <= 0.55


def test_large_streams_pass_whole(sandbox: Bubblewrap) -> None:
    """Standard input and output larger than pipes move at the same time."""
    data = os.urandom(1 << 19).hex().encode()
    result = run(sandbox, "import sys; sys.stdout.write(sys.stdin.read())", data, output=1 << 21)
    assert result.status == "ok"
    assert result.stdout == data
    assert run(sandbox, "print('never reads')", data).stdout == b"never reads\n"


@pytest.mark.parametrize(
    "name", ["/etc/x", "../x", "a/../../x", "", "a\0b", "d/" * 20 + "x", "x" * 600]
)
def test_files_outside_the_working_directory_are_refused(sandbox: Bubblewrap, name: str) -> None:
    """Names are relative, without '..' and NUL, and bounded."""
    with pytest.raises(UsageError, match="outside the working directory"):
        asyncio.run(sandbox.run({name: b""}, ["true"]))


def test_text_is_written_as_utf_8(sandbox: Bubblewrap) -> None:
    """Files and standard input may be text; streams of the result are bytes."""
    program = "import sys; print(open('data.txt').read(), sys.stdin.read())"
    result = asyncio.run(
        sandbox.run({"main.py": program, "data.txt": "né"}, ["python3", "main.py"], "√2", PATIENT)
    )
    assert result.status == "ok"
    assert "né √2\n".encode() == result.stdout

    async def talk() -> bytes:
        async with sandbox.start(
            {"main.py": "print(input()[::-1])"}, ["python3", "main.py"], PATIENT
        ) as program:
            await program.write("∞x\n")
            return await program.read_line(seconds=20)

    assert "x∞\n".encode() == asyncio.run(talk())


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"stdin": 5}, "stdin is a int; expected bytes or text"),
        ({"stdin": "\ud800"}, "stdin has characters that UTF-8 cannot encode.*give bytes"),
        ({"files": {"a.py": None}}, r"files\['a.py'\] is a NoneType; expected bytes or text"),
        ({"files": ["a.py"]}, "files is .*; expected contents by name"),
        (
            {"limits": {}},
            r"limits is \{\}; expected ProgramLimits, such as limits=ProgramLimits\(seconds=2\)",
        ),
        ({"limits": {"seconds": 2}}, "expected ProgramLimits"),
        ({"argv": ["python3", 5]}, "argv has 5; expected words of text without NUL"),
        ({"argv": []}, "expected a sequence of words, the command first"),
    ],
)
def test_arguments_of_other_types_are_named(
    sandbox: Bubblewrap, request_: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        asyncio.run(sandbox.run(**{"files": {}, "argv": ["true"], **request_}))


@pytest.mark.parametrize("seconds", [-1, 0, float("inf"), "2", None])
def test_limits_are_positive_numbers(seconds: Any) -> None:
    with pytest.raises(
        UsageError, match=f"limits.seconds is {seconds!r}; expected a positive finite number"
    ):
        ProgramLimits(seconds=seconds)


def sleeping(token: str, seconds: float) -> subprocess.Popen[bytes]:
    """A process with *token* on its command line."""
    process = subprocess.Popen(["/bin/sh", "-c", f"sleep {seconds}; :", token])
    # empty for a moment
    while token.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
        assert process.poll() is None
    return process


def test_a_process_that_ends_late_is_not_one_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill, a process of a loaded machine waits for a core to end on; one that nobody kills
    stays.
    """

    async def guarantees(lives: float) -> Guarantee:
        processes: list[subprocess.Popen[bytes]] = []

        async def run(files: object, argv: Any, stdin: bytes, limits: object) -> ProgramResult:
            if argv[-1] != probe.LOOK:
                processes.append(sleeping(argv[-1].split('"')[-2], lives))
            usage = Usage(seconds=0.0, cpu_seconds=0.0, memory=0, user=12345)
            return ProgramResult(
                status="ok", exit=0, stdout=b'{"processes": true}', stderr=b"", usage=usage
            )

        try:
            return (await probe._look(run))["processes"]
        finally:
            for process in processes:
                process.kill()
                process.wait()

    monkeypatch.setattr(probe, "DIE_SECONDS", 2.0)
    assert Guarantee.ABSENT is asyncio.run(guarantees(60))
    monkeypatch.setattr(probe, "DIE_SECONDS", 60.0)
    assert Guarantee.ENFORCED is asyncio.run(guarantees(1.0))


def test_requests_that_cannot_be_met_are_refused(sandbox: Bubblewrap) -> None:
    """A network, files above the limit, empty commands and limits that are not positive name what
    is expected.
    """
    with pytest.raises(UsageError, match="no network"):
        asyncio.run(sandbox.run({}, ["true"], network=True))
    with pytest.raises(UsageError, match="limits.disk"):
        asyncio.run(sandbox.run({"x": bytes(2048)}, ["true"], limits=ProgramLimits(disk=1024)))
    with pytest.raises(UsageError, match="argv"):
        asyncio.run(sandbox.run({}, "true"))
    with pytest.raises(UsageError, match=r"limits\.seconds is nan"):
        ProgramLimits(seconds=float("nan"))
    with pytest.raises(UsageError, match="not started"):
        asyncio.run(Bubblewrap().run({}, ["true"]))
    with pytest.raises(UsageError, match="slots"):
        Bubblewrap(slots=0)


def test_a_command_that_does_not_exist_is_no_result(sandbox: Bubblewrap) -> None:
    """A sandbox without the interpreter must not count as wrong answers."""
    with pytest.raises(InfrastructureError, match="no-such-program"):
        asyncio.run(sandbox.run({}, ["no-such-program"]))


def test_a_killed_sandbox_is_no_result(sandbox: Bubblewrap) -> None:
    """SIGKILL of bubblewrap in mid-run raises, its program dies with it, and the next run works."""

    async def killed() -> None:
        task = asyncio.create_task(sandbox.run({}, ["sleep", "60"], limits=PATIENT))
        await asyncio.sleep(1.0)
        for pid in children():
            os.kill(pid, signal.SIGKILL)
        await task

    began = time.monotonic()
    with pytest.raises(InfrastructureError, match="did not run 'sleep' to its end"):
        asyncio.run(killed())
    assert time.monotonic() - began < 20
    assert run(sandbox, "print(1)").status == "ok"


def test_a_cancelled_run_is_killed(sandbox: Bubblewrap) -> None:
    """Cancellation, also while a run waits for its slot, leaves no process."""

    async def cancelled() -> None:
        tasks = [asyncio.create_task(sandbox.run({}, ["sleep", "60"])) for _ in range(4)]
        await asyncio.sleep(0.3)
        for task in tasks:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)

    began = time.monotonic()
    asyncio.run(cancelled())
    assert time.monotonic() - began < 4
    assert children() == []


def test_the_end_of_the_service_ends_its_runs() -> None:
    """Runs that the service has when it stops raise, and their processes are gone."""

    async def stopped() -> None:
        service = Bubblewrap(slots=1, enforce=())
        try:
            await service.__aenter__()
        except InfrastructureError as e:
            pytest.skip(f"bubblewrap does not work here: {e}")
        task = asyncio.create_task(service.run({}, ["sleep", "60"], limits=PATIENT))
        await asyncio.sleep(0.3)
        await service.__aexit__()
        with pytest.raises(InfrastructureError, match="stopped"):
            await task

    asyncio.run(stopped())
    assert children() == []


def test_runs_at_one_time_have_users_of_their_own(sandbox: Bubblewrap) -> None:
    """Slots differ in the user on the host, where the trainer is root."""

    async def together() -> set[int | None]:
        results = await asyncio.gather(
            *(sandbox.run({}, ["sleep", "0.3"], limits=PATIENT) for _ in range(4))
        )
        return {result.usage.user for result in results}

    users = asyncio.run(together())
    assert (
        2 if os.getuid() == 0 and sandbox.guarantees["users"] is Guarantee.ENFORCED else 1
    ) == len(users)


def test_programs_of_a_killed_trainer_end_and_their_groups_go(sandbox: Bubblewrap) -> None:
    """SIGKILL of the trainer ends what runs; the next start removes its control groups."""
    code = """
import asyncio
from quintain_sandbox import Bubblewrap
async def main():
    async with Bubblewrap(slots=1, enforce=()) as sandbox:
        print("ready", flush=True)
        await sandbox.run({}, ["sleep", "3599"])
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"ready\n"
        time.sleep(0.5)
        trainer.kill()
        trainer.wait()
    deadline = time.monotonic() + 5
    while (alive := subprocess.run(["pgrep", "-f", "sleep 3599"], capture_output=True).stdout) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert alive == b""
    bubblewrap.remove_stale(own_controllers())
    places = own_controllers()
    for place in {places.memory, places.pids} - {None}:
        assert place is not None
        assert list(place.glob(f"*-{trainer.pid}-*")) == []


def start(**settings: object) -> Bubblewrap:
    async def started() -> Bubblewrap:
        async with Bubblewrap(slots=2, **settings) as service:  # type: ignore[arg-type]
            return service

    return asyncio.run(started())


def test_a_missing_filter_is_measured_and_refused(
    sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its seccomp filter the provider reports the axis absent and does not start where it
    is needed.
    """
    allow = struct.pack("<HBBI", bpf.RETURN, 0, 0, bpf.ALLOW)
    monkeypatch.setattr(bubblewrap, "seccomp_filter", lambda: allow)
    assert start(enforce=()).guarantees["syscalls"] is Guarantee.ABSENT
    with pytest.raises(UsageError, match=r"syscalls: absent; needs seccomp"):
        start(enforce=["syscalls"])


def test_missing_control_groups_are_measured_and_refused(
    sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without control groups the sum of memory is not bounded, which no caller learns by
    accident.
    """
    monkeypatch.setattr(bubblewrap, "own_controllers", Controllers)
    service = start(enforce=["filesystem", "network"])
    assert service.guarantees["memory"] is Guarantee.BEST_EFFORT
    with pytest.raises(
        UsageError, match=r"memory: best effort; no writable control group.*systemd-run"
    ):
        service.require(["network", "memory"])
    with pytest.raises(UsageError, match="memory: best effort"):
        start()


def test_a_shared_user_is_measured_and_refused(
    sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that run as the trainer's user are reported as such; their number stays bounded."""
    monkeypatch.setattr(local, "take_user", lambda: None)
    service = start(enforce=())
    assert service.guarantees["users"] is Guarantee.ABSENT
    others = set(AXES) - {"users", "time"}
    assert {axis: sandbox.guarantees[axis] for axis in others} == {
        axis: service.guarantees[axis] for axis in others
    }
    with pytest.raises(UsageError, match=r"users: absent; run the trainer as root"):
        service.require(["users"])


def test_a_read_only_folder_below_tmp_is_seen() -> None:
    """The box has a /tmp of its own, which hides nothing that is asked for, and nothing else of the
    host's is there.
    """
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        tempfile.NamedTemporaryFile(dir="/tmp") as other,
    ):
        os.chmod(folder, 0o755)  # the program runs as another user
        (Path(folder) / "packages").mkdir()
        (Path(folder) / "packages" / "a.txt").write_text("there")
        code = f"""
import os
print(open("{folder}/packages/a.txt").read(), os.path.exists("{other.name}"))
try:
    open("{folder}/packages/b.txt", "w")
except OSError as e:
    print(e.strerror)
"""
        for sandbox in started(slots=1, read_only=[folder]):
            result = run(sandbox, code)
        assert result.stdout == b"there False\nRead-only file system\n"
        assert result.stderr == b""
        assert not (Path(folder) / "packages" / "b.txt").exists()


def test_a_recipe_names_the_provider(sandbox: Bubblewrap) -> None:
    """A component that asks for a sandbox gets the one of its slot, started, and ended with the
    run.
    """

    async def opened_by_recipe() -> tuple[ProgramResult, Bubblewrap]:
        table = ComponentTable(use="bubblewrap", args={"slots": 1, "enforce": ["filesystem"]})
        async with started_services({"sandbox": table}, ["sandbox"], {}, None) as running:
            service = running["sandbox"]
            assert isinstance(service, Bubblewrap)
            return await service.run({}, ["echo", "hi"], limits=PATIENT), service

    result, service = asyncio.run(opened_by_recipe())
    assert result.stdout == b"hi\n"
    with pytest.raises(UsageError, match="not started"):
        asyncio.run(service.run({}, ["echo"]))


def test_an_unknown_axis_is_refused(sandbox: Bubblewrap) -> None:
    """A misspelt need is an error and not a need that is met."""
    assert AXES.keys() == sandbox.guarantees.keys()
    with pytest.raises(
        UsageError, match="require has 'networks', which is no guarantee; did you mean 'network'"
    ):
        sandbox.require(["networks"])


def test_a_machine_without_bubblewrap_names_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error of a start without bwrap has the command that installs it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match="apt-get install bubblewrap"):
        start()


def test_control_groups_of_version_2_get_their_limits(tmp_path: Path) -> None:
    """The files that version 2 reads; the machines of this repository's tests have version 1."""
    group = tmp_path / "cgroup" / "trainer"
    group.mkdir(parents=True)
    (group / "cgroup.subtree_control").write_text("cpu memory pids\n")
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text("0::/trainer\n")
    (proc / "mounts").write_text(f"cgroup2 {tmp_path}/cgroup cgroup2 rw 0 0\n")
    found = own_controllers(proc)
    assert Controllers(group, group, 2) == found
    made = ControlGroup(found, 1 << 20, 9)
    (folder,) = (f for f in group.iterdir() if f.is_dir())
    written = {file.name: file.read_text() for file in folder.iterdir()}
    expected = {
        "memory.max": "1048576",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "9",
    }
    assert expected == written
    assert [folder / "cgroup.procs"] == made.entrances
    (folder / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    (folder / "pids.events").write_text("max 3\n")
    assert made.out_of_memory() is True
    assert made.refused_forks() == 3


def decide(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What a filter returns, by an interpreter of its instructions."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("<HBBI", program))
    at = word = 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == bpf.LOAD:
            (word,) = struct.unpack_from("<I", data, value)
        elif code == bpf.RETURN:
            return int(value)
        else:
            holds = {
                bpf.EQUAL: word == value,
                bpf.AT_LEAST: word >= value,
                bpf.ANY_BIT: bool(word & value),
            }[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", bpf.MACHINES)
def test_the_filter_decides_by_number_and_argument(machine: str) -> None:
    """Every rule of both architectures, and the calls next to them."""
    architecture, calls = bpf.MACHINES[machine]
    program = bpf.seccomp_filter(machine)
    refused, unknown, family = bpf.ERROR | 1, bpf.ERROR | 38, bpf.ERROR | 97

    def ask(name: str, *arguments: int) -> int:
        return decide(program, architecture, calls[name], *arguments)

    assert {refused} == {ask(name) for name in calls.keys() - bpf.ARGUMENT_RULES - bpf.UNKNOWN}
    assert {unknown} == {ask(name) for name in bpf.UNKNOWN}
    others = set(range(460)) - set(calls.values())
    assert {bpf.ALLOW} == {decide(program, architecture, number) for number in others}
    assert decide(program, 0x40000003, 20) == bpf.KILL  # i386
    assert (bpf.KILL if machine == "x86_64" else bpf.ALLOW) == decide(
        program, architecture, bpf.X32 | 39
    )
    for name in ("socket", "socketpair"):
        assert {bpf.ALLOW: {1, 2, 10}, family: set(range(50)) - {1, 2, 10}} == {
            answer: {n for n in range(50) if ask(name, n) == answer}
            for answer in (bpf.ALLOW, family)
        }
    assert ask("clone", 0x3D0F00) == bpf.ALLOW  # a thread
    assert {refused} == {
        ask("clone", flag | 17) for flag in (0x80, 0x20000, 0x2000000, 0x10000000, 0x40000000)
    }
    assert (refused, refused, bpf.ALLOW) == tuple(
        ask("ioctl", 0, request) for request in (0x5412, 0x541C, 0x5401)
    )
    assert (bpf.ALLOW, bpf.ALLOW, refused) == tuple(
        ask("personality", value) for value in (0, 0xFFFFFFFF, 8)
    )
    assert len(program) % 8 == 0
    assert len(program) // 8 < 4096


def test_a_machine_without_a_table_is_refused() -> None:
    """No filter is guessed for an architecture."""
    with pytest.raises(InfrastructureError, match="no seccomp filter for 'riscv64'"):
        bpf.seccomp_filter("riscv64")


def test_a_killed_launcher_is_no_result(sandbox: Bubblewrap) -> None:
    """SIGKILL of the process that starts programs ends what runs with an error, and the next run
    has a new one.
    """

    async def killed() -> list[BaseException | ProgramResult]:
        tasks = [
            asyncio.create_task(sandbox.run({}, ["sleep", "3600"], limits=PATIENT))
            for _ in range(2)
        ]
        await asyncio.sleep(1.0)
        parents = set(map(parent, children()))
        for pid in parents:
            os.kill(pid, signal.SIGKILL)
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = asyncio.run(killed())
    assert [InfrastructureError] * 2 == [type(outcome) for outcome in outcomes]
    assert run(sandbox, "print(1)").status == "ok"
    assert children() == []


def test_many_files_are_written(sandbox: Bubblewrap) -> None:
    """As many files as a request may have, each with its content and without a right to execute."""
    files = {f"d{n % 7}/f{n}": str(n).encode() for n in range(256)}
    code = (
        "import os\nprint(sum(int(open(f'{p}/{f}').read()) for p, _, fs in os.walk('.') for f in "
        "fs))"
    )
    result = asyncio.run(sandbox.run(files, ["python3", "-I", "-c", code], limits=PATIENT))
    assert result.status == "ok", result.stderr
    assert sum(range(256)) == int(result.stdout), result.stderr
