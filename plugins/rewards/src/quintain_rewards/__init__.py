"""Rewards: `math_verify`, `shaping`, `likelihood` and `league`."""
