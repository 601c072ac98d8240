"""Services start in dependency order, stop in reverse, and say what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

import pytest

from quintain.errors import InfrastructureError, PluginError, RecipeError
from quintain.interfaces.service import Service, need
from quintain.recipe.tables import ComponentTable
from quintain.services.manager import needed_by, started_services, states
from quintain.testing import isolated_plugins

LOG: list[str] = []


class Base(Service):
    def __init__(self, **_: Any) -> None:
        self.held: Mapping[str, Any] = {}

    async def __aenter__(self) -> Self:
        LOG.append(f"+{type(self).__name__}")
        return self

    async def __aexit__(self, *exc: object) -> None:
        LOG.append(f"-{type(self).__name__}")

    def state(self) -> Mapping[str, Any]:
        return self.held

    def restore(self, state: Mapping[str, Any]) -> None:
        self.held = state


class Store(Base):
    pass


class Judge(Base):
    def __init__(self, *, store: Store = need(), policy: Any = need(), level: int = 1) -> None:
        super().__init__()
        self.store, self.policy, self.level = store, policy, level


class Egg(Base):
    def __init__(self, *, hen: Any = need()) -> None:
        super().__init__()


class Hen(Base):
    def __init__(self, *, egg: Any = need()) -> None:
        super().__init__()


class Broken(Base):
    def __init__(self, *, error: str = "KeyError", late: bool = False) -> None:
        super().__init__()
        self.error = {"KeyError": KeyError("door"), "probe": InfrastructureError("no answer")}[
            error
        ]
        self.late = late

    async def __aenter__(self) -> Self:
        if not self.late:
            raise self.error
        return await super().__aenter__()

    def restore(self, state: Mapping[str, Any]) -> None:
        raise self.error


def run(
    choices: Mapping[str, ComponentTable], wanted: list[str], state: Any = None
) -> dict[str, Any]:
    LOG.clear()

    async def main() -> dict[str, Any]:
        async with started_services(choices, wanted, {"policy": "the policy"}, state) as running:
            LOG.append("run")
            return dict(running)

    with isolated_plugins() as plugins:
        for kind in (Store, Judge, Egg, Hen, Broken):
            plugins.add("service", kind.__name__.lower(), kind)
        return asyncio.run(main())


def test_dependencies_first_and_reverse_at_the_end() -> None:
    """A judge that needs a store gets it, whichever is named first; a wanted slot takes the
    component of its name.
    """
    running = run({"judge": ComponentTable(use="judge", args={"level": 3})}, ["judge"])

    assert LOG == ["+Store", "+Judge", "run", "-Judge", "-Store"]
    assert running["judge"].store is running["store"]
    assert running["judge"].policy == "the policy"
    assert running["judge"].level == 3


def test_only_what_is_needed_starts() -> None:
    """A service that nobody wants is not started."""
    run({}, ["store"])

    assert LOG == ["+Store", "run", "-Store"]


def test_state_goes_into_checkpoints_and_comes_back() -> None:
    """What a service kept is there again after a resume."""
    running = run({}, ["store"], {"store": {"cache": [1]}})

    assert states(running) == {"store": {"cache": [1]}}


@pytest.mark.parametrize(
    ("wanted", "message"), [("nothing", r"\[services.nothing\]"), ("hen", "hen -> egg -> hen")]
)
def test_what_cannot_be_filled_is_named(wanted: str, message: str) -> None:
    """A missing service and a circle."""
    with pytest.raises(RecipeError, match=message):
        run({}, [wanted])


@pytest.mark.parametrize("late", [False, True])
def test_an_error_in_the_code_of_a_service_names_its_slot_and_line(late: bool) -> None:
    """When it starts, and when it restores a state; what started before it is stopped."""
    choices = {
        "store": ComponentTable(use="store"),
        "market": ComponentTable(use="broken", args={"late": late}),
    }
    message = (
        r"^\[services\.market\] does not start: KeyError: 'door' \(test_services\.py, line \d+\)$"
    )
    with pytest.raises(PluginError, match=message):
        run(choices, [], {"market": {"x": 1}})
    assert ["+Store", *(["+Broken", "-Broken"] if late else []), "-Store"] == LOG


def test_a_failed_probe_is_raised_as_it_is() -> None:
    with pytest.raises(InfrastructureError, match="^no answer$"):
        run({"market": ComponentTable(use="broken", args={"error": "probe"})}, [])


def test_services_that_no_slot_leads_to_are_left_out() -> None:
    """A warm start has no learner yet, so the services of an algorithm cannot start there."""
    choices = {name: ComponentTable(use=name) for name in ("judge", "store", "hen")}
    with isolated_plugins() as plugins:
        for kind in (Store, Judge, Hen):
            plugins.add("service", kind.__name__.lower(), kind)
        assert {"judge", "store"} == needed_by({"judge", "policy"}, choices).keys()
        assert needed_by((), choices) == {}
