"""Part 6: the shape of Qwen3-8B with random weights on one card: does it fit, and how long is a
step?

Adapters of rank 16 on all linear layers, on a base in bfloat16 and in 8 bits that the engine reads,
too, and all weights by the learner `lean` with moments in 8 bits. Sampling and updates as in part 5.
"""

from __future__ import annotations

from typing import Any

from .memory import CHECKPOINTED, LEAN, LORA, step_by_part
from .part import Part, start

ADAPTERS = [CHECKPOINTED, LORA, LEAN, "learner.args.optimizer=adamw"]
MODES = {
    "LoRA on a bfloat16 base": ADAPTERS,
    "LoRA on an int8 base": [*ADAPTERS, "learner.args.base=int8", "engine.args.merge=false"],
    "all weights, lean": [CHECKPOINTED, LEAN],
}
"""Settings of a recipe by the name of the mode."""


def run(part: Part) -> None:
    size, shape = "8B", {"groups": 4, "group_size": 8, "new": 256, "budget": 4096}
    if part.rehearse:
        size, shape = "0.1M", {"groups": 1, "group_size": 2, "new": 4, "budget": 600}
    for mode, settings in MODES.items():
        part.measure(
            f"{size} {mode}, {shape['groups']} x {shape['group_size']} samples",
            lambda s=settings: fits(part, size, settings=s, **shape),
            expected=60,
        )


def fits(part: Part, size: str, **shape: Any) -> dict[str, Any]:
    """Return the figures of `step_by_part` with seconds of a step; running out of memory is
    recorded by the part.
    """
    figures = step_by_part(part.device, size, **shape)
    seconds = sum(figures[f"{phase}_seconds"] for phase in ("sampling", "update", "sync"))
    return {"fits": True, "step_seconds_median": seconds, **figures}


if __name__ == "__main__":
    start(run, __doc__, "6-lora")
