"""Services of a run: their manager, and worker processes."""
