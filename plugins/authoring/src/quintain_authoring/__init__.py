"""Commands for authors (`quintain new`, `quintain check`, `quintain rescore`), episodes without a
model, files of audits, and the suites that the tests of an environment or a reward subclass::

    from . import EnvironmentSuite

    class TestMine(EnvironmentSuite):
        environment = Mine
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .controls import ControlEngine as ControlEngine
    from .episodes import run_episode as run_episode
    from .options import arguments_of as arguments_of
    from .options import service_options as service_options
    from .options import services_of as services_of
    from .record_file import RecordFile as RecordFile
    from .scripted import ScriptedEngine as ScriptedEngine
    from .stepwise import Asked as Asked
    from .stepwise import Stepwise as Stepwise
    from .stepwise import task_at as task_at
    from .suites import EnvironmentSuite as EnvironmentSuite
    from .suites import RewardSuite as RewardSuite

# The suites need pytest; the commands do not.
__getattr__, __dir__ = lazy_names(__name__)
