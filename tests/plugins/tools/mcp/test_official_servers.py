"""The official servers of the protocol, unmodified: their tools take what a policy writes, and what
they answer reaches it byte for byte.
"""

from __future__ import annotations

import asyncio
import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain import ToolCall
from quintain_tools.mcp import Mcp, McpServer, McpSession

pytestmark = pytest.mark.ci
SECONDS = 400.0
"""That an installation may take."""
BASH = '#!/bin/bash\nif [ "$a" == \'<tool_call>\' ]; then echo "{$b}"; fi\n'
FILES = {
    "markup": "<li>one</li>\n<b>two</b>\n",
    "generics": "List<String> names;\nstd::vector<int> v;\n",
    "brackets": "[TODO] write tests\n[INST] none [/INST]\n",
    "speakers": "User: asked\n\nAssistant: told\n### Response:\n",
    "control": "<|im_end|>\n<|im_start|>system\n</s> <\uff5cUser\uff5c>\n",
    "blanks": "  a\t\r\nb\r\n\n\n c  \n",
    "unicode": "na\u00efve \u200b\u202e\ufeff \U0001f680 \u4f60\u597d\u2028 e\u0301\n",
    "shell": BASH,
    "json": '{"a": "\\u0041\\\\n", "b": [1e5, null]}\n',
    "no_end": "x = 1",
}


def installed(*argv: str, of: str) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        pytest.skip(f"{of} cannot be installed: {e}")
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        pytest.skip(f"{of} cannot be installed: {said}")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, ...]]:
    """The command of a server of npm."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    folder = tmp_path_factory.mktemp("node")
    names = [f"@modelcontextprotocol/server-{n}" for n in ("filesystem", "memory", "everything")]
    options = ("--prefix", str(folder), "--no-audit", "--no-fund", "--prefer-offline")
    installed("npm", "install", *options, *names, of="the servers of npm")
    return lambda name: (
        "node",
        str(folder / f"node_modules/@modelcontextprotocol/server-{name}/dist/index.js"),
    )


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of the servers of PyPI."""
    folder = tmp_path_factory.mktemp("python")
    installed(sys.executable, "-m", "venv", str(folder), of="a virtual environment")
    names = [f"mcp-server-{name}" for name in ("fetch", "git", "time")]
    installed(
        str(folder / "bin/pip"), "install", "-q", "--only-binary", ":all:", *names,
        of="the servers of PyPI",
    )  # fmt: skip
    return folder / "bin"


def playing(play: Callable[[McpSession], Awaitable[Any]], *, times: int = 1, **server: Any) -> Any:
    """What *play* returns in each of several episodes, one after the other."""

    async def run() -> list[Any]:
        given = []
        async with Mcp(servers={"it": McpServer(**server)}) as mcp:
            for _ in range(times):
                async with mcp.session() as session:
                    given.append(await play(session))
        return given

    return asyncio.run(run())


async def shown(session: McpSession, name: str, **arguments: Any) -> str:
    """What a policy reads of a call."""
    (tool,) = session.choose(name)
    call = await tool.run(ToolCall(name=name, arguments=arguments))
    return str(call.error or call.result)


@pytest.mark.parametrize("fence", [False, True], ids=["plain", "fence"])
def test_a_policy_copies_and_edits_files(node: Any, fence: bool) -> None:
    """With a fence it copies what stands in there."""

    async def play(session: McpSession) -> None:
        for name, text in FILES.items():
            await session.call("write_file", {"path": name, "content": text})
            read = await shown(session, "read_text_file", path=name)
            inside = read.removeprefix('<untrusted tool="read_text_file">\n')
            inside = inside.removesuffix("\n</untrusted>")
            assert (inside == read) != fence
            await shown(session, "write_file", path=f"{name}.copy", content=inside)
            copy = await session.call("read_text_file", {"path": f"{name}.copy"})
            assert copy.text == text
            line = inside.splitlines()[0]
            edits = [{"oldText": line, "newText": "changed"}]
            assert "changed" in await shown(session, "edit_file", path=name, edits=edits)

    playing(
        play, command=(*node("filesystem"), "{session}"), cwd="{session}", session="episode",
        fence=fence, pool=1,
    )  # fmt: skip


def test_each_episode_has_its_own_files(node: Any) -> None:
    async def play(session: McpSession) -> tuple[str, str]:
        before = await shown(session, "list_directory", path=".")
        await shown(session, "write_file", path="a.txt", content="a")
        return before, await shown(session, "list_directory", path=".")

    command = (*node("filesystem"), "{session}")
    given = playing(play, times=3, command=command, cwd="{session}", session="episode")
    assert given == [("", "[FILE] a.txt")] * 3


def test_each_episode_has_its_own_memory(node: Any) -> None:
    entity = {"name": "a", "entityType": "b", "observations": ["the answer is <b>42</b>"]}

    async def play(session: McpSession) -> list[bool]:
        graphs = [await shown(session, "read_graph")]
        await shown(session, "create_entities", entities=[entity])
        graphs.append(await shown(session, "search_nodes", query="42"))
        return ["<b>42</b>" in graph for graph in graphs]

    given = playing(
        play, times=3, command=node("memory"), env={"MEMORY_FILE_PATH": "{session}/memory.json"},
        session="episode",
    )  # fmt: skip
    assert given == [[False, True]] * 3


def test_blocks_of_all_kinds_are_shown(node: Any) -> None:
    async def play(session: McpSession) -> None:
        assert await shown(session, "echo", message="<b> [X]") == "Echo: <b> [X]"
        assert "3" in await shown(session, "get-sum", a=1, b=2)
        reference = await shown(session, "get-resource-reference", resourceType="Text")
        assert "This is a plaintext resource" in reference
        # its checksum of the colour profile is wrong, so that no strict reader takes it
        assert "bytes, not shown" in await shown(session, "get-tiny-image")
        weather = await session.call("get-structured-content", {"location": "Chicago"})
        assert weather.structured is not None
        assert all(name in weather.text for name in weather.structured)
        assert weather.text.count("temperature") == 1
        message = await shown(session, "get-annotated-message", messageType="shout")
        assert message.startswith("error: ")

    playing(play, command=node("everything"))


def test_a_repository(python: Path, tmp_path: Path) -> None:
    git = functools.partial(subprocess.run, check=True, cwd=tmp_path)
    git(["git", "init", "-q"])
    git(["git", "config", "user.email", "someone@example.com"])
    git(["git", "config", "user.name", "someone"])
    (tmp_path / "a.txt").write_text(FILES["generics"])
    where = {"repo_path": str(tmp_path)}

    async def play(session: McpSession) -> None:
        assert "a.txt" in await shown(session, "git_status", **where)
        await shown(session, "git_add", **where, files=["a.txt"])
        staged = await shown(session, "git_diff_staged", **where)
        assert "+List<String> names;\n+std::vector<int> v;" in staged
        await shown(session, "git_commit", **where, message="User: <b> [X]")
        assert "User: <b> [X]" in await shown(session, "git_log", **where)

    playing(play, command=(str(python / "mcp-server-git"), "--repository", str(tmp_path)))


def test_the_time(python: Path) -> None:
    async def play(session: McpSession) -> None:
        places = {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo"}
        assert "T21:00:00+09:00" in await shown(session, "convert_time", time="12:00", **places)
        assert "error: " in await shown(session, "get_current_time", timezone="Nowhere")

    playing(play, command=(str(python / "mcp-server-time"), "--local-timezone", "UTC"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of a folder with the files of `FILES`."""
    for name, text in FILES.items():
        (tmp_path / f"{name}.txt").write_bytes(text.encode())
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_page(python: Path, site: str) -> None:
    async def play(session: McpSession) -> None:
        for name in ("markup", "generics", "control"):
            page = await shown(session, "fetch", url=f"{site}/{name}.txt", raw=True)
            assert FILES[name].strip() in page
        assert "404" in await shown(session, "fetch", url=f"{site}/none.txt")

    playing(play, command=(str(python / "mcp-server-fetch"), "--allow-private-ips"))
