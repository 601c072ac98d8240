"""What a plugin implements: environments, rewards, tools, engines, services, algorithms.

The names below are what plugins may import from here; each module is imported when one of its names
is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import lazy_names

if TYPE_CHECKING:
    from .cluster import PlacedProcess as PlacedProcess
    from .cluster import ProcessCluster as ProcessCluster
    from .cluster import ProcessRequest as ProcessRequest
    from .curriculum import Curriculum as Curriculum
    from .curriculum import Pick as Pick
    from .curriculum import TaskReader as TaskReader
    from .engine import Pressure as Pressure
    from .engine import changes_of as changes_of
    from .environment import SPLITS as SPLITS
    from .environment import yielded as yielded
    from .events import CheckpointSaved as CheckpointSaved
    from .events import EvaluationEnd as EvaluationEnd
    from .events import Event as Event
    from .events import RunEnd as RunEnd
    from .events import RunStart as RunStart
    from .events import Steering as Steering
    from .events import StepEnd as StepEnd
    from .events import StepMeasured as StepMeasured
    from .learner import PARTS as PARTS
    from .learner import AnyLearner as AnyLearner
    from .learner import BytesPerParameter as BytesPerParameter
    from .learner import LearnerKind as LearnerKind
    from .learner import PartSaver as PartSaver
    from .learner import PolicyLearner as PolicyLearner
    from .pieces import Kind as Kind
    from .pieces import every_piece as every_piece
    from .reward import RewardContext as RewardContext
    from .schedule import EpisodeOrder as EpisodeOrder
    from .schedule import Schedule as Schedule
    from .tokenizer import LITERAL as LITERAL
    from .tokenizer import Offsets as Offsets
    from .tokenizer import Renderer as Renderer

__getattr__, __dir__ = lazy_names(__name__)
