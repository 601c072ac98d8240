"""What to change where a GPU is out of memory while it loads or updates; the engine says it of
sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from ..errors import RunError
from ..models.forward import TOKEN_BUDGET
from ..recipe.plan import RunPlan


@contextmanager
def memory_advice(
    phase: Literal["loading", "updating"], plan: RunPlan, slots: int = 0
) -> Iterator[None]:
    """Say in a `RunError` which keys lower the memory of *phase*, with their values; *slots* are
    the engine's.

    The engine says it of sampling.
    """
    try:
        yield
    except torch.OutOfMemoryError as e:
        advice = "; ".join(
            _loading_advice(plan) if phase == "loading" else _updating_advice(plan, slots)
        )
        reason = str(e).partition(". ")[0]
        raise RunError(
            f"the GPU is out of memory while {phase}: {advice}; or take a smaller model ({reason})"
        ) from e


def _loading_advice(plan: RunPlan) -> Iterator[str]:
    if plan.model.lora is None:
        yield "train adapters with model.lora={}"
        if plan.algorithm.uses_reference:
            yield (
                f"take an algorithm without a reference model (now {plan.algorithm_label}), such "
                f"as dr_grpo"
            )
    elif plan.model.dtype in ("float32", "float64"):
        yield f"set model.dtype=bfloat16 (now {plan.model.dtype})"


def _updating_advice(plan: RunPlan, slots: int) -> Iterator[str]:
    yield f"lower learner.token_budget (now {plan.learner.token_budget or TOKEN_BUDGET})"
    if not plan.learner.checkpoint_activations:
        yield "set learner.checkpoint_activations=true"
    if plan.learner.precision == "float32":
        yield "set learner.precision=bf16 (now float32)"
    yield f"lower sampling.max_tokens (now {plan.max_tokens})"
    if slots:
        yield f"lower engine.args.slots (now {slots}), whose KV cache stays"
    if plan.model.lora is None:
        yield "train adapters with model.lora={}"
