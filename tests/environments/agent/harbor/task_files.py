"""Task folders for tests, written as their authors write them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

TOML = """version = "1.0"
[metadata]
difficulty = "easy"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
[environment]
memory_mb = 256
allow_internet = false
"""
TEST = """#!/bin/sh
mkdir -p /logs/verifier
if [ "$(cat /app/out.txt 2>/dev/null)" = "$(cat /tests/expected.txt)" ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""
SOLVE = "#!/bin/sh\necho hello > /app/out.txt\n"


def write(place: Path, files: dict[str, str]) -> Path:
    """Write *files* below *place*."""
    for name, text in files.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return place


def task(place: Path, image: str = "python:3.12", **changed: str) -> Path:
    """A task whose solution writes a greeting; *changed* files by path, with ``__`` for a slash and
    ``_dot_`` for a dot.
    """
    files = {
        "task.toml": TOML,
        "instruction.md": "Write hello into out.txt.\n",
        "environment/Dockerfile": f"FROM {image}\nWORKDIR /app\nCOPY start.txt /app/start.txt\n",
        "environment/start.txt": "begin\n",
        "solution/solve.sh": SOLVE,
        "tests/test.sh": TEST,
        "tests/expected.txt": "hello\n",
    }
    names = {k.replace("__", "/").replace("_dot_", "."): v for k, v in changed.items()}
    return write(place, {**files, **names})


def old_task(place: Path, **changed: str) -> Path:
    """A task of the first Terminal-Bench."""
    files = {
        "task.yaml": "instruction: |-\n  Write hello into out.txt.\ndifficulty: easy\n"
        "tags:\n  - files\nmax_agent_timeout_sec: 90.0\nmax_test_timeout_sec: 30.0\n",
        "Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\nCOPY start.txt /app/start.txt",
        "start.txt": "begin\n",
        "docker-compose.yaml": "services:\n  client:\n    build:\n      dockerfile: Dockerfile\n"
        "    command: [sh, -c, sleep infinity]\n    environment:\n      - TEST_DIR=${T_BENCH_TEST_DIR}\n"
        "      - GREETING=hello there\n    volumes:\n"
        "      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}\n      - ./data:/data:ro\n",
        "data/one.txt": "1\n",
        "run-tests.sh": "#!/bin/sh\ncmp /app/out.txt $TEST_DIR/expected.txt\n",
        "solution.sh": SOLVE,
        "tests/expected.txt": "hello\n",
    }
    names = {k.replace("__", "/").replace("_dot_", "."): v for k, v in changed.items()}
    return write(place, {**files, **names})


def archive(place: Path, mode: str = "w:gz") -> bytes:
    """A folder as a tar archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as tar:  # type: ignore[call-overload]
        tar.add(place, arcname=".")
    return data.getvalue()
