"""Log-probs under an engine: a reward on how likely the policy found its own tokens, and a service for rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic import NegativeFloat

from quintain import Message, Rollout, Service, TokenEngine, need, reward
from quintain.errors import RewardFault, UsageError


@reward(range=(-math.inf, 0))
def mean_log_prob(rollout: Rollout[Any, Any], *, floor: NegativeFloat = -10.0) -> float:
    """The mean log-prob of the sampled tokens, in nats: a confidence of the policy in its own answer::

        max(floor, sum of log mu(token) / tokens)

    Bounds: *floor* and 0. The log-probs are the engine's, at the sampling temperature and before top-p and the like,
    of all turns of the policy's own player. Their exponential is the inverse of the perplexity. In expectation over
    the sampled token each log-prob is the negative entropy of its distribution, the reward of EM-RL (Agarwal et al.
    2025, arXiv:2505.15134).

    This is not self-certainty (Kang et al. 2025, arXiv:2502.18581; the reward of Intuitor, Zhao et al. 2025,
    arXiv:2505.19590), the mean of KL(uniform || mu) over tokens: that needs the whole next-token distribution, and
    engines return the log-prob of the sampled token only.

    A policy also raises it by repeating itself: combine it with `repetition` and a small weight.

    Args:
        floor: the lowest value; that of an episode without tokens, too.

    Raises:
        RewardFault: the policy's turns have no log-probs, as those of a text engine or a control; or *floor* is not
            below 0.
    """
    if not floor < 0:
        raise RewardFault(f"mean_log_prob: floor is {floor!r}; expected a number below 0")
    transcript = rollout.transcripts.get("")
    sequences = transcript.sequences() if transcript else []
    logps = [logp for s in sequences for logp, sampled in zip(s.logps, s.mask, strict=True) if sampled]
    if not logps and any(turn.text for turn in rollout.turns if not turn.player):
        raise RewardFault(
            f"mean_log_prob: task {rollout.task.id} has turns without log-probs; use a token engine, or leave the "
            "reward out for engines that answer with text"
        )
    return min(0.0, max(floor, math.fsum(logps) / len(logps))) if logps else floor


class LikelihoodService(Service):
    """A `Likelihood` over any engine that scores tokens; by default the policy itself."""

    def __init__(self, *, engine: Any = need("policy"), temperature: float = 1.0) -> None:
        """Use *engine*; *temperature* divides its logits.

        Raises:
            UsageError: *engine* gives no token log-probs.
        """
        if not isinstance(engine, TokenEngine):
            raise UsageError(
                f"services.likelihood: {type(engine).__name__} gives no token log-probs; "
                "use an engine with exact tokens (embedded, vllm)"
            )
        self._engine = engine
        self._temperature = temperature

    async def logprobs(
        self, prompt: str | Sequence[int] | Sequence[Message], reply: str | Sequence[int]
    ) -> list[float]:
        """Log-prob of each token of *reply* after *prompt*.

        Args:
            prompt: messages (rendered with the chat template), text as it is, or ids.
            reply: text or ids. Text is encoded on its own, so that the prompt's tokens never change.

        Raises:
            LimitReached: both together exceed the context.
            ValueError: the prompt is empty, so that the first token of the reply would have no condition.
        """
        prompt_ids = self._ids(prompt)
        reply_ids = self._engine.tokenizer.encode(reply) if isinstance(reply, str) else list(reply)
        if not prompt_ids:
            raise ValueError("an empty prompt: the first token of the reply would have no condition")
        return list(await self._engine.score([*prompt_ids, *reply_ids], len(prompt_ids), self._temperature))

    def _ids(self, prompt: str | Sequence[int] | Sequence[Message]) -> list[int]:
        tokenizer = self._engine.tokenizer
        if isinstance(prompt, str):
            return tokenizer.encode(prompt)
        messages = [m for m in prompt if isinstance(m, Message)]
        if messages:
            return tokenizer.encode(tokenizer.render(messages, prompt=True))
        return [i for i in prompt if isinstance(i, int)]
