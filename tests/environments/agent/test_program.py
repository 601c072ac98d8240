"""The environment `agent`: functions and programs, their answers, failures and remains."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from quintain import Limits, Reply, Rollout, Sampling, ToolCall
from quintain.errors import UsageError
from quintain.evaluation import evaluate
from quintain_authoring import ScriptedEngine
from quintain_engines.openai.client import OpenAIEngine
from quintain_env_agent import AgentProgram, functions
from quintain_gateway import Gateway

from ...plugins.engines.openai.http_kit import in_thread, openai_server
from . import programs as agent_programs

HERE = Path(__file__).with_name("programs.py")
DEAD = "http://127.0.0.1:9"
"""A proxy that nobody is."""


def play(
    engine: ScriptedEngine | None = None,
    *,
    limits: Limits | None = None,
    tasks: Any = 1,
    samples: int = 1,
    **args: Any,
) -> list[Rollout[Any, Any]]:
    """The rollouts of an agent on tasks of arithmetic."""

    async def run() -> list[Rollout[Any, Any]]:
        async with Gateway() as gateway:
            about = {"source": "arithmetic", **args} if "data" not in args else args
            environment = AgentProgram(gateway=gateway, **about).overridden(limits=limits)
            policy = engine or ScriptedEngine(replies="132")
            done = await evaluate(
                environment,
                policy,
                tasks=tasks,
                samples=samples,
                sampling=Sampling(),
                retries=0,
                concurrency=64,
            )
            return list(done.rollouts)

    return asyncio.run(run())


def program(how: str, **args: Any) -> list[Rollout[Any, Any]]:
    return play(argv=(sys.executable, str(HERE), how), **args)


def remains() -> list[int]:
    """Processes of agents."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(HERE) in entry.read_text():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    "given",
    [
        {"HTTP_PROXY": DEAD, "http_proxy": DEAD},
        {"ALL_PROXY": DEAD, "all_proxy": DEAD, "NO_PROXY": "example.org"},
        {"http_proxy": DEAD, "no_proxy": "example.org, localhost"},
    ],
)
@pytest.mark.parametrize("function", ["solve", "asked_twice"])
def test_a_proxy_of_the_machine_is_not_asked_for_the_gateway(
    function: str, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")  # so that what the agent sets ends with the test
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    (rollout,) = play(function=f"{HERE}:{function}")
    assert rollout.termination.kind == "finished"
    assert ("example.org" in os.environ["NO_PROXY"]) == ("example.org" in str(given))


@pytest.mark.parametrize("function", ["solve", "asked_twice"])
def test_functions_that_block_and_async_ones(function: str) -> None:
    (rollout,) = play(function=f"{HERE}:{function}")
    assert rollout.termination.kind == "finished"
    answer = rollout.result.answer
    assert (
        answer == "132"
        if function == "solve"
        else json.loads(answer) == {"first": "132", "second": "132"}
    )
    assert rollout.transcripts[""].sampled == 4


@pytest.mark.more
def test_fifty_blocking_agents_run_at_once() -> None:
    """Each in a thread of its own; a pool would be smaller than the number of episodes that the
    engine waits for.
    """

    class Barrier(ScriptedEngine):
        waiting, all_there = 0, asyncio.Event()

        async def sample(self, ids: Any, sampling: Sampling) -> Any:
            self.waiting += 1
            if self.waiting == 50:
                self.all_there.set()
            await self.all_there.wait()
            return await super().sample(ids, sampling)

    rollouts = play(
        Barrier(replies="132"),
        function=f"{HERE}:solve",
        tasks=50,
        limits=Limits(turns=1, seconds=60),
    )
    assert all(r.termination.kind == "finished" for r in rollouts)
    assert not [t for t in threading.enumerate() if t.name == "quintain-agent"]


def test_programs_get_the_prompt_and_the_endpoint_and_answer_by_standard_output_or_a_file() -> None:
    replies = ScriptedEngine(replies=lambda messages: messages[-1].content.splitlines()[0])
    (rollout,) = play(replies, argv=(sys.executable, str(HERE), "plain"))
    assert rollout.result.answer == str(rollout.task.prompt).splitlines()[0]
    (rollout,) = program("file", result_file="answer.txt")
    assert rollout.result.answer == "132"
    (rollout,) = program("plain", result_file="../../etc/passwd")
    assert rollout.result.answer == ""
    assert not remains()


def test_a_script_is_found_from_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `argv = ["python", "agent.py", "{prompt}"]` has it; text of a task that names a file stays
    text.
    """
    (tmp_path / "mine.py").write_text("import sys; print(sys.argv[1:])")
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"prompt": "mine.py", "answer": "x", "split": "test"})
    )
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "run.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    (rollout,) = play(argv=(sys.executable, "mine.py", "{prompt}", "other.txt"), data="rows.jsonl")
    assert rollout.termination.kind == "finished"
    assert (rollout.result and rollout.result.answer) == "['mine.py', 'other.txt']"
    (rollout,) = play(argv=("./run.sh",), data="rows.jsonl")
    assert rollout.result.answer == "ran"


@pytest.mark.more
def test_keys_of_the_trainer_do_not_reach_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    (rollout,) = program("secrets", variables={"MORE": "1"})
    assert "SECRET_TOKEN" not in rollout.result.stdout
    assert "'MORE'" in rollout.result.stdout
    assert "'OPENAI_API_KEY'" in rollout.result.stdout


@pytest.mark.parametrize(
    "args, kind, reason",
    [
        ({"function": f"{HERE}:crashes_early"}, "environment_error", "KeyError"),
        ({"function": f"{HERE}:crashes_early", "crash": "policy"}, "environment_error", "KeyError"),
        ({"function": f"{HERE}:crashes_late"}, "environment_error", "JSONDecodeError"),
        (
            {"function": f"{HERE}:crashes_late", "crash": "policy"},
            "policy_fault",
            "JSONDecodeError",
        ),
        ({"function": f"{HERE}:leaves"}, "environment_error", "SystemExit"),
        ({"argv": (sys.executable, str(HERE), "early")}, "environment_error", "status 1: no idea"),
        ({"argv": (sys.executable, str(HERE), "late")}, "environment_error", "status 3"),
        (
            {"argv": (sys.executable, str(HERE), "late"), "crash": "policy"},
            "policy_fault",
            "status 3",
        ),
    ],
)
def test_crashes_are_typed(args: dict[str, Any], kind: str, reason: str) -> None:
    (rollout,) = play(ScriptedEngine(replies="no JSON"), **args)
    assert rollout.termination.kind == kind
    assert reason in rollout.termination.reason


def called(name: str, **arguments: Any) -> Reply:
    return Reply(text="", calls=(ToolCall(name=name, arguments=arguments),))


@pytest.mark.parametrize(
    "function, replies, kind, reason",
    [
        (
            "strict",
            [called("add", x=1), called("nosuch")],
            "policy_fault",
            "called 'nosuch', which is no tool",
        ),
        (
            "strict",
            [called("add", y=1)],
            "policy_fault",
            "with wrong arguments (missing argument x)",
        ),
        (
            "strict",
            [called("add", x="1")],
            "policy_fault",
            "argument x: expected integer, got string",
        ),
        ("strict", [called("add", x=0)], "environment_error", "ZeroDivisionError"),
        ("forgiving", [called("nosuch"), "fine"], "environment_error", "a bug"),
        ("structured", ["It is 3."], "policy_fault", "does not fit the format"),
        ("structured", ['{"total": 3}'], "policy_fault", "missing argument sum"),
        ("structured", ['{"sum": 0}'], "environment_error", "ZeroDivisionError"),
        ("structured", ['{"sum": 1}'], "finished", ""),
    ],
)
def test_a_crash_is_the_policys_where_its_turn_is_the_cause(
    function: str, replies: Any, kind: str, reason: str
) -> None:
    """An unknown tool, wrong arguments and another format than was asked for are scored; a bug of
    the agent is not.
    """
    (rollout,) = play(ScriptedEngine(replies=replies), function=f"{HERE}:{function}")

    assert kind == rollout.termination.kind
    assert reason in rollout.termination.reason
    assert (rollout.outcome is not None) == (kind != "environment_error")


def test_a_server_that_is_evaluated_may_force_what_the_agent_asks_for() -> None:
    """An engine of text passes the format and the demand for a call to its server; nothing of it
    trains.
    """
    bodies: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        message = {"role": "assistant", "content": '{"sum": 1}'}
        return web.json_response(
            {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        )

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    with in_thread(openai_server(answer, models)) as url:

        async def run(function: str) -> None:
            async with Gateway() as gateway, OpenAIEngine(base_url=url, model="m") as engine:
                environment = AgentProgram(
                    gateway=gateway, source="arithmetic", function=f"{HERE}:{function}"
                )
                await evaluate(environment, engine, tasks=1, sampling=Sampling(), retries=0)

        asyncio.run(run("structured"))
        asyncio.run(run("demanding"))
    structured, demanding = bodies

    assert structured["response_format"] == agent_programs.FORM
    assert "tool_choice" not in structured
    assert demanding["tool_choice"] == "required"
    assert demanding["tools"][0]["function"]["name"] == "add"


def test_what_the_agent_asks_for_never_forces_tokens_that_are_recorded() -> None:
    """The distribution that is sampled from stays the policy's: no format reaches an engine of
    exact tokens.
    """
    settings: list[Sampling] = []

    class Observed(ScriptedEngine):
        async def sample(self, ids: Any, sampling: Sampling) -> Any:
            settings.append(sampling)
            return await super().sample(ids, sampling)

    for function in ("structured", "demanding"):
        play(Observed(replies='{"sum": 1}'), function=f"{HERE}:{function}")

    assert [(s.response_format, s.tool_choice, s.truncates) for s in settings] == [
        ("", "", False)
    ] * 2


@pytest.mark.more
def test_a_hallucinated_tool_of_openai_agents_is_scored() -> None:
    """The framework raises at a call of a tool that it does not have; masked, the call would cost
    nothing.
    """
    pytest.importorskip("agents", reason="openai-agents is not installed (extra dev)")
    rollouts = play(
        ScriptedEngine(
            replies=lambda messages, rng: called("nosuch") if rng.random() < 0.5 else "132"
        ),
        function=f"{HERE.with_name('frameworks.py')}:openai_agents",
        samples=8,
    )
    kinds = [r.termination.kind for r in rollouts]

    assert {"finished", "policy_fault"} == set(kinds)
    assert all(
        r.outcome is not None and "nosuch" in r.termination.reason
        for r in rollouts
        if r.turns[0].calls
    )


def test_an_async_agent_that_blocks_holds_up_itself_alone() -> None:
    """The first blocks until the second has ended, which it can only outside of the first one's
    event loop.
    """
    rollouts = play(
        function=f"{agent_programs.__name__}:waits_for_the_other",
        tasks=2,
        limits=Limits(seconds=60),
    )

    assert {"the other has ended", "132"} == {r.result.answer for r in rollouts}


def test_an_async_agent_that_takes_too_long_is_cancelled_and_cleans_up(tmp_path: Path) -> None:
    """Its cancellation reaches it in its own event loop, and its `finally` runs; one that blocks is
    left behind.
    """
    # a variable of the context that the episodes begin in
    agent_programs.note.set(str(tmp_path / "ended"))
    (rollout,) = play(function=f"{agent_programs.__name__}:hangs", limits=Limits(seconds=2))
    assert rollout.termination.kind == "timeout"
    assert (tmp_path / "ended").read_text() == "CancelledError"
    (rollout,) = play(function=f"{agent_programs.__name__}:blocks", limits=Limits(seconds=1))
    assert rollout.termination.kind == "timeout"
    agent_programs.go_on.set()


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("x"), ValueError("x")])
def test_what_an_async_agent_raises_is_its_own_failure(error: BaseException) -> None:
    async def raises() -> str:
        raise error

    async def run() -> BaseException:
        try:
            await functions.call(raises)
        except BaseException as e:
            return e
        raise AssertionError

    assert repr(error) in repr(asyncio.run(run()))


def test_an_agent_that_never_asks_the_policy_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """It may be right every time; the score is not the policy's."""
    rollouts = play(function=f"{HERE}:knows", samples=3)
    assert [r.outcome.total for r in rollouts if r.outcome] == [1.0] * 3
    (warning,) = [r.getMessage() for r in caplog.records if "never asked" in r.getMessage()]
    assert "in 3 of 3 rollouts" in warning


def test_an_agent_that_rewrites_its_history_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the number of conversations; one that keeps its history is left alone."""
    rollouts = play(
        ScriptedEngine(replies=[called("add", x=1), "1"]), function=f"{HERE}:strict", samples=2
    )
    assert not caplog.records
    assert [(r.metrics["gateway_threads"], r.metrics["gateway_rewritten"]) for r in rollouts] == [
        (1, 0)
    ] * 2
    rollouts = play(ScriptedEngine(replies="a"), function=f"{HERE}:rewrites", samples=2)
    assert [(r.metrics["gateway_threads"], r.metrics["gateway_rewritten"]) for r in rollouts] == [
        (3, 2)
    ] * 2
    (warning,) = [r.getMessage() for r in caplog.records]
    assert "3 conversations in an episode of 3 turns" in warning


def test_a_failed_engine_and_a_limit_are_not_the_agents_crashes() -> None:
    (rollout,) = play(ScriptedEngine(fail_on=range(1, 9)), function=f"{HERE}:solve")
    assert rollout.termination.kind == "infrastructure_error"
    (rollout,) = play(function=f"{HERE}:asked_twice", limits=Limits(turns=1))
    assert rollout.termination.kind == "truncated"
    assert rollout.termination.reason == "turns"


@pytest.mark.parametrize("crash, kind", [("policy", "policy_timeout"), ("environment", "timeout")])
def test_whose_time_it_is_after_a_turn_is_a_setting(crash: Any, kind: str) -> None:
    (rollout,) = program("sleep", crash=crash, limits=Limits(seconds=2))
    assert rollout.termination.kind == kind


def test_output_is_cut_and_the_rest_is_read() -> None:
    (rollout,) = program("noisy", max_output=1000)
    assert rollout.termination.kind == "finished"
    assert rollout.result.stdout == "x" * 1000


def test_orphans_end_with_the_program_and_a_time_out_ends_all() -> None:
    began = time.monotonic()
    (rollout,) = program("orphan", limits=Limits(seconds=60))
    assert rollout.result.answer == "132"
    (rollout,) = program("sleep", limits=Limits(seconds=2))
    assert rollout.termination.kind == "policy_timeout"
    assert time.monotonic() - began < 50
    assert not remains()


@pytest.mark.parametrize(
    "then, kind",
    [("", "finished"), pytest.param("sleep", "policy_timeout", marks=pytest.mark.slow)],
)
def test_a_process_that_left_session_and_environment_ends_too(
    then: str, kind: str, tmp_path: Path
) -> None:
    """`setsid env -i` leaves no group, session, variable or parent by which an orphan could be
    found.
    """
    note = tmp_path / "pid"
    (rollout,) = program(
        "escape", variables={"ESCAPED": str(note), "THEN": then}, limits=Limits(seconds=6)
    )

    assert kind == rollout.termination.kind
    assert not Path(f"/proc/{note.read_text()}").exists()


def test_tasks_of_a_file_have_splits(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}?", "answer": i} for i in range(200)]
    rows[7]["split"] = rows[8]["split"] = "test"
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))

    async def split(name: str) -> list[Any]:
        async with Gateway() as gateway:
            return list(
                AgentProgram(gateway=gateway, function=f"{HERE}:solve", data=str(file)).tasks(name)
            )

    splits = {name: asyncio.run(split(name)) for name in ("train", "dev", "test")}
    assert sum(map(len, splits.values())) == 200
    assert {7, 8} <= {t.answer for t in splits["test"]}
    assert len(splits["train"]) > len(splits["test"]) > 2 < len(splits["dev"])
    (rollout,) = play(
        ScriptedEngine(replies="no"),
        data=str(file),
        function=f"{HERE}:solve",
        tasks=[splits["test"][0]],
    )
    assert rollout.outcome is not None
    assert rollout.outcome.total == 0


@pytest.mark.parametrize(
    "args, message",
    [
        ({}, "either function"),
        ({"function": "a:b", "argv": ("c",)}, "either function"),
        ({"function": "json:loads", "source": "", "data": ""}, "either source"),
        ({"function": "nothing"}, "expected module:function"),
        ({"function": "no_such_module:f"}, "cannot be imported"),
        ({"function": "json:nothing"}, "has no function"),
        (
            {"function": "json:loads", "source": "arithmetic", "source_args": {"size_": 1}},
            "source_args",
        ),
        ({"function": "json:loads", "source": "arithmetik"}, "arithmetic"),
    ],
)
def test_wrong_settings_are_refused_at_once(args: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        AgentProgram(gateway=Gateway(), **{"source": "arithmetic", **args})


def test_a_program_that_does_not_exist_ends_the_run() -> None:
    with pytest.raises(UsageError, match="no program 'no-such-program'"):
        play(argv=("no-such-program",))


def test_the_oracle_and_the_source_agree() -> None:
    async def run() -> None:
        async with Gateway() as gateway:
            environment = AgentProgram(gateway=gateway, function="json:loads", source="arithmetic")
            task = next(iter(environment.tasks("dev")))
            assert str(task.answer) in str(environment.oracle(task, ()))
            shown = next(iter(environment.demonstrations("train")))
            assert "####" in shown.reply

    asyncio.run(run())
    assert os.getpid() not in remains()
