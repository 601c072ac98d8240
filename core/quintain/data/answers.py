"""What an engine, a teacher or a scorer returned, checked token by token before anything believes
it.

Servers are programs of others. A number that JSON can carry is not yet a token or a log-prob.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import InfrastructureError
from ..types.sampling import Sampling
from ..types.transcript import Sampled

ROUNDING = 1e-3
"""Nats by which rounding may lift a log-prob above 0."""
SHOWN = 40
"""Characters of a wrong value in a message."""


def checked_logps(values: Sequence[object], count: int, source: str) -> tuple[float, ...]:
    """Return the *values* as log-probs: *count* finite numbers of at most 0, those that rounding
    lifts above 0 as 0.

    Args:
        source: who gave them, for the message.

    Raises:
        InfrastructureError: they are not.
    """
    if len(values) != count:
        raise InfrastructureError(f"{source} gave {len(values)} log-probs for {count} tokens")
    logps: list[float] = []
    for place, value in enumerate(values, start=1):
        # bool is a kind of int, and no log-prob
        if type(value) not in (float, int) or not -math.inf < value <= ROUNDING:  # type: ignore[operator]
            raise InfrastructureError(
                f"{source} gave the log-prob {repr(value)[:SHOWN]} for token {place} of {count}; "
                "expected a finite number of at most 0"
            )
        logps.append(min(0.0, float(value)))  # type: ignore[arg-type]
    return tuple(logps)


def checked_ids(ids: Sequence[object], vocabulary: int, source: str) -> None:
    """Raise an `InfrastructureError` unless all *ids* are ints from 0 up to the size of the
    *vocabulary*; *source* is who gave them.
    """
    for place, token in enumerate(ids, start=1):
        if type(token) is not int or not 0 <= token < vocabulary:
            raise InfrastructureError(
                f"{source} gave the id {repr(token)[:SHOWN]} as token {place} of {len(ids)}; "
                f"expected an int from 0 to {vocabulary - 1}"
            )


def checked_turn(engine: Any, prompt: int, sampling: Sampling, sampled: Sampled) -> Sampled:
    """Return what *engine*, a `quintain.TokenEngine`, sampled after a prompt of *prompt* tokens, if it
    is what was asked for.

    Raises:
        InfrastructureError: an id is none of the vocabulary; there are more tokens than asked for;
            log-probs or versions do not fit the tokens; a log-prob is above 0 or not finite; a
            version was never sent; or the turn does not end with what is said to have ended it.
    """
    count = len(sampled.ids)
    source = f"the engine {engine.name}"
    checked_ids(sampled.ids, engine.tokenizer.vocab_size, source)
    room = engine.context - prompt
    most = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
    if count > most:
        raise InfrastructureError(f"{source} gave {count} tokens; at most {most} were asked for")
    logps = checked_logps(sampled.logps, count, source)
    if len(sampled.versions) != count:
        raise InfrastructureError(
            f"{source} gave {len(sampled.versions)} versions for {count} tokens"
        )
    # A replica of a pool has the next version a moment before the pool says so.
    newest = engine.version + 1
    for version in set(sampled.versions):
        if type(version) is not int or not 0 <= version <= newest:
            raise InfrastructureError(
                f"{source} says that weights of version {repr(version)[:SHOWN]} sampled its "
                f"tokens; the newest are of version {engine.version}"
            )
    if sampled.finish == "stop" and not count:
        raise InfrastructureError(f"{source} ended a turn by a stop, and gave no token")
    # bool is a kind of int here, too: True is the id 1 and no id at all
    if (
        sampled.finish == "stop"
        and isinstance(sampled.stop, int)
        and sampled.ids[-1] != sampled.stop
    ):
        raise InfrastructureError(
            f"{source} says that id {sampled.stop} ended the turn, whose last token is "
            f"{sampled.ids[-1]}"
        )
    return sampled if logps == sampled.logps else replace(sampled, logps=logps)
