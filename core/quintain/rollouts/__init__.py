"""Run episodes and score them."""
