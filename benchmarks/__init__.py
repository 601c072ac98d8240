"""Figures of `docs/benchmarks.md`, one command each: ``python -m benchmarks.step`` and so on."""
