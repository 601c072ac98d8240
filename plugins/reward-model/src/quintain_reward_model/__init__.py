"""Reward models: training on preference pairs, scoring, ensembles, process rewards, a monitor of over-optimisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loss import PairMetrics, bradley_terry_loss
    from .monitor import OverOptimisation
    from .pairs import PreferencePair, pairs_of_groups, read_pairs, split_by_prompt
    from .process import ProcessRewardModel
    from .rewards import process_reward, reward_model
    from .scorer import Scorer
    from .scoring import ScoringModel, Statistics, load_scoring_model, new_scoring_model
    from .service import ModelScore, RewardModel
    from .training import RewardTraining, TrainingSettings

__all__ = [
    "ModelScore",
    "OverOptimisation",
    "PairMetrics",
    "PreferencePair",
    "ProcessRewardModel",
    "RewardModel",
    "RewardTraining",
    "Scorer",
    "ScoringModel",
    "Statistics",
    "TrainingSettings",
    "bradley_terry_loss",
    "load_scoring_model",
    "new_scoring_model",
    "pairs_of_groups",
    "process_reward",
    "read_pairs",
    "reward_model",
    "split_by_prompt",
]

_HOME = {
    "loss": ("PairMetrics", "bradley_terry_loss"),
    "monitor": ("OverOptimisation",),
    "pairs": ("PreferencePair", "pairs_of_groups", "read_pairs", "split_by_prompt"),
    "process": ("ProcessRewardModel",),
    "rewards": ("process_reward", "reward_model"),
    "scorer": ("Scorer",),
    "scoring": ("ScoringModel", "Statistics", "load_scoring_model", "new_scoring_model"),
    "service": ("ModelScore", "RewardModel"),
    "training": ("RewardTraining", "TrainingSettings"),
}
_MODULES = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    # Every run imports the hooks of this package, also one without a reward model, which needs none of the rest.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
