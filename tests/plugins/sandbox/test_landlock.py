"""The providers without namespaces, `landlock` and `rlimits`: confinement, ends, folders, versions
of the kernel.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import InfrastructureError, UsageError
from quintain_sandbox import (
    AXES,
    Box,
    Bubblewrap,
    Docker,
    Guarantee,
    Landlock,
    ProbedSandbox,
    ProgramLimits,
    ProgramResult,
    Rlimits,
    bpf,
    confine,
    landlock,
    local,
    protocol,
)
from quintain_sandbox.axes import FIXES
from quintain_sandbox.cgroups import Controllers
from quintain_sandbox.confined import Confinement
from quintain_sandbox.folder import make_folder, remove_folder
from quintain_sandbox.launcher import Launcher

from .service import await_nothing, left_behind, processes_of, started
from .test_sandbox import decide

PATIENT = ProgramLimits(seconds=30.0, cpu_seconds=30.0)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Landlock]:
    yield from started("landlock", slots=2)


def run(sandbox: Landlock, code: str, stdin: bytes = b"", **limits: float) -> ProgramResult:
    asked = dataclasses.replace(PATIENT, **limits)  # type: ignore[arg-type]
    return asyncio.run(sandbox.run({}, ["python3", "-I", "-c", code], stdin, asked))


def start(**settings: object) -> Landlock:
    async def started() -> Landlock:
        async with Landlock(slots=2, **settings) as service:  # type: ignore[arg-type]
            return service

    return asyncio.run(started())


def test_results_and_limits_are_those_of_the_protocol(sandbox: Landlock) -> None:
    """Exit status, streams, usage and the limits on time, CPU time, output and memory."""
    result = run(sandbox, "import sys; print(input()); print('e', file=sys.stderr)", b"hello\n")
    assert result.status == "ok"
    assert result.exit == 0
    assert result.stdout == b"hello\n"
    assert result.stderr == b"e\n"
    failed = run(sandbox, "raise SystemExit(7)")
    assert failed.status == "failed"
    assert failed.exit == 7
    assert run(sandbox, "import ctypes; ctypes.string_at(0)").exit == 128 + signal.SIGSEGV
    late = run(sandbox, "import time; print('a', flush=True); time.sleep(60)", seconds=1.5)
    assert late.status == "timeout"
    assert late.exit is None
    assert late.stdout == b"a\n"
    assert run(sandbox, "while True: pass", cpu_seconds=1.0).status == "timeout"
    flood = run(sandbox, "while True: print('x' * 99)", output=1000)
    assert flood.status == "output"
    assert flood.truncated == ("stdout",)
    assert len(flood.stdout) == 1000
    if sandbox.guarantees["memory"] is Guarantee.ENFORCED:
        assert run(sandbox, "b'x' * (1 << 28)", memory=64 << 20).status == "memory"
    with pytest.raises(
        InfrastructureError, match="landlock did not run 'no-such-program' to its end"
    ):
        asyncio.run(sandbox.run({}, ["no-such-program"]))


def test_a_conversation(sandbox: Landlock) -> None:
    """Interactive programs are those of `ProbedSandbox.start`."""

    async def talk() -> tuple[bytes, str]:
        async with sandbox.start(
            {"a.py": b"while True: print(int(input()) + 1, flush=True)"}, ["python3", "a.py"]
        ) as p:
            await p.write(b"41\n")
            return await p.read_line(seconds=30.0), (await p.close()).status

    assert asyncio.run(talk()) == (b"42\n", "closed")


def test_sessions_are_refused(sandbox: Landlock) -> None:
    """Their supervisor would see no process to end; what has sessions is named."""

    async def session() -> None:
        async with sandbox.session():
            pass

    with pytest.raises(UsageError, match="landlock has no sessions; use docker or bubblewrap"):
        asyncio.run(session())


def test_a_killed_confiner_is_no_result_and_leaves_nothing(sandbox: Landlock) -> None:
    """SIGKILL of the process beside the program raises, and the kernel or the next run end what it
    watched.
    """

    async def killed() -> int | None:
        code = (
            "import os; os.system('setsid sleep 3000 &'); print(os.getppid(), flush=True); "
            "os.system('sleep 3000')"
        )
        async with sandbox.start({}, ["python3", "-c", code], PATIENT) as program:
            os.kill(int(await program.read_line()), signal.SIGKILL)
            await program.wait()
        return None

    with pytest.raises(InfrastructureError, match="did not run 'python3' to its end"):
        asyncio.run(killed())
    again = run(sandbox, "print(1)")
    assert again.status == "ok"
    if again.usage.user not in (None, os.getuid()):
        await_nothing(lambda: processes_of(again.usage.user or 0), 2.0)
    await_nothing(lambda: left_behind(None), 2.0)


@pytest.mark.more
def test_programs_of_a_killed_trainer_end_and_their_folders_go(sandbox: Landlock) -> None:
    """SIGKILL of the trainer ends what runs, also what left its session; the next start removes the
    folders.
    """
    code = """
import asyncio
from quintain_sandbox import Landlock
async def main():
    async with Landlock(slots=1, enforce=()) as sandbox:
        async with sandbox.start({}, ["sh", "-c", "setsid sleep 3598 & echo; sleep 3598"]) as program:
            await program.read_line()
            print(sandbox.confinement.place, flush=True)
            await program.wait()
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        place = Path(trainer.stdout.readline().strip())
        assert place.is_dir()
        trainer.kill()
        trainer.wait()

    def running() -> list[str]:
        return subprocess.run(
            ["pgrep", "-f", "sleep 3598"], capture_output=True, text=True
        ).stdout.split()

    await_nothing(running, 5.0)
    assert len(list(place.glob(f"*-{trainer.pid}-*"))) == 1
    start(enforce=())
    assert list(place.glob(f"*-{trainer.pid}-*")) == []


def test_a_place_without_room_is_no_result(
    sandbox: Landlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be made is the sandbox's failure, and leaves no control group."""
    place = dataclasses.replace(sandbox.confinement, place=Path("/proc"))
    monkeypatch.setattr(sandbox, "confinement", place)
    with pytest.raises(InfrastructureError, match="landlock cannot start a program: .*/proc"):
        run(sandbox, "print(1)")
    monkeypatch.undo()
    assert left_behind(None) == []
    assert run(sandbox, "print(1)").status == "ok"


@pytest.mark.more
def test_missing_control_groups_are_measured_and_refused(
    sandbox: Landlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without control groups memory is bounded per process, and the folder is on the disk, whose
    use nothing bounds.
    """
    monkeypatch.setattr(landlock, "own_controllers", Controllers)
    service = start(enforce=["filesystem", "network", "processes", "syscalls"])
    assert service.guarantees["memory"] == Guarantee.BEST_EFFORT
    assert service.guarantees["disk"] == Guarantee.ABSENT
    with pytest.raises(
        UsageError,
        match=r"memory: best effort; no writable control group.*\n.*disk: absent; no wri",
    ):
        service.require(["memory", "disk"])


@pytest.mark.parametrize(("version", "bits", "network", "scopes"), [
    (1, 13, 0, 0), (2, 14, 0, 0), (3, 15, 0, 0), (4, 15, 3, 0), (5, 16, 3, 0), (6, 16, 3, 3), (9,
    16, 3, 3),
])  # fmt: skip
def test_each_version_of_landlock_gets_the_rights_that_it_knows(
    version: int, bits: int, network: int, scopes: int
) -> None:
    """A kernel refuses rights that it does not know, so that the masks are those of its version."""
    confinement = Confinement(provider="x", abi=version, place=Path("/tmp"), launcher=Launcher())
    masks = confinement.landlock(Path("/tmp/x"))
    assert masks is not None
    assert (1 << bits) - 1 == masks["files"]
    assert network == masks["network"]
    assert scopes == masks["scopes"]
    assert all(rights & ~masks["files"] == 0 for _, rights in masks["rules"])
    names = bpf.host_rules(own_user=True, abi=version)
    assert (version < 3) == ("truncate" in names)


@pytest.mark.keeps("3")
@pytest.mark.parametrize("version", [3, 5])
def test_an_older_kernel_keeps_all_guarantees_for_root(
    sandbox: Landlock, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """What Landlock lacks there, users and the filter of system calls do."""
    if os.geteuid() != 0:
        pytest.skip("signals need a user of their own")
    monkeypatch.setattr(landlock, "landlock_version", lambda: version)
    assert sandbox.guarantees | {"time": ""} == start(enforce=()).guarantees | {"time": ""}


def test_a_kernel_without_landlock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how it is switched on."""
    monkeypatch.setattr(landlock, "landlock_version", lambda: 0)
    with pytest.raises(InfrastructureError, match="landlock is not in this kernel.*lsm="):
        start()


def test_a_trainer_without_root(sandbox: Landlock) -> None:
    """Another user's trainer has the guarantees of Landlock and of the filter, and is told what it
    lacks.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    code = """
import asyncio, json, os, subprocess, sys
from quintain_sandbox import Landlock
async def main():
    other = subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    async with Landlock(slots=1, enforce=()) as s:
        code = '''
import os, shutil
def tries(f):
    try: f()
    except OSError: return 0
    return 1
try: os.kill(-1, 9)
except OSError: pass
open("x", "w").close()
print([tries(lambda: os.kill(%d, 0)), tries(lambda: os.chmod("x", 0)), tries(lambda: os.kill(os.getppid(), 0))])
os.mkdir("locked", 0)
os.system("setsid sleep 3597 &")
''' % other.pid
        result = await s.run({}, ["python3", "-c", code])
        print(json.dumps([s.guarantees, result.status, result.stdout.decode(), result.stderr.decode(), other.poll()]))
    other.kill()
asyncio.run(main())
"""
    become = ["setpriv", "--reuid=61234", "--regid=61234", "--clear-groups"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/", "PYTHONPATH": os.pathsep.join(sys.path)}

    def other_user(python: str, code: str) -> subprocess.CompletedProcess[str]:
        """In a process that starts another one, for the first may have rights left to read
        files.
        """
        again = (
            "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', "
            "sys.argv[1]]).returncode)"
        )
        return subprocess.run(
            [*become, python, "-c", again, code],
            capture_output=True,
            text=True,
            cwd="/",
            env=environment,
        )

    pythons = [sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"]
    readable = [
        python for python in pythons if not other_user(python, "import quintain_sandbox").returncode
    ]
    if not readable:
        pytest.skip("no Python here that another user can read")
    done = other_user(readable[0], code)
    assert done.returncode == 0, done.stderr
    guarantees, status, printed, error, other = json.loads(done.stdout)
    assert status == "ok", error
    assert printed == "[0, 0, 0]\n", error
    assert other is None, error
    enforced = {axis for axis, level in guarantees.items() if level == "enforced"}
    assert {"filesystem", "network", "processes", "output", "syscalls"} <= enforced
    assert guarantees["users"] == "absent"
    await_nothing(lambda: processes_of(61234), 2.0)


@pytest.mark.parametrize("machine", bpf.MACHINES)
def test_the_filter_of_programs_without_namespaces(machine: str) -> None:
    """No sockets besides connected pairs, no shared objects of the kernel, no other process; all
    else as in a box.
    """
    architecture, calls = bpf.MACHINES[machine]
    host, plain = bpf.HOST[machine], bpf.seccomp_filter(machine)
    names = bpf.host_rules(own_user=False, abi=1)
    program = bpf.seccomp_filter(machine, host=names)
    refused, family = bpf.ERROR | 1, bpf.ERROR | 97

    def ask(name: str, *arguments: int) -> int:
        return decide(program, architecture, (calls | host)[name], *arguments)

    ours = bpf.OF_PROCESSES | bpf.OF_CLASSES.keys()
    assert host.keys() <= names
    assert {refused} == {ask(name) for name in host.keys() - ours}
    assert {family} == {ask("socket", n, kind) for n in range(50) for kind in (1, 2, 3)}
    flags = (0, 0x800, 0x80000, 0x80800)
    assert {bpf.ALLOW} == {ask("socketpair", 1, kind | flag) for kind in (1, 5) for flag in flags}
    assert {family} == {
        ask("socketpair", 1, kind | flag) for kind in (2, 3, 4, 6, 10) for flag in flags
    }
    assert {family} == {ask("socketpair", n, 1) for n in range(50) if n != 1}
    for name in bpf.OF_PROCESSES:
        assert ask(name, 0) == bpf.ALLOW, name
        assert refused == ask(name, 77), name
    for name, process in bpf.OF_CLASSES.items():
        assert ask(name, process, 0) == bpf.ALLOW
        assert {refused} == {
            ask(name, process, 77),
            ask(name, process + 1, 0),
            ask(name, process + 1, 77),
        }
    others = set(range(480)) - set(host.values()) - {calls["socket"], calls["socketpair"]}
    assert [decide(plain, architecture, n, 9) for n in others] == [
        decide(program, architecture, n, 9) for n in others
    ]
    assert set(host) & (bpf.METADATA | {"truncate"}) == set(host) - bpf.host_rules(
        own_user=True, abi=7
    )


def test_a_folder_is_removed_whatever_is_in_it(tmp_path: Path) -> None:
    """Links are not followed, folders without rights are opened, and no depth is too deep."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    folder = make_folder(tmp_path, {"a/b/c.py": b"1", "d.py": b"2"}, None)
    assert (folder / "box/a/b/c.py").read_bytes() == b"1"
    (folder / "box/link").symlink_to(outside)
    (folder / "box/file").symlink_to(outside / "file")
    os.link(outside / "file", folder / "hard")
    os.mkfifo(folder / "box/pipe")
    (folder / "box/locked/in").mkdir(parents=True)
    (folder / "box/locked").chmod(0)
    here = os.open(folder / "box", os.O_RDONLY)
    for _ in range(700):
        os.mkdir("deep", dir_fd=here)
        inner = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    remove_folder(folder)
    assert os.listdir(tmp_path) == ["outside"]
    assert (outside / "file").read_text() == "kept"
    folder.symlink_to(outside)
    with pytest.raises(OSError, match="Not a directory|Too many levels"):
        remove_folder(folder)


def test_every_axis_has_a_fix() -> None:
    """Whatever is not enforced, the user learns what to do."""
    service = Landlock(enforce=())
    assert all(service.fix(axis) for axis in AXES)
    assert service.fix("users") == local.AS_ROOT


@pytest.mark.parametrize(
    "service", [Bubblewrap(), Docker(), Landlock(), Rlimits(allow_unsafe=True)]
)
def test_late_ends_and_output_are_no_matter_of_the_installation(service: ProbedSandbox) -> None:
    """The host bounds both, so that the fix is the machine's load, whichever provider runs."""
    for axis in ("time", "output"):
        assert FIXES[axis] == service.fix(axis)
    assert "install" not in "".join(map(service.fix, AXES))


@pytest.mark.parametrize("canaries_fail", [False, True])
def test_only_a_provider_that_runs_nothing_names_what_the_machine_lacks(
    canaries_fail: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A canary that fails says so; a program that does not start has the provider's fix after its
    own error.
    """

    async def broken(run: object) -> dict[str, Guarantee]:
        raise InfrastructureError("a canary ended")

    class NoShell(Landlock):
        def box(self, *arguments: Any) -> Box:
            arguments[-1]()
            raise InfrastructureError("no program starts")

    monkeypatch.setattr(protocol, "measure", broken)
    service = Landlock() if canaries_fail else NoShell()
    with pytest.raises(InfrastructureError) as failure:
        asyncio.run(service.__aenter__())
    assert ("a canary ended" if canaries_fail else f"no program starts\n{local.NO_FILTER}") == str(
        failure.value
    )


@pytest.mark.more
def test_many_programs_of_two_services_have_users_of_their_own(sandbox: Landlock) -> None:
    """Users are shared out over all services of a process: one kills by user what a run left."""

    async def together() -> list[ProgramResult]:
        async with Landlock(slots=2, enforce=()) as other:
            both = [
                service.run({}, ["sleep", "0.5"], limits=PATIENT)
                for service in (sandbox, other)
                for _ in range(2)
            ]
            return await asyncio.gather(*both)

    results = asyncio.run(together())
    assert [result.status for result in results] == ["ok"] * 4
    if os.geteuid() == 0:
        assert len({result.usage.user for result in results}) == 4


def test_time_ends_a_program_and_all_of_its_children(sandbox: Landlock) -> None:
    """Within a quarter of a second in the best of five, also those that left its session."""
    took = []
    for _ in range(5):
        result = run(
            sandbox,
            "import os\nfor _ in range(9): os.system('setsid sleep 600 &')\nos.system('sleep 600')",
            seconds=0.5,
        )
        took.append(result.usage.seconds)
        assert result.status == "timeout"
    assert min(took) <= 0.75
    time.sleep(0.1)
    assert left_behind(None) == []


@pytest.mark.more
def test_the_confined_process_imports_nothing_before_it_becomes_the_program() -> None:
    """It may no longer read the trainer's Python there: `os.execvpe` must find all its modules
    loaded.
    """
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('confine', "
        f"{str(Path(confine.__file__))!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "sys.path.clear(), sys.meta_path.clear()\n"
        "module.os.execvpe('echo', ['echo', 'ran'], {'PATH': '/usr/bin:/bin'})\n"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0
    assert ran.stdout == "ran\n"
    assert ran.stderr == ""
