"""The provider `remote`: the process of harbor, what runs a program there, failures, refusals, ends.

Most tests run on a double of harbor, whose environments are folders of this machine: harbor needs
Python 3.12. The tests of the lane `ci` run on harbor itself, in the interpreter that
QUINTAIN_HARBOR_PYTHON names.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import InfrastructureError, UsageError
from quintain_sandbox import AXES, Guarantee, ProgramLimits, ProgramResult, RemoteSandbox

from .service import await_nothing, image, processes_with

HERE = Path(__file__).parent
PATIENT = ProgramLimits(seconds=60.0)
TRAINER = """
import asyncio, json, sys
from quintain_sandbox import ProgramLimits, RemoteSandbox
async def main():
    service = RemoteSandbox(**json.loads(sys.argv[1]))
    service.probe = probe
    async with service:
        print("started", flush=True)
        argv = ["sh", "-c", "sleep 3600; :", sys.argv[2]]
        await service.run({}, argv, limits=ProgramLimits(seconds=600))
async def probe():
    return {}
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has the double."""
    if os.getuid() != 0:
        pytest.skip("only root can give a program a user of its own")
    venv = tmp_path_factory.mktemp("double")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", venv], check=True, capture_output=True
    )
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "double.pth").write_text(f"{HERE / 'harbor_double'}\n")
    (site / "harbor-0.26.0.dist-info").mkdir()
    (site / "harbor-0.26.0.dist-info" / "METADATA").write_text("Name: harbor\nVersion: 0.26.0\n")
    return str(venv / "bin/python")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the double writes its log to, and reads its faults from."""
    return tmp_path_factory.mktemp("environments")


@pytest.fixture(scope="module")
def make(python: str, folder: Path) -> Callable[..., RemoteSandbox]:
    """Makes a service on the double that starts without the canaries."""

    def made(kind: str = "local", **settings: Any) -> RemoteSandbox:
        settings = {"options": {"folder": str(folder)}, "enforce": (), **settings}
        service = RemoteSandbox(python=python, type=kind, slots=2, **settings)
        service.probe = no_probe  # type: ignore[method-assign]
        return service

    return made


@pytest.fixture(scope="module")
def service(make: Callable[..., RemoteSandbox], folder: Path) -> Iterator[RemoteSandbox]:
    """One that is started."""
    started = make()
    asyncio.run(started.__aenter__())
    yield started
    asyncio.run(started.__aexit__())
    assert left(folder) == set()


async def no_probe() -> dict[str, Guarantee]:
    return {}


def ran(service: RemoteSandbox, *argv: str, **more: Any) -> ProgramResult:
    files = more.pop("files", {})
    return asyncio.run(service.run(files, list(argv), **{"limits": PATIENT, **more}))


def tried(service: RemoteSandbox) -> str:
    """Start the service, and run a program."""

    async def run() -> str:
        async with service:
            return (await service.run({}, ["true"], limits=PATIENT)).status

    return asyncio.run(run())


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def events(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "log").read_text().splitlines()]


def left(folder: Path) -> set[str]:
    """The environments that started and did not stop."""
    names = {"start": set[str](), "stop": set[str]()}
    for word, *_, name in events(folder):
        names[word].add(name)
    return names["start"] - names["stop"]


def test_a_program_has_files_input_a_folder_and_a_user_of_its_own(service: RemoteSandbox) -> None:
    code = (
        "import os, sys\n"
        "print(sys.stdin.read()[::-1], open('a/b.txt').read(), os.getuid() >= 20000, os.listdir())\n"
        "print('to error', file=sys.stderr)\n"
        "open('new', 'w').write('x')\n"
        "sys.exit(3)\n"
    )
    files = {"main.py": code, "a/b.txt": "text"}
    result = ran(service, "python3", "-I", "main.py", files=files, stdin="olleh")
    assert result.status == "failed"
    assert result.exit == 3
    first, second = result.stdout.decode().split(" text ")
    assert first == "hello"
    assert sorted(json.loads(second.split(" ", 1)[1].replace("'", '"'))) == ["a", "main.py"]
    assert second.startswith("True")
    assert result.stderr == b"to error\n"
    assert result.usage.cpu_seconds > 0


def test_bytes_come_as_they_were_written(service: RemoteSandbox) -> None:
    every = bytes(range(256))
    result = ran(service, "cat", stdin=every)
    assert result.stdout == every
    assert result.status == "ok"


def test_each_program_has_a_sandbox_of_its_own_with_its_memory(
    service: RemoteSandbox, folder: Path
) -> None:
    async def both() -> None:
        await asyncio.gather(
            service.run({}, ["true"], limits=ProgramLimits(memory=128 << 20, seconds=60.0)),
            service.run({}, ["true"], limits=PATIENT),
        )

    before = len(started(folder))
    asyncio.run(both())
    new = started(folder)[before:]
    assert {memory for memory, _ in new} == {"192", "576"}
    assert len({name for _, name in new}) == 2


def started(folder: Path) -> list[tuple[str, str]]:
    """Memory and name of each environment that started."""
    return [(event[1], event[2]) for event in events(folder) if event[0] == "start"]


def test_time_is_counted_there_and_everything_ends_with_it(service: RemoteSandbox) -> None:
    mark = f"quintain-remote-{os.getpid()}"
    script = f"(setsid sleep 3600 {mark} &) ; sleep 3600"
    result = ran(service, "sh", "-c", script, limits=ProgramLimits(seconds=0.5))
    assert result.status == "timeout"
    assert result.exit is None
    assert result.usage.seconds >= 0.5
    assert not processes_with(mark.encode())


def test_output_is_cut_there(service: RemoteSandbox) -> None:
    result = ran(service, "yes", limits=ProgramLimits(seconds=60.0, output=1000))
    assert result.status == "output"
    assert len(result.stdout) == 1000
    assert result.truncated == ("stdout",)


def test_a_program_can_neither_end_nor_read_what_reports_for_it(service: RemoteSandbox) -> None:
    code = (
        "import os, signal\n"
        "parent = os.getppid()\n"
        "for call in (lambda: os.kill(parent, signal.SIGKILL), lambda: os.listdir(f'/proc/{parent}/fd'),\n"
        "             lambda: open(f'/proc/{parent}/mem', 'rb')):\n"
        "    try:\n"
        "        call()\n"
        "        print('BREACH')\n"
        "    except PermissionError:\n"
        "        print('refused')\n"
    )
    result = ran(service, "python3", "-I", "-c", code)
    assert result.stdout == b"refused\n" * 3
    assert result.status == "ok"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("start", "RuntimeError: no machine is free"),
        ("slow start", "TimeoutError"),
        ("upload", "ConnectionError: the service closed the connection"),
        ("exec", "did not run 'true': status 127, python3: not found"),
        ("download", "sent no report that can be read|another size than it says"),
        (
            "hang",
            r"did not report the end of 'true' within 0.5 s of its time limit \(remote.grace\)",
        ),
    ],
)
def test_a_failure_of_the_service_is_no_result(
    service: RemoteSandbox, folder: Path, fault: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next program runs, and no sandbox of the one that failed is left."""
    monkeypatch.setattr(service, "grace", 0.5)
    monkeypatch.setattr(service, "start_seconds", 2.0 if fault == "slow start" else 60.0)
    (folder / "fault").write_text(fault)
    with pytest.raises(InfrastructureError, match=message):
        ran(service, "true", limits=ProgramLimits(seconds=0.5 if fault == "hang" else 60.0))
    (folder / "fault").unlink()
    monkeypatch.undo()
    assert ran(service, "echo", "next").stdout == b"next\n"
    await_nothing(lambda: sorted(left(folder)), 60.0)


def test_a_command_that_is_not_there_is_no_result(service: RemoteSandbox) -> None:
    with pytest.raises(InfrastructureError, match="did not run 'not-here': FileNotFoundError"):
        ran(service, "not-here")


def test_a_cancelled_program_has_ended_with_its_sandbox(
    service: RemoteSandbox, folder: Path
) -> None:
    mark = f"quintain-cancelled-{os.getpid()}"

    async def work() -> None:
        argv = ["sh", "-c", "sleep 3600; :", mark]
        running = asyncio.create_task(service.run({}, argv, limits=PATIENT))
        await asyncio.to_thread(until, lambda: processes_with(mark.encode()))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(work())
    assert left(folder) == set()


@pytest.mark.parametrize("victim", ["trainer", "helper"])
def test_nothing_is_left_of_a_process_that_is_killed(
    python: str, tmp_path: Path, victim: str
) -> None:
    """The sandboxes of a killed trainer end; a killed helper is an infrastructure error."""
    mark = f"quintain-killed-{victim}-{os.getpid()}"
    settings = {
        "python": python, "type": "local", "slots": 1, "enforce": [],
        "options": {"folder": str(tmp_path)},
    }  # fmt: skip
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, json.dumps(settings), mark],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "started\n"
    until(lambda: len(processes_with(mark.encode())) >= 2)  # the trainer itself has the word, too
    if victim == "trainer":
        trainer.kill()
        trainer.communicate()
        await_nothing(lambda: sorted(left(tmp_path)), 60.0)
        return
    children = Path(f"/proc/{trainer.pid}/task").glob("*/children")
    (helper,) = (int(number) for file in children for number in file.read_text().split())
    os.kill(helper, signal.SIGKILL)
    _, said = trainer.communicate(timeout=60)
    assert trainer.returncode == 1
    assert "InfrastructureError: remote: the process of harbor ended" in said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "clouds"}, "remote.type is 'clouds'; harbor has local, open, paid"),
        ({"kind": "paid"}, "harbor refuses the settings: paid requires PAID_API_KEY to be set."),
        (
            {"options": {"folder": "/", "size": 1}},
            "harbor refuses the settings: Unknown option 'size'.",
        ),
        ({"kind": "open"}, "harbor refuses remote.type = 'open': network_mode='no-network' is not"),
        ({"warm": -1}, "remote.warm -1"),
        ({"grace": 0.0}, "remote.grace 0.0; expected positive"),
        ({"enforce": ("walls",)}, "remote.enforce has 'walls', which is no guarantee"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_what_cannot_be_had_is_refused_by_the_name_of_the_setting(
    make: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        tried(make(**settings))


def test_a_network_is_given_only_if_the_recipe_says_so(make: Any) -> None:
    assert tried(make(kind="open", network=True)) == "ok"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/no/python", "remote.python is '/no/python', which does not exist"),
        (sys.executable, r"which has no harbor: .* -m pip install 'harbor\[modal\]'"),
    ],
    ids=["no interpreter", "no harbor"],
)
def test_an_interpreter_without_harbor_is_named_before_the_run(path: str, message: str) -> None:
    if (
        path == sys.executable
        and subprocess.run([path, "-c", "import harbor"], capture_output=True).returncode == 0
    ):
        pytest.skip("this interpreter has harbor")
    with pytest.raises(UsageError, match=message):
        RemoteSandbox.check_available({"python": path, "type": "modal"})


def test_conversations_sessions_and_calls_for_a_network_are_refused(service: RemoteSandbox) -> None:
    async def work() -> None:
        with pytest.raises(UsageError, match="remote runs programs that have all of their input"):
            service.start({}, ["cat"])
        with pytest.raises(UsageError, match="remote has no sessions"):
            async with service.session():
                raise AssertionError
        with pytest.raises(UsageError, match="remote gives no network"):
            await service.run({}, ["true"], network=True)

    asyncio.run(work())


def test_an_image_whose_user_is_not_root_is_refused(make: Any, tmp_path: Path) -> None:
    for place in (tmp_path, *tmp_path.parents):
        if place != Path("/tmp") and place.is_relative_to("/tmp"):
            place.chmod(0o777)
    options = {"folder": str(tmp_path), "user": "12345"}
    with pytest.raises(UsageError, match=r"run as user 12345 .* \(remote.image\)"):
        tried(make(options=options))


@pytest.mark.more
@pytest.mark.parametrize("elsewhere", [False, True], ids=["this machine", "another"])
def test_what_the_probe_cannot_see_from_there_is_not_known(
    python: str, tmp_path: Path, elsewhere: bool
) -> None:
    options = {"folder": str(tmp_path), "elsewhere": elsewhere}
    service = RemoteSandbox(python=python, type="local", slots=2, enforce=(), options=options)

    async def probed() -> dict[str, Guarantee]:
        async with service:
            with pytest.raises(UsageError, match="filesystem: (absent|not known); ") as refused:
                service.require(AXES)
            assert ("read what the service promises" in str(refused.value)) == elsewhere
            return dict(service.guarantees)

    found = asyncio.run(probed())
    assert {found[axis] for axis in ("output", "time", "forks")} == {Guarantee.ENFORCED}
    unseen = {axis for axis, level in found.items() if level is Guarantee.UNKNOWN}
    expected = {"filesystem", "network", "processes", "users"} if elsewhere else set()
    assert unseen == expected


@pytest.fixture(scope="module")
def docker_service() -> Iterator[RemoteSandbox]:
    """Containers of this machine's engine, made by harbor itself."""
    python = os.environ.get("QUINTAIN_HARBOR_PYTHON")
    if not python:
        pytest.skip("QUINTAIN_HARBOR_PYTHON names no interpreter with harbor")
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("harbor needs the plugin compose of docker")
    service = RemoteSandbox(python=python, type="docker", image=image(), slots=2, enforce=())
    asyncio.run(service.__aenter__())
    yield service
    asyncio.run(service.__aexit__())
    names = subprocess.run(
        ["docker", "ps", "-aq", "--filter", "name=quintain-"], capture_output=True
    )
    assert names.stdout == b""


@pytest.mark.ci
def test_harbor_itself_runs_programs_in_containers(docker_service: RemoteSandbox) -> None:
    async def both() -> list[ProgramResult]:
        return await asyncio.gather(
            docker_service.run(
                {"a.py": "print(input()[::-1])"}, ["python3", "a.py"], "olleh", PATIENT
            ),
            docker_service.run({}, ["sleep", "3600"], limits=ProgramLimits(seconds=1.0)),
            docker_service.run({}, ["yes"], limits=ProgramLimits(seconds=60.0, output=1000)),
        )

    said, slept, talked = asyncio.run(both())
    assert (said.status, said.stdout) == ("ok", b"hello\n")
    assert (slept.status, talked.status) == ("timeout", "output")


@pytest.mark.ci
def test_containers_of_harbor_keep_what_the_table_of_the_page_says(
    docker_service: RemoteSandbox,
) -> None:
    kept = {
        axis for axis, level in docker_service.guarantees.items() if level is Guarantee.ENFORCED
    }
    assert kept >= {"filesystem", "network", "users", "memory", "forks", "output", "time"}
    assert not {"processes", "disk", "syscalls"} & kept


@pytest.mark.ci
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "clouds"}, "remote.type is 'clouds'; harbor has aca-sandbox, ack, "),
        ({"type": "docker", "options": {"size": 1}}, "Unknown option 'size'"),
    ],
    ids=["type", "options"],
)
def test_harbor_itself_refuses_before_the_run(settings: dict[str, Any], message: str) -> None:
    python = os.environ.get("QUINTAIN_HARBOR_PYTHON")
    if not python:
        pytest.skip("QUINTAIN_HARBOR_PYTHON names no interpreter with harbor")
    with pytest.raises(UsageError, match=message):
        RemoteSandbox.check_available({"python": python, **settings})
