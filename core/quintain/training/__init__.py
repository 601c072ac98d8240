"""A training run: recipe, loop, run folder, metrics."""
