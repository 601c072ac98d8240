"""Pictures that other libraries hand over, as references in messages (`quintain_vision`)."""

from __future__ import annotations

import io
from typing import Any

from quintain.errors import InfrastructureError, UsageError
from quintain.models import PICTURE


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
