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

from quintain import Limits, Rollout, Sampling
from quintain.errors import UsageError
from quintain.evaluation import evaluate
from quintain.testing import ScriptedEngine
from quintain_env_agent import AgentProgram
from quintain_gateway import Gateway

HERE = Path(__file__).with_name("agent_programs.py")


def play(
    engine: ScriptedEngine | None = None, *, limits: Limits | None = None, tasks: Any = 1, samples: int = 1, **args: Any
) -> list[Rollout[Any, Any]]:
    """The rollouts of an agent on tasks of arithmetic."""

    async def run() -> list[Rollout[Any, Any]]:
        async with Gateway() as gateway:
            about = {"source": "arithmetic", **args} if "data" not in args else args
            environment = AgentProgram(gateway=gateway, **about).overridden(limits=limits)
            policy = engine or ScriptedEngine(replies="132")
            done = await evaluate(
                environment, policy, tasks=tasks, samples=samples, sampling=Sampling(), retries=0, concurrency=64
            )
            return list(done.rollouts)

    return asyncio.run(run())


def program(how: str, **args: Any) -> list[Rollout[Any, Any]]:
    return play(argv=(sys.executable, str(HERE), how), **args)


def remains() -> list[int]:
    """Processes of agents."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if b"QUINTAIN_EPISODE=" in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("function", ["solve", "asked_twice"])
def test_functions_that_block_and_async_ones(function: str) -> None:
    (rollout,) = play(function=f"{HERE}:{function}")
    assert rollout.termination.kind == "finished"
    answer = rollout.result.answer
    assert answer == "132" if function == "solve" else json.loads(answer) == {"first": "132", "second": "132"}
    assert rollout.transcripts[""].sampled == 4


def test_fifty_blocking_agents_run_at_once() -> None:
    """Each in a thread of its own; a pool would be smaller than the number of episodes that the engine waits for."""

    class Barrier(ScriptedEngine):
        waiting, all_there = 0, asyncio.Event()

        async def sample(self, ids: Any, sampling: Sampling) -> Any:
            self.waiting += 1
            if self.waiting == 50:
                self.all_there.set()
            await self.all_there.wait()
            return await super().sample(ids, sampling)

    rollouts = play(Barrier(replies="132"), function=f"{HERE}:solve", tasks=50, limits=Limits(turns=1, seconds=60))
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


def test_a_script_is_found_from_the_folder_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `argv = ["python", "agent.py", "{prompt}"]` has it; text of a task that names a file stays text."""
    (tmp_path / "mine.py").write_text("import sys; print(sys.argv[1:])")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "mine.py", "answer": "x", "split": "test"}))
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "run.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    (rollout,) = play(argv=(sys.executable, "mine.py", "{prompt}", "other.txt"), data="rows.jsonl")
    assert (rollout.termination.kind, rollout.result and rollout.result.answer) == (
        "finished",
        "['mine.py', 'other.txt']",
    )
    (rollout,) = play(argv=("./run.sh",), data="rows.jsonl")
    assert rollout.result.answer == "ran"


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
        ({"function": f"{HERE}:crashes_late", "crash": "policy"}, "policy_fault", "JSONDecodeError"),
        ({"function": f"{HERE}:leaves"}, "environment_error", "SystemExit"),
        ({"argv": (sys.executable, str(HERE), "early")}, "environment_error", "status 1: no idea"),
        ({"argv": (sys.executable, str(HERE), "late")}, "environment_error", "status 3"),
        ({"argv": (sys.executable, str(HERE), "late"), "crash": "policy"}, "policy_fault", "status 3"),
    ],
)
def test_crashes_are_typed(args: dict[str, Any], kind: str, reason: str) -> None:
    (rollout,) = play(ScriptedEngine(replies="no JSON"), **args)
    assert rollout.termination.kind == kind
    assert reason in rollout.termination.reason


def test_a_failed_engine_and_a_limit_are_not_the_agents_crashes() -> None:
    (rollout,) = play(ScriptedEngine(fail_on=range(1, 9)), function=f"{HERE}:solve")
    assert rollout.termination.kind == "infrastructure_error"
    (rollout,) = play(function=f"{HERE}:asked_twice", limits=Limits(turns=1))
    assert (rollout.termination.kind, rollout.termination.reason) == ("truncated", "turns")


def test_output_is_cut_and_the_rest_is_read() -> None:
    (rollout,) = program("noisy", max_output=1000)
    assert rollout.termination.kind == "finished"
    assert rollout.result.stdout == "x" * 1000


def test_orphans_end_with_the_program_and_a_time_out_ends_all() -> None:
    began = time.monotonic()
    (rollout,) = program("orphan", limits=Limits(seconds=60))
    assert rollout.result.answer == "132"
    (rollout,) = program("sleep", limits=Limits(seconds=2))
    assert rollout.termination.kind == "timeout"
    assert time.monotonic() - began < 50
    assert not remains()


def test_tasks_of_a_file_have_splits(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}?", "answer": i} for i in range(200)]
    rows[7]["split"] = rows[8]["split"] = "test"
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))

    async def split(name: str) -> list[Any]:
        async with Gateway() as gateway:
            return list(AgentProgram(gateway=gateway, function=f"{HERE}:solve", data=str(file)).tasks(name))

    splits = {name: asyncio.run(split(name)) for name in ("train", "dev", "test")}
    assert sum(map(len, splits.values())) == 200
    assert {7, 8} <= {t.answer for t in splits["test"]}
    assert len(splits["train"]) > len(splits["test"]) > 2 < len(splits["dev"])
    (rollout,) = play(ScriptedEngine(replies="no"), data=str(file), function=f"{HERE}:solve", tasks=[splits["test"][0]])
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
        ({"function": "json:loads", "source": "arithmetic", "source_args": {"size_": 1}}, "source_args"),
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
