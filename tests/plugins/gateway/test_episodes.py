"""The gateway in episodes: exact records, failures as terminations, what trains."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest

from quintain import (
    Environment,
    Limits,
    Message,
    PolicyFault,
    Reply,
    Rollout,
    Sampling,
    Task,
    ToolCall,
    need,
    reward,
)
from quintain.errors import EnvironmentFault, UsageError
from quintain.evaluation import evaluate
from quintain.learning.batch import batch_of
from quintain.types.rollout import Group
from quintain_authoring import ScriptedEngine
from quintain_authoring.scripted import fake_logp
from quintain_gateway import Endpoint, Gateway
from quintain_gateway.engine_policy import EnginePolicy

from .kit import ADD, talk

Program = Callable[[Endpoint, aiohttp.ClientSession, Task], Awaitable[Any]]


@reward
def right(rollout: Rollout) -> float:
    return float(rollout.result == rollout.task.answer)


class Outside(Environment[Task, str]):
    """Runs *program*, which talks to the endpoint."""

    reward = right
    limits = Limits(turns=20, tokens=4000, seconds=20)
    gateway: Gateway = need()
    program: Any = None

    def tasks(self, split: str) -> Iterator[Task]:
        return (Task(prompt=f"task {i}", answer="42") for i in range(4))

    async def rollout(self, task: Task, agent: Any) -> str:
        async with self.gateway.endpoint(agent) as endpoint, aiohttp.ClientSession() as http:
            return str(await self.program(endpoint, http, task))


async def ask(endpoint: Endpoint, http: aiohttp.ClientSession, *messages: Any, **more: Any) -> Any:
    """The first message of a reply; refusals raise."""
    head = {"Authorization": f"Bearer {endpoint.api_key}"}
    body = {"model": "m", "messages": talk(*messages), **more}
    async with http.post(
        endpoint.base_url + "/chat/completions", json=body, headers=head
    ) as answer:
        said = await answer.json()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status} {said['error']['code']}")
        return said["choices"][0]["message"]


def play(
    program: Program,
    engine: ScriptedEngine,
    *,
    samples: int = 1,
    tasks: int = 1,
    limits: Limits | None = None,
    gateway: dict[str, Any] | None = None,
    environment: type[Outside] | None = None,
) -> list[Rollout[Any, Any]]:
    """The rollouts of *program*; *gateway* are settings of the gateway."""

    async def run() -> list[Rollout[Any, Any]]:
        async with Gateway(**gateway or {}) as service:
            made = (environment or Outside)(gateway=service, program=program)
            played = made.overridden(limits=limits)
            done = await evaluate(
                played, engine, tasks=tasks, samples=samples, sampling=Sampling(), retries=0
            )
            return list(done.rollouts)

    return asyncio.run(run())


def calling(messages: list[Message]) -> Reply | str:
    """Calls add twice, then answers."""
    taken = sum(m.role == "assistant" for m in messages)
    return (
        "42"
        if taken == 2
        else Reply(text="hm", calls=(ToolCall(name="add", arguments={"x": taken, "y": 40}),))
    )


async def loop(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
    """An agent with one tool."""
    messages: list[Any] = talk(
        {"role": "system", "content": "Add."}, {"role": "user", "content": task.prompt}
    )
    while True:
        said = await ask(endpoint, http, *messages, tools=[ADD])
        messages.append(said)
        if "tool_calls" not in said:
            return str(said["content"])
        for call in said["tool_calls"]:
            total = str(sum(json.loads(call["function"]["arguments"]).values()))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": total})


def test_an_agent_is_one_branch_of_the_policys_own_player_and_scores_as_recorded() -> None:
    engine = ScriptedEngine(replies=calling)
    (rollout,) = play(loop, engine)
    assert rollout.result == "42"
    assert (rollout.outcome and rollout.outcome.total) == 1.0
    assert rollout.termination.kind == "finished"
    assert [t.player for t in rollout.turns] == [""] * 3
    assert rollout.reply == "42"
    assert [
        m.role for m in rollout.messages
    ] == "system user assistant tool assistant tool assistant".split()
    (transcript,) = rollout.transcripts.values()
    (sequence,) = transcript.sequences()
    path = transcript.path(0)
    scored = asyncio.run(engine.score(path.ids, 1))
    for logp, recorded, trained in zip(scored, sequence.logps[1:], sequence.mask[1:], strict=True):
        assert not trained or recorded == pytest.approx(logp)
    assert sum(sequence.mask) == transcript.sampled == sum(t.tokens for t in rollout.turns)


def test_only_sampled_tokens_train() -> None:
    """Text of tools, of the agent and of its instructions is context, also where it repeats what
    the policy said.
    """
    (rollout,) = play(loop, ScriptedEngine(replies=calling))
    (sequence,) = rollout.transcripts[""].sequences()
    trained = bytes(
        i for i, m in zip(sequence.ids, sequence.mask, strict=True) if m and i < 256
    ).decode()
    calls = (
        "\n<tool_call>\n" + '{"name": "add", "arguments": {"x": %d, "y": 40}}' + "\n</tool_call>"
    )
    assert trained == "hm" + calls % 0 + "hm" + calls % 1 + "42"


def test_sub_agents_and_a_fork_are_one_sample_and_each_token_trains_once() -> None:
    async def program(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
        plan = (await ask(endpoint, http, task.prompt))["content"]
        parts = await asyncio.gather(*(ask(endpoint, http, f"part {i}") for i in range(3)))
        await ask(endpoint, http, task.prompt, plan, "".join(p["content"] for p in parts))
        await ask(endpoint, http, task.prompt, plan, "another way")
        return "42"

    def reply(messages: list[Message]) -> str:
        return f"about {messages[-1].content}"

    (rollout,) = play(program, ScriptedEngine(replies=reply))
    assert sorted(rollout.transcripts) == ["", "thread-2", "thread-3", "thread-4", "thread-5"]
    assert rollout.metrics["gateway_threads"] == 5
    assert {player: set(names) for player, names in rollout.conversations.items()} == {
        "": set(rollout.transcripts)
    }
    (sample,) = batch_of(
        [Group(task=rollout.task, rollouts=(rollout,))], temperature=1.0, max_tokens=64
    ).samples
    assert sample.tokens == sum(t.tokens for t in rollout.turns)
    assert len(sample.sequences) == 5
    fork = rollout.transcripts["thread-5"]
    (own,) = rollout.transcripts[""].sequences()
    (sequence,) = fork.sequences()
    shared = len("about task 0") + 1  # sampled in the first turn, with its end
    first = own.mask.index(True)
    assert sequence.ids[: first + shared] == own.ids[: first + shared]
    assert not any(sequence.mask[: first + shared])
    assert sum(t.tokens for t in rollout.turns) == sum(
        t.sampled for t in rollout.transcripts.values()
    )


def test_samples_of_a_group_differ_and_repeat_with_the_seed() -> None:
    async def program(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
        first = (await ask(endpoint, http, task.prompt))["content"]
        second = (await ask(endpoint, http, "a sub-agent"))["content"]
        return f"{first} {second}"

    engine = ScriptedEngine(replies=lambda messages, rng: str(rng.random()))
    results = [r.result for r in play(program, engine, samples=4, tasks=4)]
    assert len({x for r in results for x in r.split()}) == 32
    assert results == [r.result for r in play(program, engine, samples=4, tasks=4)]


async def swallow(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
    """An agent that continues whatever happens."""
    for i in range(9):
        try:
            await ask(endpoint, http, f"{task.prompt} {i}")
        except RuntimeError:
            return "42"
    return "42"


async def trusting(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
    """An agent that any refusal ends."""
    for i in range(9):
        await ask(endpoint, http, f"{task.prompt} {i}")
    return "42"


@pytest.mark.parametrize("program", [swallow, trusting])
def test_a_failed_engine_is_an_infrastructure_error_whatever_the_agent_makes_of_it(
    program: Program,
) -> None:
    (rollout,) = play(program, ScriptedEngine(replies="x", fail_on=[3]))
    assert rollout.termination.kind == "infrastructure_error"
    assert "scripted failure" in rollout.termination.reason
    assert not rollout.valid


@pytest.mark.parametrize("limits", [Limits(turns=4), Limits(turns=None, tokens=7)])
def test_a_limit_is_a_truncation_whatever_the_agent_makes_of_it(limits: Limits) -> None:
    (rollout,) = play(swallow, ScriptedEngine(replies="x"), limits=limits)
    assert rollout.termination.kind == "truncated"
    assert rollout.result == "42"
    assert (rollout.outcome and rollout.outcome.total) == 1.0
    (rollout,) = play(trusting, ScriptedEngine(replies="x"), limits=limits)
    assert rollout.termination.kind == "truncated"
    assert rollout.termination.early
    assert rollout.result is None


def test_other_failures_keep_their_kinds() -> None:
    async def crashes(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
        raise ZeroDivisionError

    async def forbidden(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
        raise PolicyFault("forbidden")

    async def hangs(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
        await asyncio.sleep(60)
        return ""

    async def acts(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
        await ask(endpoint, http, "x")
        await asyncio.sleep(60)
        return ""

    async def long(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
        await ask(endpoint, http, "x" * 500)
        return ""

    engine = ScriptedEngine(replies="x", context=300)
    for program, kind in (
        (crashes, "environment_error"),
        (forbidden, "policy_fault"),
        (long, "environment_error"),
    ):
        assert play(program, engine)[0].termination.kind == kind
    # The time after a turn is the policy's: the agent carries out what it says.
    for program, kind in ((hangs, "timeout"), (acts, "policy_timeout")):
        (rollout,) = play(program, engine, limits=Limits(seconds=1))
        assert rollout.termination.kind == kind
        assert rollout.valid == (program is acts)


def test_a_time_out_cancels_the_turn_in_flight() -> None:
    (rollout,) = play(trusting, ScriptedEngine(replies="x", delay=30), limits=Limits(seconds=0.3))
    assert rollout.termination.kind == "timeout"
    assert rollout.seconds < 15


def test_a_full_context_of_a_later_conversation_is_a_truncation() -> None:
    async def program(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
        await ask(endpoint, http, "short")
        await ask(endpoint, http, "long " * 100)
        return "42"

    (rollout,) = play(program, ScriptedEngine(replies="x", context=300))
    assert rollout.termination.kind == "truncated"
    assert rollout.termination.reason == "context"


def test_the_recipes_sampling_stays_and_the_request_may_ask_for_less() -> None:
    async def program(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
        short = await ask(endpoint, http, "a", max_tokens=2, temperature=0.1, seed=3)
        long = await ask(endpoint, http, "b", max_tokens=10**6, stop="yy")
        return f"{short['content']} {long['content']}"

    async def run() -> Rollout[Any, Any]:
        async with Gateway() as gateway:
            environment = Outside(gateway=gateway, program=program)
            sampling = Sampling(temperature=0.7, max_tokens=9)
            engine = ScriptedEngine(replies="xxxxyyyyxxxx")
            return (await evaluate(environment, engine, tasks=1, sampling=sampling)).rollouts[0]

    rollout = asyncio.run(run())
    assert rollout.result == "xx xxxx"
    assert {t.temperature for t in rollout.transcripts.values()} == {0.7}
    logps = [x for t in rollout.transcripts.values() for b in t.branches for x in b.logps if x]
    assert set(logps) <= {fake_logp(i) for i in range(260)}


def test_the_message_of_a_fault_reaches_the_log_of_the_episode() -> None:
    async def program(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
        raise EnvironmentFault("no such file")

    (rollout,) = play(program, ScriptedEngine())
    assert rollout.termination.reason == "no such file"


def named(endpoint: Endpoint, http: aiohttp.ClientSession, model: str, *messages: Any) -> Any:
    return ask(endpoint, http, *messages, model=model)


async def with_a_user_and_a_judge(
    endpoint: Endpoint, http: aiohttp.ClientSession, task: Task
) -> str:
    asked = await named(endpoint, http, "gpt-4o-user", "You are a user. Ask.")
    said = await named(endpoint, http, "policy", asked["content"])
    again = await named(
        endpoint,
        http,
        "gpt-4o-user",
        "You are a user. Ask.",
        asked,
        {"role": "user", "content": "?"},
    )
    await named(endpoint, http, "judge", again["content"])
    return str(said["content"])


def test_models_of_other_names_are_recorded_and_do_not_train() -> None:
    gateway = {"models": ["policy"]}
    (rollout,) = play(with_a_user_and_a_judge, ScriptedEngine(replies="42"), gateway=gateway)
    assert rollout.termination.kind == "finished"
    assert [*rollout.transcripts] == [""]
    assert [turn.tokens > 0 for turn in rollout.turns] == [False, True, False, False]
    players = [turn.player for turn in rollout.turns]
    # The user is one conversation of two turns: its second request goes on.
    assert players == [
        "gpt-4o-user thread-1",
        "",
        "gpt-4o-user thread-1",
        "judge thread-1",
    ]


def test_models_of_other_names_are_refused() -> None:
    async def program(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
        with pytest.raises(RuntimeError, match="404 model_not_found"):
            await named(endpoint, http, "judge", "Is it right?")
        said = await named(endpoint, http, "policy", "x")
        return str(said["content"])

    gateway = {"models": ["policy"], "other_models": "refuse"}
    (rollout,) = play(program, ScriptedEngine(replies="42"), gateway=gateway)
    assert rollout.outcome.total == 1


def test_an_unknown_way_to_answer_other_models_is_refused() -> None:
    with pytest.raises(UsageError, match="expected .untrained., .refuse. or a server"):
        Gateway(other_models="forward")
    with pytest.raises(UsageError, match="name those that are"):
        Gateway(other_models={"base_url": "http://127.0.0.1:9/v1"})
    with pytest.raises(UsageError, match="base_ulr"):
        Gateway(models=["policy"], other_models={"base_ulr": "http://127.0.0.1:9/v1"})


def test_models_of_other_names_are_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a server, which is another gateway here: its answers are in the record and do not train."""

    async def run() -> tuple[Any, list[str]]:
        async with (
            Gateway() as elsewhere,
            elsewhere.serve(
                EnginePolicy(ScriptedEngine(replies="from elsewhere"), Sampling())
            ) as server,
        ):
            monkeypatch.setenv("OTHER_KEY", server.api_key)
            settings = {"base_url": server.base_url, "api_key": "OTHER_KEY"}
            async with Gateway(models=["policy"], other_models=settings) as gateway:
                environment = Outside(gateway=gateway, program=with_a_user_and_a_judge)
                evaluated = await evaluate(environment, ScriptedEngine(replies="42"), tasks=1)
            return evaluated.rollouts[0], [*server.models]

    rollout, asked = asyncio.run(run())
    assert rollout.termination.kind == "finished"
    assert rollout.result == "42"
    assert [*rollout.transcripts] == [""]
    assert [turn.reply for turn in rollout.turns] == [
        "from elsewhere",
        "42",
        "from elsewhere",
        "from elsewhere",
    ]
    assert asked == ["gpt-4o-user", "judge"]


def test_a_server_that_fails_is_no_fault_of_the_policy() -> None:
    gateway = {"models": ["policy"], "other_models": {"base_url": "http://127.0.0.1:9/v1"}}
    (rollout,) = play(with_a_user_and_a_judge, ScriptedEngine(replies="42"), gateway=gateway)
    assert rollout.termination.kind == "infrastructure_error"


def test_two_names_in_an_episode_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    rollouts = play(with_a_user_and_a_judge, ScriptedEngine(replies="42"), tasks=3)
    assert [len(rollout.transcripts) for rollout in rollouts] == [3, 3, 3]
    said = [r.getMessage() for r in caplog.records if "asks for the models" in r.getMessage()]
    assert len(said) == 1
    assert "gpt-4o-user, policy, judge" in said[0]


class WithSystem(Outside):
    system = "SYSTEM OF THE RECIPE"


def test_the_recipes_system_message_is_in_each_conversation_that_brings_none() -> None:
    async def program(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
        said = await ask(endpoint, http, "one")
        await ask(endpoint, http, "one", said, {"role": "user", "content": "two"})
        # a history written in other words, a helper, and one with a system message of its own
        await ask(endpoint, http, "one", {"role": "assistant", "content": "so"}, "three")
        await ask(endpoint, http, "help")
        await ask(endpoint, http, {"role": "system", "content": "ITS OWN"}, "help")
        return str(said["content"])

    seen: list[list[str]] = []

    def reply(messages: list[Message]) -> str:
        seen.append([m.content for m in messages if m.role == "system"])
        return "42"

    play(program, ScriptedEngine(replies=reply), environment=WithSystem)
    assert seen == [["SYSTEM OF THE RECIPE"]] * 4 + [["ITS OWN"]]


def test_a_first_request_with_turns_of_another_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async def program(endpoint: Endpoint, http: aiohttp.ClientSession, task: Task) -> str:
        example = {"role": "assistant", "content": "an example"}
        said = await ask(endpoint, http, "one", example, {"role": "user", "content": "two"})
        return str(said["content"])

    (rollout,) = play(program, ScriptedEngine(replies="42"))
    assert "turns of an assistant that the policy did not take" in caplog.text
    assert rollout.metrics["gateway_rewritten"] == 0
