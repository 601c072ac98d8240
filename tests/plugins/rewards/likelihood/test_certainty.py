"""Self-certainty: against KL divergences of a plain forward pass, over the sampled tokens of
several turns.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quintain import Agent, Environment, Message, Sampling, Task, reward
from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import UsageError
from quintain.interfaces.reward import RewardContext
from quintain.testing import rollout
from quintain_authoring import RewardSuite, run_episode
from quintain_rewards.likelihood import CurrentPolicy, FrozenPolicy, NGram, Pair, self_certainty

from ....core.models.tiny import tiny_model
from .test_likelihood import CHAPTER, learner_and_policy, tokenizer


def plain_certainties(
    module: Any, ids: list[int], start: int, temperature: float = 1.0
) -> list[float]:
    """KL(uniform || p) at each of ids[start:], by PyTorch's own divergence in float64."""
    with torch.no_grad():
        logps = (module(torch.tensor([ids])).logits[0].double() / temperature).log_softmax(-1)
    uniform = torch.full_like(logps, 1 / logps.shape[-1])
    return (
        torch.nn.functional.kl_div(logps, uniform, reduction="none")
        .sum(-1)[start - 1 : -1]
        .tolist()
    )


@pytest.mark.parametrize(("kind", "temperature"), [("qwen3", 1.0), ("gpt2", 0.7)])
def test_certainties_are_divergences_from_uniform(kind: str, temperature: float) -> None:
    """By a scorer of the start and by one of the policy of now, which follows an update."""
    module = tiny_model(kind)
    first = copy.deepcopy(module)
    learner, policy = learner_and_policy(module)
    prompt, reply = tokenizer().encode("The boat left at dawn."), tokenizer().encode(CHAPTER)

    async def run() -> list[Any]:
        current = CurrentPolicy(policy=policy, learner=learner, temperature=temperature)
        async with FrozenPolicy(policy=policy, learner=learner, temperature=temperature) as frozen:
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(1.5)
            pairs = [Pair(tuple(prompt), tuple(reply)), Pair("The boat left at dawn.", CHAPTER)]
            return [await scorer.certainty(pairs) for scorer in (frozen, current)]

    for (by_ids, by_text), weights in zip(asyncio.run(run()), (first, module), strict=True):
        expected = plain_certainties(weights, [*prompt, *reply], len(prompt), temperature)
        assert by_ids == by_text == pytest.approx(expected, abs=2e-5)
        assert min(expected) > 0


class Twice(Environment[Task, None]):
    """Two turns, so that a prompt stands between sampled tokens."""

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task(prompt="Say it.")

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        await agent.turn()
        agent.user("Again.")
        await agent.turn()

    @reward
    def reward(rollout: Any) -> float:
        return 0.0


def test_the_reward_is_the_mean_over_the_sampled_tokens_of_all_turns() -> None:
    module = tiny_model()
    engine = EmbeddedEngine.sharing(module, tokenizer(), reproducible=False)
    episode = run_episode(
        Twice(), next(Twice().tasks("train")), engine, sampling=Sampling(max_tokens=7, seed=1)
    )
    learner, policy = learner_and_policy(module)

    async def score() -> Any:
        async with FrozenPolicy(policy=policy, learner=learner) as scorer:
            return await self_certainty.score_all(
                [episode], RewardContext(services={"scorer": scorer})
            )

    (scored,) = asyncio.run(score())
    expected: list[float] = []
    for sequence in episode.transcripts[""].sequences():
        values = plain_certainties(module, list(sequence.ids), 1)
        expected += [value for value, own in zip(values, sequence.mask[1:], strict=True) if own]
    assert len(expected) == sum(len(turn.text) > 0 for turn in episode.turns) * 7
    assert scored.total == pytest.approx(math.fsum(expected) / len(expected), abs=2e-5)


def test_scorers_without_distributions_are_named_and_a_warm_start_has_none() -> None:
    async def run() -> Any:
        with pytest.raises(UsageError, match="use current-policy, frozen-policy or frozen-model"):
            await NGram().certainty([Pair("a", "b")])
        return await CurrentPolicy(policy=SimpleNamespace(), learner=None).certainty(
            [Pair((1,), (2, 3))]
        )

    assert asyncio.run(run()) == [(0.0, 0.0)]


class Certain(NGram):
    """A scorer that is as certain as it is told."""

    async def certainty(self, pairs: Any) -> Any:
        return [(0.5,) * len(pair.reply) for pair in pairs]


class TestSelfCertainty(RewardSuite):
    reward = self_certainty

    @classmethod
    def services(cls) -> Any:
        return {"scorer": Certain()}

    def gold(self) -> Any:
        return [(rollout(Task(prompt="Say it."), ""), 0.0)]

    def exploits(self) -> Any:
        return [rollout(Task(prompt="Say it."), "")]


def test_turns_without_tokens_are_an_error() -> None:
    talked = rollout(Task(prompt="Say it."), "Text of a server.")

    async def score() -> Any:
        return await self_certainty.score_all(
            [talked], RewardContext(services={"scorer": Certain()})
        )

    (scored,) = asyncio.run(score())
    assert isinstance(scored, Exception)
    assert "turns without tokens" in str(scored)


def test_messages_are_rendered() -> None:
    """A prompt of messages has the tokens of the chat template, as for log-probs."""
    module = tiny_model()
    learner, policy = learner_and_policy(module)
    message = (Message("user", "Hello"),)

    async def run() -> Any:
        async with FrozenPolicy(policy=policy, learner=learner) as scorer:
            return await scorer.certainty([Pair(message, "there")])

    start = tokenizer().encode(tokenizer().render(message, prompt=True))
    expected = plain_certainties(module, [*start, *tokenizer().encode("there")], len(start))
    assert asyncio.run(run())[0] == pytest.approx(expected, abs=2e-5)
