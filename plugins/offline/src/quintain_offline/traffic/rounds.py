"""The log of rounds in a folder of traffic: which weights are served, and which replies trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from shutil import rmtree
from statistics import fmean, pvariance
from typing import Any

from quintain.store import drop_partial_line

from .records import RatedReply

ROUNDS, MODELS = "rounds.jsonl", "models"
LEAST = 30
"""Scores of each of two versions that are compared by the ratings of their replies."""


@dataclass(frozen=True, kw_only=True)
class ServedWeights:
    """Weights: their version, their folder, and the version that they were trained from, ``None``
    for the first.
    """

    version: int
    model: str
    parent: int | None = None


class Rounds:
    """The rounds of *folder*. A line is one round, written when it is decided: a kill before it
    leaves what is served as it was.

    Args:
        base: the model that version 0 is.
    """

    def __init__(self, folder: Path, base: str) -> None:
        self._folder = folder
        drop_partial_line(folder / ROUNDS)
        place = folder / ROUNDS
        text = place.read_text("utf-8") if place.is_file() else ""
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        self._versions = {0: ServedWeights(version=0, model=base)}
        for line in self.lines:
            if line["decision"] == "accepted":
                self._accept(line)

    def _accept(self, line: dict[str, Any]) -> None:
        version = line["serve"]
        self._versions[version] = ServedWeights(
            version=version, model=line["model"], parent=line["trained_from"]
        )

    @property
    def served(self) -> ServedWeights:
        """The weights that are to be served now."""
        return self._versions[self.lines[-1]["serve"]] if self.lines else self._versions[0]

    @property
    def used(self) -> set[str]:
        """Names of the replies that earlier rounds trained on, whether they were accepted or not."""
        return {name for line in self.lines for name in line["used"]}

    def parent(self, served: ServedWeights) -> ServedWeights | None:
        """Return the weights that *served* were trained from."""
        return None if served.parent is None else self._versions[served.parent]

    def lineage(self, served: ServedWeights) -> list[int]:
        """Return the versions of *served*, of the weights that it was trained from, and so on."""
        found, one = [], served
        while True:
            found.append(one.version)
            if one.parent is None:
                return found
            one = self._versions[one.parent]

    def new_version(self) -> int:
        """Return the version that the next weights get: one more than any that was served."""
        return max(self._versions) + 1

    def place(self, version: int) -> Path:
        """Return the folder for the weights of *version*, without what a killed round left there."""
        place = (self._folder / MODELS / f"version-{version}").absolute()
        if version not in self._versions and place.is_dir():
            rmtree(place)
        return place

    def write(self, decision: str, serve: ServedWeights, **more: Any) -> dict[str, Any]:
        """Append the line of a round: from now on *serve* is served."""
        line = {"decision": decision, "serve": serve.version, "model": serve.model, **more}
        line.setdefault("used", [])
        if decision == "accepted":
            self._accept(line)
        with open(self._folder / ROUNDS, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
        self.lines.append(line)
        return line


def worse(
    rated: Sequence[RatedReply], served: ServedWeights, before: ServedWeights
) -> tuple[float, float] | None:
    """Return the mean scores of the replies of *served* and of *before* if the first is lower by
    more than two standard errors of the difference, else ``None``.

    No reply of *served* trained it, so its ratings are held out. The comparison covers all users
    alike: a cap on the share of one user is left to the caller.
    """
    scores = {
        version: [
            row.score
            for row in rated
            if row.score is not None and row.versions and set(row.versions) == {version}
        ]
        for version in (served.version, before.version)
    }
    now, then = scores[served.version], scores[before.version]
    if min(len(now), len(then)) < LEAST:
        return None
    error = sqrt(pvariance(now) / len(now) + pvariance(then) / len(then))
    means = fmean(now), fmean(then)
    return means if means[0] < means[1] - 2 * error else None
