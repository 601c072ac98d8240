"""The OpenAI chat-completions protocol. Nothing here is imported until an engine speaks it."""
