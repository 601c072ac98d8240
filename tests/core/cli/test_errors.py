"""The command line: one policy for errors, and tables that show what is broken."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest

from quintain import cli
from quintain.cli import COMMANDS, main, root
from quintain.errors import InfrastructureError, RecipeError
from quintain.registry.discovery import Component
from quintain.registry.known import install_line, known_plugins
from quintain.registry.lookup import Registry, isolated
from quintain.registry.manifest import SECTIONS
from quintain_authoring.devtools.listing import line_of


def raises(error: BaseException) -> Callable[[], None]:
    @click.command()
    @click.option("--json", is_flag=True)
    def command(json: bool) -> None:
        raise error

    return command


@pytest.fixture
def failing() -> Iterator[Callable[[BaseException], None]]:
    """Install a command ``fail`` that raises what it is given."""
    with isolated() as registry:
        yield lambda error: registry.add("command", "fail", raises(error)) and None


@pytest.mark.parametrize(
    "error, status",
    [
        (RecipeError("the recipe is wrong"), 2),
        (InfrastructureError("the engine is gone"), 1),
        (click.UsageError("what?"), 2),
    ],
)
def test_errors_are_messages(
    failing: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    status: int,
) -> None:
    """No traceback; 2 for what the user can fix, 1 for the rest; with --json one object on standard
    output.
    """
    failing(error)

    assert status == main(["fail"])
    out, err = capsys.readouterr()
    assert out == ""
    assert str(error if not isinstance(error, click.UsageError) else "what?") in err
    assert "Traceback" not in err
    assert status == main(["fail", "--json"])
    assert {"type": type(error).__name__} == {
        k: v for k, v in json.loads(capsys.readouterr().out)["error"].items() if k == "type"
    }


@pytest.mark.parametrize(
    "words, message",
    [
        ("train --set learner.learning_rate=1e-5", "did you mean 'learner.lr'?"),
        ("train --set learner.num_generations=8", "did you mean 'batch.group_size'?"),
        (
            "train --algorithm dr_grpo --set algorithm.args.klcoef=0.1",
            'write --set \'algorithm.args.kl={ where = "loss", estimator = "k2", coefficient = 0.1 }\'',
        ),
        (
            "train --algorithm grpo --set algorithm.args.kl_coef=0.1",
            "write --set algorithm.args.kl.coefficient=0.1",
        ),
        (
            "train --algorithm dr_grpo --set algorithm.args.kl=0.1",
            'write --set \'algorithm.args.kl={ where = "loss", estimator = "k2", coefficient = 0.1 }\'',
        ),
        (
            "train --algorithm dr_grpo --set algorithm.args.kl=0.1",
            "kl = { where = ..., estimator = ",
        ),
        (
            "train noise.jsonl",
            "not UTF-8 text; to train on its rows: quintain train dataset --arg path=noise.jsonl",
        ),
        (
            "train rows.jsonl",
            "rows.jsonl has data and is no recipe; to train on its rows: quintain ",
        ),
        (
            "train nose.jsonl",
            "there is no file 'nose.jsonl'; to train on its rows: quintain train dataset --arg path=noise.jsonl",
        ),
        ("train other.csv", "error: there is no file 'other.csv'\n"),
        ("train worked", "did you mean 'examples/worked.toml'?"),
        ("train --data qa.jsonl", "(the environment dataset: --arg path=qa.jsonl)"),
        (
            "train --model empty --env gsm8k --arg data=none",
            "model folder empty has no config.json",
        ),
        ("train --model empty --env gsm8k --arg data=none", "there is no file or folder 'none'"),
        ("info rewards", "'rewards' is a kind; `quintain list rewards`"),
        ("rollouts", "missing argument 'RUN'; the newest is runs/second"),
    ],
)
def test_a_mistake_shows_what_to_write_instead(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise.jsonl").write_bytes(b"\xff\xfe")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "worked.toml").touch()
    (tmp_path / "empty").mkdir()
    for age, name in enumerate(("second", "first")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "recipe.toml").touch()
        os.utime(tmp_path / "runs" / name, (1000 - age, 1000 - age))

    assert main(words.split()) == 2
    assert message in capsys.readouterr().err


def test_ctrl_c_is_130(failing: Callable[[BaseException], None]) -> None:
    """As shells expect."""
    failing(KeyboardInterrupt())

    assert main(["fail"]) == 130


def test_bugs_are_not_hidden(failing: Callable[[BaseException], None]) -> None:
    """An exception that nobody raised on purpose keeps its traceback."""
    failing(ZeroDivisionError("a bug"))

    with pytest.raises(ZeroDivisionError):
        main(["fail"])


def test_unknown_command_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    """The nearest command is shown; an unknown option is a usage error."""
    assert main(["lsit"]) == 2
    assert "did you mean 'list'?" in capsys.readouterr().err
    assert main(["list", "--jsno"]) == 2
    assert "--json" in capsys.readouterr().err


def test_unknown_kind_and_component(capsys: pytest.CaptureFixture[str]) -> None:
    """`list` and `info` show the nearest name."""
    assert main(["list", "enviroments"]) == 2
    assert "did you mean 'environments'" in capsys.readouterr().err
    assert main(["info", "grppo", "--json"]) == 2
    assert "did you mean 'grpo'" in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_row_of_the_table_is_a_command(name: str) -> None:
    """What `--help` promises exists, and says the same of itself."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)

    assert isinstance(command, click.Command)
    assert command.help


def options_of(command: click.Command, context: click.Context) -> Iterator[click.Option]:
    """Options of a command and of all below it."""
    yield from (p for p in command.params if isinstance(p, click.Option))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options_of(below, context)


def test_a_short_option_stands_for_one_long_option_in_all_commands() -> None:
    meanings: dict[str, set[str]] = {}
    for option in options_of(root, click.Context(root)):
        for short in option.opts:
            if not short.startswith("--"):
                meanings.setdefault(short, set()).add(max(option.opts, key=len))

    assert {s: sorted(longs) for s, longs in meanings.items() if len(longs) > 1} == {}


def test_plugins_do_not_replace_our_commands() -> None:
    """A plugin's command called like one of ours is not taken for it."""
    with isolated() as registry:
        registry.add("command", "train", raises(RecipeError("my own")))

        assert "my own" not in cli.root.get_command(click.Context(cli.root), "train").help


@pytest.mark.parametrize("name", [name for kind, name in known_plugins() if kind == "command"])
def test_a_command_of_a_missing_plugin_names_it(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """One line with the pip command, and the status of a usage error, whatever options follow."""
    with isolated(keep=["quintain"]):
        assert main([name, "--steps", "3"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f": {install_line('command', name)}")


def test_help_shows_the_summary_of_a_plugins_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its manifest; without one, or with a faulty one, where the command is from."""
    monkeypatch.syspath_prepend(str(tmp_path))
    said = (
        'api = 1\n[[components]]\nkind = "command"\nname = "help_row_said"\nsummary = "Says what '
        'it does."'
    )
    rows = [
        package(tmp_path, "help_row_said", said),
        package(tmp_path, "help_row_faulty", "api = 9"),
    ]
    with isolated(*(replace(row, kind="command") for row in rows)):
        main(["--help"])

    shown = capsys.readouterr().out
    assert re.search(r"help_row_said +Says what it does\.", shown)
    assert re.search(r"help_row_faulty +From dist-help_row_faulty", shown)


def test_help_has_six_sections_and_five_commands_to_start_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every command of the workspace says where it stands."""
    main(["--help"])
    shown = capsys.readouterr().out
    titles = re.findall(r"^(\S.*):$", shown, re.M)
    start = shown.partition("Start here:")[2].partition("\n\n")[0]

    assert titles == ["Options", *SECTIONS.values()]
    assert re.findall(r"^  (\S+)  ", start, re.M) == ["train", "check", "eval", "new", "rollouts"]


def test_a_command_of_a_plugin_stands_in_the_section_of_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one it stands at the end."""
    monkeypatch.syspath_prepend(str(tmp_path))
    row = 'api = 1\n[[components]]\nkind = "command"\nname = "{0}"\nsummary = "It."\n{1}'
    packages = [
        package(tmp_path, "placed", row.format("placed", 'section = "look"')),
        package(tmp_path, "unplaced", row.format("unplaced", "")),
    ]
    with isolated(*(replace(one, kind="command") for one in packages)):
        main(["--help"])
    shown = capsys.readouterr().out

    assert re.search(r"Look at runs and models:\n  placed +It\.", shown)
    assert re.search(r"Other plugins:\n  unplaced +It\.", shown)


def test_what_is_no_command_is_a_plugin_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A command entry point must be a click command."""
    with isolated() as registry:
        registry.add("command", "odd", 3)

        assert main(["odd"]) == 1
    assert "expected a click command" in capsys.readouterr().err


def test_python_dash_m() -> None:
    """`python -m quintain` is the same program."""
    done = subprocess.run(
        [sys.executable, "-m", "quintain", "--version"], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("quintain ")


@pytest.mark.keeps("list")
@pytest.mark.parametrize(
    "words", ["list", "--help", "runs --folder {empty}", "eval nothing --json"]
)
def test_a_closed_pipe_ends_a_command_quietly(tmp_path: Path, words: str) -> None:
    """`quintain ... | head` is no error: status 128 + SIGPIPE, whether rich, click or the error
    itself writes.
    """
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "quintain", *words.format(empty=tmp_path).split()]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)

    assert done.returncode == 141
    assert done.stderr == ""


def test_a_broken_pipe_of_a_plugin_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Only standard output ends a command quietly; a connection that a plugin lost is a failure."""

    @click.command()
    def lost() -> None:
        raise BrokenPipeError(errno.EPIPE, "the server went away")

    with isolated() as registry:
        registry.add("command", "lost", lost)

        assert main(["lost"]) == 1
    assert "error: the command was ended by SystemExit" in capsys.readouterr().err


def package(folder: Path, name: str, manifest: str | None) -> Component:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("raise RuntimeError('imported')")
    if manifest is not None:
        (folder / name / "quintain.toml").write_text(manifest)
    return Component(kind="reward", name=name, target=f"{name}:x", distribution=f"dist-{name}")


def test_broken_manifests_are_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A faulty manifest and a vanished module are errors in their own rows; a missing manifest is
    not.
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    bad = package(tmp_path, "bad_manifest_row", "api = 9")
    bare = package(tmp_path, "bare_row", None)
    gone = Component(kind="reward", name="gone", target="gone_row:x", distribution="dist-gone")
    registry = Registry([bad, bare, gone])

    assert "`api` is 9" in line_of(bad, registry).error
    assert line_of(bare, registry).error == ""
    assert "no module named 'gone_row'" in line_of(gone, registry).error


def test_an_empty_listing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """No table without rows."""
    with isolated(keep=["quintain-authoring"]):
        assert main(["list", "services"]) == 0

    assert capsys.readouterr().out == "nothing installed of the kind 'services'\n"


def test_help_and_version_are_also_words(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*words: str) -> str:
        assert main(words) == 0
        return capsys.readouterr().out

    assert shown("--help") == shown("help")
    assert shown("eval", "--help") == shown("help", "eval")
    assert shown("--version") == shown("version")
    assert main(["help", "trane"]) == 2
    assert "did you mean 'train'" in capsys.readouterr().err
