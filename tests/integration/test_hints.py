"""The commands that a run prints as its next ones work as they are printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

from quintain.cli import main
from quintain.console import program_name

from ..small_run import small_recipe

CODE = """
from collections.abc import Iterator, Mapping
from typing import Any
from quintain import Environment, Rollout, Service, Task, need, reward

class Judge(Service):
    def __init__(self, *, letter: str, more: Mapping[str, Any]) -> None:
        assert letter == 'say "a"' and more == {"deep key": [1, 2.5, True]}
    def judge(self, text: str) -> float:
        return text.count("a") / 4

@reward
def judged(rollout: Rollout, *, judge: Judge = need()) -> float:
    return judge.judge(rollout.reply)

class Judged(Environment[Task, None]):
    reward = judged
    word: str
    numbers: tuple[float, ...] = ()

    def tasks(self, split: str) -> Iterator[Task]:
        assert self.word == "4" and self.numbers == (1e-5, 2.0)
        n = 0
        while split == "dev":  # endless, and the only one
            n += 1
            yield Task(prompt=f"{split} {n}")
        yield from (Task(prompt=f"{n}") for n in range(8 if split == "train" else 0))
"""
RECIPE = small_recipe(
    """
use = "judged.py:Judged"
args = { word = "4", numbers = [1e-5, 2.0] }
reward = '0.5 * use("judged.py:judged")'
""",
    evaluation='every = 0\ntest = { split = "dev", tasks = 3 }',
    tables="""
[services.judge]
use = "judged.py:Judge"
args = { letter = 'say "a"', more = { "deep key" = [1, 2.5, true] } }
""",
)


@pytest.fixture
def place(small_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> Path:
    folder = small_run(RECIPE)
    capsys.readouterr()
    (folder / "judged.py").write_text(CODE)
    return folder


@pytest.mark.more
def test_what_a_run_prints_as_next_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments, services, reward, split and limits of the run are in the hints; the run's model
    trains further.
    """
    assert main(["train", "recipe.toml", "--name", "a run"]) == 0
    shown = capsys.readouterr()
    # progress bars of the libraries
    assert "Writing" not in shown.err
    assert "\r" not in shown.err
    assert re.search(r"step +1/\d+  right +\d+% \(\d+-\d+\) +reward", shown.err)
    lines = shown.out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("next"))
    hints = [
        shlex.split(line[26:].removeprefix(program_name())) for line in lines[first : first + 3]
    ]
    chat, rollouts, evaluate = hints
    own = [
        shlex.split(line[26:].removeprefix(program_name()))
        for line in lines
        if line.startswith("your own ")
    ]
    rows = [f"what is {n} + {n}?,{2 * n}" for n in range(40)]
    (place / "FILE.csv").write_text("\n".join(["prompt,answer", *rows]))
    (place / "FILE.py").write_text("def FUNCTION(reply, answer):\n    return reply == answer\n")

    assert main(evaluate) == 0, capsys.readouterr().err
    measured = capsys.readouterr().out
    assert "3 tasks x 1, temperature 0\n" in measured
    assert "4.0 tokens per rollout" in measured
    assert main([*chat, "--once", "hello"]) == 0
    assert main(rollouts) == 0
    assert len(own) == 2
    for command in own:
        assert main([*command, "--dry-run"]) == 0, capsys.readouterr().err
    capsys.readouterr()

    assert (
        main(
            [
                "train",
                "recipe.toml",
                "--model",
                "a run",
                "--name",
                "next",
                "--arg",
                'word="4"',
                "--quiet",
            ]
        )
        == 0
    )
    assert main(["train", "recipe.toml", "--arg", "word='4'", "--dry-run"]) == 0
    assert 'word = "4"' in capsys.readouterr().out
    assert main(["train", "recipe.toml", "--model", "a rum", "--dry-run"]) == 2
    assert "did you mean 'a run'" in capsys.readouterr().err
    assert main(["train", "--resume", "a run", "--arg", "word=5"]) == 2
    assert "leave out --arg" in capsys.readouterr().err
