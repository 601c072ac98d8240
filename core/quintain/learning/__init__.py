"""Learning: the pieces of the algorithms, the table of algorithms, and the learner that runs them.
Needs torch.
"""

from ..models.module_weights import ModuleWeights
from ..models.sampler_mismatch import SamplerMismatch
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

__all__ = [
    "ALGORITHMS",
    "SUCCESS",
    "Batch",
    "FlatTokens",
    "Learner",
    "LossInputs",
    "MicroBatch",
    "ModuleWeights",
    "OptimizerStep",
    "Sample",
    "SamplerMismatch",
    "Step",
    "TrainingSequence",
    "advantages",
    "aggregation",
    "corrections",
    "group_filter",
    "micro_batches",
    "objectives",
    "reaches",
]
