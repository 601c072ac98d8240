"""Small studies of claims from the literature: one command each, minutes on a CPU,
``python -m studies.experiments.NAME``.

What they found stands in ``docs/experiments/``.
"""
