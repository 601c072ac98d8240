"""Rewards on the form of a reply, to add to the outcome reward."""

from __future__ import annotations

from .format import format_tags

__all__ = ["format_tags"]
