"""Prompts: from examples to text and token ids. Only this package builds prompts."""
