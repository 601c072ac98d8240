"""What another interpreter makes of an environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quintain.errors import PluginError

SECONDS = 120


def written_elsewhere(
    code: str, words: Sequence[str], *, hash_seed: str, late: str, failed: str
) -> Any:
    """Return what *code* writes as JSON to the file that is its last argument, after *words*;
    standard output may be the author's.

    Args:
        hash_seed: of ``hash()`` of text there.
        late: what is wrong after `SECONDS`.
        failed: what is wrong if it fails, before its last line.

    Raises:
        PluginError: it fails, or takes too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "written.json")
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, *words, str(file)],
                env=os.environ | {"PYTHONHASHSEED": hash_seed},
                timeout=SECONDS,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PluginError(late) from None
        if done.returncode or not file.exists():
            error_text = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            raise PluginError(f"{failed}: {error_text[-300:]}")
        return json.loads(file.read_text(encoding="utf-8"))
