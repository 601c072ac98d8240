"""What every environment owes a trainer, for those that no other file here tests so; and that none
is left out.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quintain.registry.lookup import current
from quintain_authoring import EnvironmentSuite
from quintain_env_agent import AgentProgram, SandboxedAgent
from quintain_env_code.procedural import CodeProcedural
from quintain_gateway import Gateway
from quintain_sandbox import Bubblewrap

HERE = Path(__file__).parent
OF_OTHERS = {"NemoGym", "OpenEnv", "PeerTasks", "VerifiersServer"}
"""Their tasks come from a server or an interpreter of another project; `test_nemo_gym.py` and its
like play one where `QUINTAIN_..._PYTHON` names it.
"""


class TestCodeProcedural(EnvironmentSuite):
    environment = CodeProcedural
    episodes = 2
    sample = 20

    @classmethod
    def services(cls) -> Mapping[str, Any]:
        return {**super().services(), "sandbox": Bubblewrap(slots=2, enforce=())}


class TestAgentProgram(EnvironmentSuite):
    """An agent that asks once and returns the reply: what the policy says is the answer."""

    environment = AgentProgram
    args = {
        "function": f"{HERE / 'agent' / 'programs.py'}:solve",
        "data": str(HERE / "agent" / "rows.jsonl"),
    }
    episodes = 2

    @classmethod
    def services(cls) -> Mapping[str, Any]:
        return {**super().services(), "gateway": Gateway()}


class TestSandboxedAgent(EnvironmentSuite):
    """The same agent as a program in a box."""

    environment = SandboxedAgent
    args = {
        "argv": ["python3", "programs.py", "plain"],
        "files": [str(HERE / "agent" / "programs.py")],
        "data": str(HERE / "agent" / "rows.jsonl"),
    }
    episodes = 2

    @classmethod
    def services(cls) -> Mapping[str, Any]:
        return {
            **super().services(),
            "gateway": Gateway(),
            "sandbox": Bubblewrap(slots=4, enforce=()),
        }


def test_every_shipped_environment_has_a_suite() -> None:
    """In particular its oracle scores 1 and its nop 0 there (`test_controls_score_as_marked`)."""
    members = tomllib.loads((HERE.parents[1] / "registry.toml").read_text(encoding="utf-8"))
    shipped = {
        current().load("environment", component.partition(":")[2]).__name__
        for member in members["plugin"]
        for component in member.get("provides", [])  # some bring no component
        if component.startswith("environment:")
    }
    tested = {
        line.value.id
        for file in HERE.parent.rglob("test_*.py")
        for suite in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(suite, ast.ClassDef) and suite.name.startswith("Test")
        for line in suite.body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Name)
        if [target.id for target in line.targets if isinstance(target, ast.Name)] == ["environment"]
    }
    assert len(shipped) > 10
    assert shipped - tested == OF_OTHERS
