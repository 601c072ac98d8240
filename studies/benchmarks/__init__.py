"""Figures of `docs/benchmarks.md`, one command each: ``python -m studies.benchmarks.step`` and so
on.
"""
