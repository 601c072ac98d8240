"""Learners for large models: `lean` on one card, `fsdp` on several ranks, `flash` for attention on a GPU."""
