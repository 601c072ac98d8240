"""The ranks of a learner on a cluster, which starts them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from quintain.errors import RunError
from quintain.interfaces import PlacedProcess, ProcessCluster, ProcessRequest

from .remote_team import RemoteTeam
from .wire import TOKEN


class PlacedTeam(RemoteTeam):
    """Ranks that a cluster starts, and starts again when one is killed or its machine is gone.

    Each runs what somebody would start by hand, ``quintain_learners.fsdp.join``. The token is made for this
    team.

    Args:
        cluster: what starts them.
        gpu: whether each computes on a GPU.
        size, silence, patience: see `RemoteTeam`.

    Raises:
        RunError: ranks end, or have no place within *patience* seconds.
    """

    least_port = 0

    def __init__(
        self, size: int, cluster: ProcessCluster, *, gpu: bool, silence: float, patience: float
    ) -> None:
        self._cluster, self._on_gpu = cluster, gpu
        self._placed: Sequence[PlacedProcess] = ()
        super().__init__(
            size,
            f"{cluster.host}:0",
            secrets.token_hex().encode(),
            silence=silence,
            patience=patience,
        )

    def open(self) -> None:
        if not self._placed or any(placed.ended is not None for placed in self._placed):
            for placed in self._placed:
                placed.end()
            self._placed = self._cluster.start([self._job(rank) for rank in range(self._size())])
        super().open()

    def _size(self) -> int:
        return len(self._spares)

    def _job(self, rank: int) -> ProcessRequest:
        words = {
            "rank": rank,
            "ranks": self._size(),
            "local-rank": 0,  # it sees its own GPU alone
            "patience": self._patience,
        }
        options = [text for name, value in words.items() for text in (f"--{name}", str(value))]
        return ProcessRequest(
            role="rank",
            words=("-m", "quintain_learners.fsdp.join", self.address, *options),
            environment={TOKEN: self._token.decode()},
            gpus=1 if self._on_gpu else 0,
        )

    def _check_missing(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if (said := self._placed[rank].ended) is not None:
                raise RunError(f"learner fsdp: rank {rank} ended before it came: {said}")

    def _absent(self, ranks: Iterable[int]) -> str:
        missing = list(ranks)
        without = [rank for rank in missing if not self._placed[rank].host]
        names = ", ".join(map(str, missing))
        rest = f"; without room on the cluster: {', '.join(map(str, without))}" if without else ""
        return (
            f"ranks {names} of {self._size()} have not come from the cluster to {self.address} within "
            f"{self._patience:.0f} s (learner.args.patience){rest}"
        )
