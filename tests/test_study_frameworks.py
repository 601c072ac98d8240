"""The study of frameworks against the gateway, with the plain `openai` client of this interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from studies.conformance import frameworks
from studies.conformance.frameworks.__main__ import frameworks as command

from .lanes import needs

FOLDER = Path(frameworks.__file__).parent


def test_each_framework_has_a_program_that_imports_nothing_of_quintain() -> None:
    programs = {path.stem: path for path in FOLDER.glob("[a-z]*.py")}
    assert programs.keys() == frameworks.FRAMEWORKS.keys()
    assert not [name for name, path in programs.items() if "quintain" in path.read_text().lower()]


@pytest.mark.more
@needs("openai", "pip install openai")
def test_the_table_has_a_row_for_each_api_of_the_openai_client() -> None:
    found = CliRunner().invoke(command, ["openai", "--here"])
    assert found.exit_code == 0, found.output
    rows = [[cell.strip() for cell in line.split("|")] for line in found.output.splitlines()[2:]]
    assert [row[3] for row in rows] == ["chat", "responses"]
    assert {row[4] for row in rows} == {"6 of 6"}
    assert {row[6] for row in rows} == {"1"}
