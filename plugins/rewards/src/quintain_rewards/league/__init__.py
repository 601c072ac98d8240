"""Self-play: earlier selves of the policy as opponents, and a conformance suite for several
players.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .service import League as League
    from .suite import SeatedControls as SeatedControls
    from .suite import SelfPlaySuite as SelfPlaySuite

# The suite needs pytest.
__getattr__, __dir__ = lazy_names(__name__)
