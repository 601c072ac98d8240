"""Learning: the pieces of the algorithms, the table of algorithms, and the learner that runs them.
Needs torch.
"""

from ..models.module_weights import ModuleWeights
from ..models.sampler_mismatch import SamplerMismatch
from ..types.rollout import SPREAD_TOLERANCE, SUCCESS, are_equal, reaches
from ..types.transcript import TrainingSequence
from .algorithms import ALGORITHMS
from .batch import Batch, Sample
from .learner import Advantages, Learner, Prepared
from .loss_inputs import LossInputs
from .microbatch import MicroBatch, micro_batches
from .optimizer_step import OptimizerStep
from .pieces import advantages, aggregation, corrections, objectives
from .pieces import group_filter as group_filter
from .pieces.advantages import Step
from .ranks import Ranks
from .scorer import FrozenPolicies

__all__ = [
    "ALGORITHMS",
    "SPREAD_TOLERANCE",
    "SUCCESS",
    "Advantages",
    "Batch",
    "FrozenPolicies",
    "Learner",
    "LossInputs",
    "MicroBatch",
    "ModuleWeights",
    "OptimizerStep",
    "Prepared",
    "Ranks",
    "Sample",
    "SamplerMismatch",
    "Step",
    "TrainingSequence",
    "advantages",
    "aggregation",
    "are_equal",
    "corrections",
    "group_filter",
    "micro_batches",
    "objectives",
    "reaches",
]
