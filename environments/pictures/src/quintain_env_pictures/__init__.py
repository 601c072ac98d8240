"""Tasks whose answer is in a picture, generated offline."""

from __future__ import annotations

from .bars import Bars
from .clicking import Clicking, TargetTask, on_target
from .counting import Counting
from .geometry import Geometry
from .picture_maze import MapTask, PictureMaze, goal_reached
from .seen import (
    COLOURS,
    PictureEnvironment,
    PictureTask,
    digest_of,
    empty,
    right_number,
    split_of,
)
from .shapes import CELLS, SHAPES, draw_shape

__all__ = [
    "CELLS",
    "COLOURS",
    "SHAPES",
    "Bars",
    "Clicking",
    "Counting",
    "Geometry",
    "MapTask",
    "PictureEnvironment",
    "PictureMaze",
    "PictureTask",
    "TargetTask",
    "digest_of",
    "draw_shape",
    "empty",
    "goal_reached",
    "on_target",
    "right_number",
    "split_of",
]
