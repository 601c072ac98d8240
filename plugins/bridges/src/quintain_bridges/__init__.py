"""Bridges between Quintain and other ecosystems, one sub-package each."""
