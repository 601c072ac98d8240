"""The classic trust-region methods: PPO with a critic, TRPO, and VinePPO, which samples its values.

They come from outside the core because each needs machinery of its own: a second model, an update
rule, an engine.
"""

from __future__ import annotations

from .algorithms import PPO, TRPO, VINEPPO
from .critic import Critic

__all__ = ["PPO", "TRPO", "VINEPPO", "Critic"]
