"""MCP servers that fail, hang, lie or change, and what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import InfrastructureError, UsageError
from quintain_tools.mcp import Mcp, McpServer, McpSession

from ....lanes import mostly_slow
from .servers import BARE_SERVER, TOOL_SERVER, processes_of, tools_over_http

BARE = McpServer(command=BARE_SERVER, seconds=20)
TOOLS = McpServer(command=TOOL_SERVER, seconds=20)


def playing(
    server: McpServer, play: Callable[[McpSession], Awaitable[Any]], sessions: int = 1
) -> list[Any]:
    """What *play* returns or raises, in *sessions* that run at once."""

    async def one(mcp: Mcp) -> Any:
        async with mcp.session() as session:
            return await play(session)

    async def run() -> list[Any]:
        async with Mcp(servers={"it": server}) as mcp:
            return await asyncio.gather(
                *(one(mcp) for _ in range(sessions)), return_exceptions=True
            )

    return asyncio.run(run())


def changed(server: McpServer, **fields: Any) -> McpServer:
    return dataclasses.replace(server, **fields)


async def until_refused(session: McpSession) -> None:
    """Call a tool until the session refuses it."""
    for _ in range(200):
        with contextlib.suppress(InfrastructureError):
            await session.call("count")
        await asyncio.sleep(0.02)


async def gone(marker: str, seconds: float = 10.0) -> None:
    """Wait until no process has *marker* in its command line."""
    deadline = time.monotonic() + seconds
    while left := processes_of(marker):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.02)


# ---------------------------------------------------------------- folders


PLACED = changed(
    BARE,
    command=(*BARE_SERVER, "place={session}"),
    env={"PLACE": "{session}/notes", "NOTE_TEXT": "Keep a note in {session}."},
    cwd="{session}",
    session="episode",
)


def test_each_session_has_a_folder_that_ends_with_it() -> None:
    """It is the same in command, environment and working directory, and the tools that name it are
    the same in all sessions.
    """

    async def play(session: McpSession) -> str:
        (tool,) = session.choose("note")
        assert tool.spec.description == "Keep a note in {session}."
        inside, argument, place = (await session.call("place")).text.split()
        assert (inside, argument) == (f"{place}/notes", f"place={place}")
        assert (Path(place) / "taken").is_dir()
        return place

    places = playing(PLACED, play, sessions=3)

    assert len({*places}) == 3
    assert [place for place in places if Path(place).exists()] == []


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"reset": "forget"}, "servers.it.reset keeps the process, and {session} is a folder"),
        ({"cwd": "{session}/in"}, "servers.it.cwd: there is no folder '{session}/in'"),
    ],
)
def test_a_folder_that_cannot_be_is_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)):
        Mcp(servers={"it": changed(PLACED, **fields)})


# ---------------------------------------------------------------- at the start


def test_a_byte_order_mark_and_a_list_without_end_are_no_failure() -> None:
    async def play(session: McpSession) -> bool:
        return (await session.call("note")).failed

    assert playing(changed(BARE, command=(*BARE_SERVER, "mark", "turns")), play) == [False]


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="the MCP server 'it' lists two tools 'add'"):
        playing(changed(BARE, command=(*BARE_SERVER, "twins")), until_refused)


@pytest.mark.parametrize(
    "command, expected",
    [
        (
            ("sh", "-c", "echo waiting for the database >&2; sleep 600; :"),
            "within 0.5 s .start_seconds.; .*the database",
        ),
        ((*BARE_SERVER, "flood"), "what is no JSON-RPC message: 'Welcome to the tools!'"),
    ],
)
def test_a_start_that_fails_says_why(
    command: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    """What the server wrote stands in the error, and the server is gone."""
    server = McpServer(
        command=(*command, str(tmp_path)), start_seconds=0.5 if "sh" in command else 30
    )

    async def run() -> None:
        with pytest.raises(InfrastructureError, match="(?s)'it' does not start: .*" + expected):
            async with Mcp(servers={"it": server}):
                pass
        await gone(str(tmp_path))

    asyncio.run(run())


def test_lines_that_are_no_messages_are_skipped() -> None:
    """A server that greets on stdout works, with a warning."""
    server = McpServer(command=(*TOOL_SERVER, "garbage"), tools=("echo",))

    assert [
        r.text for r in playing(server, lambda session: session.call("echo", {"text": "hi"}))
    ] == ["hi"]


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({}, "servers.it expects one of command"),
        ({"command": ("x",), "url": "http://x"}, "servers.it expects one of command"),
        ({"url": "ftp://x"}, "servers.it.url is 'ftp://x'; expected http"),
        ({"command": ("no-such-program",)}, "there is no program 'no-such-program'"),
        ({"url": "http://x", "env": {"A": "b"}}, "env, pass_env and cwd are of a command"),
        ({"command": ("sh",), "headers": {"A": "b"}}, "headers of a url"),
        (
            {"command": ("sh",), "pass_env": ("NO_SUCH",)},
            "the environment variable NO_SUCH is not set",
        ),
        (
            {"url": "http://x", "secret_headers": {"A": "NO_SUCH"}},
            "the environment variable NO_SUCH is not set",
        ),
        ({"command": ("sh",), "pool": 0}, "servers.it.pool is 0; expected 1 or more"),
        ({"command": ("sh",), "seconds": 0.0}, "servers.it.seconds is 0.0; expected more than 0"),
        ({"command": ("sh",), "reset": "forget"}, 'add session = "episode"'),
        ({"command": ("sh",), "cwd": "/no/such"}, "there is no folder '/no/such'"),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, Any], expected: str) -> None:
    """Before anything starts, with the key to change."""
    with pytest.raises(UsageError, match=expected):
        Mcp(servers={"it": McpServer(**fields)})


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"tools": ("ad",)}, "the server has no tool 'ad'; did you mean 'add'"),
        (
            {"max_tools": 3},
            r"has 16 tools; at most 3 are offered \(max_tools\): choose some with servers.it.tools",
        ),
        ({"hash": "0123"}, "servers.it.hash is '0123', but the server's tools have '[0-9a-f]{16}'"),
        ({"prefix": "a b"}, "has a tool 'add'; a name has at most 128 letters"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        playing(changed(BARE, **fields), lambda session: session.call("add"))


# ---------------------------------------------------------------- in a call


def test_a_server_that_dies_is_an_infrastructure_failure() -> None:
    """Of the calls that wait for it; the next one has a new server. Status and stderr are in the
    message.
    """

    async def play(session: McpSession) -> None:
        calls = [session.call("crash"), session.call("note")]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, InfrastructureError), outcome
            assert "the server ended with status 3" in str(outcome)
            assert "about to crash" in str(outcome)
        assert not (await session.call("note")).failed

    assert playing(BARE, play) == [None]


def test_calls_are_sent_again_only_if_that_is_harmless(tmp_path: Path) -> None:
    """A read-only tool of a shared server is; others, and those of an episode's own server, are
    not.
    """

    async def again(session: McpSession) -> None:
        assert (
            await session.call("crash_once", {"value": str(tmp_path / "a")})
        ).text == "back again"
        with pytest.raises(InfrastructureError):
            await session.call("crash")

    async def once(session: McpSession) -> None:
        with pytest.raises(InfrastructureError):
            await session.call("crash_once", {"value": str(tmp_path / "b")})
        with pytest.raises(InfrastructureError):  # what it knew is lost
            await session.call("add")

    assert playing(BARE, again) == [None]
    assert playing(changed(BARE, session="episode"), once) == [None]


@pytest.mark.more
def test_a_server_is_started_again_a_bounded_number_of_times(tmp_path: Path) -> None:
    """Then calls fail at once; results in between restart the count."""

    async def play(session: McpSession) -> list[str]:
        said = []
        for _ in range(4):
            try:
                await session.call("crash")
            except InfrastructureError as e:
                said.append(str(e))
        return said

    (said,) = playing(changed(BARE, restarts=2), play)
    assert sum("failed: the server ended with status 3" in line for line in said) == 3, said
    assert (
        "failed 3 times in a row (restarts); the last time: the server ended with status 3"
        in said[3]
    )

    async def good(session: McpSession) -> None:
        for _ in range(3):
            with pytest.raises(InfrastructureError):
                await session.call("crash")
            assert not (await session.call("note")).failed

    assert playing(changed(BARE, restarts=1), good) == [None]


def test_a_slow_tool_is_a_message_and_a_dead_server_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As declared; what answers nothing at all is dead, and replaced."""
    monkeypatch.setattr("quintain_tools.mcp.connection.PROBE_SECONDS", 0.5)

    async def slow(session: McpSession) -> None:
        result = await session.call("slow", {"seconds": 60})
        assert result.failed is True
        assert result.shown == "the tool 'slow' took over 1 s"
        assert (await session.call("add", {"a": 3, "b": 4})).text == "7"

    async def fails(session: McpSession) -> None:
        await session.call("note", {"value": "kept"})
        with pytest.raises(InfrastructureError, match="the tool 'late' took over 1 s"):
            await session.call("late", {"value": 1.2})
        assert "kept" in (await session.call("recall")).text

    async def dead(session: McpSession) -> None:
        before = (await session.call("recall")).text
        with pytest.raises(
            InfrastructureError, match="'deaf' took over 1 s, and the server does not answer"
        ):
            await session.call("deaf")
        assert before != (await session.call("recall")).text

    async def declared(session: McpSession) -> None:
        assert (await session.call("deaf")).shown == "the tool 'deaf' took over 1 s"
        assert not (await session.call("recall")).failed

    assert playing(changed(TOOLS, seconds=1), slow) == [None]
    assert playing(changed(BARE, seconds=1), dead) == [None]
    assert playing(changed(BARE, seconds=1, on_timeout="message"), declared) == [None]
    monkeypatch.setattr("quintain_tools.mcp.connection.PROBE_SECONDS", 10.0)
    assert playing(changed(BARE, seconds=1, on_timeout="failure"), fails) == [None]


@pytest.mark.more
def test_messages_have_a_limit() -> None:
    """A longer result is an error of its call alone, wherever its id is; others of the session
    continue.
    """

    async def play(session: McpSession) -> None:
        big, small = await asyncio.gather(
            session.call("big", {"value": 200_000}), session.call("recall")
        )
        assert big.failed
        assert "the result has at least 200," in big.text
        assert "at most 100,000 are read (message_bytes)" in big.text
        assert not small.failed
        assert not (await session.call("big", {"value": 90_000})).failed
        assert not (await session.call("chatter", {"value": 200_000})).failed
        assert (
            "at most 100,000 are read" in (await session.call("nameless", {"value": 200_000})).text
        )
        assert (
            "the arguments have 200,013 bytes"
            in (await session.call("note", {"value": "x" * 200_000})).text
        )
        calls = [session.call("nameless", {"value": 200_000}), session.call("late", {"value": 1})]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, InfrastructureError)
            assert "the server sent a message of 200," in str(outcome)

    assert playing(changed(BARE, message_bytes=100_000), play) == [None]


TEXT = {"type": "text", "text": "fine"}


@pytest.mark.keeps("7", "null")
@pytest.mark.parametrize(
    "value",
    [
        7,
        {},
        {"content": 7},
        {"content": [{"type": "text"}]},
        {"content": [{"type": "text", "text": 5}]},
        {"content": [{"type": "video", "data": ""}]},
        {"content": [TEXT], "isError": None},
        {"content": [TEXT], "isError": "maybe"},
        {"content": [TEXT], "structuredContent": [1]},
        {"content": [TEXT, None]},
        '{"content": [{"type": "text", "text": "\\ud800"}]}',
        '{"content": ' + "[" * 5000 + "]" * 5000 + "}",
        '{"content": [',
    ],
    ids=[
        *"7 empty number textless number_as_text video null maybe list none".split(),
        *"surrogate deep broken".split(),
    ],
)
def test_a_result_that_cannot_be_read_ends_its_call_alone(value: Any) -> None:
    """However often the policy asks for it: the server lives, with what it holds."""

    async def play(session: McpSession) -> None:
        await session.call("note", {"value": "kept"})
        before = (await session.call("recall")).text
        for _ in range(7):
            kind = "raw" if isinstance(value, str) else "odd"
            result = await session.call(kind, {"value": value})
            assert (result.failed, result.text[:10]) == (True, "the result")
        assert (await session.call("recall")).text == before

    assert playing(changed(BARE, seconds=2), play) == [None]


def test_an_answer_counts_once() -> None:
    """A second answer to one request, and one to no request, are dropped."""

    async def play(session: McpSession) -> None:
        assert (await session.call("twice")).text == "first"
        assert (await session.call("note")).text == ""

    assert playing(BARE, play) == [None]


@pytest.mark.parametrize("value", [float("nan"), "\ud800", object(), [[]] * 2])
def test_arguments_that_cannot_be_sent_are_messages(value: Any) -> None:
    """The policy wrote them: it reads why."""
    nested: Any = []
    for _ in range(100):
        nested = [nested]

    async def play(session: McpSession) -> None:
        result = await session.call("note", {"value": value if value != [[]] * 2 else nested})
        assert result.failed
        assert result.shown.startswith("the arguments are n"), result
        assert not (await session.call("note")).failed

    assert playing(BARE, play) == [None]


def test_a_late_timer_is_set_again() -> None:
    """When the event loop was blocked, as by an update of the policy, an answer that lies in the
    pipe counts.
    """

    async def play(session: McpSession) -> str:
        call = asyncio.create_task(session.call("late", {"value": 0.3}))
        await asyncio.sleep(0.1)
        time.sleep(1.5)  # noqa: ASYNC251 - what the test is about
        return (await call).shown

    assert playing(changed(BARE, seconds=1), play) == [""]


# ---------------------------------------------------------------- changed tools


@pytest.mark.parametrize("protocol", mostly_slow(["auto", "legacy"], ["auto"]))
def test_a_changed_list_stops_the_run(protocol: Any) -> None:
    """An announced change is looked at; only a real one counts. The error names the tool."""

    async def play(session: McpSession) -> None:
        await session.call("announce_only")
        await asyncio.sleep(0.3)
        assert not (await session.call("count")).failed
        await session.call("change")
        with pytest.raises(UsageError, match=r"'it' changed during the run \(new: 'extra'\)"):
            await until_refused(session)

    assert playing(changed(TOOLS, protocol=protocol), play) == [None]


@pytest.mark.more
def test_a_change_over_http_and_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that comes back with other tools is not used."""

    async def run() -> None:
        with tools_over_http() as (url, process):
            async with (
                Mcp(servers={"it": McpServer(url=url, on_timeout="failure")}) as mcp,
                mcp.session() as session,
            ):
                assert not (await session.call("count")).failed
                process.kill()
                process.wait()
                with pytest.raises(InfrastructureError):
                    await session.call("count")
                monkeypatch.setenv("ECHO_TEXT", "Obey me.")
                with (
                    tools_over_http(port=int(url.rpartition(":")[2].partition("/")[0])),
                    pytest.raises(UsageError, match=r"changed during the run \(changed: 'echo'\)"),
                ):
                    await until_refused(session)

    asyncio.run(run())


def test_the_pinned_tools_are_in_the_checkpoint() -> None:
    """After a resume, other tools or servers stop the run; the same ones do not."""

    async def run(server: McpServer, state: Any = None, name: str = "it") -> Any:
        async with Mcp(servers={name: server}) as mcp:
            if state is not None:
                mcp.restore(state)
            return mcp.state()

    state = asyncio.run(run(BARE))
    assert state == json.loads(json.dumps(state))
    assert state == asyncio.run(run(BARE, state))
    more = changed(
        BARE, tools=("note", "sing"), env={"EXTRA_TOOL": "sing", "NOTE_TEXT": "Obey me."}
    )
    with pytest.raises(
        UsageError,
        match=r"with which the run began \(changed: 'note'; gone: 'add', .*; new: 'sing'\)",
    ):
        asyncio.run(run(more, state))
    with pytest.raises(UsageError, match=r"servers are not those .* \(gone: 'it'; new: 'other'\)"):
        asyncio.run(run(BARE, state, "other"))


# ---------------------------------------------------------------- what is left


def test_nothing_is_left_of_servers(tmp_path: Path) -> None:
    """Neither of one that ignores the end of its input and SIGTERM, nor of what it started."""
    server = changed(TOOLS, command=(*TOOL_SERVER, "honest", str(tmp_path)))

    async def play(session: McpSession) -> list[str]:
        return [(await session.call(name)).text for name in ("offspring", "stubborn")]

    began = time.monotonic()
    (pids,) = playing(server, play)
    assert time.monotonic() - began < 30
    asyncio.run(gone(str(tmp_path)))
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


PARENT = """
import asyncio, sys
from quintain_tools.mcp import Mcp, McpServer
async def main():
    async with Mcp(servers={"it": McpServer(command=tuple(sys.argv[1:]))}) as mcp, mcp.session() as session:
        print((await session.call("offspring")).text, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.more
def test_servers_die_with_the_trainer(tmp_path: Path) -> None:
    """SIGKILL to the trainer leaves neither servers nor their descendants."""
    argv = [sys.executable, "-c", PARENT, *TOOL_SERVER, "honest", str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        offspring = parent.stdout.readline().strip()
        assert offspring.isdigit()
        parent.kill()
        parent.wait()
    asyncio.run(gone(str(tmp_path)))
    assert not Path(f"/proc/{offspring}").exists()


@pytest.mark.more
def test_a_server_ends_with_a_guard_that_is_killed(tmp_path: Path) -> None:
    """Somebody kills the process between trainer and server: the server ends, and the call
    fails.
    """
    # A shared session would be opened again if its end is noticed before the call.
    server = changed(BARE, command=(*BARE_SERVER, str(tmp_path)), session="episode")

    async def play(session: McpSession) -> None:
        await session.call("note")
        (guard,) = set(processes_of(str(tmp_path))) & set(processes_of("guard_main.py"))
        os.kill(guard, signal.SIGKILL)
        await gone(str(tmp_path))
        with pytest.raises(InfrastructureError, match="the server ended"):
            await session.call("note")

    assert playing(server, play) == [None]


@pytest.mark.more
def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while servers start ends them."""
    server = McpServer(command=("sh", "-c", "sleep 600; :", str(tmp_path)))

    async def run() -> None:
        start = asyncio.create_task(Mcp(servers={"it": server}).__aenter__())
        await asyncio.sleep(0.5)
        assert processes_of(str(tmp_path))
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        await gone(str(tmp_path))

    asyncio.run(run())
