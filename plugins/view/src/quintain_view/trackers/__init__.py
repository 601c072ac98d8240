"""Experiment trackers: TensorBoard, Weights & Biases, MLflow and trackio, one module each.

A run uses those in ``[[trackers]]`` of its recipe. Subclass `Tracker` for another one; it needs
three methods.
"""

from __future__ import annotations

from .tracker import TrackedRun, Tracker, flattened, imported

__all__ = ["TrackedRun", "Tracker", "flattened", "imported"]
