"""Records that every layer shares: tasks, sampling settings, transcripts, rollouts. Standard library only."""
