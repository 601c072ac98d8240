"""A thinking budget: a text ends a thought that grows too long (see `quintain.types.sampling.ThinkingBudget`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from ...interfaces.engine import TokenEngine
from ...interfaces.tokenizer import ChatTokenizer
from ...types.sampling import Sampling
from ...types.transcript import Sampled

_SLACK = 8
"""Tokens looked at beyond the length of a stop string in bytes, for tokens that decode to nothing."""


async def sample_turn(engine: TokenEngine, ids: Sequence[int], sampling: Sampling) -> Sampled:
    """Continue *ids* by one turn of at most ``sampling.max_tokens`` sampled tokens.

    Where ``sampling.thinking_budget`` is set, the moment is drawn from the turn's seed. A turn is not interrupted where
    it has ended by then, contains ``until``, or where the context has no room for the text and an answer.

    Raises:
        LimitReached, InfrastructureError: as `TokenEngine.sample`.
    """
    thinking_budget = sampling.thinking_budget
    if thinking_budget is None:
        return await engine.sample(ids, sampling)
    rng = Random(None if sampling.seed is None else f"interrupt/{sampling.seed}")
    at, seed = rng.randint(thinking_budget.min_tokens, thinking_budget.max_tokens), rng.getrandbits(62)
    if sampling.max_tokens is not None and at >= sampling.max_tokens:
        return await engine.sample(ids, sampling)
    first = await engine.sample(ids, sampling.replace(max_tokens=at))
    room = engine.context - len(ids) - len(first.ids)
    if first.finish != "length" or len(first.ids) < at or room < 1:
        return first
    forced = tuple(engine.tokenizer.encode(thinking_budget.text))
    if (thinking_budget.until and thinking_budget.until in engine.tokenizer.decode(first.ids)) or len(forced) >= room:
        forced = ()
    left = None if sampling.max_tokens is None else sampling.max_tokens - at
    rest = sampling.replace(max_tokens=left, seed=None if sampling.seed is None else seed)
    then = await engine.sample([*ids, *first.ids, *forced], rest)
    if not forced:
        then = cut_where_stopped(engine.tokenizer, first, then, sampling.stop)
    return Sampled(
        ids=(*first.ids, *forced, *then.ids),
        logps=(*first.logps, *(0.0,) * len(forced), *then.logps),
        versions=(*first.versions, *(-1,) * len(forced), *then.versions),
        finish=then.finish,
        stop=then.stop,
        forced=(len(first.ids), len(first.ids) + len(forced)),
    )


def cut_where_stopped(tokenizer: ChatTokenizer, first: Sampled, then: Sampled, stops: Sequence[str]) -> Sampled:
    """*then* up to a stop string that began in *first*, which the engine could not see."""
    stops = [s for s in stops if s]
    window = max((len(s.encode()) for s in stops), default=0) + _SLACK
    tail = first.ids[-window:]
    for count in range(1, min(window, len(then.ids)) + 1 if stops else 1):
        text = tokenizer.decode([*tail, *then.ids[:count]])
        places = [(text.find(s), s) for s in stops if s in text]
        if places:
            kept = {name: getattr(then, name)[:count] for name in ("ids", "logps", "versions")}
            return replace(then, **kept, finish="stop", stop=min(places)[1])
    return then
