"""Serves an environment in OpenEnv's protocol, so that its clients, and the trainers that have one,
can play it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from aiohttp import WSMsgType, web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quintain import Environment, Message, Reply, Rollout, Task, ToolCall
from quintain.errors import QuintainError, UsageError
from quintain_authoring import Asked, Stepwise, task_at

SPLITS = {"train": "train", "validation": "dev", "test": "test"}
"""Names of the splits in the protocol, and here."""


class NamedCall(BaseModel):
    """A call of a tool."""

    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class TurnAction(BaseModel):
    """A turn: text, and calls of tools where the observation offers some.

    Its only required field is text, so that clients which know no schema send a reply as it is.
    verifiers takes a class called ``Action`` for a list of MCP tools.
    """

    model_config = ConfigDict(extra="forbid")

    message: str = Field(description="The reply")
    tool_calls: list[NamedCall] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict)


class Observation(BaseModel):
    """What the player whose turn it is has to read."""

    text: str = Field(default="", description="The last message")
    messages: list[dict[str, Any]] = Field(
        default_factory=list, description="All messages since the last turn of this player"
    )
    tools: list[dict[str, Any]] = Field(default_factory=list)
    player: str = ""
    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class State(BaseModel):
    """The state of a session."""

    model_config = ConfigDict(extra="allow")

    episode_id: str | None = None
    step_count: int = 0


class OpenEnvServer:
    """The application of a server.

    Args:
        environment: with its services.
        name: of the environment.
        services: started, for the rewards.
        sessions: episodes at once. A further client gets the error ``CAPACITY_REACHED``.
        size: tasks of a split that are listed; ``train`` may be endless.
    """

    def __init__(
        self,
        environment: Environment[Any, Any],
        *,
        name: str,
        services: Mapping[str, Any] | None = None,
        sessions: int = 64,
        size: int = 1000,
    ) -> None:
        self._environment, self._name = environment, name
        self._services, self._most, self._size = services or {}, sessions, size
        self._active = 0
        self.app = web.Application()
        self.app.add_routes(
            [
                web.get("/ws", self._session),
                web.get("/health", self._health),
                web.get("/metadata", self._metadata),
                web.get("/schema", self._schema),
                web.get("/list_environments", self._environments),
                web.get("/{name}/splits", self._splits),
                web.post("/{name}/num_tasks", self._number),
                web.post("/{name}/tasks", self._tasks),
                web.post("/{name}/task", self._one_task),
            ]
        )

    async def _session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=100 << 20)
        await socket.prepare(request)
        if self._active >= self._most:
            counts = {"active_sessions": self._active, "max_sessions": self._most}
            await socket.send_json(
                _error("CAPACITY_REACHED", f"all {self._most} sessions are taken", **counts)
            )
            await socket.close()
            return socket
        self._active += 1
        player = _Player(self._environment, self._services)
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    break
                answer = await player.answer(message.data)
                if answer is None:
                    break
                await socket.send_json(answer)
        finally:
            self._active -= 1
            await player.end()
        await socket.close()
        return socket

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def _metadata(self, request: web.Request) -> web.Response:
        described = (type(self._environment).__doc__ or self._name).strip()
        return web.json_response({"name": self._name, "description": described})

    async def _schema(self, request: web.Request) -> web.Response:
        schemas: dict[str, type[BaseModel]] = {
            "action": TurnAction,
            "observation": Observation,
            "state": State,
        }
        return web.json_response({k: v.model_json_schema() for k, v in schemas.items()})

    async def _environments(self, request: web.Request) -> web.Response:
        return web.json_response([self._name])

    async def _splits(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.json_response([{"name": split, "type": split} for split in SPLITS])

    async def _number(self, request: web.Request) -> web.Response:
        return web.json_response({"num_tasks": len(await self._listed(request))})

    async def _tasks(self, request: web.Request) -> web.Response:
        tasks = [_shown(task) for task in await self._listed(request)]
        return web.json_response({"tasks": tasks, "env_name": self._name})

    async def _one_task(self, request: web.Request) -> web.Response:
        index, tasks = (await request.json())["index"], await self._listed(request)
        if not 0 <= index < len(tasks):
            raise web.HTTPBadRequest(text=json.dumps({"detail": "Invalid task index"}))
        return web.json_response({"task": _shown(tasks[index])})

    def _check(self, request: web.Request) -> None:
        if request.match_info["name"] != self._name:
            raise web.HTTPNotFound(text=json.dumps({"detail": "Unknown environment"}))

    async def _listed(self, request: web.Request) -> list[Task]:
        self._check(request)
        try:
            split = _ours((await request.json())["split"])
        except UsageError as e:
            raise web.HTTPBadRequest(text=json.dumps({"detail": str(e)})) from e
        return list(islice(self._environment.tasks(split), self._size))


class _Player:
    """The episodes of one session, one after the other."""

    def __init__(self, environment: Environment[Any, Any], services: Mapping[str, Any]) -> None:
        self._environment, self._services = environment, services
        self._episode: Stepwise | None = None
        self._state = State()

    async def answer(self, text: str) -> Mapping[str, Any] | None:
        """Return what is answered to a message, ``None`` to the one that ends the session."""
        try:
            message = json.loads(text)
            kind, data = message.get("type", ""), message.get("data") or {}
        except (ValueError, AttributeError) as e:
            return _error("INVALID_JSON", f"Invalid JSON: {e}")
        try:
            match kind:
                case "reset":
                    return await self._reset(**data)
                case "step":
                    return await self._step(TurnAction.model_validate(data))
                case "state":
                    return {"type": "state", "data": self._state.model_dump()}
                case "mcp":
                    missing = {"code": -32601, "message": "the environment has no MCP"}
                    body = {"jsonrpc": "2.0", "id": data.get("id"), "error": missing}
                    return {"type": "mcp", "data": body}
                case "close":
                    return None
        except ValidationError as e:
            errors = e.errors(include_url=False, include_context=False)
            return _error("VALIDATION_ERROR", "Invalid message", errors=errors)
        except (QuintainError, TypeError) as e:
            return _error("EXECUTION_ERROR", str(e))
        return _error("UNKNOWN_TYPE", f"Unknown message type: {kind}")

    async def end(self) -> None:
        """End the episode."""
        if self._episode is not None:
            episode, self._episode = self._episode, None
            await episode.__aexit__()

    async def _reset(
        self,
        *,
        split: str = "train",
        index: int | None = None,
        seed: int | None = None,
        episode_id: str | None = None,
        **_: Any,
    ) -> Mapping[str, Any]:
        await self.end()
        number = index if index is not None else (seed or 0)
        task = task_at(self._environment, _ours(split), number)
        self._state = State(episode_id=episode_id, step_count=0)
        self._episode = await Stepwise(
            self._environment, task, self._services, seed=seed or 0
        ).__aenter__()
        return _seen(await self._episode.next())

    async def _step(self, action: TurnAction) -> Mapping[str, Any]:
        if self._episode is None:
            raise UsageError("no episode has begun: send a reset first")
        calls = tuple(
            ToolCall(name=c.name, arguments=c.arguments, id=f"call-{n}")
            for n, c in enumerate(action.tool_calls)
        )
        self._state.step_count += 1
        return _seen(await self._episode.next(Reply(text=action.message, calls=calls)))


def _seen(what: Asked | Rollout[Any, Any]) -> Mapping[str, Any]:
    """Return the observation of a question, or of the end of an episode.

    A failure that is not the policy's is an error and no reward.
    """
    if isinstance(what, Asked):
        messages = [_message(m) for m in what.messages]
        seen = Observation(
            text=what.messages[-1].content if what.messages else "",
            messages=messages,
            tools=[tool.to_json() for tool in what.tools],
            player=what.player,
        )
    elif what.outcome is None:
        ended = what.termination
        return _error("EXECUTION_ERROR", f"{ended.kind}: {ended.reason}")
    else:
        score = what.outcome
        seen = Observation(
            done=True,
            reward=score.total,
            metadata={
                "termination": str(what.termination.kind),
                "reason": what.termination.reason or score.reason,
                "players": dict(score.players),
                "parts": dict(score.parts),
            },
        )
    body = {
        "observation": seen.model_dump(exclude={"done", "reward"}),
        "reward": seen.reward,
        "done": seen.done,
    }
    if seen.metadata:
        body["metadata"] = seen.metadata
    return {"type": "observation", "data": body}


def _ours(split: str) -> str:
    """Return our name of a split.

    Raises:
        UsageError: there is no such split.
    """
    if split not in SPLITS:
        raise UsageError(f"there is no split {split!r}; expected {', '.join(SPLITS)}")
    return SPLITS[split]


def _message(message: Message) -> dict[str, Any]:
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.call_id:
        told["tool_call_id"] = message.call_id
    return told


def _shown(task: Task) -> dict[str, Any]:
    """Return what a client may know of a task: not its answer."""
    prompt: str | Sequence[Message] = task.prompt
    text = prompt if isinstance(prompt, str) else [_message(m) for m in prompt]
    return {"id": task.id, "prompt": text, "level": task.level}


def _error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}
