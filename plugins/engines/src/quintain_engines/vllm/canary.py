"""The check after every weight update: engine and learner score one fixed sequence, and must
agree.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

TOKENS = 48
TOLERANCE = {"float32": 1e-3, "float64": 1e-3}
HALF_TOLERANCE = 0.25
"""Largest difference of one log-prob in nats, where the learner itself is in half precision, so
that rounding cannot be told apart.
"""
ROUNDING = 6.0
"""Largest difference of one log-prob, in the largest that rounding makes in the learner: at most
3.2 in 144 random models (docs/vllm.md).
"""
DRAWS = 8
"""Tokens that are drawn after the canary at another temperature than 1."""
SAMPLES, DEVIATIONS = 128, 6.0
"""Tokens that are drawn when the engine starts, and the standard errors by which their mean
log-prob may differ from its expectation.
"""


def tolerance_of(
    module: Any, ids: Sequence[int], log_probs: Tensor, dtype: str, *, start: int = 1
) -> float:
    """Return the largest difference of one log-prob that rounding explains, in nats.

    In half precision, the tokens of *ids* are scored once more with the products of *module* in
    this precision: what changes is rounding.

    Args:
        log_probs: of `forward_log_probs`.
        start: the first of *ids* that is scored.
    """
    if dtype in TOLERANCE:
        return TOLERANCE[dtype]
    first = next(module.parameters())
    if first.dtype not in (torch.float32, torch.float64):
        return HALF_TOLERANCE
    with torch.autocast(_place_of(module).type, getattr(torch, dtype)):
        rounded = forward_log_probs(module, ids)
    places = range(start - 1, len(ids) - 1), list(ids[start:])
    # Ranks that gather layers in half precision compute in it always.
    return ROUNDING * float((rounded - log_probs)[places].abs().max()) or HALF_TOLERANCE


def sampling_error(logps: Sequence[float], expected: Tensor) -> float:
    """Return by how many standard errors the mean of *logps*, of tokens drawn from one
    distribution, differs from its expectation.

    Args:
        expected: log-probs of the distribution, [vocabulary].
    """
    wide = expected.double()
    mean = (wide.exp() * wide).nan_to_num().sum()
    variance = (wide.exp() * (wide - mean).square()).nan_to_num().sum()
    error = (variance / len(logps)).sqrt().clamp_min(1e-3)
    return float((sum(logps) / len(logps) - mean) / error)


@contextmanager
def other_adapters(module: Any) -> Iterator[None]:
    """Give the adapters of *module* weights that change the policy, in the block; afterwards they
    have their own again, bit for bit. Random numbers of the process are left alone.
    """
    factors = [p for name, p in module.named_parameters() if ".lora_B" in name]
    before = [p.detach().clone() for p in factors]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in factors:
            p.copy_(torch.empty(p.shape).normal_(0, 0.1, generator=generator))
    try:
        yield
    finally:
        with torch.no_grad():
            for p, value in zip(factors, before, strict=True):
                p.copy_(value)


def canary_ids(vocabulary: int, context: int, version: int | None = None) -> tuple[int, ...]:
    """Return the fixed sequence for a model: random tokens, the same in every process; with a
    *version*, one of its own.
    """
    rng = Random("quintain canary" if version is None else f"quintain canary of version {version}")
    return tuple(rng.randrange(vocabulary) for _ in range(min(TOKENS, context - 1)))


class Reference:
    """The learner's own forward over published weights.

    Args:
        module: the learner's, for its class and config.
    """

    def __init__(self, module: nn.Module | None, folder: str) -> None:
        self._like, self._folder = module, folder
        self._copy: Any = None

    def module(self, weights: Any) -> Any:
        """Return a module with *weights*: the learner's live one, or a copy of its shape that is
        loaded with them.
        """
        if isinstance(module := getattr(weights, "module", None), nn.Module):
            return module
        if self._copy is None:
            self._copy = self._blank()
        tensors = weights.tensors()
        parameters = dict(self._copy.named_parameters())
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[name])
        return self._copy

    def _blank(self) -> Any:
        if self._like is not None:
            base: Any = base_of(self._like)
            return type(base)(copy.deepcopy(base.config)).eval()
        from transformers import AutoConfig, AutoModelForCausalLM

        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(self._folder)).eval()


def base_of(module: Any) -> Any:
    """Return the transformers module of *module*, which peft may wrap."""
    return module.get_base_model() if hasattr(module, "get_base_model") else module


def unties_embeddings(module: Any) -> bool:
    """Return whether the output layer has weights of its own, so that log-probs tell of the input
    embeddings of the tokens of a sequence alone.
    """
    head = module.get_output_embeddings()
    return head is not None and head.weight is not module.get_input_embeddings().weight


@torch.no_grad()
def forward_log_probs(module: Any, ids: Sequence[int]) -> Tensor:
    """Return the log-probs of every token after each prefix of *ids* by a plain forward, [token,
    vocabulary].
    """
    ids_1T = torch.tensor([list(ids)], device=_place_of(module))
    logits: Tensor = module(input_ids=ids_1T).logits[0]
    return logits.float().log_softmax(-1).cpu()


def _place_of(module: Any) -> torch.device:
    """Return where *module* takes tokens: on the host, if other processes have its weights."""
    device: torch.device = next(module.parameters()).device
    return torch.device("cpu") if device.type == "meta" else device


def layer_outputs(module: Any, ids: Sequence[int]) -> dict[str, Tensor]:
    """Return the first output of every layer that a plain forward of *ids* calls, [token, ...], in
    the order of their ends.
    """
    outputs: dict[str, Tensor] = {}

    def recorder(name: str) -> Any:
        def record(_layer: Any, _inputs: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            if isinstance(value, Tensor) and name not in outputs:
                outputs[name] = value.detach().float().cpu().squeeze(0)

        return record

    base = base_of(module)
    hooks = [
        layer.register_forward_hook(recorder(name)) for name, layer in base.named_modules() if name
    ]
    try:
        forward_log_probs(module, ids)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def first_difference(
    learner: Mapping[str, Tensor],
    engine: Mapping[str, Tensor],
    classes: Mapping[str, str],
    tolerance: float,
) -> str:
    """Name and class of the first layer of the engine whose output differs from the learner's.

    Layers are compared in the order in which their computation ends, so that the innermost comes
    first. If all agree, the output layer is left: vLLM computes it without calling it.

    Args:
        tolerance: relative to the largest number of the learner's output.
    """
    compared = 0
    for name, got in engine.items():
        head, _, last = name.rpartition(".")
        parts = [f"{head}.{part}" for part in FUSED.get(last, (last,))] if head else [name]
        if not all(part in learner for part in parts):
            continue
        expected = torch.cat([learner[part].flatten(1) for part in parts], dim=-1)
        tokens = min(len(got), len(expected))  # scoring does not send the last one
        rows, expected = got.flatten(1)[:tokens], expected[:tokens]
        if rows.shape != expected.shape:
            continue
        compared += 1
        if float((rows - expected).abs().max()) > tolerance * max(1.0, float(expected.abs().max())):
            return f"{name} ({classes[name]})"
    return "lm_head (ParallelLMHead)" if compared else ""
