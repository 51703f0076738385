"""The engine that hands prompts to vLLM in this process."""
