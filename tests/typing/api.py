"""The author-facing surface as a type checker sees it. Never run: `make lint` checks it with mypy
--strict.

Each ``type: ignore`` is a mistake that must be caught: unused ignores are errors, so missing one
fails the check.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, assert_type

from quintain.interfaces import AnyLearner
from quintain.interfaces.agent import Agent, Limits
from quintain.interfaces.engine import Engine, Reply, TokenEngine
from quintain.interfaces.environment import Demonstration, Environment, control
from quintain.interfaces.reward import Reward, group_reward, reward
from quintain.interfaces.service import Judge, Sandbox, Service, Workers, need
from quintain.interfaces.shared_module import SharesModule
from quintain.interfaces.tools import Tool, ToolSpec
from quintain.learning import Learner
from quintain.testing import rollout
from quintain.types.rollout import Rollout, Score, Turn
from quintain.types.sampling import Sampling
from quintain.types.task import Message, Task
from quintain.types.transcript import Transcript
from quintain_authoring import EnvironmentSuite, RewardSuite, ScriptedEngine, run_episode
from quintain_learners.lean import LeanLearner


@dataclass(frozen=True, kw_only=True)
class Secret(Task):
    digits: int = 3


@dataclass(frozen=True, kw_only=True)
class Board:
    open: bool
    guesses: tuple[str, ...] = ()


@reward(range=(0, 1))
def found(rollout: Rollout[Secret, Board]) -> float:
    assert_type(rollout.task.digits, int)
    assert_type(rollout.result.open, bool)
    assert_type(rollout.turns, tuple[Turn, ...])
    assert_type(rollout.transcripts, Mapping[str, Transcript])
    assert_type(rollout.reply, str)
    return float(rollout.result.open)


@reward
def brevity(rollout: Rollout[Any, Any]) -> float:
    return -len(rollout.reply)


@reward
async def kind(rollout: Rollout[Any, Any], *, rubric: str, judge: Judge = need()) -> Score:
    judgement = await judge.grade(rollout.task.prompt, rollout.reply, rubric)
    return Score(value=judgement.score, reason=judgement.reason)


@reward
async def checked(rollout: Rollout[Any, Any], *, workers: Workers = need()) -> bool:
    return bool(await workers.call("operator:eq", rollout.reply, "4", timeout=1))


@group_reward
async def ranked(group: Sequence[Rollout[Any, Any]], *, judge: Judge = need()) -> Sequence[float]:
    return [float(i) for i in range(len(group))]


@group_reward(range=(0, 1))
def shortest(group: Sequence[Rollout[Secret, Board]]) -> list[float]:
    least = min(len(r.reply) for r in group)
    return [float(len(r.reply) == least) for r in group]


assert_type(0.1 * kind(rubric="polite") + ranked.clip(-1, 1), Reward)
assert_type(found * brevity - 1, Reward)
assert_type(found.gate(brevity, 0.5).ramp(1, 0, 100), Reward)
kind(rubic="polite")  # type: ignore[call-arg]
kind(rubric=3)  # type: ignore[arg-type]
kind()  # type: ignore[call-arg]
found(1)  # type: ignore[call-arg]
found + "text"  # type: ignore[operator]


@reward  # type: ignore[arg-type]
def says_text(rollout: Rollout[Any, Any]) -> str:
    return rollout.reply


@group_reward  # type: ignore[arg-type]
def says_one(group: Sequence[Rollout[Any, Any]]) -> float:
    return 1.0


class Vault(Environment[Secret, Board]):
    reward = found
    shaping = 0.1 * kind(rubric="polite") + ranked.clip(-1, 1)
    limits = Limits(turns=8)
    digits: int = 3
    sandbox: Sandbox = need()

    def tasks(self, split: str) -> Iterable[Secret]:
        yield Secret(prompt=f"{split} {self.digits}", answer="7", level=0.5)

    async def rollout(self, task: Secret, agent: Agent) -> Board:
        agent.system("Be brief.")
        agent.user(task.prompt)
        guesses: list[str] = []
        async for turn in agent.turns():
            assert_type(turn, Turn)
            guesses.append(turn.reply)
            await self.sandbox.run({"guess.py": turn.reply.encode()}, ["python3", "guess.py"])
            agent.user([Message("user", "no", name="board")])
        assert_type(await agent.run(self.look, Tool(spec=ToolSpec(name="x"), call=_call)), Turn)
        assert_type(agent.player("guest"), Agent)
        agent.metric(luck=agent.rng.random())
        return Board(open=task.answer in guesses, guesses=tuple(guesses))

    def look(self, where: str) -> str:
        """Look there."""
        return where

    @control(scores="min")
    def hack(self, task: Secret, messages: Sequence[Message]) -> str | Reply:
        return Reply(text="all numbers")

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        return [Demonstration(prompt="?", reply="7")]


class Box(Sandbox):
    async def run(self, files: Mapping[str, bytes], argv: Sequence[str], stdin: bytes = b"") -> Any:
        raise NotImplementedError


class NoBox(Service):
    pass


Vault(sandbox=Box(), digits=4)
Vault(sandbox=Box(), digit=4)  # type: ignore[call-arg]
Vault(sandbox=NoBox())  # type: ignore[arg-type]
Vault(sandbox=Box(), digits="4")  # type: ignore[arg-type]
Vault().digits = 5  # type: ignore[misc]
control(scores="most")  # type: ignore[arg-type]
Limits(turn=3)  # type: ignore[call-arg]
Task("positional")  # type: ignore[call-arg]
Message("human", "hi")  # type: ignore[arg-type]


async def _call(arguments: Mapping[str, Any]) -> str:
    return ""


class Canned(Engine):
    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        return Reply(text="4")


class Half(TokenEngine):
    """Lacks `score` and `update`, so it cannot be made."""

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Any: ...


class Lent(Half):
    @classmethod
    def sharing(
        cls, module: Any, tokenizer: Any, *, dtype: str | None = None, rows: int = 4
    ) -> TokenEngine:
        raise NotImplementedError


Half()  # type: ignore[abstract]
lending: SharesModule = Lent
lending = Half  # type: ignore[assignment]


def trains(learner: Learner) -> AnyLearner:
    return learner


def trains_in_less_memory(learner: LeanLearner) -> AnyLearner:
    return learner


secret = Secret(prompt="?", answer="7")
assert_type(rollout(secret, "text").task, Secret)
assert_type(run_episode(Vault(sandbox=Box()), secret, ["1", "7"]).task, Secret)
run_episode(Vault(sandbox=Box()), secret, lambda messages: messages[-1].content)
run_episode(Vault(sandbox=Box()), secret, Canned())
run_episode(Vault(sandbox=Box()), secret, ScriptedEngine(replies=["1"], fail_on=[2]))
assert_type(found.score(rollout(secret, "text", result=Board(open=True))), Score)


class TestVault(EnvironmentSuite):
    environment = Vault
    args: ClassVar[Mapping[str, Any]] = {"digits": 4}


class TestFound(RewardSuite):
    reward = found

    def gold(self) -> Sequence[tuple[Rollout[Any, Any], float]]:
        return [(rollout(secret, "7", result=Board(open=True)), 1.0)]
