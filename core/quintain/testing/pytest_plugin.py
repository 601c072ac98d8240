"""A fixture for authors, in every pytest that has quintain installed. Nothing of it is imported
before a test asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..registry.lookup import Registry


@pytest.fixture
def quintain_plugins() -> Iterator[Registry]:
    """Use a registry that knows core's own components only; what a test adds is gone after it."""
    from . import isolated_plugins

    with isolated_plugins() as registry:
        yield registry
