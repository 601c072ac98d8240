"""The service `containers` on a real engine: images of tasks, commands and files, and what ends
with a container.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import InfrastructureError, UsageError
from quintain_sandbox import BuildContext, BuildError, Containers, TaskContainer, TaskLimits

from .service import image

pytestmark = pytest.mark.ci


def with_service(act: Callable[[Containers], Awaitable[Any]], **settings: Any) -> Any:
    table = {"python:*": image()}

    async def run() -> Any:
        async with Containers(images=table, **settings) as containers:
            return await act(containers)

    return asyncio.run(run())


def with_container(act: Callable[[TaskContainer], Awaitable[Any]], **settings: Any) -> Any:
    async def run(containers: Containers) -> Any:
        name = await containers.image("python:3")
        async with containers.container(name, **settings) as container:
            return await act(container)

    return with_service(run)


def context(place: Path, text: str, **files: str) -> BuildContext:
    for name, content in files.items():
        (place / name).write_text(content, encoding="utf-8")
    return BuildContext(place, text, seconds=120.0)


def test_equal_contents_are_built_once(tmp_path: Path) -> None:
    """Also at one time, and by a later service. A changed file, mode or line is another image; the
    time of a file is not.
    """
    text = f"FROM python:3\nRUN echo {time.time_ns()} > /made\nCOPY a /a\n"

    async def run(containers: Containers) -> tuple[list[str], int]:
        first = context(tmp_path, text, a="one")
        names = list(await asyncio.gather(*(containers.image(first) for _ in range(3))))
        (tmp_path / "a").touch()
        names.append(await containers.image(first))
        (tmp_path / "a").chmod(0o755)
        names.append(await containers.image(first))
        names.append(await containers.image(context(tmp_path, text, a="two")))
        return names, containers.built

    names, built = with_service(run)
    assert len(set(names[:4])) == 1
    assert len(set(names)) == 3
    assert built == 3
    again, rebuilt = with_service(run)
    assert again[-1] == names[-1]
    assert rebuilt == 0


def test_what_dockerignore_lists_is_not_in_the_image(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("secret*\n", encoding="utf-8")
    made = context(tmp_path, "FROM python:3\nCOPY . /all\n", secret="s", shown="x")

    async def run(containers: Containers) -> bytes:
        name = await containers.image(made)
        async with containers.container(name) as container:
            return (await container.run(["ls", "/all"])).output

    assert with_service(run) == b"Dockerfile\nshown\n"


def test_a_build_that_fails_says_which_command(tmp_path: Path) -> None:
    """It is not tried again by this service, and an image that there is not is named with the
    fix.
    """
    text = "FROM python:3\nRUN echo seen; exit 3\n"

    async def run(containers: Containers) -> list[str]:
        said = []
        for made in (
            context(tmp_path, text),
            context(tmp_path, text),
            context(tmp_path, "FROM nowhere/none:1\n"),
            context(tmp_path, "FROM python:3\nRUN <<EOF\ntrue\nEOF\n"),
        ):
            with pytest.raises(BuildError) as error:
                await containers.image(made)
            said.append(str(error.value))
        return said

    first, second, absent, buildkit = with_service(run)
    assert "exit 3" in first
    assert "seen" in first
    assert second == first
    assert "no image 'nowhere/none:1': load it, map it in `images`" in absent
    assert "BuildKit" in buildkit


def test_a_build_has_a_time_limit(tmp_path: Path) -> None:
    slow = BuildContext(tmp_path, "FROM python:3\nRUN sleep 60\n", seconds=2.0)

    async def run(containers: Containers) -> str:
        with pytest.raises(BuildError) as error:
            await containers.image(slow)
        return str(error.value)

    assert with_service(run) == "the build took more than 2 s"


def test_images_are_built_ahead(tmp_path: Path) -> None:
    """In the background, and a failure there is none of the caller's."""
    text = f"FROM python:3\nRUN echo {time.time_ns()} > /made\n"

    async def run(containers: Containers) -> tuple[int, int]:
        containers.build_ahead([context(tmp_path, text), "nowhere/none:1"])
        await asyncio.gather(*containers._ahead)
        built = containers.built
        await containers.image(context(tmp_path, text))
        return built, containers.built

    assert with_service(run) == (1, 1)


def test_a_command_has_streams_an_exit_status_and_a_directory() -> None:
    async def act(container: TaskContainer) -> Any:
        first = await container.run(
            ["sh", "-c", 'pwd; cat; echo "$A" >&2; exit 7'],
            stdin=b"in\n",
            workdir="/tmp",
            variables={"A": "b c"},
        )
        user = await container.run(["id", "-u"], user="65534")
        none = await container.run(["no-such-command"])
        return first, user, none

    first, user, none = with_container(act)
    assert first.status == "failed"
    assert first.exit == 7
    assert sorted(first.output.splitlines()) == [b"/tmp", b"b c", b"in"]
    assert user.status == "ok"
    assert user.output == b"65534\n"
    assert none.status == "failed"
    assert none.exit == 127


def test_files_and_programs_in_the_background_stay() -> None:
    """Until they are ended; those that are counted as the image's own stay."""

    async def act(container: TaskContainer) -> list[str]:
        await container.run(["sh", "-c", "sleep 1000 & echo x > /tmp/x"])
        await container.settle()
        await container.run(["sh", "-c", "sleep 2000 &"])
        seen = []
        for ended in (False, True):
            if ended:
                await container.end_processes()
            listed = await container.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
            seen.append(f"{'sleep 1000' in listed.text} {'sleep 2000' in listed.text}")
        seen.append((await container.run(["cat", "/tmp/x"])).text)
        return seen

    assert with_container(act) == ["True True", "True False", "x\n"]


def test_a_command_ends_at_its_limit_also_if_it_ignores_signals() -> None:
    """The container goes on."""

    async def act(container: TaskContainer) -> Any:
        plain = await container.run(["sh", "-c", "echo a; sleep 100"], seconds=1)
        stubborn = await container.run(
            ["sh", "-c", "trap '' TERM; sleep 100 & wait; sleep 100"], seconds=1
        )
        return plain, stubborn, await container.run(["echo", "b"])

    plain, stubborn, after = with_container(act)
    assert plain.status == "timeout"
    assert plain.exit is None
    assert plain.output == b"a\n"
    assert stubborn.status == "timeout"
    assert after.output == b"b\n"


def test_long_output_is_cut_in_the_middle() -> None:
    async def act(container: TaskContainer) -> Any:
        return await container.run(["seq", "1", "100000"], output=100)

    result = with_container(act)
    assert result.output[:6] == b"1\n2\n3\n"
    assert result.output[-7:] == b"100000\n"
    assert len(result.output) + result.cut == 588_895
    assert "bytes left out" in result.text


def test_files_go_in_and_out(tmp_path: Path) -> None:
    """Bytes, files and folders, with the right to be run. Links are not followed out, and what is too
    large is not read.
    """
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "run").write_bytes(b"#!/bin/sh\necho ran\n")
    (tmp_path / "tree" / "sub" / "run").chmod(0o755)

    async def act(container: TaskContainer) -> Any:
        await container.put("/new/place", {"a": b"\0\xff", ".": tmp_path / "tree"})
        ran = await container.run(["/new/place/sub/run"])
        await container.run(["ln", "-s", "/etc/passwd", "/new/place/link"])
        files = await container.get("/new/place")
        alone = await container.read("/new/place/a")
        return (
            ran.output,
            files,
            alone,
            await container.get("/nothing"),
            await container.read("/new/place/a", 1),
        )

    ran, files, alone, nothing, large = with_container(act)
    assert ran == b"ran\n"
    assert files == {"place/a": b"\0\xff", "place/sub/run": b"#!/bin/sh\necho ran\n"}
    assert alone == b"\0\xff"
    assert nothing is None
    assert large is None


def test_a_container_has_no_network_and_bounded_memory() -> None:
    """A program that needs more ends; the container does not."""
    code = "import socket; socket.create_connection(('192.0.2.1', 80), 3)"

    async def act(container: TaskContainer) -> Any:
        network = await container.run(["python3", "-c", code])
        memory = await container.run(["python3", "-c", "b'x' * (1 << 29)"])
        return network, memory, await container.run(["echo", "on"])

    network, memory, after = with_container(act, limits=TaskLimits(memory=128 << 20))
    assert "Network is unreachable" in network.text
    assert memory.status == "failed"
    assert memory.exit == 137
    assert after.output == b"on\n"


def test_a_cancelled_command_ends_with_its_container() -> None:
    """And nothing of the service is left."""

    async def run(containers: Containers) -> int:
        name = await containers.image("python:3")

        async def episode() -> None:
            async with containers.container(name) as container:
                await container.run(["sleep", "1000"], seconds=2000)

        task = asyncio.create_task(episode())
        await asyncio.sleep(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert containers._engine is not None
        own = containers._labels.items()
        return sum(own <= labels.items() for labels in containers._engine.containers().values())

    assert with_service(run) == 0


def test_containers_wait_for_a_slot_unless_they_are_beside_another() -> None:
    async def run(containers: Containers) -> list[str]:
        name = await containers.image("python:3")
        said: list[str] = []

        async def other() -> None:
            async with containers.container(name):
                said.append("other")

        async with containers.container(name), containers.container(name, beside=True):
            waiting = asyncio.create_task(other())
            await asyncio.sleep(1)
            said.append("first two")
        await waiting
        return said

    assert with_service(run, slots=1) == ["first two", "other"]


def test_misuse_is_an_error_of_the_user() -> None:
    async def act(container: TaskContainer) -> None:
        for argv, seconds in (([], 1.0), (["a\0"], 1.0), (["a"], 0.0), (["a"], float("inf"))):
            with pytest.raises(UsageError, match="argv"):
                await container.run(argv, seconds=seconds)

    with_container(act)
    with pytest.raises(UsageError, match="slots 0"):
        Containers(slots=0)
    with pytest.raises(UsageError, match="not started"):
        asyncio.run(Containers().image("x"))
    with pytest.raises(InfrastructureError, match="no container engine"):
        Containers.check_available({"url": "unix:///nowhere"})


def test_commands_that_end_at_once_lose_no_output() -> None:
    """Their output may come in one packet with the engine's answer."""

    async def act(container: TaskContainer) -> list[bytes]:
        rounds = [
            await asyncio.gather(*(container.run(["echo", "here"]) for _ in range(4)))
            for _ in range(10)
        ]
        return [result.output for results in rounds for result in results]

    assert with_container(act) == [b"here\n"] * 40
