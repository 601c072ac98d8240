"""Environments of Quintain in TRL."""

from __future__ import annotations

from .hosted import InTRL

__all__ = ["InTRL"]
