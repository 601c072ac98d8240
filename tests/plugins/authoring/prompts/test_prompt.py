"""`quintain prompt` with the real GEPA: it finds the better message, resumes, and leaves out failures."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from queue import Queue
from random import Random
from typing import Any

import pytest

from quintain import Environment, InfrastructureError, Message, Sampling, Task, reward
from quintain.cli import main
from quintain.registry.lookup import Registry, isolated
from quintain.types.rollout import Rollout
from quintain_authoring import ScriptedEngine
from quintain_authoring.prompts.adapter import HELD_OUT as DEV
from quintain_authoring.prompts.adapter import (
    SYSTEM,
    TRAIN,
    EnvironmentAdapter,
    PairedImprovement,
    TaskPosition,
)
from quintain_authoring.prompts.search import FIRST, Looped, PromptSearch, Reflecting
from quintain_gateway.serving import ModelServer

from ....lanes import needs

pytestmark = needs("gepa", "GEPA is not installed")
REFLECTION = "I provided an assistant with the following instructions"
PROMPTS: list[str] = []
HELD_OUT: list[str] = []
"""System messages under which tasks of dev were answered."""


@reward
def shouted(rollout: Rollout) -> float:
    return float(rollout.reply.isupper())


class Shout(Environment[Task, None]):
    """A reply has to be in capitals, which no task says."""

    reward = shouted
    system = "Answer."
    broken: str = ""

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=f"{split} {n}", id=f"{split}-{n}") for n in range(8)]

    async def rollout(self, task: Task, agent: Any) -> None:
        if task.id == self.broken:
            raise InfrastructureError("the server of this task is down")
        agent.user(task.prompt)
        await agent.turn()


class Told(Shout):
    """Its tasks have system messages of their own."""

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=[Message("system", "Mine."), Message("user", "?")])]


class Described(Shout):
    """What its tool does stands in an argument, and so does a rubric that every prompt has."""

    tool: str = "A tool."
    rubric: str = "Be right."

    async def rollout(self, task: Task, agent: Any) -> None:
        agent.user(f"{task.prompt}\n{self.rubric}\n{self.tool}")
        await agent.turn()


class Ordered(Environment[Task, None]):
    """Its argument stands in the prompts of its tasks, and so in their ids."""

    reward = shouted
    order: str = "Say yes."
    listed: str = "0 1 2 3 4 5 6 7"
    right: str = ""

    def tasks(self, split: str) -> Iterable[Task]:
        return [
            Task(prompt=f"{split} {n}: {self.order}", answer=f"{n}{self.right}")
            for n in self.listed.split()
        ]

    async def rollout(self, task: Task, agent: Any) -> None:
        agent.user(task.prompt)
        await agent.turn()


class Ordering(ScriptedEngine):
    """Shouts if the prompt says so; as the reflecting model it proposes *proposal*."""

    proposal: str = "SHOUT yes."

    def __init__(self) -> None:
        super().__init__(replies=self._answered)

    def _answered(self, messages: Sequence[Message], rng: Random) -> str:
        text = messages[-1].content
        if text.startswith(REFLECTION):
            PROMPTS.append(text)
            return f"```\n{self.proposal}\n```"
        HELD_OUT.append(text)
        return "YES" if "SHOUT" in text else "yes"


class Reads(ScriptedEngine):
    """Shouts if the description of the tool says so and the rubric asks for it, whatever the system
    message is; as the reflecting model it proposes what the text that it is shown lacks.
    """

    def __init__(self) -> None:
        super().__init__(replies=self._answered)

    def _answered(self, messages: Sequence[Message], rng: Random) -> str:
        text = messages[-1].content
        if text.startswith(REFLECTION):
            PROMPTS.append(text)
            return "```\nIt shouts.\n```" if "A tool." in text[:200] else "```\nBe loud.\n```"
        HELD_OUT.append(messages[0].content)
        return "YES" if "It shouts." in text and "Be " in text else "yes"


class Obedient(ScriptedEngine):
    """Shouts if the system message says so; as the reflecting model it proposes a bad message, then
    the good one.
    """

    def __init__(self, delay: float = 0.0) -> None:
        super().__init__(replies=self._answered, delay=delay)

    def _answered(self, messages: Sequence[Message], rng: Random) -> str:
        text = messages[-1].content
        if text.startswith(REFLECTION):
            PROMPTS.append(text)
            return "```\nWhisper.\n```" if len(PROMPTS) == 1 else "```\nShout.\n```"
        if text.startswith("dev"):
            HELD_OUT.append(messages[0].content)
        return "YES" if messages[0].content == "Shout." else "yes"


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    PROMPTS.clear()
    HELD_OUT.clear()
    monkeypatch.chdir(tmp_path)
    with isolated(keep=["quintain", "quintain-authoring", "quintain-engines"]) as registry:
        registry.add("environment", "shout", Shout)
        registry.add("environment", "told", Told)
        registry.add("environment", "described", Described)
        registry.add("engine", "obedient", Obedient)
        registry.add("environment", "ordered", Ordered)
        registry.add("engine", "reads", Reads)
        registry.add("engine", "ordering", Ordering)
        yield registry


OPTIONS = ("--engine", "obedient", "--tasks", "6", "--held-out", "4", "--budget", "40")


def prompted(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["prompt", words[0], *OPTIONS, *words[1:]])
    out = capsys.readouterr()
    return status, out.out, out.err


@pytest.mark.usefixtures("plugins")
def test_the_better_message_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = prompted(capsys, "shout", "--json")
    found = json.loads(out)
    assert status == 0, err
    assert found["first"] == {"system": "Answer."}
    assert found["first_score"] == 0
    assert found["texts"] == {"system": "Shout."}
    assert found["score"] == 1
    assert Path(found["files"]["system"]).read_text() == "Shout."
    assert found["candidates"] == 2, "the bad proposal was not measured on held-out tasks"
    assert "Score 0." in PROMPTS[0]
    assert "yes" in PROMPTS[0]


@pytest.mark.usefixtures("plugins")
def test_arguments_are_optimised_where_they_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The system message stays as it is, and the first texts are the arguments that were given."""
    words = ("described", "--engine", "reads", "--text", "tool", "--text", "rubric")
    given = ("--system", "Mine.", "--arg", "rubric=Be kind.")
    status, out, err = prompted(capsys, *words, *given, "--json")
    assert status == 0, err
    found = json.loads(out)
    assert found["first"] == {"tool": "A tool.", "rubric": "Be kind."}
    assert (found["first_score"], found["score"]) == (0, 1)
    assert found["texts"] == {"tool": "It shouts.", "rubric": "Be kind."}
    assert {name: Path(file).read_text() for name, file in found["files"].items()} == found["texts"]
    assert set(HELD_OUT) == {"Mine."}
    status, out, err = prompted(capsys, *words, *given)  # resumed, and over
    assert status == 0, err
    assert '--arg tool="$(cat prompts/described/tool.txt)"' in out
    assert '--set environments.0.args.tool="$(cat prompts/described/tool.txt)"' in out


ORDERED = ("ordered", "--engine", "ordering", "--text")


@pytest.mark.usefixtures("plugins")
def test_an_argument_that_tasks_write_into_the_prompt_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A candidate plays the tasks of its own environment at the same positions."""
    words = (*ORDERED, "order", "--json")
    status, out, err = prompted(capsys, *words, "--budget", "10")
    assert status == 0, err
    found = json.loads(out)
    assert found["texts"] == {"order": "SHOUT yes."}
    assert (found["first_score"], found["score"]) == (0, 1)
    assert found["rollouts"] == 4 + 3 + 3 + 4, "first, parent, candidate, candidate held out"
    positions = {
        order: sorted(t.split(":")[0] for t in HELD_OUT if t.endswith(order))
        for order in ("Say yes.", "SHOUT yes.")
    }
    assert positions["Say yes."] == positions["SHOUT yes."]
    assert len(set(positions["Say yes."])) == 4 + 3
    assert "SHOUT" not in PROMPTS[0]
    status, out, err = prompted(capsys, *words, "--budget", "16")  # resumed
    assert status == 0, err
    assert json.loads(out)["first_score"] == 0
    assert sum(t.startswith("dev") and t.endswith("Say yes.") for t in HELD_OUT) == 4
    assert "SHOUT yes." in PROMPTS[1], "a reflection reads the prompts of its parent"
    status = main(
        ["eval", "ordered", "--engine", "ordering", "--arg", "order=SHOUT yes.", "--json"]
    )
    assert status == 0
    assert json.loads(capsys.readouterr().out)["reward"] == 1


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    "name, proposal, said",
    [
        ("listed", "0 1 2 3 4", "5 tasks of 'train' in place of 6"),
        ("listed", "0 1 9 3 4 5 6 7", "the answer '9' in place of '2' to task 2 of 'train'"),
        ("right", "!", "the answer '0!' in place of '0' to task 0 of 'train'"),
    ],
)
def test_a_text_that_makes_other_tasks_is_refused(
    name: str,
    proposal: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ordering, "proposal", proposal)
    status, _, err = prompted(capsys, *ORDERED, name)
    assert status == 2
    assert "other texts make other tasks" in err
    assert said in err
    assert f"{name} = {proposal!r}" in err
    assert len(HELD_OUT) == 4 + 3, "nothing was played with these texts"


@pytest.mark.usefixtures("plugins")
def test_a_name_that_is_no_text_argument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = prompted(capsys, "described", "--text", "limits")
    assert status != 0
    assert "known: system, broken, tool, rubric" in err


@pytest.mark.usefixtures("plugins")
def test_a_search_is_resumed_without_a_second_measurement(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, _ = prompted(capsys, "shout", "--json", "--budget", "10")
    first = json.loads(out)
    status, out, err = prompted(capsys, "shout", "--json", "--budget", "30")
    again = json.loads(out)
    assert status == 0, err
    assert first["rollouts"] < again["rollouts"]
    assert again["texts"] == {"system": "Shout."}
    assert HELD_OUT.count("Answer.") == 4, "one measurement of four tasks"


@pytest.mark.usefixtures("plugins")
def test_another_setting_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert prompted(capsys, "shout", "--budget", "4")[0] == 0
    status, _, err = prompted(capsys, "shout", "--seed", "7")
    assert status != 0
    assert "begun with seed 0, not 7" in err


@pytest.mark.usefixtures("plugins")
def test_tasks_with_a_message_of_their_own_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = prompted(capsys, "told")
    assert status != 0
    assert "a system message of its own" in err


@pytest.mark.usefixtures("plugins")
def test_a_dry_run_samples_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = prompted(capsys, "shout", "--dry-run")
    assert status == 0
    assert "first system message: 'Answer.'" in out
    assert not Path("prompts").exists()


@pytest.mark.usefixtures("plugins")
def test_failures_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = prompted(capsys, "shout", "--json", "--arg", "broken=dev-1")
    found = json.loads(out)
    assert status == 0
    assert found["score"] == 1, "the failure is no zero"
    assert any("server of this task is down" in reason for reason in found["failures"])


COUNTS = {TRAIN: 8, DEV: 8}


def evaluated(broken: str, tasks: Sequence[int], place: Path) -> Any:
    """Evaluate a candidate that succeeds on some tasks of train."""
    environment, engine = Shout(broken=broken), ScriptedEngine(replies="YES")

    async def main() -> Any:
        loop = Looped(asyncio.get_running_loop())
        adapter = EnvironmentAdapter(
            environment,
            engine,
            first={SYSTEM: "Answer."},
            counts=COUNTS,
            settings={},
            wait=loop,
            memory=place / FIRST,
        )
        batch = [TaskPosition(TRAIN, n) for n in tasks]
        result = await asyncio.to_thread(adapter.evaluate, batch, {SYSTEM: "Any."}, True)
        return result, adapter.make_reflective_dataset({}, result, [SYSTEM])

    async def started() -> Any:
        async with engine:
            return await main()

    return asyncio.run(started())


def test_a_failed_rollout_changes_no_mean_and_is_not_reflected_on(tmp_path: Path) -> None:
    result, examples = evaluated("train-1", (0, 1, 2), tmp_path)
    assert result.scores == [1.0, 1.0, 1.0]
    assert result.outputs[1]["score"] is None
    assert len(examples[SYSTEM]) == 2


def test_a_batch_without_a_score_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="all 1 rollouts failed"):
        evaluated("train-1", (1,), tmp_path)


@pytest.mark.parametrize(
    "before, after, accepted",
    [
        ([0.0, 1.0], [1.0, 1.0], True),
        ([0.0, 1.0], [0.0, 1.0], False),
        ([0.0, 1.0], [0.5, None], True),
        ([0.5, 0.0], [0.5, None], False),
        ([None, 0.0], [1.0, 0.0], False),
    ],
)
def test_only_tasks_with_both_scores_are_compared(
    before: list[float | None], after: list[float | None], accepted: bool
) -> None:
    class Evaluated:
        def __init__(self, scores: list[float | None]) -> None:
            self.outputs = [{"score": score} for score in scores]

    class Proposal:
        eval_before, eval_after = Evaluated(before), Evaluated(after)

    assert PairedImprovement().should_accept(Proposal(), None) is accepted


def searching(folder: Path, *, budget: int) -> PromptSearch:
    return PromptSearch(
        folder=folder,
        budget=budget,
        minibatch=3,
        seed=0,
        settings={"seed": 0},
    )


def adapted(
    environment: Shout, engine: ScriptedEngine, search: PromptSearch, loop: Looped
) -> EnvironmentAdapter:
    return EnvironmentAdapter(
        environment,
        engine,
        first={SYSTEM: "Answer."},
        counts=COUNTS,
        settings={},
        wait=loop,
        memory=search.folder / FIRST,
    )


def test_a_stopped_search_goes_on(tmp_path: Path) -> None:
    """It ends at once, though a rollout never does."""
    PROMPTS.clear()
    environment = Shout()
    search = searching(tmp_path / "s", budget=40)

    async def run(engine: ScriptedEngine, stop: bool) -> Any:
        loop = Looped(asyncio.get_running_loop())
        adapter = adapted(environment, engine, search, loop)
        reflecting = Reflecting(engine, Sampling(max_tokens=64), 0, loop)
        async with engine:
            task = asyncio.create_task(search.run(adapter, reflecting))
            if stop:
                await asyncio.wait([task], timeout=0.5)
                assert not task.done()
                task.cancel()
            return await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run(Obedient(delay=1e6), stop=True))
    assert asyncio.run(run(Obedient(), stop=False)).texts == {SYSTEM: "Shout."}


def test_a_reflecting_model_that_fails_ends_the_search(tmp_path: Path) -> None:
    """GEPA would go on without a proposal, and measure the first message until the budget is spent."""

    class Dead(Obedient):
        def _answered(self, messages: Sequence[Message], rng: Random) -> str:
            if messages[-1].content.startswith(REFLECTION):
                raise InfrastructureError("the server is gone")
            return super()._answered(messages, rng)

    environment, engine = Shout(), Dead()
    search = searching(tmp_path / "s", budget=400)
    asked: list[int] = []

    async def run() -> None:
        loop = Looped(asyncio.get_running_loop())
        adapter = adapted(environment, engine, search, loop)
        async with engine:
            reflecting = Reflecting(engine, Sampling(max_tokens=64), 0, loop)
            try:
                await search.run(adapter, reflecting)
            finally:
                asked.append(next(reflecting._calls))

    with pytest.raises(InfrastructureError, match="the server is gone"):
        asyncio.run(run())
    assert asked[0] <= 3, "the budget of 400 rollouts has room for some sixty"


@pytest.mark.usefixtures("plugins")
def test_a_server_reflects(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--reflect URL` asks it for the messages, and the policy for the replies."""
    address: Queue[str] = Queue()
    ended = threading.Event()

    async def serve() -> None:
        about = {"host": "127.0.0.1", "port": 0, "max_bytes": 10**6, "models": ["m"]}
        engine = ScriptedEngine(replies="```\nShout.\n```")
        async with ModelServer(engine, Sampling(max_tokens=64), **about) as server:
            address.put(server.base_url)
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    monkeypatch.setenv("REFLECTS", "any key")
    named = ("--reflect-model", "m", "--reflect-arg", "api_key=REFLECTS")
    try:
        status, out, err = prompted(
            capsys, "shout", "--json", "--reflect", address.get(timeout=60), *named
        )
    finally:
        ended.set()
        thread.join()
    assert status == 0, out + err
    assert json.loads(out)["texts"] == {"system": "Shout."}
    assert not PROMPTS, "the policy was not asked to reflect"


def test_without_gepa_the_error_names_the_extra(
    plugins: Registry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, _, err = prompted(capsys, "shout")
    assert status != 0
    assert "quintain-authoring[gepa]" in err
