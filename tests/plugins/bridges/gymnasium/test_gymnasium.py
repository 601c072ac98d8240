"""Worlds of Gymnasium, with the package itself."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("gymnasium", reason="pip install 'quintain-bridges[gymnasium]'")

import gymnasium

from quintain.errors import UsageError
from quintain_authoring import EnvironmentSuite, run_episode
from quintain_bridges.gymnasium import Gymnasium


class TestGymnasium(EnvironmentSuite):
    environment = Gymnasium
    args = {"options": {"is_slippery": False}, "size": 5}
    sample = 10
    episodes = 2


def test_a_walk_over_the_lake() -> None:
    """The place of the walker is in brackets, actions have names, and the goal pays 1."""
    lake = Gymnasium(options={"is_slippery": False}, size=1)
    task = next(iter(lake.tasks("dev")))
    way = ["down", "Down.", "I go right", "right", "down", "right"]
    played = run_episode(lake, task, way)
    assert "left, down, right, up" in played.messages[0].content
    assert "[S]FFF" in played.messages[0].content
    assert "[F]HFH" in played.messages[2].content
    assert played.outcome.total == 1.0
    assert played.result.terminated is True
    assert played.result.rewards == (0.0,) * 5 + (1.0,)


@pytest.mark.parametrize("reply", ["jump", "left or right", ""])
def test_a_reply_that_names_no_action_is_a_fault_of_the_policy(reply: str) -> None:
    lake = Gymnasium(size=1)
    played = run_episode(lake, next(iter(lake.tasks("dev"))), reply)
    assert played.termination.kind == "policy_fault"
    assert played.outcome.total == 0.0


@pytest.mark.parametrize("world", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4", "Blackjack-v1"])
def test_the_text_worlds_are_played(world: str) -> None:
    """All of Gymnasium's own; a start repeats by its seed."""
    name = world if world in gymnasium.registry else world.replace("v4", "v3").replace("v1", "v0")
    environment = Gymnasium(world=name, size=2)
    task = list(environment.tasks("test"))[1]
    action = environment.any_action(task, ())
    first, second = (run_episode(environment, task, action) for _ in range(2))
    assert first.termination.kind in ("finished", "truncated")
    assert [m.content for m in first.messages] == [m.content for m in second.messages]


REGISTERS = """\
import gymnasium


class Door(gymnasium.Env):
    metadata = {"render_modes": METADATA, "render_fps": 1}
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Text(20)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "closed", {}

    def step(self, action):
        return "beyond", float(action), True, False, {}

    def render(self):
        return "[] drawn"


gymnasium.register("doors/Door-v0", entry_point=Door)
"""


@pytest.mark.parametrize(("modes", "seen"), [("[]", "closed"), ("['ansi']", "[] drawn")])
def test_a_world_is_registered_by_a_module(
    modes: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the name says which module."""
    name = f"doors_{len(modes)}"
    (tmp_path / f"{name}.py").write_text(REGISTERS.replace("METADATA", modes))
    monkeypatch.syspath_prepend(tmp_path)
    environment = Gymnasium(world=f"{name}:doors/Door-v0", actions=("wait", "open"), size=1)
    try:
        played = run_episode(environment, next(iter(environment.tasks("dev"))), "open")
    finally:
        gymnasium.registry.pop("doors/Door-v0", None)
    assert seen in played.messages[0].content
    assert played.outcome.total == 1.0


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="no world 'no_such_doors:Door-v0': No module named"):
        Gymnasium(world="no_such_doors:Door-v0").made()


def test_a_world_of_ones_own_with_text_actions() -> None:
    """A reply is the action as it is."""

    class Echo(gymnasium.Env):  # type: ignore[misc]
        action_space = gymnasium.spaces.Text(20)
        observation_space = gymnasium.spaces.Text(40, charset="abcdefghijklmnopqrstuvwxyz ")

        def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
            return "say please", {}

        def step(self, action):  # type: ignore[no-untyped-def]
            return "thanks", float(action == "please"), action == "please", False, {}

    gymnasium.register("QuintainEcho-v0", entry_point=Echo)
    environment = Gymnasium(world="QuintainEcho-v0", size=1)
    played = run_episode(environment, next(iter(environment.tasks("dev"))), ["now", "please"])
    assert played.result.rewards == (0.0, 1.0)
    assert played.messages[2].content == "thanks"


def test_what_is_no_text_world_is_refused() -> None:
    for fields, message in (
        ({"world": "Nowhere-v0"}, "no world 'Nowhere-v0'"),
        ({"world": "Pendulum-v1"}, "expected Discrete or Text"),
        ({"actions": ("left",)}, "1 names for 4 actions"),
    ):
        lake = Gymnasium(size=1, **fields)
        with pytest.raises(UsageError, match=message):
            run_episode(lake, next(iter(lake.tasks("dev"))), "left")
