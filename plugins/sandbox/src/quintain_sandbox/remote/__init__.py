"""Sandboxes of other machines, which the library harbor makes."""

from __future__ import annotations

from .provider import RemoteSandbox

__all__ = ["RemoteSandbox"]
