"""Ray for Quintain: ``[cluster] use = "ray"``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .cluster import Ray as Ray

__getattr__, __dir__ = lazy_names(__name__)
