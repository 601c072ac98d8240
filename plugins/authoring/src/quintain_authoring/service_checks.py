"""The checks of a service: it starts, and a checkpoint can hold its state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from quintain import Service
from quintain.errors import PluginError
from quintain.registry import Component, current, signature_of
from quintain.run import Hooks
from quintain.services import BY_OPTION, Choice, started_services
from quintain.store import plain_data

from .checks import Check, run_check
from .options import services_of

SLOT = "checked"
"""The slot that the service fills here."""


def check_service(
    component: Component, args: Sequence[str], services: Mapping[str, Choice]
) -> list[Check]:
    """Return the checks of a service with *args*, each ``KEY=VALUE``; *services* are those that it
    needs, by slot.
    """
    loaded = current().resolve(component)

    def its_class() -> None:
        if not (isinstance(loaded, type) and issubclass(loaded, Service)):
            raise PluginError(f"it is {loaded!r:.80}; expected a subclass of quintain.Service")
        saves, restores = (
            getattr(loaded, name) is not getattr(Service, name) for name in ("state", "restore")
        )
        assert restores or not saves, (
            "it has `state` without `restore`: a resumed run begins without what it knew"
        )
        assert saves or not restores, (
            "it has `restore` without `state`: a checkpoint has nothing to restore"
        )

    rows = [run_check("class", its_class)]
    if rows[0].status == "failed":
        return rows
    needed_slots = sorted(
        {need.slot for need in signature_of(loaded).needs} & {"policy", "learner"}
    )
    states: list[Mapping[str, Any]] = []

    def starts() -> None:
        if needed_slots:
            pytest.skip(f"it needs the {' and the '.join(needed_slots)} of a run")
        states.append(asyncio.run(state_of(component, args, services, {})))

    def saved() -> None:
        if not states[0]:
            pytest.skip("it has no state when it starts")
        try:
            stored = as_stored(states[0])
        except TypeError as e:
            raise AssertionError(
                f"its state is not plain data: {e}; return numbers, text, lists, dicts"
            ) from e
        again = as_stored(asyncio.run(state_of(component, args, services, stored)))
        assert without_tensors(again) == without_tensors(stored), (
            f"its state is {stored!r:.200}, but after `restore` of that {again!r:.200}; a "
            f"checkpoint holds keys as text"
        )

    rows.append(run_check("starts and stops", starts))
    return [*rows, run_check("its state survives a checkpoint", saved)] if states else rows


async def state_of(
    component: Component,
    args: Sequence[str],
    services: Mapping[str, Choice],
    stored: Mapping[str, Any],
) -> Mapping[str, Any]:
    """Return the state of the service once it runs, after it restored *stored* if there is any.

    Raises:
        PluginError: a hook of it is misspelled, or has a wrong parameter.
    """
    name = component.name if ":" in component.name else component.id
    choices = {**services, **services_of([f"{SLOT}={name}"], [f"{SLOT}.{pair}" for pair in args])}
    state = {SLOT: stored} if stored else None
    async with started_services(choices, {SLOT}, {}, state, fix=BY_OPTION) as running:
        service = running[SLOT]
        assert service is not None, "`__aenter__` returns None; end it with `return self`"
        Hooks(strict=True).add_service(service, SLOT)
        return service.state() if isinstance(service, Service) else {}


def as_stored(state: Any) -> Any:
    """Return *state* as a checkpoint restores it: keys are text, tuples lists.

    Raises:
        TypeError: a value is neither plain data nor a tensor.
    """
    if isinstance(state, Mapping):
        return {str(key): as_stored(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [as_stored(value) for value in state]
    return state if hasattr(state, "element_size") else plain_data(state, exact=True)


def without_tensors(state: Any) -> Any:
    """Return *state* with the shape of each tensor instead of it."""
    if isinstance(state, dict):
        return {key: without_tensors(value) for key, value in state.items()}
    if isinstance(state, list):
        return [without_tensors(value) for value in state]
    return list(state.shape) if hasattr(state, "element_size") else state
