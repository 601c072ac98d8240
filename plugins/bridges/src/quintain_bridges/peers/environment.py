"""The environment `peer_tasks`: tasks of another library, which asks and scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from quintain import (
    Agent,
    Environment,
    Limits,
    Message,
    Rollout,
    Score,
    Task,
    control,
    need,
    reward,
)
from quintain.errors import RewardFault, UsageError

from ..pictures import message_of
from .process import Peer


@dataclass(frozen=True, kw_only=True)
class PeerTask(Task):
    """A task of the other library, by its number there."""

    number: int


@dataclass(frozen=True, kw_only=True)
class PeerScore:
    """What the library's scorers gave; ``None`` where they gave no number.

    Attributes:
        parts: rewards and metrics by name.
    """

    value: float | None
    reason: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)


@reward
def score_of_peer(rollout: Rollout[PeerTask, PeerScore]) -> Score:
    """What the library's own scorers gave.

    Raises:
        RewardFault: they gave no number.
    """
    result = rollout.result
    if result.value is None:
        raise RewardFault(f"the scorers gave no number: {result.reason}")
    return Score(value=result.value, reason=result.reason, parts=dict(result.parts))


class PeerTasks(Environment[PeerTask, PeerScore]):
    """Tasks of Inspect or of verifiers, as the service `peer` names them. A solver of Inspect that
    generates several times asks several turns.

    Attributes:
        evaluation: list all tasks as ``test``, so that no run trains on them. Off, eight of ten are
            ``train``.
    """

    reward, limits = score_of_peer, Limits(turns=20)
    kinds: ClassVar[tuple[str, ...]] = ("inspect", "verifiers")

    evaluation: bool = True
    peer: Peer = need()

    def tasks(self, split: str) -> Iterable[PeerTask]:
        if self.peer.kind not in self.kinds:
            raise UsageError(
                f"peer: kind is {self.peer.kind!r}; this environment plays {', '.join(self.kinds)}"
            )
        for number, task in enumerate(self.peer.tasks()):
            of = {0: "dev", 1: "test"}.get(number % 10, "train")
            if split == ("test" if self.evaluation else of):
                yield PeerTask(
                    prompt=task["prompt"] or f"task {number}",
                    answer=task.get("answer"),
                    id=f"{self.peer.kind}-{number}",
                    number=number,
                )

    async def rollout(self, task: PeerTask, agent: Agent) -> PeerScore:
        async with self.peer.episode(task.number) as episode:
            told = await episode.next()
            while "ask" in told:
                agent.user([message_of(m["role"], m["content"]) for m in told["ask"]])
                told = await episode.next((await agent.turn()).reply)
            return PeerScore(**told["done"])

    @control(scores="max")
    def oracle(self, task: PeerTask, messages: Sequence[Message]) -> str:
        """Reply with the answer that the task stores."""
        if task.answer is None:
            raise UsageError("the task stores no answer, so no reply is known to be right")
        return str(task.answer)
