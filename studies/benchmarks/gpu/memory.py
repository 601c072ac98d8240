"""Part 5: peak memory of a step by part, against the estimate that ``--dry-run`` prints, at the
shape of Qwen3-0.6B with random weights: all weights, checkpointed, adapters, and the learner
`lean`.

Every slot of the engine is filled with sequences as long as the estimate assumes; the update has
micro-batches as large as its budget. On a CPU figures are of the resident set, which has more than
tensors.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from quintain.console.screen import Screen
from quintain.engine.embedded import EmbeddedEngine
from quintain.models.load import DTYPES, LoadedModel, load_model
from quintain.models.lora import with_adapters
from quintain.recipe import Recipe
from quintain.recipe.memory import memory_of
from quintain.recipe.plan import RunPlan
from quintain.recipe.room import free_beside
from quintain.run.build import engine_for, learner_for

from ..memory import mark, peak
from ..quintain_step import RECIPE
from ..shapes import config_of, folder
from . import card
from .part import Part, start
from .work import batch_of, module_of, prompts_of, sample, sequence

AIM = 0.1
CHECKPOINTED = "learner.checkpoint_activations=true"
LORA = "model.lora={ r = 16, lora_alpha = 32 }"
LEAN = "learner.use=lean"
MODES = {
    "all weights": [],
    "all weights, checkpointed": [CHECKPOINTED],
    "LoRA, checkpointed": [CHECKPOINTED, LORA],
    "lean, 8-bit moments, checkpointed": [CHECKPOINTED, LEAN],
    "lean, AdamW on the host, checkpointed": [
        CHECKPOINTED,
        LEAN,
        "learner.args.optimizer=adamw_host",
    ],
}
"""Settings of a recipe by the name of the mode."""


def plan_of(
    device: torch.device,
    *,
    groups: int,
    group_size: int,
    new: int,
    budget: int,
    settings: Sequence[str] = (),
) -> RunPlan:
    """Return the plan of a run in bf16, as `--model` starts it, with further *settings*."""
    text = RECIPE.format(
        model=folder("0.1M"),
        dtype="bfloat16",
        device=device,
        engine_args="",
        high=new,
        groups=groups,
        group_size=group_size,
        lr=1e-6,
        precision="bf16",
        learner_extra=f"token_budget = {budget}",
    )
    # random weights may round worse than trained ones, and nothing here is about their numbers
    text = text.replace("[run]\n", '[run]\nmax_sample_mismatch = "none"\n')
    return RunPlan.of(Recipe.parse(text, settings))


def on_paper(size: str, plan: RunPlan) -> Any:
    """Return the module of *size* without weights, with adapters where *plan* has them."""
    from transformers import Qwen3ForCausalLM

    with torch.device("meta"):
        module = Qwen3ForCausalLM(config_of(size))
        return with_adapters(module, plan.model.lora) if plan.model.lora else module


class Usage:
    """Bytes in use at moments of a run, and the peak and seconds of its phases.

    Attributes:
        used: bytes by moment; the first that a moment's name was noted.
        above: by phase, the peak of its last time above what lay there before it.
        highest: peak of all.
        times: seconds of each phase, each time.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.used: dict[str, int] = {}
        self.above: dict[str, int] = {}
        self.times: dict[str, list[float]] = {}
        self.highest = self.note("before")

    def note(self, moment: str) -> int:
        """Note and return the bytes in use."""
        now = mark(self.device.type)
        self.used.setdefault(moment, now)
        return now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what is inside."""
        before, began = mark(self.device.type), time.perf_counter()
        yield
        card.synchronize(self.device)
        self.times.setdefault(name, []).append(time.perf_counter() - began)
        top = peak(self.device.type)
        self.above[name], self.highest = top - before, max(top, self.highest)

    def added(self, moment: str, earlier: str) -> int:
        """Return how many bytes more than at *earlier* there were at *moment*."""
        return self.used[moment] - self.used[earlier]


def loaded(device: torch.device, size: str, plan: RunPlan) -> LoadedModel:
    """Return a model of *size* with random weights as `load_model` is asked to load it by *plan*."""
    dtype = DTYPES[plan.model_request(Screen(quiet=True)).dtype]
    module = module_of(size, device, dtype, fused=not plan.model.lora)
    if plan.model.lora:
        module = with_adapters(module, plan.model.lora)
    tokenizer = load_model(folder("0.1M"), device="cpu").tokenizer
    return LoadedModel(module=module, tokenizer=tokenizer, path=size, context=40_960, fused=False)


def step_by_part(
    device: torch.device, size: str, *, steps: int = 2, **shape: Any
) -> dict[str, Any]:
    """Load, sample and update as a run does; bytes that each part added, beside its estimate.

    The update counts from its second step on, when the moments exist: *activations* are its peak
    above what lay there before it.
    """
    plan, usage = plan_of(device, **shape), Usage(device)
    model = loaded(device, size, plan)
    usage.note("weights")
    free = free_beside(model.module) if device.type == "cuda" else None
    estimate = memory_of(plan, on_paper(size, plan), free=free)
    learner, engine = learner_for(plan, model), cast(EmbeddedEngine, engine_for(plan, model))
    usage.note("copy")
    tokens = plan.rollouts.sequence_tokens
    prompts = prompts_of(model.module, [tokens - plan.rollouts.max_tokens] * plan.rollouts.groups)
    prompts = [p for p in prompts for _ in range(plan.rollouts.group_size)]
    for _ in range(steps):
        with usage.phase("sampling"):
            replies = sample(engine, prompts, plan.rollouts.max_tokens)
        usage.note("cache")
        pairs = zip(prompts, replies, strict=True)
        batch = batch_of([sequence(p, r) for p, r in pairs], plan.rollouts.group_size)
        with usage.phase("update"):
            learner.step(batch)
        usage.note("state")
        with usage.phase("sync"):
            asyncio.run(engine.update(learner.weights()))
    state = estimate.gradients + estimate.moments
    parts = {
        "weights": (usage.added("weights", "before"), estimate.weights),
        "engine copy": (usage.added("copy", "weights"), estimate.copy),
        "KV cache": (usage.added("cache", "copy"), estimate.cache),
        "gradients and moments": (usage.added("state", "cache"), state),
        "activations": (usage.above["update"], estimate.activations),
    }
    total = usage.highest - usage.used["before"]
    seconds = {f"{name}_seconds": statistics.median(t[1:] or t) for name, t in usage.times.items()}
    return {
        "parameters": estimate.parameters,
        "slots": engine.slots,
        "estimated_slots": estimate.slots,
        "samples": estimate.samples,
        "tokens_of_a_sequence": tokens,
        "bytes": {name: {"measured": m, "estimated": e} for name, (m, e) in parts.items()},
        "peak": total,
        "estimated": estimate.total,
        "over_estimate": total / estimate.total,
        "reserved": card.peak(device).get("reserved"),
        **seconds,
        "sampled_tokens": len(prompts) * plan.rollouts.max_tokens,
        "trained_tokens": len(prompts) * tokens,
        "aim": AIM,
    }


def run(part: Part) -> None:
    if part.rehearse:
        size, shape = "0.1M", {"groups": 1, "group_size": 2, "new": 4, "budget": 600}
    else:
        size, shape = "0.6B", {"groups": 16, "group_size": 8, "new": 256, "budget": 4096}
    for mode, settings in MODES.items():
        part.measure(
            f"{size} {mode}",
            lambda s=settings: step_by_part(part.device, size, settings=s, **shape),
            expected=45,
        )


if __name__ == "__main__":
    start(run, __doc__, "5-memory")
