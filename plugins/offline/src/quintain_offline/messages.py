"""A message as a line of a data file has it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

__all__ = ["WrittenMessage"]


class WrittenMessage(BaseModel):
    """A message of a conversation in a file of JSON lines."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
