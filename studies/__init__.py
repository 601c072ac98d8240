"""What was measured and tried: ``python -m studies.benchmarks.NAME`` and
``python -m studies.experiments.NAME``, from the root of the repository.
"""
