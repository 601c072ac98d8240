"""What tests of environments share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quintain_sandbox import Bubblewrap

from ..plugins.sandbox.service import started


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Bubblewrap]:
    """A started sandbox with two slots; its start takes a second."""
    yield from started(slots=2)
