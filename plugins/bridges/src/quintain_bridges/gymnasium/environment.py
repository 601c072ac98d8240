"""The environment `gymnasium`: worlds of Gymnasium, whose actions have names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from random import Random
from typing import Any

from quintain import (
    Agent,
    Environment,
    Limits,
    Message,
    PolicyFault,
    Rollout,
    Task,
    control,
    reward,
)
from quintain.errors import UsageError

NAMES: Mapping[str, tuple[str, ...]] = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
}
"""Names of the actions of Gymnasium's own text worlds, in their order."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MARKED = re.compile(r"\x1b\[4[0-9]m(.)\x1b\[0m")
SHARE = 10


@dataclass(frozen=True, kw_only=True)
class World(Task):
    """A start of the world, by its seed."""

    seed: int


@dataclass(frozen=True, kw_only=True)
class Journey:
    """What happened.

    Attributes:
        rewards: of each step.
        terminated: the world ended.
        truncated: its own limit of steps ended it.
    """

    rewards: tuple[float, ...]
    terminated: bool
    truncated: bool


@reward
def sum_of_steps(rollout: Rollout[World, Journey]) -> float:
    """The sum of the rewards of the steps."""
    return sum(rollout.result.rewards)


class Gymnasium(Environment[World, Journey]):
    """A world with discrete or text actions. The policy reads the world as text and names an
    action.

    Attributes:
        world: id of Gymnasium, such as ``FrozenLake-v1``, or ``module:Id`` of a package that registers
            it when it is imported.
        options: of `gymnasium.make`, such as ``{is_slippery = false}``.
        actions: names of discrete actions, in their order; by default those of Gymnasium's text
            worlds, else their numbers.
        prompt: text before the first observation; by default the actions.
        size: starts of ``dev`` and of ``test``; ``train`` has ten times as many.
    """

    reward, limits = sum_of_steps, Limits(turns=100)

    world: str = "FrozenLake-v1"
    options: Mapping[str, Any] = field(default_factory=dict)
    actions: tuple[str, ...] = ()
    prompt: str = ""
    size: int = 100

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UsageError(f"gymnasium: size is {self.size}; expected at least 1")

    def tasks(self, split: str) -> Iterable[World]:
        first = {"dev": 0, "test": 1}.get(split, 2)
        count = self.size * SHARE if split == "train" else self.size
        seeds = [s for s in range(2 * SHARE * count) if min(s % SHARE, 2) == first]
        for seed in seeds[:count]:
            yield World(prompt=f"{self.world} {seed}", seed=seed)

    async def rollout(self, task: World, agent: Agent) -> Journey:
        world = self.made()
        try:
            names = self.names(world)
            observation, _ = world.reset(seed=task.seed)
            world.action_space.seed(task.seed)
            asked = self.prompt or f"Reply with an action: {', '.join(names) or 'text'}."
            agent.user(f"{asked}\n\n{_text(world, observation)}")
            rewards: list[float] = []
            terminated = truncated = False
            async for turn in agent.turns():
                action = _action(turn.reply, names)
                observation, given, terminated, truncated, _ = world.step(action)
                rewards.append(float(given))
                if terminated or truncated:
                    break
                agent.user(_text(world, observation))
        finally:
            world.close()
        return Journey(
            rewards=tuple(rewards), terminated=bool(terminated), truncated=bool(truncated)
        )

    def made(self) -> Any:
        """Return a new world.

        Raises:
            UsageError: there is no such world, or its actions are no text.
        """
        try:
            import gymnasium
        except ImportError as e:
            raise UsageError(f"gymnasium: {e}: pip install 'quintain-bridges[gymnasium]'") from e
        try:
            mode = {"render_mode": "ansi"} if _draws(self.world) else {}
            world = gymnasium.make(self.world, **{**mode, **self.options})
        except Exception as e:
            raise UsageError(f"gymnasium: no world {self.world!r}: {e}") from e
        if not isinstance(world.action_space, (gymnasium.spaces.Discrete, gymnasium.spaces.Text)):
            raise UsageError(
                f"gymnasium: the actions of {self.world} are {world.action_space}; expected "
                "Discrete or Text"
            )
        return world

    def names(self, world: Any) -> tuple[str, ...]:
        """Return the names of the actions; none where an action is text.

        Raises:
            UsageError: there are not as many names as actions.
        """
        count = getattr(world.action_space, "n", None)
        if count is None:
            return ()
        known = NAMES.get(_registered(self.world).partition("-")[0], ())
        names = self.actions or known or tuple(map(str, range(int(count))))
        if len(names) != count:
            raise UsageError(f"gymnasium: {len(names)} names for {count} actions")
        return names

    @control()
    def oracle(self, task: World, messages: Sequence[Message]) -> str:
        """Take any action: how to act well is not known of any world."""
        return self.any_action(task, messages)

    @control()
    def any_action(self, task: World, messages: Sequence[Message]) -> str:
        """Take any action."""
        world = self.made()
        names = self.names(world) or ("look",)
        world.close()
        return Random(f"{task.id}/{len(messages)}").choice(names)

    @control()
    def demonstrator(self, task: World, messages: Sequence[Message]) -> str:
        """Take any action: it teaches their names."""
        return self.any_action(task, messages)


def _registered(world: str) -> str:
    """Return the id of a world without the module that registers it."""
    return world.rpartition(":")[2]


def _draws(world: str) -> bool:
    import gymnasium

    if module := world.rpartition(":")[0]:
        import_module(module)
    creator = gymnasium.spec(_registered(world)).entry_point
    kind = (
        gymnasium.envs.registration.load_env_creator(creator)
        if isinstance(creator, str)
        else creator
    )
    return "ansi" in getattr(kind, "metadata", {}).get("render_modes", ())


def _text(world: Any, observation: Any) -> str:
    """Return the world as text: drawn, where it can be, with the place of a colour in brackets."""
    if world.render_mode == "ansi":
        drawn = str(world.render())
        return _COLOUR.sub("", _MARKED.sub(r"[\1]", drawn)).strip()
    return str(observation)


def _action(reply: str, names: Sequence[str]) -> Any:
    """Return the action that *reply* names.

    Raises:
        PolicyFault: it names none, or several.
    """
    if not names:
        return reply
    answer = reply.strip().casefold()
    if answer in names:
        return names.index(answer)
    found = {name for name in names if re.search(rf"\b{re.escape(name)}\b", answer)}
    if len(found) != 1:
        raise PolicyFault(f"{reply[:60]!r} names {len(found)} actions of {', '.join(names)}")
    return names.index(found.pop())
