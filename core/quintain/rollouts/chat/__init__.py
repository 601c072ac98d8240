"""Converts between messages and tokens: the token bridge, tool-call formats, thinking budgets."""
