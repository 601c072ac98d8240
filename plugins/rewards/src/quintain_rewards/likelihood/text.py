"""The contract of a scorer of given text: batches, a cached baseline, a measured noise floor."""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quintain import Message, Service
from quintain.errors import UsageError

CACHED = 4096
"""Baselines in memory."""

Prompt = str | tuple[int, ...] | tuple[Message, ...]


class Pair(NamedTuple):
    """A prompt and the text whose probability after it is asked for.

    A prompt of messages is rendered with the chat template of the scorer; text is taken as it is;
    ids are ids.
    """

    prompt: Prompt
    reply: str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextScore:
    """The log-prob of each token of a text, in nats."""

    logprobs: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean log-prob per token, in nats; 0 for an empty text."""
        return math.fsum(self.logprobs) / len(self.logprobs) if self.logprobs else 0.0

    @property
    def bits(self) -> float:
        """Bits per token."""
        return -self.mean / math.log(2)

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-prob per token."""
        return math.exp(-self.mean)


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """How far two computations of one mean log-prob differ: alone, again, in company, in another
    order.

    Attributes:
        nats: the greatest difference, in nats per token.
        texts: number of texts compared.
    """

    nats: float
    texts: int

    @property
    def improvement(self) -> float:
        """The improvement, in percent of perplexity, that such a difference amounts to."""
        return 100 * math.expm1(self.nats)


PROBES = (
    Pair(
        "The harbour lay still.", " Then a bell rang twice, and every window on the quay was lit."
    ),
    Pair(
        "Once upon a time",
        " there were 3 locks and 12 keys; none of the keys fitted, so they drew a new map." * 3,
    ),
    Pair("A list of tools:", " rope, lamp, saw, nails, a ladder, chalk, two buckets, tar." * 8),
)
"""Texts of different lengths, for the noise floor."""


class TextLikelihood(Service):
    """Scores given text under a model that does not change while it is asked, except where a
    subclass says so.
    """

    def __init__(self) -> None:
        self._baselines: OrderedDict[tuple[Pair, int], asyncio.Future[TextScore]] = OrderedDict()
        self._filling: set[asyncio.Task[None]] = set()
        self._noise: NoiseFloor | None = None
        self.computed = 0
        """Texts scored so far; answers from the cache do not count."""

    @abstractmethod
    async def score(self, pairs: Sequence[Pair], *, max_tokens: int = 0) -> list[TextScore]:
        """Score all *pairs*, as one batch where the model computes in batches.

        The numbers depend on the pairs and their order alone, never on what else is scored
        meanwhile.

        Args:
            max_tokens: score the first tokens of each reply only; 0 is all of them.

        Raises:
            ValueError: a prompt has no token, so that the first token of its reply would have no
                condition.
            LimitReached: a prompt and its reply are longer than the context of the model.
        """

    async def certainty(self, pairs: Sequence[Pair]) -> list[tuple[float, ...]]:
        """Return the certainty of the model at each token of each reply, in nats: KL(uniform || p),
        which is::

            -log V - (1 / V) * sum over the vocabulary of log p(v)  =  logsumexp(z) - mean(z) - log V

        with the logits z over V tokens, whatever token follows (Kang et al. 2025,
        arXiv:2502.18581).

        Raises:
            UsageError: the scorer gives no distributions; only those that hold a model do.
            ValueError, LimitReached: as `score`.
        """
        raise UsageError(
            f"{type(self).__name__} gives no next-token distributions; use current-policy, "
            "frozen-policy or frozen-model"
        )

    async def baseline(self, pair: Pair, *, max_tokens: int = 0) -> TextScore:
        """Score one pair; the same pair is computed once, also where several callers ask at the
        same time.

        Raises:
            As `score`; a failure is not kept.
        """
        (score,) = await self.baselines([pair], max_tokens=max_tokens)
        return score

    async def baselines(self, pairs: Sequence[Pair], *, max_tokens: int = 0) -> list[TextScore]:
        """Score *pairs*, those that were not scored before as one batch; each is computed once, as
        by `baseline`.

        Raises:
            As `score`; a failure is not kept.
        """
        futures: list[asyncio.Future[TextScore]] = []
        missing: dict[Pair, asyncio.Future[TextScore]] = {}
        for pair in pairs:
            key = (pair, max_tokens)
            known = self._baselines.get(key)
            if (
                known is None
                or known.cancelled()
                or (known.done() and known.exception() is not None)
            ):
                known = self._baselines[key] = missing[pair] = (
                    asyncio.get_running_loop().create_future()
                )
                known.add_done_callback(_seen)
            self._baselines.move_to_end(key)
            futures.append(known)
        while len(self._baselines) > CACHED:
            self._baselines.popitem(last=False)
        if missing:
            # A task of its own: a caller that is cancelled must not take the answer from the others
            # that wait for it.
            task = asyncio.ensure_future(self._fill(missing, max_tokens))
            self._filling.add(task)
            task.add_done_callback(self._filling.discard)
        return [await asyncio.shield(future) for future in futures]

    async def _fill(
        self, missing: Mapping[Pair, asyncio.Future[TextScore]], max_tokens: int
    ) -> None:
        """Score the *missing* pairs and settle their futures."""
        try:
            scores = await self.score(list(missing), max_tokens=max_tokens)
        except BaseException as error:
            for future in missing.values():
                if isinstance(error, asyncio.CancelledError):
                    future.cancel()
                elif not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            for future, score in zip(missing.values(), scores, strict=True):
                if not future.done():
                    future.set_result(score)

    async def logprobs(
        self, prompt: str | Sequence[int] | Sequence[Message], reply: str | Sequence[int]
    ) -> list[float]:
        """Return the log-prob of each token of *reply* after *prompt*, as `quintain.Likelihood` has
        it.

        Raises:
            As `score`.
        """
        (score,) = await self.score(
            [Pair(_hashable(prompt), reply if isinstance(reply, str) else tuple(reply))]
        )
        return list(score.logprobs)

    async def noise_floor(self) -> NoiseFloor:
        """Return the noise floor of this model here, measured once: each text alone, again, in
        company, reversed.
        """
        if self._noise is None:
            alone = [[(await self.score([pair]))[0].mean for pair in PROBES] for _ in range(2)]
            together = [s.mean for s in await self.score(PROBES)]
            reversed_ = [s.mean for s in await self.score(PROBES[::-1])][::-1]
            columns = zip(*alone, together, reversed_, strict=True)
            self._noise = NoiseFloor(nats=max(max(c) - min(c) for c in columns), texts=len(PROBES))
        return self._noise


def _seen(future: asyncio.Future[TextScore]) -> None:
    """Read the failure of *future*, which every caller may have stopped to wait for: else asyncio
    warns of it.
    """
    if not future.cancelled():
        future.exception()


def _hashable(prompt: str | Sequence[int] | Sequence[Message]) -> Prompt:
    return prompt if isinstance(prompt, str) else tuple(prompt)  # type: ignore[return-value]
