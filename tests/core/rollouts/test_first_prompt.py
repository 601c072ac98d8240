"""The episodes of a group share their first prompt: rendered once, with the tokens that each would
get alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quintain.interfaces.agent import Agent
from quintain.interfaces.environment import Environment
from quintain.interfaces.reward import reward
from quintain.interfaces.tools import ToolSpec
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_episode, run_groups
from quintain.types.rollout import Group, Rollout
from quintain.types.sampling import Sampling
from quintain.types.task import Message, Task
from quintain.types.transcript import TokenSource
from quintain_authoring.byte_tokenizer import ByteTokenizer

from ...lanes import examples
from .engines import Speaker


@reward
def nothing(rollout: Rollout) -> float:
    return 0.0


class Base(Environment[Task, Any]):
    reward = nothing

    def tasks(self, split: str) -> list[Task]:
        return [Task(prompt="one"), Task(prompt="two")]


def echo(prompt: str, sampling: Sampling) -> str:
    return prompt.split("user\n")[-1].split("<|im_end|>")[0]


def requests(environment: Environment, group_size: int, tasks: int = 1) -> list[RolloutRequest]:
    every = list(environment.tasks("train"))[:tasks]
    return [
        RolloutRequest(environment=environment, task=t, group_size=group_size, index=i)
        for i, t in enumerate(every)
    ]


def play(
    environment: Environment, tokenizer: ByteTokenizer, group_size: int, tasks: int = 1
) -> list[Group]:
    context = RolloutContext(engine=Speaker(echo, tokenizer))
    return asyncio.run(run_groups(requests(environment, group_size, tasks), context))


class Counting(ByteTokenizer):
    """Counts the renderings that begin a conversation."""

    first = 0

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True
    ) -> str:
        self.first += not any(m.role == "assistant" for m in messages)
        return super().render(messages, tools, prompt=prompt)


def test_the_samples_of_a_group_render_their_first_prompt_once() -> None:
    """Two groups of four with two turns each: two first prompts, and the transcripts of episodes
    run one by one.
    """

    class Talk(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user(task.prompt)
            await agent.turn()
            agent.user("again")
            await agent.turn()

    together, apart = Counting(), Counting()
    groups = play(Talk(), together, group_size=4, tasks=2)
    context = RolloutContext(engine=Speaker(echo, apart))
    alone = [
        asyncio.run(run_episode(r, i, context))
        for i in range(4)
        for r in requests(Talk(), 4, tasks=2)
    ]

    assert together.first == 2
    assert apart.first == 8
    assert [r.transcripts for r in alone] == [
        g.rollouts[i].transcripts for i in range(4) for g in groups
    ]


@examples(40)
@given(st.lists(st.sampled_from(["a", "b", "a" * 9]), min_size=1, max_size=4), st.booleans())
def test_a_first_prompt_that_differs_is_rendered_anew(texts: list[str], system: bool) -> None:
    """Samples of one group may begin differently, by their own random numbers: each gets its own
    tokens.
    """

    class Drawn(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            if system:
                agent.system(agent.rng.choice(texts))
            agent.user(agent.rng.choice(texts))
            other = agent.player("other")
            other.user(agent.rng.choice(texts))
            await agent.turn()
            await other.turn()

    tokenizer = ByteTokenizer()
    for rollout in play(Drawn(), tokenizer, group_size=6)[0].rollouts:
        own = [m for m in rollout.messages if m.role != "assistant"]
        prompt = [i for i, s in zip(*columns(rollout), strict=True) if s != TokenSource.MODEL]
        assert tokenizer.encode(tokenizer.render(own)) == prompt


def columns(rollout: Rollout) -> tuple[Sequence[int], Sequence[int]]:
    (branch,) = rollout.transcripts[""].branches
    return branch.ids, branch.sources
