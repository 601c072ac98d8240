"""Environments of Quintain in the trainers of `tinker_cookbook`."""

from __future__ import annotations

from .dataset import QuintainDatasetBuilder

__all__ = ["QuintainDatasetBuilder"]
