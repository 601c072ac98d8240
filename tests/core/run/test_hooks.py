"""Hooks: each is documented, each is called, and one plugin's fault stays its own."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

from quintain.errors import PluginError, UnknownNameError
from quintain.interfaces.events import (
    EVENTS,
    CheckpointSaved,
    EvaluationEnd,
    Event,
    RunEnd,
    RunStart,
    Steering,
    StepEnd,
    StepMeasured,
)
from quintain.registry.discovery import Component
from quintain.registry.lookup import Registry, isolated
from quintain.run.hooks import Hooks, Specification, allowed, hookimpl

DOC = Path(__file__).resolve().parents[3] / "docs" / "hooks.md"

SAMPLES: tuple[Event, ...] = (
    RunStart(run="demo", folder="/runs/demo", step=0, recipe={"seed": 1}, steering=Steering()),
    StepMeasured(step=1, metrics={"loss": 0.5}, alerts={}),
    StepEnd(step=1, metrics={"reward": 0.5}),
    EvaluationEnd(step=1, environment="arithmetic", split="dev", metrics={"accuracy": 0.9}),
    CheckpointSaved(step=1, path="/runs/demo/checkpoints/1", best=True),
    RunEnd(folder="/runs/demo", step=1, status="finished", error="", summary={}),
)


def plugin(**functions: Callable[..., Any]) -> SimpleNamespace:
    return SimpleNamespace(**functions)


def specified() -> dict[str, Callable[..., Any]]:
    return {n: f for n, f in vars(Specification).items() if n.startswith("quintain_")}


def test_there_are_at_most_ten_hooks_one_event_each() -> None:
    """The contract stays small, and every hook has its event."""
    assert [e.hook for e in EVENTS] == list(specified())
    assert [type(s) for s in SAMPLES] == list(EVENTS)
    assert len(EVENTS) <= 10


@pytest.mark.parametrize("event", SAMPLES, ids=lambda e: e.hook)
def test_every_hook_reaches_its_plugin(event: Event) -> None:
    """Each hook is called with its event."""
    seen: list[Event] = []
    hooks = Hooks(strict=True)
    hooks.add(plugin(**{event.hook: lambda event: seen.append(event)}), "one")

    hooks.emit(event)

    assert [event] == seen


@pytest.mark.parametrize("kind", EVENTS, ids=lambda e: e.hook)
def test_every_event_is_a_frozen_record_of_plain_values(kind: type[Event]) -> None:
    """No live object reaches a plugin."""
    hints = get_type_hints(kind)
    types = {hints[f.name] for f in dataclasses.fields(kind)}

    assert kind.__dataclass_params__.frozen
    plain = {str, int, float, bool, Mapping[str, float], Mapping[str, Any], dict[str, str]}
    assert types <= plain | {Steering}  # to be filled, as `alerts` are
    assert set(get_type_hints(Steering).values()) == {bool, str, int | None}


@pytest.mark.parametrize("kind", EVENTS, ids=lambda e: e.hook)
def test_every_hook_is_documented(kind: type[Event]) -> None:
    """docs/hooks.md and the docstrings have each hook with its event, all of its fields, and an
    example.
    """
    sections = {
        m[1]: m[2] for m in re.finditer(r"^## (.+)\n((?:(?!^## ).*\n?)*)", DOC.read_text(), re.M)
    }
    section = sections[f"{kind.hook}(event: {kind.__name__})"]
    fields = [f.name for f in dataclasses.fields(kind)]

    assert fields == re.findall(r"^\| `(\w+)` \|", section, re.M)
    assert f"def {kind.hook}(event):" in section
    assert f"def {kind.hook}(event):" in (inspect.getdoc(specified()[kind.hook]) or "")
    assert all(f"{name}:" in (kind.__doc__ or "") for name in fields)


def test_the_page_documents_no_other_hook() -> None:
    """A hook that is gone leaves the page, too."""
    assert {e.hook for e in EVENTS} == set(re.findall(r"^## (quintain_\w+)", DOC.read_text(), re.M))


def test_one_raising_plugin_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The others are told, the failure is counted, and it is logged once."""
    seen: list[int] = []
    hooks = Hooks(strict=False)
    hooks.add(plugin(quintain_on_step_end=lambda event: seen.append(event.step)), "good")
    hooks.add(plugin(quintain_on_step_end=lambda event: 1 / 0), "bad")
    with caplog.at_level(logging.WARNING):
        for step in (1, 2):
            hooks.emit(StepEnd(step=step, metrics={}))

    assert seen == [1, 2]
    assert [str(f) for f in hooks.failures] == [
        "plugin 'bad' in quintain_on_step_end: ZeroDivisionError: division by zero, 2 times"
    ]
    assert len(caplog.records) == 1


def test_strict_raises_what_a_plugin_raised() -> None:
    """With strict plugins the first failure ends the run, its cause chained."""
    hooks = Hooks(strict=True)
    hooks.add(plugin(quintain_on_step_end=lambda event: 1 / 0), "bad")

    with pytest.raises(PluginError, match="'bad' in quintain_on_step_end") as e:
        hooks.emit(StepEnd(step=1, metrics={}))

    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_event_is_optional() -> None:
    """A function may take nothing."""
    seen: list[str] = []
    hooks = Hooks(strict=True)
    hooks.add(plugin(quintain_on_run_end=lambda: seen.append("end")), "one")

    hooks.emit(SAMPLES[-1])

    assert seen == ["end"]


async def _coroutine(event: StepEnd) -> None: ...


@hookimpl(wrapper=True)
def _wrapper(event):
    return (yield)


@pytest.mark.parametrize(
    "functions, message",
    [
        ({"quintain_on_step_ended": lambda event: None}, "did you mean 'quintain_on_step_end'"),
        (
            {"quintain_on_step_end": lambda evnt: None},
            r"evnt(.|\n)*a hook has the parameter `event`, or none",
        ),
        ({"quintain_on_step_end": _coroutine}, "plain function"),
        ({"quintain_on_step_end": _wrapper}, "plain function"),
        ({"quintin_on_step_end": hookimpl(lambda event: None)}, "no hook 'quintin_on_step_end'"),
    ],
)
def test_wrong_hooks_are_refused_whole(functions: dict[str, Any], message: str) -> None:
    """A misspelled or unusable hook is an error at load, and none of that plugin's hooks stays
    behind.
    """
    seen: list[int] = []
    hooks = Hooks(strict=False)
    with pytest.raises(PluginError, match=message):
        hooks.add(plugin(quintain_on_run_end=lambda event: seen.append(1), **functions), "wrong")
    hooks.add(plugin(quintain_on_run_end=lambda event: seen.append(2)), "right")

    hooks.emit(SAMPLES[-1])

    assert seen == [2]
    assert hooks.plugins == ["right"]


def test_plugins_are_called_by_name() -> None:
    """Installed plugins are told in the order of their names."""
    seen: list[str] = []
    with isolated() as registry:
        for name in ("b", "c", "a"):
            registry.add(
                "hooks",
                name,
                plugin(quintain_on_step_end=lambda event, name=name: seen.append(name)),
            )
        hooks = Hooks.installed(strict=True)

    hooks.emit(StepEnd(step=1, metrics={}))

    assert seen == ["a", "b", "c"]


class Watching:
    """A service that notes the steps; two with the same settings are equal."""

    def __init__(self, seen: list[Any], name: str) -> None:
        self.seen, self.name = seen, name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Watching)

    @property
    def results(self) -> Any:
        raise RuntimeError("there are none before the end")

    def quintain_on_step_end(self, event: StepEnd) -> None:
        self.seen.append((self.name, event.step))


def test_services_with_hooks_observe_their_run() -> None:
    """They are called after the plugins, in the order of their start; nothing else of them is read,
    and equal ones are two.
    """
    seen: list[Any] = []
    services = {"one": Watching(seen, "one"), "plain": object(), "two": Watching(seen, "two")}
    with isolated() as registry:
        registry.add(
            "hooks", "z", plugin(quintain_on_step_end=lambda event: seen.append(("z", event.step)))
        )
        hooks = Hooks.installed(services, strict=True)

    hooks.emit(StepEnd(step=3, metrics={}))

    assert seen == [("z", 3), ("one", 3), ("two", 3)]
    assert hooks.plugins == ["local/z", "services.one", "services.two"]


def test_a_services_hook_that_fails_is_named_by_its_slot() -> None:
    """Also one that is misspelled; the run goes on."""

    class Failing:
        def quintain_on_step_end(self) -> None:
            raise OSError("disk full")

    class Misspelled:
        def quintain_on_step_ended(self) -> None: ...

    hooks = Hooks.installed(
        {"judge": Failing(), "other": Misspelled()}, registry=Registry([]), strict=False
    )
    hooks.emit(StepEnd(step=1, metrics={}))

    misspelled, failing = map(str, hooks.failures)
    assert failing == "plugin 'services.judge' in quintain_on_step_end: OSError: disk full"
    assert misspelled.startswith("plugin 'services.other': PluginError: ")
    assert "did you mean 'quintain_on_step_end'" in misspelled


def test_broken_plugin_is_recorded_and_the_rest_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that cannot be imported is a failure on record; strict, it is an error."""
    bad = Component(
        kind="hooks", name="bad", target="no_such_module_at_all", distribution="bad-dist"
    )
    registry = Registry([bad])
    registry.add("hooks", "good", plugin(quintain_on_run_end=lambda: None))

    hooks = Hooks.installed(registry=registry, strict=False)

    assert hooks.plugins == ["local/good"]
    assert [failure.plugin for failure in hooks.failures] == ["bad-dist/bad"]
    monkeypatch.setenv("QUINTAIN_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError, match="no_such_module_at_all"):
        Hooks.installed(registry=registry)


def test_allow_list() -> None:
    """QUINTAIN_PLUGINS lets through what it names; empty is nothing, unset is all, an unknown name
    an error.
    """
    known = [
        Component(kind="hooks", name=n, target=n, distribution="d")
        for n in ("wandb", "tensorboard")
    ]

    assert known == allowed(known, None)
    assert allowed(known, "") == []
    assert [c.name for c in allowed(known, " wandb ,")] == ["wandb"]
    assert [c.name for c in allowed(known, "d/tensorboard")] == ["tensorboard"]
    with pytest.raises(UnknownNameError, match="did you mean 'wandb'"):
        allowed(known, "wandbb")
