"""Applies a thinking budget to a turn (see `quintain.types.sampling.ThinkingBudget`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from ...data.answers import checked_turn
from ...interfaces.engine import TokenEngine
from ...interfaces.tokenizer import ChatTokenizer
from ...types.sampling import Sampling
from ...types.transcript import Sampled
from .stop_strings import StopStrings


async def sample_turn(engine: TokenEngine, ids: Sequence[int], sampling: Sampling) -> Sampled:
    """Continue *ids* by one turn of at most ``sampling.max_tokens`` sampled tokens.

    If ``sampling.thinking_budget`` is set, its number of tokens is drawn from the turn's seed. A
    turn is not interrupted if it ended before, contains ``until``, or leaves no room in the context
    for the text and an answer.

    Raises:
        LimitReached, InfrastructureError: as `TokenEngine.sample`, and as `checked_turn`: all that
            trains passes through here.
    """
    thinking_budget = sampling.thinking_budget
    if thinking_budget is None:
        return await _sampled(engine, ids, sampling)
    rng = Random(f"interrupt/{sampling.seed}")
    budget = rng.randint(thinking_budget.min_tokens, thinking_budget.max_tokens)
    seed = rng.getrandbits(62)
    limit = sampling.max_tokens or engine.context
    if budget >= limit:
        return await _sampled(engine, ids, sampling)
    first = await _sampled(engine, ids, sampling.replace(max_tokens=budget))
    room = engine.context - len(ids) - len(first.ids)
    if first.finish != "length" or len(first.ids) < budget or room < 1:
        return first
    forced = tuple(engine.tokenizer.encode(thinking_budget.text))
    until = thinking_budget.until
    thought_to_the_end = until != "" and until in engine.tokenizer.decode(first.ids)
    if thought_to_the_end or len(forced) >= room:
        forced = ()
    # Two requests with one seed would repeat their random numbers, so the second has its own.
    rest = sampling.replace(max_tokens=limit - budget, seed=seed)
    then = await _sampled(engine, [*ids, *first.ids, *forced], rest)
    # a stop string may span both requests; the inserted text separates them otherwise
    if not forced:
        then = cut_where_stopped(engine.tokenizer, first, then, sampling.stop)
    return Sampled(
        ids=(*first.ids, *forced, *then.ids),
        logps=(*first.logps, *(0.0,) * len(forced), *then.logps),
        versions=(*first.versions, *(-1,) * len(forced), *then.versions),
        finish=then.finish,
        stop=then.stop,
        forced=(len(first.ids), len(first.ids) + len(forced)),
        experts=then.experts,
    )


async def _sampled(engine: TokenEngine, ids: Sequence[int], sampling: Sampling) -> Sampled:
    return checked_turn(engine, len(ids), sampling, await engine.sample(ids, sampling))


def cut_where_stopped(
    tokenizer: ChatTokenizer, first: Sampled, then: Sampled, stops: Sequence[str]
) -> Sampled:
    """Return *then* up to a stop string that began in *first*, which the second request's engine
    call cannot detect.
    """
    strings = StopStrings(tuple(stops), tokenizer)
    if not strings:
        return then
    tail = first.ids[-strings.window :]
    # A string that ends further on began in *then*, whose engine has seen it.
    for count in range(1, min(strings.window, len(then.ids)) + 1):
        stop = strings.found([*tail, *then.ids[:count]])
        if stop is not None:
            kept = {name: getattr(then, name)[:count] for name in ("ids", "logps", "versions")}
            return replace(then, **kept, finish="stop", stop=stop)
    return then
