"""How a recipe declares an MCP server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from mcp.client.stdio import get_default_environment
from pydantic import ConfigDict

from quintain.errors import UsageError

EPISODE_POOL = 16
"""Sessions of a server with ``session = "episode"`` at one time, by default."""
PLACE = "{session}"
"""In *command*, *env* and *cwd*: an empty folder of each session, which ends with it."""


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """A server: a program (*command*) or an address (*url*), and what its tools may cost.

    Attributes:
        command: the program and its arguments; it speaks MCP on stdin and stdout. ``{session}``
            stands for a folder of the session, empty at its begin and gone after its end.
        url: of a server over streamable HTTP, up to and including its path.
        env: variables for the program, beside HOME, LOGNAME, PATH, SHELL, TERM and USER. Values may
            have ``{session}``.
        pass_env: names of the trainer's variables that the program gets as well.
        cwd: the program's working directory, for instance ``{session}``; empty is the trainer's.
        headers: of each request.
        secret_headers: names of headers, each with the *name* of the environment variable that
            holds its value.
        session: ``shared`` by all episodes, or one for each ``episode``, which is closed after it.
        pool: sessions at one time; episodes wait for one. By default 1 if shared, else 16.
        concurrency: calls at one time of one session; others wait.
        reset: a tool that is called, without arguments, after an episode, in place of closing its
            session.
        tools: names of the tools to offer; empty offers all.
        prefix: of the names that the model sees, to tell two servers apart.
        hash: of the tools, as ``quintain mcp-tools`` prints it; others are refused.
        seconds: for one call.
        start_seconds: until a new session has listed its tools.
        on_timeout: ``message`` tells the model that the tool is slow, ``failure`` is an
            infrastructure error, ``auto`` asks the server for its tools and is a message if it
            answers.
        characters: of a result that the model sees.
        message_bytes: of one message.
        max_tools: more are refused.
        restarts: failures in a row, without a result between them, after which the server is given
            up.
        fence: for models without a chat template. Results are marked as untrusted data, and names
            that begin a turn get a space, which leaves the arguments of calls again. Without it
            texts stay as they are.
        protocol: ``legacy`` for servers that fail on the newest handshake.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    cwd: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    secret_headers: Mapping[str, str] = field(default_factory=dict)
    session: Literal["shared", "episode"] = "shared"
    pool: int | None = None
    concurrency: int = 32
    reset: str = ""
    tools: tuple[str, ...] = ()
    prefix: str = ""
    hash: str = ""
    seconds: float = 30.0
    start_seconds: float = 60.0
    on_timeout: Literal["auto", "message", "failure"] = "auto"
    characters: int = 20_000
    message_bytes: int = 4_000_000
    max_tools: int = 64
    restarts: int = 5
    fence: bool = False
    protocol: Literal["auto", "legacy"] = "auto"

    @property
    def size(self) -> int:
        """Sessions at one time."""
        return (
            self.pool if self.pool is not None else EPISODE_POOL if self.session == "episode" else 1
        )

    def check(self, name: str) -> None:
        """Refuse what cannot work.

        Raises:
            UsageError: the message begins with the server's *name*.
        """
        where = f"servers.{name}"
        if bool(self.command) == bool(self.url):
            raise UsageError(
                f'{where} expects one of command = ["program", ...] and url = "http://..."'
            )
        if self.url and not self.url.startswith(("http://", "https://")):
            raise UsageError(f"{where}.url is {self.url!r}; expected http:// or https://")
        for wrong, right in (
            (self.env or self.pass_env or self.cwd, self.url),
            (self._all_headers(), self.command),
        ):
            if wrong and right:
                raise UsageError(
                    f"{where}: env, pass_env and cwd are of a command, headers of a url"
                )
        for key, low in (("seconds", 0.0), ("start_seconds", 0.0)):
            if not getattr(self, key) > low:
                raise UsageError(f"{where}.{key} is {getattr(self, key)}; expected more than 0")
        for key, least in (("size", 1), ("concurrency", 1), ("characters", 1), ("message_bytes",
        1000),
                           ("max_tools", 1), ("restarts", 0)):  # fmt: skip
            if getattr(self, key) < least:
                shown = "pool" if key == "size" else key
                raise UsageError(
                    f"{where}.{shown} is {getattr(self, key)}; expected {least} or more"
                )
        if self.reset and self.session == "shared":
            raise UsageError(
                f'{where}.reset is of sessions of one episode; add session = "episode"'
            )
        if self.reset and self.has_folder:
            raise UsageError(
                f"{where}.reset keeps the process, and {PLACE} is a folder of each; leave one out"
            )
        if self.cwd not in ("", PLACE) and not Path(self.cwd).is_dir():
            raise UsageError(f"{where}.cwd: there is no folder {self.cwd!r}")
        if (
            self.command
            and shutil.which(self.command[0], path=self.environment(name).get("PATH")) is None
        ):
            raise UsageError(
                f"{where}.command: there is no program {self.command[0]!r}; install it or write "
                f"its path"
            )
        self.all_headers(name)

    @property
    def has_folder(self) -> bool:
        """Whether a session has a folder."""
        return any(PLACE in text for text in (*self.command, *self.env.values(), self.cwd))

    def placed(self, folder: str) -> McpServer:
        """Return the declaration of a session whose folder is *folder*."""
        return replace(
            self,
            command=tuple(part.replace(PLACE, folder) for part in self.command),
            env={name: value.replace(PLACE, folder) for name, value in self.env.items()},
            cwd=self.cwd.replace(PLACE, folder),
        )

    def _all_headers(self) -> Mapping[str, str]:
        return {**self.headers, **self.secret_headers}

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of the program.

        Raises:
            UsageError: one of *pass_env* is not set.
        """
        return {
            **get_default_environment(),
            **self._taken(self.pass_env, f"servers.{name}.pass_env"),
            **self.env,
        }

    def all_headers(self, name: str) -> dict[str, str]:
        """Return the headers of each request.

        Raises:
            UsageError: a variable of *secret_headers* is not set.
        """
        values = self._taken(self.secret_headers.values(), f"servers.{name}.secret_headers")
        return {
            **self.headers,
            **{header: values[variable] for header, variable in self.secret_headers.items()},
        }

    @staticmethod
    def _taken(names: object, where: str) -> dict[str, str]:
        variables = {}
        for name in names:  # type: ignore[attr-defined]
            if name not in os.environ:
                raise UsageError(f"{where}: the environment variable {name} is not set")
            variables[name] = os.environ[name]
        return variables
