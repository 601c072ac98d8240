"""Norms, rotary embeddings and gated activations of training as single differentiable functions."""

from __future__ import annotations

from .decoder import TrainingDecoder

__all__ = ["TrainingDecoder"]
