"""The learner `tinker`: updates on a server that speaks the API of Tinker's SDK."""

from __future__ import annotations

from .learner import Tinker, TinkerLearner

__all__ = ["Tinker", "TinkerLearner"]
