"""Engines that turn prompts (token ids) into answers."""
