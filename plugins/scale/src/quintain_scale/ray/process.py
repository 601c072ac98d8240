"""The actor that runs one process. Ray starts it again when it is killed or its machine is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence

LAST_LINES = 20
"""Lines of output that are kept as the last words of a process."""


class ProcessActor:
    """Runs a process, which ends with the actor."""

    def run(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        *,
        restarts: bool,
    ) -> tuple[int, str]:
        """Run Python with *words*; return its exit code and last words.

        Its output goes on to that of the actor, which Ray keeps in files. *environment* comes as an
        argument, since Ray writes the environments of actors into command lines.

        Args:
            folder: where it runs, if this machine has it.
            restarts: whether one that is killed is started again.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", "quintain_scale.ray.tied", str(os.getpid()), *words],
            env=os.environ | dict(environment),
            cwd=folder if os.path.isdir(folder) else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        last: deque[str] = deque(maxlen=LAST_LINES)
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last.append(line)
        status = process.wait()
        if status < 0 and restarts:  # killed: that is for Ray to mend, as if it had been the actor
            os._exit(1)
        return status, "".join(last).strip()
