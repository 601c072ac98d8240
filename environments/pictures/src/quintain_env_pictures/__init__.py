"""Tasks whose answer is in a picture, generated offline."""

from __future__ import annotations

from .bars import Bars
from .counting import Counting
from .seen import PictureTask, PictureEnvironment, right_number

__all__ = ["Bars", "Counting", "PictureTask", "PictureEnvironment", "right_number"]
