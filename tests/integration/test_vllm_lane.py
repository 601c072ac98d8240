"""The tests of vLLM, in an environment that has it: made once per machine, outside the checkout."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of the environment."""
    made = subprocess.run(["bash", "tools/vllm_env.sh"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    if made.returncode == 3:
        pytest.skip(made.stderr.strip().splitlines()[-1])
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def test_vllm_lane(python: str) -> None:
    """They run for real there: a file that is skipped for want of vLLM is a failure."""
    files = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests" / "plugins").glob("test_vllm*.py"))
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    command = [python, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider", "-m", "not slow", *files]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-6000:]
    summary = done.stdout.strip().splitlines()[-1]
    assert re.search(r"\d+ passed", summary), summary
    assert "vLLM is not installed" not in done.stdout, done.stdout[-2000:]
