"""Evaluate an engine on an environment without training."""
