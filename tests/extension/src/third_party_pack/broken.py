"""Fails when imported."""

raise RuntimeError("the third party made a mistake")
