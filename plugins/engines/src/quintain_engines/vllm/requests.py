"""Settings of a turn in vLLM's words, and its answer in ours; both modes use them."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from quintain import LimitReached, Sampled, Sampling
from quintain.data import checked_logps
from quintain.errors import InfrastructureError, UsageError

LOWEST_TEMPERATURE = 0.01
"""vLLM raises lower temperatures to this one, and takes those below 1e-5 as 0."""


def sampling_fields(sampling: Sampling, *, stop_ids: Sequence[int], room: int) -> dict[str, Any]:
    """Return the fields of ``vllm.SamplingParams`` for a turn that *stop_ids* end, with at most
    *room* new tokens.

    The engine's ``logprobs_mode`` is ``processed_logprobs``: log-probs after temperature and
    ``min_p``, as `Sampling.prune` requires.

    Raises:
        UsageError: vLLM cannot sample in this way.
    """
    if 0 < sampling.temperature < LOWEST_TEMPERATURE:
        raise UsageError(
            f"temperature is {sampling.temperature}; vLLM takes 0 or at least {LOWEST_TEMPERATURE}"
        )
    if sampling.prune and sampling.truncates:
        raise UsageError(
            "vLLM cannot prune by the algorithm and truncate at once: leave top_p, top_k and min_p "
            "out"
        )
    return {
        "temperature": sampling.temperature,
        # 0 keeps the likeliest token alone; vLLM takes numbers above 0
        "top_p": sampling.top_p or 1e-9,
        "top_k": sampling.top_k,
        "min_p": sampling.prune or sampling.min_p,
        "max_tokens": min(sampling.max_tokens or room, room),
        "seed": sampling.seed if sampling.seed is not None else secrets.randbits(62),
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "stop_token_ids": list(dict.fromkeys(stop_ids)),
        # the tokenizer's stop ids are among those above, and come back as the reason
        "ignore_eos": True,
        "skip_special_tokens": False,
        "detokenize": bool(sampling.stop),
        "logprobs": 0,
    }


def room_for(ids: Sequence[int], context: int) -> int:
    """Return how many new tokens a *context* leaves after the prompt *ids*.

    Raises:
        LimitReached: none.
        ValueError: an empty prompt.
    """
    if not ids:
        raise ValueError("an empty prompt: there is nothing to continue")
    if len(ids) >= context:
        raise LimitReached(
            "context", f"a prompt of {len(ids)} tokens; the context is {context}, replies included"
        )
    return context - len(ids)


def sampled(
    ids: Iterable[int],
    logps: Iterable[float],
    spans: Iterable[tuple[str, int, int]],
    finish: Any,
    stop: Any,
    sent: range,
) -> Sampled:
    """Return the record of a turn.

    Args:
        spans: version, first token and end of each run of tokens that were sampled under one
            version.
        sent: versions of the weights that the engine had while the turn was sampled.

    Raises:
        InfrastructureError: the turn was cut off, a log-prob is none, or a token has no version or
            one that is not among those *sent*.
    """
    tokens, values = tuple(ids), tuple(logps)
    # "abort": by another client; a part of a reply is no reply
    if finish not in ("stop", "length"):
        raise InfrastructureError(f"vLLM cut the turn off (finish reason {str(finish)[:40]!r})")
    if any(isinstance(x, float) and math.isnan(x) for x in values):
        raise InfrastructureError(
            "the model gave NaN logits; its weights have diverged or overflow in this dtype"
        )
    return Sampled(
        ids=tokens,
        logps=checked_logps(values, len(tokens), "vLLM"),
        versions=_versions(len(tokens), [*spans], sent),
        finish=finish,
        stop=stop if finish == "stop" and isinstance(stop, str | int) else None,
    )


def _versions(count: int, spans: Sequence[tuple[Any, Any, Any]], sent: range) -> tuple[int, ...]:
    """Return the version of each of *count* tokens, from *spans* that follow each other."""
    versions: list[int] = []
    for version, start, end in spans:
        # compared before anything is made of that size
        fits = type(start) is int and type(end) is int and start == len(versions) <= end <= count
        known = str(version).isdecimal() and len(str(version)) < 20 and int(version) in sent
        if not fits or not known:
            raise InfrastructureError(
                f"vLLM says that weights of version {version!r:.40} sampled the tokens from "
                f"{start!r:.40} to {end!r:.40} of {count}; the engine had versions {sent.start} to "
                f"{sent.stop - 1}"
            )
        versions += [int(version)] * (end - start)
    if len(versions) != count:
        raise InfrastructureError(f"vLLM gave {len(versions)} versions for {count} tokens")
    return tuple(versions)
