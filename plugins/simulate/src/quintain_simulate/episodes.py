"""Simulated episodes: how long their turns are, how long their tools take, and what they leave."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random
from typing import Any, NamedTuple

from quintain import Environment, Rollout, Score, Task, Termination, Transcript
from quintain.errors import InfrastructureError
from quintain.rollouts import RolloutRequest
from quintain.types import (
    AnyRollout,
    Branch,
    TerminationKind,
    TokenSource,
    TrainingSequence,
    derived_seed,
)

from .decoder import SimulatedTurn
from .distributions import Distribution
from .fleet import NOBODY, Cluster, prompt_of


class EpisodeStep(NamedTuple):
    """One turn of an episode: tokens that come before it, sampled tokens, and seconds after it."""

    added: float
    tokens: int
    wait: float


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """What episodes are like.

    Attributes:
        turns: of an episode.
        prompt: tokens of a task, shared by its group.
        reply: tokens that a turn samples, at most *most*.
        added: tokens that a tool adds before each further turn.
        wait: seconds of the environment after each turn: a tool, or a sandbox that scores.
        start: seconds before the first turn: a sandbox that starts.
        lost: share of episodes that fail through no fault of the policy.
        measured: episodes of a run, of which one is drawn instead. Its replies have at most *most*
            tokens, too.
    """

    turns: Distribution
    prompt: Distribution
    reply: Distribution
    added: Distribution
    wait: Distribution
    start: Distribution
    most: int
    lost: float = 0.0
    measured: Sequence[Sequence[EpisodeStep]] = ()

    def draw(self, random: Random) -> Iterator[EpisodeStep]:
        """Yield the turns of an episode."""
        if self.measured:
            for step in random.choice(self.measured):
                yield step._replace(tokens=min(self.most, step.tokens))
            return
        for number in range(max(1, round(self.turns.draw(random)))):
            added = round(self.added.draw(random)) if number else 0
            tokens = min(self.most, max(1, round(self.reply.draw(random))))
            yield EpisodeStep(added, tokens, self.wait.draw(random))


class Simulated(Environment[Task, Any]):
    """Has endless tasks. Its episodes are played by `EpisodePlayer`, which also scores them."""

    reward = NOBODY

    def tasks(self, split: str) -> Iterator[Task]:
        for number in itertools.count():
            yield Task(prompt="", id=str(number))


class EpisodePlayer:
    """Plays episodes on a simulated engine; an instance is `RolloutContext.play`.

    Args:
        episodes: what they are like.
        cluster: whose engine samples.
        seed: of their lengths and waits, which do not depend on when they run.
    """

    def __init__(self, episodes: Episodes, cluster: Cluster, seed: int) -> None:
        self._episodes, self._cluster, self._seed = episodes, cluster, seed
        self._numbers = itertools.count()
        self._prompt_of = lru_cache(maxsize=1 << 20)(self._drawn_prompt)

    def _drawn_prompt(self, group: int) -> float:
        """Return the tokens that the episodes of *group* share."""
        random = Random(derived_seed(self._seed, "prompt", group))
        return round(self._episodes.prompt.draw(random))

    async def __call__(
        self, request: RolloutRequest, sample: int, context: Any, attempt: int
    ) -> AnyRollout:
        """Play one attempt. The transcript has one token for each version of the weights; the
        result has how many they stand for.
        """
        random = Random(derived_seed(self._seed, request.index, sample, attempt))
        engine = context.engine.for_task(request.task)
        loop = asyncio.get_running_loop()
        began = loop.time()
        if start := self._episodes.start.draw(random):
            await asyncio.sleep(start)
        shared = self._prompt_of(request.index)
        length, spans = shared, list[tuple[int, int]]()
        termination = Termination(attempts=attempt)
        number = next(self._numbers)
        try:
            if self._episodes.lost and random.random() < self._episodes.lost:
                raise InfrastructureError("the simulated sandbox failed")
            for step in self._episodes.draw(random):
                length += step.added
                self._cluster.turns[number] = SimulatedTurn(
                    group=request.index,
                    shared=shared,
                    episode=number,
                    prompt=length,
                    tokens=step.tokens,
                )
                sampled = await engine.sample(prompt_of(request.index, number), context.sampling)
                spans += zip(sampled.versions, map(int, sampled.logps), strict=True)
                length += step.tokens
                if step.wait:
                    await asyncio.sleep(step.wait)
        except InfrastructureError as error:
            kind = TerminationKind.INFRASTRUCTURE_ERROR
            termination = Termination(kind, str(error), attempts=attempt)
        finally:
            self._cluster.turns.pop(number, None)
        # Those of a group differ, so that no group is without a signal.
        score = Score(value=float(sample % 2)) if not termination.ours else None
        return Rollout(
            task=request.task,
            result=tuple(spans),
            termination=termination,
            metrics={"length": float(length)},
            transcripts={"": _transcript(tuple(version for version, _ in spans))},
            outcome=score,
            environment=request.name,
            group=request.index,
            sample=sample,
            seconds=loop.time() - began,
        )


class VersionsTranscript(Transcript):
    """A transcript that computes its sequences once: thousands of rollouts have the same one."""

    @cached_property
    def _sequences(self) -> list[TrainingSequence]:
        return super().sequences()

    def sequences(self) -> list[TrainingSequence]:
        return self._sequences


@lru_cache(maxsize=65_536)
def _transcript(versions: tuple[int, ...]) -> Transcript:
    """Return a transcript of one token for each of *versions*."""
    count = len(versions)
    branch = Branch(
        ids=(0,) * count,
        sources=(TokenSource.MODEL,) * count,
        logps=(0.0,) * count,
        versions=versions,
    )
    return VersionsTranscript(branches=(branch,))


def spans_of(rollout: AnyRollout) -> tuple[tuple[int, int], ...]:
    """Return version and number of tokens of each span that *rollout* has sampled."""
    return rollout.result or ()
