"""The environment `openenv`: episodes on a server of OpenEnv."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

from quintain import (
    Agent,
    Environment,
    Limits,
    Message,
    PolicyFault,
    Rollout,
    Score,
    Task,
    Tool,
    ToolSpec,
    control,
    reward,
)
from quintain.errors import InfrastructureError, RewardFault, ToolError, UsageError
from quintain_engines.http import HttpClient, NoAnswer, json_of, run_apart

from ..pictures import plain, reference_of
from .wire import Observed, RemoteSession, session

SPLITS = {"train": "train", "dev": "validation", "test": "test"}
"""What servers call the splits."""
CONSTRAINTS = ("const", "enum", "format", "maxLength", "minLength", "pattern")
"""What a schema may ask of a text."""
MOST_LISTED = 4_000_000
"""Bytes of a schema or a list of tasks, at most."""
ABSENT = object()
"""What a server answers for a path that it does not have."""
MOST_SPLITS = 100
"""Splits that a server may list."""
_log = logging.getLogger("quintain.env.openenv")
_limits: WeakKeyDictionary[Any, dict[str, asyncio.Semaphore]] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Remote(Task):
    """What an episode resets the server with: a seed, or a split and an index of its tasks."""

    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """What the server gave.

    Attributes:
        rewards: of each step that had one.
        done: whether the server ended the episode.
        steps: how many were taken.
    """

    rewards: tuple[float, ...] = ()
    done: bool = False
    steps: int = 0


@reward
def sum_of_rewards(rollout: Rollout[Remote, Episode]) -> Score:
    """The sum of what the server gave.

    Raises:
        RewardFault: no step had a reward, which is not a reward of 0.
    """
    given = rollout.result.rewards
    if not given and rollout.result.steps:
        raise RewardFault("the OpenEnv server gave no reward in any step")
    return Score(value=sum(given))


class OpenEnv(Environment[Remote, Episode]):
    """Episodes on a server that speaks OpenEnv's protocol. A reply is the action; where the server
    has MCP tools, the policy calls those.

    Attributes:
        url: of the server, such as ``http://127.0.0.1:8000``.
        prompt: text before the first observation.
        action: field of the action that is the reply. Empty: its only required text field; where
            there is none, a reply is the action as a JSON object.
        observation: field of the observation that the policy reads. Empty: all of it, as JSON where
            it is more than one text.
        image: field of the observation with a picture, which stands before the text: a ``data:``
            URL, base64, or rows of pixels. A step without one has none.
        parameters: of every reset.
        size: tasks of each split of a server that lists none: each a seed.
        sessions: episodes at once; a server takes one unless it was started with more.
        seconds: that the server may take for an answer.
    """

    reward, limits = sum_of_rewards, Limits(turns=30)

    url: str = "http://127.0.0.1:8000"
    prompt: str = ""
    action: str = ""
    observation: str = ""
    image: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    size: int = 100
    sessions: int = 1
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"openenv: url is {self.url!r}; expected http://HOST:PORT")
        if self.size < 1 or self.sessions < 1:
            raise UsageError("openenv: expected a size and sessions of at least 1")

    def tasks(self, split: str) -> Iterable[Remote]:
        if listed := _listed(self.url, self.seconds):
            name, count = listed.get(SPLITS[split], ("", 0))
            for index in range(count):
                parameters = {**self.parameters, "split": name, "index": index}
                yield Remote(prompt=f"{name} {index}", parameters=parameters)
            return
        first = {"train": 2, "dev": 0, "test": 1}[split] * self.size
        for seed in range(first, first + self.size):
            yield Remote(prompt=f"seed {seed}", parameters={**self.parameters, "seed": seed})

    async def rollout(self, task: Remote, agent: Agent) -> Episode:
        async with session(self.url, seconds=self.seconds, limit=self._limit()) as server:
            steps = [await server.reset(**task.parameters)]
            first = [self.prompt, self._text(steps[0])]
            agent.user("\n\n".join(filter(None, first)) or "Begin.")
            if tools := await server.tools():
                await agent.run(*(_tool(tool, server, steps) for tool in tools))
            else:
                async for turn in agent.turns():
                    steps.append(await self._step(server, turn.reply))
                    if steps[-1].done:
                        break
                    agent.user(self._text(steps[-1]) or "Go on.")
        return Episode(
            rewards=tuple(step.reward for step in steps[1:] if step.reward is not None),
            done=steps[-1].done,
            steps=len(steps) - 1,
        )

    @control()
    def oracle(self, task: Remote, messages: Sequence[Message]) -> str:
        """Reply with the last message; the right replies are known to the server alone."""
        return messages[-1].content

    def _limit(self) -> asyncio.Semaphore:
        """Return the limit on the sessions of this loop at the server."""
        by_url = _limits.setdefault(asyncio.get_running_loop(), {})
        limit = by_url.setdefault(f"{self.url} {self.sessions}", asyncio.Semaphore(self.sessions))
        if limit.locked():
            _remark(self.url, self.sessions)
        return limit

    def _text(self, observed: Observed) -> str:
        """Return what the policy reads of an observation."""
        content = dict(observed.content)
        image = content.pop(self.image, None) if self.image else None
        seen = reference_of(image, f"openenv: {self.image}") if image else ""
        if self.observation:
            if self.observation not in content:
                raise UsageError(
                    f"openenv: the observation has no {self.observation!r}; it has "
                    f"{', '.join(content) or 'nothing'}"
                )
            value = content[self.observation]
        else:
            told = {k: v for k, v in content.items() if v not in (None, "", [], {})}
            value = next(iter(told.values())) if len(told) == 1 else told or ""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return "\n".join(filter(None, (seen, plain(text))))

    async def _step(self, server: RemoteSession, reply: str) -> Observed:
        """Take the action that *reply* is.

        Raises:
            PolicyFault: it should be a JSON object and is none, or the server says that it is no
                action.
            InfrastructureError: the server refuses a text where its schema takes any.
        """
        name, free = (
            (self.action, False) if self.action else await _text_field(self.url, self.seconds)
        )
        try:
            return await server.step({name: reply} if name else _object(reply))
        except PolicyFault as e:
            if not free:
                raise
            raise InfrastructureError(
                f"the OpenEnv server refuses an action that its schema takes: {e}"
            ) from e


def _object(reply: str) -> Mapping[str, Any]:
    try:
        action = json.loads(reply)
    except (ValueError, RecursionError) as e:
        raise PolicyFault(f"the action is no JSON: {e}") from e
    if not isinstance(action, dict):
        raise PolicyFault("the action is no JSON object")
    return action


def _tool(listed: Mapping[str, Any], server: RemoteSession, steps: list[Observed]) -> Tool:
    """Return the tool of a server, whose calls are steps."""
    name = str(listed["name"])

    async def call(arguments: Mapping[str, Any]) -> str:
        if steps[-1].done:
            raise ToolError("the episode is over")
        action = {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}
        steps.append(await server.step(action))
        content = steps[-1].content
        if error := content.get("error"):
            said = error.get("message", error) if isinstance(error, Mapping) else error
            raise ToolError(str(said))
        result = content.get("result")
        if isinstance(result, Mapping):  # of FastMCP: the value, and its parts beside it
            result = result.get("data", result)
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)

    schema = listed.get("input_schema") or listed.get("inputSchema") or {"type": "object"}
    described = str(listed.get("description") or "")
    return Tool(spec=ToolSpec(name=name, description=described, parameters=schema), call=call)


@cache
def _remark(url: str, sessions: int) -> None:
    """Say once that episodes wait, for which a reproducible engine waits in turn."""
    _log.warning(
        "openenv: episodes wait for one of %d sessions at %s; with --set batch.concurrency=%d the "
        "engine does not wait for them, or raise --arg sessions if the server takes more",
        sessions,
        url,
        sessions,
    )


_text_fields: dict[str, tuple[str, bool]] = {}


async def _text_field(url: str, seconds: float) -> tuple[str, bool]:
    """Return the only required text field of the action that the server declares, else nothing, and
    whether it takes any text.
    """
    if url not in _text_fields:
        async with HttpClient(url, seconds=seconds, most_bytes=MOST_LISTED) as client:
            declared = await _asked(client, "/schema")
        try:
            action = declared["action"]
            properties = action.get("properties", {})
            required = list(action.get("required", ()))
            kinds = {name: properties.get(name, {}) for name in required}
            texts = [name for name in required if kinds[name].get("type") == "string"]
        except (AttributeError, KeyError, TypeError) as e:
            raise InfrastructureError(
                f"openenv: {url}/schema declares no action: {str(declared)[:200]}"
            ) from e
        one = len(required) == 1 and texts == required
        free = one and not set(CONSTRAINTS) & set(kinds[required[0]])
        _text_fields[url] = (required[0] if one else "", free)
    return _text_fields[url]


@cache
def _listed(url: str, seconds: float) -> Mapping[str, tuple[str, int]]:
    """Return the server's name of each split and the number of its tasks; nothing where it lists
    none. It waits for the server, at most *seconds* for each of its answers.

    Raises:
        UsageError: nobody answers, or the server lists something else.
    """
    try:
        return run_apart(_list(url, seconds))
    except NoAnswer as e:
        raise UsageError(f"openenv: no server answers at {url}: {e}; start it first") from e
    except InfrastructureError as e:
        raise UsageError(f"openenv: {url} refuses to list its tasks: {e}") from e


async def _list(url: str, seconds: float) -> Mapping[str, tuple[str, int]]:
    async with HttpClient(url, seconds=seconds, most_bytes=MOST_LISTED) as client:
        names = await _asked(client, "/list_environments", absent=(404, 501))
        if names is ABSENT:
            return {}
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise InfrastructureError(f"it lists the environments {str(names)[:200]}")
        path = f"/{quote(names[0], safe='')}"
        splits = await _asked(client, f"{path}/splits")
        if not isinstance(splits, list) or len(splits) > MOST_SPLITS:
            raise InfrastructureError(f"it lists the splits {str(splits)[:200]}")
        counts: dict[str, tuple[str, int]] = {}
        for split in splits:
            name = split.get("name") if isinstance(split, dict) else None
            asked = await _asked(client, f"{path}/num_tasks", {"split": name})
            count = asked.get("num_tasks") if isinstance(asked, dict) else None
            if not isinstance(name, str) or type(count) is not int or count < 0:
                raise InfrastructureError(
                    f"it counts {str(asked)[:100]} tasks in the split {str(split)[:100]}"
                )
            counts[str(split.get("type") or name)] = (name, count)
        return counts


async def _asked(
    client: HttpClient,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    absent: Sequence[int] = (),
) -> Any:
    """Return what the server answers over HTTP; `ABSENT` with a status of *absent*.

    Raises:
        InfrastructureError: nobody answers, or the answer is an error.
    """
    method = "GET" if body is None else "POST"
    status, text, _ = await client.send(method, path, json=body)
    if status in absent:
        return ABSENT
    if status != 200:
        raise InfrastructureError(f"{client.url}{path} answered {status}: {text[:200]}")
    return json_of(text, f"{client.url}{path}")
