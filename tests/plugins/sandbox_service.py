"""The provider `bubblewrap`, started for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintain.errors import InfrastructureError
from quintain_sandbox import Bubblewrap
from quintain_sandbox.cgroups import PREFIX, own_controllers


def started(*, slots: int) -> Iterator[Bubblewrap]:
    """A service that runs until the generator ends; skips the test where it cannot start."""
    service = Bubblewrap(slots=slots, needs=())
    try:
        asyncio.run(service.__aenter__())
    except InfrastructureError as e:
        pytest.skip(f"bubblewrap does not work here: {e}")
    yield service
    asyncio.run(service.__aexit__())


def left_behind(user: int | None) -> list[str]:
    """Processes of *user*, those of bubblewrap, zombies too, and control groups of runs."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            own = int(lines["PPid"]) == os.getpid() and lines["Name"] == "bwrap"
            if own or (user not in (None, os.getuid()) and int(lines["Uid"].split()[0]) == user):
                found.append(f"process {status.parent.name} {lines['Name']}")
    places = own_controllers()
    for place in {places.memory, places.pids} - {None}:
        assert place is not None
        found += [str(folder) for folder in place.glob(f"{PREFIX}-{os.getpid()}-*")]
    return found
