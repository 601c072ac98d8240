"""What the policy does in a container: a shell, and three tools for files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import PurePosixPath

from quintain import Tool, ToolError, as_tool
from quintain_sandbox import CommandResult

from .trial import Trial

READ = 4 << 20
"""Most bytes of a file that the tools read."""
LINES = 400
"""Lines that are read where none are asked for."""
PIXELS = 1 << 24
"""Most pixels of an image that is shown: code of the policy may have made the file."""


class Shell:
    """The tools of one part of an episode, and the time that their commands have taken.

    Args:
        user: of the commands.
        total: seconds of all commands together; ``None`` without a limit.
        each: seconds of one command at most.
        characters: of an answer that the policy reads.
        pictures: whether there is a tool that shows images, which needs ``quintain-vision``.
    """

    def __init__(
        self,
        trial: Trial,
        user: str,
        total: float | None,
        each: float,
        characters: int,
        *,
        pictures: bool = False,
    ) -> None:
        self._trial, self._user, self._each, self._characters = trial, user, each, characters
        self._pictures = pictures
        self._left = total
        self.calls = 0
        """How often the policy used a tool."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All of them, in the order in which the model reads of them."""
        functions: list[Callable[..., Awaitable[str]]]
        functions = [self.shell, self.read_file, self.write_file, self.replace_in_file]
        if self._pictures:
            functions.append(self.view_image)
        return tuple(replace(as_tool(f), characters=self._characters) for f in functions)

    async def shell(self, command: str) -> str:
        """Run a command in bash, in the working directory. Files stay from one command to the next;
        variables and changes of the directory do not. Returns what it prints, and its exit status
        if that is not 0.
        """
        seconds = self._seconds()
        if len(command.encode()) > 100_000:
            raise ToolError("the command is longer than 100,000 bytes; write a file and run that")
        if "\0" in command:
            raise ToolError("the command has a NUL character")
        result = await self._trial.run(
            command, self._user, seconds, output=max(1024, self._characters)
        )
        self._took(result.seconds)
        end = {
            "ok": "",
            "failed": f"[exit status {result.exit}]",
            "timeout": f"[ended after {seconds:g} s]",
        }[result.status]
        return "\n".join(filter(None, (result.text.rstrip("\n"), end))) or "[no output]"

    async def read_file(self, path: str, first: int = 1, lines: int = LINES) -> str:
        """Read a text file: its lines with their numbers, from the line `first` on."""
        text = await self._content(path)
        if first < 1 or lines < 1:
            raise ToolError("first and lines begin at 1")
        rows = text.split("\n")[first - 1 : first - 1 + lines]
        return "\n".join(f"{n}\t{row}" for n, row in enumerate(rows, first)) or "[no such lines]"

    async def write_file(self, path: str, content: str) -> str:
        """Write a text file in place of what was there. Missing folders are made."""
        await self._write(path, content)
        return f"{len(content.encode())} bytes written"

    async def replace_in_file(self, path: str, old: str, new: str) -> str:
        """Replace a text that occurs exactly once in a file."""
        text = await self._content(path)
        if (count := text.count(old) if old else 0) != 1:
            raise ToolError(f"the old text occurs {count} times in {path}; it must occur once")
        await self._write(path, text.replace(old, new))
        return "replaced"

    async def view_image(self, path: str) -> str:
        """Look at an image file: PNG, JPEG or WebP."""
        from quintain_vision import PictureError, PictureLimits, StoreError, tool_picture

        data = await self._data(path, "make a smaller image of it")
        limits = PictureLimits(bytes=READ, pixels=PIXELS)
        try:
            # Other episodes go on while it is decoded.
            return await asyncio.to_thread(tool_picture, data, limits=limits)
        except StoreError:  # ours, and nothing that the policy should read
            raise
        except PictureError as e:
            raise ToolError(f"cannot show {path}: {e}") from e

    async def _content(self, path: str) -> str:
        data = await self._data(path, "read a part of it in the shell")
        return data.decode("utf-8", "replace")

    async def _data(self, path: str, advice: str) -> bytes:
        # `head` reads with the rights of the policy's user, which the engine's own way would not.
        result = await self._command(
            ["sh", "-c", f'[ -f "$0" ] && head -c {READ + 1} -- "$0"', self._place(path)]
        )
        if result.status != "ok":
            raise ToolError(f"cannot read {path}: {result.text.strip()[-300:] or 'no such file'}")
        if len(result.output) > READ:
            raise ToolError(f"{path} has more than {READ} bytes; {advice}")
        return result.output

    async def _write(self, path: str, content: str) -> None:
        script = 'mkdir -p -- "$(dirname -- "$0")" && cat > "$0"'
        result = await self._command(["sh", "-c", script, self._place(path)], content)
        if result.status != "ok":
            raise ToolError(f"cannot write {path}: {result.text.strip()[-300:]}")

    async def _command(self, argv: list[str], stdin: str = "") -> CommandResult:
        result = await self._trial.container.run(
            argv,
            stdin=stdin.encode("utf-8", "replace"),
            seconds=self._seconds(),
            user=self._user,
            output=READ + 2,
        )
        self._took(result.seconds)
        return result

    def _place(self, path: str) -> str:
        if not path or "\0" in path:
            raise ToolError("expected a path")
        return str(PurePosixPath(self._trial.container.workdir, path))

    def _seconds(self) -> float:
        self.calls += 1
        if self._left is None:
            return self._each
        if self._left <= 0:
            raise ToolError("the time for this task is over; answer without a tool call")
        return max(0.1, min(self._each, self._left))

    def _took(self, seconds: float) -> None:
        if self._left is not None:
            self._left -= seconds
