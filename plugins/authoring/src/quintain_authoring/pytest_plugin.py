"""What every pytest that has the plugin installed knows of it: a fixture that plays episodes, and
the asserts of the suites show their values. Nothing is imported before a test asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.register_assert_rewrite("quintain_authoring.suites")


@pytest.fixture
def quintain_run() -> Callable[..., Any]:
    """Give a test `quintain_authoring.run_episode`: ``quintain_run(environment, task, ["first
    reply", "second"])``.
    """
    from .episodes import run_episode

    return run_episode
