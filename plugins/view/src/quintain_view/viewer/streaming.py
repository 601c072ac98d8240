"""Sampling in pieces, so that an answer is shown while it is sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from quintain import Sampled, Sampling, TokenEngine
from quintain.errors import LimitReached
from quintain.rollouts import cut_where_stopped
from quintain.types import derived_seed

PIECE = 8
"""Tokens sampled between two prints; each piece costs a prefill of the text so far."""


async def stream(
    engine: TokenEngine, ids: Sequence[int], sampling: Sampling, show: Callable[[str], None]
) -> Sampled:
    """Sample a turn after *ids* and pass its text to *show* piece by piece, without the stop token
    or string.

    Greedy decoding gives the same tokens as one call; with a temperature, each piece has a seed of
    its own.

    Raises:
        LimitReached: *ids* leave no room in the context.
    """
    decode, limit = engine.tokenizer.decode, sampling.max_tokens
    taken, shown = Sampled(ids=(), logps=(), versions=(), finish="length"), 0
    while taken.finish == "length" and (limit is None or len(taken.ids) < limit):
        count = PIECE if limit is None else min(PIECE, limit - len(taken.ids))
        seed = None if sampling.seed is None else derived_seed(sampling.seed, len(taken.ids))
        try:
            piece = await engine.sample(
                [*ids, *taken.ids], sampling.replace(max_tokens=count, seed=seed)
            )
        except LimitReached:
            if not taken.ids:
                raise
            break
        taken = _joined(taken, piece, engine.tokenizer, sampling.stop)
        text = decode(taken.ids[:-1] if isinstance(taken.stop, int) else taken.ids)
        if isinstance(taken.stop, str):
            text = text[: text.rfind(taken.stop)]
        withheld = 0
        # the rest may be the beginning of a stop string, or half a character
        if taken.finish == "length":
            withheld = (
                max(map(len, sampling.stop), default=1)
                - 1
                + (len(text) - len(text.rstrip("\ufffd")))
            )
        end = max(shown, len(text) - withheld)
        show(text[shown:end])
        shown = end
    text = decode(taken.ids) if taken.finish == "length" else ""
    show(text[shown:])
    return taken


def _joined(taken: Sampled, piece: Sampled, tokenizer: Any, strings: Sequence[str]) -> Sampled:
    """Join *taken* and *piece* to one turn; a stop string that began in *taken* ends it."""
    piece = cut_where_stopped(tokenizer, taken, piece, strings)
    return replace(
        piece,
        ids=taken.ids + piece.ids,
        logps=taken.logps + piece.logps,
        versions=taken.versions + piece.versions,
    )
