"""Hostile command lines, recipes and metadata: every one ends with a typed error of few lines,
never a traceback.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="training needs quintain[train]")

from quintain.cli import main
from quintain.errors import QuintainError
from quintain.recipe.check import check_recipe
from quintain.recipe.tables import Recipe, parsed_override
from quintain.registry.discovery import discover

from ...lanes import examples

LONG = "a" * 300
DEEP = 1000
DIGITS = "9" * 5000
ENVIRONMENT = '[[environments]]\nuse = "arithmetic"\n'

RECIPES = {
    "brackets": "x = " + "[" * DEEP + "]" * DEEP,
    "inline tables": "x = " + "{a = " * DEEP + "1" + "}" * DEEP,
    "headers": "".join(f"[{'.'.join(['a'] * n)}]\n" for n in (1, DEEP)),
    "dotted keys": ".".join(["a"] * DEEP) + " = 1",
    "arguments": ENVIRONMENT + "args." + ".".join(["a"] * DEEP) + " = 1",
    "digits": f"[run]\nsteps = {DIGITS}",
    "more than 64 bits": f"{ENVIRONMENT}[run]\nsteps = {'9' * 40}",
    "float of too many digits": f"{ENVIRONMENT}[learner]\nlr = {'9' * 400}",
    "NUL in extends": 'extends = "a\\u0000b"',
    "long extends": f'extends = "{LONG}"',
    "extends of a folder": 'extends = "."',
    "NUL in the folder": f'{ENVIRONMENT}[run]\nfolder = "a\\u0000b"',
    "long folder": f'{ENVIRONMENT}[run]\nfolder = "{LONG}"',
    "long environment": f'[[environments]]\nuse = "{LONG}"',
    "NUL in an environment": '[[environments]]\nuse = "a\\u0000b.py:C"',
    "long reward": f'{ENVIRONMENT}reward = "{LONG} + 1"',
    "surrogate": f'{ENVIRONMENT}reward = "\\ud800"',
    "long model": f'{ENVIRONMENT}[model]\nname = "{LONG}"',
    "long model in a folder": f'{ENVIRONMENT}[model]\nname = "./{LONG}"',
    "long algorithm": f'{ENVIRONMENT}[algorithm]\nuse = "{LONG}"',
    "file of a service": f'{ENVIRONMENT}[services.judge]\nuse = "~nobody-here/x.py:J"',
}

COMMANDS = {
    "long environment": ["train", "--env", LONG],
    "long file": ["train", "--env", f"{LONG}.py:X"],
    "home of nobody": ["train", "--env", "~nobody-here/x.py:X"],
    "long name": ["train", "--env", "arithmetic", "--name", LONG],
    "NUL in the folder": ["train", "--env", "arithmetic", "--folder", "a\0b"],
    "long folder": ["train", "--env", "arithmetic", "--folder", LONG],
    "long run": ["train", "--resume", LONG],
    "NUL in a run": ["train", "--resume", "a\0b"],
    "long recipe": ["train", LONG],
    "model of nobody": ["train", "--env", "arithmetic", "--model", "~nobody-here/x"],
    "long model": ["train", "--env", "arithmetic", "--model", LONG],
    "NUL in a model": ["train", "--env", "arithmetic", "--model", "a\0b"],
    "digits": ["train", "--set", f"run.steps={DIGITS}"],
    "more than 64 bits": ["train", "--steps", "9" * 40],
    "digits of an option": ["train", "--steps", DIGITS],
    "deep override": ["train", "--set", "environments.0.args." + ".".join(["a"] * DEEP) + "=1"],
    "brackets of an override": ["train", "--set", "environments.0.args.x=" + "[" * DEEP],
    "position of an override": ["train", "--set", f"environments.{DIGITS}.use=a"],
    "digit that is no number": ["train", "--set", "environments.\u0b72.use=a"],
    "members": ["train", "--dry-run", "--set", "batch.group_size=1000000000"],
    "prompts": ["train", "--dry-run", "--set", "batch.prompts=100000000000"],
    "both": [
        "train",
        "--dry-run",
        "--set",
        "batch.group_size=50000",
        "--set",
        "batch.prompts=100000",
    ],
    "samples of evaluation": ["train", "--dry-run", "--set", "evaluation.samples=100000000"],
    "tasks of evaluation": ["train", "--dry-run", "--set", "evaluation.tasks=100000000000"],
    "difficulty": [
        "train",
        "--dry-run",
        "--set",
        "algorithm.args.plan.difficulty_samples=100000000",
    ],
    "attempts": ["train", "--dry-run", "--set", "algorithm.args.plan.attempts=100000000"],
    "staleness": ["train", "--dry-run", "--set", "algorithm.args.plan.staleness=100000000"],
    "mps": ["train", "--dry-run", "--set", "model.device=mps"],
    "meta": ["train", "--dry-run", "--set", "model.device=meta"],
    "cuda:99": ["train", "--dry-run", "--set", "model.device=cuda:99"],
    "eval of nobody": ["eval", "~nobody-here/x.py:X", "--engine", "@nop"],
    "eval of a long name": ["eval", LONG, "--engine", "@nop"],
    "eval with a model of nobody": ["eval", "arithmetic", "--model", "~nobody-here/x"],
    "eval with a long model": ["eval", "arithmetic", "--model", LONG],
    "eval with a long reward": ["eval", "arithmetic", "--engine", "@nop", "--reward", LONG],
    "eval with a long --out": [
        "eval",
        "arithmetic",
        "--engine",
        "@nop",
        "--tasks",
        "1",
        "--out",
        f"{LONG}.jsonl",
    ],
    "eval of many samples": ["eval", "arithmetic", "--engine", "@nop", "--samples", "1000000000"],
    "eval with a digit that is no number": [
        "eval",
        "arithmetic",
        "--engine",
        "@nop",
        "--k",
        "\u0b72",
    ],
    "eval with digits": ["eval", "arithmetic", "--engine", "@nop", "--k", DIGITS],
    "start of nobody": ["start", "~nobody-here/x.py:X"],
    "start of a long name": ["start", LONG],
    "info of nobody": ["info", "~nobody-here/x.py"],
    "info of nobody's class": ["info", "~nobody-here/x.py:X"],
    "info of a long name": ["info", LONG],
    "info of a NUL": ["info", "a\0b.py"],
    "info of a kind of nobody": ["info", "reward:~nobody-here/x.py:X"],
    "chat of nobody": ["chat", "~nobody-here/x"],
    "chat of a long name": ["chat", LONG],
    "chat of a NUL": ["chat", "a\0b"],
    "doctor of a long name": ["doctor", LONG],
}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The message with which the command line refuses *arguments*; an exception that escapes fails
    the test.
    """
    assert main(arguments) in (1, 2)
    message = capsys.readouterr().err
    assert message.strip()
    assert len(message) < 2500
    assert len(message.strip().splitlines()) <= 4  # click adds lines about the usage
    return message


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", RECIPES)
def test_a_hostile_recipe_is_refused_in_few_lines(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recipe that cannot be meant is refused by the dry run and leaves no run folder."""
    (tmp_path / "hostile.toml").write_text(RECIPES[name], encoding="utf-8")
    refused(["train", "hostile.toml"], capsys)
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_hostile_command_line_is_refused_in_few_lines(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command line that cannot be meant is refused at once, without filling memory."""
    began = time.monotonic()
    refused(COMMANDS[name], capsys)
    assert time.monotonic() - began < 60


WORDS = st.sampled_from(
    "run model engine environments algorithm sampling batch learner evaluation checkpoint rollouts "
    "stop services use args name steps folder lora reward shaping limits turns plan lr betas tasks "
    "every keep extends test seed a".split()
)
KEYS = st.lists(WORDS | st.text(max_size=3).map(lambda s: f'"{s}"'), min_size=1, max_size=4).map(
    ".".join
)
VALUES = st.recursive(
    st.sampled_from(
        [
            "0",
            "-1",
            "1e300",
            "nan",
            "inf",
            "true",
            "1979-05-27",
            "9" * 30,
            '"all"',
            '"~x/y.py:Z"',
            '"a:b"',
        ]
    )
    | st.integers().map(str)
    | st.text(max_size=5).map(lambda s: '"' + s.replace("\\", "").replace('"', "") + '"'),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda v: f"[{', '.join(v)}]")
        | st.lists(st.tuples(WORDS, inner), max_size=2).map(
            lambda pairs: "{" + ", ".join(f"{k} = {v}" for k, v in pairs) + "}"
        )
    ),
    max_leaves=4,
)
LINES = (
    st.tuples(KEYS, VALUES).map(" = ".join)
    | KEYS.map("[{}]".format)
    | KEYS.map("[[{}]]".format)
    | st.sampled_from(ENVIRONMENT.splitlines())
    | st.text(max_size=20)
)


@examples(50)
@given(st.lists(LINES, max_size=6), st.lists(st.tuples(KEYS, VALUES).map("=".join), max_size=2))
def test_any_text_is_a_recipe_or_a_typed_error(lines: list[str], overrides: list[str]) -> None:
    """Whatever a recipe's text, parsing, checking and writing it raise nothing but the errors of
    Quintain.
    """
    try:
        recipe = Recipe.parse("\n".join(lines), overrides)
        check_recipe(recipe)
    except QuintainError:
        return
    assert Recipe.parse(recipe.to_toml()) == recipe


@examples(100)
@given(st.text(max_size=30) | st.tuples(KEYS, st.text(max_size=20)).map("=".join))
def test_any_override_is_read_or_refused(text: str) -> None:
    """Whatever follows --set is a path with a value, or a typed error."""
    with contextlib.suppress(QuintainError):
        parsed_override(text)


@pytest.mark.parametrize("file", ["entry_points.txt", "METADATA", "direct_url.json"])
def test_a_distribution_with_unreadable_metadata_disables_only_itself(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Metadata that is not UTF-8 hides the components of its distribution, names it, and stops no
    command.
    """
    folder = tmp_path / "site" / "qw_bytes-1.0.dist-info"
    folder.mkdir(parents=True)
    texts = {
        "METADATA": b"Metadata-Version: 2.1\nName: qw-bytes\nVersion: 1.0\n\n",
        "entry_points.txt": b"[quintain.environments]\nbytes = qw_bytes:Bytes\n",
        "direct_url.json": b"{}",
    }
    for name, content in texts.items():
        (folder / name).write_bytes(b"\xff\xfe\xff" if name == file else content)
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
    names = {c.name for c in discover()}
    assert "bytes" not in names
    assert "embedded" in names
    assert "qw_bytes" in caplog.text  # without a configured logger, one line on standard error


def test_control_characters_of_names_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of a run folder and its recipe cannot move the cursor, nor do they style the
    table.
    """
    folder = tmp_path / "runs" / "a\x1b]0;owned\x07[red]"
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(
        f'{ENVIRONMENT}[model]\nname = "x\\u001b[2J"\n', encoding="utf-8"
    )
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "[red]" in out
    assert "\x1b" not in refused(["train", "--resume", "a\x1b[2J"], capsys)
    assert "expected a folder's name" in refused(
        ["train", "--env", "arithmetic", "--name", "a\x1b[2J"], capsys
    )


def test_a_password_in_a_url_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither an unreachable server nor a wrong argument shows it."""
    for arguments in (
        ["--engine-arg", "retries=0"],
        ["--engine-arg", "retry=0"],
        ["--engine-arg", "timeout='x'"],
    ):
        for url in (
            "http://me:secret@127.0.0.1:1/v1",
            "http://me:secret@[::1",
            "http://me:secret@127.0.0.1:1",
        ):
            assert "secret" not in refused(
                ["eval", "arithmetic", "--engine", url, "--tasks", "1", *arguments], capsys
            )
