"""Rollouts of several conversations: the expected update of a small policy is the gradient of the
expected reward, by brute-force enumeration.

Each turn is one token of two. The programs below compact their history, call sub-agents in parallel
and within one another, strip thinking, sample a turn again and abandon branches, and which of it
they do depends on what was sampled. The other side knows no transcripts: it keeps each context that
the engine was asked for, and differentiates the sum of probability times reward over all ways an
episode can go.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, strategies
from torch import Tensor

from quintain import Agent, Environment, Limits, Task, reward
from quintain.errors import UsageError
from quintain.interfaces.agent import SUMMARISE
from quintain.interfaces.algorithm import KL
from quintain.interfaces.engine import TokenEngine, Weights
from quintain.interfaces.tokenizer import Offsets, Renderer
from quintain.interfaces.tools import ToolSpec
from quintain.learning import Learner
from quintain.learning.batch import Batch, Sample, batch_of
from quintain.types.rollout import AnyRollout, Group, Score, Turn
from quintain.types.sampling import Sampling
from quintain.types.task import Message, ToolCall
from quintain.types.transcript import Finish, Sampled
from quintain_authoring import run_episode

from ...models.tiny import tiny_model, with_exact_norms
from ..algorithms import INSTALLED, needs_algorithms

pytestmark = needs_algorithms

TASK = Task(prompt="01")


class BitTokenizer:
    """Two ids. A user's message is a 0 and its bits, a turn its bit alone; with *rewrites* all turns
    but the last one are left out, as templates do that strip thinking.
    """

    name = "bits"
    appends = False
    stop_ids: tuple[int, ...] = ()
    stops: tuple[str, ...] = ()
    vocab_size = 2

    def __init__(self, *, rewrites: bool = False) -> None:
        self.rewrites = rewrites

    def encode(self, text: str) -> list[int]:
        return [int(bit) for bit in text]

    def encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        return self.encode(text), [(i, i + 1) for i in range(len(text))]

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        return "".join(map(str, ids))

    def render(  # an instruction in words is a 1
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True
    ) -> str:
        turns = [i for i, message in enumerate(messages) if message.role == "assistant"]
        left_out = turns[:-1] if self.rewrites else []
        return "".join(
            message.content
            if message.role == "assistant"
            else f"0{'1' if message.content == SUMMARISE else message.content}"
            for i, message in enumerate(messages)
            if i not in left_out
        )

    def renderer(self) -> Renderer:
        return lambda messages, tools, known: self.render(messages, tools)

    def parse(self, text: str, tools: Sequence[ToolSpec] = (), *, finish: Finish = "stop") -> Turn:
        calls = tuple(ToolCall(name=tool.name, arguments={}) for tool in tools if text == "1")
        return Turn(text=text, reply=text, calls=calls, finish=finish)

    def continuation(
        self, messages: Sequence[Message], turn: int, tools: Sequence[ToolSpec], last: int
    ) -> None:
        return None


def fresh() -> Any:
    """A policy to train."""
    module = tiny_model(
        "qwen3", vocab=2, hidden=8, spread=0.5, dtype=torch.float64, pad_token_id=None
    )
    return with_exact_norms(module)


@cache
def policy() -> Any:
    """The same policy, which stays as it is."""
    return fresh()


def logps(module: Any, context: Sequence[int]) -> Tensor:
    """Log-probs of both ids after *context*, from a plain forward pass."""
    return module(input_ids=torch.tensor([[*context]])).logits[0, -1].log_softmax(-1)


@cache
def sampler_logps(context: tuple[int, ...]) -> tuple[float, ...]:
    with torch.no_grad():
        return tuple(logps(policy(), context).tolist())


class ForcedEngine(TokenEngine):
    """Samples the given bits, then zeros, and keeps the context of each."""

    name = "forced"
    context = 512

    def __init__(self, bits: Sequence[int], *, rewrites: bool) -> None:
        self.tokenizer = BitTokenizer(rewrites=rewrites)
        self._bits = list(bits)
        self.sampled: list[tuple[tuple[int, ...], int]] = []

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        taken = len(self.sampled)
        bit = self._bits[taken] if taken < len(self._bits) else 0
        self.sampled.append((tuple(ids), bit))
        logp = sampler_logps(tuple(ids))[bit]
        return Sampled(ids=(bit,), logps=(logp,), versions=(0,), finish="stop")

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        raise NotImplementedError

    async def update(self, weights: Weights) -> int:
        raise NotImplementedError


async def ask(agent: Agent, text: str) -> str:
    agent.user(text)
    return (await agent.turn()).reply


async def one_conversation(agent: Agent) -> None:
    await ask(agent, "1")
    await ask(agent, "10")


async def compacts_once(agent: Agent) -> None:
    """Whether it does is up to the policy, so that it may be alone in its group."""
    summary = await ask(agent, "1")
    if summary == "1":
        rest = agent.conversation("rest")
        await ask(rest, f"11{summary}")
        await ask(rest, "0")


async def compacts_twice(agent: Agent) -> None:
    bits = await ask(agent, "1")
    for name in ("second", "third"):
        bits += await ask(agent, "01")
        agent = agent.conversation(name)
        bits += await ask(agent, f"11{bits}")


async def parallel_sub_agents(agent: Agent) -> None:
    await ask(agent, "1")
    children = [agent.conversation(name) for name in ("left", "right")]
    replies = await asyncio.gather(*(ask(child, f"1{i}") for i, child in enumerate(children)))
    await ask(agent, "".join(replies))


async def nested_sub_agents(agent: Agent) -> None:
    """The caller goes on after its sub-agent, and that one after its own."""
    first = await ask(agent, "1")
    child = agent.conversation("child")
    second = await ask(child, f"11{first}")
    if second == "0":
        second += await ask(child.conversation("grandchild"), "111")
        await ask(child, second)
    await ask(agent, second)


async def sampled_again(agent: Agent) -> None:
    """The turn of the fork replaces the first one, which trains nevertheless."""
    await ask(agent, "1")
    again = agent.fork("again", 0)
    agent.user("1")
    await ask(again, "1")
    await ask(again, "00")


async def abandoned(agent: Agent) -> None:
    await ask(agent, "1")
    branch = agent.fork("abandoned")
    await ask(branch, "0")
    if await ask(agent, "11") == "1":
        await ask(agent.fork("late", 1), "0")
    await ask(agent, "1")


async def six_branches(agent: Agent) -> None:
    """A history that is compacted, and a sub-agent and a fork before and after."""
    first = await ask(agent, "1")
    await ask(agent.conversation("before"), f"11{first}")
    await ask(agent.fork("aside"), "0")
    rest = agent.conversation("rest")
    await ask(rest, "10")
    await ask(rest.conversation("after"), "111")
    await ask(rest.fork("late", 1), "0")


async def compacts_in_place(agent: Agent) -> None:
    """The policy writes the summary that it continues from, and whether it does is up to it."""
    if await ask(agent, "1") == "1":
        await agent.compact("10")
    await ask(agent, "0")


async def compacts_in_place_twice(agent: Agent) -> None:
    """The second time what was said last is kept, which the summary does not see."""
    await ask(agent, "1")
    await agent.compact("01")
    await ask(agent, "11")
    agent.user("0")
    await agent.compact("10", keep=2)
    await ask(agent, "1")


async def drops(agent: Agent) -> None:
    """The policy says whether its first turn stays."""
    await ask(agent, "1")
    if await ask(agent, "01") == "0":
        agent.rewrite(agent.messages[2:])
    await ask(agent, "1")


async def folds(agent: Agent) -> None:
    """What came after the first turn becomes the last reply, and then a fork goes on from it."""
    await ask(agent, "1")
    begun = agent.messages[:]
    await ask(agent, "01")
    reply = await ask(agent, "0")
    agent.rewrite([*begun, Message("user", f"1{reply}")])
    await ask(agent.fork("aside"), "0")
    await agent.turn()


async def compacts_by_itself(agent: Agent) -> None:
    """A prompt of more than 7 tokens is preceded by a summary, and how long prompts get is up to
    the policy.
    """
    for text in ("1", "10"):
        agent.user("11" if await ask(agent, text) == "1" else "")
    await agent.turn()


async def decides_when(agent: Agent) -> None:
    """Where it is offered a tool, the policy calls it by a 1. This one leaves the task and the call;
    turns are limited, so that the last one need not be reached.
    """

    def compact() -> str:
        """Go on from this call."""
        agent.rewrite([agent.messages[0], agent.messages[-1]])
        return "10"

    await ask(agent, "1")
    agent.user("11")
    await agent.run(compact)
    await ask(agent, "01")


@dataclass(frozen=True)
class Way:
    """One way that an episode can go."""

    rollout: AnyRollout
    sampled: tuple[tuple[tuple[int, ...], int], ...]

    @property
    def chance(self) -> float:
        logp = sum(sampler_logps(context)[bit] for context, bit in self.sampled)
        return float(torch.tensor(logp, dtype=torch.float64).exp())

    @property
    def value(self) -> float:
        """Some number that depends on every token, on its context and on the order."""
        total = 0.3
        for place, (context, bit) in enumerate(self.sampled):
            total += (0.7 + 0.31 * place - 0.05 * len(context)) * (bit - 0.4 * (place % 2))
        return total if len(self.sampled) % 2 else 0.6 * total


Program = Callable[[Agent], Awaitable[None]]
CASES: list[tuple[Program, bool]] = [
    (one_conversation, False),
    (one_conversation, True),
    (compacts_once, False),
    (compacts_twice, False),
    (compacts_twice, True),
    (parallel_sub_agents, False),
    (nested_sub_agents, False),
    (nested_sub_agents, True),
    (sampled_again, False),
    (abandoned, False),
    (six_branches, False),
    (compacts_in_place, False),
    (compacts_in_place, True),
    (compacts_in_place_twice, False),
    (compacts_in_place_twice, True),
    (drops, False),
    (drops, True),
    (folds, False),
    (compacts_by_itself, False),
    (compacts_by_itself, True),
    (decides_when, False),
    (decides_when, True),
]
LIMITS = {
    compacts_by_itself: Limits(turns=None, compact_at=7 / 512),
    decides_when: Limits(turns=4),
}
IDS = [f"{program.__name__}{'-rewritten' * rewrites}" for program, rewrites in CASES]


@reward
def nothing(rollout: AnyRollout) -> float:
    """Rewards are given below."""
    return 0.0


def environment_of(program: Program) -> Environment[Task, Any]:
    """Runs *program*."""

    class Runs(Environment[Task, Any]):
        limits = LIMITS.get(program, Limits(turns=None))
        reward = nothing

        async def rollout(self, task: Task, agent: Agent) -> str:
            await program(agent)
            return ""

    return Runs()


@cache
def ways(program: Program, rewrites: bool) -> tuple[Way, ...]:
    """All ways that an episode of *program* can go."""
    found: list[Way] = []
    bits: list[int] = []
    while True:
        engine = ForcedEngine(bits, rewrites=rewrites)
        rollout = run_episode(environment_of(program), TASK, engine)
        assert rollout.valid, rollout.termination
        found.append(Way(rollout=rollout, sampled=tuple(engine.sampled)))
        bits = [bit for _, bit in engine.sampled]
        while bits and bits[-1] == 1:
            bits.pop()
        if not bits:
            return tuple(found)
        bits[-1] = 1


def rewarded(way: Way, value: float, sample: int) -> AnyRollout:
    return way.rollout.replace(outcome=Score(value=value), sample=sample)


def trained_places(sample: Sample) -> Counter[tuple[tuple[int, ...], int]]:
    """How often each id trains after each context."""
    return Counter(
        (sequence.ids[:place], sequence.ids[place])
        for sequence in sample.sequences
        for place, trains in enumerate(sequence.mask)
        if trains
    )


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


@pytest.mark.keeps(
    "one_conversation", "one_conversation-rewritten", "compacts_once", "sampled_again", "drops"
)
@pytest.mark.parametrize(("program", "rewrites"), CASES, ids=IDS)
def test_every_sampled_token_trains_once_in_its_context(program: Program, rewrites: bool) -> None:
    for way in ways(program, rewrites):
        group = Group(task=TASK, rollouts=(rewarded(way, 1.0, 0),))

        batch = batch_of([group], temperature=1.0, max_tokens=1)

        (sample,) = batch.samples
        assert trained_places(sample) == Counter(way.sampled)


ALIKE_AND_LARGE = {
    "compacts_by_itself-rewritten",
    "compacts_in_place_twice-rewritten",
    "compacts_twice-rewritten",
    "six_branches",
}
"""Each does several times what shorter programs do once; their number of ways makes them slow."""


@pytest.mark.keeps("one_conversation", "compacts_once", "compacts_in_place", "decides_when")
@pytest.mark.parametrize(
    ("program", "rewrites"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.slow] * (name in ALIKE_AND_LARGE))
        for case, name in zip(CASES, IDS, strict=True)
    ],
)
def test_expected_update_is_the_gradient_of_the_expected_reward(
    program: Program, rewrites: bool
) -> None:
    """Of leave-one-out baselines over all groups of two, weighed by their chance.

    The gradient is linear in the rewards, so that a group's weight goes into them, and one batch
    holds all groups.
    """
    every = ways(program, rewrites)
    torch.testing.assert_close(sum(way.chance for way in every), 1.0, rtol=0, atol=1e-12)
    pairs = list(combinations(every, 2))
    groups = []
    for number, pair in enumerate(pairs):
        weight = len(pairs) * 2 * pair[0].chance * pair[1].chance
        rollouts = tuple(
            replace(rewarded(way, weight * way.value, sample), group=number)
            for sample, way in enumerate(pair)
        )
        groups.append(Group(task=TASK, rollouts=rollouts, index=number))
    learner = Learner(fresh(), INSTALLED["rloo"], lr=0.0, max_grad_norm=0.0)
    gradients: list[Tensor] = []
    learner._optimizer.register_step_pre_hook(
        lambda *_: gradients.append(flat([p.grad.clone() for p in learner.module.parameters()]))  # type: ignore[union-attr]
    )

    learner.step(batch_of(groups, temperature=1.0, max_tokens=1))

    parameters = list(policy().parameters())
    expected = torch.tensor(0.0, dtype=torch.float64)
    known: dict[tuple[int, ...], Tensor] = {}
    for way in every:
        logp = torch.tensor(0.0, dtype=torch.float64)
        for context, bit in way.sampled:
            if context not in known:
                known[context] = logps(policy(), context)
            logp = logp + known[context][bit]
        expected = expected + logp.exp() * way.value
    truth = flat(torch.autograd.grad(expected, parameters))
    assert float(truth.norm()) > 1e-3
    torch.testing.assert_close(-gradients[0], truth, rtol=0, atol=1e-9)


def test_a_lone_compacted_rollout_is_compared_with_the_others() -> None:
    """Its second conversation has the advantage of its rollout, not 0, and it counts once."""
    plain, *_, compacted = ways(compacts_once, False)
    rollouts = (
        rewarded(plain, 0.0, 0),
        rewarded(plain, 0.0, 1),
        rewarded(plain, 0.0, 2),
        rewarded(compacted, 1.0, 3),
    )
    batch = batch_of([Group(task=TASK, rollouts=rollouts)], temperature=1.0, max_tokens=1)
    learner = Learner(fresh(), INSTALLED["rloo"])

    advantages = asyncio.run(learner.compute_advantages(learner.prepare(batch)))

    assert [sample.tokens for sample in batch.samples] == [1, 1, 1, 3]
    assert list(advantages.values) == pytest.approx([-1 / 3, -1 / 3, -1 / 3, 1.0])


def batch_of_one(program: Program, **scores: Any) -> Batch:
    """The batch of a group of two equal rollouts, scored 0 and 1."""
    way = ways(program, False)[-1]
    rollouts = tuple(
        way.rollout.replace(outcome=Score(value=float(sample), **scores), sample=sample)
        for sample in range(2)
    )
    return batch_of([Group(task=TASK, rollouts=rollouts)], temperature=1.0, max_tokens=1)


@pytest.mark.parametrize(
    ("program", "overlapping"),
    [
        (one_conversation, False),
        (compacts_once, False),
        (compacts_twice, False),
        (parallel_sub_agents, True),
        (nested_sub_agents, True),
    ],
)
def test_turns_that_overlap_in_time_are_told(program: Program, overlapping: bool) -> None:
    assert [s.overlapping for s in batch_of_one(program).samples] == [overlapping] * 2


@pytest.mark.parametrize("name", ["otb", "reinforce_pp"])
def test_what_comes_after_a_token_is_not_guessed(name: str) -> None:
    """Where conversations overlap: an advantage per token is refused, with the way out."""
    algorithm = INSTALLED[name].replace(kl=KL(where="reward", coefficient=0.1))
    learner = Learner(fresh(), algorithm, reference=fresh())
    prepared = learner.prepare(batch_of_one(nested_sub_agents))

    with pytest.raises(UsageError, match='overlap in time .* algorithm = "grpo"'):
        asyncio.run(learner.compute_advantages(prepared))


def test_scores_of_turns_are_those_of_the_first_conversation() -> None:
    """The turns of the others have none, and what the rollout was given besides comes last."""
    from quintain_algorithms.token_rewards import turn_rewards

    (sample, _) = batch_of_one(compacts_once, turns=(0.5,)).samples

    assert sample.turns == (1, 1, 1)
    assert sample.turn_scores == (0.5, 0.0, 0.0)
    assert turn_rewards(sample, sample.total) == [(1, 0.5), (1, 0.0), (1, 0.0)]


Action = tuple[str, int, int]
"""What is done, in which of the open conversations, and with which of its turns or bits."""
ACTIONS = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(["ask", "ask", "open", "fork"]),
        strategies.integers(0, 5),
        strategies.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.more
@given(
    actions=ACTIONS,
    bits=strategies.lists(strategies.integers(0, 1), max_size=12),
    rewrites=strategies.booleans(),
    scores=strategies.lists(strategies.integers(-8, 8).map(lambda n: n / 8), max_size=12),
)
def test_any_program_trains_each_token_once_and_keeps_the_order_of_its_scores(
    actions: list[Action], bits: list[int], rewrites: bool, scores: list[float]
) -> None:
    """Up to 6 conversations, one turn at a time. Scores of turns are those of the first one, and
    without an overlap a turn is credited with what was scored at it and later in time.
    """
    asked: list[int] = []

    async def program(agent: Agent) -> None:
        opened, turns = [agent], [0]
        for what, number, choice in actions:
            at = number % len(opened)
            if what == "ask":
                await ask(opened[at], ("", "1", "01", "110")[choice])
                asked.append(at)
                turns[at] += 1
            elif len(opened) < 6:
                name = f"conversation-{len(opened)}"
                kept = choice % (turns[at] + 1)
                opened.append(
                    opened[at].conversation(name) if what == "open" else opened[at].fork(name, kept)
                )
                turns.append(kept if what == "fork" else 0)
        if not asked:
            await ask(agent, "1")
            asked.append(0)

    engine = ForcedEngine(bits, rewrites=rewrites)
    rollout = run_episode(environment_of(program), TASK, engine)
    assert rollout.valid, rollout.termination
    given_scores = scores[: asked.count(0)]
    scored = rollout.replace(outcome=Score(value=0.5, turns=tuple(given_scores)))

    (sample,) = batch_of(
        [Group(task=TASK, rollouts=(scored,))], temperature=1.0, max_tokens=1
    ).samples

    assert trained_places(sample) == Counter(engine.sampled)
    by_conversation = [at for at in dict.fromkeys([0, *asked]) for _ in range(asked.count(at))]
    assert sample.turns == (1,) * len(asked)
    assert sample.overlapping == (by_conversation != asked)
    if not sample.overlapping:
        from quintain_algorithms.token_rewards import turn_rewards

        at_turn = iter([*given_scores, *[0.0] * len(asked)])
        in_time = [next(at_turn) if at == 0 else 0.0 for at in asked]
        in_time[-1] += sample.total - sum(given_scores)
        assert [score for _, score in turn_rewards(sample, sample.total)] == pytest.approx(in_time)
