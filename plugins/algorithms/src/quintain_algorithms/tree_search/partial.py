"""The beginning of an answer, as far as a search has sampled it."""

from __future__ import annotations

from dataclasses import dataclass

from quintain import Sampled
from quintain.types import Finish


@dataclass(frozen=True, kw_only=True)
class Partial:
    """Sampled tokens of an answer.

    Attributes:
        ids, logps, versions: as of `Sampled`.
        finish: why the answer ended; ``None`` while it goes on.
        stop: the string or id that ended it.
    """

    ids: tuple[int, ...] = ()
    logps: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    finish: Finish | None = None
    stop: str | int | None = None

    def sampled(self) -> Sampled:
        """Return it as the answer of an engine."""
        return Sampled(
            ids=self.ids,
            logps=self.logps,
            versions=self.versions,
            finish=self.finish or "length",
            stop=self.stop,
        )
