"""The service `sandbox`, which chooses a provider, and `rlimits`, which is none of those that it
chooses from.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import tomllib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from quintain.errors import InfrastructureError, UsageError
from quintain.recipe.tables import ComponentTable
from quintain.services.manager import started_services
from quintain_sandbox import (
    AXES,
    BestSandbox,
    Bubblewrap,
    Docker,
    Guarantee,
    Landlock,
    ProbedSandbox,
    Rlimits,
    best,
    bubblewrap,
    local,
    rlimits,
)

from .service import started


def without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a provider fail to start, as on a machine that lacks what it needs."""

    class Absent(Landlock):
        def prepare(self) -> None:
            raise InfrastructureError(f"{name} is not here; install it: apt-get install {name}")

    monkeypatch.setitem(best.PROVIDERS, name, Absent)  # type: ignore[arg-type]


def test_the_first_provider_that_starts_is_taken_and_the_choice_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A slot named `sandbox` needs no recipe; what was passed over, and why, is on standard
    error.
    """
    without("docker", monkeypatch)
    without("bubblewrap", monkeypatch)

    async def chosen() -> tuple[str, str, dict[str, Guarantee]]:
        async with started_services(
            {"sandbox": ComponentTable(use="sandbox", args={"enforce": ["network"]})}, [], {}
        ) as running:
            service = running["sandbox"]
            assert isinstance(service, ProbedSandbox)
            result = await service.run({}, ["echo", "hi"])
            service.require(["network"])
            return service.name, result.stdout.decode(), dict(service.guarantees)

    with caplog.at_level(logging.INFO, logger="quintain.sandbox"):
        name, printed, guarantees = asyncio.run(chosen())
    assert name == "landlock"
    assert printed == "hi\n"
    assert AXES.keys() == guarantees.keys()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith("sandbox: landlock, all guarantees enforced")
    assert "not docker: docker is not here; install it: apt-get install docker" in record.message


def test_nothing_is_chosen_that_does_not_enforce_what_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each provider says why not, with the command that helps; the process ends up without a
    service.
    """
    without("docker", monkeypatch)
    without("bubblewrap", monkeypatch)
    monkeypatch.setattr(best, "PROVIDERS", dict(best.PROVIDERS) | {"landlock": Weak})
    service = BestSandbox(enforce=["memory"])
    with pytest.raises(
        UsageError,
        match=r"enforces memory:\n  docker: .*install docker\n.*\n  landlock: .*absent; fix",
    ):
        asyncio.run(service.__aenter__())
    with pytest.raises(UsageError, match="not started"):
        asyncio.run(service.run({}, ["true"]))
    with pytest.raises(InfrastructureError, match="no sandbox of this machine"):
        asyncio.run(BestSandbox(enforce=["memory"], providers=["docker"]).__aenter__())


class Weak(Landlock):
    """It starts and enforces nothing."""

    async def __aenter__(self) -> Weak:
        self.guarantees = dict.fromkeys(AXES, Guarantee.ABSENT)
        self.require(self.enforce)
        return self

    def fix(self, axis: str) -> str:
        return f"fix {axis}"


def test_arguments_of_one_provider_are_a_table_with_its_name() -> None:
    """They reach that provider alone, replace the common ones there, and are checked before
    anything starts.
    """

    async def chosen() -> tuple[str, int, int]:
        args = {"slots": 2, "enforce": ["network"], "providers": ["bubblewrap", "landlock"]}
        args |= {"landlock": {"read_only": ["/opt"]}, "bubblewrap": {"warm": 1, "slots": 1}}
        async with started_services(
            {"sandbox": ComponentTable(use="sandbox", args=args)}, [], {}
        ) as running:
            service = running["sandbox"]
            assert isinstance(service, BestSandbox)
            assert isinstance(service.chosen, Bubblewrap)
            return service.name, service.chosen.warm, service.chosen.slots

    assert asyncio.run(chosen()) == ("bubblewrap", 1, 1)
    with pytest.raises(UsageError, match=r"sandbox\.bubblewrap has 'wram'; did you mean 'warm'"):
        BestSandbox(bubblewrap={"wram": 4})
    with pytest.raises(UsageError, match=r"bubblewrap\.warm is 99"):
        BestSandbox(bubblewrap={"warm": 99})


@pytest.mark.parametrize(
    ("providers", "message"), [(["dokcer"], "did you mean 'docker'"), (["rlimits"], "'rlimits'")]
)
def test_only_sandboxes_can_be_chosen(providers: Sequence[str], message: str) -> None:
    """A misspelt name is an error, and what isolates nothing cannot be reached by accident."""
    with pytest.raises(UsageError, match=message):
        BestSandbox(providers=providers)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (BestSandbox, "sandbox"),
        (Bubblewrap, "bubblewrap"),
        (Docker, "docker"),
        (Landlock, "landlock"),
        (functools.partial(Rlimits, allow_unsafe=True), "rlimits"),
    ],
)
def test_a_misspelt_guarantee_is_refused_before_anything_is_probed(
    make: Callable[..., Any], name: str
) -> None:
    """By every constructor, with the name that was meant; one word in place of a list is misspelt,
    too.
    """
    with pytest.raises(
        UsageError, match=rf"{name}\.enforce has 'netwrok', .*did you mean 'network'"
    ):
        make(enforce=["memory", "netwrok"])
    with pytest.raises(UsageError, match=rf"{name}\.enforce has 'n'"):
        make(enforce="network")


def test_the_error_of_a_service_has_the_line_that_accepts_less() -> None:
    """Without root nobody can get a user for each program; what code requires no recipe lowers."""
    service = Landlock(enforce=["network", "users", "time"])
    service.guarantees = dict.fromkeys(AXES, Guarantee.ENFORCED) | {"users": Guarantee.ABSENT}
    with pytest.raises(UsageError) as refused:
        service.require(service.enforce)
    first, users, less = str(refused.value).splitlines()
    assert first == "landlock does not enforce what is needed on this machine:"
    assert f"  users: absent; {local.AS_ROOT}" == users
    _, line = less.split("in args of the service: ")
    assert tomllib.loads(line) == {"enforce": ["network", "time"]}
    with pytest.raises(UsageError, match="users: absent") as refused:
        service.require(["users"])
    assert "accept less" not in str(refused.value)


def test_a_slot_without_a_recipe_is_filled() -> None:
    """`need()` of a parameter named sandbox finds the service of that name."""
    from quintain.registry.lookup import current

    assert current().load("service", "sandbox") is BestSandbox


def test_limits_alone_are_refused_unless_accepted() -> None:
    """One line that says what it is not, and what to use."""
    with pytest.raises(
        UsageError, match="rlimits is no sandbox: .*bubblewrap.*allow_unsafe = true"
    ) as refused:
        Rlimits()
    assert "\n" not in str(refused.value)


def test_limits_alone_are_loud_and_tagged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning for all services of a process, an alert in every step while one runs, none before
    and after.
    """
    monkeypatch.setattr(rlimits, "_warned", [])

    def alerts() -> dict[str, str]:
        event = SimpleNamespace(step=1, metrics={}, alerts={})
        rlimits.quintain_on_step_measured(event)
        return event.alerts

    def use() -> dict[str, Guarantee]:
        service: Any
        for service in started("rlimits", slots=1):
            assert list(alerts()) == ["unsafe_sandbox"]
            assert alerts()["unsafe_sandbox"].startswith("unsafe_sandbox: UNSAFE: programs")
            assert asyncio.run(service.run({}, ["true"])).status == "ok"
            found: dict[str, Guarantee] = service.guarantees
        return found

    assert alerts() == {}
    with caplog.at_level(logging.WARNING, logger="quintain.sandbox"):
        guarantees = use()
        use()
    assert alerts() == {}
    assert [record.message for record in caplog.records] == [rlimits.WARNING]
    for axis in ("filesystem", "network", "processes", "syscalls", "disk"):
        assert Guarantee.ABSENT is guarantees[axis]


@pytest.mark.more
def test_limits_alone_keep_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`enforce` is refused as by a sandbox."""

    async def start() -> None:
        async with Rlimits(allow_unsafe=True, enforce=["network"]):
            pass

    with pytest.raises(
        UsageError, match="network: absent; rlimits cannot: use docker, bubblewrap or landlock"
    ):
        asyncio.run(start())


def test_bubblewrap_is_passed_over_without_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real provider's error, with the command that installs it, is the reason."""
    without("docker", monkeypatch)
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    with pytest.raises(InfrastructureError, match="bubblewrap: .*apt-get install bubblewrap"):
        asyncio.run(BestSandbox(enforce=[], providers=["bubblewrap"]).__aenter__())
