"""Environments of Quintain as a taskset of verifiers, whose id is the name of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .taskset import QuintainEnv as QuintainEnv
    from .taskset import QuintainTaskset as QuintainTaskset

__getattr__, __dir__ = lazy_names(__name__)
