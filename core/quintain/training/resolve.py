"""What a recipe names, made real: environments with their rewards and services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import BindingError, PluginError, RecipeError
from ..interfaces.environment import Environment
from ..interfaces.reward import Reward
from ..registry.binding import bind, signature_of
from ..registry.lookup import current
from .recipe.rewards import parse_reward

if TYPE_CHECKING:
    from .recipe.tables import EnvironmentTable


@dataclass(frozen=True, kw_only=True)
class Casting:
    """An environment chosen and configured, but without its services yet."""

    name: str
    component: type[Environment[Any, Any]]
    args: Mapping[str, Any] = field(default_factory=dict)
    reward: Reward | None = None
    shaping: Reward | None = None
    system: str | None = None
    table: EnvironmentTable | None = None

    @property
    def slots(self) -> set[str]:
        """The service slots that its fields and rewards need."""
        rewards: Iterable[Reward | None] = (
            self.reward or getattr(self.component, "reward", None),
            self.shaping or self.component.shaping,
        )
        own = {need.slot for need in signature_of(self.component).needs if need.parameter not in self.args}
        return own | {slot for r in rewards if r is not None for slot in r.needs}

    def make(self, services: Mapping[str, Any]) -> Environment[Any, Any]:
        """The environment, with *services* by slot.

        Raises:
            BindingError: an argument does not fit, or a service is missing.
        """
        environment: Environment[Any, Any] = bind(self.component, self.args, services, who=f"environment {self.name!r}")
        limits = self.table.limits.over(self.component.limits) if self.table else None
        return environment.overridden(reward=self.reward, shaping=self.shaping, limits=limits, system=self.system)


def cast(
    name: str,
    args: Mapping[str, Any] | None = None,
    *,
    reward: str | None = None,
    shaping: str | None = None,
    system: str | None = None,
    table: EnvironmentTable | None = None,
) -> Casting:
    """Find environment *name* and read its reward expressions.

    Raises:
        UnknownNameError: no such environment or reward.
        PluginError: what the name points at cannot be loaded, or is no environment.
        RecipeError: an expression that cannot be read, or no reward at all.
    """
    component = current().load("environment", name)
    if not (isinstance(component, type) and issubclass(component, Environment)):
        raise PluginError(f"environment {name!r} is {component!r}; expected a subclass of quintain.Environment")
    verdict = parse_reward(reward, _reward, where="reward") if reward else None
    if verdict is None and not isinstance(getattr(component, "reward", None), Reward):
        raise RecipeError(
            f"environment {name!r} has no reward: set `reward = ...` in the class, or in the recipe's [[environments]]"
        )
    return Casting(
        name=name,
        component=component,
        args=dict(args or {}),
        reward=verdict,
        shaping=parse_reward(shaping, _reward, where="shaping") if shaping else None,
        system=system,
        table=table,
    )


def cast_table(table: EnvironmentTable) -> Casting:
    """`cast` for one ``[[environments]]`` of a recipe."""
    return cast(table.use, table.args, reward=table.reward, shaping=table.shaping, system=table.system, table=table)


def _reward(name: str) -> Any:
    component = current().load("reward", name)
    if not isinstance(component, Reward):
        raise BindingError(
            f"reward {name!r} is {component!r}; expected a function decorated with @reward or @group_reward"
        )
    return component
