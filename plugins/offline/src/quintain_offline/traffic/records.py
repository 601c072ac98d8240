"""Rated replies of a folder that `quintain serve --record` wrote, and which of them train."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from quintain.errors import UsageError

RESPONSES, FEEDBACK = "responses.jsonl", "feedback.jsonl"
LABELS = {"bad": 0.0, "good": 1.0}


class _Reply(BaseModel):
    ids: list[int]
    logps: list[float]
    versions: list[int]


class _Response(BaseModel):
    """A line of `RESPONSES`."""

    model_config = ConfigDict(extra="ignore")
    id: str
    owner: str
    temperature: float
    top_p: float
    prompt: list[int]
    replies: list[_Reply]


class _Rating(BaseModel):
    """A line of `FEEDBACK`."""

    model_config = ConfigDict(extra="ignore")
    id: str
    choice: int = 0
    time: float
    score: float | None = Field(default=None, ge=0, le=1)
    label: Literal["good", "bad"] | None = None
    edit: str | None = None

    @model_validator(mode="after")
    def _one(self) -> _Rating:
        if sum(x is not None for x in (self.score, self.label, self.edit)) != 1:
            raise ValueError("expected one of score, label and edit")
        return self


LEAST_USERS = 8
"""That a temperature has, where there are as many, so that its replies train."""


@dataclass(frozen=True, kw_only=True)
class RatedReply:
    """A reply of the policy with its rating.

    Attributes:
        id, choice: of the response, and the reply among its replies.
        owner: digests of the key and of the user that the request named.
        time: of the rating, seconds since 1970.
        prompt, ids: exact tokens before the reply, and its own.
        logps, versions: log-prob under the sampler and weight version of each of `ids`.
        temperature, top_p: with which it was sampled.
        score: 0 to 1; ``None`` where `edit` is given in its place.
        edit: what the reply should have been.
    """

    id: str
    choice: int
    owner: str
    time: float
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logps: tuple[float, ...]
    versions: tuple[int, ...]
    temperature: float
    top_p: float
    score: float | None
    edit: str | None

    @property
    def name(self) -> str:
        """The reply in the record of a round."""
        return f"{self.id}/{self.choice}"


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a folder has: rated replies in the order of their ratings, the number of all replies,
    and the number of lines that cannot be read or rate no reply of the folder.
    """

    rated: tuple[RatedReply, ...]
    replies: int
    unreadable: int
    unmatched: int


def read_traffic(folder: Path) -> Traffic:
    """Join replies and ratings of *folder*; the last rating of a reply counts.

    A server may be writing: a last line without an end is not read.

    Raises:
        UsageError: the folder has no responses.
    """
    if not (folder / RESPONSES).is_file():
        raise UsageError(
            f"{str(folder)!r} has no {RESPONSES}: name the FOLDER of `quintain serve --record "
            "FOLDER`"
        )
    unreadable: Counter[str] = Counter()
    ratings = {(r.id, r.choice): r for r in _lines(folder / FEEDBACK, _Rating, unreadable)}
    rated: list[RatedReply] = []
    replies = 0
    for response in _lines(folder / RESPONSES, _Response, unreadable):
        replies += len(response.replies)
        for choice, reply in enumerate(response.replies):
            if (rating := ratings.pop((response.id, choice), None)) is not None:
                rated.append(_rated(response, choice, reply, rating))
    return Traffic(
        rated=tuple(sorted(rated, key=lambda r: r.time)),
        replies=replies,
        unreadable=unreadable.total(),
        unmatched=len(ratings),
    )


def _rated(response: _Response, choice: int, reply: _Reply, rating: _Rating) -> RatedReply:
    return RatedReply(
        id=response.id,
        choice=choice,
        owner=response.owner,
        time=rating.time,
        prompt=tuple(response.prompt),
        ids=tuple(reply.ids),
        logps=tuple(reply.logps),
        versions=tuple(reply.versions),
        temperature=response.temperature,
        top_p=response.top_p,
        score=LABELS[rating.label] if rating.label else rating.score,
        edit=rating.edit,
    )


def _lines(path: Path, kind: type[Any], unreadable: Counter[str]) -> Iterator[Any]:
    if not path.is_file():
        return
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                yield kind.model_validate(json.loads(line))
            except (ValueError, ValidationError):
                unreadable[path.name] += 1


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """The replies that train, and how many do not, by reason."""

    rows: tuple[RatedReply, ...]
    left_out: Mapping[str, int]


def select(
    rated: Sequence[RatedReply],
    *,
    lineage: Sequence[int],
    staleness: int,
    share: float,
    used: Collection[str],
) -> TrainingRows:
    """Choose the replies that a round trains on.

    An edited answer is a text of its user, so how its reply was sampled does not matter. Of the
    others those leave that importance ratios cannot correct: older than *staleness* versions,
    greedy, or sampled from a truncated distribution.

    Args:
        lineage: versions of the weights that are trained, of those that they were trained from, and
            so on.
        staleness: updates of weights by which the sampler of a token may be behind.
        share: the largest share of one key, or of one user of a key, in the replies that remain, see
            `largest_number`. Of a user with more, the newest stay.
        used: names of the replies of earlier rounds.
    """
    left_out: Counter[str] = Counter()
    kept: list[RatedReply] = []
    for row in rated:
        if reason := _reason(row, lineage, staleness, used):
            left_out[reason] += 1
        else:
            kept.append(row)
    kept = _of_many(kept, share, left_out)
    counts = Counter(row.owner for row in kept)
    limit = largest_number(list(counts.values()), share)
    rows: list[RatedReply] = []
    for row in kept:
        if counts[row.owner] > limit:  # the oldest of a user with too many
            counts[row.owner] -= 1
            left_out[f"over {share:.0%} of one user"] += 1
        else:
            rows.append(row)
    return TrainingRows(rows=tuple(rows), left_out=dict(left_out))


def _of_many(rows: Sequence[RatedReply], share: float, left_out: Counter[str]) -> list[RatedReply]:
    """Leave out scored replies at a temperature that few users have: each temperature is updates of
    its own, so a user with a temperature of his own would have some alone.
    """
    users: dict[float, set[str]] = {}
    for row in rows:
        if row.edit is None:
            users.setdefault(row.temperature, set()).add(row.owner)
    fewest = min(LEAST_USERS, len({row.owner for row in rows})) if share < 1 else 0
    kept = [r for r in rows if r.edit is not None or len(users[r.temperature]) >= fewest]
    if len(kept) < len(rows):
        left_out["at a temperature of few users"] = len(rows) - len(kept)
    return kept


def largest_number(counts: Sequence[int], share: float) -> int:
    """Return the largest number n with n <= s sum(min(count, n)) over the *counts* of all users.

    s is *share*, or twice an equal share where that is more: three users cannot have a tenth each.
    What leaves counts no more, so that nobody raises the number by sending more himself.
    """
    allowed = min(1.0, max(share, 2 / max(1, len(counts))))
    number = max(counts, default=0)
    while (lower := math.floor(allowed * sum(min(c, number) for c in counts) + 1e-9)) < number:
        number = lower
    return max(1, number)


def _reason(row: RatedReply, lineage: Sequence[int], staleness: int, used: Collection[str]) -> str:
    if row.name in used:
        return "in an earlier round"
    if row.edit is not None:
        return ""
    if not row.ids:
        return "without a token"
    if not set(row.versions) <= set(lineage):
        return "of weights that were taken back"
    if max(map(lineage.index, row.versions)) > staleness:
        return f"more than {staleness} versions old"
    if row.temperature == 0:
        return "greedy"
    return "truncated sampling" if row.top_p != 1 else ""
