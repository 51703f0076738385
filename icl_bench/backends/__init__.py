"""Backends: they turn prompts (token ids) into answers."""
