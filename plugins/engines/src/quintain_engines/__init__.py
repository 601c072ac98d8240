"""Engines beside Quintain's own: `openai` for servers that speak OpenAI's API, `vllm` for vLLM."""
