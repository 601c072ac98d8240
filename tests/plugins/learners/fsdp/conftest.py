"""What several tests of ranks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quintain_learners.fsdp.team import Team


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    """Processes for all cases of a file: a learner of few ranks uses the first of them."""
    team = Team(4, silence=300.0)
    yield team
    team.close()
