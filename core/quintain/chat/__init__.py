"""Conversations as exact tokens: templates, the token bridge, tool-call formats."""
