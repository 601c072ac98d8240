"""A thinking budget: what is put into the policy's mouth is context, what it says before and after
trains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from quintain.engine.embedded import EmbeddedEngine
from quintain.evaluation.evaluation import evaluate
from quintain.interfaces.agent import Agent, Limits
from quintain.interfaces.environment import Environment
from quintain.interfaces.reward import reward
from quintain.models.tokenizer import HFTokenizer
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_groups
from quintain.types.rollout import Rollout
from quintain.types.sampling import Sampling, ThinkingBudget
from quintain.types.task import Task
from quintain.types.transcript import Sampled, TokenSource
from quintain_authoring.byte_tokenizer import ByteTokenizer
from quintain_authoring.scripted import ScriptedEngine, fake_logp

from ..models.tiny import byte_tokenizer, tiny_model
from .engines import ThoughtlessTokenizer

TOLD = ThinkingBudget(min_tokens=8, max_tokens=8, text=" STOP</think>", until="</think>")
END = ByteTokenizer().stop_ids[0]


@reward(range=(0, 1))
def right(rollout: Rollout[Task, Any]) -> float:
    return float(rollout.reply == "42")


class Ask(Environment[Task, Any]):
    """One question, or as many as turns are allowed."""

    reward = right

    def tasks(self, split: str) -> list[Task]:
        return [Task(prompt="6 * 7?", answer="42")]

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        async for _ in agent.turns():
            agent.user("sure?")


class Scripted(ScriptedEngine):
    """Continues what it has begun to say."""

    def __init__(self, *turns: str, **options: Any) -> None:
        super().__init__(replies=lambda messages: self._rest(messages[-1].content), **options)
        self.turns = turns
        self.asked: list[tuple[list[int], Sampling]] = []

    def _rest(self, begun: str) -> str:
        return next(
            (t.removeprefix(begun) for t in self.turns if begun and t.startswith(begun)),
            self.turns[0],
        )

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        self.asked.append((list(ids), sampling))
        return await super().sample(ids, sampling)


def played(
    engine: Any,
    sampling: Sampling,
    environment: Environment[Any, Any] | None = None,
    **context: Any,
) -> Rollout:
    environment = environment or Ask()
    request = RolloutRequest(
        environment=environment, task=environment.tasks("train")[0], group_size=1
    )  # type: ignore[index]
    return asyncio.run(
        run_groups([request], RolloutContext(engine=engine, sampling=sampling, **context))
    )[0].rollouts[0]


def test_a_turn_beyond_the_thinking_budget_is_interrupted() -> None:
    """Exact ids, sources and log-probs; only what was sampled counts and trains; the text holds
    everything.
    """
    engine = Scripted("<think>abcdefgh", "<think>a STOP</think>42")
    rollout = played(engine, Sampling(max_tokens=12, thinking_budget=TOLD))
    tokenizer = ByteTokenizer()
    (branch,) = rollout.transcripts[""].branches
    start = len(engine.asked[0][0])
    said = tokenizer.encode("<think>a")
    forced = tokenizer.encode(" STOP</think>")
    went_on = [*tokenizer.encode("42"), END]

    assert [*said, *forced, *went_on] == list(branch.ids[start:])
    assert (
        list(branch.sources[start:])
        == [TokenSource.MODEL] * 8 + [TokenSource.FORCED] * 13 + [TokenSource.MODEL] * 3
    )
    assert [*map(fake_logp, said), *[0.0] * 13, *map(fake_logp, went_on)] == list(
        branch.logps[start:]
    )
    assert list(branch.versions[start:]) == [0] * 8 + [-1] * 13 + [0] * 3
    (turn,) = rollout.turns
    assert turn.text == "<think>a STOP</think>42"
    assert turn.reply == "42"
    assert turn.reasoning == "a STOP"
    assert turn.finish == "stop"
    assert turn.tokens == 11
    assert rollout.tokens == 11
    assert rollout.outcome.total == 1.0
    (sequence,) = rollout.transcripts[""].sequences()
    assert [*said, *went_on] == [i for i, m in zip(sequence.ids, sequence.mask, strict=True) if m]
    # It continues exactly what was recorded, with what is left of its tokens and another seed.
    assert [*engine.asked[0][0], *said, *forced] == engine.asked[1][0]
    assert engine.asked[0][1].max_tokens == 8
    assert engine.asked[1][1].max_tokens == 4
    assert engine.asked[0][1].seed != engine.asked[1][1].seed


@pytest.mark.parametrize(
    "said, most, calls, forced",
    [
        ("4242", 12, 1, False),  # it ended by itself
        ("<think></think>4242", 30, 1, True),  # not said by then
        ("a</think>4242", 30, 2, False),  # was said by then: 9 characters are needed
        ("abcdefghijkl", 8, 1, False),  # the turn has no more tokens than that
    ],
)
def test_who_is_left_alone(said: str, most: int, calls: int, forced: bool) -> None:
    """Turns that end by then, have closed their thought, or may not be that long continue as they
    are.
    """
    told = ThinkingBudget(min_tokens=9, max_tokens=9, text="!") if "a</think>" in said else TOLD
    engine = Scripted(said, said[:8] + " STOP</think>" + said[8:])
    rollout = played(engine, Sampling(max_tokens=most, thinking_budget=told))

    assert forced == (TokenSource.FORCED in rollout.transcripts[""].branches[0].sources)
    assert calls == len(engine.asked) - forced
    assert forced or rollout.turns[0].text == said[:most]
    assert rollout.tokens == min(most, len(said) + 1)
    assert [fake_logp(i) for i in rollout.transcripts[""].sequences()[0].ids][-1] == (
        rollout.transcripts[""].sequences()[0].logps[-1]
    )


def test_the_moment_is_drawn_from_the_seed_of_the_turn() -> None:
    """Between the bounds, both included; the same seed draws the same."""

    def moments(seed: int) -> list[int]:
        engine = Scripted("x" * 99)
        environment = Ask()
        requests = [
            RolloutRequest(environment=environment, task=Task(prompt=f"{i}"), group_size=1)
            for i in range(60)
        ]
        sampling = Sampling(
            max_tokens=20,
            thinking_budget=ThinkingBudget(min_tokens=3, max_tokens=6, text=".", until=""),
        )
        asyncio.run(
            run_groups(
                requests,
                RolloutContext(engine=engine, sampling=sampling, run_seed=seed, concurrency=1),
            )
        )
        return [h.max_tokens for _, h in engine.asked if (h.max_tokens or 0) < 10]

    assert {3, 4, 5, 6} == set(moments(0))
    assert moments(0) == moments(0) != moments(1)


def test_no_room_for_the_text_leaves_the_turn_as_it_is() -> None:
    """The context holds the turn so far and a little more."""
    prompt = len(
        Scripted("").tokenizer.encode("<|im_start|>user\n6 * 7?<|im_end|>\n<|im_start|>assistant\n")
    )
    rollout = played(
        Scripted("x" * 99, context=prompt + 12), Sampling(max_tokens=50, thinking_budget=TOLD)
    )

    assert TokenSource.FORCED not in rollout.transcripts[""].branches[0].sources
    assert rollout.turns[0].text == "x" * 12
    assert rollout.turns[0].finish == "length"


def test_a_stop_string_across_the_seam_is_seen() -> None:
    """Where the turn continues as it was, it ends where it would have ended in one piece."""
    sampling = Sampling(
        max_tokens=50,
        stop=("\n\nUser:",),
        thinking_budget=ThinkingBudget(min_tokens=8, max_tokens=8, text="!", until="ab"),
    )
    for said in (
        "ab    \n\nUser: hello",
        "ab \n\nUser: hello",
        "ab\n\nUser: hello",
        "ab          \n\nUser: hello",
    ):
        cut = played(Scripted(said), sampling)
        whole = played(Scripted(said), sampling.replace(thinking_budget=None))

        assert cut.transcripts[""].branches == whole.transcripts[""].branches
        assert cut.turns == whole.turns


def test_limits_count_what_was_sampled() -> None:
    """The tokens put in use up no budget, and later turns continue the whole text."""

    class Talk(Ask):
        limits = Limits(turns=None, tokens=20)

    engine = Scripted("<think>abcdefgh", "<think>a STOP</think>42")
    rollout = played(engine, Sampling(max_tokens=16, thinking_budget=TOLD), Talk())

    assert [turn.tokens for turn in rollout.turns] == [11, 9]
    assert rollout.tokens == 20
    assert rollout.termination.reason == "tokens"
    assert len(rollout.transcripts[""].branches) == 1
    assert "<think>a STOP</think>42<|im_end|>\n<|im_start|>user\nsure?" in engine.tokenizer.decode(
        engine.asked[2][0]
    )


def test_a_template_that_drops_thoughts_still_branches() -> None:
    """Each sampled token trains once, forced ones never."""

    class Talk(Ask):
        limits = Limits(turns=2)

    engine = Scripted("<think>abcdefgh", "<think>a STOP</think>42")
    engine.tokenizer = ThoughtlessTokenizer()
    rollout = played(engine, Sampling(max_tokens=16, thinking_budget=TOLD), Talk())
    rows = rollout.transcripts[""].sequences()
    tokenizer = ByteTokenizer()
    trained = [tokenizer.decode([i for i, m in zip(r.ids, r.mask, strict=True) if m]) for r in rows]

    assert len(rows) == 2
    assert trained == ["<think>a42<|im_end|>"] * 2
    assert " STOP" in tokenizer.decode(rows[0].ids)


def test_held_out_evaluation_has_its_own_thinking_budget() -> None:
    """`Sampling.thinking_budget` reaches every turn of the policy, and no engine of another
    player.
    """

    class Judged(Ask):
        async def rollout(self, task: Task, agent: Agent) -> None:
            other = agent.player("judge", judge)
            other.user("judge this")
            await other.turn()
            await super().rollout(task, agent)

    judge = Scripted("x" * 30)
    sampling = Sampling(max_tokens=24, thinking_budget=TOLD)
    found = asyncio.run(
        evaluate(
            Judged(),
            Scripted("<think>abcdefgh", "<think>a STOP</think>42"),
            split="dev",
            sampling=sampling,
        )
    )

    assert found.accuracy.value == 1.0
    assert len(judge.asked) == 1


@pytest.mark.keeps("gpt2")
@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_log_probs_of_the_continuation_are_those_of_a_plain_forward_pass(kind: str) -> None:
    """The embedded engine continues after the forced text as if it had sampled it; greedy and at
    temperature 1.
    """
    model = tiny_model(kind, context=256)
    engine = EmbeddedEngine.sharing(model, HFTokenizer(byte_tokenizer()), slots=8)
    told = ThinkingBudget(min_tokens=4, max_tokens=7, text=" so: ", until="")
    environment = Ask()
    requests = [
        RolloutRequest(environment=environment, task=Task(prompt=f"{i}?"), group_size=4, index=i)
        for i in range(4)
    ]
    sampling = Sampling(max_tokens=16, thinking_budget=told)
    rollouts = [
        r
        for g in asyncio.run(
            run_groups(requests, RolloutContext(engine=engine, sampling=sampling, concurrency=6))
        )
        for r in g.rollouts
    ]
    interrupted = 0
    for rollout in rollouts:
        (row,) = rollout.transcripts[""].sequences()
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row.ids])).logits[0].double().log_softmax(-1)
        plain = [float(logits[i - 1, row.ids[i]]) for i, m in enumerate(row.mask) if m]
        sampled = [x for x, m in zip(row.logps, row.mask, strict=True) if m]
        torch.testing.assert_close(sampled, plain, atol=2e-5, rtol=0)
        (branch,) = rollout.transcripts[""].branches
        interrupted += TokenSource.FORCED in branch.sources
        assert sum(row.mask) == rollout.turns[0].tokens <= 16
        assert all(
            not m for m, s in zip(row.mask, branch.sources, strict=False) if s == TokenSource.FORCED
        )
    assert interrupted > 8
