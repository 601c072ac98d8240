"""What a run asks of installed planners, and what it does without one."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")
import torch

from quintain.errors import RunError, UsageError
from quintain.models.load import cache_bytes
from quintain.recipe.extends import bundled_text
from quintain.recipe.plan import RunPlan
from quintain.recipe.planners import Phase, check_plan, memory_advice, slots_of
from quintain.recipe.tables import Recipe
from quintain.registry.lookup import isolated

from ..models.tiny import tiny_model

CPU = torch.device("cpu")


class Room:
    """A planner that has *room* bytes for keys and values, or refuses every run without it."""

    def __init__(self, room: int | None, *, refuses: str = "") -> None:
        self.room, self.refuses = room, refuses

    def check(self, plan: RunPlan, module: Any, device: torch.device) -> list[str]:
        if self.refuses:
            raise UsageError(self.refuses)
        return [f"room of {self.room} bytes on {device}"]

    def cache_room(self, plan: RunPlan, module: Any) -> int | None:
        return self.room

    def advice(self, phase: Phase, plan: RunPlan, slots: int) -> list[str]:
        return [f"take less while {phase} with {slots} slots"]


def plan_of(*changes: str) -> RunPlan:
    return RunPlan.of(Recipe.parse(bundled_text("pretrained"), [*changes]))


def test_every_installed_planner_is_asked_and_the_least_room_counts() -> None:
    """A planner that plans for a CPU has no room to tell."""
    plan, module = plan_of(), tiny_model("qwen3")
    with_slots = plan_of("engine.args.slots=3")
    row = cache_bytes(module, plan.sequence_tokens, plan.engine_dtype)

    with isolated(keep=["quintain"]) as registry:
        for name, room in {"a": 40 * row, "b": 20 * row, "c": None}.items():
            registry.add("planner", name, Room(room))
        assert slots_of(plan, module) == 20
        assert check_plan(plan, module, CPU) == [
            f"room of {room} bytes on cpu" for room in (40 * row, 20 * row, None)
        ]
        assert slots_of(with_slots, module) == 3


def test_a_planner_may_refuse_a_run() -> None:
    plan, module = plan_of(), tiny_model("qwen3")
    with isolated(keep=["quintain"]) as registry:
        registry.add("planner", "a", Room(None, refuses="too large"))
        with pytest.raises(UsageError, match="too large"):
            check_plan(plan, module, CPU)


def test_without_a_planner_slots_are_those_of_a_cpu_and_a_dry_run_names_what_to_install() -> None:
    plan, module = plan_of(), tiny_model("qwen3")
    on_cpu = plan.engine.slots_for(
        module, samples=128, tokens=2 * 1024 + 512, dtype="bfloat16", room=None
    )

    with isolated(keep=["quintain"]):
        assert slots_of(plan, module) == on_cpu
        said = check_plan(plan, module, CPU)
    assert said == ["memory and disk are not planned: pip install quintain-memory"]


@pytest.mark.parametrize(
    ("installed", "fixes"),
    [
        (["a"], "take less while updating with 7 slots; or take a smaller model"),
        ([], "take a smaller model"),
    ],
)
def test_an_error_of_memory_has_the_advice_of_the_planners(
    installed: list[str], fixes: str
) -> None:
    plan = plan_of()
    with isolated(keep=["quintain"]) as registry:
        for name in installed:
            registry.add("planner", name, Room(None))
        with pytest.raises(RunError) as caught, memory_advice("updating", plan, 7):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    said = f"the GPU is out of memory while updating: {fixes} (CUDA out of memory)"
    assert str(caught.value) == said
