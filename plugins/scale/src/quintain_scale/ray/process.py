"""The actor that runs one process. Ray starts it again when it is killed or its machine is gone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ..machine.process import passed_on, run_tied


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
        status, words_said = run_tied(words, environment, folder, said=passed_on)
        if status < 0 and restarts:  # killed: that is for Ray to mend, as if it had been the actor
            os._exit(1)
        return status, words_said
