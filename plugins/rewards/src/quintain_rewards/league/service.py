"""The service `league`: copies of the policy that do not train."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, cast

from quintain import Engine, Message, Reply, Sampling, TokenEngine, ToolSpec, need
from quintain.errors import UsageError

from ..likelihood import FixedModelEngine, fixed_copy

if TYPE_CHECKING:
    from quintain.models import HFTokenizer


class Silent(Engine):
    """Replies with nothing: the player of a league before there is a policy."""

    name = "league"

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        return Reply()


class Self(FixedModelEngine):
    """The policy as it was at *version*; its engine starts with the first reply."""

    def __init__(
        self, module: Any, version: int, policy: TokenEngine, slots: int, replaced: list[Self]
    ) -> None:
        super().__init__(f"league, version {version}", slots=slots)
        self.module, self.version, self._replaced = module, version, replaced
        self.tokenizer, self.context = policy.tokenizer, policy.context
        self._starting = asyncio.Lock()

    async def started(self) -> TokenEngine:
        """Return the engine, started."""
        from quintain.models import LoadedModel

        async with self._starting:
            if self.engine is None:
                while self._replaced:  # their episodes were those of earlier steps
                    await self._replaced.pop().__aexit__()
                await self.start(
                    LoadedModel(
                        module=self.module,
                        tokenizer=cast("HFTokenizer", self.tokenizer),  # a policy has no other
                        path=self.name,
                        context=self.context,
                        fused=False,
                    )
                )
        return await super().started()


class League(Engine):
    """A player that earlier selves of the policy play; each episode meets one of them, drawn by its
    seed.

    The first self is the policy at the start of the run. Playing against a mixture of past selves
    instead of the newest one alone keeps a policy from forgetting how to beat the older ones
    (Bansal et al. 2018, arXiv:1710.03748; OpenAI Five, arXiv:1912.06680, plays a fifth of its games
    against past selves).

    Before there is a policy, in the warm start of the default model, the player replies with
    nothing.

    Args:
        every: updates of the policy between two copies.
        size: copies that are kept; each takes the memory of the model. A new one replaces the
            oldest.
        newest: share of the episodes that meet the newest copy; the others meet any copy, all
            equally probable.
        slots: sequences of one copy that are decoded at once.
    """

    name = "league"

    def __init__(
        self,
        *,
        every: int = 20,
        size: int = 5,
        newest: float = 0.5,
        slots: int = 64,
        policy: Any = need("policy"),
        learner: Any = need("learner"),
    ) -> None:
        if every < 1 or size < 1 or slots < 1 or not 0 <= newest <= 1:
            raise UsageError(
                f"league: every {every}, size {size}, newest {newest}, slots {slots}; expected at "
                f"least 1, and a share"
            )
        self._every, self._size, self._newest, self._slots = every, size, newest, slots
        self._policy, self._learner = policy, learner
        self._replaced: list[Self] = []
        self.selves: list[Self] = []

    @staticmethod
    def in_evaluation(
        slot: str, args: Mapping[str, Any], run: str
    ) -> tuple[str, Mapping[str, Any]]:
        """Name the best checkpoint of *run*: in `quintain eval`, which has no learner, the policy
        meets itself.
        """
        return "quintain/embedded", {"model": run}

    async def __aexit__(self, *exc: object) -> None:
        for one in (*self.selves, *self._replaced):
            await one.__aexit__()

    def for_episode(self, seed: int) -> Engine:
        if self._policy is None:
            return Silent()
        self._follow()
        rng = Random(f"league {seed}")
        return self.selves[-1] if rng.random() < self._newest else rng.choice(self.selves)

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        """Raise a `UsageError`: episodes draw a self by `for_episode`."""
        raise UsageError("a league plays episodes only: agent.player(name, league)")

    def _follow(self) -> None:
        """Copy the policy, if its weights are `every` versions newer than the newest copy."""
        version = self._policy.version
        if self.selves and version < self.selves[-1].version + self._every:
            return
        self._add(self._module(), version)
        while len(self.selves) > self._size:
            self._replaced.append(self.selves.pop(0))

    def _add(self, module: Any, version: int) -> None:
        self.selves.append(Self(module, version, self._policy, self._slots, self._replaced))

    def _module(self) -> Any:
        return fixed_copy(self._learner.module, adapters=True)

    def state(self) -> Mapping[str, Any]:
        """Return version and weights of each copy, the oldest first."""
        return {
            "selves": [
                {"version": one.version, "weights": dict(one.module.state_dict())}
                for one in self.selves
            ]
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.selves = []
        for saved in state["selves"]:
            module = self._module()
            module.load_state_dict(saved["weights"])
            self._add(module, saved["version"])
