"""Sampling settings of a turn, the thinking budget, and derived seeds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from ..errors import UsageError


def derived_seed(*parts: object) -> int:
    """Return a 63-bit seed: a hash of *parts*, the same in every process."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def decoding(temperature: float) -> str:
    """Name a way of decoding, for an accuracy: ``greedy`` or ``sampled at T 0.7``."""
    return f"sampled at T {temperature:g}" if temperature else "greedy"


@dataclass(frozen=True, kw_only=True)
class ThinkingBudget:
    """A turn that still thinks after its budget of tokens gets *text* appended and continues.

    The budget is drawn per turn, uniformly from *min_tokens* to *max_tokens* (ScaleRL, 2510.13786:
    10,000 to 12,000); equal bounds fix it (Qwen3, 2505.09388, section 4.3). The inserted tokens are
    context and are not trained on.

    Attributes:
        min_tokens, max_tokens: new tokens of the turn before the interruption, both bounds
            included.
        text: the inserted text.
        until: a turn that contains this text is not interrupted; empty interrupts every turn of
            that length.
    """

    min_tokens: int
    max_tokens: int
    text: str = "\n\nOkay, time is up. Let me stop thinking and give the answer now.\n</think>\n\n"
    until: str = "</think>"

    def __post_init__(self) -> None:
        if not 1 <= self.min_tokens <= self.max_tokens:
            bounds = f"min_tokens {self.min_tokens}, max_tokens {self.max_tokens}"
            raise UsageError(f"thinking_budget: {bounds}; expected 1 <= min_tokens <= max_tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How to sample one turn. Temperature 0 is greedy.

    Attributes:
        temperature: divides the logits; part of the policy, so also of the recorded log-probs.
        top_p, top_k, min_p: truncation; 1, 0 and 0 switch it off. Refused for training, because the
            learner computes log-probs of the untruncated policy.
        prune: excludes tokens below this share of the most likely token's probability, like
            *min_p*, but as a part of the policy: recorded log-probs are those of the renormalised
            distribution, and the learner excludes the same tokens (dynamic vocabulary pruning; set
            by the algorithm).
        max_tokens: maximum of new tokens; ``None`` is what the context leaves.
        stop: strings that end the turn; the tokens up to and including the one that completes the
            string are kept.
        stop_ids: token ids that end the turn, besides the tokenizer's own; the id is kept as the
            last token.
        seed: of this turn; ``None`` draws one. The same seed and logits give the same tokens in any
            batch.
        thinking_budget: of the policy's turns; applied by the chat layer, ignored by engines.
        response_format, tool_choice: of OpenAI's chat API as JSON, empty for none. Engines that
            return text alone pass them to their server, which may force the reply. Engines of exact
            tokens leave them out: a forced token is not the policy's, so that its log-prob would
            not be that of what trains.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    prune: float = 0.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    seed: int | None = None
    thinking_budget: ThinkingBudget | None = None
    response_format: str = ""
    tool_choice: str = ""

    def __post_init__(self) -> None:
        ranges = {
            "temperature": (0, 100),
            "top_p": (0, 1),
            "top_k": (0, 2**31),
            "min_p": (0, 1),
            "prune": (0, 1),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"sampling.{name} is {value}; expected {low} to {high}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"sampling.max_tokens is {self.max_tokens}; expected at least 1")

    @property
    def truncates(self) -> bool:
        """Whether the sampled distribution is not the model's own at this temperature."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    def replace(self, **changes: Any) -> Sampling:
        return replace(self, **changes)
