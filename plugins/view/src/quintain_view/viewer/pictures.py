"""Pictures in messages as people see them: a label in the text, and small ones below it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from quintain import Message
from quintain.models import PICTURE

MOST = 2000
"""Pictures of a page; further ones are labels."""
_LABEL = re.compile(f"{PICTURE}image ([0-9]+x[0-9]+) ([0-9a-f]{{12}})[0-9a-f]{{20}}{PICTURE}")


def labelled(text: str) -> str:
    """Return *text* with ``[image 64x48]`` for each picture."""
    return _LABEL.sub(r"[image \1]", text) if PICTURE in text else text


def seen(message: dict[str, Any]) -> dict[str, Any]:
    """Return a stored *message* with labels in its content, and under ``pictures`` the small ones:
    ``data:`` URLs, in their order. Others that are stored there are left out: a page fetches nothing.
    """
    content = message.get("content") or ""
    if given := message.get("pictures"):
        urls = given if isinstance(given, list) else ()
        message = message | {"pictures": [url for url in urls if str(url).startswith("data:")]}
    if PICTURE not in content:
        return message
    pictures = _small(message["role"], content) if find_spec("quintain_vision") else ()
    return message | {"content": labelled(content), "pictures": list(pictures)}


@lru_cache(maxsize=1024)
def _small(role: Any, content: str) -> tuple[str, ...]:
    from quintain_vision import thumbnails

    return tuple(thumbnails(Message(role, content)).values())


def shared(messages: Iterable[dict[str, Any]]) -> list[str]:
    """Return the small pictures of all *messages*, each once; they get its number in its place, as
    groups have the same prompt.
    """
    numbers: dict[str, int] = {}
    for message in messages:
        if not message.get("pictures"):
            continue
        message["pictures"] = [
            numbers.setdefault(url, len(numbers))
            for url in message["pictures"]
            if url in numbers or len(numbers) < MOST
        ]
    return [*numbers]
