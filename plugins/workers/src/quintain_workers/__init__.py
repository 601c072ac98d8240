"""Killable worker processes for Quintain: the service `workers`, for code that may hang or
crash.
"""

from __future__ import annotations

from .pool import WorkerPool

__all__ = ["WorkerPool"]
