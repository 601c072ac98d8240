"""The environment `agent-sandboxed`: programs in boxes without a network, which reach their
endpoint alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from quintain import Limits, Rollout, Sampling
from quintain.errors import UsageError
from quintain.evaluation import evaluate
from quintain_authoring import ScriptedEngine
from quintain_env_agent import AgentProgram, SandboxedAgent
from quintain_gateway import Gateway
from quintain_sandbox import Landlock, ProbedSandbox, Rlimits
from quintain_sandbox.docker import build_image

from ...lanes import mostly_slow
from ...plugins.sandbox.service import await_nothing, image, left_behind, started

AGENT = Path(__file__).with_name("sandboxed_programs.py")
IMAGE = "quintain-test-agents"
OPENAI = find_spec("openai")
PACKAGES = [str(Path(OPENAI.origin).parents[1])] if OPENAI and OPENAI.origin else []


@pytest.fixture(scope="module", params=["bubblewrap", pytest.param("docker", marks=pytest.mark.ci)])
def sandbox(request: pytest.FixtureRequest) -> Iterator[ProbedSandbox]:
    if request.param == "bubblewrap":
        yield from started("bubblewrap", slots=8, read_only=PACKAGES)
        return
    image()
    build_image(IMAGE, ["openai"], progress=lambda line: None)
    yield from started("docker", slots=8, warm=2, image=IMAGE)
    from quintain_sandbox.engine import ContainerEngine, own_labels

    engine = ContainerEngine("")
    assert not [
        c for c, labels in engine.containers().items() if labels.items() >= own_labels().items()
    ]
    engine.close()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test no process, control group, folder or descriptor of a box is left."""
    if "sandbox" not in request.fixturenames:
        yield
        return
    service = request.getfixturevalue("sandbox")
    descriptors = len(os.listdir("/proc/self/fd"))

    def left() -> list[str]:
        if service.name == "docker":  # containers that wait have descriptors
            return []
        return left_behind(None) + ["descriptor"] * (len(os.listdir("/proc/self/fd")) - descriptors)

    yield
    await_nothing(left, 5.0)


def play(
    sandbox: ProbedSandbox,
    how: str,
    engine: ScriptedEngine | None = None,
    *,
    limits: Limits | None = None,
    tasks: Any = 1,
    gateway: dict[str, Any] | None = None,
    concurrency: int = 8,
    **args: Any,
) -> list[Rollout[Any, Any]]:
    """The rollouts of an agent on tasks of arithmetic; no task outlives them."""

    async def run() -> list[Rollout[Any, Any]]:
        async with Gateway(**gateway or {}) as service:
            own = {"argv": ("python3", AGENT.name, how), "files": (str(AGENT),), "sandbox": sandbox}
            environment = SandboxedAgent(
                **{"gateway": service, "source": "arithmetic", **own, **args}
            )
            policy = engine or ScriptedEngine(replies="132")
            done = await evaluate(
                environment.overridden(limits=limits), policy, tasks=tasks, samples=1,
                sampling=Sampling(), retries=0,
                concurrency=concurrency,
            )  # fmt: skip
            assert asyncio.all_tasks() == {asyncio.current_task()} | set(service_tasks())
            return list(done.rollouts)

    def service_tasks() -> list[Any]:
        return [t for t in asyncio.all_tasks() if "aiohttp" in repr(t.get_coro())]

    return asyncio.run(run())


def honest(sandbox: ProbedSandbox) -> None:
    """An episode as it should be."""
    (rollout,) = play(sandbox, "plain")
    assert rollout.termination.kind == "finished", rollout.termination
    assert rollout.result.answer == "132", rollout.termination


def test_programs_get_the_prompt_and_the_endpoint_and_answer_by_standard_output_or_a_file(
    sandbox: ProbedSandbox,
) -> None:
    replies = ScriptedEngine(replies=lambda messages: messages[-1].content.splitlines()[0])
    rollouts = play(sandbox, "plain", replies, tasks=3)
    assert [r.result.answer for r in rollouts] == [
        str(r.task.prompt).splitlines()[0] for r in rollouts
    ]
    (rollout,) = play(sandbox, "file", result_file="out/answer.txt")
    assert rollout.result.answer == "132"
    assert rollout.result.stdout == "see the file\n"
    (rollout,) = play(sandbox, "file", result_file="out")
    assert rollout.result.answer == ""


@pytest.mark.more
def test_a_program_that_speaks_the_api_of_anthropic(sandbox: ProbedSandbox) -> None:
    (rollout,) = play(sandbox, "messages")
    assert rollout.result.answer == "132 authentication_error", rollout.termination


def test_what_an_agent_finds_in_its_box(
    sandbox: ProbedSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files, its variables, the endpoint; nothing of the trainer's environment."""
    monkeypatch.setenv("SECRET_TOKEN", "x")
    library = tmp_path / "library"
    (library / "inner" / "__pycache__").mkdir(parents=True)
    for name in ("a.py", "inner/b.py", "inner/__pycache__/c.pyc"):
        (library / name).write_text("x")
    (rollout,) = play(
        sandbox,
        "seen",
        argv=("python3", AGENT.name, "seen", "of {prompt}"),
        files=(str(AGENT), str(library)),
        variables={"MORE": "1"},
    )
    found = json.loads(rollout.result.answer)
    assert found["argv"] == [f"of {rollout.task.prompt}"]
    assert {f for f in found["files"] if "__pycache__" not in f} == {
        AGENT.name, "library", "library/a.py", "library/inner", "library/inner/b.py",
    }  # fmt: skip
    assert {"MORE", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"} <= {
        *found["environment"]
    }
    assert not {"SECRET_TOKEN", "QUINTAIN_EPISODE"} & {*found["environment"]}


def test_the_record_is_that_of_a_program_without_a_sandbox(sandbox: ProbedSandbox) -> None:
    """Equal tokens, log-probs and players, whichever way the requests took."""
    (inside,) = play(sandbox, "plain")

    async def outside() -> Any:
        async with Gateway() as service:
            environment = AgentProgram(
                gateway=service, source="arithmetic", argv=(sys.executable, str(AGENT), "plain")
            )
            done = await evaluate(
                environment,
                ScriptedEngine(replies="132"),
                tasks=1,
                samples=1,
                sampling=Sampling(),
                retries=0,
            )
            return done.rollouts[0]

    assert asyncio.run(outside()).transcripts == inside.transcripts


def test_streams_reach_the_agent(sandbox: ProbedSandbox) -> None:
    text = "one two three " * 3000
    (rollout,) = play(sandbox, "streams", ScriptedEngine(replies=text))
    found = json.loads(rollout.result.answer)
    assert found["text"] == text.strip() or found["text"] == text
    assert found["events"] > 2
    assert found["models"] == ["default"]


def test_sub_agents_run_at_once(sandbox: ProbedSandbox) -> None:
    """Forty conversations wait for one another: none is held up behind another one's reply."""

    class Barrier(ScriptedEngine):
        waiting, all_there = 0, asyncio.Event()

        async def sample(self, ids: Any, sampling: Sampling) -> Any:
            self.waiting += 1
            if self.waiting == 40:
                self.all_there.set()
            await self.all_there.wait()
            return await super().sample(ids, sampling)

    engine = Barrier(replies=lambda messages: messages[-1].content * 2)
    (rollout,) = play(sandbox, "dialogues", engine, limits=Limits(turns=80, seconds=60))
    assert json.loads(rollout.result.answer) == sorted(str(i) * 2 for i in range(40))
    assert len(rollout.transcripts) == 40


def test_forms_of_http(sandbox: ProbedSandbox) -> None:
    (rollout,) = play(sandbox, "wire", limits=Limits(turns=32, seconds=60))
    assert json.loads(rollout.result.answer or "{}") == {
        "length": [200], "chunks": [200], "old": [200], "two": [200, 200], "continue": [100, 200],
        "head": [404],
        "query": [200], "elsewhere": [404], "connect": [404], "no key": [401], "no type": [415],
        "noise": [400],
        "long": [431], "negative": [400], "chunk": [400], "large": [413],
    }, rollout.termination  # fmt: skip


def test_a_request_that_is_given_up_is_not_sampled_further(sandbox: ProbedSandbox) -> None:
    cancelled = []

    class Slow(ScriptedEngine):
        async def sample(self, ids: Any, sampling: Sampling) -> Any:
            if not cancelled:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.append(1)
                    raise
            return await super().sample(ids, sampling)

    (rollout,) = play(sandbox, "leaves", Slow(replies="132"), limits=Limits(turns=4, seconds=60))
    assert rollout.result.answer == "132"
    assert cancelled == [1]


@pytest.mark.more
def test_the_openai_client_in_the_box(sandbox: ProbedSandbox) -> None:
    """Sync, streaming, async, responses. The package is this machine's, by `read_only` or in the
    image.
    """
    if not PACKAGES:
        pytest.skip("openai is not installed (extra dev)")
    variables = {"PYTHONPATH": PACKAGES[0]} if sandbox.name == "bubblewrap" else {}
    ours = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    theirs = subprocess.run(
        ["/usr/bin/python3", "-V"], capture_output=True, text=True, check=False
    ).stdout.strip()
    if variables and theirs.rpartition(".")[0] != ours:
        pytest.skip(f"the packages are those of {ours}, the box has {theirs}")
    (rollout,) = play(sandbox, "openai", variables=variables, limits=Limits(turns=32, seconds=120))
    assert json.loads(rollout.result.answer or "{}") == ["132"] * 11, rollout.termination


@pytest.mark.parametrize(
    "how, args, kind, reason",
    [
        ("early", {}, "environment_error", "status 1: no idea"),
        ("early", {"crash": "policy"}, "environment_error", "status 1: no idea"),
        ("late", {}, "environment_error", "status 3"),
        ("late", {"crash": "policy"}, "policy_fault", "status 3"),
        (
            "eats",
            {"crash": "policy", "box": {"memory": 200 << 20}},
            "policy_fault",
            "more memory than 209,715,200",
        ),
        ("sleeps", {"box": {"seconds": 2}}, "environment_error", "longer than 2 s"),
        ("asks_and_sleeps", {"box": {"seconds": 3}}, "policy_timeout", "longer than 3 s"),
        (
            "asks_and_sleeps",
            {"box": {"seconds": 3}, "crash": "environment"},
            "environment_error",
            "longer than 3 s",
        ),
    ],
)
def test_failures_are_typed(
    sandbox: ProbedSandbox, how: str, args: Any, kind: str, reason: str
) -> None:
    (rollout,) = play(sandbox, how, **args)
    assert rollout.termination.kind == kind
    assert reason in rollout.termination.reason


@pytest.mark.more
def test_failures_of_others_are_not_the_agents(sandbox: ProbedSandbox) -> None:
    (rollout,) = play(sandbox, "plain", ScriptedEngine(fail_on=range(1, 9)))
    assert rollout.termination.kind == "infrastructure_error"
    (rollout,) = play(sandbox, "tries_again", limits=Limits(turns=1))
    assert rollout.termination.kind == "truncated"
    assert rollout.result.answer == "turn_limit_reached"
    (rollout,) = play(sandbox, "sleeps", limits=Limits(seconds=2))
    assert rollout.termination.kind == "timeout"
    with pytest.raises(UsageError, match="no executable 'no-such-program' in the box"):
        play(sandbox, "plain", argv=("no-such-program",))


ATTACKS: dict[str, Any] = {
    "reaches_out": "[]",
    "other_key": "[401, 401, 401]",
    "floods": re.compile(r"\d+ connections"),
    "gigabyte": re.compile(r"\['HTTP/1.1 413', 'HTTP/1.1 413'\]\nx+"),
    "never_reads": "50",
    "garbage": None,
    "outlives": re.compile(r"(alive\n)*132(\nalive)*"),
    "kills": None,
    "forks": None,
    "imitates": "132",
}
"""What each leaves as its answer; ``None`` where that depends on the provider."""


FAST = ("reaches_out", "other_key", "outlives", "forks")
"""One each against the network, the endpoint, the end of the episode and the machine."""


@pytest.mark.parametrize("attack", mostly_slow(ATTACKS, FAST))
def test_attacks_change_nothing_for_others(sandbox: ProbedSandbox, attack: str) -> None:
    """A hostile agent beside an honest one and before another: both score, and nothing is left."""

    async def run() -> tuple[Rollout[Any, Any], Rollout[Any, Any]]:
        engine = ScriptedEngine(
            replies=lambda messages: "x" * 10_000 if messages[-1].content == "long" else "132"
        )
        async with Gateway() as service, service.serve(object()) as other:  # type: ignore[arg-type]
            variables = {
                "GATEWAY_PORT": service.base_url.split(":")[2][:-3],
                "OTHER_KEY": other.api_key,
            }
            own = {
                "gateway": service,
                "sandbox": sandbox,
                "source": "arithmetic",
                "files": (str(AGENT),),
            }
            limits = Limits(turns=5000, seconds=100)

            async def one(how: str, **args: Any) -> Rollout[Any, Any]:
                environment = SandboxedAgent(argv=("python3", AGENT.name, how), **own, **args)
                done = await evaluate(
                    environment.overridden(limits=limits),
                    engine,
                    tasks=1,
                    samples=1,
                    sampling=Sampling(),
                    retries=0,
                )
                return done.rollouts[0]

            hostile, beside = await asyncio.gather(
                one(attack, variables=variables, crash="policy"), one("plain")
            )
            assert beside.termination.kind == "finished"
            assert beside.result.answer == "132"
            assert other.requests == 0
            return hostile, await one("plain")

    hostile, after = asyncio.run(run())
    assert after.termination.kind == "finished"
    assert after.result.answer == "132"
    assert hostile.termination.kind in ("finished", "policy_fault", "environment_error"), (
        hostile.termination
    )
    expected = ATTACKS[attack]
    if expected is not None:
        assert hostile.termination.kind == "finished", hostile.termination
        answer = hostile.result.answer
        assert (
            expected.fullmatch(answer) if isinstance(expected, re.Pattern) else expected == answer
        ), answer[:500]
    elif sandbox.name == "bubblewrap" and attack == "garbage":
        assert hostile.result.answer.splitlines()[-1] == "0"


@pytest.mark.parametrize(
    "args, message",
    [
        ({"argv": ()}, "agent-sandboxed: set argv"),
        ({"files": ("no-such-file",)}, "'no-such-file', which does not exist"),
        ({"box": {"memroy": 1}}, "box has 'memroy'"),
        ({"box": {"memory": 0}}, "limits.memory is 0"),
        ({"enforce": ("netwrok",)}, "netwrok"),
        ({"source": "", "data": ""}, "either source"),
    ],
)
def test_wrong_settings_are_refused_at_once(
    sandbox: ProbedSandbox, args: dict[str, Any], message: str
) -> None:
    own = {"gateway": Gateway(), "sandbox": sandbox, "source": "arithmetic", "argv": ("python3",)}
    with pytest.raises(UsageError, match=re.escape(message)):
        SandboxedAgent(**{**own, **args})


@pytest.mark.more
def test_more_agents_than_slots_wait_and_are_warned_of(
    sandbox: ProbedSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    rollouts = play(sandbox, "plain", tasks=8)
    assert not caplog.records
    rollouts += play(sandbox, "plain", tasks=10, concurrency=10)
    assert {r.termination.kind for r in rollouts} == {"finished"}
    (record,) = caplog.records
    assert "slots (8)" in record.message


def test_a_function_is_no_argument() -> None:
    """It would run in the trainer."""
    assert {"argv", "files", "sandbox"} <= {*signature(SandboxedAgent).parameters} - {"function"}
    assert "function" not in signature(SandboxedAgent).parameters


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Landlock(slots=1, enforce=()), "no loopback device of its own"),
        (lambda: Rlimits(allow_unsafe=True, slots=1), "network: absent"),
    ],
)
def test_providers_without_a_loopback_device_or_with_the_hosts_are_refused(
    make: Any, message: str
) -> None:
    async def run() -> None:
        async with make() as sandbox:
            with pytest.raises(UsageError, match=message):
                SandboxedAgent(
                    gateway=Gateway(),
                    sandbox=sandbox,
                    source="arithmetic",
                    argv=("python3",),
                    enforce=(),
                )

    asyncio.run(run())
