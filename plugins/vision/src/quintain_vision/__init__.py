"""Pictures in messages: read, checked, stored once, and referred to in the text of a message.

What models see of them is in `quintain_vision.source`, which needs torch and transformers.
"""

from __future__ import annotations

from .files import PictureError, PictureLimits, StoreError, of_row
from .messages import content_json, message, parts, picture, shown, thumbnails, tool_picture
from .store import get as stored

__all__ = [
    "PictureError",
    "PictureLimits",
    "StoreError",
    "content_json",
    "message",
    "of_row",
    "parts",
    "picture",
    "shown",
    "stored",
    "thumbnails",
    "tool_picture",
]
