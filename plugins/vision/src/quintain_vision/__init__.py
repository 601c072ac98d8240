"""Pictures in messages: read, checked, stored once, and referred to in the text of a message.

What models see of them is in `quintain_vision.source`, which needs torch and transformers.
"""

from __future__ import annotations

from .files import PictureError, PictureLimits
from .messages import message, picture, shown, tool_picture

__all__ = ["PictureError", "PictureLimits", "message", "picture", "shown", "tool_picture"]
