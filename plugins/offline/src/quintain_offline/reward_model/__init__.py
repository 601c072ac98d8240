"""Reward models: training on preference pairs, scoring, ensembles, process rewards, a monitor of
over-optimisation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import lazy_names

if TYPE_CHECKING:
    from .loss import PairMetrics as PairMetrics
    from .loss import bradley_terry_loss as bradley_terry_loss
    from .monitor import OverOptimisation as OverOptimisation
    from .pairs import PreferencePair as PreferencePair
    from .pairs import pairs_of_groups as pairs_of_groups
    from .pairs import read_pairs as read_pairs
    from .pairs import split_by_prompt as split_by_prompt
    from .pictures import PictureScoringModel as PictureScoringModel
    from .pictures import new_picture_model as new_picture_model
    from .process import ProcessRewardModel as ProcessRewardModel
    from .rewards import learned_reward as learned_reward
    from .rewards import picture_reward as picture_reward
    from .rewards import process_reward as process_reward
    from .scorer import Scorer as Scorer
    from .scoring import load_scoring_model as load_scoring_model
    from .scoring import new_scoring_model as new_scoring_model
    from .scoring_model import ScoreStatistics as ScoreStatistics
    from .scoring_model import ScoringModel as ScoringModel
    from .service import ModelScore as ModelScore
    from .service import RewardModel as RewardModel
    from .training import RewardTraining as RewardTraining
    from .training import TrainingSettings as TrainingSettings

# A name imports its own module alone: reading pairs needs no torch.
__getattr__, __dir__ = lazy_names(__name__)
