"""Continued training of a model on prompts with many demonstrations."""
