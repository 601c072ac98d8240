"""`quintain new`, `quintain check` and `quintain rescore`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import main
from quintain.evaluation.evaluation import evaluate
from quintain.store.rollout_table import to_parquet
from quintain_authoring import ScriptedEngine
from quintain_authoring.check import check as check_command
from quintain_authoring.new import EPISODES, KINDS, distribution_files

from ...lanes import mostly_slow

NEW = [
    *((kind,) for kind in KINDS),
    *(("environment", "--kind", episode) for episode in [*EPISODES][1:]),
]
"""Words of `quintain new` that choose what is written."""

FAULTY = """
import itertools
from quintain import Environment, Message, Rollout, Task, control, reward

SEEN = itertools.count()

@reward(range=(0, 1))
def contains(rollout: Rollout) -> float:
    return float(str(rollout.task.answer) in rollout.reply)

@reward
def counts(rollout: Rollout) -> float:
    return float(next(SEEN))

@reward(range=(0, 1))
def number(rollout: Rollout) -> float:
    return float(rollout.reply)

class Words(Environment[Task, None]):
    reward = contains
    def tasks(self, split):
        start = {"train": 0, "dev": 1000, "test": 2000}[split]
        return [Task(prompt=f"Say {n}.", answer=str(n)) for n in range(start, start + 40)]

class Same(Words):
    def tasks(self, split):
        return [Task(prompt="Say 1.", answer="1")]

class Unordered(Words):
    def tasks(self, split):
        return [Task(prompt=f"{split} {word}", answer=word) for word in {f"w{n}" for n in range(40)}]

class Mixed(Words):
    async def rollout(self, task, agent):
        SHARED.append(task.id)
        agent.user(task.prompt)
        await agent.turn()
        agent.metric(last=float(SHARED[-1] == task.id))

class Tuples(Words):
    def tasks(self, split):
        return [Task(prompt=f"{split} {n}", answer={"sizes": [n, (1, n)]}) for n in range(3)]

class Wrong(Words):
    @control(scores="max")
    def poor(self, task: Task, messages: list[Message]) -> str:
        return "nothing"

SHARED = []
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faulty.py").write_text(FAULTY)
    return tmp_path


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """The exit status of `quintain check`, and its rows by name."""
    status = main(["check", *words, "--json", "--episodes", "4", "--tasks", "20"])
    report = json.loads(capsys.readouterr().out)
    assert (status == 0) == report["ok"]
    return status, {row["name"]: row for row in report["checks"]}


# ---------------------------------------------------------------- new


@pytest.mark.keeps("environment", "tracker", "judge", "command")
@pytest.mark.parametrize("words", NEW, ids=" ".join)
def test_a_new_distribution_is_complete(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kind, *options = words
    assert main(["new", kind, "word-ladder", *options]) == 0

    (folder,) = tmp_path.iterdir()
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    package = folder.name.replace("-", "_")
    assert files == {
        "README.md",
        "pyproject.toml",
        *(f"src/{package}/{name}" for name in ("__init__.py", "quintain.toml", "word_ladder.py")),
        "tests/test_word_ladder.py",
    }
    texts = "".join((folder / name).read_text() for name in files)
    assert "{{" not in re.sub(r"f\"[^\"]*\"", "", texts)
    code = (folder / f"src/{package}/word_ladder.py").read_text().splitlines()
    assert kind in ("algorithm", "curriculum") or sum(bool(line.strip()) for line in code) <= 30


@pytest.mark.more
@pytest.mark.parametrize("words", NEW, ids=" ".join)
def test_the_written_code_is_tidy(words: tuple[str, ...], tmp_path: Path) -> None:
    for path, text in distribution_files(words[0], "word-ladder", *words[2:]).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for options in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *options, "--isolated", "--line-length", "120",
            str(tmp_path)],
            capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quintain-short").mkdir()

    assert main(["new", "reward", "short"]) == 2
    assert not list((tmp_path / "quintain-short").iterdir())


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("environment", "Upper", "expected lower-case letters"),
        ("environment", "a b", "expected lower-case letters"),
        ("reward", "../up", "expected lower-case letters"),
        ("reward", "a" * 41, "at most 40 characters"),
        ("reward", "class", "is a word of Python"),
        ("reward", "rollout", "is a word of Python or Quintain"),
        ("environment", "arithmetic", "exists in quintain-env-math"),
        ("tracker", "alerts", "exists in quintain-view"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(
    kind: str, name: str, message: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["new", kind, name]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_kind_of_episode_is_for_environments(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["new", "reward", "short", "--kind", "tools"]) == 2
    assert "--kind tools is for environments" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("episode", mostly_slow(EPISODES, ["single-turn", "tools"]))
def test_a_new_environment_passes_its_check_as_a_file(
    episode: str, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "environment", "ladder", "--kind", episode, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "quintain check ladder" in report["commands"]
    (file,) = Path(report["folder"]).resolve().glob("src/*/ladder.py")

    status, rows = checked(capsys, f"{file}:Ladder")

    assert {
        name: row["message"] for name, row in rows.items() if row["status"] not in ("ok", "skipped")
    } == {}
    assert status == 0
    assert rows["manifest"]["status"] == "skipped"
    assert rows["tasks are the same in another process"]["status"] == "ok"


@pytest.mark.ci
@pytest.mark.keeps(*map(" ".join, NEW[:2]))
@pytest.mark.parametrize("words", NEW, ids=" ".join)
def test_each_printed_command_works(words: tuple[str, ...], tmp_path: Path) -> None:
    """In a virtual environment that sees this one's packages, with pip's own installation."""
    site = tmp_path / "site"
    environ = {
        **os.environ,
        "PYTHONPATH": str(site),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def run(command: list[str], folder: Path) -> str:
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    kind, *options = words
    printed = json.loads(
        run(["quintain", "new", kind, "word-ladder", *options, "--json"], tmp_path)
    )
    change, install, *rest = map(shlex.split, printed["commands"])
    folder = tmp_path / change[1]
    assert install == ["pip", "install", "-e", "."]
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--target", str(site)]
    run([sys.executable, "-m", "pip", "install", *options, "."], folder)
    for command in rest:
        command += (
            ["--dry-run"]
            if command[:2] == ["quintain", "train"] and "--dry-run" not in command
            else []
        )
        run([sys.executable if word == "python" else word for word in command], folder)


# ---------------------------------------------------------------- check


def test_a_sound_environment_passes(capsys: pytest.CaptureFixture[str]) -> None:
    status, rows = checked(capsys, "arithmetic")

    assert status == 0
    assert {
        "manifest",
        "class",
        "controls score as marked",
        "8 concurrent episodes do not mix",
    } <= rows.keys()
    assert rows["tasks are the same in another process"]["status"] == "ok"


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("Same", "splits are disjoint", "are in 'train' and 'dev'"),
        pytest.param(
            "Tuples",
            "tasks survive storage",
            "task.answer.sizes[1] is (1, 0), then [1, 0]",
            marks=pytest.mark.slow,
        ),
        ("Unordered", "tasks are the same in another process", "a set's order"),
        ("Mixed", "concurrent episodes do not mix", "keep state in locals"),
        pytest.param(
            "Wrong", "controls score as marked", "control 'poor' on task", marks=pytest.mark.slow
        ),
    ],
)
def test_a_fault_is_a_failed_row(
    name: str, row: str, message: str, faulty: Path, capsys: Any
) -> None:
    status, rows = checked(capsys, f"faulty.py:{name}")

    assert status == 1
    (failed,) = (r for title, r in rows.items() if title.endswith(row))
    assert failed["status"] == "failed"
    assert message in failed["message"]


def test_a_reward_that_any_list_of_answers_satisfies_is_a_warning(
    faulty: Path, capsys: Any
) -> None:
    status, rows = checked(capsys, "faulty.py:Words")

    warning = rows["replies that may exploit the reward"]
    assert status == 0
    assert warning["status"] == "warning"
    assert "all answers in a line: right on 4 of 4" in warning["message"]


def test_rewards_are_checked_on_invented_and_on_played_rollouts(faulty: Path, capsys: Any) -> None:
    assert checked(capsys, "faulty.py:contains")[0] == 0
    assert checked(capsys, "faulty.py:contains", "--env", "faulty.py:Words")[0] == 0
    status, rows = checked(capsys, "faulty.py:number")
    assert status == 1
    assert rows["scores every rollout"]["status"] == "failed"
    assert "outside its declared range" in rows["scores every rollout"]["message"]


def test_a_stateful_reward_says_so(faulty: Path, capsys: Any) -> None:
    assert checked(capsys, "faulty.py:counts")[1]["scores repeat"]["status"] == "failed"
    assert (
        checked(capsys, "faulty.py:counts", "--stateful")[1]["scores repeat"]["status"] == "skipped"
    )


@pytest.mark.parametrize("name", ["grpo", "alerts"])
def test_algorithms_and_hooks_are_checked(name: str, capsys: Any) -> None:
    assert checked(capsys, name)[0] == 0


def test_what_cannot_be_checked_is_refused(faulty: Path, capsys: Any) -> None:
    for words, message in {
        ("arithmetik",): "did you mean 'arithmetic'?",
        ("faulty.py:SEEN",): "is a count; expected an environment",
        ("grpo", "--arg", "epochs=2"): "--arg is for environments, rewards and services",
        ("arithmetic", "--stateful"): "are for rewards",
    }.items():
        assert main(["check", *words]) == 2
        assert message in capsys.readouterr().err


def test_the_report_fits_a_screen(faulty: Path, capsys: Any) -> None:
    assert main(["check", "faulty.py:Wrong", "--episodes", "2"]) == 1

    out = capsys.readouterr().out
    assert out.startswith("environment faulty.py:Wrong\n")
    assert re.search(r"^failed   controls score as marked", out, re.M)
    assert re.search(r"^\d+ ok, 1 failed, 1 warning, 2 skipped$", out, re.M)
    assert {"kind", "args", "as_json", "stateful"} <= {p.name for p in check_command.params}


# ---------------------------------------------------------------- rescore

OLD_NEW = """
from quintain import Environment, Rollout, Task, reward

@reward(range=(0, 1))
def says(rollout: Rollout) -> float:
    return float("7" in rollout.reply)

@reward(range=(0, 1))
def short(rollout: Rollout) -> float:
    return 1 / (1 + len(rollout.reply))

@reward
def breaks(rollout: Rollout) -> float:
    return float(rollout.reply)

class Sevens(Environment[Task, None]):
    reward, shaping = says, 0.5 * short
    def tasks(self, split):
        return [Task(prompt=f"{n}: say 7", answer="7") for n in range(2)]
"""


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the rollouts of two groups of four: 7, 77, 1, 7 and words."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sevens.py").write_text(OLD_NEW)
    from quintain.registry import current

    environment = current().load("environment", "sevens.py:Sevens")()
    replies = iter(["7", "77", "1", "7 is it"] * 2)
    engine = ScriptedEngine(replies=lambda messages, rng: next(replies))
    played = asyncio.run(
        evaluate(
            environment, engine, split="train", samples=4, concurrency=1, name="sevens.py:Sevens"
        )
    )
    lines = [json.dumps(r.to_json()) for r in played.rollouts]
    (tmp_path / "rollouts.jsonl").write_text("\n".join(lines))
    run = tmp_path / "runs" / "one"
    (run / "rollouts").mkdir(parents=True)
    (run / "recipe.toml").write_text('[[environments]]\nuse = "sevens.py:Sevens"\n')
    for step in (1, 2):
        (run / "rollouts" / f"step-{step:06d}.parquet").write_bytes(
            to_parquet(step, played.rollouts)
        )
    return tmp_path


def rescored(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["rescore", *words, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_stored_rollouts_are_scored_again(stored: Path, capsys: Any) -> None:
    """In a group, 1 and 0 become 1/2, 1/3, 1/2, 1/8: two flips (1 over 77 and over the words),
    three ties broken.
    """
    pytest.importorskip("pyarrow")
    result = rescored(capsys, "one", "--reward", "sevens.py:short")

    assert result["rollouts"] == 16
    assert result["groups"] == 4
    assert result["pairs"] == 24
    assert pytest.approx(0.75) == result["old"]
    assert pytest.approx((1 / 2 + 1 / 3 + 1 / 2 + 1 / 8) / 4) == result["new"]
    assert result["flips"] == 4 * 2
    assert result["ties_broken"] == 4 * 3
    assert result["ties_made"] == 4 * 1
    assert result["gained"] == 0
    assert result["lost"] == 12
    assert result["best_changed"] == 0
    assert result["silent_old"] == 0
    assert result["silent_new"] == 0


def test_an_equal_reward_changes_nothing(stored: Path, capsys: Any) -> None:
    result = rescored(
        capsys, "rollouts.jsonl", "--env", "sevens.py:Sevens", "--reward", "sevens.py:says"
    )

    assert result["rollouts"] == 8
    assert result["changed"] == 0
    assert result["flips"] == 0
    assert result["ties_broken"] == 0


def test_only_the_last_steps_are_scored(stored: Path, capsys: Any) -> None:
    pytest.importorskip("pyarrow")
    assert (
        rescored(capsys, "one", "--last", "1", "--reward", 'use("sevens.py:says") * 0.5')[
            "rollouts"
        ]
        == 8
    )


def test_a_reward_that_fails_is_counted(stored: Path, capsys: Any) -> None:
    result = rescored(
        capsys, "rollouts.jsonl", "--env", "sevens.py:Sevens", "--reward", "sevens.py:breaks"
    )

    assert result["rollouts"] == 6
    assert sum(result["failed"].values()) == 2
    assert "could not convert string to float: '7 is it'" in next(iter(result["failed"]))


def test_a_reward_that_scores_nothing_shows_no_zeros(stored: Path, capsys: Any) -> None:
    (stored / "never.py").write_text(
        "from quintain import reward\n@reward\ndef never(rollout):\n    return 1 / 0\n"
    )
    assert (
        main(
            ["rescore", "rollouts.jsonl", "--env", "sevens.py:Sevens", "--reward", "never.py:never"]
        )
        == 1
    )

    out = capsys.readouterr().out
    assert "no rollout has a score under this reward" in out
    assert "mean reward" not in out
    assert "not scored: 8 x" in out


def test_the_table_shows_what_changes(stored: Path, capsys: Any) -> None:
    assert (
        main(
            [
                "rescore",
                "rollouts.jsonl",
                "--env",
                "sevens.py:Sevens",
                "--reward",
                "sevens.py:short",
            ]
        )
        == 0
    )

    out = capsys.readouterr().out
    assert "12 pairs within groups: 4 change their order (33.3%), 6 ties are broken, 2 made" in out
    assert re.search(r"right \(at least 1\) +75.0% +0.0%", out)


def test_a_file_needs_its_environment(stored: Path, capsys: Any) -> None:
    assert main(["rescore", "rollouts.jsonl", "--reward", "sevens.py:says"]) == 2
    assert "add --env" in capsys.readouterr().err
    assert main(["rescore", "one", "--env", "arithmetic", "--reward", "sevens.py:says"]) == 2
