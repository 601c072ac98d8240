"""Starts the services of a run in dependency order, probes them, and stops them in reverse."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from ..errors import PluginError, QuintainError, RecipeError
from ..interfaces.service import Service
from ..registry.binding import bind, signature_of
from ..registry.discovery import Component
from ..registry.lookup import Registry, current
from ..tracebacks import describe_error

IN_RECIPE = 'add [services.{slot}] with use = "..." to the recipe'
BY_OPTION = "say what fills it with --service {slot}=NAME"
"""The next thing to do about an empty slot, where a recipe and where a command fills slots."""


class Choice(Protocol):
    """The component that fills a slot, as ``[services.<slot>]`` names it."""

    @property
    def use(self) -> str: ...
    @property
    def args(self) -> Mapping[str, Any]: ...


@asynccontextmanager
async def started_services(
    choices: Mapping[str, Choice],
    required: Iterable[str],
    available: Mapping[str, Any],
    state: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    fix: str = IN_RECIPE,
) -> AsyncIterator[dict[str, Any]]:
    """Start every service that is chosen or required; yields them by slot.

    Args:
        choices: by slot. A required slot that is not among them takes the component of the slot's
            name, if there is one.
        required: slots that rewards, environments and pieces need.
        available: what runs already, such as ``policy``.
        state: of each slot in a checkpoint; restored once its service runs.
        fix: the next thing to do about an empty ``{slot}``, for errors.

    Raises:
        RecipeError: nothing fills a required slot, or services need one another in a circle.
        InfrastructureError, PluginError: a service's probe failed, or its code raised.
    """
    running: dict[str, Any] = dict(available)
    async with AsyncExitStack() as stack:
        for slot, component, args in start_order(choices, required, available, fix=fix):
            service = bind(component, args, running, who=f"[services.{slot}]")
            try:
                running[slot] = (
                    await stack.enter_async_context(service)
                    if isinstance(service, Service)
                    else service
                )
                if state and slot in state and isinstance(service, Service):
                    service.restore(state[slot])
            except QuintainError:
                raise
            except Exception as e:
                raise PluginError(f"[services.{slot}] does not start: {describe_error(e)}") from e
        yield running


def start_order(
    choices: Mapping[str, Choice],
    required: Iterable[str],
    available: Iterable[str],
    *,
    fix: str = IN_RECIPE,
) -> list[tuple[str, Any, Mapping[str, Any]]]:
    """Return slot, component and arguments of every service to start, those that others need first.

    The slots *available* are filled already.

    Raises:
        RecipeError: as `started_services`.
    """
    registry = current()
    order: list[tuple[str, Any, Mapping[str, Any]]] = []
    done: set[str] = set(available)

    def visit(slot: str, trail: tuple[str, ...]) -> None:
        if slot in done:
            return
        if slot in trail:
            raise RecipeError(
                f"services need one another in a circle: {' -> '.join((*trail, slot))}"
            )
        component, args = _chosen(slot, choices, registry, trail, fix)
        for need in signature_of(component).needs:
            visit(need.slot, (*trail, slot))
        done.add(slot)
        order.append((slot, component, args))

    for slot in [*choices, *required]:
        visit(slot, ())
    return order


def needed_by(slots: Iterable[str], choices: Mapping[str, Choice]) -> dict[str, Choice]:
    """Return those of *choices* that fill one of *slots*, or a slot of a service that does.

    Raises:
        RecipeError: as `started_services`.
    """
    registry = current()
    reached: set[str] = set()
    waiting = [*slots]
    while waiting:
        slot = waiting.pop()
        if slot not in reached and (slot in choices or registry.matching(slot, "service")):
            reached.add(slot)
            component, _ = _chosen(slot, choices, registry, (), IN_RECIPE)
            waiting += [need.slot for need in signature_of(component).needs]
    return {slot: choice for slot, choice in choices.items() if slot in reached}


def _chosen(
    slot: str, choices: Mapping[str, Choice], registry: Registry, trail: tuple[str, ...], fix: str
) -> tuple[Any, Mapping[str, Any]]:
    """Return the component that fills *slot*, and its arguments: the chosen one, or else the service
    of the slot's name.

    Raises:
        RecipeError: there is neither. *trail* are the slots that led here, for its message.
    """
    if slot in choices:
        return registry.resolve(find_service(choices[slot].use)), choices[slot].args
    if registry.matching(slot, "service"):
        return registry.load("service", slot), {}
    needed = f" (needed by the service {trail[-1]!r})" if trail else ""
    raise RecipeError(
        f"a service {slot!r} is needed{needed}: {fix.format(slot=slot)}; `quintain list services` "
        f"shows all"
    )


def find_service(name: str) -> Component:
    """Return the service called *name*, or else the engine, which is a service for another player;
    raises as `find`.
    """
    registry = current()
    engine = (
        ":" not in name
        and not registry.matching(name, "service")
        and registry.matching(name, "engine")
    )
    return registry.find("engine" if engine else "service", name)


def states(services: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the state of each service that has one, for a checkpoint."""
    return {
        slot: state
        for slot, s in services.items()
        if isinstance(s, Service) and (state := dict(s.state()))
    }


def copy_of_state(state: Any) -> Any:
    """Return a copy of plain data that later changes do not reach; tensors are shared, see
    `Service.state`.
    """
    if isinstance(state, Mapping):
        return {key: copy_of_state(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [copy_of_state(value) for value in state]
    return state if hasattr(state, "element_size") else copy.deepcopy(state)
