"""The breakpoint of docs/debugging.md stops where the page says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .commands import parse
from .pages import ROOT, page

PAGE = page("docs/debugging.md")


@pytest.mark.more
def test_a_breakpoint_stops_in_the_reward(tmp_path: Path) -> None:
    """The command of the page, with the answers of the page to the debugger."""
    (source,) = [b.text for b in PAGE.blocks if b.file == "debugged.py"]
    (tmp_path / "debugged.py").write_text(source)
    (command,) = [c for b in PAGE.blocks if b.language == "bash" for c in b.commands]
    words = command.split()[1:]

    done = subprocess.run(
        [sys.executable, "-m", "quintain", *words],
        cwd=tmp_path, input="p rollout.reply\nc\n", capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "debugged.py(8)long_enough()" in done.stdout.replace(str(tmp_path) + "/", "")
    assert "(Pdb) 'rain is interesting'" in done.stdout
    assert "pass@1" in done.stdout


def test_the_configurations_start_commands_that_exist() -> None:
    """The page shows .vscode/launch.json; its commands take their options."""
    (shown,) = [b.text for b in PAGE.blocks if b.language == "json"]
    assert shown == (ROOT / ".vscode" / "launch.json").read_text()

    for configuration in json.loads(shown)["configurations"]:
        if configuration["module"] == "quintain":
            words = " ".join(configuration["args"]).replace(
                "${file}:${input:class}", "debugged.py:Wordy"
            )
            parse(f"quintain {words}")
