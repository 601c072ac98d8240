"""An episode as TRL's `environment_factory` has it: an object whose public methods are tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar, Protocol

from quintain import Environment, Reply, Rollout, Task, ToolCall, ToolSpec
from quintain_authoring import Asked, Stepwise

OVER = "The episode is over."
TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}
"""Types of JSON schemas, as annotations of the parameters that TRL reads."""


class EpisodeHost(Protocol):
    """What has the environment of an episode, and the thread that plays it."""

    @property
    def environment(self) -> Environment[Any, Any]:
        """The environment."""

    @property
    def services(self) -> Mapping[str, Any]:
        """Its services."""

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run *coroutine* in that thread."""

    def task(self, split: str, index: int) -> Task:
        """Return a task by its number."""


class TRLEpisode:
    """An episode; a subclass has its tools as methods."""

    _hosted: ClassVar[EpisodeHost]

    def __init__(self) -> None:
        self._steps: Stepwise | None = None
        self._ended: Rollout[Any, Any] | None = None

    def reset(self, split: str = "train", index: int = 0, **_: Any) -> str | None:
        """Begin the episode of a task. The data set has its prompt, so that nothing is added."""
        hosted = self._hosted
        if self._steps is not None:
            hosted.run(self._steps.__aexit__())
        self._steps, self._ended = (
            Stepwise(hosted.environment, hosted.task(split, index), hosted.services),
            None,
        )
        hosted.run(self._steps.__aenter__())
        self._went_on(hosted.run(self._steps.next()))
        return None

    def _gave(self, reply: Reply) -> str:
        """Give the reply of a turn and return what the policy reads then."""
        if self._ended is not None or self._steps is None:
            return OVER
        return self._went_on(self._hosted.run(self._steps.next(reply)))

    def _went_on(self, what: Asked | Rollout[Any, Any]) -> str:
        if isinstance(what, Rollout):
            self._ended = what
            return OVER
        return "\n\n".join(m.content for m in what.messages)


def finish(episode: TRLEpisode, text: str) -> float | None:
    """Give *text* as the last reply, where the episode still waits for one, and return the score;
    ``None`` where the environment failed or asks for more.

    It is no method, because TRL would offer that as a tool.
    """
    if episode._ended is None:
        episode._gave(Reply(text=text))
    if episode._ended is None or episode._ended.outcome is None:
        return None
    return episode._ended.outcome.total


def episode_class(hosted: EpisodeHost) -> type[TRLEpisode]:
    """Return the class of the episodes of *hosted*, with a method for each tool."""

    async def tools() -> tuple[ToolSpec, ...]:
        task = next(iter(hosted.environment.tasks("train")))
        async with Stepwise(hosted.environment, task, hosted.services) as episode:
            asked = await episode.next()
            return () if isinstance(asked, Rollout) else asked.tools

    offered = hosted.run(tools())
    methods = {tool.name: _method(tool) for tool in offered} or {"reply": _reply}
    name = type(hosted.environment).__name__
    return type(name, (TRLEpisode,), {**methods, "_hosted": hosted})


def _reply(self: TRLEpisode, message: str) -> str:
    """Send a message to the environment.

    Args:
        message: What you say.

    Returns:
        What the environment answers.
    """
    return self._gave(Reply(text=message))


def _method(tool: ToolSpec) -> Callable[..., str]:
    """Return a method with the signature and the docstring that TRL makes a tool's schema of."""
    properties: Mapping[str, Mapping[str, Any]] = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())

    def method(self: TRLEpisode, **arguments: Any) -> str:
        return self._gave(Reply(calls=(ToolCall(name=tool.name, arguments=arguments, id="call"),)))

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    lines = []
    for name, schema in properties.items():
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=TYPES.get(str(schema.get("type")), str),
                default=inspect.Parameter.empty if name in required else schema.get("default"),
            )
        )
        lines.append(f"    {name}: {schema.get('description') or name.replace('_', ' ')}")
    method.__name__ = tool.name
    method.__annotations__ = {p.name: p.annotation for p in parameters[1:]} | {"return": str}
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        parameters, return_annotation=str
    )
    told = ["Args:", *lines] if lines else []
    method.__doc__ = "\n".join([tool.description or tool.name, "", *told])
    return method
