"""An OpenAI-compatible endpoint per episode: any agent is trained unchanged."""

from __future__ import annotations

from .endpoint import Endpoint
from .gateway import Gateway

__all__ = ["Endpoint", "Gateway"]
