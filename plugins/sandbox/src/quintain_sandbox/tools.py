"""A session's interpreter as a tool of the policy."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from quintain import Tool, as_tool

from .session import SandboxSession

ENDED = {
    "timeout": "took too long, and the interpreter was started again: all names are lost, files stay",
    "memory": (
        "needed too much memory, and the interpreter was started again: all names are lost, files "
        "stay"
    ),
    "exit": "the interpreter ended and was started again: all names are lost, files stay",
    "closed": "the sandbox of this episode has reached its limits; no more code can run",
}


def python_tool(
    session: SandboxSession, *, seconds: float | None = None, characters: int = 10_000
) -> Tool:
    """Return the tool ``python``: executes code in the interpreter of *session*, which keeps its
    names until the session ends.

    The model reads what the code printed, the value of a last expression, and the traceback of an
    exception. A time limit, an exit and the limit on memory are text, too: they are the policy's,
    and end neither the episode nor the session. Calls of one turn run one after the other.

    Args:
        seconds: of one call; ``None`` leaves the rest of the session's.
        characters: of an answer that the model reads.

    Raises:
        InfrastructureError: (a call) the sandbox failed.
    """
    interpreter, one_at_a_time = session.python(), asyncio.Lock()

    async def python(code: str) -> str:
        """Run Python code in an interpreter that keeps its state between calls. Returns what the
        code prints, and the value of a last expression.
        """
        async with one_at_a_time:  # names are shared, and a session serves one request at a time
            outcome = await interpreter.execute(code, seconds)
        parts = [
            outcome.stdout.rstrip("\n"),
            "[output cut]" if outcome.truncated else "",
            outcome.error.rstrip("\n"),
        ]
        parts.append(ENDED.get(outcome.status, ""))
        return "\n".join(filter(None, parts)) or "[no output]"

    return replace(as_tool(python), characters=characters)
