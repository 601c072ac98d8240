"""Plans the memory of a run by part, and the slots of the engine on a GPU."""

from __future__ import annotations

from .estimate import MemoryPlan, activations, logits_bytes, memory_of
from .planner import MEMORY, MemoryPlanner, free_beside, room_of

__all__ = [
    "MEMORY",
    "MemoryPlan",
    "MemoryPlanner",
    "activations",
    "free_beside",
    "logits_bytes",
    "memory_of",
    "room_of",
]
