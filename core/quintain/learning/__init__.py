"""Learning: the pieces of the methods, the table of presets, and the learner that runs them. Needs torch."""

from ..types.rollout import SUCCESS, reaches
from ..types.transcript import TrainingSequence
from .algorithms import PRESETS
from .batch import Batch, Sample
from .learner import Learner
from .microbatch import Columns, MicroBatch, micro_batches
from .optimizer_step import Problem
from .pieces import advantages, aggregation, corrections, objectives
from .pieces import group_filter as admission
from .pieces.advantages import Step
from .supervised import (
    SupervisedUpdate,
    demonstrations_of,
    encode_conversation,
    end_of_turn,
    join_thought,
    split_thought,
    supervised_updates,
)
from .terms import Terms

__all__ = [
    "PRESETS",
    "SUCCESS",
    "Batch",
    "Columns",
    "Learner",
    "MicroBatch",
    "Problem",
    "Sample",
    "Step",
    "SupervisedUpdate",
    "Terms",
    "TrainingSequence",
    "admission",
    "advantages",
    "aggregation",
    "corrections",
    "demonstrations_of",
    "encode_conversation",
    "end_of_turn",
    "join_thought",
    "micro_batches",
    "objectives",
    "reaches",
    "split_thought",
    "supervised_updates",
]
