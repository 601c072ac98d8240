"""The provider `docker` on the engine of DOCKER_HOST or a spare one: limits, pool, faults, the
image.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quintain.errors import InfrastructureError, UsageError
from quintain_sandbox import AXES, Docker, Guarantee, LineTimeout, ProgramLimits, ProgramResult
from quintain_sandbox.command import build_image as command
from quintain_sandbox.docker import build_image
from quintain_sandbox.image import Image, python_image
from quintain_sandbox.program import HOME

from .service import await_nothing, containers_of, image, on_podman, processes_of, started

pytestmark = pytest.mark.ci
PATIENT = ProgramLimits(seconds=30.0, cpu_seconds=30.0)
ENGINE = Path(__file__).parents[3] / "tools" / "engine.sh"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Docker]:
    yield from started("docker", slots=2, warm=3)


def run(sandbox: Docker, code: str, stdin: bytes = b"", **limits: float) -> ProgramResult:
    asked = dataclasses.replace(PATIENT, **limits)  # type: ignore[arg-type]
    return asyncio.run(sandbox.run({}, ["python3", "-I", "-c", code], stdin, asked))


def own_containers(sandbox: Docker) -> list[str]:
    assert sandbox._fleet is not None
    own = sandbox._fleet._labels.items()
    return [
        name for name, labels in sandbox._fleet.engine.containers().items() if own <= labels.items()
    ]


def test_every_axis_is_enforced(sandbox: Docker) -> None:
    """By measurement, with the engine's default runtime."""
    assert dict.fromkeys(AXES, Guarantee.ENFORCED) == sandbox.guarantees


def test_a_result_has_streams_exit_status_and_usage(sandbox: Docker) -> None:
    """As of every provider."""
    result = run(sandbox, "import sys; print(input()); print('e', file=sys.stderr)", b"hello\n")
    assert result.status == "ok"
    assert result.exit == 0
    assert result.stdout == b"hello\n"
    assert result.stderr == b"e\n"
    assert result.truncated == ()
    assert 0 < result.usage.cpu_seconds < 30
    assert 0 < result.usage.seconds < 30
    assert (1 << 20) < result.usage.memory < PATIENT.memory
    failed = run(sandbox, "raise SystemExit(7)")
    assert failed.status == "failed"
    assert failed.exit == 7
    crashed = run(sandbox, "import ctypes; ctypes.string_at(0)")
    assert crashed.status == "failed"
    assert crashed.exit == 128 + signal.SIGSEGV


def test_limits_are_statuses(sandbox: Docker) -> None:
    """Time, CPU time, memory and output have a status each, to the byte, and what was printed
    before is kept.
    """
    late = run(sandbox, "import time; print('a', flush=True); time.sleep(60)", seconds=3.0)
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
    assert run(sandbox, "b'x' * (1 << 28)", memory=64 << 20).status == "memory"


def test_a_child_killed_for_memory_fails_a_program_that_exits_well(sandbox: Docker) -> None:
    """The control group counts it, whatever the program says of itself."""
    code = "import os\nif os.fork() == 0: b'x' * (1 << 28)\nos.wait()\nprint('done')"
    result = run(sandbox, code, memory=64 << 20)
    assert result.status == "memory"
    assert result.stdout == b"done\n"


def test_a_flood_is_killed_at_once(sandbox: Docker) -> None:
    """The connection is closed before the kill, for which the engine would wait otherwise. The best
    of three.
    """
    flood = "import os\nwhile True: os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)"
    took = []
    for _ in range(3):
        result = run(sandbox, flood, output=1 << 20)
        assert result.status == "output"
        # the engine waits for the dead one
        await_nothing(lambda user=result.usage.user: processes_of(user), 5.0)
        took.append(result.usage.seconds)
    assert min(took) < 5


def test_a_program_is_killed_within_half_a_second_of_its_limit(sandbox: Docker) -> None:
    """Nothing of it runs then. The best of five, because a loaded machine is late for reasons of
    its own.
    """
    results = [run(sandbox, "import time; time.sleep(60)", seconds=0.5) for _ in range(5)]
    assert 0.5 <= min(result.usage.seconds for result in results) <= 1.0
    await_nothing(
        lambda: [p for result in results for p in processes_of(result.usage.user or -1)], 5.0
    )


def test_large_streams_pass_whole(sandbox: Docker) -> None:
    """Standard input and output larger than every buffer on the way move at the same time."""
    data = os.urandom(1 << 20).hex().encode()
    result = run(sandbox, "import sys; sys.stdout.write(sys.stdin.read())", data, output=1 << 22)
    assert result.status == "ok"
    assert result.stdout == data
    assert run(sandbox, "print('never reads')", data).stdout == b"never reads\n"


def test_files_arrive_whole(sandbox: Docker) -> None:
    """Many, in folders, large and empty ones, of any bytes."""
    files = {f"d{n}/e/f{n}": os.urandom(n * 1000) for n in range(40)} | {
        "large": os.urandom((5 << 20) + 7)
    }
    code = (
        "import hashlib, sys\nfor p in sys.argv[1:]: print(hashlib.md5(open(p, "
        "'rb').read()).hexdigest())"
    )
    result = asyncio.run(sandbox.run(files, ["python3", "-I", "-c", code, *files], limits=PATIENT))
    assert [
        hashlib.md5(data).hexdigest() for data in files.values()
    ] == result.stdout.decode().split()


def test_interactive_programs(sandbox: Docker) -> None:
    """Lines go both ways, a silent program is a time-out and no end, and the end of the block kills
    it.
    """
    code = (
        "import sys, time\nfor line in sys.stdin: print(line.strip().upper(), "
        "flush=True)\nprint('end')"
    )

    async def talk() -> tuple[list[bytes], ProgramResult, int | None]:
        async with sandbox.start(
            {"main.py": code.encode()}, ["python3", "-I", "main.py"], PATIENT
        ) as program:
            await program.write(b"one\ntwo\n")
            lines = [await program.read_line(), await program.read_line()]
            with pytest.raises(LineTimeout):
                await program.read_line(seconds=0.1)
            await program.write(b"three\n")
            await program.end_input()
            lines += [
                await program.read_line(),
                await program.read_line(),
                await program.read_line(),
            ]
            ended = await program.wait()
        async with sandbox.start({}, ["sleep", "60"], PATIENT) as program:
            pass
        return lines, ended, (await program.wait()).usage.user

    lines, ended, user = asyncio.run(talk())
    assert lines == [b"ONE\n", b"TWO\n", b"THREE\n", b"end\n", b""]
    assert ended.status == "ok"
    await_nothing(lambda: processes_of(user or -1), 5.0)


def test_a_command_that_the_image_lacks_is_no_result(sandbox: Docker) -> None:
    """An image without the interpreter must not count as wrong answers."""
    with pytest.raises(InfrastructureError, match=r"no-such-program.*no such command in the image"):
        asyncio.run(sandbox.run({}, ["no-such-program"]))
    many = {str(number): b"a page" for number in range(250)}
    limits = ProgramLimits(disk=1 << 19)
    with pytest.raises(InfrastructureError, match="cannot write the files"):
        asyncio.run(sandbox.run(many, ["true"], limits=limits))


def test_a_pool_is_used_and_refilled(sandbox: Docker) -> None:
    """Runs of the default limits take containers that wait, which are replaced; each serves
    once.
    """
    asyncio.run(sandbox.run({}, ["true"]))
    await_full(sandbox)
    before = set(own_containers(sandbox))
    result = asyncio.run(sandbox.run({}, ["true"]))
    assert result.status == "ok"
    await_nothing(lambda: containers_of(sandbox, result.usage.user or 0), 20.0)
    await_full(sandbox)
    assert before - set(own_containers(sandbox)), "a container that waited was used and removed"


def await_full(sandbox: Docker) -> None:
    await_nothing(lambda: [] if sandbox.ready() == sandbox.warm else ["too few"], 60.0)


def test_users_differ_and_own_nothing(sandbox: Docker) -> None:
    """Programs at one time have users of their own on the host."""

    async def together() -> list[int | None]:
        results = await asyncio.gather(
            *(sandbox.run({}, ["sleep", "0.5"], limits=PATIENT) for _ in range(2))
        )
        return [result.usage.user for result in results]

    users = asyncio.run(together())
    assert len(set(users) - {None, 0, os.getuid()}) == 2


def test_a_cancelled_run_and_the_end_of_the_service_leave_nothing() -> None:
    """Containers of runs, of the pool and of cancelled runs are gone when the service is."""
    engine_of = started("docker", slots=2, warm=2)
    service = next(engine_of)

    async def cancelled() -> None:
        tasks = [
            asyncio.create_task(service.run({}, ["sleep", "60"], limits=PATIENT)) for _ in range(4)
        ]
        await asyncio.sleep(1.5)
        for task in tasks[:3]:
            task.cancel()
        answers = await asyncio.gather(*tasks[:3], return_exceptions=True)
        assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)
        await service.__aexit__()
        with pytest.raises(InfrastructureError, match="stopped"):
            await tasks[3]

    labels = service._fleet._labels.items()
    asyncio.run(cancelled())
    engine_of.close()
    assert containers_with(labels) == []


def containers_with(labels: Any, url: str = "") -> list[str]:
    from quintain_sandbox.engine import ContainerEngine

    engine = ContainerEngine(url)
    try:
        return [name for name, found in engine.containers().items() if labels <= found.items()]
    finally:
        engine.close()


def test_containers_of_a_killed_trainer_are_removed_at_the_next_start() -> None:
    """Those that wait and those that run; the containers of living trainers stay."""
    image()
    code = """
import asyncio
from quintain_sandbox import Docker
async def main():
    async with Docker(slots=1, warm=1, enforce=()) as sandbox:
        while not sandbox.ready():
            await asyncio.sleep(0.1)
        run = asyncio.create_task(sandbox.run({}, ["sleep", "3599"]))
        await asyncio.sleep(2)
        print("ready", flush=True)
        await run
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"ready\n"
        trainer.kill()
        trainer.wait()

    def left() -> list[str]:
        from quintain_sandbox.engine import PROCESS, ContainerEngine

        engine = ContainerEngine()
        try:
            pids = {
                name: labels[PROCESS].split()[1] for name, labels in engine.containers().items()
            }
        finally:
            engine.close()
        return [name for name, pid in pids.items() if pid == str(trainer.pid)]

    assert left()
    service = started("docker", slots=1, warm=0)
    next(service)
    assert left() == []
    service.close()


def test_the_profile_refuses_what_the_default_of_the_engine_refuses(sandbox: Docker) -> None:
    """Every system call by number, with arguments that no call accepts, under both profiles."""
    code = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
skipped = {15, 34, 57, 58, 60, 130, 231}  # rt_sigreturn, pause, fork, vfork, exit, rt_sigsuspend, exit_group
refused = []
for number in sorted(set(range(451)) - skipped):
    pid = os.fork()
    if pid == 0:
        os.close(0)
        ctypes.set_errno(0)
        result = libc.syscall(number, *[ctypes.c_long(-1)] * 6)
        os._exit(1 if result == -1 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS) else 0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    refused += [number] if status == 1 else []
print(*refused)
"""
    if os.uname().machine != "x86_64":
        pytest.skip("numbers of system calls are those of x86-64")
    ours = run(sandbox, code)
    assert ours.status == "ok", ours.stderr
    assert sandbox._fleet is not None
    docker = pytest.importorskip("docker")
    api = docker.APIClient(version="auto", base_url=os.environ.get("DOCKER_HOST"))
    host = api.create_host_config(
        network_mode="none", cap_drop=["ALL"], security_opt=["no-new-privileges"]
    )
    made = api.create_container(
        "quintain-sandbox", ["python3", "-I", "-c", code], user="2100000000", host_config=host
    )
    try:
        api.start(made)
        assert api.wait(made)["StatusCode"] == 0
        default = {int(number) for number in api.logs(made, stdout=True, stderr=False).split()}
    finally:
        api.remove_container(made, force=True)
        api.close()
    refused = {int(number) for number in ours.stdout.split()}
    assert len(default) > 40
    assert set() == default - refused
    assert {
        425,
        250,
        321,
        323,
        298,
        101,
        438,
    } <= refused  # io_uring, keyctl, bpf, userfaultfd, perf, ptrace, pidfd_getfd


def test_the_command_builds_an_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal contents have equal tags, and are there already the second time."""
    image()
    done = CliRunner().invoke(command, ["--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["image"].startswith(
        f"quintain-sandbox:py{sys.version_info.major}.{sys.version_info.minor}-"
    )
    assert report["built"] is False
    assert report["bytes"] > 20e6
    assert "shared libraries ..." in done.stderr


def test_a_package_that_is_not_installed_is_refused() -> None:
    """The image takes what this machine has."""
    image()  # skips where there is no engine
    with pytest.raises(UsageError, match="pip install no-such-package"):
        build_image("quintain-sandbox", ["no-such-package"], progress=lambda line: None)


def test_an_image_has_packages_that_are_asked_for() -> None:
    """With what they require, found by `-I`, too."""
    image()  # skips where there is no engine
    report = build_image("quintain-sandbox-tests", ["pytest"], progress=lambda line: None)
    service = started("docker", slots=1, warm=0, image=report["image"])
    code = b"def test(): assert 6 * 7 == 42"
    argv = ["python3", "-I", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    result = asyncio.run(next(service).run({"test_it.py": code}, argv, limits=PATIENT))
    service.close()
    assert b"1 passed" in result.stdout, result.stdout + result.stderr


class Spare:
    """An engine of the test's own, which may be killed."""

    def __init__(self, folder: str) -> None:
        self.folder, self.url = folder, f"unix://{folder}/socket"

    def start(self, *options: str) -> None:
        subprocess.run([ENGINE, "start", self.folder, *options], check=True, timeout=120)

    def stop(self) -> None:
        subprocess.run([ENGINE, "stop", self.folder], check=True, timeout=120)

    def kill(self) -> None:
        """SIGKILL, as the kernel does it when memory ends; its helpers live on."""
        os.kill(int(Path(self.folder, "pid").read_text()), signal.SIGKILL)

    def build(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("quintain_sandbox.image.python_image", lambda *_: own_image())
            build_image("quintain-sandbox", url=self.url)

    def remove_images(self) -> None:
        docker = pytest.importorskip("docker")
        api = docker.APIClient(version="auto", base_url=self.url)
        for found in api.images():
            api.remove_image(found["Id"], force=True)
        api.close()


@functools.cache
def own_image() -> Image:
    return python_image(range(3), HOME, progress=lambda line: None)


@pytest.fixture
def spare() -> Iterator[Spare]:
    if os.getuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("no spare engine: needs root and dockerd (Debian: apt-get install docker.io)")
    pytest.importorskip("docker")
    with tempfile.TemporaryDirectory(prefix="quintain-spare-") as folder:
        engine = Spare(f"{folder}/engine")
        yield engine
        engine.stop()


def test_faults_of_the_engine_are_no_results(spare: Spare) -> None:
    """No engine, no image, SIGKILL in mid-run: errors that name the fix; an engine that was
    restarted serves.
    """
    spare.start()

    async def begin(warm: int = 2) -> Docker:
        return await Docker(slots=2, warm=warm, enforce=(), url=spare.url).__aenter__()

    with pytest.raises(
        InfrastructureError, match=r"no image 'quintain-sandbox'; build it: quintain build-image"
    ):
        asyncio.run(begin())
    spare.build()

    async def faults() -> None:
        service = await begin()
        try:
            assert (await service.run({}, ["true"])).status == "ok"
            task = asyncio.create_task(service.run({}, ["sleep", "50"], limits=PATIENT))
            await asyncio.sleep(1.5)
            assert users_of_programs("sleep 50")
            spare.kill()
            with pytest.raises(InfrastructureError, match="engine"):
                await task
            assert users_of_programs("sleep 50") == [], "the program ends without the engine"
            with pytest.raises(InfrastructureError, match="engine"):
                await service.run({}, ["true"], limits=ProgramLimits(memory=100 << 20))
            await asyncio.to_thread(spare.start)
            assert (await service.run({}, ["true"])).status == "ok"
        finally:
            await service.__aexit__()
        service = await begin(warm=0)
        try:
            await asyncio.to_thread(await_nothing, lambda: own_containers(service), 30.0)
            await asyncio.to_thread(spare.remove_images)
            with pytest.raises(
                InfrastructureError,
                match="no image 'quintain-sandbox'; build it: quintain build-image",
            ):
                await service.run({}, ["true"])
        finally:
            await service.__aexit__()

    asyncio.run(faults())


def users_of_programs(words: str) -> list[int]:
    """User ids of processes by their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").strip()
                == words.encode()
            ):
                found.append(folder.stat().st_uid)
        except OSError:
            continue
    return found


def test_gvisor_is_chosen_where_the_engine_lists_it(spare: Spare) -> None:
    """By its name; the runtime behind the name is runc here."""
    spare.start("--add-runtime", f"runsc={shutil.which('runc')}")
    spare.build()

    async def runtime(**settings: Any) -> str:
        async with Docker(slots=1, warm=1, enforce=(), url=spare.url, **settings) as service:
            assert service._fleet is not None
            await asyncio.to_thread(await_full, service)
            waiting = own_containers(service)[0]
            return str(
                service._fleet.engine._api.inspect_container(waiting)["HostConfig"]["Runtime"]
            )

    assert asyncio.run(runtime()) == "runsc"
    assert asyncio.run(runtime(runtime="runc")) == "runc"
    with pytest.raises(UsageError, match=r"docker.runtime is 'kata'; the engine lists .*runsc"):
        asyncio.run(runtime(runtime="kata"))


def test_a_full_disk_names_the_fix(spare: Spare) -> None:
    """An engine without room for the image says how to free some."""
    place = Path(spare.folder).parent
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "spare", place], check=True)
    try:
        spare.start()
        with pytest.raises(InfrastructureError, match="docker system prune"):
            spare.build()
    finally:
        spare.stop()
        subprocess.run(["umount", place], check=True)


def test_podman_serves_too(tmp_path: Path) -> None:
    """Its API differs in places: profiles are files, tags of an import are ignored, all runtimes
    are listed.
    """
    with on_podman() as url:
        asyncio.run(served_by_podman(url))


async def served_by_podman(url: str) -> None:
    kept = [axis for axis in AXES if axis != "disk"]  # the probe finds it absent on podman
    async with Docker(slots=1, warm=1, url=url, enforce=kept) as service:
        files = {"main.py": b"import sys; print(sys.stdin.read(), file=sys.stderr); sys.exit(3)"}
        result = await service.run(files, ["python3", "main.py"], b"in", PATIENT)
        assert result.status == "failed"
        assert result.exit == 3
        assert result.stderr == b"in\n"
        assert (
            await service.run({}, ["sleep", "60"], limits=ProgramLimits(seconds=0.5))
        ).status == "timeout"
        flood = await service.run({}, ["yes"])
        assert flood.status == "output"
        assert len(flood.stdout) == 1 << 20
        allocate = ["python3", "-c", "b'x' * (1 << 29)"]
        assert (
            await service.run({}, allocate, limits=ProgramLimits(memory=64 << 20))
        ).status == "memory"
        await asyncio.to_thread(await_full, service)
        labels = service._fleet._labels.items() if service._fleet else ()
    assert containers_with(labels, url) == []
