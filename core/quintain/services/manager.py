"""Starting the services of a run: in dependency order, probed, and stopped in reverse."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from ..errors import RecipeError
from ..interfaces.service import Service
from ..registry.binding import bind, signature_of
from ..registry.lookup import Registry, current

IN_RECIPE = 'add [services.{slot}] with use = "..." to the recipe'
"""What to do about an empty slot, where a recipe says what fills it."""
BY_OPTION = "say what fills it with --service {slot}=NAME"
"""The same, where a command does."""


class Choice(Protocol):
    """Which component fills a slot, as ``[services.<slot>]`` says."""

    @property
    def use(self) -> str: ...
    @property
    def args(self) -> Mapping[str, Any]: ...


@asynccontextmanager
async def opened(
    choices: Mapping[str, Choice],
    wanted: Iterable[str],
    given: Mapping[str, Any],
    state: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    fix: str = IN_RECIPE,
) -> AsyncIterator[dict[str, Any]]:
    """Start every service that is chosen, or that something wants; yields them by slot.

    Args:
        choices: by slot. A wanted slot that is not among them is filled by the component of the slot's name, if there
        is one.
        wanted: slots that rewards, environments and pieces need.
        given: what is there already, such as ``policy``.
        state: by slot, what a checkpoint holds; restored once a service runs.
        fix: how an error says to fill a ``{slot}``.

    Raises:
        RecipeError: nothing fills a wanted slot, or services need one another in a circle.
        InfrastructureError: a service's probe failed.
    """
    order = plan(choices, wanted, given, fix=fix)
    running: dict[str, Any] = dict(given)
    async with AsyncExitStack() as stack:
        for slot, component, args in order:
            service = bind(component, args, running, who=f"[services.{slot}]")
            running[slot] = await stack.enter_async_context(service) if isinstance(service, Service) else service
            if state and slot in state and isinstance(service, Service):
                service.restore(state[slot])
        yield running


def plan(
    choices: Mapping[str, Choice], wanted: Iterable[str], given: Mapping[str, Any], *, fix: str = IN_RECIPE
) -> list[tuple[str, Any, Mapping[str, Any]]]:
    """Slot, component and arguments of every service to start, those that others need first.

    Raises:
        RecipeError: as `opened`.
    """
    registry = current()
    order: list[tuple[str, Any, Mapping[str, Any]]] = []
    done: set[str] = set(given)

    def visit(slot: str, trail: tuple[str, ...]) -> None:
        if slot in done:
            return
        if slot in trail:
            raise RecipeError(f"services need one another in a circle: {' -> '.join((*trail, slot))}")
        component, args = _chosen(slot, choices, registry, trail, fix)
        for need in signature_of(component).needs:
            visit(need.slot, (*trail, slot))
        done.add(slot)
        order.append((slot, component, args))

    for slot in [*choices, *wanted]:
        visit(slot, ())
    return order


def _chosen(
    slot: str, choices: Mapping[str, Choice], registry: Registry, trail: tuple[str, ...], fix: str
) -> tuple[Any, Mapping[str, Any]]:
    if slot in choices:
        return registry.load("service", choices[slot].use), choices[slot].args
    if registry.matching(slot, "service"):
        return registry.load("service", slot), {}
    by = f" (needed by the service {trail[-1]!r})" if trail else ""
    raise RecipeError(
        f"a service {slot!r} is needed{by}: {fix.format(slot=slot)}; `quintain list services` shows what there is"
    )


def states(services: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a checkpoint keeps of each service; nothing for those without state."""
    found = {slot: dict(s.state()) for slot, s in services.items() if isinstance(s, Service)}
    return {slot: state for slot, state in found.items() if state}


def held_back(state: Any) -> Any:
    """A copy of plain data that later changes do not reach; tensors are shared, see `Service.state`."""
    if isinstance(state, Mapping):
        return {key: held_back(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [held_back(value) for value in state]
    return state if hasattr(state, "element_size") else copy.deepcopy(state)
