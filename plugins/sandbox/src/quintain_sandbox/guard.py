"""Programs with the rights of the trainer, of which nothing stays: no orphan, whatever group,
session or environment it moved to, and nothing after the trainer itself was killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

GUARD = Path(__file__).with_name("guard_main.py")


def guarded(argv: Sequence[str], *, grace: float) -> list[str]:
    """Return the command that runs *argv* under a guard, which exits with its status once all of
    its descendants ended.

    The guard adopts orphans (``PR_SET_CHILD_SUBREAPER``; on Linux alone, elsewhere it kills the
    process group). SIGTERM to the guard ends all, SIGKILL the program alone.

    Args:
        grace: seconds that the program has between SIGTERM and SIGKILL.
    """
    return [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), str(grace), *argv]
