"""One episode's result (`Rollout`), its `Score`, and the `Group` of rollouts that share a task."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Generic, TypeVar

from .task import Message, Task, ToolCall
from .transcript import Finish, TrainingSequence, Transcript

T = TypeVar("T", bound=Task)
R = TypeVar("R")


class TerminationKind(StrEnum):
    """How an episode can end.

    An exception ends it early. A failure that the policy can have caused is scored; one that it
    cannot have caused is left out of training, retried and counted. A run prints a warning, and
    stores kind and reason with the rollout.

    | kind | raised | cause | then |
    |---|---|---|---|
    | finished | nothing | | the rewards score it |
    | truncated | `LimitReached` | | scored; without a result, with `Environment.early` |
    | policy_fault | `PolicyFault`, by the environment or a reward | policy | scored with `early` |
    | policy_timeout | `PolicyTimeout`, see below | policy | scored with `early` |
    | environment_error | `EnvironmentFault`, or any exception in `rollout` | environment | left out |
    | reward_error | `RewardFault`, or any exception in a reward | environment | left out |
    | infrastructure_error | `InfrastructureError`, anywhere | infrastructure | left out |
    | timeout | nothing: ``limits.seconds`` passed | infrastructure | left out |

    An episode that reaches ``limits.seconds`` ends as policy_timeout if more than half of this time
    was the policy's (`Agent.policy_time`), else as timeout.

    A scored rollout in which the policy sampled no token counts in the metrics and in no baseline
    (`trained`).
    """

    FINISHED = "finished"
    TRUNCATED = "truncated"
    POLICY_FAULT = "policy_fault"
    POLICY_TIMEOUT = "policy_timeout"
    ENVIRONMENT_ERROR = "environment_error"
    REWARD_ERROR = "reward_error"
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    TIMEOUT = "timeout"


CAUSES = {
    TerminationKind.POLICY_FAULT: "policy",
    TerminationKind.POLICY_TIMEOUT: "policy",
    TerminationKind.ENVIRONMENT_ERROR: "environment",
    TerminationKind.REWARD_ERROR: "environment",
    TerminationKind.INFRASTRUCTURE_ERROR: "infrastructure",
    TerminationKind.TIMEOUT: "infrastructure",
}
"""Whose failure each kind is; the kinds that are missing are no failures."""


@dataclass(frozen=True, slots=True)
class Termination:
    """How an episode ended, the limit or error that ended it, and the number of attempts.

    ``early``: the policy ended the episode (a limit or a fault) before the environment returned a
    result, or a reward found a fault of the policy.
    """

    kind: TerminationKind = TerminationKind.FINISHED
    reason: str = ""
    attempts: int = 1
    early: bool = False

    @property
    def cause(self) -> str:
        """Whose failure it is: ``policy``, ``environment`` (its rewards included) or
        ``infrastructure``; empty if nothing failed.
        """
        return CAUSES.get(self.kind, "")

    @property
    def ours(self) -> bool:
        """Whether the failure is not the policy's; such a rollout is left out and counted, never
        scored.
        """
        return self.cause not in ("", "policy")


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A player's turn: the sampled ``text``, its ``reply`` without reasoning and calls, ``tokens``
    if the policy's; ``summary`` if ``limits.compact_at`` asked for it, not the environment.
    """

    text: str
    reply: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    player: str = ""
    tokens: int = 0
    summary: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The score of one rollout by one reward: ``total = value + sum(turns)``.

    Attributes:
        value: for the rollout as a whole.
        turns: per turn of the policy, added to the tokens of that turn. Scores that are fewer than
            the turns leave summaries (`Turn.summary`) out.
        players: per player, where players score differently; players without an entry get the
            total.
        parts: named components for the logs.
        reason: one line for people.
    """

    value: float = 0.0
    turns: tuple[float, ...] = ()
    players: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.turns, tuple):
            object.__setattr__(self, "turns", tuple(self.turns))

    @property
    def total(self) -> float:
        return self.value + math.fsum(self.turns)

    def spread(self, turns: Sequence[Turn]) -> Score:
        """Return a score that has 0 for the summaries among the policy's *turns*, where this one
        leaves them out.
        """
        if not 0 < len(self.turns) <= sum(not turn.summary for turn in turns) < len(turns):
            return self
        given = iter(self.turns)
        spread = (0.0 if turn.summary else next(given, 0.0) for turn in turns)
        return dataclasses.replace(self, turns=tuple(spread))

    def of_player(self, player: str) -> float:
        return self.players.get(player, self.total)


@dataclass(frozen=True, kw_only=True)
class Rollout(Generic[T, R]):
    """The record of one episode, as plain data: what rewards see and what is stored.

    Attributes:
        task, result: the task, and what `Environment.rollout` returned.
        termination: how it ended.
        metrics: numbers that the environment reported.
        turns: of all conversations, in the order in which they ended; ``Turn.player`` is the name of
            the conversation, "" that of the policy's own first one.
        messages: the whole of the policy's own first conversation, with what was taken out of its
            context.
        transcripts: exact tokens by conversation. The first one of a player has its name ("" is the
            policy's own player); `conversations` says whose the others are.
        outcome, shaping: the scores; ``None`` before scoring, after a failure, and where there is no
            such reward.
        yardstick: a score that never trains; ``None`` without one, and where it failed.
        environment, group, sample, seed: its origin; *group* counts from the start of the run.
        seconds: wall time of the episode.
    """

    task: T
    result: R = None  # type: ignore[assignment]
    termination: Termination = Termination()
    metrics: Mapping[str, float] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    messages: tuple[Message, ...] = ()
    transcripts: Mapping[str, Transcript] = field(default_factory=dict)
    outcome: Score | None = None
    shaping: Score | None = None
    yardstick: Score | None = None
    environment: str = ""
    group: int = 0
    sample: int = 0
    seed: int = 0
    seconds: float = 0.0

    @property
    def reply(self) -> str:
        """The policy's last reply, without reasoning; empty if it took no turn."""
        return next((t.reply for t in reversed(self.turns) if not t.player), "")

    @property
    def conversations(self) -> dict[str, tuple[str, ...]]:
        """Names of the conversations of each player that have tokens: its first, then the others in
        the order of their first turns.
        """
        first = {turn.player: i for i, turn in reversed([*enumerate(self.turns)])}
        of_player: dict[str, list[str]] = {}
        for name, transcript in self.transcripts.items():
            player = name if transcript.player is None else transcript.player
            of_player.setdefault(player, []).append(name)
        end = len(self.turns)
        return {
            player: tuple(sorted(names, key=lambda name: (name != player, first.get(name, end))))
            for player, names in of_player.items()
        }

    @property
    def valid(self) -> bool:
        """Whether it can be scored and trained on."""
        return not self.termination.ours

    @property
    def total(self) -> float:
        """Outcome and shaping together; 0 also for a rollout that failed or was not scored, so ask
        `valid` first.
        """
        return (self.outcome.total if self.outcome else 0.0) + (
            self.shaping.total if self.shaping else 0.0
        )

    def scores_of(self, player: str) -> tuple[float, float]:
        """Return outcome and shaping of *player*, each 0 where there is none."""
        return (
            self.outcome.of_player(player) if self.outcome else 0.0,
            self.shaping.of_player(player) if self.shaping else 0.0,
        )

    @property
    def tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(t.sampled for t in self.transcripts.values()) or sum(
            t.tokens for t in self.turns
        )

    def replace(self, **changes: Any) -> Rollout[T, R]:
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON; `from_json` restores the rollout."""
        of_these_types = Rollout.__class_getitem__((type(self.task), type(self.result)))  # type: ignore[attr-defined]
        data = dict(type_adapter(of_these_types).dump_python(self, mode="json"))
        for transcript in data["transcripts"].values():
            for branch in transcript["branches"]:
                # of mixtures alone, so that other records are what they were
                if not branch["experts"]:
                    del branch["experts"]
        return data

    @staticmethod
    def from_json(
        data: Mapping[str, Any], task: type[Task] = Task, result: Any = Any
    ) -> Rollout[Any, Any]:
        """Rebuild from `to_json`, with the types of task and result that the environment uses; it
        may lack a result.
        """
        of_these_types = Rollout.__class_getitem__((task, result | None))  # type: ignore[attr-defined]
        rollout: AnyRollout = type_adapter(of_these_types).validate_python(data)
        return rollout


@lru_cache(maxsize=1024)
def type_adapter(annotation: Any, *, arbitrary: bool = False) -> Any:
    """Return pydantic's validator and serialiser of a type; with *arbitrary* also of classes that
    pydantic does not know.
    """
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(
        annotation, config=ConfigDict(arbitrary_types_allowed=True) if arbitrary else None
    )


@dataclass(frozen=True, kw_only=True)
class Group(Generic[T, R]):
    """The rollouts of one task: the unit that group rewards, baselines and group filters see."""

    task: T
    rollouts: tuple[Rollout[T, R], ...]
    environment: str = ""
    index: int = 0

    @property
    def valid(self) -> tuple[Rollout[T, R], ...]:
        """The samples that can be scored and trained on."""
        return tuple(r for r in self.rollouts if r.valid)


AnyRollout = Rollout[Any, Any]
AnyGroup = Group[Any, Any]

SUCCESS = 1.0
"""The lowest outcome that is a success."""
SCORE_TOLERANCE = 1e-9
"""A score that misses a threshold by less reaches it: a sum of weights may miss 1 by a rounding
error.
"""
SPREAD_TOLERANCE = 1e-12
"""Spread up to which scores are equal, whatever their size: sums of weights of about 1 that should
cancel miss 0 by less.
"""
ROUNDING = 8 * sys.float_info.epsilon
"""Rounding error of a sum of a few terms, as a share of its magnitude."""


def are_equal(scores: Sequence[float], tolerance: float = SPREAD_TOLERANCE) -> bool:
    """Return whether *scores* differ by no more than *tolerance*, or than the rounding of doubles of
    their size.

    The rule for advantages, group filters and metrics. Scores of any scale and offset differ by it
    if doubles hold the difference: 1e7 and 1e7 + 1 do, and so do 1e-9 and 2e-9.
    """
    if not scores:
        return True
    highest, lowest = max(scores), min(scores)
    return highest - lowest <= max(tolerance, ROUNDING * max(abs(highest), abs(lowest)))


def reaches(value: float, threshold: float = SUCCESS) -> bool:
    """Return whether *value* is at least *threshold*, up to rounding."""
    return value >= threshold - SCORE_TOLERANCE


def trained(
    groups: Sequence[Group[Any, Any]],
) -> Iterator[tuple[Rollout[Any, Any], str, tuple[TrainingSequence, ...]]]:
    """Yield every valid rollout of *groups* with each player that sampled tokens, and the token
    sequences of that player: all branches of all its conversations.

    A rollout without a sampled token is left out of baselines and denominators, too. The policy did
    nothing for its reward: even to end a turn is a token. It would make the update noisier, and the
    direction of the gradient is right without it. Not so where the policy itself, as another
    player, decides whether this one gets a turn: a player that seldom moves then has a smaller
    share of the gradient (docs/games.md, "Whose tokens train").
    """
    for group in groups:
        for rollout in group.valid:
            for player, names in rollout.conversations.items():
                sequences: list[TrainingSequence] = []
                for name in names:
                    sequences += rollout.transcripts[name].sequences()
                if sequences:
                    yield rollout, player, tuple(sequences)
