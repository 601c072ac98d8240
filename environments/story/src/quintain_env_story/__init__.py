"""Next-chapter prediction: plans of a chapter, scored by the likelihood of the real one."""

from __future__ import annotations

from quintain_rewards.likelihood import NGram as Scorer

from .environment import Story
from .rewards import plan_nats, plan_overlap, vr_cli, vr_cli_linear
from .tasks import StoryResult, StoryTask, plan_of, writing_prompt

__all__ = [
    "Scorer",
    "Story",
    "StoryResult",
    "StoryTask",
    "plan_nats",
    "plan_of",
    "plan_overlap",
    "vr_cli",
    "vr_cli_linear",
    "writing_prompt",
]
