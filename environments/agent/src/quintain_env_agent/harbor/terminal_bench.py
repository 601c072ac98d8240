"""Folders of the first Terminal-Bench (``task.yaml``) as folders of Harbor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from quintain.errors import UsageError

from .folder import (
    COMPOSE,
    CONFIG,
    OLD_CONFIG,
    UnsupportedTask,
    compose_faults,
    read_text,
    read_yaml,
)

REPORT = "quintain_report.py"
TEST = f"""#!/bin/bash
# What pytest reports decides. The exit status of the old script may be that of a pipe or of an echo.
export TEST_DIR=/tests
export QUINTAIN_REPORT=/logs/verifier/pytest.txt
export PYTHONPATH="/tests${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTEST_ADDOPTS="-p {REPORT.removesuffix(".py")} ${{PYTEST_ADDOPTS:-}}"
mkdir -p /logs/verifier
rm -f "$QUINTAIN_REPORT" /logs/verifier/reward.txt
bash /tests/run-tests.sh
code=$?
if [ ! -s "$QUINTAIN_REPORT" ]; then
  echo "pytest did not start: no reward"
  exit "$code"
fi
begun=$(grep -c '^begun$' "$QUINTAIN_REPORT")
right=$(grep -c '^right$' "$QUINTAIN_REPORT")
if [ "$begun" -eq "$right" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
exit "$code"
"""
"""Each session of pytest writes a line when it begins, and one if at least one test passed and none
failed. Without a line there is no reward.
"""
PLUGIN = """# A plugin of pytest that says how each of its sessions ended.
import os

FILE = os.environ.get("QUINTAIN_REPORT", "")
COUNTS = {"passed": 0, "failed": 0}


def say(word):
    with open(FILE, "a") as file:
        file.write(word + "\\n")


def pytest_configure(config):
    if FILE and not hasattr(config, "workerinput"):
        config._quintain_report = True
        say("begun")


def pytest_collectreport(report):
    COUNTS["failed"] += report.failed


def pytest_runtest_logreport(report):
    COUNTS["failed"] += report.failed
    COUNTS["passed"] += report.passed and report.when == "call"


def pytest_sessionfinish(session, exitstatus):
    whole = int(exitstatus) == 0 and COUNTS["passed"] and not COUNTS["failed"]
    if whole and getattr(session.config, "_quintain_report", False):
        say("right")
"""
PARSER = "pytest"
"""The way of reading the output of the tests that ``task.yaml`` names, where it names one."""
LEFT_OUT = (".git", "__pycache__")
COPIED_KEYS = (
    "author_name",
    "author_email",
    "difficulty",
    "category",
    "tags",
    "expert_time_estimate_min",
    "junior_time_estimate_min",
)
AGENT_SECONDS, TEST_SECONDS = 360.0, 60.0
"""Where ``task.yaml`` says none."""


def convert(old: Path, new: Path) -> None:
    """Write the task of *old* to the folder *new*, which must not exist.

    The old folder is the context of the image, as before. What a compose file of one service sets
    (variables, working directory, folders that are mounted) becomes instructions of the Dockerfile.

    Raises:
        UsageError: *old* is no such task, or a file in it is not valid.
        UnsupportedTask: it has several services, asks for something else that is not possible in
            one container, or has its output read by another parser than that of pytest.
    """
    task = read_yaml(old / OLD_CONFIG)
    if not isinstance(task, dict) or not str(task.get("instruction") or "").strip():
        raise UsageError(f"{old / OLD_CONFIG} has no instruction")
    parser = task.get("parser_name") or PARSER
    if parser != PARSER:
        raise UnsupportedTask(
            f"{old}: not supported: parser_name is {parser!r}, a parser of its own for the output of "
            f"the tests; a report of {PARSER} is read"
        )
    service = _service(old)
    dockerfile = _dockerfile(old, service)
    if not (old / "run-tests.sh").is_file():
        raise UsageError(f"there is no {old / 'run-tests.sh'}")
    new.mkdir(parents=True)
    (new / CONFIG).write_text(_config(task), encoding="utf-8")
    (new / "instruction.md").write_text(str(task["instruction"]).strip() + "\n", encoding="utf-8")
    build = service.get("build")
    context = build.get("context", ".") if isinstance(build, dict) else build or "."
    ignore = shutil.ignore_patterns(*LEFT_OUT)
    shutil.copytree(old / str(context), new / "environment", ignore=ignore, symlinks=True)
    for name in COMPOSE:  # what it says is in the Dockerfile now
        (new / "environment" / name).unlink(missing_ok=True)
    (new / "environment" / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    if (old / "tests").is_dir():
        shutil.copytree(old / "tests", new / "tests", ignore=ignore, symlinks=True)
    (new / "tests").mkdir(exist_ok=True)
    shutil.copy2(old / "run-tests.sh", new / "tests" / "run-tests.sh")
    (new / "tests" / "test.sh").write_text(TEST, encoding="utf-8")
    (new / "tests" / REPORT).write_text(PLUGIN, encoding="utf-8")
    if (old / "solution.sh").is_file():
        (new / "solution").mkdir()
        shutil.copy2(old / "solution.sh", new / "solution" / "solve.sh")


def _service(old: Path) -> Mapping[str, Any]:
    """Return what the one service of the compose file says; nothing where there is no such file."""
    place = next((p for p in sorted(old.glob("docker-compose.y*ml"))), None)
    if place is None:
        return {}
    compose = read_yaml(place)
    services = compose.get("services") if isinstance(compose, dict) else None
    only = {}
    if isinstance(services, dict) and len(services) == 1:
        (service,) = services.values()
        only = {
            key: value
            for key, value in (service or {}).items()
            if key not in ("environment", "working_dir", "volumes", "platform", "expose")
        }
        services = dict.fromkeys(services, only)
    if faults := compose_faults({"services": services}):
        raise UnsupportedTask(f"{old}: not supported: {'; '.join(faults)}")
    (service,) = compose["services"].values()
    return dict(service or {})


def _dockerfile(old: Path, service: Mapping[str, Any]) -> str:
    build = service.get("build")
    place = old
    name = "Dockerfile"
    if isinstance(build, dict):
        place, name = old / str(build.get("context", ".")), str(build.get("dockerfile", name))
        if further := sorted(set(build) - {"context", "dockerfile"}):
            raise UnsupportedTask(f"{old}: not supported: a build with {', '.join(further)}")
    elif build:
        place = old / str(build)
    if old.resolve() not in (place.resolve(), *place.resolve().parents):
        raise UnsupportedTask(f"{old}: not supported: a build context outside of the folder")
    lines = [
        read_text(place / name).rstrip("\n"),
        "",
        "# From the compose file:",
        "ENV TEST_DIR=/tests",
    ]
    for key, value in _variables(service.get("environment")).items():
        if "${" not in value and key != "TEST_DIR":
            lines.append(f"ENV {key}={json.dumps(value)}")
    for volume in service.get("volumes") or ():
        if "LOGS_PATH" in str(volume):
            continue
        source, _, target = str(volume).partition(":")
        target = target.partition(":")[0]
        inside = PurePosixPath(source)
        if not source.startswith(".") or ".." in inside.parts or not target.startswith("/"):
            raise UnsupportedTask(f"{old}: not supported: the volume {volume!r}")
        lines.append(f"COPY {json.dumps([str(inside), target])}")
    if (folder := service.get("working_dir")) and "${" not in str(folder):
        lines.append(f"WORKDIR {folder}")
    return "\n".join(lines) + "\n"


def _variables(value: Any) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(k): str(v) for k, v in value.items() if v is not None}
    pairs = (str(item).partition("=") for item in value or () if "=" in str(item))
    return {key: text for key, _, text in pairs}


def _config(task: Mapping[str, Any]) -> str:
    lines = ['version = "1.0"', "", "[metadata]"]
    for key in COPIED_KEYS:
        value = task.get(key)
        if isinstance(value, (str, int, float, list)) and not isinstance(value, bool):
            text = [str(item) for item in value] if isinstance(value, list) else value
            lines.append(f"{key} = {json.dumps(text, ensure_ascii=True)}")
    lines += [
        "",
        "[agent]",
        f"timeout_sec = {_seconds(task, 'max_agent_timeout_sec', AGENT_SECONDS)}",
    ]
    lines += [
        "",
        "[verifier]",
        f"timeout_sec = {_seconds(task, 'max_test_timeout_sec', TEST_SECONDS)}",
    ]
    return "\n".join(lines) + "\n"


def _seconds(task: Mapping[str, Any], key: str, default: float) -> float:
    value = task.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise UsageError(f"{OLD_CONFIG}: {key} is {value!r}; expected a positive number")
    return float(value)
