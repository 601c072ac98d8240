"""Conformance of environments in which the policy plays several players."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from quintain import Engine, Environment, Message, Reply, Sampling, Task, ToolSpec
from quintain.errors import UsageError
from quintain.types import SCORE_TOLERANCE, reaches
from quintain_authoring import ControlEngine, EnvironmentSuite


class SeatedControls(Engine):
    """The control *control* plays *player*; the control *others* plays every other player of the
    policy.
    """

    def __init__(
        self, environment: Environment[Any, Any], control: str, player: str, others: str
    ) -> None:
        self.name = f"@{control} as {player or 'the first player'}, @{others} as the others"
        self._environment, self._names, self._player = environment, (control, others), player
        self._engines = ControlEngine(environment, control), ControlEngine(environment, others)

    def for_task(self, task: Task) -> SeatedControls:
        control, others = self._names
        bound = SeatedControls(self._environment, control, self._player, others)
        bound._engines = self._engines[0].for_task(task), self._engines[1].for_task(task)
        return bound

    def for_player(self, name: str) -> Engine:
        player_engine, others = self._engines
        return (player_engine if name == self._player else others).for_player(name)

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        """Raise a `UsageError`: each player has an engine of its own."""
        raise UsageError(f"{self.name}: bind it with for_task(task), then for_player(name)")


class SelfPlaySuite(EnvironmentSuite):
    """`EnvironmentSuite` for self-play: each control plays one player, against a control that plays
    the others.

    If one control played all of them, `oracle` would lose to itself. Episodes are of the first of
    `splits`; put the one with self-play first.

    Attributes:
        players: names of the players that the policy plays; ``""`` is the first.
        weak: the control that plays the others, where one marked ``"max"`` plays.
        strong: the same for one marked ``"min"``.
        total: sum of the outcomes of all `players` in each episode, as in a zero-sum game; ``None``
            is not checked.
    """

    players: ClassVar[Sequence[str]] = ("",)
    weak: ClassVar[str] = "nop"
    strong: ClassVar[str] = "oracle"
    total: ClassVar[float | None] = None

    def test_controls_score_as_marked(self) -> None:
        environment = self.build()
        for name, scores in environment.control_marks().items():
            for player in self.players if scores else ():
                engine = SeatedControls(
                    environment, name, player, self.weak if scores == "max" else self.strong
                )
                for r in self.play(engine, concurrency=self.episodes):
                    where = f"{engine.name}, task {r.task.id} ({r.task.prompt!r:.200})"
                    assert r.valid, (
                        f"{where} ended with {r.termination.kind}: {r.termination.reason}"
                    )
                    assert r.outcome is not None
                    got = r.outcome.of_player(player)
                    if scores == "max":
                        assert reaches(got, self.highest), (
                            f"{where}: scored {got}; expected {self.highest}"
                        )
                    else:
                        assert got <= self.lowest + SCORE_TOLERANCE, (
                            f"{where}: scored {got}; expected {self.lowest}"
                        )

    def test_every_player_of_the_policy_plays(self) -> None:
        names = {
            t.player for r in self.play(ControlEngine(self.build(), self.strong)) for t in r.turns
        }
        missing = sorted(set(self.players) - names)
        assert not missing, (
            f"no episode of @{self.strong} has a turn of {missing}; its players are {sorted(names)}"
        )

    def test_outcomes_of_the_players_have_a_constant_sum(self) -> None:
        if self.total is None:
            return
        environment = self.build()
        for control, others in (
            (self.strong, self.strong),
            (self.strong, self.weak),
            (self.weak, self.strong),
        ):
            for r in self.play(SeatedControls(environment, control, self.players[0], others)):
                outcome = r.outcome
                assert outcome is not None, (
                    f"task {r.task.id} ended with {r.termination.kind}: {r.termination.reason}"
                )
                total = math.fsum(outcome.of_player(player) for player in self.players)
                assert abs(total - self.total) <= SCORE_TOLERANCE, (
                    f"@{control} against @{others}, task {r.task.id}: the outcomes of "
                    f"{list(self.players)} add up to {total}; expected {self.total}"
                )
