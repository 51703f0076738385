"""Prompts: examples to text and token ids. The only place that builds a prompt."""
