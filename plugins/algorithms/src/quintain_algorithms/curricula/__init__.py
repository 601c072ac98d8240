"""A curriculum for Quintain that adapts: tasks by level or by failures, solved tasks dropped, a
difficulty filter.
"""

from __future__ import annotations

from .adaptive import AdaptiveCurriculum

__all__ = ["AdaptiveCurriculum"]
