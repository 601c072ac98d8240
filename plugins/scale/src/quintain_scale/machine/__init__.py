"""The devices of one machine for Quintain: ``[cluster] use = "machine"``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .cluster import Machine as Machine

__getattr__, __dir__ = lazy_names(__name__)
