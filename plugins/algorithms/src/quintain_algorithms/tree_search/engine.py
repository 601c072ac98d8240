"""What the samplers have in common: a policy's engine, and how one more step is sampled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from random import SystemRandom
from typing import Any, Self

from quintain import Algorithm, Sampled, Sampling, TokenEngine, Weights
from quintain.errors import UsageError
from quintain.models import check_available
from quintain.rollouts import cut_where_stopped
from quintain.types import derived_seed

from .partial import Partial
from .steps import NEWLINE, StepRule
from .value import ValueModel

SLOTS = 256


class SearchEngine(TokenEngine):
    """Answers a turn by a search over the steps of the policy. A subclass implements `search`, and
    ``sharing`` or a constructor that calls `open_policy`.

    The log-probs of an answer are those of the policy. Which answers come back is up to the search.

    Attributes:
        policy: the engine that samples steps.
        steps: what a step is.
        sampled_tokens: that all searches so far have sampled, those of answers that were not taken
            included.
    """

    policy: TokenEngine
    steps: StepRule
    sampled_tokens: int

    def open_policy(self, policy: TokenEngine, steps: StepRule, value: str = "") -> None:
        """Take the engine of the policy and the value model in the folder *value*, or none."""
        self.policy, self.steps, self.sampled_tokens = policy, steps, 0
        self.tokenizer, self.context = policy.tokenizer, policy.context
        self.version, self.stalls = policy.version, policy.stalls
        self._value = ValueModel(model=value) if value else None

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """Check what a step is, and that the value model is there; see `TokenEngine`."""
        StepRule(**{name: settings[name] for name in ("by", "size") if name in settings})
        if settings.get("value"):
            check_available(settings["value"])

    @classmethod
    def check_algorithm(
        cls,
        algorithm: Algorithm,
        settings: Mapping[str, Any],
        *,
        group_size: int,
        concurrency: int | None,
    ) -> str | None:
        """Refuse algorithms that take its answers for the policy's own samples; see `TokenEngine`."""
        why = f"engine {cls.name!r} chooses its answers, so that they are not the policy's samples"
        fix = "imitate them with algorithm.use = 'rft' or 'sft', or sample with another engine"
        if not algorithm.takes_any_samples:
            raise UsageError(
                f"{why}: {algorithm.advantage!r} and {algorithm.objective!r} of algorithm "
                f"{algorithm.name!r} hold for samples of the policy alone; {fix}"
            )
        if algorithm.kl.active:
            raise UsageError(
                f"{why}: the KL term of algorithm {algorithm.name!r} is a mean over samples of the "
                f"policy; set algorithm.args.kl.where = 'none', or {fix}"
            )
        return None

    @abstractmethod
    async def search(self, prompt: tuple[int, ...], sampling: Sampling) -> Partial:
        """Return the answer to *prompt*; ``sampling.seed`` is set."""

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        seed = SystemRandom().getrandbits(62) if sampling.seed is None else sampling.seed
        answer = await self.search(tuple(ids), sampling.replace(seed=seed))
        self.stalls = self.policy.stalls
        return answer.sampled()

    async def extended(
        self, prompt: tuple[int, ...], partial: Partial, sampling: Sampling, *path: object
    ) -> Partial:
        """Return *partial* and one more step, drawn by the seed of *sampling* and by *path*, which
        tells the draws of a search apart.
        """
        return await self._continued(prompt, partial, sampling, self.steps, path)

    async def completed(
        self, prompt: tuple[int, ...], partial: Partial, sampling: Sampling, *path: object
    ) -> Partial:
        """Return *partial* with the rest of the answer; arguments as of `extended`."""
        return await self._continued(prompt, partial, sampling, StepRule(by="answer"), path)

    async def _continued(
        self,
        prompt: tuple[int, ...],
        partial: Partial,
        sampling: Sampling,
        steps: StepRule,
        path: tuple[object, ...],
    ) -> Partial:
        limit = sampling.max_tokens
        left = None if limit is None else limit - len(partial.ids)
        rest = sampling.replace(seed=derived_seed(sampling.seed, *path), max_tokens=left)
        whole = (*prompt, *partial.ids)
        new = await self.policy.sample(whole, steps.sampling(rest))
        self.sampled_tokens += len(new.ids)
        # A stop string of the turn may begin in an earlier step.
        new = cut_where_stopped(self.tokenizer, partial.sampled(), new, sampling.stop)
        room = self.context - len(whole) - len(new.ids)
        full = (left is not None and len(new.ids) >= left) or room < 1
        at_line = steps.by == "lines" and new.stop == NEWLINE and NEWLINE not in sampling.stop
        at_size = steps.by == "tokens" and new.finish == "length"
        goes_on = (at_line or at_size) and not full
        return Partial(
            ids=(*partial.ids, *new.ids),
            logps=(*partial.logps, *new.logps),
            versions=(*partial.versions, *new.versions),
            finish=None if goes_on else "length" if at_line or at_size else new.finish,
            stop=None if goes_on or at_line else new.stop,
        )

    async def worth(self, prompt: tuple[int, ...], partials: Sequence[Partial]) -> list[float]:
        """Return the value of each beginning of an answer to *prompt*: the probability of success
        by the value model, or, without one, the mean log-prob of its tokens.
        """
        if self._value is None:
            return [sum(p.logps) / len(p.logps) if p.logps else 0.0 for p in partials]
        stops = self.tokenizer.stop_ids
        return self._value.values(
            [(*prompt, *(p.ids[:-1] if p.ids and p.ids[-1] in stops else p.ids)) for p in partials]
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return await self.policy.score(ids, start, temperature)

    async def update(self, weights: Weights) -> int:
        self.version = await self.policy.update(weights)
        return self.version

    async def outdated(self, weights: Weights) -> str:
        return await self.policy.outdated(weights)

    def follow(self, *, in_flight_updates: bool, recompute_kv: bool) -> None:
        super().follow(in_flight_updates=in_flight_updates, recompute_kv=recompute_kv)
        self.policy.follow(in_flight_updates=in_flight_updates, recompute_kv=recompute_kv)

    def register(self) -> AbstractContextManager[None]:
        return self.policy.register()

    @property
    def concurrency(self) -> int | None:
        return self.policy.concurrency

    async def __aenter__(self) -> Self:
        await self.policy.__aenter__()
        if self._value is not None:
            await self._value.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._value is not None:
            await self._value.__aexit__(*exc)
        await self.policy.__aexit__(*exc)


def loaded(model: str, *, slots: int, dtype: str, device: str) -> TokenEngine:
    """Return an embedded engine of the *model*, a folder or hub id."""
    from quintain.engine import EmbeddedEngine  # torch takes seconds

    return EmbeddedEngine(model, slots=slots, dtype=dtype, device=device)


def shared(
    module: Any, tokenizer: Any, *, dtype: str | None, slots: int, copy: bool
) -> TokenEngine:
    """Return an embedded engine that decodes the learner's *module*; arguments as of
    `quintain.interfaces.shared_module.SharesModule.sharing`.
    """
    from quintain.engine import EmbeddedEngine

    return EmbeddedEngine.sharing(module, tokenizer, dtype=dtype, slots=slots, copy=copy)
