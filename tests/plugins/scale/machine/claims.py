"""Devices that processes claim by files, as programs on GPUs take their memory. Who wants one that
another has fails.

``claims.py FOLDER`` claims what it sees until SIGTERM. With ``HOST PORT`` behind it is a server of
a replica, which gives the devices up at SIGUSR1 and claims them again at SIGUSR2.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import signal
import sys
from pathlib import Path

SERVER = Path(__file__).parents[1] / "schedules" / "replica_server.py"
FOLDER = "CLAIMS_FOLDER"
"""Environment variable of the folder, for ranks."""


class Claims:
    """What this process has of the devices in ``CUDA_VISIBLE_DEVICES``.

    Attributes:
        log: lines ``WHO claims DEVICES`` and ``WHO leaves DEVICES``, in their order.
    """

    def __init__(self, folder: Path, who: str) -> None:
        self.folder, self.who = folder, who
        self.devices = [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
        self.log = folder / "log"

    def claim(self) -> None:
        """Claim all.

        Raises:
            FileExistsError: somebody has one.
        """
        for device in self.devices:
            os.close(os.open(self.folder / device, os.O_CREAT | os.O_EXCL))
        self._note("claims")

    def leave(self) -> None:
        self._note("leaves")
        for device in self.devices:
            (self.folder / device).unlink()

    def _note(self, what: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{self.who} {what} {','.join(self.devices)}\n")


def main(folder: str, *address: str) -> None:
    claims = Claims(Path(folder), "server" if address else "process")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    claims.claim()
    if not address:
        signal.sigwait([signal.SIGTERM])
        claims.leave()
        return
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGUSR1, lambda *_: claims.leave())
    signal.signal(signal.SIGUSR2, lambda *_: claims.claim())
    asyncio.run(runpy.run_path(str(SERVER))["main"](*address))


if __name__ == "__main__":
    main(*sys.argv[1:])
