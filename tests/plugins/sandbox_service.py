"""The provider `bubblewrap`, started for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from quintain.errors import InfrastructureError
from quintain_sandbox import Bubblewrap


def started(*, slots: int) -> Iterator[Bubblewrap]:
    """A service that runs until the generator ends; skips the test where it cannot start."""
    service = Bubblewrap(slots=slots, needs=())
    try:
        asyncio.run(service.__aenter__())
    except InfrastructureError as e:
        pytest.skip(f"bubblewrap does not work here: {e}")
    yield service
    asyncio.run(service.__aexit__())
