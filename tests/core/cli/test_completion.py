"""What a shell completes: components, runs and recipes by name, and files where no name fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from quintain.cli import main, root


def completions(line: str, incomplete: str = "") -> list[str]:
    """What a shell offers after the words *line*; ``<file>`` where it completes files itself."""
    complete = BashComplete(root, {}, "quintain", "_QUINTAIN_COMPLETE")
    items = complete.get_completions(line.split(), incomplete)
    return ["<file>" if item.type == "file" else item.value for item in items]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_QUINTAIN_COMPLETE", "bash_complete")
    for folder, name in (("runs", "first"), ("runs", "second"), ("other", "third")):
        (tmp_path / folder / name).mkdir(parents=True)
        (tmp_path / folder / name / "recipe.toml").touch()
    (tmp_path / "runs" / "empty").mkdir()


@pytest.mark.parametrize(
    ("line", "incomplete", "expected"),
    [
        ("", "trai", ["train"]),
        ("train --env", "arith", ["arithmetic"]),
        ("train", "quick", ["quickstart"]),
        ("train --resume", "", ["first", "second"]),
        ("train --folder other --resume", "", ["third"]),
        ("train --model", "fir", ["first"]),
        ("train --model", "def", ["default"]),
        ("eval", "gsm", ["gsm8k"]),
        ("eval arithmetic --model", "sec", ["second"]),
        ("eval", "./mine", ["<file>"]),
        ("info", "dr_g", ["dr_grpo"]),
        ("start", "arithm", ["arithmetic"]),
        ("sft", "fir", ["first"]),
        ("check", "math_eq", ["math_equal"]),
        ("rescore", "s", ["second"]),
        ("compare --env", "arithm", ["arithmetic"]),
        ("train --name", "quick", []),
        ("train", "--en", ["--env"]),
        ("completion", "z", ["zsh"]),
    ],
)
def test_names_are_completed(runs: None, line: str, incomplete: str, expected: list[str]) -> None:
    assert expected == completions(line, incomplete)


def test_completion_is_clicks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line of the documentation prints a script for the shell."""
    monkeypatch.setenv("_QUINTAIN_COMPLETE", "zsh_source")
    with pytest.raises(SystemExit) as ended:
        main([])
    out, err = capsys.readouterr()
    assert "_QUINTAIN_COMPLETE=zsh_complete" in out
    assert ended.value.code == 0
    assert err == ""


def test_the_lines_of_the_shells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == 'eval "$(_QUINTAIN_COMPLETE=bash_source quintain)"\n'
