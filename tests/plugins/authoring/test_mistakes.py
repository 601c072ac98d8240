"""Mistakes of authors: what `quintain check` says names the file, the line and the
fix.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quintain.cli import main
from quintain.registry import current
from quintain_authoring import checks
from quintain_authoring.order_check import outcomes

HEAD = """
from quintain import Agent, Demonstration, Environment, Rollout, Score, Task, control, reward
@reward(range=(0, 1))
def right(rollout: Rollout) -> float:
    return float(rollout.reply == rollout.task.answer)
class Base(Environment[Task, None]):
    reward = right
    def tasks(self, split):
        return [Task(prompt=f"{split} {n}", answer=str(n)) for n in range(4)]
"""
REWARD = "class E(Base):\n    reward = bad"
"""An environment with the reward of the mistake."""


class Mistake(NamedTuple):
    """Code after `HEAD`, the text of the line that the message must name, and words of it; *row* is
    the check.
    """

    code: str
    line: str
    words: str
    row: str = ""


def scored(body: str) -> str:
    """The code of a reward `bad` with *body*, and an environment that has it."""
    return f"@reward(range=(0, 1))\ndef bad(rollout):\n    {body}\n{REWARD}"


def method(text: str) -> str:
    """The code of an environment with the method *text*."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    return f"class E(Base):\n{lines}"


TRL = "@reward\ndef bad(prompts, completions, **kw):\n    return [1.0]\n" + REWARD
VERL = (
    "@reward\ndef bad(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
    + REWARD
)
PLAIN = "@reward\ndef bad(prompt, completion, answer):\n    return 1.0\n" + REWARD
CONFIGURED = "@reward\ndef bad(rollout, *, words):\n    return 1.0\n" + REWARD
DOUBLE = (
    "@reward(range=(0, 2))\ndef bad(rollout):\n    return 2.0 * right.function(rollout)\n" + REWARD
)
COUNTER = (
    "COUNT = 0\n@reward\ndef bad(rollout):\n    global COUNT\n    COUNT += 1\n    return "
    "float(COUNT % 2)\n" + REWARD
)
RANDOM = "import random\n@reward\ndef bad(rollout):\n    return random.random()\n" + REWARD
ONCE = "TASKS = (Task(prompt=str(n), answer='1') for n in range(4))\n" + method(
    "def tasks(self, split):\n    return TASKS"
)
FLOOD = scored("print('scored ' * 10)\n    return right.function(rollout)")
NOTHING = method("def tasks(self, split):\n    [Task(prompt=split)]")
FORGOTTEN = method(
    "async def rollout(self, task, agent):\n    agent.user(task.prompt)\n    agent.turn()"
)
REPLY = method(
    "async def rollout(self, task, agent):\n    agent.user(task.prompt)\n    await agent.reply()"
)
LOOP = method("async def rollout(self, task, agent):\n    for turn in agent.turns():\n        pass")
NO_MESSAGE = method("async def rollout(self, task, agent):\n    await agent.turn()")
STATE = method("async def rollout(self, task, agent):\n    self.n = 1")
WRONG_REPLY = method(
    "def demonstrations(self, split):\n    for task in self.tasks(split):\n"
    "        wrong = '7' if task.answer == '0' else task.answer\n"
    "        yield Demonstration(prompt=task.prompt, reply=wrong)"
)
WRONG_EPISODES = method("@control()\ndef demonstrator(self, task, messages):\n    return '7'")
WRONG_ORACLE = method("@control(scores='max')\ndef oracle(self, task, messages):\n    return '7'")
WEIGHTED = (
    "@reward\ndef bad(rollout, *, weight=1.0):\n    return weight\n"
    "class E(Base):\n    reward = bad(wieght=0.5)"
)
BIG = method(
    "def tasks(self, split):\n    return [Task(prompt=split + 2_000_000 * ' word', answer='1')]"
)

MISTAKES = {
    "exception": Mistake(scored("return 1 / 0"), "return 1 / 0", "ZeroDivisionError"),
    "misspelt attribute": Mistake(scored("return rollout.task.anwser"), "return rollout",
    "did you mean 'answer'"),
    "text": Mistake(scored("return '1.0'"), "@reward(range=(0, 1))", "return float(...) of it"),
    "nothing returned": Mistake(scored("pass"), "@reward(range=(0, 1))",
    "end the function with `return`"),
    "tuple": Mistake(scored("return 1.0, 'why'"), "@reward(range=(0, 1))",
    "return Score(value=1.0, reason='why')"),
    "nan": Mistake(scored("return float('nan')"), "@reward(range=(0, 1))",
    "expected finite numbers"),
    "five": Mistake(scored("return 5.0"), "@reward(range=(0, 1))",
    "outside its declared range (0, 1); scale the score, or declare the range"),
    "range to two": Mistake(DOUBLE, "@reward(range=(0, 2))",
    "divide it by 2, and write range=(0, 1)"),
    "plain parameters": Mistake(PLAIN, "@reward",
    "def bad(rollout), with rollout.reply and rollout.task.answer"),
    "TRL": Mistake(TRL, "@reward", "(TRL's); in a class a reward takes one rollout"),
    "verl": Mistake(VERL, "@reward", "(verl's); in a class a reward takes one rollout"),
    "setting without value": Mistake(CONFIGURED, "@reward", "write bad(words=...), or a default"),
    "no decorator": Mistake("def bad(rollout):\n    pass\n" + REWARD, "def bad",
    "write `@reward` above its `def`"),
    "global state": Mistake(COUNTER, "@reward", "no `global`, no list of the module",
    "the reward repeats"),
    "random reward": Mistake(RANDOM, "@reward", "no random numbers", "the reward repeats"),
    "prints": Mistake(FLOOD, "print('scored ' * 10)", "remove the `print`", "output"),
    "async tasks": Mistake(method("async def tasks(self, split):\n    return []"), "async def",
    "write `def tasks"),
    "async generator": Mistake(method("async def tasks(self, split):\n    yield 1"), "async def",
    "write `def tasks"),
    "task": Mistake(
        "class E(Environment):\n    reward = right\n    def task(self, split):\n        return []",
        "class E(Environment)", "did you mean 'task'",
    ),
    "no tasks": Mistake("class E(Environment):\n    reward = right", "class E",
    "no method tasks(self, split)"),
    "nothing yielded": Mistake(NOTHING, "def tasks(self, split):",
    "return a list of tasks, or `yield` them"),
    "dictionaries": Mistake(method("def tasks(self, split):\n    return [{'prompt': split}]"),
    "def", "Task(prompt="),
    "positional": Mistake(
        method("def tasks(self, split):\n    return [Task('1+1', '2')]"),
        "return [Task('1+1'", "name the arguments: Task(prompt=..., answer=...)",
    ),
    "number as prompt": Mistake(
        method("def tasks(self, split):\n    return [Task(prompt=7, answer='2')]"), "prompt=7",
        "the prompt of a task is 7; expected text, as in prompt=str(...)",
    ),
    "empty prompts": Mistake(
        method("def tasks(self, split):\n    return [Task(prompt='', answer=split)]"), "class E",
        "begins with empty messages alone; give each task a prompt", "each turn follows a message",
    ),
    "number as limits": Mistake(method("limits = 5"), "class E",
    "E.limits is 5", "class"),
    "reward of a default control": Mistake(scored("return 0.5"), "@reward(range=(0, 1))",
    "scored 0.5", "controls score as marked"),
    "anwser": Mistake(
        method("def tasks(self, split):\n    return [Task(prompt='1+1', anwser='2')]"), "anwser=",
        "mean 'answer'"
    ),
    "a key per split": Mistake(
        method("def tasks(self, split):\n    return {'train': [Task(prompt='a', answer='b')]}[split]"),
        "return {'train'", "it is called with train, dev, test",
    ),
    "set as answer": Mistake(
        method("def tasks(self, split):\n    return [Task(prompt=split, answer={'a', 'b'})]"),
        "def tasks", "changes when stored as JSON", "tasks survive storage",
    ),
    "same tasks": Mistake(
        method("def tasks(self, split):\n    return [Task(prompt='a', answer='b')]"),
        "def tasks", "tasks are in 'train' and 'dev'", "splits are disjoint",
    ),
    "used up": Mistake(ONCE, "def tasks", "or a new generator each time",
    "tasks are the same each time"),
    "endless prompt": Mistake(BIG, "def tasks", "expected at most 1,000,000",
    "prompts are short enough to check"),
    "not awaited": Mistake(FORGOTTEN, "agent.turn()", "write `await agent.turn()`"),
    "reply": Mistake(REPLY, "await agent.reply()", "Agent has no 'reply'; write `await agent.turn()`"),
    "for without async": Mistake(LOOP, "for turn in", "write `async for`"),
    "no message": Mistake(NO_MESSAGE, "class E", "call agent.user(task.prompt) before",
    "each turn follows a message"),
    "state of an episode": Mistake(STATE, "self.n = 1",
    "keep the state of an episode in local variables"),
    "constructor": Mistake(method("def __init__(self):\n    self.x = 3"), "self.x = 3",
    "in local variables"),
    "rollout without async": Mistake(
        method("def rollout(self, task, agent):\n    pass"), "class E",
        "write `async def rollout(self, task, agent)`"
    ),
    "mutable default": Mistake(method("names: list[str] = []"), "class E",
    "write `names: tuple[str, ...] = ()`"),
    "no annotation": Mistake(method("size = 3"), "size = 3", "write `size: int = 3`", "class"),
    "wrong demonstration": Mistake(WRONG_REPLY, "def demonstrations",
    "('train 0') with the reply '7' scored 0; expected 1", "demonstrations score full reward"),
    "wrong demonstrator": Mistake(WRONG_EPISODES, "@control", "with the reply '7' scored 0",
    "demonstrations score full reward"),
    "wrong oracle": Mistake(WRONG_ORACLE, "@control", "scored 0.0 with '7'",
    "controls score as marked"),
    "misspelt reward": Mistake("class E(Base):\n    reward = rigth", "reward = rigth",
    "did you mean 'right'?"),
    "misspelt field": Mistake("class E(Base):\n    rewrad = right", "class E",
    "E.rewrad is a reward, but no attribute that an environment reads; did you mean 'reward'?"),
    "misspelt shaping": Mistake("class E(Base):\n    shapng = right", "class E",
    "did you mean 'shaping'?"),
    "name of a reward": Mistake("class E(Base):\n    reward = 'rigth'", "class E",
    "expected a reward without quotes, such as right"),
    "misspelt setting": Mistake(WEIGHTED, "bad(wieght",
    "cannot be loaded: reward 'bad' has no parameter 'wieght'; did you mean 'weight'?"),
    "misspelt option": Mistake("@reward(rnage=(0, 1))\ndef bad(rollout):\n    pass\n" + REWARD,
    "@reward(rnage", "did you mean 'range'?"),
    "no base": Mistake("class E:\n    reward = right", "class E", "write `class E(Environment)`"),
    "no reward": Mistake(
        "class E(Environment):\n    def tasks(self, split):\n        return []", "class E",
        "set `reward = ...`"
    ),
    "not Python": Mistake("class E(Base)\n    pass", "class E(Base)", "expected ':'"),
}  # fmt: skip


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, str]]:
    """The exit status of `quintain check`, and its messages by check; an error is the message of
    the row ``error``.
    """
    status = main(["check", *words, "--episodes", "1", "--tasks", "2", "--seconds", "1", "--json"])
    report = json.loads(capsys.readouterr().out)
    if "error" in report:
        return status, {"error": report["error"]["message"]}
    return status, {
        row["name"]: row["message"]
        for row in report["checks"]
        if row["status"] in ("failed", "warning")
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory. The tasks of "another process" come from this one, so that no mistake
    starts Python again; `test_authoring` has the real one.
    """

    def here(use: str, args: Any, count: int) -> dict[str, list[str]]:
        environment = current().load("environment", use)(**args)
        return {
            split: [task.id for task in environment.tasks(split)][:count]
            for split in ("train", "dev", "test")
        }

    def scored_here(use: str, args: Any) -> dict[str, float | None]:
        return asyncio.run(outcomes(current().load("environment", use)(**args), {}))

    monkeypatch.setattr(checks, "tasks_elsewhere", here)
    monkeypatch.setattr(checks, "outcomes_elsewhere", scored_here)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.keeps(
    "exception",
    "nothing returned",
    "range to two",
    "setting without value",
    "prints",
    "no tasks",
    "number as prompt",
    "anwser",
    "same tasks",
    "reply",
    "constructor",
    "wrong demonstration",
    "misspelt field",
    "misspelt option",
)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_file_line_and_fix(name: str, folder: Path, capsys: Any) -> None:
    mistake, file = MISTAKES[name], f"m_{name.replace(' ', '_')}.py"
    text = f"{HEAD}# here\n{mistake.code}\n"
    (folder / file).write_text(text)
    after = text.splitlines().index("# here")
    number = 1 + next(
        i for i, line in enumerate(text.splitlines()) if i > after and mistake.line in line
    )

    _, messages = told(capsys, f"{file}:E")

    message = messages[mistake.row] if mistake.row else next(iter(messages.values()))
    assert mistake.words in message
    assert f"{file}, line {number}" in message


def test_a_fault_is_named_once(folder: Path, capsys: Any) -> None:
    """The other checks that it breaks refer to the first; a split without tasks breaks one alone."""
    (folder / "m_once.py").write_text(HEAD + scored("return 1 / 0"))
    (folder / "m_dev.py").write_text(
        HEAD
        + method(
            "def tasks(self, split):\n    return super().tasks(split) if split != 'dev' else []"
        )
    )

    _, messages = told(capsys, "m_once.py:E")
    first, *others = messages.values()
    assert "ZeroDivisionError: division by zero (m_once.py, line " in first
    assert len(others) == 3
    assert set(others) == {"the same as in 'controls score as marked'"}

    _, messages = told(capsys, "m_dev.py:E")
    (message,) = messages.values()
    assert message.startswith("no tasks in the split 'dev'; ")


SATURATING = """
COUNT = 0
@reward(range=(0, 1))
def bad(rollout):
    global COUNT
    COUNT += 1
    return float(COUNT > 40 and rollout.reply != "")
class E(Base):
    reward = bad
    def nop(self, task, messages):
        return ""
"""


@pytest.mark.more
def test_a_state_that_only_grows_is_seen_in_another_process(tmp_path: Path, capsys: Any) -> None:
    """It gives the same score three times in a row, and another one where it has not grown yet."""
    file = tmp_path / "m_saturating.py"
    file.write_text(HEAD + SATURATING)
    assert main(["check", f"{file}:E", "--episodes", "4", "--tasks", "2", "--json"]) == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["checks"]}

    message = rows["the reward repeats"]["message"]
    assert re.match(
        r"reward 'bad' \(m_saturating.py, line 12\) depends on what it scored before: the reply "
        r"'0' to 'train 0' scored 1 after other replies and 0 in a new process",
        message,
    ), message


@pytest.mark.more
@pytest.mark.parametrize("body", ["while True:\n        pass", "import time\n    time.sleep(1000)"])
def test_code_that_does_not_return_is_ended(body: str, folder: Path, capsys: Any) -> None:
    """The other episodes are not awaited, and the remaining checks are left out."""
    file = f"m_{len(body)}.py"
    (folder / file).write_text(HEAD + scored(body))
    last = len((HEAD + f"@reward\ndef bad(rollout):\n    {body}").splitlines())

    status, messages = told(capsys, f"{file}:E")

    assert status == 1
    assert list(messages) == ["controls score as marked"]
    (message,) = messages.values()
    assert (
        "did not return within 1 s and was ended; look for a loop without an end or a sleep"
        in message
    )
    assert any(f"bad ({file}, line {n})" in message for n in (last, last - 1))


@pytest.mark.more
def test_a_flood_of_prints_is_counted(folder: Path, capsys: Any) -> None:
    """Three lines are shown, and a report in JSON stays one."""
    (folder / "m_flood.py").write_text(
        HEAD + scored("print('x' * 1000)\n    return right.function(rollout)")
    )

    status, messages = told(capsys, "m_flood.py:E")

    head, *lines = messages["output"].splitlines()
    assert status == 0
    assert re.match(r"its code printed \d+ lines \(m_flood.py, line 12\); remove the `print`", head)
    assert lines == ["x" * 200] * 3


def test_eval_and_train_name_the_mistakes_of_a_class(folder: Path, capsys: Any) -> None:
    (folder / "m_verl_twice.py").write_text(HEAD + VERL)
    for words in (
        ["eval", "m_verl_twice.py:E", "--engine", "@oracle"],
        ["train", "--env", "m_verl_twice.py:E"],
    ):
        assert main(words) == 2
        assert (
            "m_verl_twice.py, line 10): it takes data_source, solution_str"
            in capsys.readouterr().err
        )


PARTLY = """
class E(Base):
    async def rollout(self, task, agent):
        agent.user(task.prompt)
        await agent.turn()
        if task.answer != "0":
            raise RuntimeError("no connection")
@reward
def counts(rollout):
    assert rollout.task.answer == "0"
    return 1.0
"""


def test_an_episode_without_a_result_is_not_scored(folder: Path, capsys: Any) -> None:
    """A reward is asked about the episodes that ended with a result, and the others are named: a
    failure is no zero.
    """
    (folder / "m_partly.py").write_text(HEAD + PARTLY)

    status = main(["check", "m_partly.py:counts", "--env", "m_partly.py:E", "--episodes", "2"])

    report = capsys.readouterr().out
    assert status == 0
    assert "environment_error: RuntimeError: no connection (m_partly.py, line 16)" in report
    assert re.search(r"warning +episodes end with a result", report)


def test_a_reward_without_an_episode_is_not_checked(folder: Path, capsys: Any) -> None:
    """Where no episode has a result, that is the fault, not "ok"."""
    (folder / "m_none.py").write_text(HEAD + PARTLY.replace('"0"', '"none"'))

    status = main(["check", "m_none.py:counts", "--env", "m_none.py:E", "--episodes", "2"])

    assert status == 1
    assert re.search(r"failed +episodes end with a result", capsys.readouterr().out)


def test_a_probe_that_fails_is_not_a_wrong_reply(folder: Path, capsys: Any) -> None:
    """Long replies break this environment; the replies that a check tries say so."""
    (folder / "m_probe.py").write_text(
        HEAD
        + scored(
            "if len(rollout.reply) > 500 and 'word' not in rollout.reply and '9' * 99 not in "
            "rollout.reply:\n        raise RuntimeError('too long')\n"
            "    return right.function(rollout)"
        )
    )

    status, messages = told(capsys, "m_probe.py:E")

    assert status == 1
    assert (
        "'the numbers 0 to 200' broke it: reward_error"
        in messages["replies that may exploit the reward"]
    )


def test_right_demonstrations_are_no_mistake(folder: Path, capsys: Any) -> None:
    """Those of a task, and one that belongs to none and can only be imitated."""
    shown = method(
        "def demonstrations(self, split):\n    yield Demonstration(prompt='hello', reply='hi')\n"
        "    for task in self.tasks(split):\n"
        "        yield Demonstration(prompt=task.prompt, reply=task.answer)"
    )
    (folder / "m_right.py").write_text(HEAD + shown)

    assert told(capsys, "m_right.py:E") == (0, {})


def test_a_file_in_place_of_what_is_in_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The components of the file are named."""
    (folder / "sorting.py").write_text("class Sorting:\n    pass\n")

    assert main(["check", "sorting.py"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "sorting.py is a file; name the component in it: sorting.py:Sorting" in message


def test_a_function_of_another_library_is_no_reward_of_a_class(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first advice is the one that works."""
    (folder / "theirs.py").write_text(
        "def score(prompts, completions, **more):\n    return [0.0]\n"
    )

    assert main(["check", "theirs.py:score"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "works without @reward as --reward theirs.py:score" in message
    assert "above its `def`" not in message


def test_a_base_class_is_no_component_of_the_file_that_imports_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`from quintain import Environment` is no environment to choose."""
    (folder / "m_no_class.py").write_text("from quintain import Environment, reward\n")

    assert main(["check", "m_no_class.py:E"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "m_no_class.py has no 'E'; it defines no environment" in message
