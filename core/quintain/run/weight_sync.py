"""Weight synchronisation from the learner to the engine, at once or with staleness."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import PluginError
from ..interfaces.engine import TokenEngine, Weights


@dataclass(kw_only=True)
class SyncedWeights:
    """A copy of published weights in host memory."""

    version: int
    by_name: Mapping[str, Any]

    @classmethod
    def of(cls, weights: Weights) -> SyncedWeights:
        """Copy *weights*; tied tensors stay one."""
        copies: dict[tuple[int, Any, Any], Any] = {}
        by_name: dict[str, Any] = {}
        for name, tensor in weights.tensors().items():
            key = (tensor.data_ptr(), tensor.shape, tensor.stride())
            if key not in copies:
                copies[key] = tensor.detach().to("cpu", copy=True)
            by_name[name] = copies[key]
        return cls(version=weights.version, by_name=by_name)

    def tensors(self) -> Mapping[str, Any]:
        return self.by_name


class WeightSync:
    """Sends the learner's weights to the engine, *staleness* versions late; the first version at
    once.

    A deterministic model of asynchronous training: the sampler is always the same number of
    versions behind, and the run is reproducible bit for bit.

    With a staleness, the engine decodes a copy of the weights.
    """

    def __init__(self, engine: TokenEngine, *, staleness: int = 0) -> None:
        self._engine = engine
        self._staleness = staleness
        self._held: list[SyncedWeights] = []  # the last staleness + 1, the oldest first

    async def sync(self, weights: Weights) -> None:
        """Send a new version of the weights; the same version may be sent again."""
        if not self._staleness:
            await self._update(weights)
            return
        # The learner changes its tensors in place, so that an older version needs a copy. A resume
        # sends the version again that it has restored.
        if not self._held or self._held[-1].version != weights.version:
            self._held.append(SyncedWeights.of(weights))
        # The newest and as many as the engine is behind. The first steps have fewer.
        del self._held[: -1 - self._staleness]
        await self._update(self._held[0])

    @asynccontextmanager
    async def newest(self, weights: Weights) -> AsyncIterator[None]:
        """Let the engine sample with *weights*, the newest version, inside the block; afterwards as
        before.
        """
        if self._engine.version == weights.version:
            yield
            return
        await self._update(weights)
        try:
            yield
        finally:
            await self._update(self._held[0])

    async def _update(self, weights: Weights) -> None:
        version = await self._engine.update(weights)
        if version != weights.version:
            raise PluginError(
                f"engine {self._engine.name!r} returned version {version} of the weights; expected "
                f"{weights.version}: its `update` must return `weights.version`"
            )

    def published(self, weights: Weights) -> Sequence[Weights]:
        """Return what the engine got, and the versions that it will get, where *weights* are live."""
        return self._held or [weights]

    def state(self) -> list[dict[str, Any]]:
        """Return plain data and tensors for a checkpoint: the versions before the newest, which is
        the learner's own.
        """
        return [{"version": w.version, "tensors": dict(w.by_name)} for w in self._held[:-1]]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restore the value of `state`; call `sync` with the learner's weights afterwards."""
        self._held = [
            SyncedWeights(version=synced["version"], by_name=synced["tensors"]) for synced in state
        ]
