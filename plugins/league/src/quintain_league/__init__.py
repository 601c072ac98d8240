"""Self-play: earlier selves of the policy as opponents, and a conformance suite for several players."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .service import League

if TYPE_CHECKING:
    from .suite import SeatedControls, SelfPlaySuite

__all__ = ["League", "SeatedControls", "SelfPlaySuite"]


def __getattr__(name: str) -> Any:
    if name not in ("SeatedControls", "SelfPlaySuite"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import suite  # it needs pytest

    return getattr(suite, name)
