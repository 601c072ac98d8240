"""Every algorithm of the table, the plugins' too, improves the default model on `arithmetic` (`make
test-all`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quintain.interfaces.algorithm import Algorithm
from quintain.registry.lookup import current

# a step takes half a minute
NEEDS: dict[str, tuple[str, ...]] = {"trpo": ("batch.prompts=32", "stop.accuracy=0.5")}
"""Recipe keys that an algorithm wants here, where its own defaults do not suit a model of this
size.
"""


def algorithm_names() -> list[str]:
    """Names of all installed algorithms but `sft`, which follows samples without looking at their
    reward.
    """
    registry = current()
    found = [c for c in registry.components("algorithm") if "." not in c.name and c.name != "sft"]
    return [c.name for c in found if isinstance(registry.resolve(c), Algorithm)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model is trained once."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithm_names())
def test_held_out_accuracy_rises(name: str, cache: Path, tmp_path: Path) -> None:
    """Greedy, by a tenth at least, in twenty steps of the quickstart."""
    decoding = "evaluation.temperature=0"  # likeliest tokens change before samples do
    changes = (
        f"algorithm.use={name}",
        decoding,
        "stop.accuracy=0.9",
        "evaluation.every=5",
        *NEEDS.get(name, ()),
    )
    words = [word for change in changes for word in ("--set", change)]
    command = [
        sys.executable,
        "-m",
        "quintain",
        "train",
        "--steps",
        "20",
        "--name",
        "run",
        "--json",
        *words,
    ]
    environ = {**os.environ, "QUINTAIN_CACHE": str(cache)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=900
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)["held_out"]
    assert found["after"]["accuracy"] >= found["before"]["accuracy"] + 0.1, found
