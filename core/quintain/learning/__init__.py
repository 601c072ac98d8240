"""Learning: the pieces of the algorithms, the table of algorithms, and the learner that runs them. Needs torch."""

from ..types.rollout import SUCCESS, reaches
from ..types.transcript import TrainingSequence
from .algorithms import ALGORITHMS
from .batch import Batch, Sample
from .learner import Learner
from .loss_inputs import LossInputs
from .microbatch import FlatTokens, MicroBatch, micro_batches
from .optimizer_step import OptimizerStep
from .pieces import advantages, aggregation, corrections, objectives
from .pieces import group_filter as group_filter
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

__all__ = [
    "ALGORITHMS",
    "SUCCESS",
    "Batch",
    "FlatTokens",
    "Learner",
    "LossInputs",
    "MicroBatch",
    "OptimizerStep",
    "Sample",
    "Step",
    "SupervisedUpdate",
    "TrainingSequence",
    "advantages",
    "aggregation",
    "corrections",
    "demonstrations_of",
    "encode_conversation",
    "end_of_turn",
    "group_filter",
    "join_thought",
    "micro_batches",
    "objectives",
    "reaches",
    "split_thought",
    "supervised_updates",
]
