"""Typed functions as tools."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import Tool, ToolSpec, as_tool
from quintain.errors import InfrastructureError, ToolError
from quintain.types.task import ToolCall


def add(x: int, y: int = 1) -> int:
    """Add two numbers.

    More that the model need not read.
    """
    return x + y


async def shout(word: str, mood: Literal["glad", "sad"] = "glad") -> str:
    return word.upper() + mood


def run(tool: Tool, **arguments: Any) -> ToolCall:
    return asyncio.run(tool.run(ToolCall(name=tool.spec.name, arguments=arguments)))


class Counter:
    def __init__(self) -> None:
        self.n = 0

    def bump(self, by: int) -> dict[str, int]:
        """Count up."""
        self.n += by
        return {"n": self.n}


def call(tool: Any, **arguments: Any) -> str:
    return asyncio.run(as_tool(tool).call(arguments))


def test_golden_schema() -> None:
    spec = as_tool(add).spec
    assert spec.to_json() == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "x": {"title": "X", "type": "integer"},
                    "y": {"title": "Y", "type": "integer", "default": 1},
                },
                "required": ["x"],
                "additionalProperties": False,
            },
        },
    }
    assert as_tool(shout).spec.parameters["properties"]["mood"]["enum"] == ["glad", "sad"]


def test_calls_run_and_come_back_as_text() -> None:
    assert call(add, x=2) == "3"
    assert call(add, x="2", y=5) == "7"
    assert call(shout, word="hey", mood="sad") == "HEYsad"
    counter = Counter()
    assert call(counter.bump, by=2) == '{"n": 2}'
    assert call(counter.bump, by=3) == '{"n": 5}'
    tool = as_tool(add)
    assert as_tool(tool) is tool


@pytest.mark.parametrize(
    "arguments, said",
    [({}, "x: "), ({"x": "two"}, "x: "), ({"x": 1, "z": 2}, "z: "), ({"x": None}, "x: ")],
)
def test_wrong_arguments_come_back_as_text(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ToolError, match="wrong arguments for add") as caught:
        call(add, **arguments)
    assert said in str(caught.value)
    assert run(as_tool(add), **arguments).error == f"error: {caught.value}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["word", "mood", "self", "x"]) | st.text(max_size=4), JSON, max_size=3
    )
)
def test_no_arguments_a_model_can_write_raise(arguments: dict[str, Any]) -> None:
    ran = run(as_tool(shout), **arguments)
    assert (ran.result is None) == bool(ran.error)


def test_tools_that_cannot_be_described_to_the_model_are_refused() -> None:
    def bare(x):  # type: ignore[no-untyped-def]
        return x

    def starred(*words: str) -> str:
        return " ".join(words)

    def positional(x: int, /) -> int:
        return x

    with pytest.raises(TypeError, match="parameter 'x' has no annotation"):
        as_tool(bare)
    for function, parameter in ((starred, "words"), (positional, "x")):
        with pytest.raises(TypeError, match=f"{parameter!r} cannot be given by name"):
            as_tool(function)


@pytest.mark.parametrize("thing", ["add", 3, None])
def test_what_is_no_function_is_no_tool(thing: Any) -> None:
    with pytest.raises(TypeError, match="is not a callable object"):
        as_tool(thing)


def test_parameter_names_are_free() -> None:
    """Names that mean something to the library behind the schema are ordinary names here."""

    def save(copy: bool, json: str, schema: int = 0, model_config: str = "") -> str:
        return f"{copy} {json} {schema} {model_config}"

    assert call(save, copy=True, json="{}", model_config="m") == "True {} 0 m"
    assert list(as_tool(save).spec.parameters["properties"]) == [
        "copy",
        "json",
        "schema",
        "model_config",
    ]
    assert "copy: " in run(as_tool(save), copy="perhaps", json="").error


def test_a_tool_of_ones_own() -> None:
    async def run(arguments: Any) -> str:
        return str(dict(arguments))

    assert call(Tool(spec=ToolSpec(name="raw"), call=run), a=1) == "{'a': 1}"


def test_functions_of_equal_types_share_one_schema() -> None:
    """An environment that defines its tools inside an episode does not pay for the schema in every
    episode.
    """

    def made() -> Any:
        def move(x: int, how: Literal["fast", "slow"] = "slow") -> str:
            """Move."""
            return how * x

        return move

    first, second = as_tool(made()), as_tool(made())
    assert first.spec == second.spec
    assert first.spec.parameters is second.spec.parameters
    assert call(made(), x=2, how="fast") == "fastfast"


def test_functions_of_other_types_or_defaults_do_not() -> None:
    def made(kind: Any, default: Any) -> Any:
        def f(x: Any = default) -> str:
            return repr(x)

        f.__annotations__["x"] = kind
        return f

    variants = [
        (int, 1),
        (int, True),
        (float, 1.0),
        (Literal[1, 2], 1),
        (str, "1"),
        (list[int], [1]),
        (list[int], [2]),
    ]
    tools = [as_tool(made(kind, default)) for kind, default in variants]
    assert [str(default) for _, default in variants] == [
        str(t.spec.parameters["properties"]["x"]["default"]) for t in tools
    ]
    assert [repr(default) for _, default in variants] == [asyncio.run(t.call({})) for t in tools]


def test_errors_that_the_policy_reads() -> None:
    def find(key: str) -> str:
        raise ToolError(f"there is no {key!r}")

    ran = run(as_tool(find), key="x")
    assert ran.error == "error: there is no 'x'"
    assert ran.result is None


def test_a_bug_of_the_tool_is_not_hidden() -> None:
    """Only a `ToolError` is the policy's to read; every other exception reaches the episode, a
    `TimeoutError` too.
    """

    def broken(kind: str) -> str:
        raise {"key": KeyError, "time": TimeoutError}[kind]("x")

    for kind, error in (("key", KeyError), ("time", TimeoutError)):
        with pytest.raises(error):
            run(replace(as_tool(broken), seconds=5), kind=kind)


def test_a_slow_call_is_cancelled_and_the_policy_reads_so() -> None:
    cancelled = []

    async def slow(x: int) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(x)
            raise
        return ""

    ran = run(replace(as_tool(slow), seconds=0.05), x=3)
    assert ran.error == "error: slow took over 0.05 s"
    assert ran.result is None
    assert cancelled == [3]


@pytest.mark.parametrize("length, said", [(10, "x" * 10), (13, "x" * 10 + "\n[3 more characters]")])
def test_long_results_and_errors_are_cut(length: int, said: str) -> None:
    def speak(fail: bool) -> str:
        if fail:
            raise ToolError("x" * (length - 7))
        return "x" * length

    tool = replace(as_tool(speak), characters=10)
    assert said == run(tool, fail=False).result
    assert run(tool, fail=True).error == "error: " + "x" * 3 + said[10:]


class Flaky:
    """A tool whose first calls fail."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    def tool(self, idempotent: bool) -> Tool:
        def flaky() -> str:
            self.calls += 1
            if self.calls <= self.failures:
                raise InfrastructureError("the line is dead")
            return "fine"

        return replace(as_tool(flaky), idempotent=idempotent)


def test_an_idempotent_call_is_made_again() -> None:
    flaky = Flaky(failures=1)

    assert run(flaky.tool(idempotent=True)).result == "fine"
    assert flaky.calls == 2


@pytest.mark.parametrize("idempotent, failures, calls", [(False, 1, 1), (True, 2, 2)])
def test_a_call_with_side_effects_is_never_repeated_and_no_call_twice(
    idempotent: bool, failures: int, calls: int
) -> None:
    flaky = Flaky(failures)

    with pytest.raises(InfrastructureError, match="dead"):
        run(flaky.tool(idempotent))
    assert flaky.calls == calls
