"""Forced interruption: a text ends a thought that grows too long (see `quintain.types.sampling.Interrupt`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from ...interfaces.engine import TokenEngine
from ...interfaces.tokenizer import Codec
from ...types.sampling import Sampling
from ...types.transcript import Sampled

_SLACK = 8
"""Tokens looked at beyond the length of a stop string in bytes, for tokens that decode to nothing."""


async def speak(engine: TokenEngine, ids: Sequence[int], how: Sampling) -> Sampled:
    """Continue *ids* by one turn of at most ``how.max_tokens`` sampled tokens.

    Where ``how.interrupt`` is set, the moment is drawn from the turn's seed. A turn is not interrupted where it has
    ended by then, contains ``until``, or where the context has no room for the text and an answer.

    Raises:
        LimitReached, InfrastructureError: as `TokenEngine.sample`.
    """
    interrupt = how.interrupt
    if interrupt is None:
        return await engine.sample(ids, how)
    rng = Random(None if how.seed is None else f"interrupt/{how.seed}")
    at, seed = rng.randint(interrupt.low, interrupt.high), rng.getrandbits(62)
    if how.max_tokens is not None and at >= how.max_tokens:
        return await engine.sample(ids, how)
    first = await engine.sample(ids, how.but(max_tokens=at))
    room = engine.context - len(ids) - len(first.ids)
    if first.finish != "length" or len(first.ids) < at or room < 1:
        return first
    forced = tuple(engine.codec.encode(interrupt.text))
    if (interrupt.until and interrupt.until in engine.codec.decode(first.ids)) or len(forced) >= room:
        forced = ()
    left = None if how.max_tokens is None else how.max_tokens - at
    rest = how.but(max_tokens=left, seed=None if how.seed is None else seed)
    then = await engine.sample([*ids, *first.ids, *forced], rest)
    if not forced:
        then = cut_where_stopped(engine.codec, first, then, how.stop)
    return Sampled(
        ids=(*first.ids, *forced, *then.ids),
        logps=(*first.logps, *(0.0,) * len(forced), *then.logps),
        versions=(*first.versions, *(-1,) * len(forced), *then.versions),
        finish=then.finish,
        stop=then.stop,
        forced=(len(first.ids), len(first.ids) + len(forced)),
    )


def cut_where_stopped(codec: Codec, first: Sampled, then: Sampled, stops: Sequence[str]) -> Sampled:
    """*then* up to a stop string that began in *first*, which the engine could not see."""
    stops = [s for s in stops if s]
    window = max((len(s.encode()) for s in stops), default=0) + _SLACK
    tail = first.ids[-window:]
    for count in range(1, min(window, len(then.ids)) + 1 if stops else 1):
        text = codec.decode([*tail, *then.ids[:count]])
        places = [(text.find(s), s) for s in stops if s in text]
        if places:
            kept = {name: getattr(then, name)[:count] for name in ("ids", "logps", "versions")}
            return replace(then, **kept, finish="stop", stop=min(places)[1])
    return then
