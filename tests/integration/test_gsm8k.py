"""The code path of `quintain train --model Qwen/Qwen3-0.6B --env gsm8k`, on the real file and a
folder shaped like the model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.store.run_folder import RunFolder

from ..core.models.tiny import save_tiny

DATA = os.environ.get("QUINTAIN_DATA", "")


@pytest.mark.slow
@pytest.mark.skipif(
    not (Path(DATA) / "gsm8k").is_dir(), reason="QUINTAIN_DATA does not name a folder with gsm8k/"
)
def test_twenty_steps_on_gsm8k_survive_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random weights learn nothing here; the point is that 20 steps run, are killed, resume and
    end.
    """
    save_tiny(tmp_path / "Qwen3-0.6B", context=1024)
    changes = {
        "run.name": "gsm8k",
        "environments.0.args.data": str(Path(DATA) / "gsm8k"),
        "model.dtype": "float32",
        "learner.precision": "float32",
        "learner.lr": "1e-4",
        "sampling.max_tokens": "16",
        "batch.prompts": "2",
        "batch.group_size": "4",
        "evaluation.tasks": "4",
        "evaluation.test.tasks": "4",
        "evaluation.every": "10",
        "checkpoint.every": "5",
    }
    sets = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    words = ["train", "--model", "Qwen3-0.6B", "--env", "gsm8k", "--steps", "20", *sets]
    first = quintain(tmp_path, *words)
    metrics = tmp_path / "runs" / "gsm8k" / "metrics.jsonl"
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and first.poll() is None:
        if metrics.exists() and metrics.read_text().count("\n") >= 7:
            break
        time.sleep(0.02)
    first.kill()
    _, err = first.communicate()
    assert metrics.exists(), err
    monkeypatch.chdir(tmp_path)
    status = main(["train", "--resume", "gsm8k", "--json"])
    shown = capsys.readouterr()

    assert status == 0, shown.err
    summary = json.loads(shown.out)
    assert summary["steps"] == 20
    assert summary["environments"][0] == "gsm8k"
    assert list(range(21)) == [
        m["step"] for m in RunFolder.open(metrics.parent, lock=False).metrics()
    ]


def quintain(folder: Path, *words: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "quintain", *words],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
