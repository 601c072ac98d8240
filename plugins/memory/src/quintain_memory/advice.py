"""Which keys of a recipe lower the memory of a run, with their values of now."""

from __future__ import annotations

from collections.abc import Iterator

from quintain.models import TOKEN_BUDGET
from quintain.recipe import RunPlan


def loading_advice(plan: RunPlan) -> Iterator[str]:
    """Yield what lowers the memory of the model that is loaded."""
    if plan.model.lora is None:
        yield "train adapters with model.lora={}"
        if plan.algorithm.uses_reference:
            yield (
                f"take an algorithm without a reference model (now {plan.algorithm_label}), such "
                f"as dr_grpo"
            )
    elif plan.model.dtype in ("float32", "float64"):
        yield f"set model.dtype=bfloat16 (now {plan.model.dtype})"


def updating_advice(plan: RunPlan, slots: int) -> Iterator[str]:
    """Yield what lowers the memory of an update, beside an engine with *slots*."""
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
