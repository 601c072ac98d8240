"""`quintain mcp-tools`, and the page about MCP."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from quintain import Reply, Sampling, ToolCall
from quintain.cli import main
from quintain.evaluation import evaluate
from quintain.registry import current
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_groups
from quintain_authoring import ScriptedEngine
from quintain_tools.mcp import Mcp, McpServer

from ....docs.pages import ROOT, Page
from .servers import BARE_SERVER, served, write_rows

PAGE = Page(path=ROOT / "docs" / "mcp.md")
SERVER = '{ command = ["quintain-search-server", "corpus.jsonl"] }'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a corpus, and the console scripts of this environment on the
    path.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    write_rows(tmp_path / "corpus.jsonl")
    (tmp_path / "agent.toml").write_text(
        'environments = [{ use = "arithmetic" }]\n'
        f'[services.mcp]\nuse = "mcp"\nargs = {{ servers = {{ s = {SERVER} }} }}\n'
    )
    return tmp_path


@pytest.mark.more
def test_the_page_shows_commands_that_work(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command lists the tools of the search server, all with one hash."""
    commands = {
        c.removesuffix(" --json")
        for block in PAGE.blocks
        if block.language == "bash"
        for c in block.commands
        if "prices" not in c
    }
    hashes = set()
    with served(place / "corpus.jsonl", place / "cache") as url:
        for command in commands:
            words = shlex.split(command.replace("http://127.0.0.1:8765/mcp", url))[1:]
            assert main([*words, "--json"]) == 0, capsys.readouterr().err
            (server,) = json.loads(capsys.readouterr().out)["servers"].values()
            assert [tool["name"] for tool in server["tools"]] == ["open", "search"]
            hashes.add(server["hash"])
    assert len(commands) == 3
    assert len(hashes) == 1


@pytest.mark.slow
def test_a_server_of_ones_own_is_as_the_page_shows(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server on the page lists its tool, and the environment on the page starts it and can call
    it.
    """
    for block in PAGE.blocks:
        if block.file:
            (place / block.file).write_text(block.text)
    commands = [
        c
        for block in PAGE.blocks
        if block.language == "bash"
        for c in block.commands
        if "prices" in c
    ]
    shown, scored = commands
    assert main(shlex.split(shown)[1:]) == 0
    assert (
        "  price(item: integer)\n      The price of an item in euros.\n" in capsys.readouterr().out
    )
    assert main([*shlex.split(scored)[1:], "--json"]) == 0, capsys.readouterr().err
    assert '"finished": 1' in capsys.readouterr().out

    async def played() -> Any:
        async with Mcp(servers={"prices": McpServer(command=(sys.executable, "prices.py"))}) as mcp:
            asked = Reply(calls=(ToolCall(name="price", arguments={"item": 7}),))
            script = ScriptedEngine(replies=[asked, "It costs 1.75."])
            environment: Any = current().load("environment", "questions.py:Questions")
            return (
                await evaluate(environment(mcp=mcp), script, tasks=1, sampling=Sampling())
            ).rollouts[0]

    rollout = asyncio.run(played())
    assert "1.75" in str(rollout.turns[0].calls[0].result)
    assert rollout.outcome.total == 1.0


def test_tools_are_shown_as_functions(capsys: pytest.CaptureFixture[str]) -> None:
    """Names, types of parameters, descriptions and hints."""
    assert main(["mcp-tools", "--command", shlex.join(BARE_SERVER)]) == 0
    out = capsys.readouterr().out
    assert "  add(value: any = ...)  [read-only or idempotent]\n      Keep a note.\n" in out
    assert "\n  note(value: any = ...)\n" in out


@pytest.mark.parametrize(
    "words, expected",
    [
        ([], "expected one of --recipe FILE, --command TEXT and --url URL"),
        (["--command", "x", "--url", "y"], "expected one of"),
        (["--command", "no-such-program"], "there is no program 'no-such-program'"),
        (["--command", "'"], "is not as in a shell: No closing quotation"),
        (["--command", ""], "expects one of command"),
        (
            ["--url", "http://127.0.0.1:9/mcp"],
            "does not answer at http://127.0.0.1:9/mcp: ConnectError",
        ),
        (["--url", "http://127.0.0.1:9/mcp", "--header", "x"], "--header expects NAME=VALUE"),
        (["--command", "sh", "--header", "a=b"], "--header is for --url"),
        (["--command", "false"], "does not start: the server ended with status 1"),
    ],
)
def test_errors_are_one_line(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the next thing to do, and no traceback."""
    assert main(["mcp-tools", *words]) != 0
    out, err = capsys.readouterr()
    assert expected in err
    assert not out
    assert len(err.splitlines()) == 1


def test_a_recipe_may_have_an_engine_as_another_service(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A player's engine fills a slot, too, and is no server."""
    (place / "two.toml").write_text(
        'environments = [{ use = "arithmetic" }]\n[services.rival]\nuse = '
        '"scripted"\n[services.tools]\nuse = "mcp"\n'
        f"args = {{ servers = {{ bare = {{ command = {json.dumps(list(BARE_SERVER))} }} }} }}\n"
    )
    assert main(["mcp-tools", "--recipe", "two.toml"]) == 0
    assert "  add(" in capsys.readouterr().out


def test_a_recipe_without_servers_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "agent.toml").write_text('environments = [{ use = "arithmetic" }]')
    assert main(["mcp-tools", "--recipe", "agent.toml"]) == 2
    assert 'agent.toml has no [services.NAME] with use = "mcp"' in capsys.readouterr().err


@pytest.mark.more
def test_the_environment_of_the_page_plays(place: Path) -> None:
    """With the search server of the page and a policy that searches, and names the price."""
    (block,) = [b for b in PAGE.blocks if b.file == "questions.py"]
    names: dict[str, Any] = {}
    exec(compile(block.text, "questions.py", "exec"), names)
    replies = [
        '<tool_call>{"name": "search", "arguments": {"query": "radium"}}</tool_call>',
        "It costs 1.75.",
    ]

    async def play() -> Any:
        async with Mcp(
            servers={"search": McpServer(command=("quintain-search-server", "corpus.jsonl"))}
        ) as mcp:
            environment = names["Questions"](mcp=mcp)
            task = next(iter(environment.tasks("train")))
            request = RolloutRequest(environment=environment, task=task, group_size=1)
            (group,) = await run_groups(
                [request], RolloutContext(engine=ScriptedEngine(replies=replies))
            )
            return group.rollouts[0]

    rollout = asyncio.run(play())
    assert rollout.valid, rollout.termination
    assert rollout.outcome.total == 1.0
    (call,) = rollout.turns[0].calls
    assert "[curie] Marie Curie\n" in call.result
