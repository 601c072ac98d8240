"""Pictures that other libraries hand over, as references in messages (`quintain_vision`)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintain import Message
from quintain.errors import EnvironmentFault, InfrastructureError, UsageError
from quintain.models import PICTURE
from quintain.types import Role


def plain(text: str) -> str:
    """Return *text* of another side without the marks of pictures: it may repeat what the policy
    wrote.
    """
    return text.replace(PICTURE, "\ufffd")


def reference_of(value: Any, where: str) -> str:
    """Return what stands for a picture in a message of the user.

    Args:
        value: a ``data:`` URL, the base64 of a file, or rows of pixels, each with red, green and
            blue from 0 to 255.
        where: names it in errors.

    Raises:
        UsageError: ``quintain-vision`` is missing.
        InfrastructureError: it is no picture, or one that is refused.
    """
    try:
        from PIL import Image

        from quintain_vision import PictureError, picture
    except ModuleNotFoundError as e:
        raise UsageError(f"{where} is a picture: pip install 'quintain-bridges[pictures]'") from e
    try:
        if isinstance(value, str):
            return picture(value if value.startswith("data:") else f"data:image/any;base64,{value}")
        pixels = bytes(channel for row in value for pixel in row for channel in pixel)
        file = io.BytesIO()
        Image.frombytes("RGB", (len(value[0]), len(value)), pixels).save(file, "PNG")
        return picture(file.getvalue())
    except (PictureError, TypeError, ValueError, IndexError) as e:
        raise InfrastructureError(f"{where} is no picture: {e}") from e


def message_of(role: Role, content: str | Sequence[Mapping[str, str]]) -> Message:
    """Return a message of another side.

    Args:
        content: its text, or parts: a ``text``, a picture that is the path of a ``file`` which the
            author of the task named, or one that is a ``data`` URL.

    Raises:
        UsageError: a file is refused, or ``quintain-vision`` is missing.
        EnvironmentFault: a ``data`` URL is refused. It may be made of what the policy wrote.
    """
    if isinstance(content, str):
        return Message(role, plain(content))
    try:
        from quintain_vision import PictureError, StoreError, message
    except ModuleNotFoundError as e:
        raise UsageError(
            "a message of the task has a picture: pip install 'quintain-bridges[pictures]'"
        ) from e
    forms = [_part(piece) for piece in content]
    try:
        return message(role, forms)
    except StoreError:
        raise
    except PictureError as e:
        if any("data" in piece for piece in content):
            raise EnvironmentFault(f"a picture of the task is refused: {e}") from e
        raise


def _part(piece: Mapping[str, str]) -> Mapping[str, Any]:
    if "text" in piece:
        return {"type": "text", "text": plain(piece["text"])}
    if "file" in piece:
        return {"type": "image", "path": Path(piece["file"])}
    return {"type": "image", "url": piece["data"]}
