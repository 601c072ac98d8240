"""Tasks whose answer is in a picture, generated offline."""

from __future__ import annotations

from .bars import Bars
from .counting import Counting
from .seen import PictureEnvironment, PictureTask, right_number

__all__ = ["Bars", "Counting", "PictureEnvironment", "PictureTask", "right_number"]
