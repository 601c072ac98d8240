"""Self-play: copies of the policy as opponents, controls by player, and the suite for them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quintain import (
    Agent,
    Environment,
    Limits,
    Message,
    Rollout,
    Sampling,
    Score,
    Service,
    Task,
    control,
    reward,
)
from quintain.cli import main
from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import UsageError
from quintain.models import HFTokenizer
from quintain.store.checkpoint import Checkpoint
from quintain.store.run_folder import RunFolder
from quintain_authoring import ControlEngine, run_episode
from quintain_env_games import Duel, Opponent
from quintain_rewards.league import League, SeatedControls, SelfPlaySuite

from ....core.models.tiny import byte_tokenizer, tiny_model
from ....small_run import small_recipe


class TestDuel(SelfPlaySuite):
    """The policy plays both sides in `train`; each of them wins against `nop` and loses to `oracle`
    by a hack.
    """

    environment = Duel
    players = ("", "second")
    total = 1.0
    episodes = 4
    sample = 20

    @classmethod
    def services(cls) -> Mapping[str, Service]:
        return {**super().services(), "opponent": Opponent()}


@reward(range=(0, 1))
def higher(rollout: Rollout[Task, Any]) -> Score:
    first, second = rollout.result
    return Score(value=float(first > second), players={"other": float(second > first)})


class Numbers(Environment[Task, Any]):
    """Two players say a number; the higher one wins."""

    reward, limits = higher, Limits(turns=2)

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=f"{split} {n}") for n in range(3)]

    async def rollout(self, task: Task, agent: Agent) -> list[int]:
        other = agent.player("other")
        said = []
        for player in (agent, other):
            player.user(task.prompt)
            said.append(len((await player.turn()).reply))
        return said

    @control(scores="max")
    def oracle(self, task: Task, messages: Sequence[Message], player: str) -> str:
        return "x" * (5 if player else 4)


def test_a_control_knows_which_player_it_is() -> None:
    played = run_episode(Numbers(), Task(prompt="?"), ControlEngine(Numbers(), "oracle"))

    assert [(t.player, t.reply) for t in played.turns] == [("", "xxxx"), ("other", "xxxxx")]


def test_each_player_has_its_control() -> None:
    engine = SeatedControls(Numbers(), "oracle", "other", "nop")
    played = run_episode(Numbers(), Task(prompt="?"), engine)

    assert [(t.player, t.reply) for t in played.turns] == [("", ""), ("other", "xxxxx")]
    with pytest.raises(UsageError, match="bind it"):
        asyncio.run(engine.reply([], [], Sampling()))


@pytest.mark.parametrize(
    ("settings", "test", "message"),
    [
        (
            {"players": ("", "third")},
            "test_every_player_of_the_policy_plays",
            "no episode of @oracle has a turn of",
        ),
        (
            {"players": ("", "other"), "total": 2.0},
            "test_outcomes_of_the_players_have_a_constant_sum",
            "add up to 1.0",
        ),
        (
            {"players": ("", "other"), "weak": "oracle"},
            "test_controls_score_as_marked",
            "scored 0.0; expected 1.0",
        ),
    ],
)
def test_the_suite_finds_faults(settings: dict[str, Any], test: str, message: str) -> None:
    suite = type(
        "Suite",
        (SelfPlaySuite,),
        {"environment": Numbers, "episodes": 2, "__test__": False, **settings},
    )
    suite.setup_class()
    try:
        with pytest.raises(AssertionError, match=message):
            getattr(suite(), test)()
    finally:
        suite.teardown_class()


# ---------------------------------------------------------------- the league


def policy_of(module: Any) -> dict[str, Any]:
    tokenizer = HFTokenizer(byte_tokenizer())
    return {
        "learner": SimpleNamespace(module=module),
        "policy": EmbeddedEngine.sharing(module, tokenizer),
    }


def changed(module: Any, policy: Any, version: int) -> None:
    with torch.no_grad():
        next(module.parameters()).add_(1.0)
    policy.version = version


def first_weight(module: Any) -> float:
    return float(next(module.parameters()).detach().flatten()[0])


def test_copies_are_made_at_intervals_and_the_oldest_is_dropped() -> None:
    module = tiny_model("qwen3")
    own = policy_of(module)
    league = League(every=2, size=2, **own)
    weights = []
    for version in range(6):
        league.for_episode(0)
        weights.append(first_weight(module))
        changed(module, own["policy"], version + 1)

    assert [one.version for one in league.selves] == [2, 4]
    assert [weights[2], weights[4]] == [first_weight(one.module) for one in league.selves]


def test_the_seed_draws_the_self() -> None:
    module = tiny_model("qwen3")
    own = policy_of(module)
    league = League(every=1, size=3, newest=0.5, **own)
    for version in range(1, 4):
        league.for_episode(0)
        changed(module, own["policy"], version)
    league.for_episode(0)

    drawn = [league.for_episode(seed) for seed in range(600)]
    assert drawn == [league.for_episode(seed) for seed in range(600)]
    shares = [sum(one is other for one in drawn) / 600 for other in league.selves]
    assert shares == pytest.approx([1 / 6, 1 / 6, 2 / 3], abs=0.07)


def test_a_restored_league_has_the_same_selves() -> None:
    module = tiny_model("qwen3")
    own = policy_of(module)
    league = League(every=1, size=2, **own)
    league.for_episode(0)
    changed(module, own["policy"], 1)
    league.for_episode(0)
    state = league.state()
    changed(module, own["policy"], 2)

    again = League(every=1, size=2, **own)
    again.restore(state)

    assert [one.version for one in league.selves] == [one.version for one in again.selves] == [0, 1]
    assert [first_weight(o.module) for o in league.selves] == [
        first_weight(o.module) for o in again.selves
    ]


def test_before_there_is_a_policy_the_player_is_silent() -> None:
    player = League(policy=None, learner=None).for_episode(3)

    assert asyncio.run(player.reply([], [], Sampling())).text == ""


@pytest.mark.parametrize("settings", [{"every": 0}, {"size": 0}, {"newest": 1.5}, {"slots": 0}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="league: every"):
        League(policy=None, learner=None, **settings)


LEARNT = ("step", "reward.mean", "loss", "length.mean")
RECIPE = small_recipe(
    'use = "tests.integration.rivals:Rivals"',
    steps=2,
    algorithm="reinforce",
    tables="""
[learner]
lr = 1e-2
[services.rival]
use = "league"
args = { every = 1, size = 2 }
""",
)


def test_a_run_plays_against_its_earlier_selves(small_run: Callable[..., Path]) -> None:
    """The recipe names the service, and the checkpoint has its copies of the policy, which
    differ.
    """
    folder = small_run(RECIPE, context=128)

    assert main(["train", "recipe.toml", "--name", "self", "-q"]) == 0

    (checkpoint,) = (folder / "runs/self/checkpoints").glob("step-*")
    selves = Checkpoint.open(checkpoint).state["services"]["rival"]["selves"]
    assert "quintain-rewards/league" in (folder / "runs/self/recipe.toml").read_text()
    assert [one["version"] - selves[0]["version"] + 1 for one in selves] == [1, 2]
    assert any(
        (selves[0]["weights"][n] != selves[1]["weights"][n]).any() for n in selves[0]["weights"]
    )
    # without a learner the rival is the run itself
    assert main(["eval", "--like", "runs/self", "--tasks", "1", "--samples", "1"]) == 0


@pytest.mark.slow
def test_a_resumed_run_meets_the_same_selves(small_run: Callable[..., Path]) -> None:
    """Metrics, weights of the policy and of its copies are those of the run that was not
    interrupted.
    """
    folder = small_run(RECIPE, context=128)
    longer = ["--set", "checkpoint.every=1", "--set", "checkpoint.keep=9", "--steps", "3", "-q"]

    assert main(["train", "recipe.toml", "--name", "whole", *longer]) == 0
    shutil.copytree(folder / "runs/whole", folder / "runs/again")
    for step in (2, 3):
        shutil.rmtree(folder / f"runs/again/checkpoints/step-{step:06}")
    assert main(["train", "--resume", "again", "-q"]) == 0

    whole, again = (RunFolder(folder / "runs" / name, lock=False) for name in ("whole", "again"))
    compared = [
        [{k: v for k, v in m.items() if k in LEARNT} for m in run.metrics()]
        for run in (whole, again)
    ]
    assert len(compared[0]) == 4
    assert compared[0] == compared[1]
    assert set(LEARNT) <= compared[0][-1].keys()
    last = [
        Checkpoint.open(run.checkpoints / "step-000003").state["services"]["rival"]
        for run in (whole, again)
    ]
    for one, other in zip(*(state["selves"] for state in last), strict=True):
        assert one["version"] == other["version"]
        assert one["weights"].keys() == other["weights"].keys()
        assert all(bool((one["weights"][n] == other["weights"][n]).all()) for n in one["weights"])
