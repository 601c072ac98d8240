"""Part 6: adapters at the shape of Qwen3-8B with random weights: does it fit, and how long is a
step?

Sampling from a bfloat16 copy and an update in bf16, as in part 5; adapters of rank 16 on all linear
layers.
"""

from __future__ import annotations

from typing import Any

from .memory import step_by_part
from .part import Part, start


def run(part: Part) -> None:
    lora = {"checkpointing": True, "lora": True}
    if part.rehearse:
        shapes: dict[str, dict[str, Any]] = {
            "0.1M": {"groups": 1, "group_size": 2, "new": 4, "budget": 600}
        }
    else:
        small = {"groups": 4, "group_size": 8, "new": 256, "budget": 4096}
        shapes = {"8B": small, "1.7B": small}
    for size, shape in shapes.items():
        part.measure(
            f"{size} LoRA, {shape['groups']} x {shape['group_size']} samples",
            lambda s=size, kw=shape: fits(part, s, {**kw, **lora}),
            expected=90,
        )


def fits(part: Part, size: str, shape: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of `step_by_part` with seconds of a step; running out of memory is
    recorded by the part.
    """
    figures = step_by_part(part.device, size, steps=2, **shape)
    seconds = sum(figures[f"{phase}_seconds"] for phase in ("sampling", "update", "sync"))
    return {"fits": True, "step_seconds_median": seconds, **figures}


if __name__ == "__main__":
    start(run, __doc__, "6-lora")
