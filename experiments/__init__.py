"""Small studies of claims from the literature: one command each, ``python -m experiments.NAME``, minutes on a CPU.

What they found stands in ``docs/experiments/``.
"""
